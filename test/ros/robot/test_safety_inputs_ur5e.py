"""Safety inputs of a UR5e on the emulator, with the manufacturer's messages and with stand-ins for missing ones."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from shipped_contracts import unhurried
from waiting import wait_for, wait_for_error, wait_past_error

pytest.importorskip("rclpy", reason="needs rclpy")

from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, Int32, String
from std_srvs.srv import SetBool

import embodied_env
from embodied_env.backends.backend_registry import make_backend
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.contract.urdf import parse_urdf
from embodied_env.errors import BackendNotReadyError, MissingDependencyError, UsageError
from embodied_env.messages.message_types import message_class
from embodied_env.processes.child_process import Child, simulator
from embodied_env.ros.robot.estops import estop_specs
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import LATCHED, RELIABLE
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

NAMESPACE = "/robot"
PATIENCE_S = 30.0
PACKAGE = "ur_dashboard_msgs"
UR_ORDER = [
    "elbow_joint",
    "shoulder_lift_joint",
    "shoulder_pan_joint",
    "wrist_1_joint",
    "wrist_2_joint",
    "wrist_3_joint",
]


def ur5e(**keys):
    """Return the UR5e in the joint order of its driver, with a short graph check."""
    contract = embodied_env.load_contract("ur5e_reach")
    real = {**contract.backends["real"], "discovery_s": 0.0, "connect_timeout_s": PATIENCE_S, **keys}
    emulator = {"joint_order": UR_ORDER, "robot_description": "generated"}
    sim = {**contract.backends["mujoco_ros"], "emulator": emulator}
    return unhurried(replace(contract, backends={**contract.backends, "real": real, "mujoco_ros": sim}))


@pytest.fixture
def without_messages(monkeypatch):
    """Hide `ur_dashboard_msgs`, even if another test has generated it."""
    if any(Path(place, PACKAGE).is_dir() for place in sys.path if "interfaces" not in place):
        pytest.skip(f"{PACKAGE} is installed")
    message_class.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not Path(place, PACKAGE).is_dir()])
    yield
    message_class.cache_clear()


@pytest.fixture(params=["variant", pytest.param("message", marks=pytest.mark.long)])
def messages(request, monkeypatch):
    """Set the message packages of both sides, and return the inputs that use a stand-in."""
    if request.param == "variant":
        request.getfixturevalue("without_messages")
        return "safety_mode", "robot_mode"
    request.getfixturevalue("message_package")(PACKAGE)
    folder = next(place for place in sys.path if Path(place, PACKAGE).is_dir())
    monkeypatch.setenv("PYTHONPATH", folder, prepend=":")
    return ()


@pytest.fixture
def robot(domain_id, messages, close_later):
    """The emulator, and a second node in its namespace."""
    contract = ur5e()
    spec = simulator("-", namespace=NAMESPACE, source=contract.source, free_running=True)
    child = Child(spec, first_line=dump_contract(contract))
    close_later(SimpleNamespace(close=child.stop))
    while "wall time" not in child.stderr_tail():
        assert child.exit_code is None, child.stderr_tail()
        time.sleep(0.02)
    return close_later(RosNode("person", namespace=NAMESPACE, clock=SteadyClock()))


def switch(node, name, *, on):
    request = SetBool.Request(data=on)
    reply = node.receiver.call(SetBool, f"simulator/{name}", request, PATIENCE_S, lambda: None)
    assert reply.success
    return reply.message


def wait_for_input(env, name, *, permits):
    """Wait for the message of an input, which may arrive after the reply of its switch."""
    wait_for(lambda: env.unwrapped.stepper.backend.estops()[name].is_ok is permits)


def test_the_estop_ends_the_episode_at_rest_and_the_robot_does_not_move_without_its_program(robot, messages):
    contract = ur5e()
    with embodied_env.make(contract, backend="real", namespace=NAMESPACE, emulator=True) as env:
        observation, _ = env.reset(seed=0)
        home = [contract.backends["real"]["reset"]["home"][joint] for joint in contract.actuators["arm"].joints]
        np.testing.assert_allclose(observation["joints_position"], home, atol=0.01)  # in contract order
        robot.receiver.subscribe("commands", Float64MultiArray, "forward_position_controller/commands", RELIABLE)
        robot.receiver.subscribe("joints", JointState, "joint_states")
        robot.receiver.subscribe("description", String, "robot_description", LATCHED)
        action = np.full(6, 0.02, dtype=np.float32)
        for _ in range(5):
            *_, info = env.step(action)
        assert info["end_reason"] == ""
        assert switch(robot, "estop/safety_mode", on=True) == "pressed"
        while not info["end_reason"]:
            *_, info = env.step(action)
        assert info["end_reason"] == "safety_stop:robot.protective_stop"
        found, end = received(robot), time.monotonic() + PATIENCE_S
        while not np.array_equal(*(message.data for message in found["commands"][-2:])):  # it brakes in the background
            assert time.monotonic() < end
            found |= received(robot)
        assert set(parse_urdf(found["description"][-1].data).joints) == set(UR_ORDER)
        assert found["joints"][-1].name == UR_ORDER
        assert env.unwrapped.capabilities.variants == messages
        assert switch(robot, "estop/safety_mode", on=False) == "released"
        wait_for_input(env, "safety_mode", permits=True)
        env.unwrapped.clear_estop()

        assert switch(robot, "active/program", on=False) == "inactive"
        wait_for_input(env, "program", permits=False)
        with pytest.raises(BackendNotReadyError, match=r"program is .*: .*robot_program_running is False"):
            env.reset(seed=1)
        assert "commands" not in received(robot)
        assert switch(robot, "active/program", on=True) == "active"
        wait_past_error(lambda: env.reset(seed=1), BackendNotReadyError, "robot_program_running is False")
        *_, info = env.step(action)
        assert info["end_reason"] == ""


def test_a_robot_with_its_own_messages_does_not_move_for_a_stand_in(domain_id, without_messages, close_later):
    """Its safety mode is not of the stand-in's type, as on every real UR5e."""
    robot = close_later(RosNode("robot", namespace=NAMESPACE, clock=SteadyClock()))
    robot.node.create_publisher(Int32, "io_and_status_controller/safety_mode", LATCHED)
    robot.receiver.subscribe("commands", Float64MultiArray, "forward_position_controller/commands", RELIABLE)
    env = close_later(
        embodied_env.make(ur5e(), backend="real", namespace=NAMESPACE, emulator=True, connect_timeout_s=0.5)
    )
    mismatch = r"safety_mode.*has type std_msgs/msg/Int32 \(expected std_msgs/msg/UInt8"
    wait_for_error(lambda: env.reset(seed=0), BackendNotReadyError, mismatch)  # once it is discovered
    assert "commands" not in received(robot)


