"""Foreign clients of a simulator, malformed messages, interrupts, forks, and invalid environments."""

import array
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from hosted_simulator import foreign_node_of
from rclpy.duration import Duration

import embodied_env
from embodied_env.errors import BackendNotReadyError, ResetNeededError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.wire.simulator_protocol import FAULT_TOPIC, IMAGE_TOPIC, STEPPED_TOPIC, StepAck

pytestmark = pytest.mark.ros

ZERO = np.zeros(6)
PATIENCE_S = 60.0  # a busy machine delays a step, the first image and the exit of a process


@pytest.fixture(scope="module")
def env(lasting):
    """A simulator shared by tests that leave it running and start with a reset."""
    options = {"backend": "mujoco_ros", "render_mode": "rgb_array", "step_timeout_s": PATIENCE_S}
    return lasting(embodied_env.make, contract="arm_reach", **options)


@pytest.fixture
def own_env():
    """An environment with its own simulator, for tests that stop it."""
    env = embodied_env.make("arm_reach", backend="mujoco_ros", step_timeout_s=PATIENCE_S)
    yield env
    env.close()


def backend_of(env):
    return env.unwrapped.stepper.backend


@pytest.fixture
def foreign_node(env):
    """A second node in the simulator's namespace."""
    with foreign_node_of(env) as other:
        yield other


def test_reset_by_a_second_client_ends_the_episode_of_the_first(own_env):
    own_env.reset(seed=1)
    namespace = backend_of(own_env)._ros.node.get_namespace()
    second = embodied_env.make("arm_reach", backend="mujoco_ros", spawn=False, namespace=namespace)
    second.reset(seed=2)
    *_, truncated, info = own_env.step(ZERO)
    second.close()
    assert (truncated, info["end_reason"]) == (True, "backend_lost:reset_by_other")


def publish_foreign(env, topic, message):
    """Publish a message in the environment's namespace once the topic has a subscriber."""
    with foreign_node_of(env) as other:
        publisher = other.node.create_publisher(type(message), topic, RELIABLE)
        assert other.wait_until(lambda: publisher.get_subscription_count() > 0, PATIENCE_S)
        publisher.publish(message)
        assert publisher.wait_for_all_acked(Duration(seconds=PATIENCE_S))


def lost_reason(env):
    """Return why the world was lost, as its held readings report it."""
    return env.unwrapped.last_transition.snapshot.samples["joints"].reason


def text_of(data):
    return message_class("std_msgs/msg/String")(data=data)


def test_fault_of_another_epoch_is_ignored(env):
    env.reset(seed=1)
    publish_foreign(env, FAULT_TOPIC, text_of('{"epoch": 1, "why": "x", "detail": "y"}'))
    assert env.step(ZERO)[-1]["end_reason"] == ""


@pytest.mark.parametrize(
    "data",
    [
        pytest.param('{"a":' * 50_000, id="deep"),
        *(pytest.param(text, marks=pytest.mark.long) for text in ("", "{}", "[1]", "not json")),
    ],
)
def test_malformed_fault_message_ends_the_episode_and_reset_recovers(own_env, data):
    own_env.reset(seed=1)
    publish_foreign(own_env, FAULT_TOPIC, text_of(data))
    *_, truncated, info = own_env.step(ZERO)
    assert (truncated, info["end_reason"]) == (True, "backend_lost:invalid_message")
    assert "simulator/fault: " in lost_reason(own_env)
    own_env.reset(seed=1)
    assert own_env.step(ZERO)[-1]["end_reason"] == ""


def test_reading_from_the_far_future_is_reported_as_future(own_env):
    own_env.reset(seed=1)
    stamped = message_class("sensor_msgs/msg/JointState")()
    stamped.header.stamp.sec = 2**31 - 1  # in the year 2038
    publish_foreign(own_env, "joint_states", stamped)
    *_, truncated, info = own_env.step(ZERO)
    assert (truncated, info["end_reason"]) == (True, "backend_lost:future_reading")
    assert "joints at 2147483647000000000 ns" in lost_reason(own_env)


def test_acknowledgement_of_an_unrequested_step_is_ignored(env, foreign_node):
    env.reset(seed=1)
    backend = backend_of(env)
    stepped = foreign_node.node.create_publisher(message_class("std_msgs/msg/Int64MultiArray"), STEPPED_TOPIC, RELIABLE)
    assert foreign_node.wait_until(lambda: stepped.get_subscription_count() > 0, PATIENCE_S)
    newest = tuple((0, 0) for _ in env.unwrapped.contract.sensors)
    stepped.publish(
        stepped.msg_type(data=array.array("q", StepAck(epoch=backend._epoch, step=99, newest=newest).to_data()))
    )
    assert stepped.wait_for_all_acked(Duration(seconds=PATIENCE_S))
    *_, info = env.step(ZERO)
    assert info["sensors"]["joints"]["age_s"] == 0.0


