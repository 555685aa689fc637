"""The rules of a whole run: its manifest and its summary are those of its rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.fingerprint import differences
from embodied_env.core.outcome_counts import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET, counted_apart, solved_at_reset
from embodied_env.errors import ContractError
from embodied_env.record.audit.violation import Violation, make_violation, short_repr
from embodied_env.record.manifest import contract_of_manifest
from embodied_env.record.rows import RESET, TRANSITION, Row
from embodied_env.record.run import read_json
from embodied_env.record.run_writer import FIRST_TRANSITION, MANIFEST, SUMMARY
from embodied_env.record.summary import OUTSIDE

_RECORDER = "embodied_env.record.recorder:RecordTransitions"
_SAME = 1e-9  # how far means may differ, relative: they are summed up in another order


def contract_of(manifest: Mapping[str, Any]) -> tuple[Contract | None, list[Violation]]:
    """Return the contract of a run, and what is wrong with it; None: rows cannot be held to it."""
    said = manifest.get("contract")
    text, fingerprint = (said.get("text"), said.get("fingerprint")) if isinstance(said, dict) else (None, None)
    if not isinstance(text, str):
        problem = f"{MANIFEST}: contract.text is {short_repr(text)}; allowed: the text of a contract"
        return None, [make_violation("manifest.contract", f"{MANIFEST}: contract.text", text, problem)]
    try:
        contract = contract_of_manifest(manifest)
        made = contract.fingerprint
    except ContractError as error:
        problem = f"{MANIFEST}: contract.text cannot be read: {error}"
        return None, [make_violation("manifest.contract", f"{MANIFEST}: contract.text", text, problem)]
    if made != fingerprint:
        problem = (
            f"{MANIFEST}: contract.fingerprint is {short_repr(fingerprint)}, but contract.text makes it {made}: "
            "one of them was changed"
        )
        return None, [make_violation("manifest.fingerprint", f"{MANIFEST}: contract.fingerprint", fingerprint, problem)]
    return contract, list(_backend_fingerprint(manifest, contract))


def of_manifest(broken: Iterable[Violation], *, is_contract_told: bool) -> Iterator[Violation]:
    """Yield what of the manifest does not fit its schema; of the contract unless that is reported already."""
    for violation in broken:
        if not (is_contract_told and violation.field.startswith("contract")):
            yield replace(
                violation,
                rule="manifest.shape",
                field=f"{MANIFEST}: {violation.field}",
                text=f"{MANIFEST}: {violation.text}",
            )


def _backend_fingerprint(manifest: Mapping[str, Any], contract: Contract) -> Iterator[Violation]:
    backend, said = manifest.get("backend"), manifest.get("backend_fingerprint")
    if not isinstance(backend, str) or said is None:
        return
    if said != (made := contract.backend_fingerprint(backend)):
        where = f"{MANIFEST}: backend_fingerprint"
        text = f"{where} is {short_repr(said)}, but the profile of {backend} in contract.text makes it {made}"
        yield make_violation("manifest.backend_fingerprint", where, said, text)


class ManifestRules:
    """Takes rows in order: they are of the backend, the versions and the seeds that the manifest names."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        """Remember what the manifest says."""
        self._manifest = manifest
        self._seeds = list(manifest["seeds"]) if isinstance(manifest.get("seeds"), list) else []
        self._next_seed = 0
        self._told: dict[str, Any] = {}  # what was told of last, by key: once for each change
        task = manifest.get("task")
        self._terms = task.get("terms") if isinstance(task, dict) else None

    def of_run(self) -> Iterator[Violation]:
        """The recorder was the outermost wrapper: what is outside of it is not seen."""
        wrappers = self._manifest.get("wrappers")
        first = wrappers[0].get("class") if isinstance(wrappers, list) and wrappers else None
        if isinstance(wrappers, list) and first != _RECORDER:
            text = f"{MANIFEST}: the outermost of wrappers is {short_repr(first)}; allowed: {_RECORDER}"
            yield make_violation("manifest.wrappers", f"{MANIFEST}: wrappers", first, text)

    def add(self, row: Row) -> Iterator[Violation]:
        """Take in one row, of a reset or of a transition."""
        info = row.get("info")
        for key, (rule, expected) in self._expected().items():
            said = info.get(key) if isinstance(info, dict) else None
            if said is None or expected is None or said in (expected, self._told.get(key)):
                continue
            self._told[key] = said
            text = f"info.{key} is {short_repr(said)}, but {MANIFEST} makes it {short_repr(expected)}"
            yield make_violation(rule, f"info.{key}", said, text)
        if row.get("schema") == TRANSITION and isinstance(info, dict):
            yield from self._task(info.get("task"))
        if row.get("schema") == RESET and row.get("seed") is not None:
            yield from self._seed(row["seed"])

    def _task(self, terms: object) -> Iterator[Violation]:
        names = list(terms) if isinstance(terms, dict) else terms
        if names in (self._terms, self._told.get("task")):
            return
        self._told["task"] = names
        text = f"info.task has the terms {short_repr(names)}, but {MANIFEST} names {short_repr(self._terms)}"
        yield make_violation("manifest.task", "info.task", names, text)

    def _expected(self) -> dict[str, tuple[str, str | None]]:
        versions, contract = self._manifest.get("versions"), self._manifest.get("contract")
        version = None
        is_told = isinstance(contract, dict) and isinstance(contract.get("name"), str)
        if isinstance(versions, dict) and isinstance(contract, dict) and is_told:
            version = f"embodied_env {versions.get('embodied_env')}, {contract.get('name')} v{contract.get('version')}"
        return {
            "backend": ("manifest.backend", self._manifest.get("backend")),
            "wrapper_version": ("manifest.version", version),
        }

    def _seed(self, seed: object) -> Iterator[Violation]:
        if self._manifest.get("clean") is not True:  # then the manifest may lag behind
            return
        listed = self._seeds[self._next_seed] if self._next_seed < len(self._seeds) else None
        self._next_seed += 1
        if listed != seed:
            text = (
                f"seed is {short_repr(seed)}, but the {self._next_seed}. of seeds in {MANIFEST} is {short_repr(listed)}"
            )
            yield make_violation("manifest.seeds", "seed", seed, text)


class SummaryTally:
    """Takes rows in order and counts what ``summary.json`` counts, but for the latencies, in a memory of its own.

    Attributes:
        resets: how many rows of resets there were.
    """

    def __init__(self) -> None:
        """Begin with no row."""
        self.resets = 0
        self._counts: Counter[str] = Counter()
        self._end_reasons: Counter[str] = Counter()
        self._sum = self._return = 0.0
        self._open_steps = 0
        self._solved: bool | None = None
        self._ended = True

    def add(self, row: Row) -> None:
        """Take in one row, of a reset or of a transition, that is sound in its structure."""
        if row["schema"] == RESET:
            self.resets += 1
            self._counts["unfinished"] += self._open_steps > 0
            self._open_steps, self._return, self._ended = 0, 0.0, False
            self._solved = solved_at_reset(row.get("inner"))
            return
        info = row["info"]
        self._counts["steps"] += 1
        self._counts["clipped"] += info["action_clipped"]
        if self._ended:
            return
        self._open_steps += 1
        self._return += row["reward"]
        if row["terminated"] or row["truncated"]:
            self._end(row, info)

    def _end(self, row: Row, info: Mapping[str, Any]) -> None:
        self._counts["episodes"] += 1
        ended = "truncated" if row["truncated"] else "terminated"
        self._counts[ended] += 1
        success = ended == "terminated" and info.get("is_success") is True
        apart = counted_apart(solved=self._solved, success=success, info=info, steps=self._open_steps)
        if apart:
            self._counts[apart] += 1
        else:
            self._counts[f"rated_{ended}"] += 1
            self._counts["successes"] += success
        self._end_reasons[info.get("end_reason") or OUTSIDE] += 1
        self._sum += self._return
        self._open_steps, self._return, self._ended = 0, 0.0, True

    def apart(self) -> dict[str, int]:
        """Return how many episodes are in no success rate, by `counted_apart`."""
        return {key: self._counts[key] for key in (SOLVED_AT_RESET, SOLVED_AT_FIRST_STEP)}

    def as_summary(self) -> dict[str, Any]:
        """Return the part of a summary that is counted here."""
        count, episodes = self._counts, self._counts["episodes"]
        rated = count["rated_terminated"] + count["rated_truncated"]
        return {
            "episodes": episodes,
            "terminated": count["terminated"],
            "truncated": count["truncated"],
            "unfinished": count["unfinished"] + (self._open_steps > 0),
            **self.apart(),
            "rated": rated,
            "rated_terminated": count["rated_terminated"],
            "successes": count["successes"],
            "success_rate": count["successes"] / rated if rated else None,
            "success_rate_not_truncated": (
                count["successes"] / count["rated_terminated"] if count["rated_terminated"] else None
            ),
            "steps": count["steps"],
            "clipped_share": count["clipped"] / count["steps"] if count["steps"] else None,
            "end_reasons": dict(self._end_reasons),
            "return": {"mean": self._sum / episodes if episodes else None},
        }


def summary_of(folder: Path, tally: SummaryTally, manifest: Mapping[str, Any]) -> Iterator[Violation]:
    """Hold ``summary.json`` against what the rows make; a run that was never closed has none."""
    file = folder / SUMMARY
    if not file.exists():
        if manifest.get("clean") is True:
            yield make_violation("summary.missing", SUMMARY, None, f"{SUMMARY} is not there, but {MANIFEST} says clean")
        return
    try:
        said = read_json(file)
        told = {key: said[key] for key in tally.as_summary()}
        told["return"] = {"mean": told["return"]["mean"]}
    except (ValueError, KeyError, TypeError) as error:
        text = f"{SUMMARY} cannot be read: {type(error).__name__}: {error}"
        yield make_violation("summary.differs", SUMMARY, None, text)
        return
    for where, written, counted in differences(told, tally.as_summary()):
        if not _alike(written, counted):
            text = f"{SUMMARY}: {where} is {short_repr(written)}, but the rows make it {short_repr(counted)}"
            yield make_violation("summary.differs", f"{SUMMARY}: {where}", written, text)
            return


def first_of(folder: Path, first: Any) -> Iterator[Violation]:  # noqa: ANN401 - JSON types
    """Hold ``first_transition.json`` against the first transition of the log; None: there is none."""
    file = folder / FIRST_TRANSITION
    try:
        said = read_json(file) if first is not None or file.exists() else None
    except ValueError as error:
        yield make_violation("first.differs", FIRST_TRANSITION, None, str(error))
        return
    for where, written, logged in differences(said, first)[:1]:
        text = f"{FIRST_TRANSITION}: {where or 'it'} is {short_repr(written)}, but {short_repr(logged)} in the log"
        yield make_violation("first.differs", f"{FIRST_TRANSITION}: {where}", written, text)


def _alike(a: object, b: object) -> bool:
    both = isinstance(a, float) and isinstance(b, float)
    return both and math.isclose(a, b, rel_tol=_SAME, abs_tol=_SAME)  # type: ignore[arg-type] # both are floats


def wrappers_between(manifest: Mapping[str, Any]) -> str:
    """Return the wrappers between the recorder and the environment, for a message; "" when there is none."""
    wrappers = manifest.get("wrappers")
    layers = wrappers[1:-1] if isinstance(wrappers, list) else []
    names = []
    for layer in layers:
        kwargs = layer.get("kwargs") if isinstance(layer, dict) else None
        arguments = ", ".join(f"{k}={short_repr(v)}" for k, v in kwargs.items()) if isinstance(kwargs, dict) else "..."
        names.append(f"{str(layer.get('class') if isinstance(layer, dict) else layer).split(':')[-1]}({arguments})")
    return ", ".join(names)
