"""The options of the backend `real` are a pure function of the profile of a robot."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from embodied_env.contract import load_contract
from embodied_env.errors import UsageError
from embodied_env.ros.robot.robot_options import RobotOptions
from embodied_env.ros.robot.robot_profile import EMULATOR_RESET, RealProfile, ResetSpec
from embodied_env.timing.clock import ManualClock, SteadyClock

CONTRACT = load_contract("arm_reach")
TRIGGER = ResetSpec(service="/reset")
PROFILE = RealProfile(reset=TRIGGER, step_timeout_s=2.0, reset_timeout_s=20.0, connect_timeout_s=5.0)


def options(**given):
    return RobotOptions(CONTRACT, clock=SteadyClock(), **given)


def test_without_options_the_profile_applies():
    assert options().applied_to(PROFILE) == PROFILE
    assert options().applied_to(replace(PROFILE, relay=True)).relay


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"step_timeout_s": 0.5}, {"step_timeout_s": 0.5}),
        ({"reset_timeout_s": 9.0}, {"reset_timeout_s": 9.0}),
        ({"connect_timeout_s": 3}, {"connect_timeout_s": 3.0}),
        ({"relay": True}, {"relay": True}),
        ({"emulator": True}, {"reset": EMULATOR_RESET}),
        ({"armed": False}, {"reset": None}),
        ({"armed": False, "emulator": True}, {"reset": None}),
        ({"confirm_chosen": True}, {}),
    ],
)
def test_an_option_changes_its_part_of_the_profile_and_nothing_else(given, expected):
    assert options(**given).applied_to(PROFILE) == replace(PROFILE, **expected)


def test_an_option_disables_the_relay_of_the_profile():
    assert not options(relay=False).applied_to(replace(PROFILE, relay=True)).relay


@pytest.mark.parametrize("given", [{"emulator": True}, {"confirm_chosen": True}, {"armed": False}])
def test_chosen_values_are_accepted_where_the_user_accepts_them_or_no_robot_moves(given):
    assert not options().is_confirmed
    assert options(**given).is_confirmed


@pytest.mark.parametrize(
    "given",
    [
        *[{"relay": "yes"}, {"armed": None}, {"emulator": "no"}, {"confirm_chosen": 2}],
        *[{"node_name": name} for name in ("", "1st", "my-robot", "a/b")],
        {"namespace": "robot"},
        {"domain_id": 500},
        {"ros_args": "-r"},
    ],
)
def test_an_invalid_option_is_named_with_its_value(given):
    ((name, value),) = given.items()
    with pytest.raises(UsageError, match=f"{name}.*{value}"):
        options(**given)


def test_a_virtual_clock_is_rejected():
    with pytest.raises(UsageError, match="ManualClock"):
        RobotOptions(CONTRACT, clock=ManualClock())


@pytest.mark.parametrize("name", ["step_timeout_s", "reset_timeout_s", "connect_timeout_s"])
def test_an_invalid_timeout_is_named_with_its_value(name):
    with pytest.raises(UsageError, match=f"{name}.*-1"):
        options(**{name: -1.0}).applied_to(PROFILE)


def test_a_relay_conflicts_with_simulated_time_wherever_it_is_declared():
    for given, profile in (({"relay": True}, PROFILE), ({}, replace(PROFILE, relay=True))):
        with pytest.raises(UsageError, match="use_sim_time"):
            options(**given).applied_to(replace(profile, use_sim_time=True))


def test_a_dry_run_neither_acts_nor_acknowledges():
    profile = replace(PROFILE, relay=True)
    assert options().capabilities_with(profile).acknowledges_commands
    dry = options(armed=False).capabilities_with(profile)
    assert (dry.acknowledges_commands, dry.actuation, dry.actuates) == (False, False, False)


@pytest.mark.ros
def test_the_factory_of_the_backend_has_these_options():
    from embodied_env.ros.robot.robot_backend import make_real_backend

    assert inspect.signature(make_real_backend).parameters == inspect.signature(RobotOptions).parameters
