import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.core.code_types import Quality
from embodied_env.errors import BackendNotReadyError
from embodied_env.processes.child_process import Child, relay, segments_of, simulator
from embodied_env.ros.transport import fastdds as large_messages
from embodied_env.ros.transport.fastdds import PROFILE, VARIABLES

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Fast DDS puts its segments
ARM = embodied_env.load_contract("arm_reach")
SHAPE = (1400, 2400, 3)  # 10 MB
NAMESPACE = f"/large_{os.getpid()}"
STEPS = 16
NONE = dict.fromkeys(VARIABLES, "")
PATIENCE_S = 20.0
ZERO = np.zeros(6)

CAMERA = SensorSpec(
    topic="camera/image_raw",
    type="sensor_msgs/msg/Image",
    fields={"image": FieldSpec(unit="1", low=0.0, high=255.0, shape=SHAPE)},
    encoding="rgb8",
    rate_hz=2.0,
    max_age_s=PATIENCE_S,
)
LARGE = replace(ARM, sensors={**ARM.sensors, "camera": CAMERA}, backends={**ARM.backends, "real": {"discovery_s": 0.0}})

FILM = f"""
import array, threading
import rclpy
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image
from embodied_env.processes.child_process import watch_parent

done = threading.Event()
watch_parent(done.set)
rclpy.init()
node = Node("camera", namespace={NAMESPACE!r})
publisher = node.create_publisher(Image, "camera/image_raw", qos_profile_sensor_data)
image = Image(height={SHAPE[0]}, width={SHAPE[1]}, encoding="rgb8", step={3 * SHAPE[1]})
image.data = array.array("B", bytes([7])) * {SHAPE[0] * SHAPE[1] * 3}
while not done.wait(0.2):
    image.header.stamp = node.get_clock().now().to_msg()
    publisher.publish(image)
node.destroy_node()
rclpy.shutdown()
"""


def segment_of(child):
    """Wait for the shared-memory segment of a process, and return its size."""
    end = time.monotonic() + PATIENCE_S
    while not (names := [name for name in segments_of(child.pid) if "port" not in name]):
        assert child.exit_code is None, child.stderr_tail()
        assert time.monotonic() < end
        time.sleep(0.05)
    return max((SHARED_MEMORY / name).stat().st_size for name in names)


@pytest.mark.parametrize(("contract", "is_roomy"), [(LARGE, True), (ARM, False)], ids=["large", "small"])
@pytest.mark.long
def test_shared_memory_is_enlarged_only_for_contracts_with_large_messages(domain_id, contract, is_roomy):
    """The relay represents all `embodied-env` processes, since a simulator would have to render the image."""
    spec = relay("-", namespace=NAMESPACE, source=ARM.source)
    child = Child(spec, first_line=dump_contract(contract), environment=NONE)
    try:
        assert (segment_of(child) >= 32 * 2**20) is is_roomy
    finally:
        child.stop()


def test_environment_without_enough_shared_memory_warns_with_the_remedy(domain_id, monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(large_messages, "_warned", set())
    env = embodied_env.make(LARGE, backend="real", namespace=NAMESPACE, reset_timeout_s=0.3)
    with pytest.warns(UserWarning, match=f"camera/image_raw.*{PROFILE.name}"), pytest.raises(BackendNotReadyError):
        env.reset(seed=0)
    env.close()


@pytest.fixture
def robot_and_camera(domain_id, monkeypatch):
    """Start a free-running arm, and a camera that publishes 50 MB/s."""
    for name in VARIABLES:
        monkeypatch.setenv(name, str(PROFILE))
    spec = simulator("-", namespace=NAMESPACE, source=ARM.source, free_running=True)
    arm = Child(spec, first_line=dump_contract(ARM))
    camera = subprocess.Popen([sys.executable, "-c", FILM], stdin=subprocess.PIPE)
    yield
    camera.communicate()
    arm.stop()


@pytest.mark.long
def test_f46_10_mb_images_do_not_delay_joint_states(robot_and_camera):
    """Most steps have new and fresh joint states, with and without images."""
    with_images, images = count_beside_images(LARGE)
    without, _ = count_beside_images(replace(LARGE, sensors=ARM.sensors))
    assert images >= 2
    assert with_images >= 0.7 * without


def count_beside_images(contract):
    """Step, and return the number of steps with new and fresh joint states, and of received images."""
    env = embodied_env.make(contract, backend="real", namespace=NAMESPACE)
    env.reset(seed=0)
    news, before = 0, -1
    images = set()
    for _ in range(STEPS):
        observation, _, terminated, truncated, _ = env.step(ZERO)
        samples = env.unwrapped.last_transition.snapshot.samples
        joints = samples["joints"]
        news += joints.quality is Quality.OK and joints.seq != before
        before = joints.seq
        if "camera" in samples:
            images.add(samples["camera"].seq)
            assert (observation["camera_image"][::100] == 7).all()
        if terminated or truncated:  # after a stall of the machine
            env.reset()
    env.close()
    return news, len(images)
