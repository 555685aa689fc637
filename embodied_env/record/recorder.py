"""`RecordTransitions`: the outermost wrapper, which writes every reset and every step to a run directory."""

from __future__ import annotations

import contextlib
import re
import secrets
import weakref
from collections.abc import Callable, Mapping, Sized
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from embodied_env.core.arguments import checked_flag, checked_path
from embodied_env.core.clock import NS_PER_S, SteadyClock
from embodied_env.core.message_tap import MessageTap, TappedMessage
from embodied_env.core.process.signals import close_at_exit, exit_on_sigterm
from embodied_env.errors import RecordError, UsageError
from embodied_env.record.json_values import detached_action, detached_copy, memory_size, to_json_types
from embodied_env.record.manifest import RecordableEnv, processes, start_of_manifest, write_json
from embodied_env.record.mcap_file import check_installed
from embodied_env.record.rows import FIELDS, FIELDS_OF_RESET, RESET, TRANSITION
from embodied_env.record.run_writer import MANIFEST, LossCounter, RowArrays, RunWriter, StepRow, remove_run
from embodied_env.record.writer_thread import GATHER_S, MAX_JOBS, MAX_JOBS_IN_LOCKSTEP, DeferredRow, WriterThread

_ROW_BYTES = 16 * 2**10  # about what a row without its arrays keeps while it waits
_MESSAGE_BYTES = 2**10


@runtime_checkable
class _WaitHook(Protocol):
    """An environment that calls `_on_waiting` in each step where it would only wait for its world."""

    _on_waiting: Callable[[], None] | None


