"""The preview of a chunk as a trajectory is accounted, audited and replayed."""

import gymnasium
import numpy as np
import pytest
from evidence import assert_replays, assert_sound
from shipped_contracts import NO_CHANGES, arm_of

from embodied_env.core.policy import NoAction, as_policy
from embodied_env.envs.action_chunks import ActionChunks
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import ClosedError, ContractError, UsageError
from embodied_env.policies.chunk_execution import ChunkRunner
from embodied_env.record import RecordTransitions
from embodied_env.safety.publishing.trajectory import Trajectories
from embodied_env.timing.clock import ManualClock

STEPS = 4
TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
CHUNK = [np.full(6, 0.01 * k) for k in range(1, 8)]


def contract_of(more=NO_CHANGES, **actuator):
    """Return the contract of the shipped arm, which executes trajectories, with changes."""
    return arm_of({"type": TRAJECTORY, "trajectory_steps": STEPS, **actuator}, **more)


def following(contract=None):
    """Return an environment in a free-running world whose controller executes trajectories."""
    env = EmbodiedEnv(contract or contract_of(), backend="fake", free_running=True, clock=ManualClock())
    env.stepper._arbiter.publishing = Trajectories(env.stepper.gate)
    return env


@pytest.fixture
def env(close_later):
    env = close_later(following())
    env.reset(seed=1)
    return env


def account(info):
    return info["annotations"]["trajectory"]


def test_the_actions_after_that_of_the_step_are_in_the_trajectory(env):
    env.preview(CHUNK)
    info = env.step(CHUNK[0])[4]
    found = account(info)
    assert (found["previewed"], found["refused"]) == (STEPS, False)
    assert found["points"][1] == list(info["action"]["applied_si"].values())
    assert found["points"][-1] == found["points"][-2]
    assert found["duration_s"] == pytest.approx((len(found["points"]) - 2) * 0.05)
    (point,) = {tuple(p.positions) for p in env.stepper._arbiter.last.trajectory.points[2:3]}
    assert list(point) == found["points"][2]


def test_a_step_without_a_preview_ends_at_rest(env):
    for _ in range(3):
        found = account(env.step(np.full(6, 0.3))[4])
    assert found["previewed"] == 0
    assert len(found["points"]) > 2
    assert found["points"][-1] == found["points"][-2]


@pytest.mark.parametrize(
    ("preview", "action", "previewed"),
    [
        (CHUNK, CHUNK[0], STEPS),
        ([*CHUNK[:3], np.full(6, np.nan), *CHUNK[3:]], CHUNK[0], 2),
        (CHUNK, NoAction("late"), 0),
        ([NoAction("late"), *CHUNK], NoAction("late"), 0),
    ],
    ids=["whole", "malformed action", "no action", "no action in the preview"],
)
def test_a_preview_is_copied_for_one_step_up_to_what_is_no_action(env, preview, action, previewed):
    given = [each.copy() if isinstance(each, np.ndarray) else each for each in preview]
    env.preview(given)
    for each in given:
        if isinstance(each, np.ndarray):
            each[:] = 9.0
    found = account(env.step(action)[4])
    assert (found["previewed"], np.abs(found["points"]).max() < 1.0) == (previewed, True)
    assert account(env.step(CHUNK[1])[4])["previewed"] == 0


def test_a_wrapper_that_changes_actions_loses_the_preview_with_a_warning(env):
    wrapped = gymnasium.wrappers.TransformAction(env, lambda action: action / 2, env.action_space)
    env.preview(CHUNK)
    with pytest.warns(UserWarning, match="preview ignored: its first action is not that of the step"):
        found = account(wrapped.step(CHUNK[0])[4])
    assert (found["previewed"], found["refused"]) == (0, True)
    assert account(wrapped.step(CHUNK[0])[4])["refused"] is False


def test_chunks_of_a_learner_are_previewed(env):
    chunks = ActionChunks(env, len(CHUNK))
    chunks.reset(seed=1)
    seen = []
    advance = env.stepper.backend.advance
    env.stepper.backend.advance = lambda *to: (
        advance(*to),
        seen.append(env.stepper._arbiter.last.trajectory.previewed),
    )
    chunks.step(np.array(CHUNK))
    assert seen == [STEPS, STEPS, STEPS, 3, 2, 1, 0]


@pytest.mark.parametrize("chunks", ["wait", "replace"])
def test_the_runners_preview_the_rest_of_their_chunk(close_later, chunks):
    runner = close_later(ChunkRunner(as_policy(lambda _: np.array(CHUNK)), chunks))
    runner.reset(seed=0, episode_index=0)
    assert np.array_equal(runner({}), CHUNK[0])
    assert np.array_equal(runner.upcoming(2), CHUNK[1:3])
    assert np.array_equal(runner.upcoming(50), CHUNK[1:])


def test_in_lockstep_a_preview_has_no_effect(close_later):
    env = close_later(EmbodiedEnv(contract_of(), backend="fake"))
    env.reset(seed=1)
    env.preview(CHUNK)
    assert "trajectory" not in env.step(CHUNK[0])[4].get("annotations", {})


def test_a_preview_that_is_no_sequence_or_outside_an_episode_is_refused(env):
    with pytest.raises(UsageError, match=r"invalid preview: 5 .expected a sequence of actions"):
        env.preview(5)
    env.abort_step()
    env.close()
    with pytest.raises(ClosedError, match="preview"):
        env.preview(CHUNK)


def test_a_run_has_a_clean_audit_and_replays_equal(tmp_path):
    contract = contract_of()
    env = RecordTransitions(following(contract), tmp_path)
    env.reset(seed=1)
    for k in range(12):
        chunk = [np.full(6, 0.3 * np.sin(0.5 * (k + i))) for i in range(6)]
        env.unwrapped.preview(chunk)
        env.unwrapped.stepper.clock.advance_ns(30_000_000 * (k % 3))
        env.step(chunk[0])
    env.close()
    assert_sound(env.path)
    assert_replays(env.path, contract=contract)


def test_the_key_is_part_of_the_fingerprint_only_where_it_is_declared():
    without = contract_of(trajectory_steps=None)
    assert without.trajectory_steps is None
    assert contract_of().trajectory_steps == STEPS
    assert len({without.fingerprint, contract_of().fingerprint, contract_of(trajectory_steps=0).fingerprint}) == 3


@pytest.mark.parametrize(
    ("actuator", "more", "problem"),
    [
        ({"trajectory_steps": -1}, {}, "-1 .expected at least 0"),
        ({"trajectory_steps": 51}, {}, "51 .expected at most 50"),
        ({"type": "std_msgs/msg/Float64MultiArray"}, {}, f"expected only with type: {TRAJECTORY}"),
        ({"setpoint_rate_hz": 200}, {}, "setpoint_rate_hz is set too .expected one of the two"),
        ({}, {"safety.mode": "monitor"}, "safety.mode: monitor .expected enforce"),
        ({}, {"actuators.arm.joints.j1.deceleration": 0.1}, "control periods of braking .expected at most 200"),
    ],
)
def test_a_trajectory_that_cannot_be_sent_is_an_error(actuator, more, problem):
    with pytest.raises(ContractError, match=problem):
        contract_of(more, **actuator)
