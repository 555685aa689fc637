"""The world of a run that was recorded: it hands out what was read then, and does nothing.

Readings, stamps, qualities, safety inputs and what time did to each step come from the rows of the run. What follows
from them does not: gates, task and ends judge anew, under whatever contract the environment was made with. So the same
actions under the same contract make the same transitions, and what differs shows what was changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.backends.base import Capabilities
from embodied_env.contract import Contract, FloatArray
from embodied_env.core.clock import NS_PER_S, Clock, Stamp
from embodied_env.core.latency.ledger import Ledger, StepEvent
from embodied_env.core.types import (
    ApprovedCommand,
    ExternalInputs,
    ResetRequest,
    SentCommand,
    Snapshot,
    TaskResult,
    Verdict,
)
from embodied_env.errors import BackendLostError, BackendNotReadyError, RecordError
from embodied_env.record.manifest import contract_of_manifest
from embodied_env.record.row_decoder import RowDecoder, frozen_ns, require_replayable
from embodied_env.record.rows import RESET, TRANSITION, Row
from embodied_env.record.run import Run, read_run

_NOT_OF_A_REPLAY = {"seedable": False, "pausable": False, "state_query": False, "render_modes": ()}


@dataclass(kw_only=True)
class RecordedPacer:
    """What a pacer had counted (`embodied_env.core.pacing.Pacer`)."""

    overruns: int = 0
    missed: int = 0
    overrun_ns: int = 0

    def take(self, row: Row) -> None:
        """Take the counts of a step from its account."""
        stages = _stages(row)
        self.overruns, self.missed = stages.get("overruns", 0), stages.get("missed_deadlines", 0)
        self.overrun_ns = round((stages.get("overrun_s") or 0.0) * NS_PER_S)


class RecordedLedger(Ledger):
    """Stamps as they were. That a step is entered moves the tape to the next one."""

    def __init__(self, clock: Clock, tape: RecordedSteps) -> None:
        """Read what the tape has no stamp of from `clock`."""
        super().__init__(clock)
        self._tape = tape

    def begin_episode(self) -> None:
        """Take the stamp of the snapshot of the reset."""
        super().begin_episode()
        if self._tape.frozen_ns:
            self._ns[StepEvent.OBSERVED] = self._tape.frozen_ns

    def enter_step(self) -> None:
        """Go on to the next step, and take all of its stamps."""
        super().enter_step()
        stamps = self._tape.enter_step()
        self._marked = "marked" in stamps
        for name, stamp_ns in stamps.items():
            self._ns[StepEvent[name.upper()]] = stamp_ns

    def stamp(self, slot: StepEvent, at_ns: int | None = None) -> int:
        """Return the stamp as it was."""
        known = self._tape.stamps_ns.get(slot.name.lower())
        return super().stamp(slot, at_ns if known is None else known)


class RecordedSteps:
    """The rows of a run, one after the other; it remembers the one that is being played back, and no other.

    Attributes:
        ledger: see `embodied_env.backends.base.Playback`.
        row: the step that is being played back; None: there is none.
        pacer: the counts of that step.
        frozen_ns: when the snapshot of the last reset was frozen.
        reset_verdict: the verdict of the task on that snapshot, as recorded; None: not judged.
    """

    def __init__(self, run: Run, reader: RowDecoder, clock: Clock) -> None:
        """Begin before the first row. Rows that an outer wrapper had made up are left out."""
        self._rows: Iterator[Row] = (row for row in run.rows() if row.get("inner") is not None)
        self._ahead: Row | None = next(self._rows, None)
        self._reader = reader
        self.row: Row | None = None
        self._circumstances: ExternalInputs | None = None
        self.frozen_ns = 0
        self.reset_verdict: Mapping[str, Any] | None = None
        self.pacer = RecordedPacer()
        self.ledger = RecordedLedger(clock, self)

    @property
    def stamps_ns(self) -> Mapping[str, int]:
        """The stamps of the step that is being played back, by slot."""
        return {} if self.row is None else self.row["inner"]["stamps_ns"]

    @property
    def circumstances(self) -> ExternalInputs | None:
        """What time and others did to it."""
        return self._circumstances

    def next_reset(self) -> Row:
        """Go on to the next reset, and return its row.

        Raises:
            BackendNotReadyError: when there is none.
            RecordError: when it is too old to be replayed.
        """
        self.row = self._circumstances = None
        while self._ahead is not None and self._ahead["schema"] != RESET:
            self._ahead = next(self._rows, None)
        if self._ahead is None:
            raise BackendNotReadyError("the recording has no more resets")
        row, self._ahead = self._ahead, next(self._rows, None)
        require_replayable(row)
        self.frozen_ns = frozen_ns(row)
        self.reset_verdict = row["inner"]["verdict"]
        return row

    def enter_step(self) -> Mapping[str, int]:
        """Go on to the next step of the episode, if it has one, and return its stamps.

        Raises:
            RecordError: when it is too old to be replayed.
        """
        self.row = self._circumstances = None
        if self._ahead is not None and self._ahead["schema"] == TRANSITION:
            require_replayable(self._ahead)
            self.row, self._ahead = self._ahead, next(self._rows, None)
            self._circumstances = self._reader.circumstances(self.row)
            self.pacer.take(self.row)
        return self.stamps_ns


class ReplayBackend:
    """Plays back a run, episode by episode; the seed of a reset, and what its options ask for, change nothing.

    After the last step of an episode, or of a run that was cut short, the world is lost (``recording_ended``).

    Attributes:
        playback: what time and others did.
        recorded_contract: the one that the run was recorded under.
        departures: how many commands were not those that were published then.
    """

    name = "replay"
    step_timeout_s = reset_timeout_s = 60.0

    def __init__(
        self,
        contract: Contract,  # noqa: ARG002 - one protocol
        *,
        clock: Clock,
        run: str | Path | Run,
        task: str | Path | None = None,
        trust_task: bool = False,
    ) -> None:
        """Open `run`, a run directory.

        Args:
            contract: the one in force.
            clock: of the ledger.
            run: the run directory.
            task: load the task from this file, as ``FILE.py`` or ``FILE.py:Class``.
            trust_task: load the task that the contract of the run names.

        Raises:
            RecordError: when it is none, or too old to be replayed.
            ContractError: when its contract cannot be read any more.
        """
        opened = run if isinstance(run, Run) else read_run(run)
        self.recorded_contract = recorded_contract(opened)
        self._reader = RowDecoder(self.recorded_contract, opened.array)
        self.playback = RecordedSteps(opened, self._reader, clock)
        self.capabilities = _capabilities(opened)
        self.departures = 0
        self.task_file, self.trust_task = task, trust_task
        self.recorded_task = RecordedTask(opened, self.playback)
        self.pacer = self.playback.pacer if _is_paced(opened) else None

    def open(self) -> None:
        """Nothing to connect to."""

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - it is instant
        """Return what the next recorded reset came up with."""
        return self._reader.reset(self.playback.next_reset())

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Compare the command with the one that was published then; the answer of a relay is as it was."""
        if not isinstance(command, ApprovedCommand):
            raise TypeError(f"send() takes only Approved, not {type(command).__name__}")
        row = self._playing()
        seen = self.playback.circumstances
        if seen is not None and seen.answer is not None:
            return SentCommand(seq=command.seq, values=seen.answer.applied_si, report=seen.answer)
        self.departures += not np.array_equal(command.values, self._reader.published(row))
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Nothing moves."""

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - it is instant
        """Return what was read then."""
        return self._reader.snapshot(self._playing())

    def estops(self) -> dict[str, str]:
        """Return the safety inputs as they were."""
        seen = self.playback.circumstances
        return {} if seen is None else dict(seen.situation.estops)

    def halt(self, reason: str) -> None:
        """There is no transport."""

    def close(self) -> None:
        """Nothing is open."""

    def processes(self) -> list[dict[str, Any]]:
        """There is none."""
        return []

    def _playing(self) -> Row:
        if self.playback.row is None:
            raise BackendLostError("recording_ended", "the recorded episode has no more steps")
        return self.playback.row


class RecordedTask:
    """A task that returns the recorded reward, verdict and terms of the step that is being played back."""

    def __init__(self, run: Run, tape: RecordedSteps) -> None:
        """Return what `tape` has, under the version that the manifest of `run` names."""
        self._tape = tape
        said = run.manifest.get("task")
        self.version: Any = said.get("version") if isinstance(said, dict) else None

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms of this step."""
        return tuple(self._terms())

    def reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Verdict | None:  # noqa: ARG002 - Task's
        """Return the recorded verdict on the reset snapshot; None: the task did not judge it."""
        recorded = self._tape.reset_verdict
        return None if recorded is None else Verdict(**recorded)

    def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:  # noqa: ARG002 - Task's
        """Return the recorded result."""
        row = self._tape.row
        if row is None:
            raise BackendLostError("recording_ended", "the recorded episode has no more steps")
        reward, reasons = row["inner"]["reward"], dict(map(_kind_and_why, row["inner"]["end_reasons"]))
        verdict = Verdict(
            success="success" in reasons,
            failure=reasons.get("failure", ""),
            out_of_bounds=reasons.get("out_of_bounds", ""),
        )
        return TaskResult(reward=math.nan if reward is None else reward, verdict=verdict, terms=self._terms())

    def _terms(self) -> dict[str, float]:
        info = None if self._tape.row is None else self._tape.row["info"]
        terms = info.get("task") if isinstance(info, dict) else None
        items = terms.items() if isinstance(terms, dict) else ()
        return {name: math.nan if value is None else value for name, value in items}


