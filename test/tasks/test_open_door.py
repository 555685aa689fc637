import math
from dataclasses import replace
from itertools import product
from typing import Any

import mujoco
import numpy as np
import pytest
from task_snapshots import end_of_episode, snapshot_of

from embodied_env.contract import Contract, FloatArray, load_contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Quality
from embodied_env.core.policy import PolicyFunction
from embodied_env.core.types import Snapshot, TaskResult, Verdict
from embodied_env.sim.mujoco_kinematics import MujocoKinematics
from embodied_env.sim.world_model import SHIPPED
from embodied_env.sim.world_profile import load_profile
from embodied_env.tasks import ScriptedTask, load_task
from embodied_env.tasks.open_door import OpenDoor, OpenDoorParameters

CONTRACT = load_contract("door_open")
PROFILE = load_profile(CONTRACT, "mujoco")
LAYOUT = ActionLayout(CONTRACT)
HOME = np.array([0.0, -1.879, 2.001, -0.122, 1.5707963, 0.0])
RIGHT = {
    "door": "door_state",
    "hinge": "door_hinge",
    "distance": "handle_distance",
    "handle": "handle",
    "opened_at_rad": 0.5,
}


def open_door(**changes: Any) -> OpenDoor:
    return OpenDoor(CONTRACT, OpenDoorParameters(**{**RIGHT, **changes}))


def snapshot(
    angle_rad: float = 0.0,
    distance_m: float = 0.1,
    force_n: float = 0.0,
    quality: Quality = Quality.OK,
    drawn_m: float = 0.0,
) -> Snapshot:
    """Return a world in which the door angle has this quality."""
    values = {
        "door_state": {"position": np.array([angle_rad])},
        "latch_state": {"position": np.array([drawn_m])},
        "handle_distance": {"range": np.array([distance_m], dtype=np.float32)},
        "wrench": {"force": np.array([0.0, force_n, 0.0])},
    }
    return snapshot_of(values, door_state=quality)


def verdict_of(task: OpenDoor, current: Snapshot, previous: Snapshot | None = None) -> TaskResult:
    return task.judge(previous or snapshot(), current, np.zeros(6))


def test_the_motions_of_door_tip_and_bolt_are_rewarded() -> None:
    task = open_door(opening_weight=4.0, approach_weight=2.0, latch="latch_state", bolt="bolt", unlatching_weight=50.0)
    before, after = snapshot(0.2, 0.4, drawn_m=0.01), snapshot(0.3, 0.3, drawn_m=0.014)
    terms = verdict_of(task, after, before).terms
    assert [terms[name] for name in ("opening", "approach", "unlatching")] == pytest.approx([0.4, 0.2, 0.2])
    assert verdict_of(open_door(), after).terms["unlatching"] == 0.0


def test_back_and_forth_motion_has_no_reward() -> None:
    there, back = (
        verdict_of(open_door(), b, a) for a, b in ((snapshot(0.0), snapshot(0.2)), (snapshot(0.2), snapshot()))
    )
    assert there.reward + back.reward == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("angle_rad", "verdict", "success"), [(0.5, Verdict.succeeded(), 7.0), (0.499, Verdict.running(), 0.0)]
)
def test_the_edge_of_the_angle_is_a_success_with_a_bonus(angle_rad: float, verdict: Verdict, success: float) -> None:
    result = verdict_of(open_door(success_bonus=7.0), snapshot(angle_rad))
    assert (result.verdict, result.terms["success"]) == (verdict, success)


@pytest.mark.parametrize("quality", [Quality.STALE, Quality.INVALID, Quality.LOST, Quality.FUTURE])
def test_only_a_measured_angle_is_a_success_also_outside_its_declared_range(quality: Quality) -> None:
    assert verdict_of(open_door(), snapshot(1.8, quality=quality)).verdict == Verdict.running()
    assert verdict_of(open_door(), snapshot(1.8, quality=Quality.OUT_OF_RANGE)).verdict == Verdict.succeeded()


def test_excessive_force_is_a_failure_where_it_is_limited() -> None:
    task = open_door(wrench="wrench", max_force_n=50.0)
    assert verdict_of(task, snapshot(force_n=50.1)).verdict == Verdict.failed("excessive_force")
    assert verdict_of(task, snapshot(force_n=50.0)).verdict == Verdict.running()
    assert verdict_of(task, snapshot(0.6, force_n=60.0)).verdict == Verdict(success=True, failure="excessive_force")
    assert verdict_of(open_door(), snapshot(force_n=1e6)).verdict == Verdict.running()