def received(node):
    """Return the messages received since the last call, by topic."""
    found = {}
    for arrival in node.receiver.receive(0.5):
        found.setdefault(arrival.key, []).append(arrival.message)
    return found


def test_an_input_that_cannot_be_read_is_ignored_only_by_name(without_messages):
    real = ur5e().backends["real"]
    estop = {"safety_mode": {key: value for key, value in real["estop"]["safety_mode"].items() if key != "variant"}}
    contract = ur5e(estop=estop)
    with pytest.raises(MissingDependencyError, match=r"backends.real.estop.safety_mode .*ignore_inputs=\["):
        make_backend("real", contract, clock=SteadyClock())
    with pytest.raises(UsageError, match=r"expected .* cannot be read: safety_mode, robot_mode"):
        make_backend("real", contract, clock=SteadyClock(), ignore_inputs=["program"])
    with pytest.raises(MissingDependencyError, match=r"estop.safety_mode"):  # of a relay
        estop_specs(estop, "estop")
    assert estop_specs(estop, "estop", ignored=["safety_mode"]) == {}
    (with_variant,) = estop_specs(real["estop"], "estop").values()
    assert (with_variant.type, with_variant.path) == ("std_msgs/msg/UInt8", "data")
    robot: Any = make_backend("real", contract, clock=SteadyClock(), ignore_inputs=["safety_mode"])
    assert robot.capabilities.ignored_inputs == ("safety_mode",)
    assert robot.capabilities.variants == ("robot_mode",)
    assert "safety_mode" not in robot.estops()
