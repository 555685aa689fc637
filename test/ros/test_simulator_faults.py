"""Habits of simulators, seen from the environment: what is a fault ends the episode, and what is normal does not."""

from __future__ import annotations

import dataclasses
import itertools
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from small_simulator import Habits, small_simulator

import embodied_env
from embodied_env.errors import BackendNotReadyError

pytestmark = pytest.mark.ros

ARM = embodied_env.load_contract("arm_reach")
PERIOD_NS = ARM.control_period_ns
PROFILES = {
    "exact": {
        "world": "toy",
        "control": "embedded",
        "step_s": 0.05,
        "settle_steps": 1,
        "reset": "world",
        "echo": {"arm": "arm_controller/echo"},
        "sensor_grace_s": 0.3,
    },
    "gated": {"world": "toy", "control": "classic", "step_s": 0.005, "reset": "world", "sensor_grace_s": 0.3},
}


@pytest.fixture(scope="module")
def stack(lasting_domain):
    """One toy simulator, and an environment of each kind over it."""
    with lasting_domain() as domain_id, small_simulator(ARM, domain_id) as small:
        made = {}
        for name, profile in PROFILES.items():
            contract = dataclasses.replace(ARM, backends={"gazebo": profile})
            made[name] = embodied_env.make(
                contract, backend="gazebo", domain_id=domain_id, step_timeout_s=0.6, reset_timeout_s=3.0
            )
            made[name].reset(seed=0)
        yield small, made
        for env in made.values():
            env.close()


@pytest.fixture
def small(stack):
    """The toy simulator, without bad habits."""
    small = stack[0]
    small.habits, small.is_running = Habits(), False
    yield small
    small.habits, small.is_running = Habits(), False


@pytest.fixture
def exact(stack, small):
    """An environment in lockstep, just reset."""
    env = stack[1]["exact"]
    env.reset(seed=1)
    return env


@pytest.fixture
def gated(stack, small):
    """One over a simulator without steps."""
    return stack[1]["gated"]


def end_of(env):
    *_, terminated, truncated, info = env.step(np.zeros(6))
    assert truncated is bool(info["end_reason"])
    assert terminated is False
    return info["end_reason"]


@pytest.mark.parametrize(
    ("habit", "why"),
    [
        pytest.param({"loses_reply": True}, "reply_lost", marks=pytest.mark.long),
        ({"stops_at": 4, "loses_reply": True}, "clock_stopped"),
        ({"rewinds": True}, "clock_rewound"),
        ({"extra_ticks": 20_000}, "extra_steps"),
        ({"drops": {"tcp"}}, "sensor_late"),
        ({"is_deaf": True}, "command_unheard"),
        pytest.param({"refuses": "no"}, "refused", marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_ends_the_episode_as_truncated_under_its_own_name(exact, small, habit, why):
    assert end_of(exact) == ""
    small.habits = Habits(**habit)
    assert end_of(exact) == f"backend_lost:{why}"


def test_a_clock_that_jumps_by_100_s_between_two_steps_ends_the_episode_and_no_command_leaves(exact, small):
    sent = len(small.commands)
    small.now_ns += 100_000_000_000
    time.sleep(0.03)
    assert end_of(exact) == "backend_lost:extra_steps"
    time.sleep(0.03)
    assert len(small.commands) == sent


def test_a_clock_that_goes_back_between_two_steps_ends_the_episode_and_no_command_leaves(exact, small):
    sent = len(small.commands)
    small.now_ns = 0
    time.sleep(0.03)
    assert end_of(exact) == "backend_lost:clock_rewound"
    time.sleep(0.03)
    assert len(small.commands) == sent


def test_a_reply_before_the_end_is_waited_out(exact, small):
    small.habits.early_reply_s = 0.03
    assert end_of(exact) == ""
    assert exact.unwrapped.last_transition.snapshot.now_ns == small.now_ns


def test_a_sensor_that_is_late_is_waited_for(exact, small):
    small.habits.late = {"tcp": 0.1}
    *_, info = exact.step(np.zeros(6))
    assert (info["end_reason"], info["sensors"]["tcp"]["age_s"]) == ("", 0.0)


def test_an_old_stamp_is_counted_and_never_taken_for_fresh(exact, small):
    small.habits.old_after = {"tcp"}
    for _ in range(3):
        *_, info = exact.step(np.zeros(6))
    counted = info["sensors"]["tcp"]["reordered"]
    assert counted > 0
    assert (info["end_reason"], info["sensors"]["tcp"]["age_s"]) == ("", 0.0)


def test_sensors_that_are_silent_from_a_reset_to_the_first_step_are_normal(exact, small):
    small.habits.is_silent_until_step = True
    exact.reset(seed=2)
    assert end_of(exact) == ""


def test_a_clock_that_repeats_itself_while_the_agent_thinks_is_normal(exact, small):
    time.sleep(0.2)
    assert end_of(exact) == ""


def test_what_is_commanded_is_repeated_before_the_step_and_acts_in_it(exact, small):
    observation, *_ = exact.step(np.full(6, 0.3))
    np.testing.assert_array_equal(observation["joints_position"], small.commands[-1])


def test_a_gated_episode_goes_on_from_where_the_clock_really_is(gated, small):
    assert not gated.unwrapped.capabilities.exact_step
    gated.reset(seed=1)
    times_ns = [gated.unwrapped.last_reset.now_ns]
    for _ in range(3):
        assert end_of(gated) == ""
        times_ns.append(gated.unwrapped.last_transition.snapshot.now_ns)
    assert times_ns[-1] == small.now_ns
    assert all(after - before >= PERIOD_NS for before, after in itertools.pairwise(times_ns))
    assert gated.unwrapped.last_transition.report.dt_s == ARM.control_period_s
    assert not small.is_running


def test_a_world_whose_clock_a_reset_rewinds_begins_anew(gated, small):
    gated.reset(seed=1)
    small.tick(1000)
    gated.reset(seed=1)
    assert gated.unwrapped.last_reset.now_ns < 5_000_000_000
    assert end_of(gated) == ""


def test_a_gated_world_that_stands_after_it_was_resumed_ends_the_episode(gated, small):
    gated.reset(seed=1)
    small.habits.stops_at = 0
    assert end_of(gated) == "backend_lost:clock_stopped"


@pytest.mark.long
def test_a_reset_that_never_shows_is_no_begin_of_an_episode(gated, small):
    gated.reset(seed=1)
    small.habits.ignores_reset = True
    with pytest.raises(BackendNotReadyError, match="reset_not_seen"):
        gated.reset(seed=1)


def test_options_that_nothing_here_draws_are_told(gated, small):
    with pytest.warns(UserWarning, match="ignores these reset options: target"):
        _, info = gated.reset(seed=1, options={"target": np.array([-0.5, 0.0, 0.2])})
    assert info["reset"]["options_ignored"] == "target"
