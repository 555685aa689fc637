"""The simulated world: what it reads, when, and that equal seeds and commands give equal bytes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_env.contract import Contract, load_contract, parse_contract
from embodied_env.contract.spaces import field_layouts
from embodied_env.errors import BackendLostError, ContractError, ResetNeededError, UsageError
from embodied_env.sim.profile import Draw, Source
from embodied_env.sim.world import World, WorldProfile, load_profile

PERIOD_NS = 50_000_000
ARM = load_contract("arm_reach")
ARM_PROFILE = load_profile(ARM, "mujoco")
HOME = np.array([0.0, -1.5707963, 1.6755161, -1.6755161, -1.5707963, 0.0])

CART = """
contract: embodied_env/1
name: cart
version: 1
control_period_s: 0.05
episode: {horizon_steps: 10}
sensors:
  joints:
    topic: joint_states
    type: sensor_msgs/msg/JointState
    fields:
      position: {joints: [rail, free], unit: m, low: -10, high: 10}
      velocity: {joints: [rail, free], unit: m/s, low: -10, high: 10}
      effort: {joints: [rail], unit: N, low: -10, high: 10}
    max_age_s: 1.0
  a: {topic: a, type: geometry_msgs/msg/PointStamped, fields: {position: {unit: m, low: -9, high: 9}}, max_age_s: 1.0}
  b: {topic: b, type: geometry_msgs/msg/PointStamped, fields: {position: {unit: m, low: -9, high: 9}}, max_age_s: 1.0}
actuators:
  cart:
    topic: commands
    type: std_msgs/msg/Float64MultiArray
    command: position
    joints: {rail: {position: [-1.0, 1.0], velocity: 1.0, acceleration: 1.0, unit: m}}
reset_options:
  a: {type: vector, low: [0.0, 0.0, 0.0], high: [1.0, 1.0, 1.0]}
  b: {type: vector, low: [2.0, 2.0, 2.0], high: [3.0, 3.0, 3.0]}
task: {type: nowhere:Nothing}
backends: {mujoco: {model: cart.xml, keyframe: start}}
"""

CART_MODEL = """
<mujoco>
  <option timestep="0.005" gravity="0 0 0"/>
  <worldbody>
    <body name="cart"><joint name="rail" type="slide" axis="1 0 0"/><geom size="0.1" mass="1000000"/></body>
    <body name="puck" pos="0 0 1"><joint name="free" type="slide" axis="1 0 0"/><geom size="0.1" mass="1"/></body>
    <body name="ball" pos="0 5 1"><joint name="ball" type="ball"/><geom size="0.1" mass="1"/></body>
    <body name="a" mocap="true"><site name="a"/></body>
    <body name="b" mocap="true"><site name="b"/></body>
  </worldbody>
  <actuator>
    <position name="rail" joint="rail" kp="KP"/>
    <position name="free" joint="rail"/>
    <general name="ball" joint="ball"/>
  </actuator>
  <keyframe><key name="start" qvel="0 1 0 0 0"/></keyframe>
