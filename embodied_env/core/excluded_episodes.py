"""Episodes excluded from success rates because the task may be solved without acting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SOLVED_AT_RESET = "solved_at_reset"  # the reset snapshot already satisfied the task
SOLVED_AT_FIRST_STEP = "solved_at_first_step"
"""Success at the first step of a task that does not judge the reset: it may have been solved before."""


def counted_apart(*, solved: bool | None, success: bool, info: Mapping[str, Any], steps: int) -> str:
    """Return the count of an ended episode that is excluded from the success rates, or "".

    `solved` is whether the reset snapshot satisfied the task, or None if that was not judged. `info` is that of the
    last step, whose ``step_index`` counts the environment's steps, not those of wrappers. Without it the number of
    rows, `steps`, counts.
    """
    if solved:
        return SOLVED_AT_RESET
    step = index if isinstance(index := info.get("step_index"), int) else steps
    return SOLVED_AT_FIRST_STEP if solved is None and success and step <= 1 else ""


def describe_exclusions(counts: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each kind of excluded episodes in `counts`."""
    kinds = {
        SOLVED_AT_RESET: "solved at reset, before the policy acted",
        SOLVED_AT_FIRST_STEP: "solved at the first step, by a task that does not judge the reset",
    }
    return [f"{what}: {counts[key]} (excluded from success rates)" for key, what in kinds.items() if counts[key]]


def solved_at_reset(inner: object) -> bool | None:
    """Return whether a reset with this ``inner`` of its row was solved, None if not judged."""
    verdict: Any = inner.get("verdict") if isinstance(inner, Mapping) else None
    solved = verdict.get("success") if isinstance(verdict, Mapping) else None
    return solved if isinstance(solved, bool) else None
