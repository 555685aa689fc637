"""The effects of reset options in a world, and that each reset restores what the one before has set."""

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
import pytest
from ideal_readings import sense
from randomised_arm import DRAWS, JOINTS, OPTIONS, randomised_arm

from embodied_env.errors import ContractError, UsageError
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile
from embodied_env.timing.delay_model import DelayDistribution, DelayModel

PERIOD_NS = 50_000_000
HOME = np.array([0.0, -1.5707963, 1.6755161, -1.6755161, -1.5707963, 0.0])
NEUTRAL = {
    "camera_delay": 0.0, "damping": 1.0, "friction": [1.0, 1.0], "gain": 1.0, "lag": 0.0, "payload": 1.0,
    "start": [0.0] * 6,
}  # fmt: skip


def world_of(options: Mapping[str, Any] | None = None, draws: Mapping[str, Any] | None = None, **more: Any) -> World:
    chosen = dict(OPTIONS if options is None else options)
    contract = randomised_arm(chosen, dict(DRAWS if draws is None else draws))
    return World(contract, load_profile(contract, "mujoco"), **more)


def arrays(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(value, dtype=np.float64) for name, value in values.items()}


def model_bytes(world: World) -> dict[str, bytes]:
    mj = world._model.mj
    fields = [name for name in dir(mj) if isinstance(getattr(type(mj), name, None), property)]
    found = {name: getattr(mj, name) for name in fields}
    return {name: value.tobytes() for name, value in found.items() if isinstance(value, np.ndarray)}


def episode(world: World, seed: int, options: Mapping[str, Any] | None = None) -> list[bytes]:
    """Return each state of an episode and each reading, to the last bit."""
    world.reset(seed, arrays(options or {}))
    origin_ns, rng, rows = world.now_ns, np.random.default_rng(7), []
    target = world.target
    for _ in range(15):
        target = target + rng.uniform(-0.05, 0.05, 6)
        world.command(target)
        world.step()
        readings = [(name, r.stamp_ns - origin_ns, r.values) for name, r in sorted(world.read().items())]
        state = world._data.qpos.tobytes() + world._data.qvel.tobytes()
        rows.append(state + repr([(n, s, {f: v.tobytes() for f, v in r.items()}) for n, s, r in readings]).encode())
    return rows


def test_an_episode_is_the_same_after_other_episodes_and_in_another_world() -> None:
    world = world_of()
    first = episode(world, 5)
    model = model_bytes(world)
    assert episode(world, 6) != first
    assert episode(world, 5) == first == episode(world_of(), 5)
    assert model_bytes(world) == model


def test_neutral_values_are_the_compiled_model() -> None:
    world = world_of()
    compiled = model_bytes(world)
    world.reset(3, {})
    assert model_bytes(world) != compiled
    world.reset(4, arrays(NEUTRAL))
    assert model_bytes(world) == compiled


def test_a_mass_is_scaled_with_its_inertia_and_what_depends_on_it() -> None:
    world = world_of()
    mj = world._model.mj
    mass, inertia = mj.body("link6").mass.copy(), mj.body("link6").inertia.copy()
    whole, weight, extent = mj.body("base").subtreemass.copy(), mj.dof_invweight0.copy(), float(mj.stat.extent)
    world.reset(0, arrays({"payload": 3.0}))
    np.testing.assert_array_equal(mj.body("link6").mass, 3.0 * mass)
    np.testing.assert_array_equal(mj.body("link6").inertia, 3.0 * inertia)
    np.testing.assert_allclose(mj.body("base").subtreemass, whole + 2.0 * mass)
    assert (mj.dof_invweight0 < weight).all()
    assert float(mj.stat.extent) == extent == 1.2


def test_frictions_of_a_geom_and_of_all_geoms_of_a_body_are_scaled() -> None:
    world = world_of()
    mj = world._model.mj
    before = mj.geom_friction.copy()
    world.reset(0, arrays({"friction": [0.5, 2.0]}))
    factors = {mj.geom(i).name: mj.geom_friction[i] / before[i] for i in range(mj.ngeom)}
    assert (factors.pop("floor") == 0.5).all()
    for name, factor in factors.items():
        assert (factor == (2.0 if name.startswith("link6") else 1.0)).all(), name


