"""A violation: one rule of the audit that one row, or the run, breaks, with the field and the value that show it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from embodied_env.record.json_values import to_json_types

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 120

_MOST_OF_A_VALUE = 400  # characters of its JSON that are told


@dataclass(frozen=True, kw_only=True)
class Violation:
    """What is wrong, and where.

    Attributes:
        rule: which rule is broken, a stable name as in ``docs/audit.md``.
        field: the path of the value in its row, or the file of the run.
        value: what stands there, in types of JSON; a long one as text, cut.
        text: the sentence for people.
        row: the number of the row in its run or file, from 0, resets included; None: it is of the whole run.
        line: the line of the file that the row stands in, from 1; None: it is no file of lines.
        episode: ``episode_index`` of the row; None: it has none.
        step: ``step_index`` of the row.
    """

    rule: str
    field: str
    value: Any
    text: str
    row: int | None = None
    line: int | None = None
    episode: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        """Return the sentence, with the place before it."""
        if self.line is not None:
            return f"line {self.line}: {self.text}"
        return self.text if self.row is None else f"row {self.row}: {self.text}"

    def at(self, number: int, row: object, *, line: int | None = None) -> Violation:
        """Return the same, with its place: `row` is the `number`-th of its run."""
        info = row.get("info") if isinstance(row, Mapping) else None
        indices = [info.get(key) if isinstance(info, Mapping) else None for key in ("episode_index", "step_index")]
        episode, step = (index if isinstance(index, int) else None for index in indices)
        return replace(self, row=number, line=line, episode=episode, step=step)


def make_violation(rule: str, field: str, value: object, text: str) -> Violation:
    """Return a violation whose place is not known yet."""
    told = to_json_types(value)
    if len(written := json.dumps(told)) > _MOST_OF_A_VALUE:
        told = f"{written[:_MOST_OF_A_VALUE]}..."
    return Violation(rule=rule, field=field, value=told, text=text)


def short_repr(value: object) -> str:
    """Return the repr of `value`, cut where it is long, for a message."""
    return _short.repr(value)
