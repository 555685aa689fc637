"""Rules by which the manifest, summary and first transition of a run agree with its rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.fingerprint import differences
from embodied_env.contract.robot_files import limit_paths
from embodied_env.core.excluded_episodes import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET, counted_apart, solved_at_reset
from embodied_env.errors import ContractError
from embodied_env.record.manifest import RECORDER, contract_of_manifest, describe_robot, world_of
from embodied_env.record.row_schema import Violation, make_violation, short_repr, wrong_value
from embodied_env.record.row_types import RESET, TRANSITION, Manifest, ResetRow, StepRecord, TransitionRow
from embodied_env.record.rows import by_sensor, held_readings, is_no_action
from embodied_env.record.run import read_json
from embodied_env.record.run_writer import FIRST_TRANSITION, MANIFEST, SUMMARY
from embodied_env.record.summary import OUTSIDE

_TIME_LIMIT = "gymnasium.wrappers.common:TimeLimit"
_REL_TOLERANCE = 1e-9  # tolerance of means that were summed in another order


def read_contract(manifest: Mapping[str, Any]) -> tuple[Contract | None, list[Violation]]:
    """Return the contract of a run, None if rows cannot be checked by it, and violations."""
    recorded = manifest.get("contract")
    recorded = recorded if isinstance(recorded, dict) else {}
    text, fingerprint, where = recorded.get("text"), recorded.get("fingerprint"), f"{MANIFEST}: contract.text"
    if not isinstance(text, str):
        return None, [wrong_value("manifest.contract", where, text, "the text of a contract")]
    try:
        contract = contract_of_manifest(manifest)
        made = contract.fingerprint
    except ContractError as error:
        return None, [make_violation("manifest.contract", where, text, f"{where} cannot be read: {error}")]
    if made != fingerprint:
        where, expected = f"{MANIFEST}: contract.fingerprint", f"{made}, the fingerprint of contract.text"
        return None, [wrong_value("manifest.fingerprint", where, fingerprint, expected)]
    backend, profile = manifest.get("backend"), manifest.get("backend_fingerprint")
    if isinstance(backend, str) and profile is not None and profile != (made := contract.backend_fingerprint(backend)):
        where, expected = f"{MANIFEST}: backend_fingerprint", f"{made}, that of {backend} in contract.text"
        return contract, [wrong_value("manifest.backend_fingerprint", where, profile, expected)]
    return contract, []


def check_robot(manifest: Manifest, contract: Contract) -> Iterator[Violation]:
    """Check the robot file of the manifest, and that the run was possible under it."""
    where, expected = f"{MANIFEST}: contract.robot", describe_robot(contract)
    if (found := manifest["contract"].get("robot")) != expected:
        yield wrong_value("manifest.robot", where, found, f"{short_repr(expected)}, as in contract.text")
    overridden = () if contract.robot is None else contract.robot.overridden
    if unknown := [path for path in overridden if path not in limit_paths(contract)]:
        yield wrong_value("manifest.robot", f"{where}.overridden", unknown, "limits of the contract")
    if overridden and not contract.override_robot_limits:
        text = f"{where}.overridden is {short_repr(overridden)} (expected none without override_robot_limits: true)"
        yield make_violation("manifest.robot", where, overridden, text)
    abilities: Mapping[str, Any] = manifest.get("capabilities") or {}
    is_excused = abilities.get("emulated") or abilities.get("chosen_confirmed") or abilities.get("actuates") is False
    if contract.unconfirmed and manifest.get("backend") == "real" and not is_excused:
        expected_ = "none on a robot, or capabilities.chosen_confirmed"
        yield wrong_value("manifest.robot", f"{where}.unconfirmed", list(contract.unconfirmed), expected_)


def warn_overridden(contract: Contract | None) -> list[Violation]:
    """Return a warning of the limits of the robot file that `contract` loosens."""
    if contract is None or contract.robot is None or not contract.robot.overridden:
        return []
    listed = ", ".join(contract.robot.overridden)
    text = f"override_robot_limits: limits of the robot file {contract.robot.name!r} are loosened: {listed}"
    return [make_violation("robot.overridden", f"{MANIFEST}: contract.robot", contract.robot.overridden, text)]


def name_manifest(misfits: Iterable[Violation], *, is_contract_reported: bool) -> Iterator[Violation]:
    """Yield schema violations of a manifest, of a contract unless they are reported already."""
    for each in misfits:
        if not (is_contract_reported and each.field.startswith("contract")):
            field, text = f"{MANIFEST}: {each.field}", f"{MANIFEST}: {each.text}"
            yield replace(each, rule="manifest.shape", field=field, text=text)


class ManifestRules:
    """Rows have the backend, versions, task and seeds of the manifest, with one report each."""

    def __init__(self, manifest: Manifest) -> None:
        self._is_clean = manifest.get("clean") is True
        self._wrappers = manifest.get("wrappers", [])
        self._seeds = manifest.get("seeds", [])
        self._next_seed = 0
        self._reported: dict[str, Any] = {}  # the last reported value, by key
        task, versions, contract = (manifest.get(key) for key in ("task", "versions", "contract"))
        self._terms = task.get("terms") if isinstance(task, dict) else None
        version = None
        if isinstance(versions, dict) and isinstance(contract, dict) and isinstance(contract.get("name"), str):
            version = f"embodied_env {versions.get('embodied_env')}, {contract['name']} v{contract.get('version')}"
        self._expected = {
            "backend": ("manifest.backend", manifest.get("backend")),
            "world": ("manifest.world", world_of(manifest)),
            "wrapper_version": ("manifest.version", version),
        }

    def check_run(self) -> Iterator[Violation]:
        """Check that the recorder was outermost, since it does not record wrappers outside of it."""
        first = self._wrappers[0]["class"] if self._wrappers else RECORDER
        if first != RECORDER:
            text = f"{MANIFEST}: the outermost wrapper is {short_repr(first)} (expected {RECORDER})"
            yield make_violation("manifest.wrappers", f"{MANIFEST}: wrappers", first, text)

    def add(self, row: Mapping[str, Any]) -> Iterator[Violation]:
        """Check the next row, of any JSON types."""
        info = row.get("info")
        for key, (rule, expected) in self._expected.items():
            value = info.get(key) if isinstance(info, dict) else None
            if value is None or expected is None or value in (expected, self._reported.get(key)):
                continue
            self._reported[key] = value
            yield wrong_value(rule, f"info.{key}", value, f"{short_repr(expected)}, as in {MANIFEST}")
        if row.get("schema") == TRANSITION and isinstance(info, dict):
            names = list(terms) if isinstance(terms := info.get("task"), dict) else terms
            if names not in (self._terms, self._reported.get("task")):
                self._reported["task"] = names
                text = f"info.task has the terms {short_repr(names)} (expected {short_repr(self._terms)} of {MANIFEST})"
                yield make_violation("manifest.task", "info.task", names, text)
        seed = row.get("seed")
        if row.get("schema") == RESET and seed is not None and self._is_clean:  # else the manifest may lag behind
            listed = self._seeds[self._next_seed] if self._next_seed < len(self._seeds) else None
            if listed != seed:
                expected = f"{short_repr(listed)}, as seeds[{self._next_seed}] in {MANIFEST}"
                yield wrong_value("manifest.seeds", "seed", seed, expected)
            self._next_seed += 1


class RowTally:
    """Counts what ``summary.json`` counts but latencies, without the code that writes it."""

    def __init__(self) -> None:
        self.resets = 0
        self._counts: Counter[str] = Counter()
        self._end_reasons: Counter[str] = Counter()
        self.held: Counter[tuple[str, str]] = Counter()
        self._returns: list[float] = []
        self._return = 0.0
        self._open_steps = 0
        self._solved: bool | None = None
        self._has_ended = True

    def add(self, row: TransitionRow | ResetRow) -> None:
        """Count the next row."""
        if row["schema"] == RESET:
            self.resets += 1
            self._counts["unfinished"] += self._open_steps > 0
            self._open_steps, self._return, self._has_ended = 0, 0.0, False
            self._solved = solved_at_reset(row["inner"])
            return
        info = row["info"]
        self._counts["steps"] += 1
        self.held.update(held_readings(info))
        is_missed = is_no_action(row["inner"]["action"])
        self._counts["missed_actions"] += is_missed
        self._counts["clipped"] += info["action_clipped"] and not is_missed
        if self._has_ended:
            return
        self._open_steps += 1
        self._return += row["reward"]
        if row["terminated"] or row["truncated"]:
            self._end_episode(row, info)

    def _end_episode(self, row: TransitionRow, info: StepRecord) -> None:
        ended = "terminated" if row["terminated"] else "truncated"
        success = ended == "terminated" and info["is_success"]
        apart = counted_apart(solved=self._solved, success=success, info=info, steps=self._open_steps)
        self._counts.update(("episodes", ended, apart or f"rated_{ended}"))
        self._counts["successes"] += success and not apart
        self._end_reasons[info["end_reason"] or OUTSIDE] += 1
        self._returns.append(self._return)
        self._open_steps, self._return, self._has_ended = 0, 0.0, True

    def apart(self) -> dict[str, int]:
        """Return the number of episodes outside the success rates, by `counted_apart`."""
        return {key: self._counts[key] for key in (SOLVED_AT_RESET, SOLVED_AT_FIRST_STEP)}

    def as_summary(self) -> dict[str, Any]:
        """Return the part of a summary that is counted here."""
        count, returns = self._counts, self._returns
        rated, rated_terminated = count["rated_terminated"] + count["rated_truncated"], count["rated_terminated"]
        return {
            **{key: count[key] for key in ("episodes", "terminated", "truncated")},
            "unfinished": count["unfinished"] + (self._open_steps > 0),
            **self.apart(),
            "rated": rated,
            "rated_terminated": rated_terminated,
            "successes": count["successes"],
            "success_rate": count["successes"] / rated if rated else None,
            "success_rate_not_truncated": count["successes"] / rated_terminated if rated_terminated else None,
            "steps": count["steps"],
            "clipped_share": count["clipped"] / count["steps"] if count["steps"] else None,
            "missed_actions": count["missed_actions"],
            "held_readings": by_sensor(self.held),
            "end_reasons": dict(self._end_reasons),
            "return": _moments(returns) if returns else dict.fromkeys(("mean", "min", "max", "std")),
        }


def _moments(values: list[float]) -> dict[str, float]:
    """Return the statistics of one return or more, which are infinite or NaN beyond floats."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) * (value - mean) for value in values) / len(values)
    return {"mean": mean, "min": min(values), "max": max(values), "std": math.sqrt(variance)}


