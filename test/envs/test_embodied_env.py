import dataclasses
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import scripted_tasks
from scripted_tasks import Scene
from shipped_contracts import changed_text

import embodied_env
from embodied_env.core.code_types import Severity
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import BackendNotReadyError, ClosedError, MissingDependencyError, ResetNeededError, UsageError
from embodied_env.timing.clock import ManualClock


@pytest.fixture
def env(close_later):
    return close_later(EmbodiedEnv(scripted_tasks.contract(), backend="fake", clock=ManualClock()))


def seeds(env, *arguments):
    """Return the world's seed of each reset with a seed or None."""
    return [env.reset(seed=seed)[1]["reset"]["seed_applied"] for seed in arguments]


HOLD = np.zeros(2)


def test_a_seed_determines_the_worlds_that_follow_and_no_seed_draws_another(close_later, env):
    other = close_later(EmbodiedEnv(scripted_tasks.contract(), backend="fake", clock=ManualClock()))
    assert seeds(env, None) != seeds(other, None)
    worlds = seeds(env, 3, None, None, None)
    assert len(set(worlds)) == 4
    assert seeds(other, 3, None, None, None) == worlds
    assert seeds(env, 4) != worlds[:1]
    pair = [made.reset(seed=5)[0] for made in (env, other)]
    np.testing.assert_equal(*pair)


@pytest.mark.parametrize("seed", [True, False, 1.0, "1"])
def test_a_seed_of_another_type_is_rejected(env, seed):
    with pytest.raises(gymnasium.error.Error, match="Seed must be a python integer"):
        env.reset(seed=seed)
    assert env.epoch == -1


def test_a_rejected_option_does_not_change_the_next_world_and_is_no_episode(env):
    """(seed, episode_index) identifies an episode permanently."""
    expected = seeds(env, 3, None)
    seeds(env, 3)
    with pytest.raises(UsageError):
        env.reset(options={"goal": [9.0, 9.0, 9.0]})
    _, info = env.reset()
    assert (info["reset"]["seed_applied"], info["episode_index"]) == (expected[1], 1)
    indices = [env.reset(seed=seed)[1]["episode_index"] for seed in (None, 3, None, None, 3)]
    assert indices == [2, 0, 1, 2, 0]


def test_seed_and_episode_index_name_the_same_world_after_a_failed_reset(close_later):
    expected = close_later(EmbodiedEnv(scripted_tasks.contract(), backend="fake", clock=ManualClock()))
    names = dict(zip((0, 1, 2, 3), seeds(expected, 3, None, None, None), strict=True))
    scene = Scene(backend=scripted_tasks.FailingResets)
    scene.backend.failing = (3,)
    env = close_later(EmbodiedEnv(scene.contract, backend="fake", clock=scene.clock))
    env.stepper = scene.stepper
    env.reset(seed=8)
    env.reset()
    with pytest.raises(BackendNotReadyError):
        env.reset(seed=3)
    _, info = env.reset()
    assert info["reset"]["seed_applied"] == names[info["episode_index"]]


def test_info_names_contract_backend_and_version(env):
    env.reset(seed=1)
    info = env.step(HOLD)[4]
    assert (info["contract"], info["backend"]) == (env.contract.fingerprint, "fake")
    assert embodied_env.__version__ in info["wrapper_version"]


def sent(env):
    return len(env.stepper.backend.sent)


def test_step_finishes_a_step_begun_by_begin(env):
    env.reset(seed=0)
    env.begin(HOLD)
    assert (sent(env), env.step_index) == (1, 0)
    env.step(HOLD)
    assert (sent(env), env.step_index) == (1, 1)
    env.step(HOLD)
    assert (sent(env), env.step_index) == (2, 2)


def test_abort_step_ends_the_episode_of_a_pending_step_only(env):
    env.reset(seed=0)
    env.abort_step()
    env.step(HOLD)
    assert env.step_index == 1
    env.begin(HOLD)
    env.abort_step()
    with pytest.raises(ResetNeededError):
        env.step(HOLD)


