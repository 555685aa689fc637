import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence import assert_sound
from identified_arm import PARAMETERS, identified_arm, identified_model, naming
from randomised_arm import randomised_arm

import embodied_env
from embodied_env.contract import Contract, load_contract
from embodied_env.contract.contract_loader import dump_contract, parse_contract
from embodied_env.errors import ContractError, EmbodiedEnvError, UsageError
from embodied_env.sim.identified_parameters import IDENTIFIED, read_identified, write_identified
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile
from embodied_env.timing.delay_model import DelayDistribution, DelayModel

OPTION = {"type": "scalar", "low": 0.5, "high": 2.0}


def world_of(contract: Contract, **more: Any) -> World:
    return World(contract, load_profile(contract, "mujoco"), **more)


def episode(world: World, seed: int, **options: float) -> list[bytes]:
    """Return each state of an episode, to the last bit."""
    world.reset(seed, {name: np.array(value) for name, value in options.items()})
    rng, target, rows = np.random.default_rng(7), world.target, []
    for _ in range(10):
        target = target + rng.uniform(-0.05, 0.05, 6)
        world.command(target)
        world.step()
        rows.append(world._data.qpos.tobytes() + world._data.qvel.tobytes())
    return rows


def test_a_file_reads_as_it_was_written(tmp_path: Path) -> None:
    model = identified_model()
    write_identified(model, tmp_path / "x.identified.yaml")
    assert read_identified(tmp_path / "x.identified.yaml") == model


def test_values_are_in_the_model_with_what_depends_on_them(tmp_path: Path) -> None:
    mj = world_of(identified_arm(tmp_path)).model.mj
    plain = world_of(load_contract("arm_reach")).model.mj
    assert mj.actuator_gainprm[:3, 0].tolist() == [1500.0, 1500.0, plain.actuator_gainprm[2, 0]]
    assert mj.actuator_biasprm[:2, 1].tolist() == [-1500.0, -1500.0]
    np.testing.assert_array_equal(mj.actuator_biasprm[:, 2], plain.actuator_biasprm[:, 2])
    assert (mj.dof_damping[2], mj.dof_frictionloss[0], mj.dof_armature[1:3].tolist()) == (90.0, 2.0, [0.5, 0.5])
    body, before = mj.body("link6"), plain.body("link6")
    assert body.mass == 1.5
    np.testing.assert_allclose(body.inertia, before.inertia * (1.5 / before.mass))
    np.testing.assert_allclose(mj.body("base").subtreemass, plain.body("base").subtreemass + 1.5 - before.mass)
    assert (mj.dof_invweight0 < plain.dof_invweight0).all()


def test_commands_act_after_the_identified_delay(tmp_path: Path) -> None:
    lag = randomised_arm({"lag": {"type": "scalar", "low": 0.0, "high": 0.1}}, {"lag": {"command_delay": True}})
    world = world_of(identified_arm(tmp_path, PARAMETERS[-1:]))
    assert world.command_delay_ns == 30_000_000
    assert episode(world, 3) == episode(world_of(lag), 3, lag=0.03)
    assert world_of(identified_arm(tmp_path, PARAMETERS[:1])).command_delay_ns is None


def test_draws_are_within_the_intervals_and_follow_from_the_seed(tmp_path: Path) -> None:
    world = world_of(identified_arm(tmp_path, draw="intervals"))
    drawn = np.array([world.reset(seed, {})[IDENTIFIED] for seed in range(50)])
    low, high = (np.array([getattr(each, end) for each in PARAMETERS]) for end in ("low", "high"))
    assert (low <= drawn.min(axis=0)).all()
    assert (drawn.max(axis=0) <= high).all()
    assert (np.ptp(drawn, axis=0) > 0.8 * (high - low)).all()
    mj = world.model.mj
    in_model = [mj.actuator_gainprm[1, 0], mj.dof_damping[2], mj.dof_frictionloss[0], mj.dof_armature[1]]
    in_model += [mj.body("link6").mass[0], world.command_delay_ns / 1e9]
    np.testing.assert_allclose(in_model, drawn[-1], rtol=1e-6)


