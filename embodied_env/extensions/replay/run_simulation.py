"""Simulate a recorded run from its seeds and actions, and find results that they do not lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embodied_env.contract import Contract, load_contract
from embodied_env.contract.contract_loader import shipped_files
from embodied_env.core.terminal import NO_PROGRESS, Progress
from embodied_env.errors import UsageError
from embodied_env.extensions.replay.replay_backend import recorded_contract
from embodied_env.extensions.replay.run_replay import Replay, Replayer
from embodied_env.record.row_types import ResetRow
from embodied_env.record.run import Run, read_run

SIMULATORS = ("fake", "mujoco")
"""Backends with the same results for the same seeds and actions, in the process of the caller."""

_NOT_SIMULATED = (
    *("inner.stamps_ns", "info.latency", "info.latency_ms"),  # durations of the host
    *("inner.external_inputs.annotations", "inner.external_inputs.chunk", "info.annotations"),  # accounts of the policy
    *("inner.instruction", "inner.external_inputs.instruction", "info.instruction"),  # its prompt
)
_ARRIVALS = ("arrival_ns", "arrival_system_ns", "arrival_age_s")


def simulate_run(path: str | Path, *, contract: Contract | None = None, progress: Progress = NO_PROGRESS) -> Replay:
    """Simulate a run in lockstep again, and compare up to the first difference.

    The world starts from the recorded seed of each reset and receives the recorded actions. All values are compared bit
    for bit, except for durations and arrivals on the host, and accounts of the policy.

    Args:
        path: the run directory.
        contract: that of the run, which is trusted with its model and task; by default the shipped one of that name.
        progress: receives how far the simulation has come.

    Raises:
        RecordError: when it is not a run directory.
        UsageError: when its backend cannot repeat it, or the contract is another one.
    """
    run = read_run(path)
    backend, delays = run.manifest["backend"], run.manifest["delays"]
    if backend not in SIMULATORS or run.manifest["pacing"] != "lockstep" or delays is not None:
        found = f"backend {backend!r}, pacing {run.manifest['pacing']!r}{'' if delays is None else ', injected delays'}"
        expected = f"one of {', '.join(SIMULATORS)} in lockstep, without injected delays"
        raise UsageError(f"{run.path} cannot be simulated again: {found} (expected {expected})")
    return _Simulator(run, _contract_of(run, contract), {"backend": backend}).replay_all(progress)


class _Simulator(Replayer):
    """Steps the backend of a run with its seeds and actions."""

    def _is_compared(self, path: str) -> bool:
        is_simulated = not path.startswith(_NOT_SIMULATED) and path.rpartition(".")[2] not in _ARRIVALS
        return is_simulated and super()._is_compared(path)

    def _reset(self, row: ResetRow) -> tuple[Any, Any]:
        inner = row["inner"]
        if (seed := inner["seed_applied"]) is None:
            raise UsageError(f"row {row['row']} has no seed of the world (expected one in each reset)")
        self._env.seek_episode(None, row["info"]["episode_index"])
        return self._env.stepper.reset(world_seed=seed, options=inner["options"], seeded=False)


def _contract_of(run: Run, given: Contract | None) -> Contract:
    """Return the given or the shipped contract of the run, without opening or executing a file that the run names."""
    recorded = recorded_contract(run)
    if given is None and recorded.name in shipped_files():
        given = load_contract(recorded.name)
    if given is not None and given.fingerprint == recorded.fingerprint:
        return given
    found = "it is not a shipped one" if given is None else f"fingerprint {given.fingerprint}"
    expected = f"its contract {recorded.name!r}, fingerprint {recorded.fingerprint}, as contract= or --contract FILE"
    raise UsageError(f"{run.path} cannot be simulated again: {found} (expected {expected})")