def test_a_gain_scales_the_whole_force_of_a_servo_and_damping_that_of_a_joint() -> None:
    world = world_of()
    mj = world._model.mj
    gain, bias, damping = mj.actuator_gainprm.copy(), mj.actuator_biasprm.copy(), mj.dof_damping.copy()
    world.reset(0, arrays({"gain": 0.8, "damping": 2.0}))
    np.testing.assert_array_equal(mj.actuator_gainprm, 0.8 * gain)
    np.testing.assert_array_equal(mj.actuator_biasprm, 0.8 * bias)
    np.testing.assert_array_equal(mj.dof_damping, damping * [2, 2, 1, 1, 1, 1])


def test_joints_start_at_their_offset_from_home_and_hold() -> None:
    world = world_of()
    offset = np.linspace(-0.1, 0.1, 6)
    world.reset(0, arrays({**NEUTRAL, "start": offset}))
    np.testing.assert_array_equal(sense(world, "joints")["position"], HOME + offset)
    np.testing.assert_array_equal(world.target, HOME + offset)
    for _ in range(5):
        world.step()
    np.testing.assert_allclose(sense(world, "joints")["position"], HOME + offset, atol=1e-6)


def test_joints_may_start_at_a_drawn_position() -> None:
    start = {"type": "vector", "distribution": "choice", "values": [HOME.tolist(), [0.5, -1.0, 1.0, -1.0, -1.5, 0.2]]}
    world = world_of({"start": start}, {"start": {"joints": list(JOINTS), "absolute": True}})
    drawn = [world.reset(seed, {})["start"].tolist() for seed in range(8)]
    assert [*start["values"]] == sorted({tuple(each): each for each in drawn}.values())
    np.testing.assert_array_equal(sense(world, "joints")["position"], drawn[-1])


def test_a_sensor_delay_is_the_age_of_its_readings_in_this_episode() -> None:
    world = world_of()
    for delay_s, periods in ((0.1, 2), (0.0, 0)):
        world.reset(0, arrays({"camera_delay": delay_s}))
        for _ in range(4):
            world.step()
        assert world.now_ns - world.read()["tcp"].stamp_ns == periods * PERIOD_NS
        assert world.read()["joints"].stamp_ns == world.now_ns


def test_a_command_acts_after_the_drawn_delay() -> None:
    world = world_of()
    for delay_s, first in ((0.0, 1), (0.05, 2), (0.12, 3)):
        world.reset(0, arrays({**NEUTRAL, "lag": delay_s}))
        moved = []
        for _ in range(4):
            world.command(HOME + 0.05)
            world.step()
            moved.append(bool(np.abs(sense(world, "joints")["position"] - HOME).max() > 1e-4))
        assert moved == [step >= first for step in range(1, 5)]
        assert world.command_delay_ns == round(delay_s * 1e9)


def test_a_command_of_a_free_running_world_acts_after_the_drawn_delay_too() -> None:
    world = world_of(free_running=True)
    world.reset(0, arrays({**NEUTRAL, "lag": 0.12}))
    assert world.command_delay_ns == 120_000_000  # the robot emulator's node has its own queue
    world.command(HOME + 0.05)
    while not np.abs(sense(world, "joints")["position"] - HOME).max() > 1e-4:
        begin_ns = world.now_ns
        world.step()
    assert 110_000_000 <= begin_ns - world._origin_ns <= 120_000_000 + world.tick_ns


def test_a_late_command_of_the_episode_before_is_forgotten() -> None:
    world = world_of()
    world.reset(0, arrays({**NEUTRAL, "lag": 0.12}))
    world.command(HOME + 0.5)
    world.reset(0, arrays({**NEUTRAL, "lag": 0.12}))
    for _ in range(5):
        world.step()
    np.testing.assert_allclose(sense(world, "joints")["position"], HOME, atol=1e-6)


