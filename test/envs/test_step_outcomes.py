"""Results of steps with any action, ends of episodes, and the published commands."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.codes import CODES, Quality, Severity
from embodied_env.errors import ClosedError, ResetNeededError, UsageError
from embodied_env.testing import Fault, ManualClock, SpyObserver

ZERO = np.zeros(6)
POSITION = "sensors.joints.fields.position"


def contract(*, task="Running", horizon_steps=200, kind="time_limit", joints_gap="hold", extra=None):
    changes = {
        "task": {"type": f"scripted_tasks:{task}"},
        "episode": {"horizon_steps": horizon_steps, "kind": kind},
        "sensors.joints.on_gap": joints_gap,
    }
    return changed_contract("arm_reach", {**changes, **(extra or {})})


@pytest.fixture
def make(close_later):
    def make_env(the_contract=None, **options):
        return close_later(embodied_env.make(the_contract or contract(), backend="fake", **options))

    return make_env


def sent(env):
    return env.unwrapped._stepper._backend.sent


class Tensor:
    """A stand-in for a torch tensor that requires grad."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")

    def detach(self):
        return self

    def cpu(self):
        return np.array(self.values, dtype=np.float32)


class Hostile:
    """Raises on every access."""

    def __array__(self, dtype=None, copy=None):
        raise MemoryError("no array for you")


