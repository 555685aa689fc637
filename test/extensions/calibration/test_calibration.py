"""Calibration moves slowly, returns to its start, and writes nothing unless it is complete."""

from dataclasses import replace

import numpy as np
import pytest
from distributions import install
from hypothesis import given
from hypothesis import strategies as st
from moving_backend import ACTUATION_S, DRIVER_S, SCRIPT, Script
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.cli.main import main
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.errors import BackendNotReadyError, UsageError
from embodied_env.extensions.calibration.calibration import calibrate
from embodied_env.extensions.calibration.excitation import EnvWithoutTask, Excitation, SampleLog, find_joint_readings
from embodied_env.extensions.calibration.planned_moves import draw_velocities, gentle_moves
from embodied_env.timing.latency_profile import read_profile

pytestmark = pytest.mark.realtime

ARM = embodied_env.load_contract("arm_reach")
CART = embodied_env.load_contract("cart_goal")


@given(st.integers(0, 2**32), st.floats(0.01, 2.0), st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_move_is_slow_and_ends_at_its_start(seed, fastest, change, way):
    profile = draw_velocities(np.random.default_rng(seed), fastest=fastest, change=change, way=way, period_s=0.05)
    assert np.abs(profile).max() <= fastest * (1 + 1e-9)
    assert np.abs(np.diff(profile, prepend=0.0, append=0.0)).max() <= change * (1 + 1e-9)
    assert np.abs(np.cumsum(profile) * 0.05).max() <= way * (1 + 1e-9)
    assert abs(profile.sum()) <= 1e-9
    assert profile[-1] == 0.0


def test_joint_motion_is_read_from_its_sensor():
    assert find_joint_readings(ARM, ["j3"])["j3"].field == "position"
    turn = find_joint_readings(CART, ["angular.z"])["angular.z"]
    assert turn == find_joint_readings(CART, list(CART.actuators["base"].joints))["angular.z"]
    assert (turn.field, turn.component) == ("angular", 2)


def test_twist_without_a_sensor_is_rejected():
    odom = replace(CART.sensors["odom"], fields={"position": CART.sensors["odom"].fields["position"]})
    blind = replace(CART, sensors={**CART.sensors, "odom": odom})
    with pytest.raises(UsageError, match=r"cannot measure linear\.x"):
        find_joint_readings(blind, ["linear.x"])


@pytest.mark.parametrize("backend", ["fake", "mujoco"])
def test_lockstep_backend_cannot_be_calibrated(backend):
    with pytest.raises(UsageError, match="waits for the agent"):
        calibrate(ARM, backend=backend)


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"amplitude": 0.5}, "amplitude: 0.5"), ({"repeats": 1}, "repeats: 1"), ({"joints": ["j9"]}, "unknown joint")],
)
def test_invalid_options_are_rejected(options, problem):
    with pytest.raises(UsageError, match=problem):
        calibrate(ARM, backend="real", **options)


@pytest.mark.ros
def test_calibration_of_a_robot_asks_for_a_channel_to_an_operator_before_it_connects():
    with pytest.raises(BackendNotReadyError, match="planned moves on a robot not confirmed: no channel to an operator"):
        calibrate(ARM, backend="real")


def test_no_task_ends_a_move():
    solved = changed_contract("arm_reach", {"task.success_radius_m": 9.0})
    with EnvWithoutTask(solved, backend="mujoco") as env:
        assert env.contract.fingerprint == solved.fingerprint  # that of a relay
        run = Excitation(env, SampleLog(), every_step=True)
        moves = gentle_moves(solved, ["j1"], amplitude=0.01, repeats=2, seed=0)
        run.make_moves(moves, seed=0, progress=lambda *_: None)
    assert len(run.traces) == 2


