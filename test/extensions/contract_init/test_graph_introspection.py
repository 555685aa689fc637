"""The contract that `contract init --from-graph` writes for robots on real topics loads and drives the robot."""

import contextlib
import os
import re
from dataclasses import replace

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from geometry_msgs.msg import Twist
from odd_robots import ArmWithActionServer, Base, ControlledArm, NamespacedArm, Quadruped, SharedNode
from sensor_msgs.msg import JointState
from shipped_contracts import unhurried

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.errors import ContractError
from embodied_env.extensions.contract_init.graph_introspection import read_graph
from embodied_env.messages.message_types import TRAJECTORY
from embodied_env.processes.child_process import Child, simulator
from embodied_env.ros.robot.preflight import joint_checks, survey
from embodied_env.ros.robot.robot_profile import load_real_profile
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import LATCHED
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]


def init_from_graph(folder, *arguments, is_complete=bool):
    """Return the contract of a draft, for which a busy machine may listen longer."""
    file = folder / "draft.yaml"
    for listen_s in ("1.0", "3.0", "10.0"):
        command = ["contract", "init", "--from-graph", "--listen", listen_s, "--force", "-o", str(file), *arguments]
        if main(command) == 0 and is_complete(contract := embodied_env.load_contract(file)):
            return contract
    raise AssertionError(f"no complete draft: {file.read_text() if file.exists() else 'no file'}")


def has_actuators(*names):
    return lambda contract: set(contract.actuators) == set(names)


def run_steps(contract, *, namespace="/", count=20, **options):
    """Step `count` times with half of the largest action, and return the last info."""
    real = {**contract.backends["real"], "discovery_s": 0.0, "connect_timeout_s": 30.0}
    trusted = unhurried(
        replace(contract, confirmed=tuple(contract.chosen), unknown={}, backends={**contract.backends, "real": real})
    )
    env = embodied_env.make(trusted, backend="real", namespace=namespace, **options)
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

        def is_complete(contract):
            arm, estops = contract.actuators.get("arm"), contract.backends["real"].get("estop", {})
            return arm is not None and len(arm.joints) == 4 and "emergency_stop" in estops

        contract = init_from_graph(tmp_path, "--namespace", "/left", is_complete=is_complete)
        actuator = contract.actuators["arm"]
        assert (actuator.topic, actuator.type) == ("arm_controller/joint_trajectory", TRAJECTORY)
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
        with contextlib.closing(RosNode("asking", namespace="/left", clock=SteadyClock())) as ros:
            (check,) = joint_checks(contract, ros)
            assert (check.passed, check.detail.split()[0]) == (True, "/left/driver")
    finally:
        robot.close()


def test_the_action_server_of_a_gripper_is_commanded(domain_id, tmp_path, message_package):
    message_package("control_msgs")
    robot = ArmWithActionServer(domain_id)
    try:
        contract = init_from_graph(tmp_path, is_complete=has_actuators("arm", "gripper"))
        assert {name: list(each.joints) for name, each in contract.actuators.items()} == {
            "arm": ["waist", "elbow"],
            "gripper": ["left_finger"],
        }
        info = run_steps(contract)
        assert info["annotations"]["grippers"]["gripper"] == {"goal": 0.04, "state": "reached", "goals_sent": 1}
        assert robot.positions["left_finger"] == 0.04
        assert robot.positions["waist"] > 0.1
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


def test_a_quadruped_walks_sideways_and_its_odometry_is_suspect(domain_id, tmp_path):
    robot = Quadruped(domain_id)
    try:
        contract = init_from_graph(tmp_path, is_complete=has_actuators("base"))
        assert list(contract.actuators["base"].joints) == ["linear.x", "linear.y", "angular.z"]
        info = run_steps(contract, count=26, record=str(tmp_path / "run"))
        problem = info["sensors"]["odom"]["suspect_motion"]
        assert re.search(r"linear.y does not follow: 0.10 m/s applied, 0.0\d m/s driven", problem)
        assert problem in embodied_env.explain(info)
        (run,) = (tmp_path / "run").iterdir()
        assert embodied_env.audit_run(run).sound
    finally:
        robot.close()


def test_controllers_of_a_shared_node_in_simulated_time_are_asked_for_their_joints(domain_id, tmp_path):
    robot = SharedNode(domain_id)
    try:

        def is_complete(contract):
            is_assumed = any("assumed" in why for path, why in contract.chosen.items() if path.endswith(".joints"))
            return len(contract.actuators) == 3 and not is_assumed and contract.backends["real"].get("use_sim_time")

        contract = init_from_graph(tmp_path, is_complete=is_complete)
        found = {actuator.topic: list(actuator.joints) for actuator in contract.actuators.values()}
        assert found == {
            "arm_controller/joint_trajectory": ["a3", "a1", "a2"],
            "torso_controller/joint_trajectory": ["lift"],
            "gripper_controller/joint_trajectory": ["left_finger"],
        }
        assert dict(contract.actuators["gripper"].mimic) == {"right_finger": 1.0}
        assert contract.backends["real"]["use_sim_time"] is True
        assert contract.sensors["joints"].timeline == "header"
        run_steps(contract, count=3)
        assert robot.received[-1] in (["a1", "a2", "a3"], ["lift"], ["left_finger", "right_finger"])
        checks = survey(contract, load_real_profile(contract), namespace="/", timeout_s=20.0, settle_s=0.2)
        compared = {check.name: check for check in checks if check.name.startswith("joints.")}
        assert [check.passed for check in compared.values()] == [True, True, True]
        assert [check.passed for check in checks if check.name in ("simulated time", "readings.joints")] == [True, True]
        arm = next(name for name, actuator in contract.actuators.items() if actuator.topic.startswith("arm"))
        joints = contract.actuators[arm].joints
        wrong = replace(contract.actuators[arm], joints={**joints, "lift": joints["a1"]})
        with contextlib.closing(RosNode("asking", namespace="/", clock=SteadyClock())) as ros:
            (check,) = joint_checks(replace(contract, actuators={"arm": wrong}), ros)
            assert (check.passed, check.code) == (False, "joints")
            unknown = replace(wrong, topic="nowhere/joint_trajectory")
            (check,) = joint_checks(replace(contract, actuators={"arm": unknown}), ros)
            assert (check.passed, check.detail.startswith("not compared")) == (None, True)
    finally:
        robot.close()


@pytest.mark.long
def test_the_doctor_compares_the_odometry_with_the_commands_of_another_node(domain_id, tmp_path):
    robot = Quadruped(domain_id)
    try:
        contract = init_from_graph(tmp_path)
        commands, twist = robot.node.create_publisher(Twist, "cmd_vel_out", 10), Twist()
        twist.linear.y = 0.5
        robot.node.create_timer(0.05, lambda: commands.publish(twist))
        checks = survey(contract, load_real_profile(contract), namespace="/", timeout_s=3.0)
        (motion,) = [check for check in checks if check.name == "motion.odom"]
        assert (motion.passed, motion.code) == (False, "motion")
        assert re.search(r"linear.y does not follow: 0.50 m/s applied, 0.\d+ m/s driven", motion.detail)
        assert "its twist of linear.y is 0.00 m/s, but its pose moves" in motion.detail
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

        def joints_of(contract):
            return [list(actuator.joints) for actuator in contract.actuators.values()]

        contract = init_from_graph(
            tmp_path, "--namespace", namespace, is_complete=lambda found: joints_of(found) == joints_of(shipped)
        )
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
