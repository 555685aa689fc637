"""Checks of single values. Each error names the YAML path, the value and what is expected."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

from embodied_env.errors import ContractError, did_you_mean, escaped

_Bound: TypeAlias = float | tuple[float, ...]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TOPIC = re.compile(r"(/|~/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")


def one_of(value: object, allowed: Iterable[str]) -> str:
    """Return the problem of a `value` that is not `allowed`, with a suggestion when one is close."""
    names = sorted(allowed)
    expected = f"expected one of: {', '.join(names)}" if names else "none is declared"
    return f"{value!r} ({expected}){did_you_mean(value, names)}"


@contextmanager
def naming_file(source: str) -> Iterator[None]:
    """Add the file `source` to the ContractErrors of a block."""
    try:
        yield
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=source) from None


def require(holds: bool, path: str, problem: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise ContractError with `problem` at `path` unless the condition `holds`."""
    if not holds:
        raise ContractError(path, problem)


def allow(holds: bool, path: str, value: object, expected: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise ContractError with `value` and what is `expected` at `path` unless the condition `holds`."""
    require(holds, path, f"{value} (expected {expected})")


def check_name(path: str, name: str) -> None:
    """Check that a name can be part of an observation key."""
    is_name = _NAME.fullmatch(name) is not None
    allow(is_name, path, f"invalid name {name!r}", "lower-case letters, digits and _, starting with a letter")


def check_text(path: str, text: str) -> None:
    """Check that a name from elsewhere, such as that of a joint, is one line of printable text."""
    is_text = bool(text) and escaped(text) == text
    allow(is_text, escaped(path), f"invalid name {escaped(repr(text))}", "text without control characters, not empty")


def check_topic(path: str, topic: str) -> None:
    """Check the name of a ROS 2 topic."""
    is_topic = _TOPIC.fullmatch(topic) is not None
    allow(is_topic, path, f"{topic!r} is not a ROS 2 topic name", "a name such as joint_states or /joint_states")


def check_plain(path: str, value: object) -> None:
    """Check that a free-form value is JSON, so that it can be fingerprinted and recorded."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            allow(isinstance(key, str), path, f"invalid key {key!r}", "text")
            check_plain(f"{path}.{key}", item)
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            check_plain(f"{path}[{i}]", item)
    elif isinstance(value, float):
        allow(math.isfinite(value), path, value, "a finite number")
        check_magnitude(path, value, least=0.0)
    else:
        is_plain = value is None or isinstance(value, (bool, int, str))
        allow(is_plain, path, repr(value), "text, numbers, true, false, null, lists and mappings")


def check_positive(path: str, value: float, unit: str) -> None:
    """Check that a number is finite, above zero and of a magnitude that `check_magnitude` accepts."""
    allow(math.isfinite(value) and value > 0, path, value, f"a finite number of {unit} > 0")
    check_magnitude(path, value)


def check_not_negative(path: str, value: float, unit: str) -> None:
    """Check that a number is finite and not below zero."""
    allow(math.isfinite(value) and value >= 0, path, value, f"a finite number of {unit} >= 0")


def check_count(path: str, value: int, unit: str, *, least: int = 1) -> None:
    """Check that a whole number is at least `least`."""
    allow(value >= least, path, value, f"{least} or more {unit}".rstrip())


def check_share(path: str, value: float, noun: str = "share") -> None:
    """Check that a number is above 0 and at most 1."""
    allow(0 < value <= 1, path, value, f"a {noun} in (0, 1]")


def check_magnitude(path: str, value: float, *, least: float = 1e-9, most: float = 1e12) -> None:
    """Check that a number is in the range where products of such numbers neither underflow to 0 nor overflow."""
    allow(least <= abs(value) <= most, path, value, f"a magnitude from {least:g} to {most:g}")


def check_bounds(path: str, low: _Bound, high: _Bound, size: int | None, *, infinite: bool = False) -> None:
    """Check that bounds are finite (unless `infinite`), have `size` components (None: any), and low < high in each."""
    for key, bound, end in (("low", low, "-.inf"), ("high", high, ".inf")):
        is_bound = np.isfinite(bound) | (infinite & np.equal(bound, float(end.replace(".", ""))))
        allow(bool(np.all(is_bound)), f"{path}.{key}", bound, f"finite numbers{f' or {end}' * infinite}")
        if isinstance(bound, tuple):
            wanted = len(bound) if size is None else size
            fits = len(bound) == wanted and wanted > 0
            allow(fits, f"{path}.{key}", f"{len(bound)} values {list(bound)}", f"one number, or {wanted} of them")
    if isinstance(low, tuple) and isinstance(high, tuple):
        allow(len(low) == len(high), path, f"{len(low)} values of low and {len(high)} of high", "equal numbers")
    is_ordered = bool(np.all(np.less(low, high)))
    allow(is_ordered, path, f"empty or inverted interval from low {low} to high {high}", "low < high")
