import gymnasium
import numpy as np
import pytest
import scripted_tasks
from gymnasium.wrappers import Autoreset, DiscretizeAction, RescaleAction, TimeLimit

from embodied_env.core.code_types import Severity
from embodied_env.envs.action_chunks import ActionChunks
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import ClosedError, ResetNeededError, TaskError, UsageError
from embodied_env.record import RecordTransitions, read_run
from embodied_env.timing.clock import ManualClock

HORIZON = 10
PUSH = 0.1


class Base(EmbodiedEnv):
    """Stores its steps as (step, first component of the action)."""

    def __init__(self, **options):
        super().__init__(scripted_tasks.contract(**options), backend="fake", clock=ManualClock())
        self.taken = []

    def step(self, action):
        returned = super().step(action)
        self.taken.append((self.step_index, 0.0 if isinstance(action, dict) else np.ravel(action)[0]))
        return returned


@pytest.fixture
def base(close_later):
    return close_later(Base())


@pytest.fixture
def env(base):
    chunks = ActionChunks(base, 4)
    chunks.reset(seed=1)
    return chunks


def numbered(first, count):
    """Return actions of two joints that encode their intended step as PUSH per step."""
    return [np.full(2, PUSH * step / HORIZON) for step in range(first, first + count)]


def give(env):
    return env.step(np.zeros(env.action_space.shape))


def assert_malformed(info):
    assert (info["chunk_result"]["executed"], info["chunk_result"]["malformed"]) == (1, True)
    assert info["safety"]["disposition"] == Severity.HOLD


def test_a_chunk_is_executed_step_by_step(env, base):
    observation, reward, terminated, truncated, info = env.step(np.array(numbered(1, 4)))
    assert [(round(value * HORIZON / PUSH), step) for step, value in base.taken] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert observation in env.observation_space
    assert (reward, terminated, truncated, info["step_index"]) == (1.0 + 2.0 + 3.0 + 4.0, False, False, 4)
    chunk = info["chunk_result"]
    assert (chunk["executed"], chunk["malformed"], chunk["rewards"].tolist()) == (4, False, [1.0, 2.0, 3.0, 4.0])


def test_the_action_of_a_learner_is_a_chunk_of_environment_actions(env, base):
    assert env.action_space.shape == (4, 2)
    assert (env.action_space.low == base.action_space.low).all()
    assert (env.action_space.high == base.action_space.high).all()


def test_execution_stops_when_an_inner_wrapper_ends_the_episode(base):
    env = ActionChunks(TimeLimit(base, 2), 4)
    env.reset(seed=1)
    assert env.step(numbered(1, 4))[4]["chunk_result"]["executed"] == 2
    with pytest.raises(ResetNeededError):
        env.step(numbered(3, 4))
    assert base.step_index == 2


def test_a_malformed_action_brakes_for_its_step_only(tmp_path):
    recorder = RecordTransitions(EmbodiedEnv(scripted_tasks.contract(), backend="fake"), tmp_path)
    actions = numbered(1, 3)
    actions[1] = np.full(2, np.nan)
    with ActionChunks(recorder, 3) as env:
        env.reset(seed=1)
        env.step(actions)
    dispositions = [row["info"]["safety"]["disposition"] for row in read_run(recorder.path).transitions()]
    assert dispositions == [Severity.PASS, Severity.HOLD, Severity.PASS]


def test_each_step_is_recorded_and_each_chunk_in_its_first_step(tmp_path):
    recorder = RecordTransitions(EmbodiedEnv(scripted_tasks.contract(), backend="fake"), tmp_path)
    with ActionChunks(recorder, 3) as env:
        for _ in range(2):
            env.reset(seed=1)
            env.step(numbered(1, 3))
            env.step(np.array(numbered(4, 3)))
    run = read_run(recorder.path)
    rows = list(run.transitions())
    assert [row["info"]["step_index"] for row in rows] == [1, 2, 3, 4, 5, 6] * 2
    assert [row["action"] for row in rows] == [action.tolist() for action in numbered(1, 6)] * 2
    found = [(row["info"]["step_index"], row["inner"]["external_inputs"].get("chunk")) for row in rows]
    chunks = [(step, chunk["id"], chunk["born"]) for step, chunk in found if chunk is not None]
    assert chunks == [(1, 0, 0), (4, 1, 3)] * 2
    np.testing.assert_array_equal(run.array(found[3][1]["actions"]), numbered(4, 3))


@pytest.mark.parametrize(
    "chunk",
    [
        *(np.full((3, 2), PUSH), np.full((5, 2), PUSH), np.full(2, PUSH), np.array(0.1)),
        *([], None, PUSH, "go", object(), iter([]), {}, {"arm": np.zeros((3, 2))}, {"a": [1], "b": [1, 2]}),
    ],
)
def test_a_malformed_chunk_brakes_for_one_step(env, base, chunk):
    *_, info = env.step(chunk)
    assert_malformed(info)
    assert info["chunk_result"]["rewards"].shape == (4,)
    assert base.step_index == 1