REFUSED = {
    "nan": (np.full(6, np.nan), "form.nan"),
    "infinity": (np.full(6, np.inf), "form.nan"),
    "one nan among numbers": ([0.0, 0.0, 0.0, 0.0, 0.0, np.nan], "form.nan"),
    "a wrong shape": (np.zeros(5), "form.shape"),
    "a batch": (np.zeros((1, 6)), "form.shape"),
    "a scalar": (0.0, "form.shape"),
    "a ragged list": ([[0.0], [0.0, 1.0]], "form.type"),
    "a string": ("forward", "form.type"),
    "None": (None, "form.type"),
    "booleans": (np.zeros(6, dtype=bool), "form.type"),
    "complex numbers": (np.zeros(6, dtype=complex), "form.type"),
    "objects": (np.array([object()] * 6), "form.type"),
    "an object that raises": (Hostile(), "form.type"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_malformed_action_is_a_hold_with_its_reason(make, name):
    action, code = REFUSED[name]
    env = make()
    env.reset(seed=1)
    _, _, terminated, truncated, info = env.step(action)
    assert info["safety"]["disposition"] == Severity.HOLD
    assert CODES[code] in info["safety"]["code"]
    assert info["action_clipped"] is True
    assert (terminated, truncated) == (False, False)


@pytest.mark.parametrize("name", REFUSED)
def test_a_malformed_action_publishes_finite_braking(make, name):
    action, _ = REFUSED[name]
    env = make()
    env.reset(seed=1)
    env.step(np.full(6, 0.1))
    before = sent(env)[-1]
    env.step(action)
    after = sent(env)[-1]
    assert np.isfinite(after.values).all()
    assert (np.abs(after.report.velocity_si) <= np.abs(before.report.velocity_si)).all()


@pytest.mark.parametrize(
    "action",
    [[0.1] * 6, (0.1,) * 6, np.full(6, 0.1, dtype=np.float16), np.full(6, 0.1, dtype=np.float32), Tensor([0.1] * 6)],
    ids=["list", "tuple", "float16", "float32", "tensor"],
)
def test_any_six_real_numbers_are_accepted(make, action):
    env = make()
    env.reset(seed=1)
    *_, info = env.step(action)
    assert info["safety"]["disposition"] == Severity.PASS
    np.testing.assert_allclose(info["action"]["requested"], 0.1, rtol=1e-3)


def test_integers_are_accepted(make):
    env = make()
    env.reset(seed=1)
    assert env.step(np.zeros(6, dtype=np.int64))[-1]["safety"]["disposition"] == Severity.PASS


def test_a_torch_tensor_in_a_graph_is_accepted(make):
    torch = pytest.importorskip("torch", reason="needs the extra train")
    env = make()
    env.reset(seed=1)
    *_, info = env.step(torch.zeros(6, requires_grad=True))
    assert info["safety"]["disposition"] == Severity.PASS


def test_a_huge_finite_action_is_clipped_to_the_space_and_limited(make):
    env = make()
    env.reset(seed=1)
    *_, info = env.step(np.full(6, 1e308))
    assert CODES["box.clip"] in info["safety"]["code"]
    assert np.all(np.abs(info["action"]["applied"]) <= 1.0)
    np.testing.assert_array_equal(info["action"]["requested"], 1e308)


def test_the_callers_array_is_never_modified(make):
    env = make()
    env.reset(seed=1)
    action = np.array([5.0, -5.0, np.nan, 0.0, 1e308, -1.0])
    action.setflags(write=False)
    kept = action.tobytes()
    env.step(action)
    assert action.tobytes() == kept


def test_three_malformed_actions_in_a_row_end_the_episode(make):
    env = make()
    env.reset(seed=1)
    results = [env.step(np.full(6, np.nan)) for _ in range(3)]
    assert [r[3] for r in results] == [False, False, True]
    assert results[-1][-1]["end_reason"] == "safety_stop:form.repeated"


def test_a_valid_action_resets_the_count_of_malformed_ones(make):
    env = make()
    env.reset(seed=1)
    for action in (np.nan, np.nan, 0.0, np.nan, np.nan):
        *_, truncated, _ = env.step(np.full(6, action))
    assert truncated is False


def test_a_stop_is_cleared_by_reset(make):
    env = make()
    env.reset(seed=1)
    for _ in range(3):
        env.step(np.full(6, np.nan))
    env.reset(seed=1)
    assert env.step(ZERO)[-1]["safety"]["latched"] is False


def test_a_step_before_reset_publishes_nothing(make):
    env = make()
    with pytest.raises(ResetNeededError, match="call reset"):
        env.step(ZERO)
    assert sent(env) == []


def test_a_step_after_the_end_publishes_nothing(make):
    env = make(contract(horizon_steps=1))
    env.reset(seed=1)
    env.step(ZERO)
    count = len(sent(env))
    with pytest.raises(ResetNeededError):
        env.step(ZERO)
    assert len(sent(env)) == count


def test_a_step_after_close_publishes_nothing(make):
    env = make()
    env.reset(seed=1)
    env.close()
    count = len(sent(env))
    with pytest.raises(ClosedError):
        env.step(ZERO)
    assert len(sent(env)) == count


def test_reset_after_close_is_rejected(make):
    env = make()
    env.close()
    with pytest.raises(ClosedError, match="after close"):
        env.reset()


@pytest.mark.parametrize(
    ("task", "terminated", "truncated", "reason"),
    [
        ("Succeeding", True, False, "success"),
        ("Failing", True, False, "failure:fell"),
        ("Leaving", False, True, "out_of_bounds:tip"),
        ("Everything", True, False, "success"),
    ],
)
def test_the_verdict_of_the_task_ends_the_episode(make, task, terminated, truncated, reason):
    env = make(contract(task=task))
    env.reset(seed=1)
    result = env.step(ZERO)
    assert (result[2], result[3], result[4]["end_reason"]) == (terminated, truncated, reason)
    assert result[4]["is_success"] is (reason == "success")


def test_all_end_reasons_are_kept_in_order_of_precedence(make):
    env = make(contract(task="Everything", horizon_steps=1))
    env.reset(seed=1)
    env.step(ZERO)
    reasons = env.unwrapped.last_transition.end_reasons
    assert reasons == ("success", "failure:fell", "out_of_bounds:tip", "time_limit")


def test_a_time_limit_truncates(make):
    env = make(contract(horizon_steps=2))
    env.reset(seed=1)
    results = [env.step(ZERO) for _ in range(2)]
    assert [(r[2], r[3], r[4]["end_reason"]) for r in results] == [(False, False, ""), (False, True, "time_limit")]


def test_a_finite_horizon_terminates_and_includes_the_remaining_time(make):
    env = make(contract(horizon_steps=2, kind="finite_horizon"))
    first, _ = env.reset(seed=1)
    results = [env.step(ZERO) for _ in range(2)]
    assert [float(o["time_remaining"][0]) for o in (first, results[0][0], results[1][0])] == [1.0, 0.5, 0.0]
    assert (results[1][2], results[1][3], results[1][4]["end_reason"]) == (True, False, "horizon")


def test_success_has_precedence_over_a_refused_command(make):
    env = make(contract(task="Succeeding"), faults=[Fault(kind="drop", step=1, sensor="joints")])
    env.reset(seed=1)
    assert env.step(ZERO)[-1]["end_reason"] == "success"


GAPS = {"drop": Quality.STALE, "nan": Quality.INVALID, "stale": Quality.STALE, "future": Quality.FUTURE}


@pytest.mark.parametrize("kind", GAPS)
def test_a_gap_holds_the_last_valid_reading_with_its_age_mask_and_quality(make, kind):
    env = make(faults=[Fault(kind=kind, step=2, sensor="joints")])
    env.reset(seed=1)
    before = env.step(np.full(6, 0.1))[0]
    after, *_, info = env.step(np.full(6, 0.1))
    assert after in env.observation_space
    np.testing.assert_array_equal(after["joints_position"], before["joints_position"])
    assert after["joints_valid"] == 0
    assert info["sensors"]["joints"]["quality"] == GAPS[kind]
    assert info["sensors"]["joints"]["age_s"] == pytest.approx(0.05)


@pytest.mark.parametrize("kind", GAPS)
def test_gap_ends_the_episode_if_the_contract_stops_on_gaps(make, kind):
    env = make(contract(joints_gap="stop"), faults=[Fault(kind=kind, step=2, sensor="joints")])
    env.reset(seed=1)
    env.step(ZERO)
    *_, terminated, truncated, info = env.step(ZERO)
    assert (terminated, truncated, info["end_reason"]) == (False, True, "sensor_gap:joints")


def test_a_recovered_sensor_is_valid_again(make):
    env = make(faults=[Fault(kind="drop", step=1, sensor="joints")])
    env.reset(seed=1)
    env.step(ZERO)
    observation, *_, info = env.step(ZERO)
    assert observation["joints_valid"] == 1
    assert info["sensors"]["joints"]["quality"] == Quality.OK


def test_a_reading_outside_its_declared_range_is_returned_unchanged(make):
    narrow = contract(extra={f"{POSITION}.low": -0.001, f"{POSITION}.high": 0.001})
    env = make(narrow)
    env.reset(seed=1)
    observation, *_, info = env.step(np.full(6, 0.1))
    assert (observation["joints_position"] > 0.001).all()
    assert info["sensors"]["joints"]["quality"] == Quality.OUT_OF_RANGE


def test_a_refused_command_is_a_lost_backend(make):
    env = make(faults=[Fault(kind="refuse", step=2)])
    env.reset(seed=1)
    env.step(ZERO)
    observation, reward, terminated, truncated, info = env.step(ZERO)
    assert (terminated, truncated, info["end_reason"]) == (False, True, "backend_lost:refused")
    assert observation in env.observation_space
    assert reward == 0.0


def test_a_world_past_its_deadline_is_lost_without_waiting(make):
    env = make(clock=ManualClock(), faults=[Fault(kind="delay", step=1, delay_s=600.0)], step_timeout_s=500.0)
    env.reset(seed=1)
    started = time.monotonic()
    *_, truncated, info = env.step(ZERO)
    assert (truncated, info["end_reason"]) == (True, "backend_lost:timeout")
    assert time.monotonic() - started < 60.0


def test_reset_restarts_a_lost_backend(make):
    env = make(faults=[Fault(kind="refuse", step=1)])
    env.reset(seed=1)
    env.step(ZERO)
    observation, _ = env.reset(seed=1)
    assert observation in env.observation_space


def test_a_slow_world_appears_only_in_the_world_stage(make):
    clock = ManualClock()
    env = make(clock=clock, faults=[Fault(kind="delay", step=1, delay_s=0.25)])
    env.reset(seed=1)
    latency = env.step(ZERO)[-1]["latency"]
    stages = ("handoff_s", "inference_s", "gate_s", "publish_s", "obs_to_command_s", "world_s")
    assert {stage: latency[stage] for stage in stages} == {**dict.fromkeys(stages, 0.0), "world_s": 0.25}


def test_a_slow_policy_appears_only_in_inference_and_its_sum(make):
    clock = ManualClock()
    env = make(clock=clock)
    env.reset(seed=1)
    clock.advance_ns(30_000_000)
    env.unwrapped.mark("policy")
    clock.advance_ns(5_000_000)
    latency = env.step(ZERO)[-1]["latency"]
    assert latency["policy_s"] == 0.03
    assert latency["inference_s"] == latency["obs_to_command_s"] == 0.035
    assert latency["handoff_s"] == latency["gate_s"] == latency["publish_s"] == latency["world_s"] == 0.0


def test_without_a_mark_the_policy_stage_is_an_upper_bound(make):
    env = make(clock=ManualClock())
    env.reset(seed=1)
    latency = env.step(ZERO)[-1]["latency"]
    assert latency["quality"]["policy_s"] == Quality.UNMARKED


def test_an_unknown_mark_is_rejected(make):
    env = make()
    with pytest.raises(UsageError, match="expected 'policy'"):
        env.unwrapped.mark("thinking")


def test_a_long_pause_between_lockstep_steps_changes_nothing(make):
    clock = ManualClock()
    env = make(clock=clock)
    rows = []
    for pause_ns in (0, 2_000_000_000):
        env.reset(seed=1)
        env.step(np.full(6, 0.1))
        clock.advance_ns(pause_ns)
        observation, *_, info = env.step(np.full(6, 0.1))
        rows.append((observation["joints_position"].tobytes(), info["safety"]["dt_s"], info["safety"]["disposition"]))
    assert rows[0] == rows[1]


def test_the_watchdog_of_a_free_running_world_ends_with_the_environment(make):
    env = make(free_running=True)
    env.reset(seed=1)
    env.step(ZERO)
    names = [thread.name for thread in threading.enumerate()]
    env.close()
    assert "embodied_env watchdog" in names
    assert "embodied_env watchdog" not in [thread.name for thread in threading.enumerate()]


def test_a_lockstep_world_has_no_watchdog(make):
    env = make()
    env.reset(seed=1)
    assert "embodied_env watchdog" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"goal": [0, 0, 0]}, "'goal' .expected one of: target"),
        ({"target": [0, 0]}, "expected shape"),
        ({"target": [9, 9, 9]}, "from"),
        ({"target": [np.nan] * 3}, "from"),
        ({"target": "here"}, "from"),
    ],
)
def test_an_invalid_reset_option_is_rejected_by_name_and_value(make, options, problem):
    env = make()
    with pytest.raises(UsageError, match=problem):
        env.reset(options=options)


