"""ActionChunks: each action is executed at its own step or dropped, and each is accounted for."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import scripted_tasks
from gymnasium.wrappers import Autoreset, DiscretizeAction, RepeatAction, RescaleAction, TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_env.core.clock import ManualClock
from embodied_env.core.codes import Severity
from embodied_env.envs.action_chunks import ActionChunks
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import ClosedError, ResetNeededError, TaskError, UsageError
from embodied_env.record import RecordTransitions, read_run

HORIZON = 10
PUSH = 0.1


class Base(EmbodiedEnv):
    """Stores its steps as (epoch, step, first component of the action)."""

    def __init__(self, **options):
        super().__init__(scripted_tasks.contract(**options), backend="fake", clock=ManualClock())
        self.taken = []

    def step(self, action):
        returned = super().step(action)
        self.taken.append((self.epoch, self.step_index, 0.0 if isinstance(action, dict) else np.ravel(action)[0]))
        return returned


@pytest.fixture
def base():
    made = Base()
    yield made
    made.close()


@pytest.fixture
def env(base):
    chunks = ActionChunks(base, 4)
    chunks.reset(seed=1)
    return chunks


def numbered(first, count):
    """Return actions that encode their intended step: PUSH per step, of two joints."""
    return [np.full(2, PUSH * step / HORIZON) for step in range(first, first + count)]


def steps_of(base):
    """Return for each executed action its step and its intended step."""
    return [(round(value * HORIZON / PUSH), step) for _, step, value in base.taken]


# --------------------------------------------------------------------------------------------------------- step_chunk


def test_a_chunk_is_executed_step_by_step_and_each_step_is_returned(env, base):
    result = env.step_chunk(numbered(1, 3), epoch=base.epoch, first_step=1)
    assert steps_of(base) == [(1, 1), (2, 2), (3, 3)]
    assert [taken.info["step_index"] for taken in result.transitions] == [1, 2, 3]
    assert [taken.reward for taken in result.transitions] == [1.0, 2.0, 3.0]
    assert (result.expired, result.unused, result.rejected, result.ended) == (0, 0, "", False)


def test_a_transition_is_the_five_values_of_step(env, base):
    (taken,) = env.step_chunk(numbered(1, 1), epoch=base.epoch, first_step=1).transitions
    observation, reward, terminated, truncated, info = taken
    assert observation in base.observation_space
    assert (reward, terminated, truncated) == (1.0, False, False)
    assert info["action"]["requested"].tolist() == numbered(1, 1)[0].tolist()


def test_actions_whose_step_has_been_taken_are_dropped(env, base):
    env.step_chunk(numbered(1, 3), epoch=base.epoch, first_step=1)
    result = env.step_chunk(numbered(2, 4), epoch=base.epoch, first_step=2)
    assert result.expired == 2
    assert steps_of(base)[3:] == [(4, 4), (5, 5)]


def test_an_expired_chunk_publishes_nothing(env, base):
    env.step_chunk(numbered(1, 3), epoch=base.epoch, first_step=1)
    result = env.step_chunk(numbered(1, 2), epoch=base.epoch, first_step=1)
    assert (result.transitions, result.expired, result.rejected) == ((), 2, "")
    assert base.step_index == 3


@pytest.mark.parametrize("off", [-1, 1])
def test_a_chunk_of_another_epoch_is_rejected_whole(env, base, off):
    env.reset()
    result = env.step_chunk(numbered(1, 3), epoch=base.epoch + off, first_step=1)
    assert (result.transitions, result.expired, result.unused, result.rejected) == ((), 0, 3, "epoch")
    assert base.taken == []


def test_a_chunk_that_begins_after_the_next_step_is_rejected_whole(env, base):
    result = env.step_chunk(numbered(2, 3), epoch=base.epoch, first_step=2)
    assert (result.transitions, result.expired, result.unused, result.rejected) == ((), 0, 3, "future")
    assert base.taken == []


def test_an_early_chunk_can_be_resubmitted_when_it_is_due(env, base):
    early = numbered(2, 2)
    env.step_chunk(early, epoch=base.epoch, first_step=2)
    env.step_chunk(numbered(1, 1), epoch=base.epoch, first_step=1)
    assert env.step_chunk(early, epoch=base.epoch, first_step=2).rejected == ""
    assert steps_of(base) == [(1, 1), (2, 2), (3, 3)]


def test_execution_stops_at_the_end_of_the_episode(env, base):
    result = env.step_chunk(numbered(1, HORIZON + 3), epoch=base.epoch, first_step=1)
    assert (len(result.transitions), result.unused, result.ended) == (HORIZON, 3, True)
    assert result.transitions[-1].truncated


def test_execution_stops_when_an_inner_wrapper_ends_the_episode(base):
    env = ActionChunks(TimeLimit(base, 2), 4)
    env.reset(seed=1)
    result = env.step_chunk(numbered(1, 4), epoch=base.epoch, first_step=1)
    assert (len(result.transitions), result.unused) == (2, 2)
    with pytest.raises(ResetNeededError):
        env.step_chunk(numbered(3, 1), epoch=base.epoch, first_step=3)
    assert base.step_index == 2


def test_an_empty_chunk_does_nothing(env, base):
    result = env.step_chunk([], epoch=base.epoch, first_step=1)
    assert (result.transitions, result.unused, result.ended) == ((), 0, False)


def test_an_array_is_a_chunk_of_its_rows(env, base):
    env.step_chunk(np.array(numbered(1, 3)), epoch=base.epoch, first_step=1)
    assert steps_of(base) == [(1, 1), (2, 2), (3, 3)]


def test_a_malformed_action_brakes_for_its_step_only(env, base):
    actions = numbered(1, 3)
    actions[1] = np.full(2, np.nan)
    result = env.step_chunk(actions, epoch=base.epoch, first_step=1)
    dispositions = [taken.info["safety"]["disposition"] for taken in result.transitions]
    assert dispositions == [Severity.PASS, Severity.HOLD, Severity.PASS]


@pytest.mark.parametrize("chunk", [None, 0.1, np.array(0.1), object(), iter([]), {"a": [1], "b": [1, 2]}, {}])
def test_an_invalid_chunk_brakes_for_its_first_step(env, base, chunk):
    result = env.step_chunk(chunk, epoch=base.epoch, first_step=1)
    (taken,) = result.transitions
    assert taken.info["safety"]["disposition"] == Severity.HOLD


def test_a_single_action_is_not_accepted_as_a_chunk(env, base):
    result = env.step_chunk(np.full(2, PUSH), epoch=base.epoch, first_step=1)
    assert {taken.info["safety"]["disposition"] for taken in result.transitions} == {Severity.HOLD}


@pytest.mark.parametrize("first_step", [0, -1, 1.0, "1", None])
def test_an_invalid_first_step_is_rejected_with_its_value(env, base, first_step):
    with pytest.raises(UsageError, match=r"first_step=.*expected an integer >= 1"):
        env.step_chunk(numbered(1, 1), epoch=base.epoch, first_step=first_step)
    assert base.taken == []


@pytest.mark.parametrize("epoch", [-1, 0.5, None])
def test_an_invalid_epoch_is_rejected_with_its_value(env, base, epoch):
    with pytest.raises(UsageError, match=r"epoch=.*expected an integer >= 0"):
        env.step_chunk(numbered(1, 1), epoch=epoch, first_step=1)
    assert base.taken == []


def test_numpy_integers_are_accepted(env, base):
    result = env.step_chunk(numbered(1, 1), epoch=np.int64(base.epoch), first_step=np.int64(1))
    assert len(result.transitions) == 1


def test_actions_expire_when_an_inner_wrapper_takes_several_steps(base):
    env = ActionChunks(RepeatAction(base, 3), 4)
    env.reset(seed=1)
    result = env.step_chunk(numbered(1, 5), epoch=base.epoch, first_step=1)
    assert steps_of(base) == [(1, 1), (1, 2), (1, 3), (4, 4), (4, 5), (4, 6)]
    assert (len(result.transitions), result.expired, result.unused) == (2, 3, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.none(),  # a reset
            st.tuples(st.integers(0, 6), st.integers(-1, 1), st.integers(1, HORIZON + 3)),
        ),
        max_size=12,
    )
)
def test_no_action_is_executed_at_another_step_and_each_is_accounted_for(calls):
    base = Base()
    env = ActionChunks(base, 4)
    env.reset(seed=1)
    for call in calls:
        if call is None:
            env.reset()
            continue
        count, epoch, first = call
        try:
            result = env.step_chunk(numbered(first, count), epoch=max(0, base.epoch + epoch), first_step=first)
        except ResetNeededError:
            assert base.step_index == HORIZON
            continue
        assert len(result.transitions) + result.expired + result.unused == count
        assert not (result.rejected and (result.transitions or result.expired))
        assert result.ended == (bool(result.transitions) and base.step_index == HORIZON)
    assert all(meant == step for meant, step in steps_of(base))
    env.close()


# --------------------------------------------------------------------------------------------------------------- step


def test_the_action_of_a_learner_is_a_chunk_of_environment_actions(env, base):
    assert env.action_space.shape == (4, 2)
    assert (env.action_space.low == base.action_space.low).all()
    assert (env.action_space.high == base.action_space.high).all()
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert observation in env.observation_space
    assert (reward, terminated, truncated) == (1.0 + 2.0 + 3.0 + 4.0, False, False)
    assert info["step_index"] == 4


def test_chunk_info_reports_the_executed_steps(env):
    chunk = env.step(np.array(numbered(1, 4)))[-1]["chunk_result"]
    assert (chunk["executed"], chunk["malformed"]) == (4, False)
    assert chunk["rewards"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_the_reward_of_a_skipped_step_is_nan(env, base):
    for _ in range(2):
        env.step(np.zeros((4, 2)))
    _, reward, terminated, truncated, info = env.step(np.zeros((4, 2)))
    assert (reward, terminated, truncated) == (9.0 + 10.0, False, True)
    assert info["chunk_result"]["executed"] == 2
    np.testing.assert_array_equal(info["chunk_result"]["rewards"], [9.0, 10.0, np.nan, np.nan])
    assert info["end_reason"] == "time_limit"


@pytest.mark.parametrize(
    "chunk",
    [np.full((3, 2), PUSH), np.full((5, 2), PUSH), np.full(2, PUSH), [], None, PUSH, "go", {"arm": np.zeros((3, 2))}],
    ids=["short", "long", "one action", "empty", "none", "number", "text", "dict"],
)
def test_a_malformed_chunk_brakes_for_one_step(env, base, chunk):
    *_, info = env.step(chunk)
    assert (info["chunk_result"]["executed"], info["chunk_result"]["malformed"]) == (1, True)
    assert info["chunk_result"]["rewards"].shape == (4,)
    assert info["safety"]["disposition"] == Severity.HOLD
    assert base.step_index == 1


def test_malformed_chunks_in_a_row_end_the_episode(env):
    ends = [env.step(None)[-1]["end_reason"] for _ in range(3)]
    assert ends == ["", "", "safety_stop:form.repeated"]


def test_a_malformed_chunk_brakes_through_wrappers_that_transform_actions(base):
    env = ActionChunks(RescaleAction(base, -2.0, 2.0), 4)
    env.reset(seed=1)
    assert env.step("go")[-1]["safety"]["disposition"] == Severity.HOLD


@pytest.fixture
def base_of_two():
    arm = scripted_tasks.document()["actuators"]["arm"]
    shoulder, elbow = arm["joints"].items()
    made = Base(
        actuators={"arm": arm | {"joints": dict([shoulder])}, "hand": arm | {"topic": "h", "joints": dict([elbow])}}
    )
    yield made
    made.close()


def test_with_several_actuators_a_chunk_is_a_dict_of_chunks(base_of_two):
    env = ActionChunks(base_of_two, 3)
    env.reset(seed=1)
    assert {name: box.shape for name, box in env.action_space.items()} == {"arm": (3, 1), "hand": (3, 1)}
    *_, info = env.step(env.action_space.sample())
    assert (info["chunk_result"]["executed"], info["chunk_result"]["malformed"]) == (3, False)
    *_, info = env.step({"arm": np.zeros((2, 1)), "hand": np.zeros((2, 1))})
    assert (info["chunk_result"]["executed"], info["chunk_result"]["malformed"]) == (1, True)
    assert info["safety"]["disposition"] == Severity.HOLD


def test_parts_of_different_lengths_are_not_a_chunk(base_of_two):
    env = ActionChunks(base_of_two, 3)
    env.reset(seed=1)
    chunk = {"arm": np.zeros((3, 1)), "hand": np.zeros((2, 1))}
    (taken,) = env.step_chunk(chunk, epoch=base_of_two.epoch, first_step=1).transitions
    assert taken.info["safety"]["disposition"] == Severity.HOLD


def test_vector_environments_stack_chunks():
    envs = gymnasium.vector.SyncVectorEnv([lambda: ActionChunks(Base(episode__horizon_steps=6), 4)] * 2)
    envs.reset(seed=1)
    *_, infos = envs.step(envs.action_space.sample())
    assert infos["chunk_result"]["rewards"].shape == (2, 4)
    assert infos["chunk_result"]["executed"].tolist() == [4, 4]
    *_, truncated, infos = envs.step(envs.action_space.sample())
    assert truncated.all()
    assert infos["chunk_result"]["executed"].tolist() == [2, 2]
    envs.close()


# ----------------------------------------------------------------------------------- recorders, errors and lifetimes


def test_a_recorder_inside_records_each_step(tmp_path):
    recorder = RecordTransitions(EmbodiedEnv(scripted_tasks.contract(), backend="fake"), tmp_path)
    env = ActionChunks(recorder, 4)
    env.reset(seed=1)
    env.step(np.array(numbered(1, 4)))
    env.step_chunk(numbered(5, 2), epoch=env.unwrapped.epoch, first_step=5)
    env.close()
    run = read_run(recorder.path)
    assert [row["info"]["step_index"] for row in run.transitions()] == [1, 2, 3, 4, 5, 6]
    assert [row["action"] for row in run.transitions()] == [action.tolist() for action in numbered(1, 6)]


@pytest.mark.parametrize("call", ["step", "step_chunk"])
def test_a_chunk_before_reset_is_rejected(base, call):
    env = ActionChunks(base, 2)
    with pytest.raises(ResetNeededError):
        give(env, call)
    assert base.taken == []


@pytest.mark.parametrize("call", ["step", "step_chunk"])
def test_a_chunk_after_the_end_is_rejected(env, base, call):
    env.step_chunk(numbered(1, HORIZON), epoch=base.epoch, first_step=1)
    with pytest.raises(ResetNeededError):
        give(env, call)
    assert len(base.taken) == HORIZON


@pytest.mark.parametrize("call", ["step", "step_chunk"])
def test_a_chunk_after_a_reset_of_the_inner_environment_is_rejected(env, base, call):
    base.reset()
    with pytest.raises(ResetNeededError):
        give(env, call)
    assert base.taken == []


@pytest.mark.parametrize("call", ["step", "step_chunk"])
def test_a_chunk_after_a_failed_step_is_rejected(call):
    base = Base(task={"raise_at": 2})
    env = ActionChunks(base, 3)
    env.reset(seed=1)
    with pytest.raises(TaskError, match="the task has an error"):
        give(env, call)
    with pytest.raises(ResetNeededError):
        give(env, call)
    env.close()


def test_a_rejected_reset_keeps_the_running_episode(env, base):
    with pytest.raises(UsageError, match="unknown reset option 'nowhere'"):
        env.reset(options={"nowhere": 1.0})
    assert len(env.step_chunk(numbered(1, 2), epoch=base.epoch, first_step=1).transitions) == 2


def test_a_chunk_after_close_is_rejected(env):
    env.close()
    with pytest.raises(ClosedError):
        give(env, "step")


def test_a_chunk_does_not_continue_into_an_episode_started_by_an_inner_wrapper(base):
    env = ActionChunks(Autoreset(base), 4)
    env.reset(seed=1)
    for _ in range(3):
        env.step(np.zeros((4, 2)))
    with pytest.raises(ResetNeededError):
        env.step(np.zeros((4, 2)))
    assert len(base.taken) == HORIZON


def give(env, call):
    if call == "step":
        return env.step(np.zeros(env.action_space.shape))
    return env.step_chunk(numbered(1, 3), epoch=max(0, env.unwrapped.epoch), first_step=1)


@pytest.mark.parametrize("length", [0, -1, 2.0, None, "4"])
def test_an_invalid_length_is_rejected_with_its_value(base, length):
    with pytest.raises(UsageError, match=r"length=.*expected an integer >= 1"):
        ActionChunks(base, length)


def test_a_foreign_environment_is_rejected():
    with pytest.raises(UsageError, match="CartPoleEnv"):
        ActionChunks(gymnasium.make("CartPole-v1"), 2)


def test_an_unsupported_action_space_is_rejected(base):
    with pytest.raises(UsageError, match="expected a Box or a Dict of Boxes"):
        ActionChunks(DiscretizeAction(base, 3), 2)


def test_the_spec_contains_the_wrapper(tmp_path):
    env = ActionChunks(gymnasium.make("embodied_env/ArmReach-v0", backend="fake"), 3)
    again = gymnasium.make(env.spec)
    assert isinstance(again, ActionChunks)
    assert again.length == 3
    env.close()
    again.close()