def warn_held(tally: RowTally, contract: Contract | None) -> Iterator[Violation]:
    """Yield a warning for each sensor with held readings but without a mask of them."""
    for sensor, counts in by_sensor(tally.held).items():
        spec = None if contract is None else contract.sensors.get(sensor)
        if spec is None or not spec.mask:
            kinds = ", ".join(f"{quality} {count}" for quality, count in counts.items())
            text = f"{sensor}: observations that hold an earlier reading, without a mask: {kinds}"
            yield make_violation("sensor.held", f"info.sensors.{sensor}.quality", counts, text)


def check_summary(folder: Path, tally: RowTally, manifest: Manifest) -> Iterator[Violation]:
    """Check ``summary.json``, if the run was closed, against the counts of the rows."""
    file = folder / SUMMARY
    if not file.exists():
        if manifest.get("clean") is True:
            text = f"{SUMMARY} is missing (expected because {MANIFEST} has clean: true)"
            yield make_violation("summary.missing", SUMMARY, None, text)
        return
    counted = tally.as_summary()
    try:
        summary = read_json(file)
        written = {key: summary[key] for key in counted}
        written["return"] = {key: written["return"][key] for key in counted["return"]}
    except (ValueError, KeyError, TypeError) as error:
        text = f"{SUMMARY} cannot be read: {type(error).__name__}: {error}"
        yield make_violation("summary.differs", SUMMARY, None, text)
        return
    for where, a, b in differences(written, counted):
        is_rounded = isinstance(a, float) and isinstance(b, float)
        if not (is_rounded and math.isclose(a, b, rel_tol=_REL_TOLERANCE, abs_tol=_REL_TOLERANCE)):
            yield wrong_value("summary.differs", f"{SUMMARY}: {where}", a, f"{short_repr(b)}, counted from the rows")
            return


