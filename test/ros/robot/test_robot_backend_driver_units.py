"""Drivers in degrees and percent over DDS move in SI units, and their runs pass audit and replay."""

import contextlib
import math

import numpy as np
import pytest
from evidence import assert_replays, assert_sound

pytest.importorskip("rclpy", reason="needs rclpy")

from gripper_servers import NAMESPACE, PATIENCE_S, relaying
from sensor_msgs.msg import JointState
from spinning import PERIOD_S, Spinning
from std_msgs.msg import Float64, Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

import embodied_env
from embodied_env.contract import parse_contract
from embodied_env.errors import BackendNotReadyError
from embodied_env.record import read_run
from embodied_env.ros.transport.qos import RELIABLE

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

TEXT = """
contract: embodied_env/1
name: units
version: 1
control_period_s: 0.05
episode: {{horizon_steps: 400}}
task: {{type: no_goal}}
sensors:
  joints:
    topic: joint_states
    type: sensor_msgs/msg/JointState
    max_age_s: 0.5
    fields:
      position: {{joints: [j1, j2, finger], unit: [rad, rad, m], low: -4.0, high: 4.0{position}}}
      velocity: {{joints: [j1, j2, finger], unit: [rad/s, rad/s, m/s], low: -9.0, high: 9.0{velocity}}}
actuators:
  arm:
    topic: commands
    type: {type}
    command: position_delta
    joints:
      j1: {{position: [-2.0, 2.0], velocity: 1.0, acceleration: 8.0{arm}}}
      j2: {{position: null, velocity: 1.0, acceleration: 8.0{arm}}}
  hand:
    topic: hand
    type: {hand_type}
    command: {command}
    joints: {{finger: {{position: [0.0, 0.04], velocity: 0.1, acceleration: 2.0, unit: m{hand}}}}}
{more}
safety: {{margins: {{joints: {{finger: {{position: 0.0}}}}}}}}
backends:
  real: {{discovery_s: 0.0, connect_timeout_s: {patience_s}, relay: {relay}}}
"""
PLAIN = {"position": "", "velocity": "", "arm": "", "hand": "", "type": "std_msgs/msg/Float64MultiArray"}
PLAIN |= {"patience_s": PATIENCE_S}
PLAIN |= {"hand_type": "std_msgs/msg/Float64", "relay": "false", "command": "position_delta", "more": ""}
DEGREES = ", driver: [{unit: deg}, {unit: deg, sign: -1}, {}]"
IN_DEGREES = {"position": DEGREES, "velocity": DEGREES, "arm": ", driver: {unit: deg}"}
IN_PERCENT = {"hand": ", driver: {unit: percent, scale: 0.04}"}


class Robot(Spinning):
    """A robot of three joints, rad and m, whose driver has other units.

    `degrees`: it reports and takes degrees, the second joint reported in the other direction; `percent`: it takes
    percent of 0.04 m for the finger, and clamps what it gets.
    """

    def __init__(self, domain_id, *, degrees=False, percent=False, fingers=1):
        super().__init__("driver", NAMESPACE, domain_id)
        self.q, self.taken, self._in_degrees, self._in_percent = [0.5, -0.4, 0.02], [], degrees, percent
        self._states = self.node.create_publisher(JointState, "joint_states", RELIABLE)
        self.node.create_subscription(Float64MultiArray, "commands", lambda m: self._move(m.data), RELIABLE)
        self.node.create_subscription(Float64, "hand", lambda m: self._grip([m.data]), RELIABLE)
        self.node.create_subscription(JointTrajectory, "fingers", self._take_fingers, RELIABLE)
        self.node.create_timer(PERIOD_S, self._publish)
        self.start()

    def _move(self, data):
        self.q[:2] = [math.radians(value) for value in data] if self._in_degrees else list(data)

    def _grip(self, data):
        self.taken.append(list(data))
        self.q[2] = 0.04 * min(max(data[0] / 100.0, 0.0), 1.0) if self._in_percent else data[0]

    def _take_fingers(self, message):
        assert message.joint_names == ["finger", "right_finger"]
        self._grip(message.points[-1].positions)

    def _publish(self):
        message = JointState(name=["j1", "j2", "finger"], position=list(self.q), velocity=[0.0] * 3)
        if self._in_degrees:
            message.position = [math.degrees(self.q[0]), -math.degrees(self.q[1]), self.q[2]]
        message.header.stamp = self.node.get_clock().now().to_msg()
        self._states.publish(message)