def test_an_episode_is_the_same_after_other_draws_and_in_another_world(tmp_path: Path) -> None:
    contract = identified_arm(tmp_path, draw="intervals")
    world = world_of(contract)
    first = episode(world, 5)
    assert episode(world, 6) != first
    assert episode(world, 5) == first == episode(world_of(contract), 5)


def test_a_saved_state_continues_with_its_own_draw(tmp_path: Path) -> None:
    contract = identified_arm(tmp_path, draw="intervals")
    ends = []
    for others in (0, 1):
        world = world_of(contract)
        episode(world, 5)
        state = world.save()
        for seed in range(others):
            episode(world, seed)
        world.load(state)
        world.command(world.target + 0.05)
        world.step()
        ends.append(world._data.qpos.tobytes())
    assert ends[0] == ends[1]


def test_an_option_scales_the_identified_value(tmp_path: Path) -> None:
    contract = identified_arm(tmp_path, options={"x": OPTION}, draws={"x": {"damping": ["j3"]}})
    world = world_of(contract)
    world.reset(0, {"x": np.array(2.0)})
    assert world.model.mj.dof_damping[2] == 180.0


def test_a_recorded_episode_has_the_drawn_values_and_the_hash(tmp_path: Path) -> None:
    contract = identified_arm(tmp_path, draw="intervals")
    env = embodied_env.make(contract, backend="mujoco", record=tmp_path / "runs")
    _, info = env.reset(seed=3)
    env.step(env.action_space.sample())
    env.close()
    seed = info["reset"]["seed_applied"]
    np.testing.assert_array_equal(info["reset"]["sampled"][IDENTIFIED], world_of(contract).reset(seed, {})[IDENTIFIED])
    (run,) = (tmp_path / "runs").iterdir()
    assert contract.backends["mujoco"]["identified"]["sha256"] in (run / "manifest.json").read_text(encoding="utf-8")
    assert_sound(run)


def test_the_profile_has_the_content_of_the_file_in_its_fingerprint(tmp_path: Path) -> None:
    one, same = identified_arm(tmp_path / "a"), identified_arm(tmp_path / "b")
    other = identified_arm(tmp_path / "c", PARAMETERS[:2])
    assert one.backend_fingerprint("mujoco") == same.backend_fingerprint("mujoco")
    assert one.backend_fingerprint("mujoco") != other.backend_fingerprint("mujoco")
    assert one.fingerprint == other.fingerprint == load_contract("arm_reach").fingerprint


def test_injected_delays_are_refused_with_identified_parameters(tmp_path: Path) -> None:
    constant = DelayDistribution(kind="constant", values=(0.01,))
    delays = DelayModel(sensors=dict.fromkeys(("joints", "tcp", "target"), constant))
    with pytest.raises(UsageError, match=r"backends.mujoco.identified contains the robot's; remove one"):
        world_of(identified_arm(tmp_path, PARAMETERS[:1]), delays=delays)


WRONG_USE: dict[str, tuple[dict[str, Any], str]] = {
    "two delays": (
        {"options": {"x": OPTION}, "draws": {"x": {"command_delay": True}}},
        "draws.x.command_delay already",
    ),
    "two draws": (
        {"draw": "intervals", "options": {"x": OPTION}, "draws": {"x": {"mass": ["link6"]}}},
        "'mass.link6' is set by backends.mujoco.draws.x.mass already",
    ),
    "an option of its name": (
        {"draw": "intervals", "options": {IDENTIFIED: {**OPTION, "observed": True}}},
        "the name is that of backends.mujoco.identified",
    ),
    "an unknown draw": ({"draw": "values"}, "draw: .values. .expected .intervals."),
}


