"""Checks of single values; each error names the YAML path, the value and what is allowed."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping

import numpy as np

from embodied_env.errors import ContractError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TOPIC = re.compile(r"(/|~/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")


def one_of(value: object, allowed: Iterable[str]) -> str:
    """Say what is allowed instead of `value`, with a guess when one is close."""
    names = sorted(allowed)
    close = [] if value in names else difflib.get_close_matches(str(value), names, n=1)  # most checks hold
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"{value!r} is not known{hint}; allowed: {', '.join(names)}"


def require(holds: bool, path: str, problem: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise ContractError for `problem` at `path` unless it `holds`."""
    if not holds:
        raise ContractError(path, problem)


def check_name(path: str, name: str) -> None:
    """A name can be part of a key of the observation."""
    require(
        _NAME.fullmatch(name) is not None,
        path,
        f"the name {name!r} is not allowed; allowed: lower-case letters, digits and _, a letter first",
    )


def check_plain(path: str, value: object) -> None:
    """A value of free form is what JSON can say: so it has a fingerprint, and can be recorded."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            require(isinstance(key, str), path, f"the key {key!r} is not allowed; allowed: text")
            check_plain(f"{path}.{key}", item)
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            check_plain(f"{path}[{i}]", item)
    elif isinstance(value, float):
        require(math.isfinite(value), path, f"{value} is not allowed; allowed: a finite number")
        check_magnitude(path, value, least=0.0)
    else:
        require(
            value is None or isinstance(value, (bool, int, str)),
            path,
            f"{value!r} is not allowed; allowed: text, numbers, true, false, null, lists and mappings",
        )


def check_positive(path: str, value: float, unit: str) -> None:
    """A number is finite, above zero and of a magnitude that `check_magnitude` takes."""
    require(math.isfinite(value) and value > 0, path, f"{value} is not allowed; allowed: a finite number of {unit} > 0")
    check_magnitude(path, value)


def check_magnitude(path: str, value: float, *, least: float = 1e-9, most: float = 1e12) -> None:
    """A number is so large and so small that products of such numbers neither underflow to 0 nor overflow."""
    require(
        least <= abs(value) <= most, path, f"{value} is not allowed; allowed: a magnitude from {least:g} to {most:g}"
    )


def check_bounds(path: str, low: float | tuple[float, ...], high: float | tuple[float, ...], size: int | None) -> None:
    """Bounds are finite, of the right length, and low < high in each component."""
    for key, bound in (("low", low), ("high", high)):
        require(np.all(np.isfinite(bound)).item(), f"{path}.{key}", f"{bound} is not finite")
        if isinstance(bound, tuple):
            wanted = len(bound) if size is None else size
            require(
                len(bound) == wanted and wanted > 0,
                f"{path}.{key}",
                f"{list(bound)} has {len(bound)} values; allowed: one number, or {wanted} of them",
            )
    if isinstance(low, tuple) and isinstance(high, tuple):
        require(len(low) == len(high), path, f"low has {len(low)} values and high {len(high)}; allowed: as many")
    require(
        bool(np.all(np.less(low, high))),
        path,
        f"low {low} must be below high {high}: the interval is empty or inverted",
    )


def check_topic(path: str, topic: str) -> None:
    """A topic has a name of ROS 2."""
    require(_TOPIC.fullmatch(topic) is not None, path, f"{topic!r} is not a ROS 2 topic name")