class RecordTransitions(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Records a run: what the agent was given and returned, beside the environment's own account of it.

    It belongs outside of every other wrapper: what a wrapper outside of it changes is not seen. `folder` gets one run
    directory with ``manifest.json``, ``transitions.mcap``, ``first_transition.json`` and, at `close`, ``summary.json``;
    with `messages` also ``messages.mcap``, the raw ROS 2 messages (`docs/record.md`). A step that raises leaves no row,
    and a run whose every reset raised leaves no run directory, unless it has raw messages.

    Rows are made and written in a thread. In lockstep at most 64 of them wait there: then `step` waits, too. `reset`,
    the first step, the step that ends an episode and `close` return when everything before, and their own row, is with
    the operating system; so does `flush`. That time counts as handoff, not as the agent's. In real time nobody waits,
    and what finds no room is dropped.

    A disk that fails, does not answer or is too slow never raises from `step` or `reset`, nor does a log that others
    remove, replace or truncate: the lost rows are counted, there is one warning, and the run is not complete. Every
    info says so as far as it is known by then: ``info["record"]`` has `complete` (a bool) and `lost` (how many rows
    were, so far); it is added behind the row, which does not have it. However the program ends, but for SIGKILL, the
    record is completed.

    Attributes:
        path: the run directory.
        policy: what acts, for the manifest; a name, or anything that JSON can say. It may be set until `close`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        folder: str | Path,
        *,
        policy: Any = None,  # noqa: ANN401 - anything that JSON can say
        messages: bool = False,
    ) -> None:
        """Create the run directory.

        Args:
            env: an environment of this package, in any wrappers.
            folder: where the run directory is made; made too if it is not there.
            policy: see the attribute.
            messages: record the raw ROS 2 messages too, which the environment's nodes publish and receive.

        Raises:
            UsageError: when `env` is not an environment of this package, or has no messages to record, or `folder`
                is no path.
            RecordError: when the run directory cannot be written.
            MissingDependencyError: when mcap is not installed.
        """
        place, messages = checked_path("folder", folder), checked_flag("messages", messages)
        RecordConstructorArgs.__init__(self, folder=str(place), policy=to_json_types(policy), messages=messages)
        super().__init__(env)
        base = env.unwrapped
        if not isinstance(base, RecordableEnv):
            raise UsageError(
                f"{type(base).__qualname__} cannot be recorded: it has no account of its steps; "
                "allowed: an environment made by embodied_env"
            )
        self.policy = policy
        self._base: RecordableEnv = base
        self._feed = _feed_of(base) if messages else None
        self._clock = SteadyClock()
        self._evaluator = [name for name, spec in base.contract.sensors.items() if spec.visibility == "evaluator"]
        self._rows = 0
        self._is_warned = self._closed = self._has_stepped = self._has_failed = False
        self._is_paced = base.pacing == "realtime"
        started_utc = self._now_utc()
        check_installed()
        self.path = _make_run_directory(place, f"{base.contract.name}_{base.backend_name}", started_utc)
        try:
            self._manifest = start_of_manifest(
                self, base, run_id=self.path.name, started_utc=started_utc.isoformat(timespec="milliseconds")
            )
            self._manifest["messages"] = messages
            write_json(self.path / MANIFEST, self._manifest)
            self._run = RunWriter(self.path.absolute(), evaluator=self._evaluator, messages=messages)
        except BaseException:
            remove_run(self.path)
            raise
        waits_for_world = bool(base.capabilities.transport)
        self._closes_aside = waits_for_world
        self._writer = WriterThread(
            self._run.settle,
            blocks=not self._is_paced,
            gather_s=0.0 if self._is_paced or waits_for_world else GATHER_S,
            max_jobs=MAX_JOBS if self._is_paced else MAX_JOBS_IN_LOCKSTEP,
        )
        weakref.finalize(self, self._writer.close_when_idle).atexit = False
        self._deferred = DeferredRow(self._writer)
        self._defers = False
        if waits_for_world and not self._is_paced and isinstance(base, _WaitHook):
            self._defers, base._on_waiting = True, self._deferred.encode  # noqa: SLF001 - our own environment's
        if self._feed is not None:
            self._feed.sink = partial(_take_message, self._run, self._writer)  # not `self`: a node's thread holds it

    @property
    def losses(self) -> LossCounter:
        """What was not written, and why."""
        return self._run.losses

    @property
    def rows_flushed(self) -> int:
        """How many rows are with the operating system: a SIGKILL loses none of them."""
        return self._run.rows_flushed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and record it."""
        close_at_exit(self, aside=self._closes_aside)
        exit_on_sigterm()
        asked = to_json_types(options)
        before = self._base.last_reset
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except BaseException:
            self._has_failed = True
            raise
        made = self._base.last_reset
        if made is before:
            made = None
        arrays = RowArrays()
        given = (detached_copy(seed), asked, detached_copy(observation, arrays), detached_copy(info, arrays))
        outer = dict(zip(FIELDS_OF_RESET, given, strict=True))
        self._run.summary.hand_in(RESET, outer, None if made is None else made.reset)
        write = partial(self._run.reset, made, outer, arrays, number=self._rows, now_ns=self._clock.system_ns())
        self._count_row(taken=self._deferred.submit(write, _size_of_row(outer)))
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
            self._put_file(MANIFEST, {**self._manifest, "seeds": list(self._manifest["seeds"])})
        if not self._is_paced:
            self.flush()
        info = self._with_account(info)
        self._base.mark("returned")
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step, and record it. The action is put down before any wrapper can change it.

        What the agent is given it may change, so it is copied; the account is nobody's to change.
        """
        asked = detached_action(action)
        before = self._base.last_transition
        observation, reward, terminated, truncated, info = self.env.step(action)
        made = self._base.last_transition
        if made is before:
            made = None
        arrays = RowArrays()
        given = (
            *(detached_copy(observation, arrays), asked, detached_copy(reward)),
            *(detached_copy(terminated), detached_copy(truncated), detached_copy(info, arrays)),
        )
        outer = dict(zip(FIELDS, given, strict=True))
        self._run.summary.hand_in(TRANSITION, outer)
        acted = None if made is None else detached_action(made.action)
        is_first, self._has_stepped = not self._has_stepped, True
        row = StepRow(
            run=self._run,
            made=made,
            action=acted,
            outer=outer,
            arrays=arrays,
            number=self._rows,
            now_ns=self._clock.system_ns(),
            is_first=is_first,
        )
        submit = self._deferred.hold if self._defers else self._deferred.submit
        self._count_row(taken=submit(row, _size_of_row(outer)))
        if not self._is_paced and (terminated or truncated or is_first):
            self.flush()
        info = self._with_account(info)
        self._base.mark("returned")
        return observation, reward, terminated, truncated, info

    def flush(self) -> bool:
        """Wait until every row and every message so far is with the operating system, or was lost.

        Returns:
            False when the disk does not answer; the run counts as not complete then.
        """
        if self._writer.wait_idle():
            return True
        self.losses.note(f"the rows from {self.rows_flushed} on are not written yet: the disk does not answer")
        return False

    def close(self) -> None:
        """Close the environment, then complete the record. Idempotent.

        A disk that does not answer is waited for, but not for ever.
        """
        try:
            super().close()
        finally:
            if not self._closed:
                self._closed = True
                self._end()

    # ------------------------------------------------------------------------------------ in the stepping thread

    def _count_row(self, *, taken: bool) -> None:
        if not taken:
            self.losses.note(f"row {self._rows} was dropped: the disk is too slow", rows=1)
        self._rows += 1

    def _put_file(self, name: str, value: Mapping[str, Any]) -> None:
        if not self._deferred.submit(partial(self._run.file, name, value), _ROW_BYTES):
            self.losses.note(f"{name} was not written: the disk is too slow")

    def _with_account(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return `info` with how the record stands; warn the first time that it is not complete."""
        losses = self.losses
        if losses.problem and not self._is_warned:
            self._warn()
        return {**info, "record": {"complete": losses.complete, "lost": losses.rows}}

    def _warn(self) -> None:
        self._is_warned = True
        with contextlib.suppress(UserWarning):  # also where warnings are errors: the robot goes on
            gymnasium.logger.warn(f"the record of this run is not complete: {self.losses.problem}")

    def _end(self) -> None:
        if self._feed is not None:
            self._feed.sink = None
        manifest = {
            **self._manifest,
            "policy": to_json_types(self.policy),
            "ended_utc": self._now_utc().isoformat(timespec="milliseconds"),
        }
        if not self._writer.close(partial(self._run.complete, manifest, self._base.contract.fingerprint)):
            self.losses.note("the record could not be completed: the disk does not answer")
        elif self._has_failed and not self._rows and self._feed is None and self.losses.complete:
            self._run.remove()
        if self.losses.problem and not self._is_warned:
            self._warn()

    def _now_utc(self) -> datetime:
        return datetime.fromtimestamp(self._clock.system_ns() / NS_PER_S, tz=UTC)


def _take_message(run: RunWriter, writer: WriterThread, message: TappedMessage) -> None:
    """Record a message in whichever thread published or received it."""
    data = getattr(message.message, "data", None)
    size = _MESSAGE_BYTES + (len(data) if isinstance(data, Sized) else 0)
    if not writer.submit(partial(run.message, message), size):  # not behind the deferred row
        run.losses.note(f"a message of {message.topic} was dropped: the disk is too slow", messages=1)


def _size_of_row(outer: Mapping[str, Any]) -> int:
    return _ROW_BYTES + 2 * memory_size(outer["observation"])  # the account has its own


def _feed_of(base: RecordableEnv) -> MessageTap:
    feed = getattr(base, "feed", None)
    if not isinstance(feed, MessageTap):
        raise UsageError(
            f"messages=True is not available with {base.backend_name}: it has no ROS 2 messages; "
            "allowed: a backend over ROS 2"
        )
    return feed


def _make_run_directory(folder: Path, what: str, started_utc: datetime) -> Path:
    name = re.sub(r"[^\w.-]", "_", f"{started_utc:%Y%m%dT%H%M%SZ}_{what}_{secrets.token_hex(3)}")
    path = folder / name
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise RecordError(f"{path}: the run directory cannot be made: {error}") from None
    return path
