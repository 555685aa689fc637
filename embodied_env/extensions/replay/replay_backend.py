"""Replay a recorded run as a backend.

Readings, stamps, qualities, safety inputs and other external inputs come from the rows of the run. Gates, task and end
reasons are computed again under the contract of the environment. So the same actions under the same contract give the
same transitions, and differences show what was changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from embodied_env.backends.backend import Capabilities
from embodied_env.contract import Contract, FloatArray
from embodied_env.core.safety_input_state import InputState
from embodied_env.core.types import (
    ApprovedCommand,
    ExternalInputs,
    ResetRequest,
    SentCommand,
    Snapshot,
    TaskResult,
    Verdict,
    check_approved,
)
from embodied_env.errors import BackendLostError, BackendNotReadyError, RecordError, TaskError
from embodied_env.extensions.replay.row_decoder import RowDecoder, frozen_ns
from embodied_env.record.manifest import contract_of_manifest
from embodied_env.record.row_types import RESET, TRANSITION, ResetRow, TransitionRow, VerdictRecord
from embodied_env.record.run import Run, read_run
from embodied_env.timing.clock import NS_PER_S, Clock, DeadlineCounts

_OVERRIDDEN = {"seedable": False, "pausable": False, "state_query": False, "reopens": False, "render_modes": ()}


class RecordedSteps:
    """The rows of a run as a `ReplaySource`, by step, without those of outer wrappers."""

    def __init__(self, run: Run, reader: RowDecoder) -> None:
        self._rows: Iterator[TransitionRow | ResetRow] = (row for row in run.rows() if row["inner"] is not None)
        self._next = next(self._rows, None)
        self._reader = reader
        self.row: TransitionRow | None = None  # the current step
        self.external_inputs: ExternalInputs | None = None
        self.frozen_ns = 0  # when the snapshot of the last reset was frozen
        self.reset_verdict: VerdictRecord | None = None  # recorded one on that snapshot, None: not judged
        self.pacer = DeadlineCounts()  # of the current step

    @property
    def stamps_ns(self) -> Mapping[str, int]:
        """Stamps of the current step, by name."""
        return {} if self.row is None else cast("Mapping[str, int]", self.row["inner"]["stamps_ns"])

    def next_reset(self) -> ResetRow:
        """Move to the next reset, or raise BackendNotReadyError after the last one."""
        self.row = self.external_inputs = None
        while self._next is not None and self._next["schema"] != RESET:
            self._next = next(self._rows, None)
        if self._next is None:
            raise BackendNotReadyError("no more episodes in the recorded run")
        row, self._next = self._next, next(self._rows, None)
        self.frozen_ns = frozen_ns(row)
        self.reset_verdict = row["inner"]["verdict"]
        return row

    def enter_step(self) -> None:
        """Move to the next step of the episode, if any."""
        self.row = self.external_inputs = None
        if self._next is not None and self._next["schema"] == TRANSITION:
            self.row, self._next = self._next, next(self._rows, None)
            self.external_inputs = self._reader.external_inputs(self.row)
            stages = self.row["info"]["latency"]
            self.pacer.overruns, self.pacer.missed = stages.get("overruns", 0), stages.get("missed_deadlines", 0)
            self.pacer.overrun_ns = round(stages.get("overrun_s", 0.0) * NS_PER_S)

    def current(self) -> TransitionRow:
        """Return the current step, or raise BackendLostError after the last one of the episode."""
        if self.row is None:
            raise BackendLostError("recording_ended", "no more steps in the recorded episode")
        return self.row


class ReplayBackend:
    """Replays a run, episode by episode, without effect of seeds and reset options.

    After the last recorded step of an episode the world is lost (``recording_ended``).
    """

    name = "replay"
    step_timeout_s = reset_timeout_s = 60.0

    def __init__(
        self,
        contract: Contract,  # noqa: ARG002 - the protocol of factories
        *,
        clock: Clock,  # noqa: ARG002 - the protocol of factories
        run: str | Path | Run,
        task: str | Path | None = None,
        trust_task: bool = False,
    ) -> None:
        """Open `run`, or raise RecordError or ContractError if it cannot be replayed."""
        opened = _opened(run)
        self.recorded_contract = contract_of_manifest(opened.manifest)
        self._reader = RowDecoder(self.recorded_contract, opened.array)
        self.playback = RecordedSteps(opened, self._reader)
        self.capabilities = _capabilities(opened)
        self.departures = 0  # commands that differ from the recorded ones
        self.task_file, self.trust_task = task, trust_task
        self.recorded_task = RecordedTask(opened, self.playback)
        first = next(opened.transitions(), None)
        is_paced = first is not None and "overrun_s" in first["info"].get("latency", {})
        self.pacer = self.playback.pacer if is_paced else None

    @classmethod
    def find_contract(cls, options: Mapping[str, Any], /) -> Contract:
        """Return the untrusted contract of the run in `options`."""
        return contract_of_manifest(_opened(options["run"]).manifest)

    def open(self) -> None:
        """Do nothing."""

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:  # noqa: ARG002 - it is instant
        """Return the snapshot of the next recorded reset."""
        return self._reader.reset(self.playback.next_reset())

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Compare the command with the recorded one, or return the recorded report of a relay."""
        check_approved(command)
        row, inputs = self.playback.current(), self.playback.external_inputs
        if inputs is not None and inputs.answer is not None:
            return SentCommand(seq=command.seq, values=inputs.answer.applied_si, report=inputs.answer)
        self.departures += not np.array_equal(command.values, self._reader.published(row))
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target_ns: int, deadline_ns: int) -> None:
        """Do nothing, since `read` returns the recorded snapshot."""

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:  # noqa: ARG002 - it is instant
        """Return the recorded snapshot."""
        return self._reader.snapshot(self.playback.current())

    def estops(self) -> dict[str, InputState]:
        """Return the recorded safety inputs."""
        inputs = self.playback.external_inputs
        return {} if inputs is None else dict(inputs.safety_context.estops)

    def halt(self, reason: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def processes(self) -> list[dict[str, Any]]:
        """Return no process."""
        return []


class RecordedTask:
    """A task that returns the recorded reward, verdict and terms of the current step."""

    def __init__(self, run: Run, steps: RecordedSteps) -> None:
        self._steps = steps
        task = run.manifest.get("task")
        self.version: Any = task.get("version") if isinstance(task, dict) else None

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the terms of this step."""
        return tuple(self._terms())

    def reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Verdict | None:  # noqa: ARG002 - Task's
        """Return the recorded verdict on the reset snapshot, or None if it was not judged."""
        recorded = self._steps.reset_verdict
        return None if recorded is None else Verdict(**recorded)

    def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:  # noqa: ARG002 - Task's
        """Return the recorded result."""
        inner = self._steps.current()["inner"]
        reasons = dict(reason.partition(":")[::2] for reason in inner["end_reasons"])
        if "task_error" in reasons:
            raise TaskError("task failed in the record", why=reasons["task_error"])
        verdict = Verdict(
            success="success" in reasons,
            failure=reasons.get("failure", ""),
            out_of_bounds=reasons.get("out_of_bounds", ""),
        )
        return TaskResult(reward=inner["reward"], verdict=verdict, terms=self._terms())

    def _terms(self) -> dict[str, float]:
        terms = {} if self._steps.row is None else self._steps.row["info"]["task"]
        return {name: math.nan if value is None else value for name, value in terms.items()}


def _opened(run: str | Path | Run) -> Run:
    return run if isinstance(run, Run) else read_run(run)


def _capabilities(run: Run) -> Capabilities:
    """Return the flags of the recorded backend on which its transitions depend."""
    recorded = run.manifest["capabilities"]
    if recorded is None:
        raise RecordError(f"{run.path}: no capabilities in manifest.json; the run is too old to be replayed")
    known = {name: value for name, value in recorded.items() if name in Capabilities.__dataclass_fields__}
    levels = tuple(recorded.get("reset_levels", ()))
    flags: dict[str, Any] = {"simulated": False, **known, "reset_levels": levels, **_OVERRIDDEN}
    return Capabilities(**flags)