</mujoco>
"""
KP_N_PER_M = 100.0
CART_PROFILE = WorldProfile(
    model="cart.xml",
    keyframe="start",
    sources={"a": Source(site="a"), "b": Source(site="b")},
    draws={"a": Draw(mocap="a"), "b": Draw(mocap="b")},
)


def arm_world(contract: Contract = ARM, profile: WorldProfile = ARM_PROFILE) -> World:
    return World(contract, profile)


def with_sensor(name: str, **changes: Any) -> Contract:
    return replace(ARM, sensors={**ARM.sensors, name: replace(ARM.sensors[name], **changes)})


def cart_contract(folder: Path, kp: float = KP_N_PER_M) -> Contract:
    (folder / "cart.xml").write_text(CART_MODEL.replace("KP", str(kp)))
    return parse_contract(CART, source=str(folder / "cart.yaml"))


def values(world: World) -> dict[str, dict[str, np.ndarray]]:
    return {name: fields for name, (_, fields) in world.read().items()}


def as_bytes(readings: Mapping[str, tuple[int, Mapping[str, np.ndarray]]], origin_ns: int) -> list[tuple[Any, ...]]:
    return [
        (name, field, stamp_ns - origin_ns, value.dtype.str, value.tobytes())
        for name, (stamp_ns, fields) in readings.items()
        for field, value in fields.items()
    ]


def episode(world: World, seed: int, steps: int = 30) -> list[list[tuple[Any, ...]]]:
    """Reset, follow a fixed random walk of commands, and return every byte that was read."""
    rng = np.random.default_rng(7)
    world.reset(seed, {})
    origin_ns = world.now_ns
    target = world.sense("joints")["position"]
    rows = [as_bytes(world.read(), origin_ns)]
    for _ in range(steps):
        target = target + rng.uniform(-0.1, 0.1, 6)
        world.command(target)
        world.step()
        rows.append(as_bytes(world.read(), origin_ns))
    return rows


# ---------------------------------------------------------------------------------------------------- readings


def test_every_reading_has_the_shape_and_precision_of_the_contract() -> None:
    world = arm_world()
    world.reset(0, {})
    for name, fields in values(world).items():
        for layout in field_layouts(name, ARM.sensors[name]):
            assert fields[layout.field].shape == layout.shape
            assert fields[layout.field].dtype == layout.dtype


def test_an_orientation_is_x_y_z_w() -> None:
    pose = replace(ARM.sensors["tcp"].fields["position"], unit="1", low=-1.0, high=1.0)
    contract = with_sensor("tcp", fields={**ARM.sensors["tcp"].fields, "orientation": pose})
    world = arm_world(contract)
    world.reset(0, {})
    x, y, z, w = world.sense("tcp")["orientation"]
    tool = np.array([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)])  # the rotated z axis
    np.testing.assert_allclose(tool, [0.0, 0.0, -1.0], atol=1e-6)


def test_a_distance_is_that_of_the_two_sites() -> None:
    world = arm_world()
    world.reset(3, {})
    read = values(world)
    expected = np.linalg.norm(read["tcp"]["position"] - read["target"]["position"])
    assert read["true_distance"]["range"][0] == pytest.approx(expected, rel=1e-6)


def test_efforts_stay_within_the_torque_limits_of_the_arm() -> None:
    effort = replace(ARM.sensors["joints"].fields["position"], unit="N*m", low=-200.0, high=200.0)
    world = arm_world(with_sensor("joints", fields={**ARM.sensors["joints"].fields, "effort": effort}))
    world.reset(0, {})
    world.command(HOME + 3.0)
    world.step()
    np.testing.assert_allclose(world.sense("joints")["effort"], [150, 150, 150, 28, 28, 28])


def test_writing_into_what_was_read_changes_no_later_reading() -> None:
    world = arm_world()
    world.reset(0, {})
    world.read()["joints"][1]["position"][:] = 99.0
    np.testing.assert_array_equal(world.read()["joints"][1]["position"], world.sense("joints")["position"])


def test_a_slow_sensor_keeps_its_stamp_and_value_between_due_times() -> None:
    world = arm_world(with_sensor("tcp", rate_hz=8.0))  # due 0.125 s, 0.25 s, 0.375 s ... after the reset
    world.reset(0, {})
    origin_ns = world.now_ns
    taken = {0: world.sense("tcp")["position"]}
    for k in range(1, 11):
        world.command(HOME + 0.02 * k)
        world.step()
        if k in (3, 5, 8, 10):
            taken[k] = world.sense("tcp")["position"]
        stamp_ns, fields = world.read()["tcp"]
        last = max(taken)
        assert stamp_ns == origin_ns + last * PERIOD_NS
        assert world.due("tcp") is (k == last)
        np.testing.assert_array_equal(fields["position"], taken[last])


def test_a_sensor_without_a_rate_is_due_at_every_step() -> None:
    world = arm_world()
    world.reset(0, {})
    for _ in range(3):
        world.step()
        assert world.due("joints")
        assert world.read()["joints"][0] == world.now_ns


# -------------------------------------------------------------------------------------------- time and commands


def test_a_step_takes_exactly_one_control_period(tmp_path: Path) -> None:
    world = World(cart_contract(tmp_path), CART_PROFILE)
    world.reset(0, {})
    world.step()
    assert world.sense("joints")["position"][1] == pytest.approx(0.05, rel=1e-12)  # the free puck moves at 1 m/s


def test_time_grows_by_a_period_at_steps_and_at_resets() -> None:
    world = arm_world()
    times = [world.now_ns]
    for move in (lambda: world.reset(0, {}), world.step, world.step, lambda: world.reset(0, {}), world.step):
        move()
        times.append(world.now_ns)
    np.testing.assert_array_equal(np.diff(times), PERIOD_NS)


def test_after_a_reset_every_sample_is_newer_than_it() -> None:
    world = arm_world(with_sensor("tcp", rate_hz=1.0))
    world.reset(0, {})
    world.step()
    before_ns = world.now_ns
    world.reset(1, {})
    assert all(stamp_ns > before_ns for stamp_ns, _ in world.read().values())


def test_a_servo_target_goes_linearly_to_the_command(tmp_path: Path) -> None:
    world = World(cart_contract(tmp_path), CART_PROFILE)
    world.reset(0, {})
    world.command(np.array([1.0]))
    world.step()
    substeps, timestep_s, mass_kg = 10, 0.005, 1e6  # so heavy that the force is kp times the target
    targets_m = np.arange(1, substeps + 1) / substeps
    speed = KP_N_PER_M / mass_kg * timestep_s * targets_m.sum()
    assert world.sense("joints")["velocity"][0] == pytest.approx(speed, rel=1e-5)


def test_without_a_command_the_arm_holds_its_home() -> None:
    world = arm_world()
    world.reset(0, {})
    for _ in range(40):
        world.step()
    np.testing.assert_allclose(world.sense("joints")["position"], HOME, atol=1e-9)


def test_a_reset_forgets_the_last_command() -> None:
    world = arm_world()
    world.reset(0, {})
    world.command(HOME + 0.1)
    world.reset(0, {})
    world.step()
    np.testing.assert_allclose(world.sense("joints")["position"], HOME, atol=1e-9)


def test_the_arm_arrives_where_it_is_commanded() -> None:
    world = arm_world()
    world.reset(0, {})
    for k in range(1, 31):
        world.command(HOME + min(k, 10) * 0.03)
        world.step()
    np.testing.assert_allclose(world.sense("joints")["position"], HOME + 0.3, atol=1e-4)


def test_the_arm_lags_a_moving_command_by_less_than_a_period() -> None:
    world = arm_world()
    world.reset(0, {})
    lift = np.array([1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
    for k in range(1, 11):
        world.command(HOME + k * 0.05 * lift)  # 1 rad/s
        world.step()
    lag_s = (HOME + 0.5 * lift - world.sense("joints")["position"]) * lift
    assert (np.abs(lag_s) < 0.04).all()


def test_refuses_a_command_of_another_shape() -> None:
    world = arm_world()
    world.reset(0, {})
    with pytest.raises(UsageError, match=r"shape \(5,\).*allowed: \(6,\)"):
        world.command(np.zeros(5))


def test_refuses_a_step_before_the_first_reset() -> None:
    with pytest.raises(ResetNeededError, match="reset"):
        arm_world().step()


# ------------------------------------------------------------------------------------------------- determinism


def test_two_worlds_with_equal_seed_and_commands_read_equal_bytes() -> None:
    assert episode(arm_world(), seed=5) == episode(arm_world(), seed=5)


def test_an_episode_reads_equal_bytes_after_other_episodes() -> None:
    world = arm_world()
    first = episode(world, seed=5)
    episode(world, seed=6, steps=17)
    world.command(np.full(6, np.nan))
    with pytest.raises(BackendLostError):
        world.step()
    assert episode(world, seed=5) == first


def test_another_seed_draws_another_target() -> None:
    world = arm_world()
    assert not np.array_equal(world.reset(1, {})["target"], world.reset(2, {})["target"])


# ------------------------------------------------------------------------------------------------------- draws


def test_what_is_drawn_lies_within_its_bounds_and_is_where_the_target_stands() -> None:
    world = arm_world()
    option = ARM.reset_options["target"]
    for seed in range(50):
        drawn = world.reset(seed, {})["target"]
        assert ((option.low_array <= drawn) & (drawn <= option.high_array)).all()
        np.testing.assert_array_equal(world.sense("target")["position"], drawn)


def test_an_option_overrides_what_was_drawn() -> None:
    world = arm_world()
    wanted = np.array([-0.4, 0.1, 0.2])
    np.testing.assert_array_equal(world.reset(0, {"target": wanted})["target"], wanted)
    np.testing.assert_array_equal(world.sense("target")["position"], wanted)


def test_setting_one_option_does_not_shift_another(tmp_path: Path) -> None:
    world = World(cart_contract(tmp_path), CART_PROFILE)
    drawn = world.reset(4, {})
    np.testing.assert_array_equal(world.reset(4, {"a": np.ones(3)})["b"], drawn["b"])


def test_refuses_an_unknown_option() -> None:
    with pytest.raises(UsageError, match=r"'taget' is not known \(did you mean 'target'\?\)"):
        arm_world().reset(0, {"taget": np.zeros(3)})


def test_refuses_an_option_of_another_shape() -> None:
    with pytest.raises(UsageError, match=r"target has shape \(2,\); allowed: \(3,\)"):
        arm_world().reset(0, {"target": np.zeros(2)})


# --------------------------------------------------------------------------------------------------- stability


def test_a_command_that_is_not_finite_loses_the_world() -> None:
    world = arm_world()
    world.reset(0, {})
    world.command(np.full(6, np.nan))
    with pytest.raises(BackendLostError, match="mjWARN_BADCTRL") as caught:
        world.step()
    assert caught.value.why == "sim_unstable"


def test_a_simulation_that_blows_up_loses_the_world(tmp_path: Path) -> None:
    world = World(cart_contract(tmp_path, kp=1e20), CART_PROFILE)
    world.reset(0, {})
    world.command(np.ones(1))
    with pytest.raises(BackendLostError, match="sim_unstable: MuJoCo reported mjWARN_BADQ"):
        world.step()


def test_a_lost_world_stays_lost_until_a_reset() -> None:
    world = arm_world()
    world.reset(0, {})
    world.command(np.full(6, np.nan))
    with pytest.raises(BackendLostError):
        world.step()
    world.command(HOME)
    with pytest.raises(BackendLostError):
        world.step()
    world.reset(0, {})
    world.step()


def test_an_unstable_simulation_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = arm_world()
    world.reset(0, {})
    world.command(np.full(6, np.nan))
    with pytest.raises(BackendLostError):
        world.step()
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------------------- what is refused


def arm_profile(**changes: Any) -> WorldProfile:
    return replace(ARM_PROFILE, **changes)


def sources(**changes: Source | None) -> WorldProfile:
    merged = {**ARM_PROFILE.sources, **changes}
    return arm_profile(sources={name: source for name, source in merged.items() if source is not None})


WRONG_PROFILES = {
    "no such file": (arm_profile(model="arm7.xml"), "model", "'arm7.xml'.*allowed: arm6.xml"),
    "no such keyframe": (arm_profile(keyframe="hom"), "keyframe", "no such keyframe.*'hom'.*allowed: home"),
    "no such site": (sources(tcp=Source(site="tpc")), "sources.tcp.site", "'tpc'.*'tcp'.*allowed: target, tcp"),
    "no such site of a distance": (
        sources(true_distance=Source(distance=("tcp", "wall"))),
        "sources.true_distance.distance[1]",
        "no such site in arm6.xml: 'wall'.*allowed: target, tcp",
    ),
    "no source": (sources(tcp=None), "sources.tcp", "nothing is given.*PoseStamped sensor needs site"),
    "another source": (sources(tcp=Source(distance=("tcp", "tcp"))), "sources.tcp", "distance is given.*needs site"),
    "two sources": (
        sources(tcp=Source(site="tcp", distance=("tcp", "tcp"))),
        "sources.tcp",
        "site and distance is given.*needs site",
    ),
    "a source for joints": (sources(joints=Source(site="tcp")), "sources.joints", "site is given.*needs no source"),
    "a source of no sensor": (sources(tpc=Source(site="tcp")), "sources.tpc", "no such sensor: 'tpc'.*'tcp'"),
    "an option that nothing uses": (arm_profile(draws={}), "draws", "nothing uses the reset option 'target'"),
    "a draw of no option": (
        arm_profile(draws={**ARM_PROFILE.draws, "goal": Draw(mocap="target")}),
        "draws.goal",
        "no such reset option: 'goal'.*allowed: target",
    ),
    "no such body": (arm_profile(draws={"target": Draw(mocap="targt")}), "draws.target.mocap", "no such body.*'targt'"),
    "a body that is no mocap": (
        arm_profile(draws={"target": Draw(mocap="link1")}),
        "draws.target.mocap",
        "'link1' of arm6.xml is not a mocap body",
    ),
}


@pytest.mark.parametrize(("profile", "path", "problem"), WRONG_PROFILES.values(), ids=WRONG_PROFILES.keys())
def test_refuses_a_profile_with(profile: WorldProfile, path: str, problem: str) -> None:
    with pytest.raises(ContractError, match=problem) as caught:
        World(ARM, profile, path="backends.elsewhere")
    assert caught.value.path == f"backends.elsewhere.{path}"
    assert caught.value.source == ARM.source


def test_refuses_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "broken.xml").write_text("<mujoco><worldbody><geom/></worldbody></mujoco>")
    with pytest.raises(ContractError, match="is not a MuJoCo model") as caught:
        World(ARM, arm_profile(model=str(tmp_path / "broken.xml")))
    assert caught.value.path == "backends.mujoco.model"


def test_refuses_a_period_that_is_not_a_whole_number_of_timesteps() -> None:
    with pytest.raises(
        ContractError, match=r"0.051 s is not a whole number of timesteps of the model, 0.0025 s"
    ) as caught:
        World(replace(ARM, control_period_s=0.051), ARM_PROFILE)
    assert caught.value.path == "control_period_s"


def renamed_joint(contract: Contract, new: str) -> Contract:
    """Return the cart's contract with the joint `rail` called `new`, in sensors and actuators."""
    return parse_contract(contract.text.replace("rail", new), source=contract.source)


