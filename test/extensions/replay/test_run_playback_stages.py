"""The action stages of a contract act once, in the run, and not again on its recorded actions."""

import importlib

import numpy as np
import pytest
from distributions import install
from evidence import assert_replays, assert_sound
from repeating_stage import RepeatingStage
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.policy import NoAction, find_start
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import UsageError
from embodied_env.extensions.replay.run_replay import replay_policy, simulate_run
from embodied_env.record import read_run

pytestmark = pytest.mark.needs("evaluation", "explain")

STEPS = 5
PARTY = """
from dataclasses import dataclass
from embodied_env.core.action_stage import StagedAction
from embodied_env.core.contract_blocks import ContractBlock
from embodied_env.core.policy import NoAction, find_start

@dataclass(frozen=True, kw_only=True)
class Settings:
    gain: float = 1.0

block = ContractBlock(schema=Settings, action_stage="mirror")

class Mirror:
    made = 0

    def __init__(self, contract):
        Mirror.made += 1

    def reset(self):
        pass

    def apply(self, action, snapshot, commanded):
        return None if isinstance(action, NoAction) else StagedAction(action=-action)

    def close(self):
        pass
"""


@pytest.fixture
def contract(monkeypatch, tmp_path):
    """Return a contract whose block mirrors each action."""
    points = {"contract_blocks": {"mirror": "a_mirror:block"}, "action_stages": {"mirror": "a_mirror:Mirror"}}
    install(monkeypatch, tmp_path, points, a_mirror=PARTY)
    return changed_contract("arm_reach", {"blocks": {"mirror": {}}, "episode.horizon_steps": STEPS})


@pytest.fixture
def recorded(contract, tmp_path):
    return evaluate(contract, "random", tmp_path / "recorded")


@pytest.fixture
def made(contract):
    """Return what counts the stages that were made."""
    return lambda: importlib.import_module("a_mirror").Mirror.made


def evaluate(contract, policy, folder, **options):
    options = {"backend": "mujoco", "episodes": 1, "seed": 5, "record": folder, **options}
    return embodied_env.evaluate(contract, policy, **options).results[0].path


def reports_of(path, key):
    return [row["inner"]["report"][key] for row in read_run(path).transitions()]


@pytest.mark.parametrize("actions", ["requested", "applied"])
def test_a_playback_executes_what_the_gate_received_and_accounts_for_the_stage(tmp_path, contract, recorded, actions):
    path = evaluate(contract, f"run:{recorded}#1?actions={actions}", tmp_path / "played")
    np.testing.assert_allclose(reports_of(path, "applied_si"), reports_of(recorded, "applied_si"), rtol=1e-12)
    if actions == "requested":
        assert reports_of(path, "requested") == reports_of(recorded, "requested")
    infos = [row["info"] for row in read_run(path).transitions()]
    assert [info["annotations"]["action_stages"] for info in infos] == [{"skipped": ["mirror"]}] * STEPS
    assert "without the action stages of the contract: mirror." in embodied_env.explain(infos[0])
    assert_sound(path)
    assert_replays(path)


def test_the_stages_act_again_in_the_episode_after_a_playback(contract, recorded):
    policy = embodied_env.load_policy(f"run:{recorded}#1", contract)
    policy.reset(seed=0, episode_index=0)
    with EmbodiedEnv(contract, backend="mujoco") as env:
        env.start_from(find_start(policy))
        for is_played in (True, False):
            env.reset(seed=0)
            *_, info = env.step(np.full(6, 0.1))
            assert info["action"]["requested"].tolist() == [0.1 if is_played else -0.1] * 6
            assert ("skipped" in info["annotations"]["action_stages"]) == is_played


def test_the_question_to_the_operator_names_the_stages_and_the_rehearsal_makes_none(contract, recorded, caplog):
    pytest.importorskip("rclpy")
    policy = embodied_env.load_policy(f"run:{recorded}#1", contract)
    policy.reset(seed=0, episode_index=0)
    with EmbodiedEnv(contract, backend="real", armed=False) as env:
        made = importlib.import_module("a_mirror").Mirror.made
        env.start_from(find_start(policy))
        assert importlib.import_module("a_mirror").Mirror.made == made
    assert "commands equal bit for bit; without the action stages mirror" in caplog.text


def test_stages_of_the_caller_are_refused_with_a_playback(tmp_path, contract, recorded):
    class Operator:
        def reset(self):
            pass

        def apply(self, action, snapshot, commanded):
            return None

        def close(self):
            pass

    with pytest.raises(UsageError, match=r"cannot be played with action_stages.*omit action_stages"):
        evaluate(contract, f"run:{recorded}#1", tmp_path / "played", action_stages=[Operator()])


def test_a_simulation_of_the_run_does_not_make_the_stage_again(contract, recorded, made):
    before = made()
    assert simulate_run(recorded, contract=contract).sound
    assert made() == before


def test_an_environment_without_its_stages_plays_recorded_episodes_only(contract):
    with EmbodiedEnv(contract, backend="fake", action_stages=None) as env:
        with pytest.raises(UsageError, match=r"action stages not made: mirror .*omit action_stages=None"):
            env.reset()
        assert env.stepper.epoch == -1  # before the backend's reset, which may move a robot


def test_a_policy_is_compared_with_what_the_policy_of_the_run_returned(tmp_path, contract):
    with embodied_env.make(contract, backend="fake", record=tmp_path / "run") as env:
        env.reset(seed=1)
        for action in (np.full(6, 0.1), NoAction("late"), np.full(6, 0.2)):
            env.step(action)
    actions = iter([np.full(6, 0.1), NoAction("late"), np.full(6, 0.2)])
    assert replay_policy(env.path, lambda _: next(actions)).first is None


@pytest.mark.parametrize(("size", "first"), [(2, None), (1, (1, 1))], ids=["equal", "other"])
def test_a_policy_in_the_space_of_a_stage_is_compared_there(tmp_path, size, first):
    options = {"backend": "fake", "record": tmp_path / "run", "action_stages": [RepeatingStage()]}
    with embodied_env.make("arm_reach", **options) as env:
        env.reset(seed=1)
        env.step(np.full(2, 0.1))
    assert replay_policy(env.path, lambda _: np.full(size, 0.1)).first == first
