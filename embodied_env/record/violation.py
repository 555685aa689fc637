"""One violation of an audit rule, with its place, field and value."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from embodied_env.record.json_values import to_json_types

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 120
_MAX_REPR_CHARS = 400
_repr.maxlist = 20  # the number of gates at least

_MAX_VALUE_CHARS = 400  # of its JSON


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
    if len(written := json.dumps(plain)) > _MAX_VALUE_CHARS:
        plain = f"{written[:_MAX_VALUE_CHARS]}..."
    return Violation(rule=rule, field=field, value=plain, text=text)


def wrong_value(rule: str, field: str, value: object, expected: str) -> Violation:
    """Return a violation that reads "FIELD is VALUE (expected EXPECTED)"."""
    return make_violation(rule, field, value, f"{field} is {short_repr(value)} (expected {expected})")


def short_repr(value: object) -> str:
    """Return the repr of `value`, truncated, for a message."""
    text = _repr.repr(value)
    return text if len(text) <= _MAX_REPR_CHARS else f"{text[:_MAX_REPR_CHARS]}..."
