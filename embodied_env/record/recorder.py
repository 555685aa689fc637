"""`RecordTransitions`: the outermost wrapper, which writes every reset and every step to a run directory."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from embodied_env.clock import NS_PER_S, SteadyClock
from embodied_env.errors import RecordError, UsageError
from embodied_env.record.arrays import Reference
from embodied_env.record.log import LogWriter, check_installed
from embodied_env.record.manifest import Accountable, processes, start_of_manifest, write_json
from embodied_env.record.rows import FIELDS, FIELDS_OF_RESET, Row, plain, reset_row, transition_row
from embodied_env.record.summary import Summary

MANIFEST = "manifest.json"
LOG = "transitions.mcap"
FIRST_TRANSITION = "first_transition.json"
SUMMARY = "summary.json"


class RecordTransitions(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Records a run: what the agent was given and returned, beside the environment's own account of it.

    It belongs outside of every other wrapper: what a wrapper outside of it changes is not seen. `folder` gets one run
    directory with ``manifest.json``, ``transitions.mcap``, ``first_transition.json`` and, at `close`, ``summary.json``.
    A row, after the images that it refers to, is with the operating system before `step` returns; that time counts as
    handoff, not as the agent's. A step that raises leaves no row.

    Attributes:
        path: the run directory.
        policy: what acts, for the manifest; a name, or anything that JSON can say. It may be set until `close`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], folder: str | Path, *, policy: Any = None) -> None:  # noqa: ANN401
        """Create the run directory.

        Args:
            env: an environment of this package, in any wrappers.
            folder: where the run directory is made; made too if it is not there.
            policy: see the attribute.

        Raises:
            UsageError: when `env` is not an environment of this package.
            RecordError: when the run directory cannot be written.
            MissingDependencyError: when mcap is not installed.
        """
        RecordConstructorArgs.__init__(self, folder=str(folder), policy=plain(policy))
        super().__init__(env)
        base = env.unwrapped
        if not isinstance(base, Accountable):
            raise UsageError(
                f"{type(base).__qualname__} cannot be recorded: it has no account of its steps; "
                "allowed: an environment made by embodied_env"
            )
        self.policy = policy
        self._base: Accountable = base
        self._clock = SteadyClock()
        self._evaluator = [name for name, spec in base.contract.sensors.items() if spec.visibility == "evaluator"]
        self._summary = Summary()
        self._rows = 0
        self._closed = False
        started_utc = self._now_utc()
        check_installed()
        self.path = _make_run_directory(Path(folder), f"{base.contract.name}_{base.backend_name}", started_utc)
        self._manifest = start_of_manifest(
            self, base, run_id=self.path.name, started_utc=started_utc.isoformat(timespec="milliseconds")
        )
        write_json(self.path / MANIFEST, self._manifest)
        self._log = LogWriter(self.path / LOG)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and record it."""
        asked = plain(options)
        before = self._base.last_reset
        observation, info = self.env.reset(seed=seed, options=options)
        outer = dict(zip(FIELDS_OF_RESET, (seed, asked, observation, info), strict=True))
        made = self._base.last_reset
        row = reset_row(
            None if made is before else made,
            row=self._rows,
            outer=outer,
            evaluator=self._evaluator,
            store=self._store,
        )
        self._write("reset", row)
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
            write_json(self.path / MANIFEST, self._manifest)
        self._base.mark("returned")
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step, and record it. The action is put down before any wrapper can change it."""
        asked = plain(action)
        before = self._base.last_transition
        observation, reward, terminated, truncated, info = self.env.step(action)
        outer = dict(zip(FIELDS, (observation, asked, reward, terminated, truncated, info), strict=True))
        made = self._base.last_transition
        row = transition_row(
            None if made is before else made,
            row=self._rows,
            outer=outer,
            evaluator=self._evaluator,
            store=self._store,
        )
        first = self._summary.steps == 0
        self._write("transition", row)
        if first:
            write_json(self.path / FIRST_TRANSITION, row)
        self._base.mark("returned")
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environment, then complete the record. Idempotent."""
        try:
            super().close()
        finally:
            if not self._closed:
                self._closed = True
                self._complete()

    def _store(self, array: NDArray[Any]) -> Reference:
        return self._log.store(array, log_time_ns=self._clock.system_ns())

    def _write(self, topic: str, row: Row) -> None:
        self._log.write(topic, row, log_time_ns=self._clock.system_ns())
        self._rows += 1
        self._summary.add(row)

    def _complete(self) -> None:
        """Close the log, then the summary, then the manifest: one that says clean is the last thing written."""
        self._log.close()
        write_json(self.path / SUMMARY, self._summary.as_json(self._base.contract.fingerprint))
        self._manifest |= {
            "policy": plain(self.policy),
            "ended_utc": self._now_utc().isoformat(timespec="milliseconds"),
            "clean": not self._log.problem,
            "problem": self._log.problem,
        }
        write_json(self.path / MANIFEST, self._manifest)

    def _now_utc(self) -> datetime:
        return datetime.fromtimestamp(self._clock.system_ns() / NS_PER_S, tz=UTC)


def _make_run_directory(folder: Path, what: str, started_utc: datetime) -> Path:
    name = re.sub(r"[^\w.-]", "_", f"{started_utc:%Y%m%dT%H%M%SZ}_{what}_{secrets.token_hex(3)}")
    path = folder / name
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise RecordError(f"{path}: the run directory cannot be made: {error}") from None
    return path