@pytest.mark.parametrize("backend", ["fake", "mujoco"])
def test_a_reset_after_close_opens_a_lockstep_world_again_and_no_other(backend, close_later):
    used, new = (close_later(EmbodiedEnv("arm_reach", backend=backend)) for _ in range(2))
    used.reset(seed=3)
    used.step(np.ones(6))
    used.close()
    for _ in range(2):
        np.testing.assert_equal(used.reset(seed=1), new.reset(seed=1))
        for _ in range(3):
            np.testing.assert_equal(used.step(np.ones(6)), new.step(np.ones(6)))
    used.close()
    with pytest.raises(ClosedError):
        used.step(np.ones(6))
    paced = EmbodiedEnv("arm_reach", backend="fake", free_running=True)
    paced.close()
    with pytest.raises(ClosedError):
        paced.reset()


def test_the_agent_can_mark_the_end_of_its_policy_only(env):
    env.reset(seed=1)
    env.mark("policy")
    env.step(HOLD)
    assert "marked" in env.last_transition.stamps_ns
    with pytest.raises(UsageError, match="expected 'policy'"):
        env.mark("thinking")


def test_a_torch_tensor_in_a_graph_is_accepted(env):
    torch = pytest.importorskip("torch", reason="needs the extra train")
    env.reset(seed=1)
    *_, info = env.step(torch.zeros(2, requires_grad=True))
    assert info["safety"]["disposition"] == Severity.PASS


def test_environments_of_one_contract_have_their_own_action_spaces(close_later, env):
    other = close_later(EmbodiedEnv(env.contract, backend="fake", clock=ManualClock()))
    for each in (env, other):
        each.action_space.seed(1)
    assert env.action_space.sample().tolist() == other.action_space.sample().tolist()


def test_two_runs_with_one_seed_and_a_virtual_clock_are_identical_including_latencies():
    def run():
        env = EmbodiedEnv(scripted_tasks.contract(), backend="fake", clock="virtual")
        env.reset(seed=4)
        env.action_space.seed(4)
        rows = [repr(env.step(env.action_space.sample())) for _ in range(5)]
        env.close()
        return rows

    assert run() == run()


def test_a_backend_without_rendering_offers_no_render_mode():
    env = embodied_env.make("arm_reach", backend="fake")
    assert env.metadata["render_modes"] == []
    env.close()
    with pytest.raises(UsageError, match=r"render_mode for fake: 'rgb_array' \(expected one of: None\)"):
        embodied_env.make("arm_reach", backend="fake", render_mode="rgb_array")


def test_human_rendering_needs_a_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    env = embodied_env.make("arm_reach", backend="mujoco")
    assert env.metadata["render_modes"] == ["rgb_array", "rgb_array_list"]
    env.close()
    with pytest.raises(UsageError, match=r"'human' without a display .* use 'rgb_array'"):
        embodied_env.make("arm_reach", backend="mujoco", render_mode="human")
    monkeypatch.setenv("DISPLAY", ":99")
    env = embodied_env.make("arm_reach", backend="mujoco")
    assert env.metadata["render_modes"] == ["rgb_array", "rgb_array_list", "human"]
    env.close()


def test_render_returns_the_declared_image_size():
    env = embodied_env.make("arm_reach", backend="mujoco", render_mode="rgb_array")
    env.reset(seed=1)
    try:
        picture = env.render()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    finally:
        env.close()
    assert (picture.dtype.name, picture.shape) == ("uint8", (480, 640, 3))
    assert picture.std() > 1.0


def test_render_needs_a_reset_and_without_a_render_mode_returns_none_and_warns(close_later):
    env = close_later(embodied_env.make("arm_reach", backend="mujoco", render_mode="rgb_array"))
    with pytest.raises(ResetNeededError):
        env.render()
    env = close_later(embodied_env.make("arm_reach", backend="mujoco"))
    env.reset(seed=1)
    with pytest.warns(UserWarning, match="without a render_mode"):
        assert env.render() is None


def with_action_history(count):
    return dataclasses.replace(embodied_env.load_contract("arm_reach"), applied_actions=count)


