"""Validation of untrusted rows and manifests against `row_types`, and its violations."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar, cast

from embodied_env.contract.typed_values import OPEN, find_misfits
from embodied_env.core.info_schema import host_keys
from embodied_env.record.json_values import to_json_types
from embodied_env.record.row_types import (
    RESET,
    TRANSITION,
    Manifest,
    OuterResetRow,
    OuterTransitionRow,
    RecordedRow,
    ResetRow,
    ReturnedRow,
    StepRecord,
    TransitionRow,
)

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 120
_repr.maxlist = 20  # the number of gates at least
_MAX_CHARS = 400  # of the repr or the JSON of a value


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One violation of a rule."""

    rule: str  # the stable name of the rule, as in ``docs/reference/audit.md``
    field: str  # the path of the value in its row, or the file of the run
    value: Any  # the offending value in JSON types; a long one as truncated text
    text: str  # the message to print
    row: int | None = None  # index in its run or file, from 0, resets included; None: the whole run
    line: int | None = None  # the line of the row in its file, from 1; None: not a file of lines
    episode: int | None = None  # ``episode_index`` of the row, or None
    step: int | None = None  # ``step_index`` of the row, or None

    def __str__(self) -> str:
        """Return the text after its line or row."""
        if self.line is not None:
            return f"line {self.line}: {self.text}"
        return self.text if self.row is None else f"row {self.row}: {self.text}"

    def at(self, number: int, row: object, *, line: int | None = None) -> Violation:
        """Return a copy placed at `row`, the `number`-th of its run."""
        info = row.get("info") if isinstance(row, Mapping) else None
        indices = [info.get(key) if isinstance(info, Mapping) else None for key in ("episode_index", "step_index")]
        episode, step = (index if isinstance(index, int) else None for index in indices)
        return replace(self, row=number, line=line, episode=episode, step=step)


def make_violation(rule: str, field: str, value: object, text: str) -> Violation:
    """Return a violation without a place."""
    plain = to_json_types(value)
    if len(written := json.dumps(plain)) > _MAX_CHARS:
        plain = f"{written[:_MAX_CHARS]}..."
    return Violation(rule=rule, field=field, value=plain, text=text)


def wrong_value(rule: str, field: str, value: object, expected: str) -> Violation:
    """Return a violation that reads "FIELD is VALUE (expected EXPECTED)"."""
    return make_violation(rule, field, value, f"{field} is {short_repr(value)} (expected {expected})")


def check_equal(rule: str, field: str, value: object, wanted: object, why: str) -> Iterator[Violation]:
    """Yield a violation unless `value` is the wanted one, for the reason in `why`."""
    if value != wanted:
        yield wrong_value(rule, field, value, f"{short_repr(wanted)}{why}")


def short_repr(value: object) -> str:
    """Return the repr of `value`, truncated, for a message."""
    text = _repr.repr(value)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."


T = TypeVar("T")
Validated = tuple[T | None, list[Violation]]  # a value that fits its type, or None with its violations


def validate_row(row: object) -> Validated[RecordedRow]:
    """Validate a row of any kind, with free info where an outer wrapper made it."""
    named = row.get("schema") if isinstance(row, dict) else None
    if not isinstance(row, dict) or named not in (RESET, TRANSITION):
        return None, [wrong_value("row.schema", "schema", named, f"{RESET} or {TRANSITION}")]
    if row.get("inner", row) is None:
        return validate_as(OuterResetRow, row) if named == RESET else validate_as(OuterTransitionRow, row)
    return validate_as(ResetRow, row) if named == RESET else validate_as(TransitionRow, row)


def validate_as(kind: type[T], row: object) -> Validated[T]:
    """Validate a row of a known kind."""
    violations = _violations(row, kind)
    return (None, violations) if violations else (cast("T", row), [])


def validate_returned(fields: dict[str, Any], *, host_timing: bool) -> Validated[ReturnedRow]:
    """Validate the info of a step without an account, with host durations if `host_timing`."""
    if violations := _violations(fields["info"], Annotated[StepRecord, OPEN], path="info", host_timing=host_timing):
        return None, violations
    return cast("ReturnedRow", {**fields, "schema": TRANSITION, "inner": None}), []


def manifest_violations(manifest: object) -> list[Violation]:
    """Return the schema violations of ``manifest.json``, which may have further keys."""
    return _violations(manifest, Annotated[Manifest, OPEN], host_timing=False)


def _violations(value: object, kind: Any, *, path: str = "", host_timing: bool = True) -> list[Violation]:  # noqa: ANN401
    found = []
    for misfit in find_misfits(value, kind, required=host_keys(optional=False) if host_timing else frozenset()):
        where = ".".join(part for part in (path, misfit.path) if part)
        if misfit.expected:
            found.append(wrong_value("row.shape", where, misfit.value, misfit.expected))
        else:
            found.append(make_violation("row.shape", where, misfit.value, f"{where}: {misfit.problem}"))
    return found