def test_refuses_a_sensor_of_a_joint_that_the_model_lacks(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"no such joint in cart.xml: 'rial'.*'rail'") as caught:
        World(renamed_joint(cart_contract(tmp_path), "rial"), CART_PROFILE)
    assert caught.value.path == "sensors.joints.fields.position.joints"


def test_refuses_a_joint_that_is_not_one_number(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="'ball' is not one number; allowed: a hinge or a slide"):
        World(renamed_joint(cart_contract(tmp_path), "ball"), CART_PROFILE)


def test_refuses_an_actuated_joint_without_an_actuator_of_its_name(tmp_path: Path) -> None:
    contract = cart_contract(tmp_path)
    model = tmp_path / "cart.xml"
    model.write_text(model.read_text().replace('<position name="rail"', '<position name="motor"'))
    with pytest.raises(
        ContractError, match=r"no such actuator in cart.xml: 'rail'.*allowed: ball, free, motor"
    ) as caught:
        World(contract, CART_PROFILE)
    assert caught.value.path == "actuators.cart.joints.rail"


def test_refuses_an_actuator_that_drives_another_joint(tmp_path: Path) -> None:
    contract = cart_contract(tmp_path)
    swapped = contract.text.replace("[rail, free]", "[free]").replace("rail", "free")
    with pytest.raises(ContractError, match=r"actuator 'free' of cart.xml does not drive the joint 'free'"):
        World(parse_contract(swapped, source=contract.source), CART_PROFILE)