def test_drawn_and_injected_delays_exclude_each_other() -> None:
    delays = DelayModel(
        sensors={name: DelayDistribution(kind="constant", values=(0.01,)) for name in ("joints", "tcp", "target")}
    )
    with pytest.raises(UsageError, match=r"backends.mujoco.draws.camera_delay draws one .*remove one"):
        world_of(delays=delays)


ONE = {"type": "scalar", "low": 0.5, "high": 2.0}
ZERO = {"type": "scalar", "low": 0.0, "high": 2.0}
WRONG = {
    "start outside its limits": ({**ONE, "high": 9.0}, {"joints": ["j1"]}, "joints", r"j1 starts from 0.5 to 9 .*limits"),
    "no such joint": (ONE, {"joints": ["j7"]}, "joints", "no such joint .*'j7'"),
    "no such body": (ONE, {"mass": ["hand"]}, "mass", "no such body .*'hand'"),
    "no such geom": (ONE, {"friction": ["hand"]}, "friction", "no such geom .*'hand'"),
    "no such driven joint": (ONE, {"gain": ["j7"]}, "gain", "no such joint .*'j7'"),
    "no such sensor": (ONE, {"delay": ["tpc"]}, "delay", "no such sensor: 'tpc'.*did you mean 'tcp'"),
    "a mass of 0": (ZERO, {"mass": ["link6"]}, "mass", r"draws 0.0 \(expected values > 0\)"),
    "a body without mass": (ONE, {"mass": ["target"]}, "mass", "the mass of 'target' is 0 in the model"),
    "a negative delay": ({**ONE, "low": -1.0}, {"command_delay": True}, "command_delay", r"draws -1.0 .*>= 0"),
    "no joints": (ONE, {"joints": []}, "joints", r"\[\] .expected at least one"),
    "twice the same": (ONE, {"damping": ["j1", "j1"]}, "damping", "'j1' is set by .* already"),
    "command_delay false": (ONE, {"command_delay": False}, "command_delay", "false .expected true"),
    "absolute without joints": (ONE, {"gain": ["j1"], "absolute": True}, "absolute", "true .expected with joints"),
    "two keys": (ONE, {"gain": ["j1"], "mass": ["link6"]}, "", "mass and gain given"),
    "wrong number": ({"type": "vector", "low": [1, 1], "high": [2, 2]}, {"mass": ["link6"]}, "", r"\(2,\) \(expected \(\) or \(1,\)"),
}  # fmt: skip


@pytest.mark.parametrize(("option", "draw", "key", "problem"), WRONG.values(), ids=WRONG.keys())
def test_refuses(option: dict[str, Any], draw: dict[str, Any], key: str, problem: str) -> None:
    with pytest.raises(ContractError, match=problem) as caught:
        world_of({"x": option}, {"x": draw})
    assert caught.value.path == f"backends.mujoco.draws.x{key and '.'}{key}"


def test_refuses_two_options_of_one_thing() -> None:
    with pytest.raises(
        ContractError, match=r"'link6_face' is set by backends.mujoco.draws.x.friction already"
    ) as caught:
        world_of({"x": ONE, "y": ONE}, {"x": {"friction": ["link6"]}, "y": {"friction": ["link6_face"]}})
    assert caught.value.path == "backends.mujoco.draws.y.friction"


def test_refuses_an_option_without_an_effect_unless_it_is_observed() -> None:
    with pytest.raises(ContractError, match=r"no effect of the reset option 'x' .*observed: true"):
        world_of({"x": ONE}, {})
    assert world_of({"x": {**ONE, "observed": True}}, {}).reset(0, {})["x"].shape == ()


def test_refuses_the_gain_of_a_muscle() -> None:
    world = world_of({}, {})
    world._model.mj.actuator_gaintype[0] = int(mujoco.mjtGain.mjGAIN_MUSCLE)
    with pytest.raises(ContractError, match="expected gaintype fixed or affine"):
        world._randomizer._rows_of("gain", "j1", "backends.mujoco.draws.x.gain")
