"""Action stages run before the gate, and replay recomputes their output and copies their account."""

import numpy as np
import pytest
from evidence import assert_replays, assert_sound
from gymnasium import spaces
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.action_stage import StagedAction
from embodied_env.core.policy import NoAction
from embodied_env.errors import UsageError

ARM = changed_contract("arm_reach", {"episode.horizon_steps": 4})


class Stage:
    def __init__(self, answer=lambda _: None):
        self.answer, self.calls = answer, []

    def reset(self):
        self.calls.append("reset")

    def apply(self, action, snapshot, commanded):
        assert set(snapshot.samples) == set(ARM.sensors)
        assert len(commanded.positions) == 6
        return self.answer(action)

    def close(self):
        self.calls.append("close")


class Scalar(Stage):
    """Translates one number to equal velocities of all joints."""

    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self):
        super().__init__(lambda action: StagedAction(action=np.repeat(action, 6), account={"scalar": float(action[0])}))


def operator(action):
    action[:] = 9.0  # of the stage's own copy
    return StagedAction(action=np.full(6, 0.2), account={"operator": "ana"})


def record(tmp_path, stages, actions):
    env = embodied_env.make(ARM, backend="fake", record=tmp_path, action_stages=stages, clock="virtual")
    env.reset(seed=1)
    infos = [env.step(action)[-1] for action in actions]
    env.close()
    return env, infos


def test_a_stage_cannot_change_the_readings_that_the_gate_judges(tmp_path):
    class Forger(Stage):
        def apply(self, action, snapshot, commanded):
            snapshot.samples["joints"].values["position"][:] = 9.0
            del snapshot.samples["target"]

    (_, plain), (_, forged) = record(tmp_path, [], [np.zeros(6)] * 2), record(tmp_path, [Forger()], [np.zeros(6)] * 2)
    assert [info["safety"]["code"].tolist() for info in forged] == [info["safety"]["code"].tolist() for info in plain]


def test_a_stage_cannot_move_the_last_command_from_which_the_gate_limits(tmp_path):
    class Mover(Stage):
        def apply(self, action, snapshot, commanded):
            commanded.positions[:] += 0.5

    (_, plain), (_, moved) = record(tmp_path, [], [np.zeros(6)] * 2), record(tmp_path, [Mover()], [np.zeros(6)] * 2)
    assert [info["action"]["applied_si"] for info in moved] == [info["action"]["applied_si"] for info in plain]


def test_output_of_stages_reaches_the_gate_and_is_replayed_without_them(tmp_path):
    mine, later = np.full(6, 0.1), type("Later", (Stage,), {})()
    env, (info,) = record(tmp_path, [Stage(operator), later], [mine])
    assert mine.tolist() == [0.1] * 6
    account = {"given": [0.1] * 6, "stages": {"Stage": {"operator": "ana"}}}
    assert info["annotations"]["action_stages"] == account
    assert info["action"]["requested"].tolist() == [0.2] * 6
    (row,) = embodied_env.read_run(env.path).transitions()
    assert (row["action"], row["inner"]["action"]) == ([0.1] * 6, [0.2] * 6)
    assert row["inner"]["external_inputs"]["annotations"]["action_stages"] == account
    assert_sound(env.path)
    assert_replays(env.path)
    assert later.calls == ["reset", "close"]


@pytest.mark.needs("export")
def test_stage_with_a_space_of_its_own_translates(tmp_path):
    from embodied_env.extensions.export.run_export import export_run

    env, (info, _) = record(tmp_path, [Scalar()], [np.array([0.5]), embodied_env.NoAction("late")])
    assert env.action_space == Scalar.action_space
    assert info["action"]["requested"].tolist() == [0.5] * 6
    assert_sound(env.path)
    export_run(env.path, tmp_path / "out", format="jsonl")
    assert '"action":[0.5,0.5,0.5,0.5,0.5,0.5]' in (tmp_path / "out" / "transitions.jsonl").read_text()
    assert_replays(env.path)


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: 1 / 0,
        lambda _: np.zeros(6),
        lambda _: exit(1),  # noqa: PLR1722 - as foreign code may
        lambda action: StagedAction(action=action, account={"object": object()}),
    ],
)
def test_a_stage_that_fails_makes_the_robot_hold(tmp_path, answer):
    never = Stage(lambda _: pytest.fail("after a failure"))
    never.__class__ = type("Never", (Stage,), {})
    env, (info,) = record(tmp_path, [Stage(answer), never], [np.full(6, 0.1)])
    assert "failed" in info["annotations"]["action_stages"]["stages"]["Stage"]
    assert info["action"]["applied"].tolist() != [0.1] * 6
    assert_sound(env.path)
    assert_replays(env.path)


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        (["unregistered"], "group embodied_env.action_stages"),
        ([3], "invalid"),
        *((stages, "invalid action_stages") for stages in ("mirror", {"mirror": {}}, {"mirror"})),
    ],
    ids=str,
)
def test_wrong_stages_are_refused(stages, problem):
    with pytest.raises(UsageError, match=problem):
        embodied_env.make(ARM, backend="fake", action_stages=stages)


@pytest.mark.needs("vector")
def test_a_stage_of_several_slots_is_refused():
    with pytest.raises(UsageError, match="shared by several slots"):
        embodied_env.make_vec(ARM, num_envs=2, backend="fake", action_stages=[Stage(lambda _: None)])


@pytest.mark.needs("vector")
def test_slots_with_stages_are_stepped_one_by_one():
    def own(_slot):
        return {"action_stages": [Stage(lambda _: StagedAction(action=np.zeros(6)))]}

    env = embodied_env.make_vec(ARM, num_envs=5, backend="mujoco", per_slot=own)
    env.reset(seed=0)
    assert not env.step(np.ones((5, 6)))[-1]["action"]["requested"].any()
    assert env.batched_share == 0.0
    env.close()


def test_a_stage_may_act_in_place_of_a_policy_that_has_no_action_whose_step_is_not_missed(tmp_path):
    stage = Stage(lambda _: StagedAction(action=np.zeros(6), account={"operator": "ana"}))
    env, infos = record(tmp_path, [stage], [NoAction("late")] * 3)
    assert not any(info["action_clipped"] for info in infos)
    assert infos[0]["annotations"]["action_stages"]["given"] == {"no_action": "late"}
    assert env.summary["missed_actions"] == 0
    assert_sound(env.path)
    env, infos = record(tmp_path, [Stage()], [NoAction("late")] * 2)  # without an answer
    assert not any("annotations" in info for info in infos)
    assert env.summary["missed_actions"] == 2
    assert_sound(env.path)