def check_first_transition(folder: Path, first: Any) -> Iterator[Violation]:  # noqa: ANN401 - JSON types
    """Check ``first_transition.json`` against the first transition of the log, or None."""
    file = folder / FIRST_TRANSITION
    try:
        written = read_json(file) if first is not None or file.exists() else None
    except ValueError as error:
        yield make_violation("first.differs", FIRST_TRANSITION, None, str(error))
        return
    if first is None and written is not None:
        text = f"{FIRST_TRANSITION} has a transition (expected none, as the log has none)"
        yield make_violation("first.differs", FIRST_TRANSITION, None, text)
        return
    for where, value, logged in differences(written, first)[:1]:
        text = f"{FIRST_TRANSITION}: {where or 'row'} is {short_repr(value)} (expected {short_repr(logged)} of the log)"
        yield make_violation("first.differs", f"{FIRST_TRANSITION}: {where}", value, text)


def read_time_limit(manifest: Manifest) -> int | None:
    """Return the least `max_episode_steps` of a run's TimeLimits, or None."""
    layers = manifest.get("wrappers", [])[1:-1]
    steps = [(layer["kwargs"] or {}).get("max_episode_steps") for layer in layers if layer["class"] == _TIME_LIMIT]
    return min((each for each in steps if isinstance(each, int)), default=None)


def describe_inner_wrappers(manifest: Manifest) -> str:
    """Return the wrappers between the recorder and the environment as text, or ""."""
    names = []
    for layer in manifest.get("wrappers", [])[1:-1]:
        kwargs = layer["kwargs"]
        arguments = "..." if kwargs is None else ", ".join(f"{k}={short_repr(v)}" for k, v in kwargs.items())
        names.append(f"{layer['class'].split(':')[-1]}({arguments})")
    return ", ".join(names)
