"""A calibration moves gently, comes back, and writes nothing when it did not come to its end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embodied_env
from embodied_env.calibration import calibrate
from embodied_env.calibration.moves import places, velocities
from embodied_env.cli import main
from embodied_env.errors import UsageError

ARM = embodied_env.load_contract("arm_reach")
CART = embodied_env.load_contract("cart_goal")


@given(st.integers(0, 2**32), st.floats(0.01, 2.0), st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_a_move_is_gentle_and_ends_where_it_began(seed, fastest, change, way):
    profile = velocities(np.random.default_rng(seed), fastest=fastest, change=change, way=way, period_s=0.05)
    assert np.abs(profile).max() <= fastest * (1 + 1e-9)
    assert np.abs(np.diff(profile, prepend=0.0, append=0.0)).max() <= change * (1 + 1e-9)
    assert np.abs(np.cumsum(profile) * 0.05).max() <= way * (1 + 1e-9)
    assert abs(profile.sum()) <= 1e-9
    assert profile[-1] == 0.0


def test_the_motion_of_a_joint_is_read_where_a_sensor_reports_it():
    assert places(ARM, ["j3"])["j3"].field == "position"
    assert places(CART, ["angular.z"])["angular.z"] == places(CART, CART.actuators["base"].joints)["angular.z"]
    assert (places(CART, ["angular.z"])["angular.z"].field, places(CART, ["angular.z"])["angular.z"].index) == (
        "angular",
        2,
    )


def test_a_twist_that_nobody_reports_is_refused():
    odom = replace(CART.sensors["odom"], fields={"position": CART.sensors["odom"].fields["position"]})
    blind = replace(CART, sensors={**CART.sensors, "odom": odom})
    with pytest.raises(UsageError, match=r"no sensor of the agent reports the velocity of linear\.x"):
        places(blind, ["linear.x"])


@pytest.mark.parametrize("backend", ["fake", "mujoco"])
def test_a_world_that_waits_for_the_agent_has_no_latency(backend):
    with pytest.raises(UsageError, match="waits for the agent"):
        calibrate(ARM, backend=backend)


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"amplitude": 0.5}, "amplitude 0.5"), ({"repeats": 1}, "repeats 1"), ({"joints": ["j9"]}, "no such joint")],
)
def test_wrong_options_are_refused(options, problem):
    with pytest.raises(UsageError, match=problem):
        calibrate(ARM, backend="real", **options)


@pytest.mark.parametrize("arguments", [["--backend", "fake"], ["--seed", "-1"], ["--out", "no/such/folder/file.json"]])
def test_wrong_usage_writes_nothing(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", "arm_reach", *arguments]) == 2
    assert list(tmp_path.iterdir()) == []
    assert "allowed" in capsys.readouterr().err