def test_second_publisher_on_a_sensor_topic_is_reported_at_reset(env, foreign_node):
    env.reset(seed=1)
    joints = foreign_node.node.create_publisher(message_class("sensor_msgs/msg/JointState"), "joint_states", RELIABLE)
    assert foreign_node.wait_until(lambda: backend_of(env)._ros.node.count_publishers("joint_states") == 2, PATIENCE_S)
    patient, backend_of(env).reset_timeout_s = backend_of(env).reset_timeout_s, 0.3
    with pytest.raises(BackendNotReadyError, match=r"more than one publisher on \['joint_states'\]"):
        env.reset()
    backend_of(env).reset_timeout_s = patient
    foreign_node.node.destroy_publisher(joints)
    env.reset()


def test_foreign_image_is_not_used_as_a_reading(env, foreign_node):
    env.reset(seed=1)
    backend = backend_of(env)
    pictures = foreign_node.node.create_publisher(message_class("sensor_msgs/msg/Image"), IMAGE_TOPIC, RELIABLE)
    assert foreign_node.wait_until(lambda: pictures.get_subscription_count() > 0, PATIENCE_S)
    small = pictures.msg_type(encoding="rgb8", height=2, width=2)
    seconds, small.header.stamp.nanosec = divmod(backend._origin_ns, 1_000_000_000)
    small.header.stamp.sec = seconds
    pictures.publish(small)
    assert pictures.wait_for_all_acked(Duration(seconds=PATIENCE_S))
    assert env.render().shape == (480, 640, 3)


def test_interrupt_during_a_step_ends_the_episode(env, monkeypatch):
    env.reset(seed=1)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backend_of(env)._ros.receiver, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.step(ZERO)
    with pytest.raises(ResetNeededError):
        env.step(ZERO)


@pytest.mark.long
def test_reset_after_an_interrupt_resynchronises_the_simulator(own_env):
    own_env.reset(seed=1)
    os.kill(own_env.unwrapped.processes()[0]["pid"], signal.SIGSTOP)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            own_env.step(ZERO)
    finally:
        signal.signal(signal.SIGALRM, previous)
    own_env.reset(seed=1)
    *_, info = own_env.step(ZERO)
    assert (info["end_reason"], info["sensors"]["joints"]["stamp_ns"]) == ("", 50_000_000)


def test_failed_open_leaves_no_simulator(monkeypatch, tmp_path, close_later):
    unwritable = tmp_path / "a_file"
    unwritable.write_text("")
    monkeypatch.setenv("ROS_LOG_DIR", str(unwritable / "log"))
    env = close_later(embodied_env.make("arm_reach", backend="mujoco_ros", reset_timeout_s=PATIENCE_S))
    before = children()
    with pytest.raises(BackendNotReadyError, match=r"a_file|exited with code"):
        env.reset(seed=1)
    assert children() == before


def children():
    return {p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}


def run(script, **environment):
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


def test_use_in_a_process_forked_after_ros_started_is_rejected():
    done = run(
        "import os, embodied_env\n"
        "from embodied_env.timing.clock import SteadyClock\n"
        "from embodied_env.ros.transport.node import RosNode\n"
        "RosNode('first_use', namespace='/', clock=SteadyClock()).close()\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        embodied_env.make('arm_reach', backend='mujoco_ros').reset(seed=1)\n"
        "    except embodied_env.errors.BackendNotReadyError as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert "forked" in done.stdout
    assert "spawn" in done.stdout


@pytest.mark.needs("evaluation")
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        pytest.param("ROS_DOMAIN_ID", "500", marks=pytest.mark.long),
        ("ROS_DOMAIN_ID", "abc"),
        ("RMW_IMPLEMENTATION", "rmw_nope"),
    ],
)
def test_invalid_environment_prints_one_line_and_exits_with_2(variable, value, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "embodied_env.cli", "demo", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, variable: value},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("embodied-env: error: ")
    assert f"{variable}={value!r}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.needs("evaluation")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
@pytest.mark.long
def test_terminated_demo_closes_its_run_and_simulator(number, status, tmp_path):
    demo = subprocess.Popen(
        [sys.executable, "-m", "embodied_env.cli", "demo", "--episodes", "500", "--out", str(tmp_path / "runs")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/first_transition.json")) and time.monotonic() < end:
        time.sleep(0.05)
    children = psutil.Process(demo.pid).children(recursive=True)
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == status
    assert "Traceback" not in errors
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    (path,) = (tmp_path / "runs").iterdir()
    assert embodied_env.read_run(path).clean


@pytest.mark.long
def test_reset_finds_a_restarted_attached_simulator(tmp_path):
    """Also for a sensor without stamps, whose new publisher restarts its sequence numbers."""
    command = [sys.executable, "-m", "embodied_env.cli", "sim", "cart_goal", "--namespace", "/again"]

    def start():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert "simulating" in process.stdout.readline()
        return process

    simulator = start()
    env = embodied_env.make("cart_goal", backend="mujoco_ros", spawn=False, namespace="/again", step_timeout_s=1.0)
    try:
        env.reset(seed=1)
        simulator.terminate()
        simulator.communicate(timeout=20)
        *_, truncated, info = env.step(np.zeros(2))
        assert (truncated, info["end_reason"]) == (True, "backend_lost:timeout")
        simulator = start()
        env.reset(seed=1)
        assert env.step(np.zeros(2))[-1]["end_reason"] == ""
    finally:
        env.close()
        simulator.terminate()
        simulator.communicate(timeout=20)