def test_the_last_applied_actions_are_in_the_observation_oldest_first():
    with embodied_env.make(with_action_history(3), backend="fake") as env:
        env.reset(seed=1)
        applied = []
        for size in (0.01, -0.02, 0.9, 0.03):
            observation, *_, info = env.step(np.full(6, size))
            applied.append(info["action"]["applied"])
        held, _ = env.reset()
    np.testing.assert_array_equal(observation["applied_actions"], np.concatenate(applied[1:]))
    assert (applied[2] < 0.9).all()  # what was applied, not what was requested
    np.testing.assert_allclose(held["applied_actions"], np.zeros(18), atol=1e-12)


def test_absolute_positions_are_held_at_the_measured_ones_after_a_reset():
    contract = with_action_history(1)
    arm = dataclasses.replace(contract.actuators["arm"], command="position", scale="physical")
    env = embodied_env.make(dataclasses.replace(contract, actuators={"arm": arm}), backend="mujoco")
    observation, _ = env.reset(seed=1)
    env.close()
    np.testing.assert_allclose(observation["applied_actions"], observation["joints_position"])


def test_an_epoch_never_repeats_and_steps_are_counted(env):
    assert env.epoch == -1
    for epoch in (0, 1):
        env.reset(seed=1, options={"goal": [0.2, 0.1, 0.3]})
        assert (env.epoch, env.step_index) == (epoch, 0)
        assert env.last_reset.reset.sampled["goal"].tolist() == [0.2, 0.1, 0.3]
        env.step(HOLD)
        assert env.step_index == 1


def shortened_arm():
    """Return a contract changed in memory, which is in no file."""
    contract = embodied_env.load_contract("arm_reach")
    return dataclasses.replace(contract, episode=dataclasses.replace(contract.episode, horizon_steps=3))


def remake(spec):
    """Make the environment of a spec, and return it, closed after a seeded reset, and the result of the reset."""
    made = gymnasium.make(spec)
    observation, _ = made.reset(seed=4)
    made.close()
    return made.unwrapped, observation


@pytest.mark.parametrize("through_json", [False, True])
@pytest.mark.parametrize("backend", ["fake", "mujoco"])
def test_the_spec_of_a_contract_in_memory_makes_the_same_environment(backend, through_json):
    if backend == "mujoco":
        pytest.importorskip("mujoco")
    contract = shortened_arm()
    env = embodied_env.make(contract, backend=backend, clock="virtual")
    observation, _ = env.reset(seed=4)
    env.close()
    spec = gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()) if through_json else env.spec
    other, seen = remake(spec)
    assert (other.contract, other.contract.source) == (contract, contract.source)
    assert (other.contract.fingerprint, other.backend_name) == (contract.fingerprint, backend)
    assert all(np.array_equal(observation[key], seen[key]) for key in observation)


def test_a_model_next_to_the_contract_file_is_found_from_the_spec(tmp_path):
    pytest.importorskip("mujoco")
    shipped = embodied_env.load_contract("arm_reach")
    model = dict(shipped.backends["mujoco"])["model"]
    xml = next(Path(embodied_env.__file__).parent.rglob(model)).read_text()
    (tmp_path / "neighbour.xml").write_text(xml)
    text = changed_text(shipped, {"backends.mujoco.model": "neighbour.xml"})
    contract = embodied_env.contract.parse_contract(text, source=str(tmp_path / "arm.yaml"))
    env = embodied_env.make(contract, backend="mujoco")
    env.close()
    assert remake(env.spec)[0].contract == contract


def test_an_unknown_contract_mapping_is_rejected():
    with pytest.raises(UsageError, match=r"keys .*'text'"):
        EmbodiedEnv({"text": "contract: embodied_env/1"}, backend="fake")


def test_an_unreachable_display_raises_and_the_environment_can_be_closed(monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.setenv("DISPLAY", ":4711")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    env = embodied_env.make("arm_reach", backend="mujoco", render_mode="human")
    with pytest.raises(MissingDependencyError, match=r"needs a display.*set DISPLAY"):
        env.reset(seed=1)
    env.close()
