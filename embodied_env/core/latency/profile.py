"""Latency profiles: measured latencies of a robot or run, with methods and confidence intervals, and their file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from embodied_env.contract.files import read_text_file
from embodied_env.contract.frozen_dict import freeze
from embodied_env.core.bounded_json import parse_json
from embodied_env.core.json_messages import OBJECT, QUANTITY, TEXT, Kind, check_object, list_of, object_of, or_null
from embodied_env.errors import EmbodiedEnvError

SCHEMA = "embodied_env/latency_profile/2"

LARGEST_PROFILE = 2**26
"""Largest profile file that is read, in bytes."""

BLOCK = 10
"""Largest number of consecutive steps of one episode in a block."""

Step = tuple[int | None, ...]
"""Integer nanoseconds: the age of each sensor's reading, then observation to command, then actuation or None."""

_LONGEST_NS = 10**12
_HEAD = ("contract", "fingerprint", "backend", "created_utc", "host", "seed")
_SINGLE = ("actuation_s", "lag_s", "obs_to_command_s")
_BY_NAME = ("evidence", "capture_s", "transport_s", "age_s")

_INT = Kind(expected="an integer", is_valid=lambda value: type(value) is int)
_LIST = Kind(expected="a list", is_valid=lambda value: isinstance(value, list))
_PROFILE = {
    "schema": TEXT,
    **dict.fromkeys(_HEAD, TEXT),
    "seed": _INT,
    "stages": OBJECT,
    "unknown": object_of(TEXT),
    "steps": or_null(OBJECT),
}
_STAGES = {**dict.fromkeys(_SINGLE, or_null(OBJECT)), **dict.fromkeys(_BY_NAME, object_of(OBJECT))}
_ESTIMATE = {
    **dict.fromkeys(("value_s", "low_s", "high_s", "confidence"), QUANTITY),
    **dict.fromkeys(("method", "detail"), TEXT),
    "n": _INT,
    "samples_s": list_of(QUANTITY),
}
_STEPS = {"sensors": list_of(TEXT), "blocks_ns": list_of(list_of(_LIST))}


class LatencyProfileError(EmbodiedEnvError, ValueError):
    """A latency profile, or a part of one, is invalid or cannot be read or written."""


@dataclass(frozen=True, kw_only=True)
class MeasuredStepDelays:
    """Blocks of consecutive steps.

    The ages of a `Step` are those at which the observation was frozen, in the order of `sensors`; the command was
    published so long after that, and acted so long after its publication (None: not measured).
    """

    sensors: tuple[str, ...]
    blocks: tuple[tuple[Step, ...], ...]

    def __post_init__(self) -> None:
        """Raise LatencyProfileError for an empty block or an invalid step."""
        width = len(self.sensors) + 2
        for number, block in enumerate(self.blocks):
            if not block:
                raise LatencyProfileError(f"block {number} has no step; allowed: 1 or more")
            for row in block:
                if len(row) != width or not all(_is_delay(ns) for ns in row[:-1]):
                    raise LatencyProfileError(f"a step of block {number} is {row}; allowed: {width} delays, ns >= 0")
                if row[-1] is not None and not _is_delay(row[-1]):
                    raise LatencyProfileError(
                        f"the actuation in block {number} is {row[-1]}; allowed: ns >= 0, or null"
                    )

    @property
    def count(self) -> int:
        """Number of steps."""
        return sum(map(len, self.blocks))

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
        return [ns for block in self.blocks for row in block if (ns := row[index]) is not None]

    def as_mapping(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"sensors": list(self.sensors), "blocks_ns": [[list(row) for row in block] for block in self.blocks]}


def read_steps(data: Any) -> MeasuredStepDelays:  # noqa: ANN401 - unvalidated JSON
    """Parse the result of `MeasuredStepDelays.as_mapping`; raises ValueError for anything else."""
    check_object(data, "steps", _STEPS)
    blocks = tuple(tuple(map(tuple, block)) for block in data["blocks_ns"])
    return MeasuredStepDelays(sensors=tuple(data["sensors"]), blocks=blocks)