@contextlib.contextmanager
def cell(domain_id, folder, text, **driver):
    """Run the driver, a relay if the contract has one, and an environment that records."""
    contract = parse_contract(text)
    with contextlib.ExitStack() as cleanup:
        robot = Robot(domain_id, **driver)
        cleanup.callback(robot.close)
        if contract.backends["real"]["relay"]:
            cleanup.enter_context(relaying(contract))
        env = embodied_env.make(
            contract,
            backend="real",
            namespace=NAMESPACE,
            domain_id=domain_id,
            record=folder / "runs",
            record_messages=True,
        )
        cleanup.callback(env.close)
        yield robot, env
    (run,) = (folder / "runs").iterdir()
    assert_sound(run)
    assert_replays(run, contract=contract)


def step_until(env, action, condition):
    """Step until the robot is where the condition says, and return the last observation."""
    for _ in range(200):  # a busy machine holds some steps
        observation, *_, info = env.step(action)
        assert not info["end_reason"], info
        if condition():
            return observation
    raise AssertionError("the robot does not get there")


def account_of(env):
    transition = env.unwrapped.last_transition
    return transition.info["action"]["applied_si"], transition.info["action"]["applied_driver"], transition.snapshot


@pytest.mark.parametrize("relay", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_gripper_in_percent_keeps_its_position_at_zero_actions(relay, domain_id, tmp_path):
    text = TEXT.format_map(PLAIN | IN_PERCENT | {"relay": str(relay).lower()})
    with cell(domain_id, tmp_path, text, percent=True) as (robot, env):
        env.reset(seed=0)
        for _ in range(5):
            env.step({"arm": np.zeros(2), "hand": np.zeros(1)})
        assert robot.q == pytest.approx([0.5, -0.4, 0.02], abs=1e-9)
        step_until(
            env, {"arm": np.array([0.2, 0.0]), "hand": np.array([0.5])}, lambda: robot.q[0] > 0.5 < robot.q[2] * 20.0
        )
        applied, published, _ = account_of(env)
        assert published == {"finger": pytest.approx(100.0 * applied["finger"] / 0.04)}


@pytest.mark.parametrize("relay", [False, True])
def test_a_driver_in_degrees_moves_and_is_recorded_in_radians(relay, domain_id, tmp_path):
    text = TEXT.format_map(PLAIN | IN_DEGREES | {"relay": str(relay).lower()})
    with cell(domain_id, tmp_path, text, degrees=True) as (robot, env):
        observation, _ = env.reset(seed=0)
        assert observation["joints_position"] == pytest.approx([0.5, -0.4, 0.02])
        action = {"arm": np.array([0.5, -0.5]), "hand": np.zeros(1)}
        observation = step_until(env, action, lambda: robot.q[0] > 0.6)  # a relay that is late lets the robot brake
        applied, published, snapshot = account_of(env)
        assert 0.6 < robot.q[0] < 0.7
        assert -0.6 < robot.q[1] < -0.5
        assert published == pytest.approx({name: math.degrees(applied[name]) for name in ("j1", "j2")})
        driver = snapshot.samples["joints"].driver["position"]
        assert observation["joints_position"] == pytest.approx(np.deg2rad(driver) * (1, -1, 0) + (0, 0, driver[2]))
    rows = [row for row in read_run(next((tmp_path / "runs").iterdir())).rows() if "action" in row]
    account = rows[-1]["inner"]["sensors"]["joints"]["driver"]
    assert account["position"][0] == pytest.approx(math.degrees(rows[-1]["observation"]["joints_position"][0]))


def test_two_fingers_of_one_message_are_one_gripper(domain_id, tmp_path):
    more = "    scale: binary\n    gripper: {open: 0.04, closed: 0.0, mimic: {right_finger: -1.0}}"
    fingers = {"hand_type": "trajectory_msgs/msg/JointTrajectory", "command": "position", "more": more}
    text = TEXT.format_map(PLAIN | fingers).replace("topic: hand", "topic: fingers")
    with cell(domain_id, tmp_path, text) as (robot, env):
        env.reset(seed=0)
        assert env.action_space["hand"].shape == (1,)
        step_until(env, {"arm": np.zeros(2), "hand": np.array([-1.0])}, lambda: abs(robot.q[2]) < 1e-6)
        assert all(right == -left for left, right in robot.taken)


def test_a_driver_in_degrees_without_its_units_is_refused(domain_id, tmp_path):
    text = TEXT.format_map(PLAIN)
    with contextlib.ExitStack() as cleanup:
        robot = Robot(domain_id, degrees=True)
        cleanup.callback(robot.close)
        robot.q[1] = 0.3
        for confirmed, code in (("", "limits.degrees"), ("confirmed: [sensors.joints.fields.position]", "limits")):
            contract = parse_contract(text + confirmed)
            env = embodied_env.make(contract, backend="real", namespace=NAMESPACE, domain_id=domain_id)
            cleanup.callback(env.close)
            with pytest.raises(BackendNotReadyError) as caught:
                env.reset(seed=0)
            assert code in str(caught.value)
            assert ("looks like degrees" in str(caught.value)) is (not confirmed)
            env.close()
