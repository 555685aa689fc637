"""Validation of untrusted rows and manifests, the one place where JSON gets the types of `row_types`."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, cast

from embodied_env.contract.typed_values import OPEN, find_misfits
from embodied_env.core.info_schema import host_keys
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
from embodied_env.record.violation import Violation, make_violation, wrong_value

T = TypeVar("T")

Validated = tuple[T | None, list[Violation]]
"""A value that fits its type, or None with its violations."""


def validate_row(row: object) -> Validated[RecordedRow]:
    """Validate a row of any kind, with free info if ``inner`` is null.

    Then an outer wrapper made it.
    """
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
    """Validate the info of a transition without an account.

    With `host_timing` it has the durations of the host.
    """
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
