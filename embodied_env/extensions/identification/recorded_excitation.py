"""Record the runs of an identification, with brisk moves within a contract's limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_env.contract import Contract
from embodied_env.extensions.calibration.excitation import EnvWithoutTask, Excitation, SampleLog
from embodied_env.extensions.calibration.planned_moves import PlannedMove
from embodied_env.record import RecordTransitions


@dataclass(frozen=True, kw_only=True)
class RecordedExcitation:
    """The run directory, and the moves that were disturbed too often, with the reason.

    Late steps or readings disturb a move.
    """

    path: Path
    missing: Mapping[str, str]


def record_excitation(
    contract: Contract,
    moves: Sequence[PlannedMove],
    *,
    backend: str,
    record: Path,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    resetting: Callable[[], None] = lambda: None,
    **options: Any,  # noqa: ANN401 - of make
) -> RecordedExcitation:
    """Make moves of `brisk_moves` through the gate, without a task, and record them.

    Args:
        contract: of the robot.
        moves: to make, in as many episodes as they need.
        backend: any that moves.
        record: the parent of the run directory.
        seed: of the reset.
        progress: called with the number of finished moves and of all moves.
        resetting: called before each reset, in which an operator may be asked.
        **options: of `EmbodiedEnv`.

    Raises:
        UsageError: when the horizon is too short for a move.
        CalibrationError: when the gate held or stopped a step, or an episode ended too early; the robot was braked, and
            the run has the rows until then.
        BackendNotReadyError: for a robot without a channel to an operator, or when its reset fails.
        RecordError: when the run directory cannot be written.
    """
    env = RecordTransitions(EnvWithoutTask(contract, backend=backend, **options), record, policy="excitation")
    try:
        run = Excitation(env, SampleLog(), every_step=True, resetting=resetting)
        run.make_moves(moves, seed=seed, progress=progress)
    finally:
        env.close()
    return RecordedExcitation(path=env.path, missing=run.missing)
