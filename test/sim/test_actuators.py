from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_env.contract import Contract, parse_contract
from embodied_env.errors import ContractError, UsageError
from embodied_env.sim.actuators import Actuation
from embodied_env.sim.world import World
from embodied_env.sim.world_model import WorldModel
from embodied_env.sim.world_profile import Drive, WorldProfile

CONTRACT = """
contract: embodied_env/1
name: rover
version: 1
control_period_s: 0.05
episode: {horizon_steps: 10}
sensors:
  joints:
    topic: joint_states
    type: sensor_msgs/msg/JointState
    fields:
      position: {joints: [lift, pan, left, right], unit: rad, low: -90, high: 90}
      velocity: {joints: [lift, pan, left, right], unit: rad/s, low: -90, high: 90}
    max_age_s: 1.0
task: {type: nowhere:Nothing}
backends: {mujoco: {model: rover.xml}}
actuators:
"""
LIMITS = "velocity: 1.0, acceleration: 1.0"
LIFT = f"""
  lift:
    topic: lift
    type: std_msgs/msg/Float64MultiArray
    command: position
    joints: {{lift: {{position: [-1.0, 1.0], {LIMITS}}}}}
"""
PAN = f"""
  pan:
    topic: pan
    type: std_msgs/msg/Float64MultiArray
    command: velocity
    joints: {{pan: {{position: null, {LIMITS}}}}}
"""
BASE = f"""
  base:
    topic: cmd_vel
    type: geometry_msgs/msg/Twist
    command: twist
    joints:
      angular.z: {{position: null, {LIMITS}}}
      linear.x: {{position: null, {LIMITS}, unit: m}}
"""
DRIVE = Drive(left="left", right="right", radius_m=0.1, separation_m=0.4)
SERVOS = {
    "lift": '<position name="lift" joint="lift" kp="100" kv="5"/>',
    "pan": '<velocity name="pan" joint="pan" kv="10"/>',
    "left": '<velocity name="left" joint="left" kv="10"/>',
    "right": '<velocity name="right" joint="right" kv="10"/>',
}


def contract_in(folder: Path, actuators: str = LIFT + PAN + BASE, **servos: str) -> Contract:
    bodies = "".join(
        f'<body><joint name="{joint}" axis="0 0 1" armature="1e-4"/><geom size="0.1" mass="1e-3" contype="0"/></body>'
        for joint in SERVOS
    )
    (folder / "rover.xml").write_text(
        f'<mujoco><option timestep="0.005" gravity="0 0 0" integrator="implicitfast"/>'
        f"<worldbody>{bodies}</worldbody><actuator>{''.join({**SERVOS, **servos}.values())}</actuator>"
        f'<keyframe><key name="home" qpos="0.3 0 0 0"/></keyframe></mujoco>'
    )
    return parse_contract(CONTRACT + actuators, source=str(folder / "rover.yaml"))


def profile(**drives: Drive) -> WorldProfile:
    return WorldProfile(model="rover.xml", keyframe="home", drives=drives)


class Rover:
    """The actuation of a model whose command is lift, pan, angular.z, linear.x."""

    def __init__(self, folder: Path) -> None:
        contract, world = contract_in(folder), profile(base=DRIVE)
        self.model = WorldModel(contract, world, "backends.mujoco")
        self.data = self.model.new_data()
        self.actuation = Actuation(self.model)
        self.actuation.begin(self.data)

    def path(self, *command: float, substeps: int = 4) -> dict[str, np.ndarray]:
        """Return the controls of each servo during a period that leads to `command`."""
        if command:
            self.actuation.command(np.array(command))
        rows = []
        for controls in self.actuation.path(substeps):
            self.data.ctrl[self.actuation.places] = controls
            rows.append(self.data.ctrl.copy())
        return dict(zip(SERVOS, np.array(rows).T, strict=True))


def test_the_command_names_joints_and_axes_in_the_order_of_the_contract(tmp_path: Path) -> None:
    assert Rover(tmp_path).actuation.joints == ("lift", "pan", "angular.z", "linear.x")


def test_a_reset_holds_positions_and_stops_velocities(tmp_path: Path) -> None:
    rover = Rover(tmp_path)
    rover.path(0.9, 0.5, 0.5, 0.5)
    rover.actuation.begin(rover.data)
    np.testing.assert_array_equal(rover.data.ctrl, [0.3, 0.0, 0.0, 0.0])


def test_a_position_is_reached_along_a_straight_line_at_the_end_of_the_period(tmp_path: Path) -> None:
    np.testing.assert_allclose(Rover(tmp_path).path(0.7, 0, 0, 0)["lift"], [0.4, 0.5, 0.6, 0.7], rtol=1e-15)


def test_the_next_position_starts_from_the_last_command(tmp_path: Path) -> None:
    rover = Rover(tmp_path)
    rover.path(0.7, 0, 0, 0)
    np.testing.assert_allclose(rover.path(-0.1, 0, 0, 0)["lift"], [0.5, 0.3, 0.1, -0.1], atol=1e-15)


def test_a_velocity_acts_immediately_and_during_the_whole_period(tmp_path: Path) -> None:
    np.testing.assert_array_equal(Rover(tmp_path).path(0.3, 0.8, 0, 0)["pan"], np.full(4, 0.8))


def test_the_last_command_continues_without_a_new_one(tmp_path: Path) -> None:
    rover = Rover(tmp_path)
    rover.path(0.7, 0.8, 0, 0)
    again = rover.path()
    np.testing.assert_array_equal(again["lift"], np.full(4, 0.7))
    np.testing.assert_array_equal(again["pan"], np.full(4, 0.8))


