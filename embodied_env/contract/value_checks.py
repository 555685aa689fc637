"""Checks of single values, whose errors name the YAML path, the value and what is expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from embodied_env.errors import ContractError, did_you_mean, escaped

if TYPE_CHECKING:
    from embodied_env.contract.driver_units import DriverUnits
    from embodied_env.contract.sensor_schema import SensorSpec

_Bound: TypeAlias = float | tuple[float, ...]


def one_of(value: object, allowed: Iterable[str]) -> str:
    """Return the problem of a `value` that is not `allowed`, with a suggestion if one is close."""
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
    """Raise ContractError with `value` and `expected` at `path` unless it `holds`."""
    require(holds, path, f"{value} (expected {expected})")


def check_all(checks: Iterable[Callable[[], None]], source: str = "") -> None:
    """Run independent checks, or raise the first ContractError with the `others`."""
    errors: list[ContractError] = []
    for check in checks:
        try:
            check()
        except ContractError as error:
            errors.append(ContractError(error.path, error.problem, source=source))
        except (ValueError, TypeError, LookupError):  # a consequence of an earlier error
            if not errors:
                raise
    if errors:
        raise ContractError(errors[0].path, errors[0].problem, source=source, others=errors[1:])


def check_text(path: str, text: str) -> None:
    """Check that a name from elsewhere, such as that of a joint, is one line of printable text."""
    is_text = bool(text) and escaped(text) == text
    allow(is_text, escaped(path), f"invalid name {escaped(repr(text))}", "text without control characters, not empty")


def check_names(path: str, own: Iterable[str], known: Iterable[str]) -> None:
    """Check that the names with a value of their own at `path` are known."""
    for name in own:
        require(name in known, f"{path}.{name}", f"unknown name {one_of(name, known)}")


def check_reading(sensor: tuple[str, str], field: tuple[str, str], sensors: Mapping[str, SensorSpec]) -> None:
    """Check that a sensor and its field, each with its path, are those of a contract."""
    (path, name), (field_path, field_name) = sensor, field
    require(name in sensors, path, f"unknown sensor {one_of(name, sensors)}")
    fields = sensors[name].fields
    require(field_name in fields, field_path, f"unknown field {one_of(field_name, fields)}")


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


def check_driver(path: str, driver: DriverUnits, unit: str) -> None:
    """Check the units of a driver at `path`, from which follow values in `unit`."""
    is_angle = unit in ("rad", "rad/s")
    allow(driver.unit != "deg" or is_angle, f"{path}.unit", "'deg'", f"si or percent for values in {unit!r}")
    is_scaled = driver.unit != "percent" or driver.scale is not None or unit == "1"
    allow(is_scaled, f"{path}.scale", "missing", f"the way from 0 to 100 % in {unit}")
    is_velocity = unit.endswith("/s")
    allow(not (is_velocity and driver.offset), f"{path}.offset", driver.offset, "none: a velocity of 0 is rest")


def check_magnitude(path: str, value: float, *, least: float = 1e-9) -> None:
    """Check that products of such numbers neither underflow to 0 nor overflow."""
    allow(least <= abs(value) <= 1e12, path, value, f"a magnitude from {least:g} to 1e+12")


def check_bounds(path: str, low: _Bound, high: _Bound, size: int | None, *, infinite: bool = False) -> None:
    """Check that `size` bounds are finite, unless `infinite`, and that low < high."""
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