def test_refuses_a_drawn_option_that_is_not_a_position(tmp_path: Path) -> None:
    contract = cart_contract(tmp_path)
    flat = contract.text.replace("low: [2.0, 2.0, 2.0], high: [3.0, 3.0, 3.0]", "low: [2.0, 2.0], high: [3.0, 3.0]")
    with pytest.raises(ContractError, match=r"'b' has shape \(2,\); allowed: \(3,\)") as caught:
        World(parse_contract(flat, source=contract.source), CART_PROFILE)
    assert caught.value.path == "backends.mujoco.draws.b"


# ----------------------------------------------------------------------------------------------------- profiles


def profile_of(profile: dict[str, Any]) -> WorldProfile:
    return load_profile(replace(ARM, backends={"mujoco": profile}), "mujoco")


WRONG_KEYS = {
    "an unknown key": ({"model": "arm6.xml", "keyfame": "home"}, "keyfame", "did you mean 'keyframe'"),
    "no model": ({}, "model", "missing"),
    "an unknown kind of source": (
        {"model": "arm6.xml", "sources": {"tcp": {"body": "link6"}}},
        "sources.tcp.body",
        "allowed: site, distance",
    ),
    "a distance of one site": (
        {"model": "arm6.xml", "sources": {"true_distance": {"distance": ["tcp"]}}},
        "sources.true_distance.distance[1]",
        "missing",
    ),
    "a draw of nothing": ({"model": "arm6.xml", "draws": {"target": {}}}, "draws.target.mocap", "missing"),
    "no time to step": ({"model": "arm6.xml", "step_timeout_s": 0.0}, "step_timeout_s", "0.0 is not allowed"),
    "no time to reset": ({"model": "arm6.xml", "reset_timeout_s": -1.0}, "reset_timeout_s", "-1.0 is not allowed"),
}