@pytest.mark.parametrize("arguments", [("--backend", "fake"), ("--seed", "-1"), ("--out", "no/such/folder/file.json")])
def test_usage_errors_write_nothing(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", "arm_reach", *arguments]) == 2
    assert list(tmp_path.iterdir()) == []
    assert arguments[1] in capsys.readouterr().err


def quick_arm(max_age_s):
    """Return an arm with short periods that a busy machine does not hold."""
    steps = {"watchdog.hold_steps": 50, "watchdog.stop_steps": 100, "action.max_age_steps": 50}
    contract = changed_contract(ARM, {f"safety.{key}": value for key, value in steps.items()})
    sensors = {name: replace(sensor, max_age_s=max_age_s) for name, sensor in ARM.sensors.items()}
    return replace(contract, control_period_s=0.02, sensors=sensors)


@pytest.fixture
def calibration(tmp_path, monkeypatch, capsys):
    """Return a function that runs the verb, and returns status, profile, stdout and stderr."""
    (site := tmp_path / "site").mkdir()
    install(monkeypatch, site, {"backends": {"moving": "moving_backend:moving"}})
    contract, out = tmp_path / "quick_arm.yaml", tmp_path / "profile.json"

    def run(max_age_s=1.0, **script):
        contract.write_text(dump_contract(quick_arm(max_age_s)))
        vars(SCRIPT).update(vars(Script(**script)))
        out.unlink(missing_ok=True)
        options = ["--backend", "moving", "--out", str(out), "--joints", "j5", "--repeats", "2"]
        status = main(["calibrate", str(contract), *options])
        return status, read_profile(out) if out.exists() else None, *capsys.readouterr()

    yield run
    assert {path.name for path in tmp_path.iterdir()} <= {"site", contract.name, out.name}


def calibrated(calibration, **script):
    """Calibrate, again if a stall of the machine has held a move too often."""
    for _ in range(5):
        found = calibration(**script)
        if found[0] == 0:
            break
    return found


def test_calibration_writes_and_prints_a_profile(calibration):
    status, profile, shown, _ = calibrated(calibration)
    assert status == 0
    assert profile.actuation_s == profile.evidence["controller"]
    assert profile.actuation_s.low_s <= ACTUATION_S <= profile.actuation_s.high_s
    assert abs(profile.actuation_s.value_s - ACTUATION_S) < 0.002
    assert profile.capture_s["joints"].value_s >= DRIVER_S  # plus the overhead of the machine
    assert next(iter(profile.evidence)) == "controller"
    assert "actuation *" in shown
    assert f"{1e3 * profile.actuation_s.low_s:.2f}" in shown


STALE = {"max_age_s": 0.3, "faults": tuple(ScriptedFault(kind="drop", step=step) for step in range(12, 40))}


def test_calibration_with_all_moves_held_writes_nothing(calibration):
    status, profile, _, output = calibration(**STALE)
    assert (status, profile) == (1, None)
    assert "HOLD" in output


def test_move_held_by_a_stale_reading_is_repeated(calibration):
    status, profile, _, output = calibrated(calibration, **STALE, faulty_resets=1)
    assert status == 0, output
    assert profile.actuation_s is not None
    assert not [name for name in profile.unknown if name.startswith("moves")]


@pytest.mark.long
def test_move_with_a_late_step_is_repeated(calibration):
    status, profile, _, output = calibration(late_at=20)
    assert status == 0, output
    assert profile.actuation_s.low_s <= ACTUATION_S <= profile.actuation_s.high_s
    assert SCRIPT.resets == 2


def test_moves_that_are_missing_leave_a_partial_profile(calibration):
    late = tuple(ScriptedFault(kind="drop", step=step) for step in range(44, 72))  # of the second move
    status, profile, shown, output = calibration(**STALE, first_faults=late)
    assert (status, profile is None) == (1, False), output
    assert profile.unknown["moves.j5"].startswith(
        "missing 1 of 2: gate "
    )  # a late step on a busy host, or a stale reading
    found = profile.actuation_s
    assert found.low_s <= ACTUATION_S <= found.high_s
    interval = f"{1e3 * found.low_s:.2f} .. {1e3 * found.high_s:.2f} ms"
    assert f"the interval reached is {interval}" in profile.unknown["moves.actuation_s"]
    assert "partial" in shown


def test_ctrl_c_brakes_and_nothing_is_written(calibration):
    status, profile, _, output = calibration(interrupt_at=16)
    assert (status, profile) == (130, None)
    assert "interrupted" in output
    (backend,) = SCRIPT.made
    commands = np.array([command.values for command in backend.sent])
    moved = np.abs(np.diff(commands, axis=0)).max(axis=1)
    assert moved[:15].max() > 1e-4  # the joint was moving
    assert len(commands) > 16
    assert moved[-1] == 0.0
