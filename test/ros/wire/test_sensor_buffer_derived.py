"""Resampled scans, resized images and histories are equal in every backend, recorded, audited, replayed, vectorised."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from evidence import assert_replays, assert_sound
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

pytest.importorskip("rclpy", reason="needs rclpy")
pytest.importorskip("mujoco", reason="needs mujoco")

from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import deserialize_message
from shipped_contracts import resolved_document

import embodied_env
from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.contract.fixed_sizes import resample_scan
from embodied_env.contract.sensor_schema import ResampleSpec, ResizeSpec
from embodied_env.core.reading_conversion import pixels_sha256, resize_image
from embodied_env.messages.declaration import InvalidReadingError
from embodied_env.messages.message_types import message_class
from embodied_env.record import read_run
from embodied_env.record.mcap_file import McapRecords
from embodied_env.record.message_log import read_messages
from embodied_env.ros.embedded_sim.message_encoder import to_message
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.wire.sensor_buffer import SensorReader
from embodied_env.timing.clock import NS_PER_S, SteadyClock

pytestmark = pytest.mark.ros

STEPS = 8


def derived_contract(folder):
    """Write the cart's contract with a resampled scan, a resized camera and histories, and return its file."""
    document = resolved_document("cart_goal")
    document.pop("robot", None)  # merged
    document["name"] = "derived_cart"
    sensors = document["sensors"]
    scan = {"resample": {"angles": 36, "method": "min"}, "nan": 10.0, "history": 2}
    sensors["scan"]["fields"]["ranges"] |= scan
    sensors["goal"]["fields"]["position"]["history"] = 5  # at half the control rate, late, and some are lost
    image = {"shape": [24, 40, 3], "unit": "1", "low": 0, "high": 255, "history": 2, "resize": {"size": [16, 16]}}
    sensors["camera"] = {
        "topic": "camera",
        "type": "sensor_msgs/msg/Image",
        "encoding": "rgb8",
        "rate_hz": 2.5,
        "max_age_s": 1.0,
        "fields": {"image": image},
    }
    document["task"].pop("pilot")  # reads the scan as it is published
    world = document["backends"]["mujoco"]
    world["sources"]["camera"] = {"camera": "overview"}
    document["backends"] = {"mujoco": world, "mujoco_ros": world}
    file = folder / "derived_cart.yaml"
    file.write_text(json.dumps(document))
    return file


@pytest.fixture(scope="module")
def contract(tmp_path_factory):
    return embodied_env.load_contract(derived_contract(tmp_path_factory.mktemp("contracts")))


def actions(contract, steps=STEPS):
    return np.random.default_rng(0).uniform(-1.0, 1.0, size=(steps, *contract.action_space.shape))


def played(env, contract, seed=3):
    """Return what each observation of an episode has, and the hashes of the raw images."""
    observation, _ = env.reset(seed=seed)
    found = [(bits(observation), hashes(env.unwrapped.stepper.last_reset))]
    for action in actions(contract):
        observation, *_ = env.step(action)
        found.append((bits(observation), hashes(env.unwrapped.last_transition.snapshot)))
    return found


def bits(observation):
    return {key: (value.shape, value.dtype, value.tobytes()) for key, value in observation.items()}


def hashes(snapshot):
    return snapshot.samples["camera"].raw_sha256["image"]


@pytest.mark.needs("replay")
def test_readings_are_bit_identical_in_process_and_over_ros_and_recorded(contract, domain_id, tmp_path):
    from embodied_env.extensions.replay.row_decoder import RowDecoder

    """The record has the hash of each raw image, from which the recorded image follows."""
    results = []
    for backend in ("mujoco", "mujoco_ros"):
        options = {"record": tmp_path, "record_messages": True} if backend == "mujoco_ros" else {}
        with embodied_env.make(contract, backend=backend, **options) as env:
            results.append(played(env, contract))
    assert results[0] == results[1]
    assert len({raw for _, raw in results[0]}) > 2
    camera = contract.sensors["camera"]
    reader, by_hash = SensorReader("camera", camera), {}
    for message in read_messages(McapRecords(env.path / "messages.mcap")):
        if message.topic.endswith("/camera"):
            values = reader.read(deserialize_message(message.data, message_class(camera.type)))["image"]
            by_hash[reader.raw_sha256["image"]] = values
    assert_sound(env.path)
    assert_replays(env.path, transitions=STEPS)
    run = read_run(env.path)
    decoder = RowDecoder(contract, run.array)
    rows: Any = run.rows()
    for row in rows:
        image = run.array(row["observation"]["camera_image"])
        assert image.shape == (2, 16, 16, 3)
        assert np.array_equal(image[-1], by_hash[row["inner"]["sensors"]["camera"]["raw_sha256"]["image"]])
        observation = decoder.observation(row)
        assert observation in contract.observation_space
        assert observation["goal_position"].tolist() == row["observation"]["goal_position"]
        assert observation["goal_position"].shape == (5, 3)
        assert np.array_equal(observation["camera_image"], image)