def _kind_and_why(reason: str) -> tuple[str, str]:
    kind, _, why = reason.partition(":")
    return kind, why


def recorded_contract(run: Run) -> Contract:
    """Return the contract that `run` was recorded under, with the content of its files. It is not trusted.

    Raises:
        RecordError: when the manifest has none.
        ContractError: when it cannot be read, or the content of a file is not as it was recorded.
    """
    try:
        return contract_of_manifest(run.manifest)
    except RecordError as error:
        raise RecordError(f"{run.path}: {error}") from None


def _capabilities(run: Run) -> Capabilities:
    """Return what the recorded world could do, as far as its account depends on it."""
    said = run.manifest.get("capabilities")
    if not isinstance(said, dict):
        raise RecordError(f"{run.path}: manifest.json has no capabilities: the run is too old to be replayed")
    known = {name: value for name, value in said.items() if name in Capabilities.__dataclass_fields__}
    return Capabilities(**{**known, "reset_levels": tuple(said.get("reset_levels", ())), **_NOT_OF_A_REPLAY})


def _is_paced(run: Run) -> bool:
    return any("overrun_s" in _stages(row) for row in _first(run.transitions()))


def _first(rows: Iterator[Row]) -> Iterator[Row]:
    row = next(rows, None)
    return iter(() if row is None else (row,))


def _stages(row: Row) -> Mapping[str, Any]:
    stages = row["info"].get("latency") if isinstance(row["info"], dict) else None
    return stages if isinstance(stages, dict) else {}