def test_the_true_state_of_the_door_is_for_the_evaluator_only() -> None:
    hidden = {name for name, sensor in CONTRACT.sensors.items() if sensor.visibility == "evaluator"}
    assert hidden == {"door_state", "latch_state", "handle_distance"}
    assert not any(key.startswith(tuple(hidden)) for key in CONTRACT.observation_space)
    assert CONTRACT.reset_options["door"].visibility == "evaluator"


def scripted(contract: Contract = CONTRACT) -> PolicyFunction:
    task = load_task(contract)
    assert isinstance(task, ScriptedTask)
    return task.scripted(MujocoKinematics(contract, PROFILE))


def pose(lever_rad: float = 0.0, door_rad: float = 0.0) -> FloatArray:
    """Return the orientation of the handle, door rotation then lever rotation, as a quaternion x, y, z, w."""
    wxyz, door, lever = np.empty(4), np.empty(4), np.empty(4)
    mujoco.mju_axisAngle2Quat(door, np.array([0.0, 0.0, -1.0]), door_rad)
    mujoco.mju_axisAngle2Quat(lever, np.array([-1.0, 0.0, 0.0]), lever_rad)
    mujoco.mju_mulQuat(wxyz, door, lever)
    return np.roll(wxyz, -1)


def observation(handle: FloatArray, orientation: FloatArray, positions: FloatArray = HOME) -> dict[str, np.ndarray]:
    return {"joints_position": positions, "handle_position": handle, "handle_orientation": orientation}


def moved(offset: tuple[float, float, float], orientation: FloatArray) -> FloatArray:
    """Return the motion of the tip at home, m, when its pressing point is at `offset`."""
    kinematics = MujocoKinematics(CONTRACT, PROFILE)
    tip = kinematics.position_m("tcp", HOME)
    out, along, _ = rotated_axes(orientation)
    handle = tip + 0.03 * out + 0.03 * along + np.array(offset)
    action = scripted()(observation(handle, orientation))
    return kinematics.position_m("tcp", LAYOUT.scale.to_si(action)) - tip


def rotated_axes(orientation: FloatArray) -> FloatArray:
    """Return the axes rotated by a quaternion x, y, z, w, one per row."""
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, np.roll(orientation, 1))
    return matrix.reshape(3, 3).T


def test_the_scripted_policy_stays_in_the_action_space() -> None:
    policy, rng = scripted(), np.random.default_rng(2)
    for _ in range(200):
        orientation = rng.normal(size=4)
        seen = observation(
            rng.uniform(-2, 2, 3), orientation / np.linalg.norm(orientation), HOME + rng.normal(0, 0.3, 6)
        )
        assert policy(seen) in CONTRACT.action_space


@pytest.mark.parametrize(
    ("tip", "lever_rad", "low", "high"),
    [
        pytest.param((-0.1, 0.05, -0.06), 0.0, (-9, 0.001, -0.001), (-0.003, 9, 0.001), id="first above the lever"),
        pytest.param((0.0, 0.0, -0.02), 0.0, (-0.001, -0.001, -9), (0.001, 0.001, -0.003), id="presses from above"),
        pytest.param((0.0, 0.0, -0.02), 0.65, (-9, -9, -0.002), (-0.008, 9, 0.002), id="pushes a turned lever"),
        pytest.param((0.0, 0.0, 0.04), 0.0, (0.008, -9, -0.002), (9, 9, 0.002), id="back from below the lever"),
        pytest.param((-0.15, 0.0, 0.04), 0.0, (-0.002, -9, 0.008), (0.002, 9, 9), id="rises in front of the lever"),
    ],
)
def test_the_scripted_policy_moves_around_the_lever(
    tip: tuple[float, float, float], lever_rad: float, low: tuple[float, ...], high: tuple[float, ...]
) -> None:
    motion = moved(tip, pose(lever_rad=lever_rad))
    assert (np.array(low) < motion).all()
    assert (motion < np.array(high)).all()


def test_the_scripted_policy_pushes_along_the_normal_of_the_door() -> None:
    x, y, _ = moved((0.0, 0.0, -0.02), pose(lever_rad=0.65, door_rad=0.4))
    assert math.atan2(y, -x) == pytest.approx(0.4, abs=0.1)


def test_the_scripted_policy_is_stateless() -> None:
    policy, seen = scripted(), observation(np.array([-0.65, -0.13, 0.3]), pose())
    first = policy(seen)
    policy(observation(np.array([-0.6, -0.1, 0.4]), pose(lever_rad=0.7)))
    np.testing.assert_array_equal(policy(seen), first)


@pytest.fixture(scope="module")
def model() -> Any:
    return mujoco.MjModel.from_xml_path(str(SHIPPED / "door.xml"))


def at_home(model: Any) -> Any:
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    return data


