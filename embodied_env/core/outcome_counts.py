"""How an ended episode counts: in the success rates, or apart because the task may have been solved without acting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SOLVED_AT_RESET = "solved_at_reset"
"""The reset snapshot already satisfied the task, so whatever followed is no evidence of success or failure."""

SOLVED_AT_FIRST_STEP = "solved_at_first_step"
"""Success at the first step, and the task did not judge the reset: it may have been solved before."""


def counted_apart(*, solved: bool | None, success: bool, info: Mapping[str, Any], steps: int) -> str:
    """Return the count that an ended episode belongs to instead of the success rates; "" for one that is in them.

    Args:
        solved: whether the reset snapshot satisfied the task; None: the task did not judge it.
        success: the episode ended with success.
        info: of its last step; ``step_index`` counts the steps of the environment, whatever wrappers made of them.
        steps: how many steps it took by the rows, for an info without ``step_index``.
    """
    if solved:
        return SOLVED_AT_RESET
    step = index if isinstance(index := info.get("step_index"), int) else steps
    return SOLVED_AT_FIRST_STEP if solved is None and success and step <= 1 else ""


def said_of_counts(counts: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each kind of episodes that are in no success rate, where `counts` has some."""
    kinds = {
        SOLVED_AT_RESET: "solved at reset, before the policy acted",
        SOLVED_AT_FIRST_STEP: "solved at the first step, and the task did not judge the reset",
    }
    return [f"{what}: {counts[key]} (in no success rate)" for key, what in kinds.items() if counts[key]]


def solved_at_reset(inner: object) -> bool | None:
    """Return whether the reset of this account (``inner`` of its row) was solved; None: not judged, or not readable."""
    verdict: Any = inner.get("verdict") if isinstance(inner, Mapping) else None
    solved = verdict.get("success") if isinstance(verdict, Mapping) else None
    return solved if isinstance(solved, bool) else None