def test_a_reset_option_is_honoured_and_reported(make):
    env = make()
    target = [-0.5, 0.0, 0.2]
    observation, info = env.reset(seed=1, options={"target": target})
    assert info["reset"]["sampled"]["target"].tolist() == target
    assert observation["target_position"].tolist() == target


def test_evaluator_only_reset_values_are_not_in_info(make):
    hidden = contract(extra={"reset_options.target.visibility": "evaluator"})
    assert "target" not in make(hidden).reset(seed=1)[1]["reset"]["sampled"]
    assert "target" in make(hidden, evaluator_info=True).reset(seed=1)[1]["reset"]["sampled"]


def test_the_worlds_seed_is_drawn_from_the_seed_of_the_environment(make):
    seeds = []
    for _ in range(2):
        env = make()
        seeds.append([env.reset(seed=3)[1]["reset"]["seed_applied"], env.reset()[1]["reset"]["seed_applied"]])
    assert seeds[0] == seeds[1]
    assert seeds[0][0] != seeds[0][1]


def test_episodes_are_counted_from_a_seeded_reset(make):
    env = make()
    counts = [env.reset(seed=seed)[1]["episode_index"] for seed in (1, None, None, 1, None)]
    assert counts == [0, 1, 2, 0, 1]


def test_evaluator_readings_are_not_in_the_observation_space(make):
    env = make()
    observation, info = env.reset(seed=1)
    assert not [key for key in (*observation, *env.observation_space) if "true_distance" in key]
    assert "evaluator" not in info
    assert "true_distance" not in info["sensors"]


