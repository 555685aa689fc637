"""`RecordTransitions`: the outermost wrapper, which writes every reset and every step to a run directory."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sized
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from embodied_env.clock import NS_PER_S, SteadyClock
from embodied_env.errors import RecordError, UsageError
from embodied_env.record.arrays import Reference, refer_to, to_bytes
from embodied_env.record.keeping import kept, size_of
from embodied_env.record.log import LogWriter, check_installed
from embodied_env.record.manifest import Accountable, processes, start_of_manifest, write_json
from embodied_env.record.messages import MessageLog
from embodied_env.record.rows import FIELDS, FIELDS_OF_RESET, RESET, TRANSITION, Row, plain, reset_row, transition_row
from embodied_env.record.summary import Summary
from embodied_env.record.writing import Aside, AtOnce, Losses, Worker
from embodied_env.shutdown import close_at_exit
from embodied_env.transition import Snapshot, Transition
from embodied_env.wire import Feed, WireMessage

MANIFEST = "manifest.json"
LOG = "transitions.mcap"
MESSAGES = "messages.mcap"
FIRST_TRANSITION = "first_transition.json"
SUMMARY = "summary.json"

_ROW_BYTES = 16 * 2**10  # about what a row without its arrays keeps while it waits
_MESSAGE_BYTES = 2**10

Arrays = dict[str, tuple[Reference, bytes]]  # by their hash


class RecordTransitions(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Records a run: what the agent was given and returned, beside the environment's own account of it.

    It belongs outside of every other wrapper: what a wrapper outside of it changes is not seen. `folder` gets one run
    directory with ``manifest.json``, ``transitions.mcap``, ``first_transition.json`` and, at `close`, ``summary.json``;
    with `messages` also ``messages.mcap``, the raw ROS 2 messages (`docs/record.md`). A step that raises leaves no row.

    In lockstep a row, after the images that it refers to, is with the operating system before `step` returns; that
    time counts as handoff, not as the agent's. In real time it is written in a thread, and what finds no room there is
    dropped. A disk that fails or is too slow never raises from `step` or `reset`: the rows that it did not take are
    counted, there is one warning, and the run is not complete. Every info says so: ``info["record"]`` has `complete`
    (a bool) and `lost` (how many rows were, so far); it is added behind the row, which does not have it.

    Attributes:
        path: the run directory.
        policy: what acts, for the manifest; a name, or anything that JSON can say. It may be set until `close`.
        losses: what was not written, and why.
        rows_flushed: how many rows are with the operating system: a SIGKILL loses none of them.
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
            UsageError: when `env` is not an environment of this package, or has no messages to record.
            RecordError: when the run directory cannot be written.
            MissingDependencyError: when mcap is not installed.
        """
        RecordConstructorArgs.__init__(self, folder=str(folder), policy=plain(policy), messages=messages)
        super().__init__(env)
        base = env.unwrapped
        if not isinstance(base, Accountable):
            raise UsageError(
                f"{type(base).__qualname__} cannot be recorded: it has no account of its steps; "
                "allowed: an environment made by embodied_env"
            )
        self.policy = policy
        self._base: Accountable = base
        self._feed = _feed_of(base) if messages else None
        self._clock = SteadyClock()
        self._evaluator = [name for name, spec in base.contract.sensors.items() if spec.visibility == "evaluator"]
        self._summary = Summary()
        self._rows = 0
        self.rows_flushed = 0
        self.losses = Losses()
        self._is_warned = self._closed = self._has_stepped = False
        self._is_paced = getattr(base, "pacing", None) == "realtime"
        self._worker: Worker = Aside() if self._is_paced else AtOnce()
        started_utc = self._now_utc()
        check_installed()
        self.path = _make_run_directory(Path(folder), f"{base.contract.name}_{base.backend_name}", started_utc)
        self._manifest = start_of_manifest(
            self, base, run_id=self.path.name, started_utc=started_utc.isoformat(timespec="milliseconds")
        )
        self._manifest["messages"] = messages
        write_json(self.path / MANIFEST, self._manifest)
        self._log = LogWriter(self.path / LOG)
        self._messages = None if self._feed is None else MessageLog(self.path / MESSAGES)
        if self._feed is not None:
            self._feed.sink = self._take_message

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and record it."""
        if self._is_paced:
            close_at_exit(self)
        asked = plain(options)
        before = self._base.last_reset
        observation, info = self.env.reset(seed=seed, options=options)
        made = self._base.last_reset
        outer = (seed, asked, observation, info)
        self._put_row("reset", reset_row, FIELDS_OF_RESET, outer, None if made is before else made)
        if seed is not None:
            self._manifest["seeds"].append(plain(seed))
        known = self._manifest["processes"]
        started = [process for process in processes(self._base) if process not in known]
        if started or self._rows == 1:
            self._manifest |= {
                "processes": known + started,
                "policy": plain(self.policy),
                "scheduling": plain(getattr(self._base, "scheduling", None)),  # in force since the reset
            }
            self._put_file(MANIFEST, {**self._manifest, "seeds": list(self._manifest["seeds"])})
        info = self._with_account(info)
        self._base.mark("returned")
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step, and record it. The action is put down before any wrapper can change it."""
        asked = plain(action)
        before = self._base.last_transition
        observation, reward, terminated, truncated, info = self.env.step(action)
        made = self._base.last_transition
        outer = (observation, asked, reward, terminated, truncated, info)
        self._put_row("transition", transition_row, FIELDS, outer, None if made is before else made)
        info = self._with_account(info)
        self._base.mark("returned")
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environment, then complete the record. Idempotent.

        In real time a disk that does not answer is waited for, but not for ever.
        """
        try:
            super().close()
        finally:
            if not self._closed:
                self._closed = True
                self._end()

    # ------------------------------------------------------------------------------------ in the stepping thread

    def _put_row(
        self,
        topic: str,
        make_row: Callable[..., Row],
        fields: tuple[str, ...],
        outer: tuple[Any, ...],
        made: Transition | Snapshot | None,
    ) -> None:
        """Put down what the agent was given, which it may change; the account is nobody's to change."""
        now_ns = self._clock.system_ns()
        arrays: Arrays = {}
        store = partial(_keep, arrays)
        is_first = topic == "transition" and not self._has_stepped
        self._has_stepped = self._has_stepped or is_first
        if not self._is_paced:  # it is written at once: nobody can change it meanwhile
            kept_outer = dict(zip(fields, outer, strict=True))
            size = 0
        else:
            kept_outer = {name: kept(value, store) for name, value in zip(fields, outer, strict=True)}
            size = _ROW_BYTES + 2 * size_of(kept_outer["observation"])  # the account has its own
        report = made.reset if isinstance(made, Snapshot) else None
        details = None if report is None else report.details
        self._summary.hand_in(RESET if topic == "reset" else TRANSITION, kept_outer, details)
        row = partial(make_row, made, row=self._rows, outer=kept_outer, evaluator=self._evaluator, store=store)
        if not self._worker.put(partial(self._make_and_write, topic, row, arrays, now_ns, is_first), size):
            self.losses.note(f"row {self._rows} was dropped: the disk is too slow", rows=1)
        self._rows += 1

    def _put_file(self, name: str, value: Mapping[str, Any]) -> None:
        if not self._worker.put(partial(self._write_file, name, value), _ROW_BYTES):
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

    def _take_message(self, message: WireMessage) -> None:
        """In whichever thread published or received it."""
        data = getattr(message.message, "data", None)
        size = _MESSAGE_BYTES + (len(data) if isinstance(data, Sized) else 0)
        if not self._worker.put(partial(self._write_message, message), size):
            self.losses.note(f"a message of {message.topic} was dropped: the disk is too slow", messages=1)

    # -------------------------------------------------------------------------------------- where things are written

    def _make_and_write(
        self,
        topic: str,
        make_row: Callable[[], Row],
        arrays: Arrays,
        now_ns: int,
        is_first: bool,  # noqa: FBT001
    ) -> None:
        with self._noting(rows=1):
            self._summary.add_handed_in()
            row = make_row()
            self._write_row(topic, row, arrays, now_ns)
            if is_first:
                self._write_file(FIRST_TRANSITION, row)

    def _write_row(self, topic: str, row: Row, arrays: Arrays, now_ns: int) -> None:
        """Write the messages that came before the row, then its arrays, then the row."""
        if self._messages is not None:
            with self._noting():
                self._messages.flush()
        with self._noting(rows=1):
            for reference, data in arrays.values():
                self._log.put(reference, data, log_time_ns=now_ns)
            self._log.write(topic, row, log_time_ns=now_ns)
            self.rows_flushed += 1

    def _write_message(self, message: WireMessage) -> None:
        if self._messages is not None:
            with self._noting(messages=1):
                self._messages.write(message)

    def _write_file(self, name: str, value: Mapping[str, Any]) -> None:
        with self._noting():
            write_json(self.path / name, value)

    @contextlib.contextmanager
    def _noting(self, *, rows: int = 0, messages: int = 0) -> Iterator[None]:
        """Whatever goes wrong with the record is noted: the robot is not stopped for it."""
        try:
            yield
        except RecordError as error:
            self.losses.note(str(error), rows=rows, messages=messages)
        except Exception as error:  # noqa: BLE001 - a message that cannot be serialised, for one
            self.losses.note(f"{type(error).__name__}: {error}", rows=rows, messages=messages)

    def _end(self) -> None:
        if self._feed is not None:
            self._feed.sink = None
        if not self._worker.finish(self._complete):
            self.losses.note("the record could not be completed: the disk does not answer")
        if self.losses.problem and not self._is_warned:
            self._warn()

    def _complete(self) -> None:
        """Close the logs, then write the summary, then the manifest: one that says clean is the last thing written."""
        self._log.close()
        problems = [self._log.problem]
        if self._messages is not None:
            self._messages.close()
            problems.append(self._messages.problem)
        for problem in filter(None, problems):
            self.losses.note(problem)
        summary = self._summary.as_json(self._base.contract.fingerprint)
        self._write_file(SUMMARY, {**summary, "record": self.losses.as_json()})
        self._manifest |= {
            "policy": plain(self.policy),
            "ended_utc": self._now_utc().isoformat(timespec="milliseconds"),
            "clean": self.losses.complete,
            "problem": self.losses.problem,
            "record": self.losses.as_json(),
        }
        self._write_file(MANIFEST, self._manifest)

    def _now_utc(self) -> datetime:
        return datetime.fromtimestamp(self._clock.system_ns() / NS_PER_S, tz=UTC)


def _keep(arrays: Arrays, array: NDArray[Any]) -> Reference:
    """Put down the bytes of `array` as they are now, once; return the reference for the row."""
    data = to_bytes(array)
    for (
        known,
        bytes_of,
    ) in arrays.values():  # what the agent got is mostly what the environment gave: compared, not hashed
        if (known["dtype"], known["shape"]) == (array.dtype.name, list(array.shape)) and bytes_of == data:
            return dict(known)
    reference = refer_to(array, data)
    arrays.setdefault(reference["sha256"], (reference, data))
    return reference


def _feed_of(base: Accountable) -> Feed:
    feed = getattr(base, "feed", None)
    if not isinstance(feed, Feed):
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
