"""Types of keys with their bounds, for validation and for the reference pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from annotated_types import Ge, Interval

from embodied_env.errors import escaped


@dataclass(frozen=True, kw_only=True)
class Such:
    """A condition beyond bounds, with `expected` in words and `shown` in errors."""

    expected: str
    holds: Callable[[Any], bool]
    shown: Callable[[Any], object] = repr

    def change(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of the type, followed by the condition."""

        def check(value: object) -> object:
            if not self.holds(value):
                shown = list(value) if isinstance(value, tuple) else self.shown(value)
                raise ValueError(f"{shown} (expected {self.expected})")
            return value

        return {"type": "function-after", "function": {"type": "no-info", "function": check}, "schema": schema}


def like(pattern: str, expected: str) -> Such:
    """Return the condition that a text matches `pattern` as a whole."""
    return Such(expected=expected, holds=lambda text: re.fullmatch(pattern, text) is not None)


def exactly_one(*keys: str) -> Such:
    """Return the condition that a dataclass has exactly one of these keys."""

    def given(value: object) -> list[str]:
        return [key for key in keys if getattr(value, key) is not None]

    return Such(
        expected=f"exactly one of: {', '.join(keys)}",
        holds=lambda value: len(given(value)) == 1,
        shown=lambda value: " and ".join(given(value)) or "none",
    )


Positive: TypeAlias = Annotated[float, Interval(ge=1e-9, le=1e12)]  # whose products are neither 0 nor infinite
Quantity: TypeAlias = Annotated[float, Interval(ge=-1e12, le=1e12)]  # whose products are not infinite
NotNegative: TypeAlias = Annotated[float, Ge(0)]
Share: TypeAlias = Annotated[float, Interval(gt=0, le=1)]
Count: TypeAlias = Annotated[int, Ge(1)]
WholeNumber: TypeAlias = Annotated[int, Ge(0)]

Name: TypeAlias = Annotated[  # part of an observation key
    str, like(r"[a-z][a-z0-9_]*", "a name of lower-case letters, digits and _, starting with a letter")
]
Topic: TypeAlias = Annotated[
    str, like(r"(/|~/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*", "a ROS 2 name: joint_states or /joint_states")
]
Text: TypeAlias = Annotated[  # a name that the contract does not choose, such as that of a joint
    str,
    Such(
        expected="text without control characters, not empty", holds=lambda text: bool(text) and escaped(text) == text
    ),
]
Range: TypeAlias = Annotated[
    tuple[Quantity, Quantity],
    Such(expected="[low, high] with low < high", holds=lambda pair: pair[1] - pair[0] >= 1e-9),
]