@pytest.mark.parametrize(("changes", "problem"), WRONG_USE.values(), ids=WRONG_USE.keys())
def test_refuses_a_profile_with(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=problem):
        world_of(identified_arm(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"of": ("j9",)}, "no such joint .*'j9'"),
        ({"kind": "mass", "of": ("hand",)}, "no such body .*'hand'"),
        ({"kind": "mass", "of": ("target",)}, r"without mass .*\['target'\]"),
    ],
)
def test_refuses_a_name_that_the_model_lacks(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=problem) as caught:
        world_of(identified_arm(tmp_path, (dataclasses.replace(PARAMETERS[1], **changes),)))
    assert caught.value.path == "backends.mujoco.identified.file"


def test_refuses_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"cannot read .*gone.yaml") as caught:
        world_of(naming(str(tmp_path / "gone.yaml")))
    assert caught.value.path == "backends.mujoco.identified.file"


def test_refuses_a_file_that_has_changed_since_the_contract_was_loaded(tmp_path: Path) -> None:
    contract = identified_arm(tmp_path)
    with (tmp_path / "arm.identified.yaml").open("a") as file:
        file.write("\n")
    with pytest.raises(ContractError, match="has changed") as caught:
        world_of(contract)
    assert caught.value.path == "backends.mujoco.identified.sha256"


def test_the_contract_of_a_run_opens_no_file(tmp_path: Path) -> None:
    contract = parse_contract(dump_contract(identified_arm(tmp_path)), trusted=False)
    with pytest.raises(ContractError, match="file not opened"):
        world_of(contract)


WRONG_FILES = {
    "empty": ("", "not a file with the key identified: empty"),
    "another schema": ("identified: embodied_env/identified/2\n", "unknown schema 'embodied_env/identified/2'"),
    "code": ("identified: !!python/object/apply:os.system [true]\n", "tag"),
    "binary": (b"\xff\xfe", "not text"),
    "too long": ("# " + 2**20 * "x", "too large"),
}


@pytest.mark.parametrize(("text", "problem"), WRONG_FILES.values(), ids=WRONG_FILES.keys())
def test_refuses_a_file_that_is(text: str | bytes, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "x.identified.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ContractError, match=problem):
        read_identified(file)


WRONG_CONTENT = {
    "a value outside its interval": ("value: 90.0", "value: 99.0", r"99.0 \(expected a value in its interval"),
    "a gain from 0": ("low: 1400.0", "low: 0.0", "above 0"),
    "a long delay": ("high: 0.04", "high: 4.0", "at most 1 s"),
    "no joint": ("of: [j3]", "of: []", "expected joints"),
    "a joint twice": ("of: [j3]", "of: [j3, j3]", "given twice"),
    "a short correlation": ("segments: 9", "segments: 9\nundetermined: []\ncorrelation: []", "duplicate key"),
}


@pytest.mark.parametrize(("old", "new", "problem"), WRONG_CONTENT.values(), ids=WRONG_CONTENT.keys())
def test_refuses_a_file_with(old: str, new: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "x.identified.yaml"
    write_identified(identified_model(), file)
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(EmbodiedEnvError, match=problem):
        read_identified(file)


def test_refuses_a_correlation_of_another_number_of_parameters() -> None:
    with pytest.raises(ValueError, match="expected a row and column per parameter"):
        identified_model(PARAMETERS[:2], correlation=((1.0,),))


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    (gain, *_) = PARAMETERS
    contract = identified_arm(tmp_path, (dataclasses.replace(gain, model=7000.0),))
    problem = r"fitted to a model whose gain.j1\+j2 is 7000, in arm6.xml it is 8000 \(expected the same model\)"
    with pytest.raises(ContractError, match=problem):
        world_of(contract)


def test_intervals_of_a_fit_that_does_not_explain_the_motion_are_not_drawn(tmp_path: Path) -> None:
    file = tmp_path / "arm.identified.yaml"
    write_identified(identified_model(unexplained=("j2",)), file)
    assert world_of(naming(str(file))).model.identified == PARAMETERS
    with pytest.raises(ContractError, match=r"identified\.draw: intervals of a fit that does not explain .* j2"):
        world_of(naming(str(file), draw="intervals"))