def opened_rad(model: Any, lever_rad: float, torque_nm: float) -> float:
    """Return the door angle after 2 s of a torque on its hinge, with the lever held by a stiff spring."""
    data = at_home(model)
    hinge, lever = data.joint("door_hinge"), data.joint("handle")
    for k in range(800):
        held = 40.0 * (lever_rad - lever.qpos) - 0.5 * lever.qvel if lever_rad else 0.0
        lever.qfrc_applied[:] = held
        hinge.qfrc_applied[:] = torque_nm if k > 200 else 0.0
        mujoco.mj_step(model, data)
    return float(hinge.qpos[0])


@pytest.mark.parametrize(
    ("lever_rad", "torque_nm", "is_open"), [(0.0, 200.0, False), (0.35, 200.0, False), (0.5, 10.0, True)]
)
def test_the_latch_holds_until_the_lever_is_turned_far_enough(
    model: Any, lever_rad: float, torque_nm: float, is_open: bool
) -> None:
    angle_rad = opened_rad(model, lever_rad, torque_nm)
    assert angle_rad > 0.5 if is_open else angle_rad < 0.01


def test_the_lever_returns_by_itself(model: Any) -> None:
    data = at_home(model)
    data.joint("handle").qpos[:] = 0.7
    for _ in range(400):
        mujoco.mj_step(model, data)
    assert data.joint("handle").qpos[0] == pytest.approx(0.0, abs=0.01)
    assert data.joint("bolt").qpos[0] == pytest.approx(0.0, abs=0.001)


def test_the_home_pose_is_free_of_contact_at_every_door_position(model: Any) -> None:
    option = CONTRACT.reset_options["door"]
    data = at_home(model)
    for place in product(*zip(option.low_array, option.high_array, strict=True)):
        data.mocap_pos[0, :2] = place
        mujoco.mj_forward(model, data)
        assert data.ncon == 0


def test_the_site_of_the_handle_turns_with_lever_and_door(model: Any) -> None:
    data = at_home(model)
    for lever_rad, door_rad in ((0.0, 0.0), (0.5, 0.0), (0.5, 0.4)):
        data.joint("handle").qpos[:], data.joint("door_hinge").qpos[:] = lever_rad, door_rad
        mujoco.mj_forward(model, data)
        turned = data.site("handle").xmat.reshape(3, 3).T
        np.testing.assert_allclose(turned, rotated_axes(pose(lever_rad, door_rad)), atol=1e-12)


def test_the_arm_equals_that_of_arm_reach(model: Any) -> None:
    """The arm is defined in both files, which must stay equal."""
    reach = mujoco.MjModel.from_xml_path(str(SHIPPED / "arm6.xml"))
    links = ("base", "link1", "link2", "link3", "link4", "link5", "link6")
    joints = ("j1", "j2", "j3", "j4", "j5", "j6")
    kept = {
        "body": (links, ("pos", "quat", "mass", "ipos", "iquat", "inertia", "gravcomp")),
        "jnt": (joints, ("pos", "axis", "range", "stiffness", "type")),
        "dof": (joints, ("damping", "armature", "frictionloss")),
        "actuator": (joints, ("gainprm", "biasprm", "forcerange", "ctrlrange", "gear")),
        "geom": (tuple(reach.geom(i).name for i in arm_geoms(reach)), ("type", "pos", "quat", "size", "solref")),
    }
    for kind, (names, attributes) in kept.items():
        finder = {"jnt": "joint", "dof": "joint"}.get(kind, kind)
        for name, attribute in product(names, attributes):
            ours, theirs = (getattr(m, f"{kind}_{attribute}")[getattr(m, finder)(name).id] for m in (model, reach))
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{kind} {name} {attribute}")
    assert len(arm_geoms(model)) == len(arm_geoms(reach))
    assert (model.opt.timestep, model.opt.integrator) == (reach.opt.timestep, reach.opt.integrator)


def arm_geoms(model: Any) -> list[int]:
    return [i for i in range(model.ngeom) if model.body(model.geom_bodyid[i]).name.startswith(("base", "link"))]


def without_cameras(contract: Contract) -> Contract:
    cameras = {name for name, sensor in contract.sensors.items() if sensor.encoding is not None}
    backends = {
        name: {**profile, "sources": {k: v for k, v in profile.get("sources", {}).items() if k not in cameras}}
        for name, profile in contract.backends.items()
        if name != "fake"
    }
    sensors = {name: sensor for name, sensor in contract.sensors.items() if name not in cameras}
    return replace(contract, sensors=sensors, backends=backends)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_scripted_policy_opens_the_door(seed: int) -> None:
    assert end_of_episode(without_cameras(CONTRACT), scripted(), seed) == "success"


def test_holding_still_opens_nothing() -> None:
    hold = LAYOUT.scale.from_si(HOME)
    assert end_of_episode(without_cameras(CONTRACT), lambda _: hold, 0) == "time_limit"