def _is_delay(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LONGEST_NS


class BlockReservoir:
    """Collects steps into blocks and keeps an even selection of `most` to twice `most` blocks."""

    def __init__(self, most: int = 1000) -> None:
        """Keep every block until there are twice `most`."""
        self._most = most
        self._stride = 1
        self._seen = 0
        self._kept: list[tuple[Step, ...]] = []
        self._block: list[Step] = []

    def take(self, row: Sequence[int | None]) -> None:
        """Add a step that follows the last one."""
        self._block.append(tuple(row))
        if len(self._block) == BLOCK:
            self.end()

    def end(self) -> None:
        """End the block: the next step does not follow the last one."""
        if not self._block:
            return
        if self._seen % self._stride == 0:
            self._kept.append(tuple(self._block))
        self._seen += 1
        self._block = []
        if len(self._kept) >= 2 * self._most:
            self._kept = self._kept[::2]
            self._stride *= 2

    def blocks(self) -> tuple[tuple[Step, ...], ...]:
        """Return the kept blocks, oldest first."""
        self.end()
        return tuple(self._kept)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A latency in seconds, with the interval that contains the true value at this confidence.

    `samples_s` are single measurements in order of time, possibly none; `n` is the number of independent measurements;
    `detail` qualifies the estimate.
    """

    value_s: float
    low_s: float
    high_s: float
    method: str
    n: int
    confidence: float = 0.95
    detail: str = ""
    samples_s: tuple[float, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Raise LatencyProfileError for a number that is not finite, or a value outside its interval."""
        numbers = (self.value_s, self.low_s, self.high_s, self.confidence, *self.samples_s)
        if not all(isinstance(number, float) and math.isfinite(number) for number in numbers):
            raise LatencyProfileError(f"an estimate of {numbers[:4]} is not allowed; allowed: finite floats")
        if not self.low_s <= self.value_s <= self.high_s:
            raise LatencyProfileError(f"{self.value_s} s is outside of its interval [{self.low_s}, {self.high_s}] s")
        if not 0.0 < self.confidence < 1.0 or not self.method or self.n < 1:
            raise LatencyProfileError(
                f"confidence {self.confidence}, method {self.method!r}, n {self.n} are not allowed; "
                "allowed: 0 < confidence < 1, a method, n >= 1"
            )


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
        """Freeze the mappings."""
        freeze(self, *_BY_NAME, "unknown")


def as_mapping(profile: LatencyProfile) -> dict[str, Any]:
    """Return `profile` as plain values for JSON."""

    def plain(estimate: Estimate | None) -> dict[str, Any] | None:
        return None if estimate is None else asdict(estimate) | {"samples_s": list(estimate.samples_s)}

    stages: dict[str, Any] = {key: plain(getattr(profile, key)) for key in _SINGLE}
    for key in _BY_NAME:
        stages[key] = {name: plain(estimate) for name, estimate in getattr(profile, key).items()}
    head = {key: getattr(profile, key) for key in _HEAD}
    steps = None if profile.steps is None else profile.steps.as_mapping()
    return {"schema": SCHEMA, **head, "stages": stages, "unknown": dict(profile.unknown), "steps": steps}


def write_profile(profile: LatencyProfile, path: str | Path) -> None:
    """Write `profile` as JSON, a line per stage and one for the steps, atomically.

    Raises:
        LatencyProfileError: when it cannot be written.
    """
    data = as_mapping(profile)
    steps = json.dumps(data.pop("steps"), separators=(",", ":"))
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(f'{json.dumps(data, indent=1)[:-2]},\n "steps": {steps}\n}}\n', encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise LatencyProfileError(f"{path} cannot be written: {error.strerror or error}") from error


def read_profile(path: str | Path) -> LatencyProfile:
    """Read and validate a profile; raises LatencyProfileError with the path of the invalid value."""
    try:
        return _parse_profile(parse_json(read_text_file(path, most_bytes=LARGEST_PROFILE), max_bytes=LARGEST_PROFILE))
    except (OSError, ValueError) as error:
        raise LatencyProfileError(f"{path}: {error}") from error


def _parse_profile(data: Any) -> LatencyProfile:  # noqa: ANN401 - unvalidated JSON
    """Raise ValueError for anything else than the result of `as_mapping`."""
    if isinstance(data, dict) and data.get("schema", SCHEMA) != SCHEMA:
        raise LatencyProfileError(f"schema {data['schema']!r} is not allowed; allowed: {SCHEMA!r}")
    values = check_object(data, "profile", _PROFILE)
    stages = check_object(values.pop("stages"), "stages", _STAGES)
    del values["schema"]
    for key in _SINGLE:
        values[key] = None if stages[key] is None else _parse_estimate(stages[key], f"stages.{key}")
    for key in _BY_NAME:
        values[key] = {name: _parse_estimate(value, f"stages.{key}.{name}") for name, value in stages[key].items()}
    steps = values.pop("steps")
    return LatencyProfile(**values, steps=None if steps is None else read_steps(steps))


def _parse_estimate(data: Any, path: str) -> Estimate:  # noqa: ANN401 - unvalidated JSON
    values = check_object(data, path, _ESTIMATE)
    try:
        return Estimate(**{**values, "samples_s": tuple(values["samples_s"])})
    except LatencyProfileError as error:
        raise LatencyProfileError(f"{path}: {error}") from None
