"""The odometry of a base is compared with itself and with its commands."""

import math

import numpy as np
import pytest

from embodied_env.core.odometry_check import OdometryCheck

AXES = ("linear.x", "linear.y", "angular.z")
NS = 10**9


def reading(x, y, heading, twist, fields=("position", "orientation", "linear", "angular")):
    values = {
        "position": np.array([x, y, 0.0]),
        "orientation": np.array([0.0, 0.0, math.sin(heading / 2), math.cos(heading / 2)]),
        "linear": np.array([*twist[:2], 0.0]),
        "angular": np.array([0.0, 0.0, twist[2]]),
    }
    return {name: value for name, value in values.items() if name in fields}


def drive(applied, driven, *, reported=None, fields=("position", "orientation", "linear", "angular"), seconds=4.0):
    """Return the check after a drive with constant velocities, at 10 Hz."""
    check, (x, y, heading), dt = OdometryCheck("odom", AXES), (5.0, -2.0, 3.0), 0.1
    for k in range(round(seconds / dt)):
        check.add_command(round(k * dt * NS), dict(zip(AXES, applied, strict=True)))
        twist = driven if reported is None else reported
        check.add_reading(round(k * dt * NS), reading(x, y, heading, twist, fields))
        cos, sin = math.cos(heading + driven[2] * dt / 2), math.sin(heading + driven[2] * dt / 2)
        x, y = x + (cos * driven[0] - sin * driven[1]) * dt, y + (sin * driven[0] + cos * driven[1]) * dt
        heading += driven[2] * dt
    return check


@pytest.mark.parametrize("velocity", [(0.5, 0.0, 0.0), (-0.3, 0.4, -1.2), (0.0, 0.2, 0.0), (0.0, 0.0, 2.0)])
@pytest.mark.parametrize("share", [0.8, 1.2])
def test_a_base_that_follows_is_not_suspect(velocity, share):
    check = drive(velocity, [share * v for v in velocity])
    assert check.text == ""
    assert check.has_moved


def test_a_base_that_drives_less_than_applied_is_suspect():
    assert (
        drive((-1.0, 0.0, 0.0), (-0.2, 0.0, 0.0)).text
        == "linear.x does not follow: -1.00 m/s applied, -0.20 m/s driven"
    )


@pytest.mark.parametrize("driven", [(0.5, 0.0, 0.0), (0.5, -0.3, 0.0), (0.5, 0.6, 0.0)])
def test_each_axis_is_compared_in_its_direction(driven):
    assert drive((0.5, 0.3, 0.0), driven).text.startswith("linear.y does not follow")


def test_a_twist_of_zero_or_in_the_frame_of_the_odometry_disagrees_with_the_pose():
    check = drive((0.0, 0.3, 0.0), (0.0, 0.3, 0.0), reported=(0.0, 0.0, 0.0))
    assert check.text == "its twist of linear.y is 0.00 m/s, but its pose moves with 0.30 m/s"
    assert "its twist of linear.x" in drive((0.5, 0.0, 0.0), (0.5, 0.0, 0.0), reported=(-0.495, 0.07, 0.0)).text


@pytest.mark.parametrize("fields", [("position", "orientation"), ("linear", "angular")])
def test_a_pose_or_a_twist_alone_is_compared_with_the_commands(fields):
    assert drive((0.5, 0.0, 0.0), (0.5, 0.0, 0.0), fields=fields).text == ""
    assert drive((0.5, 0.0, 0.0), (0.1, 0.0, 0.0), fields=fields).text.startswith("linear.x does not follow")
    assert drive((0.5, 0.0, 0.0), (0.1, 0.0, 0.0), fields=fields[:1]).text == ""


def test_a_base_is_not_judged_before_it_can_follow():
    assert drive((0.5, 0.0, 0.0), (0.0, 0.0, 0.0), seconds=1.7).text == ""
    assert not drive((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)).has_moved


def test_a_command_that_changes_its_direction_is_not_judged():
    check = OdometryCheck("odom", AXES)
    for k in range(60):
        check.add_command(k * NS // 10, dict(zip(AXES, (0.5 if k % 10 < 5 else -0.5, 0.0, 0.0), strict=True)))
        check.add_reading(k * NS // 10, reading(0.0, 0.0, 0.0, (0.0, 0.0, 0.0)))
    assert check.text == ""


def test_a_held_reading_is_judged_once_and_an_episode_begins_without_the_last():
    check = drive((0.5, 0.0, 0.0), (0.1, 0.0, 0.0))
    before = check.text
    check.add_reading(round(3.9 * NS), reading(9.0, 9.0, 0.0, (9.0, 9.0, 9.0)))
    assert check.text == before != ""
    check.begin()
    assert check.text == ""
    check.add_reading(0, reading(0.0, 0.0, 0.0, (0.0, 0.0, 0.0)))
    assert check.text == ""
