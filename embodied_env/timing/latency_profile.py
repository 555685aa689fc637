"""Files of latency profiles of a robot or run, with methods and confidence intervals."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from embodied_env.contract.bounded_files import read_text_file, write_file
from embodied_env.contract.bounded_json import parse_json
from embodied_env.contract.frozen_dict import freeze
from embodied_env.contract.typed_values import parse_as
from embodied_env.errors import EmbodiedEnvError

SCHEMA = "embodied_env/latency_profile/2"

LARGEST_PROFILE = 2**26
"""Largest profile file that is read, in bytes."""

Step = tuple[int | None, ...]
"""Age of each sensor's reading, then observation to command, then actuation or None, in integer nanoseconds."""

_LONGEST_NS = 10**12
_HEAD = ("contract", "fingerprint", "backend", "created_utc", "host", "seed")
_SINGLE = ("actuation_s", "lag_s", "obs_to_command_s")
_BY_NAME = ("evidence", "capture_s", "transport_s", "age_s")

_STAGES = (*_SINGLE, *_BY_NAME)


class LatencyProfileError(EmbodiedEnvError, ValueError):
    """A latency profile, or a part of one, is invalid or cannot be read or written."""


@dataclass(frozen=True, kw_only=True)
class MeasuredStepDelays:
    """Blocks of consecutive steps.

    A `Step` has the ages of the readings when the observation was frozen, in the order of `sensors`, then the times
    from there to the publication of the command, and on to its effect (None: not measured).
    """

    sensors: tuple[str, ...]
    blocks_ns: tuple[tuple[Step, ...], ...]

    def __post_init__(self) -> None:
        """Raise LatencyProfileError for an empty block or an invalid step."""
        width = len(self.sensors) + 2
        for number, block in enumerate(self.blocks_ns):
            if not block:
                raise LatencyProfileError(f"block {number}: no steps (expected at least one)")
            for row in block:
                delays = row[:-1] if row[-1:] == (None,) else row
                if len(row) != width or not all(type(ns) is int and 0 <= ns <= _LONGEST_NS for ns in delays):
                    expected = f"{width} delays, ns >= 0, the last one or null"
                    raise LatencyProfileError(f"block {number}: step {row} (expected {expected})")

    @property
    def count(self) -> int:
        """Number of steps."""
        return sum(map(len, self.blocks_ns))

    def ages_ns(self, sensor: str) -> list[int]:
        """Return the ages of one sensor's readings."""
        return self._column(self.sensors.index(sensor))

    def obs_to_command_ns(self) -> list[int]:
        """Return the time from observation to command of each step."""
        return self._column(-2)

    def actuation_ns(self) -> list[int]:
        """Return the actuation times that were measured."""
        return self._column(-1)

    def _column(self, index: int) -> list[int]:
        return [ns for block in self.blocks_ns for row in block if (ns := row[index]) is not None]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A latency in seconds, with the interval that contains the true value at this confidence."""

    value_s: float
    low_s: float
    high_s: float
    method: str
    n: int  # number of independent measurements
    confidence: float = 0.95
    detail: str = ""  # qualifies the estimate
    samples_s: tuple[float, ...] = field(default=(), repr=False)  # single measurements in order of time

    def __post_init__(self) -> None:
        """Raise LatencyProfileError for a non-finite number or a value outside its interval."""
        numbers = (self.value_s, self.low_s, self.high_s, self.confidence, *self.samples_s)
        if not all(isinstance(number, float) and math.isfinite(number) for number in numbers):
            raise LatencyProfileError(f"estimate {numbers[:4]} (expected finite floats)")
        if not self.low_s <= self.value_s <= self.high_s:
            raise LatencyProfileError(f"{self.value_s} s (expected a value in [{self.low_s}, {self.high_s}] s)")
        if not 0.0 < self.confidence < 1.0 or not self.method or self.n < 1:
            values = f"confidence {self.confidence}, method {self.method!r}, n {self.n}"
            raise LatencyProfileError(f"{values} (expected 0 < confidence < 1, a method, n >= 1)")


@dataclass(frozen=True, kw_only=True)
class LatencyProfile:
    """The latencies of one backend under one contract.

    Of a calibration: `actuation_s`, from the publication of a command until the joint begins to move, by the best
    available evidence (`evidence` has the estimate of each method); `lag_s`, the time constant of the lag after that;
    `capture_s` by sensor, from acquisition to arrival; `transport_s` by sensor, the part of that in the middleware;
    `unknown`, why something could not be identified.

    Of a run: `age_s` by sensor, the age of its reading when the observation was frozen; `obs_to_command_s`, from then
    until the command was published; `steps`, both for single steps.
    """

    contract: str
    fingerprint: str
    backend: str
    created_utc: str
    host: str
    seed: int
    actuation_s: Estimate | None = None
    lag_s: Estimate | None = None
    obs_to_command_s: Estimate | None = None
    evidence: Mapping[str, Estimate] = field(default_factory=dict)
    capture_s: Mapping[str, Estimate] = field(default_factory=dict)
    transport_s: Mapping[str, Estimate] = field(default_factory=dict)
    age_s: Mapping[str, Estimate] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    steps: MeasuredStepDelays | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        freeze(self, *_BY_NAME, "unknown")


def as_mapping(profile: LatencyProfile) -> dict[str, Any]:
    """Return `profile` as plain values for JSON."""
    values = asdict(profile)
    for key in _BY_NAME:
        values[key] = {name: asdict(estimate) for name, estimate in getattr(profile, key).items()}
    head, stages = ({key: values[key] for key in keys} for keys in (_HEAD, _STAGES))
    return {"schema": SCHEMA, **head, "stages": stages, "unknown": dict(profile.unknown), "steps": values["steps"]}


def write_profile(profile: LatencyProfile, path: str | Path, *, replace: bool = True) -> None:
    """Write `profile` as JSON, a line per stage and one for the steps, like `write_file`.

    Raises LatencyProfileError instead of OSError.
    """
    data = as_mapping(profile)
    steps = json.dumps(data.pop("steps"), separators=(",", ":"))
    try:
        write_file(path, f'{json.dumps(data, indent=1)[:-2]},\n "steps": {steps}\n}}\n', replace=replace)
    except OSError as error:
        raise LatencyProfileError(f"cannot write the latency profile {path}: {error.strerror or error}") from error


def read_profile(path: str | Path) -> LatencyProfile:
    """Read a profile, or raise LatencyProfileError with the path of the invalid value."""
    try:
        data = parse_json(read_text_file(path, most_bytes=LARGEST_PROFILE), max_bytes=LARGEST_PROFILE)
        if isinstance(data, dict) and data.get("schema", SCHEMA) != SCHEMA:
            raise LatencyProfileError(f"unknown schema {data['schema']!r} (expected {SCHEMA!r})")
        values = _with_keys(data, "profile", ("schema", *_HEAD, "stages", "unknown", "steps"))
        stages = _with_keys(values.pop("stages"), "stages", _STAGES)
        del values["schema"]
        return parse_as(LatencyProfile, {**values, **stages})
    except (OSError, ValueError) as error:
        raise LatencyProfileError(f"{path}: {error}") from error


def _with_keys(value: Any, where: str, keys: tuple[str, ...]) -> dict[str, Any]:  # noqa: ANN401 - JSON types
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {reprlib.repr(value)} (expected an object with {', '.join(keys)})")  # noqa: TRY004
    if wrong := value.keys() ^ set(keys):
        key = min(wrong)
        found = f"field {reprlib.repr(key)} is unknown" if key in value else f"field {key} is missing"
        raise ValueError(f"{where}: {found} (expected {', '.join(keys)})")
    return value
