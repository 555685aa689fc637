"""`RecordTransitions`, the outermost wrapper, which writes resets and steps to a run."""

from __future__ import annotations

import contextlib
import re
import secrets
import weakref
from collections.abc import Sized
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from embodied_env.contract.argument_checks import checked_flag, checked_path
from embodied_env.core.info_schema import without_host_timing
from embodied_env.core.message_tap import MessageTap, TappedMessage
from embodied_env.errors import ClosedError, RecordError, TaskError, UsageError
from embodied_env.processes.signals import close_at_exit, deferred_signals, exit_on_sigterm
from embodied_env.record.json_values import to_json_types
from embodied_env.record.manifest import RecordableEnv, processes, start_of_manifest, write_json
from embodied_env.record.mcap_writer import DEFAULT_COMPRESSION, check_log_libraries
from embodied_env.record.row_log import start_of_chain
from embodied_env.record.row_types import ChainRecord, Row
from embodied_env.record.rows import FIELDS, FIELDS_OF_RESET
from embodied_env.record.run_writer import MANIFEST, LossCounter, PendingRow, RunWriter, remove_run
from embodied_env.record.writer_thread import FLUSH_PERIOD_S, GATHER_S, MAX_JOBS, MAX_JOBS_IN_LOCKSTEP, WriterThread
from embodied_env.timing.clock import NS_PER_S, SteadyClock

_MESSAGE_BYTES = 2**10