def test_evaluator_info_contains_evaluator_readings(make):
    env = make(evaluator_info=True)
    env.reset(seed=1)
    info = env.step(ZERO)[-1]
    assert info["evaluator"]["true_distance"]["range"].dtype == np.float32


def test_observers_receive_each_transition_in_order(make):
    spy = SpyObserver()
    env = make(observers=[spy])
    env.reset(seed=1)
    for _ in range(3):
        env.step(ZERO)
    assert [transition.info["step_index"] for transition in spy.seen] == [1, 2, 3]


def test_modifying_returned_values_does_not_modify_what_observers_keep(make):
    env = make(observers=[SpyObserver()])
    env.reset(seed=1)
    observation, *_, info = env.step(ZERO)
    observation["tcp_position"][:] = 9.0
    info["action"]["applied"][:] = 9.0
    kept = env.unwrapped.last_transition
    assert not (kept.observation["tcp_position"] == 9.0).any()
    assert not (kept.info["action"]["applied"] == 9.0).any()


def test_two_environments_of_one_contract_have_different_seeds(make):
    the_contract = contract()
    a, b = make(the_contract), make(the_contract)
    a.action_space.seed(1)
    b.action_space.seed(1)
    assert a.action_space.sample().tolist() == b.action_space.sample().tolist()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"backend": "mujocco"}, "unknown backend 'mujocco' \\(expected one of: fake, mujoco, mujoco_ros"),
        ({"render_mode": "human"}, "render_mode for .*: 'human'"),
        ({"pacing": "fast"}, "pacing for mujoco: 'fast' .*None, 'lockstep', 'realtime'"),
        ({"clock": "sundial"}, "unknown clock='sundial' .expected one of: steady, virtual"),
        (
            {"backend": "mujoco", "namespace": "/a"},
            "unexpected keyword argument 'namespace' \\(expected one of: step_timeout_s",
        ),
        ({"backend": "fake", "fault": []}, "'fault' .*faults, free_running"),
    ],
)
def test_an_invalid_option_of_make_is_rejected_by_name_and_value(options, problem):
    with pytest.raises(UsageError, match=problem):
        embodied_env.make("arm_reach", **options)
