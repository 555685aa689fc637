"""`contract init --from-graph` with robots on real topics: the written contract loads and drives the robot."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from odd_robots import Base, ControlledArm, Gripper, NamespacedArm
from sensor_msgs.msg import JointState

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.graph_reader import read_graph
from embodied_env.processes.child_process import Child, simulator
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import LATCHED
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]


def init_from_graph(folder, *arguments):
    file = folder / "draft.yaml"
    command = ["contract", "init", "--from-graph", "--listen", "1.0", "-o", str(file), *arguments]
    assert main(command) == 0
    return embodied_env.load_contract(file)


def run_steps(contract, *, namespace="/", count=20):
    """Step `count` times with half of the largest action; return the last info."""
    real = {**contract.backends["real"], "discovery_s": 0.0}
    trusted = replace(contract, confirmed=tuple(contract.chosen), backends={**contract.backends, "real": real})
    env = embodied_env.make(trusted, backend="real", namespace=namespace)
    try:
        env.reset(seed=0)
        for _ in range(count):
            space = env.action_space
            action = {k: box.high / 2 for k, box in space.items()} if hasattr(space, "spaces") else space.high / 2
            *_, terminated, truncated, info = env.step(action)
            assert (terminated, truncated) == (False, False), info["end_reason"]
    finally:
        env.close()
    return info


def test_arm_in_a_namespace_with_further_joints(domain_id, tmp_path, capsys):
    robot = NamespacedArm(domain_id)
    try:
        contract = init_from_graph(tmp_path, "--namespace", "/left")
        actuator = contract.actuators["arm"]
        assert (actuator.topic, actuator.type) == (
            "arm_controller/joint_trajectory",
            "trajectory_msgs/msg/JointTrajectory",
        )
        assert list(actuator.joints) == ["waist", "shoulder", "elbow", "slide"]  # as in the URDF
        assert [j.unit for j in actuator.joints.values()] == ["rad", "rad", "rad", "m"]
        assert actuator.joints["waist"].position == (-3.0, 3.0)
        assert actuator.joints["elbow"].position is None
        assert actuator.joints["shoulder"].velocity == 1.5
        assert contract.backends["real"]["estop"]["emergency_stop"]["latched"] is True
        assert set(contract.unconfirmed) == {"actuators.arm.joints", "backends.real.estop.emergency_stop.safe"}
        printed = capsys.readouterr().out
        assert "unsupported type 'floating'" in printed
        assert "wheel, right_finger, left_finger" in printed
        before = dict(robot.positions)
        run_steps(contract, namespace="/left")
        assert robot.positions["waist"] > before["waist"] + 0.1
    finally:
        robot.close()


def test_a_message_with_more_joints_than_a_robot_has_is_refused(domain_id):
    driver = RosNode("driver", namespace="/", clock=SteadyClock(), domain_id=domain_id)
    try:
        message = JointState(name=[f"j{n}" for n in range(20_000)])
        driver.node.create_publisher(JointState, "joint_states", LATCHED).publish(message)
        with pytest.raises(ContractError, match=r"^/joint_states: 20000 joint names .expected at most 1000"):
            read_graph(5.0, domain_id=domain_id)
    finally:
        driver.close()


@pytest.mark.long
def test_base_without_stamps(domain_id, tmp_path):
    robot = Base(domain_id)
    try:
        contract = init_from_graph(tmp_path)
        assert contract.actuators["base"].type == "geometry_msgs/msg/Twist"
        assert contract.sensors["wheel_odom"].timeline == "receive"
        assert contract.sensors["scan"].fields["ranges"].shape == (4,)
        run_steps(contract)
        assert robot.fastest > 0.05
    finally:
        robot.close()


@pytest.mark.long
def test_gripper_without_description(domain_id, tmp_path):
    robot = Gripper(domain_id)
    try:
        contract = init_from_graph(tmp_path)
        assert contract.actuators["gripper"].joints["finger_slide"].unit == "m"
        run_steps(contract)
        assert robot.position > 0.005
    finally:
        robot.close()


ALONE = """
contract: embodied_env/1
name: {name}_alone
version: 1
robot: {name}
control_period_s: 0.05
episode: {{horizon_steps: 100}}
action: {{dtype: float32}}
task: {{type: no_goal}}
"""
ROBOT_FILES = ("fr3", "xarm7", "husky")
SHIPPED = ("arm_reach", "cart_goal", "turtlebot4_goal", "ur5e_reach")


@pytest.mark.parametrize(
    "name", ["so101_reach", *(pytest.param(name, marks=pytest.mark.long) for name in (*SHIPPED, *ROBOT_FILES))]
)
def test_every_emulator_gives_a_contract_that_runs(domain_id, tmp_path, name):
    file = tmp_path / f"{name}.yaml"
    file.write_text(ALONE.format(name=name))
    shipped = embodied_env.load_contract(file if name in ROBOT_FILES else name)
    namespace = f"/init_{os.getpid()}"
    spec = simulator("-", namespace=namespace, source=shipped.source, free_running=True)
    child = Child(spec, first_line=dump_contract(shipped))
    try:
        topic = next(iter(shipped.sensors.values())).topic
        with contextlib.closing(RosNode("witness", namespace=namespace, clock=SteadyClock())) as ros:
            assert ros.wait_until(lambda: ros.node.count_publishers(topic), 30.0)
        contract = init_from_graph(tmp_path, "--namespace", namespace)
        assert [list(a.joints) for a in contract.actuators.values()] == [
            list(a.joints) for a in shipped.actuators.values()
        ]
        run_steps(contract, namespace=namespace)
    finally:
        child.stop()


@pytest.mark.long
def test_the_controller_manager_provides_joints_and_required_states(domain_id, tmp_path, capsys, message_package):
    message_package("controller_manager_msgs")
    robot = ControlledArm(domain_id)
    try:
        contract = init_from_graph(tmp_path)
        assert contract.actuators["arm"].topic == "scaled_controller/joint_trajectory"
        assert list(contract.actuators["arm"].joints) == ["elbow", "waist"]
        assert contract.backends["real"]["active"]["arm"]["controller"] == "scaled_controller"
        assert "used instead: /scaled_controller/joint_trajectory" in capsys.readouterr().out
        run_steps(contract)
        assert robot.positions["waist"] > 0.05
    finally:
        robot.close()