class RecordTransitions(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Records what the agent sent and received next to the environment's own account.

    It must be the outermost wrapper, because changes made by wrappers outside of it are not recorded. It creates a run
    directory in `folder` with ``manifest.json``, ``transitions.mcap``, ``first_transition.json`` and, at `close`,
    ``summary.json``, and with `messages` also ``messages.mcap``, the raw ROS 2 messages (`docs/concepts/record.md`). A
    step that raises leaves no row. A run whose only resets failed leaves no run directory, unless it has raw messages.

    `step` encodes its row, and a background thread hashes its images, compresses and writes it. In real time the thread
    also encodes the environment's own account, while `step` waits, but in lockstep it would compete with `step` for the
    GIL. In lockstep at most 64 rows are queued before `step` waits. A written row is passed to the operating system
    after at most 0.1 s. In lockstep `reset`, the first step, the last step of an episode, `flush` and `close` return
    once all rows so far are passed to it. That time counts as handoff, not as the agent's. In real time nothing waits,
    and rows are dropped while the queue is full.

    `step` and `reset` never raise because of a slow, failing or hanging disk, or of a log that another process removes,
    replaces or truncates. Lost rows are counted, there is one warning, and the run is incomplete. ``info["record"]``
    has the losses so far in `complete` (a bool) and `lost` (the number of lost rows), and is not part of the row. The
    record is completed however the program ends, except by SIGKILL.

    Attributes:
        path: the run directory.
        policy: the policy for the manifest: a name, or any JSON value. It may be set until `close`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        folder: str | Path,
        *,
        policy: Any = None,  # noqa: ANN401 - any JSON value
        messages: bool = False,
        compression: str = DEFAULT_COMPRESSION,
    ) -> None:
        """Create the run directory.

        Args:
            env: an environment of this package, in any wrappers.
            folder: the parent of the run directory, created if missing.
            policy: see the attribute.
            messages: record also the raw ROS 2 messages that the environment's nodes publish and receive.
            compression: of the MCAP files: "zstd", "lz4" or "none".

        Raises:
            UsageError: if `env` is not an environment of this package, or has no messages to record, or `folder` is
                not a path, or `compression` is unknown.
            RecordError: if the run directory cannot be written.
            MissingDependencyError: if mcap or orjson is not installed.
        """
        parent, messages = checked_path("folder", folder), checked_flag("messages", messages)
        RecordConstructorArgs.__init__(
            self, folder=str(parent), policy=to_json_types(policy), messages=messages, compression=compression
        )
        super().__init__(env)
        base = env.unwrapped
        if not isinstance(base, RecordableEnv):
            raise UsageError(f"cannot record {type(base).__qualname__} (expected an environment made by embodied_env)")
        self.policy = policy
        self._base: RecordableEnv = base
        base.keep_host_timing()
        self._feed: MessageTap | None = getattr(base, "feed", None) if messages else None
        if messages and not isinstance(self._feed, MessageTap):
            backend = base.backend_name
            raise UsageError(f"raw messages are not available with backend {backend!r} (expected one over ROS 2)")
        self._clock = SteadyClock()
        self._rows = 0
        self._is_warned = self._closed = self._has_stepped = False
        self._is_paced = base.pacing == "realtime"
        started_utc = self._now_utc()
        check_log_libraries(compression)
        folders = parent.absolute(), *parent.absolute().parents
        self._own_folders = [folder for folder in folders if not folder.exists()]
        self.path = make_run_directory(parent, f"{base.contract.name}_{base.backend_name}", started_utc)
        try:
            self._manifest = start_of_manifest(
                self, base, run_id=self.path.name, started_utc=started_utc.isoformat(timespec="milliseconds")
            )
            self._manifest |= {"messages": messages, "flush_period_s": FLUSH_PERIOD_S}
            write_json(self.path / MANIFEST, self._manifest)
            evaluator = [name for name, spec in base.contract.sensors.items() if spec.visibility == "evaluator"]
            self._run = RunWriter(
                self.path.absolute(),
                evaluator=evaluator,
                messages=messages,
                encodes_at_once=not self._is_paced,
                start=start_of_chain(self._manifest),
                compression=compression,
            )
        except BaseException:
            remove_run(self.path, self._own_folders)
            raise
        self._closes_aside = bool(base.capabilities.transport)
        self._writer = WriterThread(
            self._run.settle,
            settle_every_s=FLUSH_PERIOD_S,
            blocks=not self._is_paced,
            gather_s=0.0 if self._is_paced else GATHER_S,
            max_jobs=MAX_JOBS if self._is_paced else MAX_JOBS_IN_LOCKSTEP,
        )
        self._closing = weakref.finalize(self, self._writer.close_when_idle)
        self._closing.atexit = False
        self._sink = partial(_record_message, self._run, self._writer)  # `self` stays collectable
        self._attach()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the constructor's arguments, so that a copy has its own directory."""
        return partial(type(self), **{**self._saved_kwargs, "policy": to_json_types(self.policy)}), (self.env,)

    @property
    def unwrapped(self) -> Any:  # noqa: ANN401 - `RecordableEnv`, with more methods
        """The environment under all wrappers."""
        return self.env.unwrapped

    @property
    def losses(self) -> LossCounter:
        """The rows and messages that could not be written, and why."""
        return self._run.losses

    @property
    def rows_flushed(self) -> int:
        """The number of rows passed to the operating system, of which a SIGKILL loses none."""
        return self._run.log.rows_flushed

    @property
    def chain(self) -> ChainRecord:
        """Hash of the last row that was written, which covers all rows, and their number."""
        return self._run.log.chain.as_json()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset and record it, or raise ClosedError after `close`, which completed the record."""
        if self._closed:
            raise ClosedError("reset() called after close(), which completed the record; make a new environment")
        close_at_exit(self, aside=self._closes_aside)
        exit_on_sigterm()
        self._attach()
        requested = to_json_types(options)
        before = self._base.last_reset
        observation, info = self.env.reset(seed=seed, options=options)
        made = self._base.last_reset
        if made is before:
            made = None
        outer = dict(zip(FIELDS_OF_RESET, (seed, requested, observation, info), strict=True))
        self._submit_row(self._run.encode_reset(made, outer, number=self._rows, now_ns=self._clock.system_ns()))
        if seed is not None:
            self._manifest["seeds"].append(to_json_types(seed))
        known = self._manifest["processes"]
        started = [process for process in processes(self._base) if process not in known]
        if started or self._rows == 1:
            self._manifest |= {
                "processes": known + started,
                "policy": to_json_types(self.policy),
                "scheduling": to_json_types(getattr(self._base, "scheduling", None)),  # in force since the reset
            }
            manifest = {**self._manifest, "seeds": list(self._manifest["seeds"])}
            if not self._writer.submit(partial(self._run.file, MANIFEST, manifest)):
                self.losses.note(f"{MANIFEST} was not updated: the disk is too slow")
        if not self._is_paced:
            self.flush()
        info = self._returned(info)
        self._base.mark("returned")
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step, and record it.

        The action is copied before wrappers can change it, and the result before the agent can. A step that ends with
        a TaskError is recorded too.
        """
        requested = to_json_types(action)
        before = self._base.last_transition
        failed: TaskError | None = None
        result: Any
        try:
            result = self.env.step(action)
        except TaskError as error:
            ended = self._base.last_transition
            if ended is None or ended is before:
                raise
            failed, result = error, ended.result
        observation, reward, terminated, truncated, info = result
        outer = dict(zip(FIELDS, (observation, requested, reward, terminated, truncated, info), strict=True))
        with deferred_signals():  # the step is taken: an interrupt must not lose its row
            made = None if (newest := self._base.last_transition) is before else newest
            self._submit_row(self._run.encode_step(made, outer, number=self._rows, now_ns=self._clock.system_ns()))
        self.end_step(is_over=terminated or truncated)
        if failed is not None:
            raise failed
        info = self._returned(info)
        self._base.mark("returned")
        return observation, reward, terminated, truncated, info

    def join(self, writer: WriterThread) -> RunWriter:
        """Write from the first row on in a thread of several recorders, and return the writer."""
        self._closing.detach()
        self._writer = writer
        return self._run

    def encode_made(self, row: Row) -> PendingRow | None:
        """Number and return the row of a step made without `step`, or None if it is lost."""
        row["row"] = self._rows
        self._rows += 1
        return self._run.encode_made(row, now_ns=self._clock.system_ns())

    def end_step(self, *, is_over: bool) -> None:
        """Flush the row of the first step, and the last one of an episode."""
        is_first, self._has_stepped = not self._has_stepped, True
        if not self._is_paced and (is_over or is_first):
            self.flush()
        self._warn_once()

    def flush(self) -> bool:
        """Wait until the rows so far are in the operating system, or return False if it hangs."""
        if self._writer.run(self._run.settle):
            return True
        self.losses.note(f"rows from {self.rows_flushed} on are not written yet: the disk does not respond")
        return False

    def close(self) -> None:
        """Close the environment and complete the record once, with a bounded wait for the disk."""
        try:
            super().close()
        finally:
            if not self._closed:
                self._closed = True
                self._complete()

    @property
    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json`` so far, of all rows including lost ones."""
        return self._run.summarize(self._base.contract.fingerprint)

    def _attach(self) -> None:
        """Receive the messages of the environment, which several recorders may record in turn."""
        if self._feed is not None:
            self._feed.sink = self._sink

    def _submit_row(self, row: PendingRow | None) -> None:
        if row is not None and not self._writer.submit(partial(self._run.write, row), row.nbytes):
            self.losses.note_dropped(self._rows)
        self._rows += 1

    def _returned(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the info of the agent, after that of the row was encoded."""
        self._warn_once()
        if not self._base.host_timing:
            info = without_host_timing(info)
        return {**info, "record": {"complete": self.losses.complete, "lost": self.losses.rows}}

    def _warn_once(self) -> None:
        if self.losses.problem and not self._is_warned:
            self._is_warned = True
            with contextlib.suppress(UserWarning):  # a warning turned into an error must not stop the robot
                gymnasium.logger.warn(f"incomplete record of the run {self.path}: {self.losses.problem}")

    def _complete(self) -> None:
        if self._feed is not None and self._feed.sink is self._sink:
            self._feed.sink = None
        manifest = {
            **self._manifest,
            "policy": to_json_types(self.policy),
            "ended_utc": self._now_utc().isoformat(timespec="milliseconds"),
        }
        if not self._writer.close(partial(self._run.complete, manifest, self._base.contract.fingerprint)):
            self.losses.note("the run was not closed: the disk does not respond")
        elif not self._rows and self._feed is None and self.losses.complete:
            remove_run(self._run.path, self._own_folders)
        self._warn_once()

    def _now_utc(self) -> datetime:
        return datetime.fromtimestamp(self._clock.system_ns() / NS_PER_S, tz=UTC)


def _record_message(run: RunWriter, writer: WriterThread, message: TappedMessage) -> None:
    """Queue a message, in the thread that published or received it."""
    data = getattr(message.message, "data", None)
    size = _MESSAGE_BYTES + (len(data) if isinstance(data, Sized) else 0)
    if not writer.submit(partial(run.message, message), size):
        run.losses.note(f"a message of {message.topic} was dropped: the disk is too slow", messages=1)


def make_run_directory(folder: Path, label: str, started_utc: datetime) -> Path:
    """Create a directory named by time, label and a random number, or raise RecordError."""
    name = re.sub(r"[^\w.-]", "_", f"{started_utc:%Y%m%dT%H%M%SZ}_{label}_{secrets.token_hex(3)}")
    path = folder / name
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise RecordError(f"cannot create the run directory {path}: {error}") from None
    return path