def test_a_curve_is_the_sum_of_both_motions(tmp_path: Path) -> None:
    controls = Rover(tmp_path).path(0.3, 0, -1.0, 0.5)
    np.testing.assert_allclose(controls["left"], np.full(4, 7.0), rtol=1e-15)
    np.testing.assert_allclose(controls["right"], np.full(4, 3.0), rtol=1e-15)


def test_later_changes_of_the_callers_array_change_no_command(tmp_path: Path) -> None:
    rover = Rover(tmp_path)
    command = np.array([0.3, 0.8, 0.0, 0.0])
    rover.actuation.command(command)
    command[:] = 99.0
    np.testing.assert_array_equal(rover.path()["pan"], np.full(4, 0.8))


def test_a_command_of_another_shape_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\(3,\) \(expected \(4,\): lift, pan, angular.z, linear.x\)"):
        Rover(tmp_path).actuation.command(np.zeros(3))


def error_of(contract: Contract, **drives: Drive) -> ContractError:
    with pytest.raises(ContractError) as caught:
        World(contract, profile(**drives))
    return caught.value


WRONG_SERVOS = {
    "a motor for a position": (LIFT, "lift", '<motor name="lift" joint="lift"/>', "(expected a position servo)"),
    "a velocity servo for a position": (
        LIFT,
        "lift",
        '<velocity name="lift" joint="lift" kv="3"/>',
        "gain 3, stiffness 0, damping 3, gear 1 (expected a position servo)",
    ),
    "a servo of another joint": (
        LIFT,
        "lift",
        '<position name="lift" joint="pan"/>',
        "no actuator drives the joint 'lift'",
    ),
}


@pytest.mark.parametrize(("actuators", "joint", "servo", "problem"), WRONG_SERVOS.values(), ids=WRONG_SERVOS.keys())
def test_an_unsupported_servo_is_rejected(tmp_path: Path, actuators: str, joint: str, servo: str, problem: str) -> None:
    error = error_of(contract_in(tmp_path, actuators, **{joint: servo}))
    assert error.path == f"actuators.{joint}.joints.{joint}"
    assert problem in error.problem


def test_a_velocity_servo_of_a_ball_or_free_joint_is_rejected(tmp_path: Path) -> None:
    contract = contract_in(tmp_path, PAN, pan='<velocity name="ball" joint="ball" kv="1"/>')
    model = tmp_path / "rover.xml"
    ball = '<body><joint name="ball" type="ball"/><geom size="0.1"/></body></worldbody>'
    model.write_text(model.read_text().replace("</worldbody>", ball).replace('qpos="0.3 0 0 0"', ""))
    error = error_of(
        parse_contract(contract.text.replace("{pan: {position", "{ball: {position"), source=contract.source)
    )
    assert "'ball' (expected a hinge or slide joint)" in error.problem


@pytest.mark.parametrize("servo", ['<motor name="left" joint="left"/>', '<position name="left" joint="left" kp="1"/>'])
def test_a_wheel_without_a_velocity_servo_is_rejected(tmp_path: Path, servo: str) -> None:
    error = error_of(contract_in(tmp_path, BASE, left=servo), base=DRIVE)
    assert error.path == "backends.mujoco.drives.base.left"
    assert "'left' in rover.xml" in error.problem


def drive(left: str, right: str) -> Drive:
    return Drive(left=left, right=right, radius_m=1, separation_m=1)


@pytest.mark.parametrize(
    ("actuators", "drives", "path", "problem"),
    [
        (BASE, {"base": drive("left", "rigt")}, "backends.mujoco.drives.base.right", "did you mean 'right'?"),
        (BASE, {"base": drive("left", "left")}, "actuators.base", ""),
        (PAN + BASE, {"base": drive("pan", "right")}, "actuators.base", ""),
        (BASE, {}, "backends.mujoco.drives", "the twist of 'base' (expected one: drives: {base: {left, right"),
        (BASE, {"base": DRIVE, "bsae": DRIVE}, "backends.mujoco.drives.bsae", "did you mean 'base'?"),
        (PAN, {"pan": DRIVE}, "backends.mujoco.drives.pan", ""),
    ],
    ids=["unknown wheel", "one wheel", "driven wheel", "no drive", "no actuator", "no twist"],
)
def test_a_wrong_drive_is_rejected_with_its_path(
    tmp_path: Path, actuators: str, drives: dict[str, Drive], path: str, problem: str
) -> None:
    error = error_of(contract_in(tmp_path, actuators), **drives)
    assert error.path == path
    assert problem in error.problem


@pytest.mark.parametrize("axes", [("linear.x", "linear.y"), ("linear.x",), ("linear.x", "linear.y", "angular.z")])
def test_axes_impossible_for_a_differential_drive_are_rejected(tmp_path: Path, axes: tuple[str, ...]) -> None:
    joints: dict[str, Any] = {
        axis: f"{{position: null, {LIMITS}, unit: {'m' if axis.startswith('linear') else 'rad'}}}" for axis in axes
    }
    written = ", ".join(f"{axis}: {limits}" for axis, limits in joints.items())
    base = BASE[: BASE.index("    joints:")] + f"    joints: {{{written}}}\n"
    error = error_of(contract_in(tmp_path, base), base=DRIVE)
    assert error.path == "actuators.base.joints"
    assert f"{list(axes)} (expected linear.x and angular.z)" in error.problem
