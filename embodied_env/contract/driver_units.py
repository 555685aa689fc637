"""Map the values of driver messages linearly to those of the contract in SI units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.key_types import Positive, Quantity

FloatArray = NDArray[np.float64]

_FACTORS = {"si": 1.0, "deg": math.pi / 180.0, "percent": 0.01}
_ROUNDING = 4.0 * float(np.finfo(np.float64).eps)  # twice the error of a conversion there and back


@dataclass(frozen=True, kw_only=True)
class DriverUnits:
    """Units of a driver, whose `value` is ``offset + sign * scale * value`` in the contract."""

    # `si`: as in the contract; `deg`: degrees, or degrees/s where the contract has rad/s; `percent`: 100 % is 1
    unit: Literal["si", "deg", "percent"] = "si"
    # factor, in the contract's unit; null: 1. Required for joints in percent: the way from 0 to 100 %
    scale: Positive | None = None
    sign: Literal[1, -1] = 1  # -1: the driver counts in the other direction
    offset: Quantity = 0.0  # value of the contract where the driver has 0; none for velocities

    @property
    def line(self) -> tuple[float, float]:
        """The offset, and the factor of the driver's value."""
        return self.offset, self.sign * (1.0 if self.scale is None else self.scale) * _FACTORS[self.unit]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Converts values by linear functions, with coefficients (n,), or (1,) for all.

    `centres` are positions within the limits of commands. A rounded command is never further from them than the exact
    one, and so never outside its limits. With NaN it may be.
    """

    offsets: FloatArray
    factors: FloatArray
    centres: FloatArray

    def to_si(self, values: NDArray[Any]) -> FloatArray:
        """Return the contract's values of a driver's, shape (..., n)."""
        return np.asarray(self.offsets + self.factors * values, dtype=np.float64)

    def to_driver(self, values: NDArray[Any]) -> FloatArray:
        """Return the driver's values of the contract's, shape (..., n)."""
        converted = (values - self.offsets) / self.factors
        outwards = np.sign(self.to_si(converted) - values) * np.sign(values - self.centres) > 0.0
        slack = _ROUNDING * (np.abs(values) + np.abs(self.offsets))
        inner = (values - np.copysign(slack, values - self.centres) - self.offsets) / self.factors
        return np.where(outwards, inner, converted)


def conversion_of(units: Sequence[DriverUnits | None], centres: Sequence[float] = (math.nan,)) -> Conversion | None:
    """Return the conversion of values with these units, or None if all are the contract's."""
    lines = [line_of(each) for each in units]
    if all(line == (0.0, 1.0) for line in lines):
        return None
    offsets, factors = np.array(lines, dtype=np.float64).T
    return Conversion(offsets=offsets, factors=factors, centres=np.array(centres, dtype=np.float64))


def line_of(units: DriverUnits | None) -> tuple[float, float]:
    """Return the offset and the factor of a driver's value."""
    return (0.0, 1.0) if units is None else units.line


def same_line(robot: Any, own: Any) -> bool:  # noqa: ANN401 - units of a joint, as plain data
    """Accept the same conversion in other words."""
    first, second = (each if each is None else DriverUnits(**each) for each in (robot, own))
    return line_of(first) == line_of(second)


def same_lines(robot: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Accept fields that convert values of the same joints or components equally."""
    for theirs, ours in ((each.lines, own[name].lines) for name, each in robot.items() if name in own):
        both = [(theirs.get(key, theirs.get("*")), ours.get(key, ours.get("*"))) for key in theirs | ours]
        if any(None not in lines and lines[0] != lines[1] for lines in both):
            return False
    return True