def test_a_malformed_chunk_brakes_through_wrappers_that_transform_actions(base):
    env = ActionChunks(RescaleAction(base, np.float64(-2), np.float64(2)), 4)
    env.reset(seed=1)
    assert env.step("go")[-1]["safety"]["disposition"] == Severity.HOLD


def test_the_reward_of_a_skipped_step_is_nan(env):
    for _ in range(2):
        give(env)
    _, reward, terminated, truncated, info = give(env)
    assert (reward, terminated, truncated) == (9.0 + 10.0, False, True)
    assert info["chunk_result"]["executed"] == 2
    np.testing.assert_array_equal(info["chunk_result"]["rewards"], [9.0, 10.0, np.nan, np.nan])
    assert info["end_reason"] == "time_limit"


def test_with_several_actuators_a_chunk_is_a_dict_of_chunks(close_later):
    arm = scripted_tasks.document()["actuators"]["arm"]
    shoulder, elbow = arm["joints"].items()
    arms = {"arm": arm | {"joints": dict([shoulder])}, "hand": arm | {"topic": "h", "joints": dict([elbow])}}
    env = close_later(ActionChunks(Base(actuators=arms), 3))
    env.reset(seed=1)
    assert {name: box.shape for name, box in env.action_space.items()} == {"arm": (3, 1), "hand": (3, 1)}
    result = env.step(env.action_space.sample())[-1]["chunk_result"]
    assert (result["executed"], result["malformed"]) == (3, False)
    for lengths in ((2, 2), (3, 2)):
        assert_malformed(env.step(dict(zip(arms, (np.zeros((each, 1)) for each in lengths), strict=True)))[-1])


def test_vector_environments_stack_chunks(close_later):
    envs = close_later(gymnasium.vector.SyncVectorEnv([lambda: ActionChunks(Base(episode__horizon_steps=6), 4)] * 2))
    envs.reset(seed=1)
    *_, infos = envs.step(envs.action_space.sample())
    assert infos["chunk_result"]["rewards"].shape == (2, 4)
    assert infos["chunk_result"]["executed"].tolist() == [4, 4]
    *_, truncated, infos = envs.step(envs.action_space.sample())
    assert truncated.all()
    assert infos["chunk_result"]["executed"].tolist() == [2, 2]


def end(env):
    for _ in range(3):
        give(env)


@pytest.mark.parametrize(
    ("prepare", "error", "steps"),
    [
        pytest.param(lambda env: env.unwrapped.reset(), ResetNeededError, 0, id="reset of the inner environment"),
        pytest.param(lambda env: env.close(), ClosedError, 0, id="close"),
        pytest.param(end, ResetNeededError, HORIZON, id="end"),
    ],
)
def test_a_chunk_outside_its_episode_is_rejected(env, base, prepare, error, steps):
    prepare(env)
    with pytest.raises(error):
        give(env)
    assert len(base.taken) == steps


def test_a_chunk_before_the_reset_and_after_a_failed_step_is_rejected(close_later):
    env = close_later(ActionChunks(Base(task={"raise_at": 2}), 3))
    with pytest.raises(ResetNeededError):
        give(env)
    env.reset(seed=1)
    with pytest.raises(TaskError, match="the task has an error"):
        give(env)
    with pytest.raises(ResetNeededError):
        give(env)


def test_a_chunk_does_not_continue_into_an_episode_started_by_an_inner_wrapper(base):
    env = ActionChunks(Autoreset(base), 4)
    env.reset(seed=1)
    end(env)
    with pytest.raises(ResetNeededError):
        give(env)
    assert len(base.taken) == HORIZON


@pytest.mark.parametrize("length", [0, -1, 2.0, None, "4"])
def test_an_invalid_length_is_rejected_with_its_value(base, length):
    with pytest.raises(UsageError, match=r"length=.*expected an integer >= 1"):
        ActionChunks(base, length)


def test_an_unsupported_environment_is_rejected(base):
    with pytest.raises(UsageError, match="CartPoleEnv"):
        ActionChunks(gymnasium.make("CartPole-v1"), 2)
    with pytest.raises(UsageError, match="expected a Box or a Dict of Boxes"):
        ActionChunks(DiscretizeAction(base, 3), 2)


def test_the_spec_contains_the_wrapper(close_later):
    env = close_later(ActionChunks(gymnasium.make("embodied_env/ArmReach-v0", backend="fake"), 3))
    again = close_later(gymnasium.make(env.spec))
    assert isinstance(again, ActionChunks)
    assert again.length == 3
