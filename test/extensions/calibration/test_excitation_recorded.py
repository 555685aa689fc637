"""The excitation of an identification stays within the limits of the contract, and is recorded."""

from dataclasses import replace

import numpy as np
import pytest
import two_links
from evidence import assert_sound
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.backends.fake_backend import FakeBackend
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.reset_draws import ResetRoutine
from embodied_env.envs.reset_procedure import require_operator
from embodied_env.errors import BackendNotReadyError, UsageError
from embodied_env.extensions.calibration.excitation import record_excitation
from embodied_env.extensions.calibration.planned_moves import PlannedMove, brisk_moves
from embodied_env.record import read_run
from embodied_env.record.row_types import TRANSITION
from embodied_env.timing.clock import SteadyClock

ARM = embodied_env.load_contract("arm_reach")


def backend_with(world, confirm):
    """Return a fake robot, or another world, with this channel to an operator."""
    backend = FakeBackend(ARM, clock=SteadyClock())
    flags: dict = {"robot": {"simulated": False}, "emulator": {"emulated": True}, "dry run": {"actuates": False}}
    backend.capabilities = replace(backend.capabilities, **flags[world])
    backend.routine = ResetRoutine(confirm=confirm)
    backend.confirm = backend.verify = lambda *_: None
    return backend


def infos_of(path):
    return [row["info"] for row in read_run(path).rows() if row["schema"] == TRANSITION]


@pytest.mark.parametrize("amplitude", [0.01, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_moves_stay_within_the_limits_and_end_at_their_start(seed, amplitude):
    period_s = ARM.control_period_s
    for move in brisk_moves(ARM, ["j1", "j3"], amplitude=amplitude, repeats=2, seed=seed):
        assert np.abs(move.velocities).max() <= 0.5 * 3.1 * (1 + 1e-9)
        changes = np.diff(move.velocities, axis=0, prepend=0.0, append=0.0) / period_s
        assert np.abs(changes).max() <= 0.7 * 8.0 * (1 + 1e-9)
        ways = np.abs(np.cumsum(move.velocities, axis=0)).max(axis=0) * period_s
        assert (ways[[0, 2]] <= amplitude * np.array([12.56, 6.28]) * (1 + 1e-9)).all()
        assert ways[[1, 3, 4, 5]].max() == 0.0
        assert np.abs(move.velocities.sum(axis=0)).max() < 1e-9


def test_excitation_is_recorded_through_the_gate(tmp_path):
    contract, done, resets = two_links.contract_in(tmp_path / "arm"), [], []
    moves = brisk_moves(contract, ["elbow"], repeats=1)
    report: dict = {"progress": lambda *counts: done.append(counts), "resetting": lambda: resets.append(len(done))}
    found = record_excitation(contract, moves, backend="mujoco", record=tmp_path / "runs", **report)
    assert resets == [0]
    assert found.missing == {}
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]  # the sines, and three steps
    assert_sound(found.path)
    assert read_run(found.path).manifest["policy"] == "excitation"
    infos = infos_of(found.path)
    assert not any(info["safety"]["intervened"] for info in infos)
    moved = np.ptp([list(info["action"]["applied_si"].values()) for info in infos], axis=0)
    assert moved[0] < 0.01
    assert moved[1] > 0.1


@pytest.mark.parametrize(("world", "confirm"), [("robot", "topic"), ("emulator", ""), ("dry run", "")])
def test_motion_needs_an_operator_on_a_robot_alone(world, confirm):
    require_operator(backend_with(world, confirm), "planned moves")


def test_a_robot_without_a_channel_to_an_operator_is_not_excited():
    with pytest.raises(BackendNotReadyError, match="planned moves on a robot not confirmed: no channel to an operator"):
        require_operator(backend_with("robot", ""), "planned moves")


@pytest.mark.ros
def test_excitation_of_a_robot_asks_for_a_channel_before_it_connects(tmp_path):
    contract = two_links.contract_in(tmp_path)
    with pytest.raises(BackendNotReadyError, match="planned moves on a robot not confirmed"):
        record_excitation(contract, brisk_moves(contract, ["elbow"]), backend="real", record=tmp_path)


def test_moves_are_smaller_close_to_a_limit(tmp_path):
    near = changed_contract("arm_reach", {"backends.mujoco.home": {"j6": 6.1}})
    high = float(ActionLayout(near).limits.position_high[5])
    moves = [PlannedMove("j6", np.array([[0.0] * 5 + [velocity] for velocity in (1.0,) * 9 + (-1.0,) * 9]))]
    found = record_excitation(near, moves, backend="mujoco", record=tmp_path)
    positions = [info["action"]["applied_si"]["j6"] for info in infos_of(found.path)]
    assert max(positions) == pytest.approx(6.1 + 0.9 * (high - 6.1))


def test_amplitude_above_half_the_range_is_rejected():
    with pytest.raises(UsageError, match=r"amplitude: 0\.6"):
        brisk_moves(ARM, ["j1"], amplitude=0.6)
