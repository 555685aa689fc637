"""The user's answers to `contract init` on a driver's units, and its open questions."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from embodied_env.contract.driver_units import DriverUnits
from embodied_env.errors import UsageError

_FORM = "NAME=si|deg|percent[:FACTOR[:OFFSET]], such as gripper=percent:0.04 or 'arm/*=deg'"


@dataclass(kw_only=True)
class Answers:
    """Units by pattern and paths of right values, as the user answers the questions of a draft."""

    commands: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # actuator, or actuator/joint
    readings: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # joint
    known: tuple[str, ...] = ()
    _used: set[str] = field(default_factory=set)

    def command_units(self, actuator: str, joint: str) -> dict[str, Any] | None:
        """Return the `driver` of a commanded joint, empty in SI units, or None if it is not given."""
        return self._units("--unit", self.commands, (f"{actuator}/{joint}", actuator))

    def reading_units(self, joint: str) -> dict[str, Any] | None:
        """Return the `driver` of the readings of a joint, or None if it is not given."""
        return self._units("--state-unit", self.readings, (joint,))

    def is_known(self, path: str) -> bool:
        """Return whether the value that is written at `path` is right."""
        self._used.add(f"--known {path}")
        return path in self.known

    def check_used(self, questions: Iterable[str]) -> None:
        """Raise UsageError for an answer to no question."""
        given = {f"--unit {each}": "actuator or actuator/joint" for each in self.commands}
        given |= {f"--state-unit {each}": "joint with a measured position" for each in self.readings}
        given |= {f"--known {each}": f"one of: {', '.join(questions) or 'nothing is asked'}" for each in self.known}
        for option, expected in given.items():
            if option not in self._used:
                raise UsageError(f"no match for {option} (expected {expected}); run contract init without it first")

    def _units(self, option: str, given: Mapping[str, dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any] | None:
        for pattern, units in given.items():
            if any(fnmatch.fnmatchcase(name, pattern) for name in names):
                self._used.add(f"{option} {pattern}")
                return units
        return None


def to_si(units: Mapping[str, Any] | None, value: float) -> float:
    """Return the contract's value of a driver's."""
    offset, factor = DriverUnits(**(units or {})).line
    return offset + factor * value


def parse_units(option: str, given: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the `driver` of a contract by pattern, from texts like ``NAME=UNIT``.

    The full form is ``NAME=UNIT[:FACTOR[:OFFSET]]``. A negative factor is one that counts in the other direction. A
    factor may be a quotient, such as 0.085/255.
    """
    found = {}
    for text in given:
        pattern, _, value = text.partition("=")
        unit, *numbers = value.split(":")
        try:
            factor, offset = [*map(_quotient, numbers), *(1.0, 0.0)[len(numbers) :]]
            is_valid = math.isfinite(offset) and math.isfinite(factor) and factor != 0.0
        except (ValueError, ZeroDivisionError):
            is_valid = False
        if not (pattern and unit in ("si", "deg", "percent") and is_valid):
            raise UsageError(f"invalid {option} {text!r} (expected {_FORM})")
        units: dict[str, Any] = {"unit": unit} if unit != "si" else {}
        units |= {"scale": abs(factor)} if numbers and (abs(factor) != 1.0 or unit == "percent") else {}
        units |= {"sign": -1} if factor < 0.0 else {}
        found[pattern] = units | ({"offset": offset} if offset else {})
    return found


def _quotient(text: str) -> float:
    numerator, _, denominator = text.partition("/")
    return float(numerator) / float(denominator or 1.0)