@pytest.mark.needs("vector")
def test_a_vector_of_environments_equals_single_ones_that_can_be_flattened(contract):
    made = embodied_env.make_vec(contract, num_envs=2, backend="mujoco", autoreset_mode=AutoresetMode.DISABLED)
    with contextlib.closing(made) as vector, embodied_env.make(contract, backend="mujoco") as single:
        together, _ = vector.reset(seed=[3, 4])
        alone, _ = single.reset(seed=4)
        for action in actions(contract, 4):
            assert bits({key: value[1] for key, value in together.items()}) == bits(alone)
            together, *_ = vector.step(np.stack([action, action]))
            alone, *_ = single.step(action)
        space = single.observation_space
        assert spaces.flatten(space, alone) in spaces.flatten_space(space)


# --------------------------------------------------------------------------------------------------- scans over DDS


def laser(**field):
    ranges = FieldSpec(unit="m", low=0.0, high=10.0, shape=(360,), no_return=10.0, nan=0.0, **field)
    return SensorSpec(topic="scan", type="sensor_msgs/msg/LaserScan", fields={"ranges": ranges}, max_age_s=1.0)


def scan_of(count, now_ns=1):
    """Return a scan as a TurtleBot's LDS publishes it, with another number of rays in each turn."""
    message = message_class("sensor_msgs/msg/LaserScan")()
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(now_ns, NS_PER_S)
    message.angle_increment, message.angle_max = math.tau / count, math.tau
    message.range_min, message.range_max = 0.12, 3.5
    ranges = np.random.default_rng(count).uniform(0.0, 4.0, count).astype(np.float32)
    ranges[::17] = math.inf
    message.ranges = ranges.tolist()
    return message


@pytest.mark.parametrize("method", ["nearest", "min"])
def test_a_turtlebots_scan_of_340_to_361_rays_is_read_at_fixed_angles(domain_id, method):
    spec = laser(resample=ResampleSpec(angles=24, method=method))
    reader, received = SensorReader("scan", spec), {}
    ours, robot = (RosNode(name, namespace="/robot", clock=SteadyClock()) for name in ("ours", "lds"))
    try:
        kind = message_class(spec.type)
        ours.receiver.subscribe("scan", kind, "scan", qos_profile_sensor_data)
        publisher = robot.node.create_publisher(kind, "scan", qos_profile_sensor_data)
        counts = range(340, 362)

        def are_received():
            for count in counts:
                publisher.publish(scan_of(count, count))
                for arrival in ours.receiver.receive(0.05):
                    received[len(arrival.message.ranges)] = arrival.message
            return len(received) == len(counts)

        assert ours.wait_until(are_received, 20.0)
    finally:
        ours.close()
        robot.close()
    for count, message in received.items():
        values = reader.read(message)["ranges"]
        raw = np.array(scan_of(count).ranges, np.float32)
        raw[(raw > 3.5) & (raw <= 3.5 * 1.01)] = 3.5
        raw[np.isfinite(raw) & ((raw < 0.12) | (raw > 3.5))] = np.nan
        expected = resample_scan(raw, 0.0, math.tau / count, spec.fields["ranges"].resample or ResampleSpec(angles=24))
        expected[np.isposinf(expected)], expected[np.isnan(expected)] = 10.0, 0.0
        assert (values.shape, values.dtype) == ((24,), np.float32)
        assert np.array_equal(values, expected)


def test_intensities_are_those_of_the_nearest_rays():
    field = FieldSpec(unit="1", low=0.0, high=999.0, shape=(360,), resample=ResampleSpec(angles=4))
    spec = SensorSpec(topic="scan", type="sensor_msgs/msg/LaserScan", fields={"intensities": field}, max_age_s=1.0)
    message = scan_of(348)
    message.intensities = [float(ray) for ray in range(348)]
    assert SensorReader("scan", spec).read(message)["intensities"].tolist() == [0.0, 87.0, 174.0, 261.0]
    message.intensities = []
    with pytest.raises(InvalidReadingError, match="intensities cannot be resampled: 0 rays"):
        SensorReader("scan", spec).read(message)


# ---------------------------------------------------------------------------------------------- images of messages

PIXELS = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["Image", "CompressedImage"])
def test_raw_and_compressed_images_give_the_same_array_and_hash(kind):
    resize = ResizeSpec(size=(16, 16), method="crop", resample="lanczos")
    field = FieldSpec(unit="1", low=0.0, high=255.0, shape=(30, 40, 3), resize=resize)
    spec = SensorSpec(
        topic="image", type=f"sensor_msgs/msg/{kind}", encoding="rgb8", fields={"image": field}, max_age_s=1.0
    )
    reader = SensorReader("camera", spec)
    values = reader.read(to_message(spec, {"image": PIXELS}, 1))["image"]
    assert np.array_equal(values, resize_image(PIXELS, resize))
    assert reader.raw_sha256 == {"image": pixels_sha256(PIXELS)}
    with pytest.raises(InvalidReadingError, match=r"the image is 20 x 30 \(expected 40 x 30\)"):
        reader.read(to_message(spec, {"image": PIXELS[:, :20].copy()}, 1))
