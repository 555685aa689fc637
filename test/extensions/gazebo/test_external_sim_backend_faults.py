"""Faults of a simulator end the episode, and normal variations do not."""

import contextlib
import dataclasses
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from shipped_contracts import arm_in_degrees
from small_simulator import Faults, small_simulator

import embodied_env

pytestmark = [pytest.mark.ros, pytest.mark.realtime, pytest.mark.usefixtures("stepped_by_services")]

ARM = embodied_env.load_contract("arm_reach")
PATIENCE_S = 30.0  # a stall of the machine is no fault
PROFILE = {
    "world": "toy",
    "step_s": 0.05,
    "settle_steps": 1,
    "reset": "world",
    "echo": {"arm": "arm_controller/echo"},
    "sensor_grace_s": PATIENCE_S / 2,
}


@pytest.fixture(scope="module")
def stack(lasting_domain):
    """A small simulator, and an environment over it."""
    with lasting_domain() as domain_id, small_simulator(ARM, domain_id) as small:
        contract = dataclasses.replace(ARM, backends={"gazebo": PROFILE})
        env = embodied_env.make(
            contract, backend="gazebo", domain_id=domain_id, step_timeout_s=PATIENCE_S, reset_timeout_s=PATIENCE_S
        )
        env.reset(seed=0)
        yield small, env
        env.close()


@pytest.fixture
def small(stack):
    """The small simulator, well-behaved."""
    small = stack[0]
    small.faults, small.is_running = Faults(), False
    yield small
    small.faults, small.is_running = Faults(), False


@pytest.fixture
def exact(stack, small):
    """An environment in lockstep, just reset."""
    env = stack[1]
    env.reset(seed=1)
    return env


@contextlib.contextmanager
def impatient(env):
    """Await what never comes for a short time."""
    stepper = env.unwrapped.stepper
    backend, session = stepper.backend, stepper.backend._control.session
    before = backend._profile, session.reply_timeout_s, stepper._timeout_ns
    backend._profile = dataclasses.replace(backend._profile, sensor_grace_s=0.3)
    session.reply_timeout_s, stepper._timeout_ns = 0.5, 600_000_000
    try:
        yield
    finally:
        backend._profile, session.reply_timeout_s, stepper._timeout_ns = before


def end_of(env):
    *_, terminated, truncated, info = env.step(np.zeros(6))
    assert truncated is bool(info["end_reason"])
    assert terminated is False
    return info["end_reason"]


@pytest.mark.parametrize(
    ("habit", "why"),
    [
        pytest.param({"drops_reply": True}, "reply_lost", marks=pytest.mark.long),
        ({"stops_at": 4, "drops_reply": True}, "clock_stopped"),
        ({"rewinds": True}, "clock_rewound"),
        ({"extra_ticks": 20_000}, "extra_steps"),
        ({"drops": {"tcp"}}, "sensor_late"),
        ({"drops_echo": True}, "command_unheard"),
        pytest.param({"refuses": "no"}, "refused", marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_fault_truncates_the_episode_with_its_reason(exact, small, habit, why):
    assert end_of(exact) == ""
    small.faults = Faults(**habit)
    with impatient(exact):
        assert end_of(exact) == f"backend_lost:{why}"


@pytest.mark.parametrize(("to_s", "reason"), [(100, "extra_steps"), (0, "clock_rewound")])
def test_a_clock_jump_between_two_steps_ends_the_episode_without_a_command(exact, small, to_s, reason):
    sent = len(small.commands)
    small.now_ns = now_ns = to_s * 1_000_000_000 + small.now_ns if to_s else 0
    control, end = exact.unwrapped.stepper.backend._control, time.monotonic() + PATIENCE_S
    while control.now_ns() != now_ns:
        assert time.monotonic() < end
        control.session.receive(0.01)
    assert end_of(exact) == f"backend_lost:{reason}"
    time.sleep(0.03)
    assert len(small.commands) == sent


def test_an_old_stamp_is_counted_and_never_fresh(exact, small):
    small.faults.old_after = {"tcp"}
    for _ in range(3):
        *_, info = exact.step(np.zeros(6))
    counted = info["sensors"]["tcp"]["reordered"]
    assert counted > 0
    assert (info["end_reason"], info["sensors"]["tcp"]["age_s"]) == ("", 0.0)


def test_sensors_may_be_silent_until_the_first_step(exact, small):
    small.faults.is_silent_until_step = True
    with impatient(exact):
        exact.reset(seed=2)
    assert end_of(exact) == ""


def test_commands_are_repeated_before_the_step_and_act_in_it(exact, small):
    observation, *_ = exact.step(np.full(6, 0.3))
    np.testing.assert_array_equal(observation["joints_position"], small.commands[-1])


def test_reset_options_without_a_draw_are_reported(exact, small):
    with pytest.warns(UserWarning, match="gazebo: target"):
        _, info = exact.reset(seed=1, options={"target": np.array([-0.5, 0.0, 0.2])})
    assert info["reset"]["options_ignored"] == "target"


def test_a_simulator_takes_and_reports_si_whatever_the_driver_of_the_robot_has(domain_id):
    contract = arm_in_degrees(backends={"gazebo": PROFILE})
    with small_simulator(ARM, domain_id) as small:
        env = embodied_env.make(contract, backend="gazebo", domain_id=domain_id, reset_timeout_s=PATIENCE_S)
        env.reset(seed=1)
        observation, *_, info = env.step(np.full(6, 0.3))
        env.close()
    applied_si = list(info["action"]["applied_si"].values())
    assert small.commands[-1].tolist() == observation["joints_position"].tolist() == applied_si