@pytest.mark.parametrize(("profile", "path", "problem"), WRONG_KEYS.values(), ids=WRONG_KEYS.keys())
def test_refuses_a_profile_text_with(profile: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(ContractError, match=problem) as caught:
        profile_of(profile)
    assert caught.value.path.startswith(f"backends.mujoco.{path}")


def test_refuses_a_backend_that_the_contract_has_no_profile_for() -> None:
    with pytest.raises(ContractError, match="no profile 'gazebo'; it has: fake, mujoco") as caught:
        load_profile(ARM, "gazebo")
    assert caught.value.path == "backends.gazebo"


# ------------------------------------------------------------------------------------------------------ imports


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_the_world_imports_no_mujoco() -> None:
    assert run_python("import sys, embodied_env.sim.world; print('mujoco' in sys.modules)").strip() == "False"


def test_without_mujoco_the_error_says_how_to_install_it() -> None:
    code = """
import sys
sys.modules["mujoco"] = None
from embodied_env.contract import load_contract
from embodied_env.errors import MissingDependencyError
from embodied_env.sim.world import World, load_profile
contract = load_contract("arm_reach")
try:
    World(contract, load_profile(contract, "mujoco"))
except MissingDependencyError as error:
    print(error)
"""
    assert 'pip install "embodied_env[sim]"' in run_python(code)
