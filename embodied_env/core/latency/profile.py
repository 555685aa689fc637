"""What a calibration or a run found out: latencies with methods and intervals, and the file that keeps them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from embodied_env.contract.files import read_text_file
from embodied_env.contract.frozen_dict import freeze
from embodied_env.core.bounded_json import parse_json
from embodied_env.errors import EmbodiedEnvError

BLOCK = 10
"""So many consecutive steps of an episode are kept together, at most."""

_LONGEST_NS = 10**12


class StepDelaysError(EmbodiedEnvError, ValueError):
    """The delays of steps are not what they must be."""


@dataclass(frozen=True, kw_only=True)
class MeasuredStepDelays:
    """Blocks of consecutive steps. A step is a row of integer nanoseconds.

    First, by sensor in the order of `sensors`, how old its reading was when the observation was frozen; then how long
    after that the command left; then how long after that it acted, None where that was not measured.
    """

    sensors: tuple[str, ...]
    blocks: tuple[tuple[tuple[int | None, ...], ...], ...]

    def __post_init__(self) -> None:
        """Raise StepDelaysError for a block without steps, or a step that is not as it must be."""
        width = len(self.sensors) + 2
        for number, block in enumerate(self.blocks):
            if not block:
                raise StepDelaysError(f"block {number} has no step; allowed: 1 or more")
            for row in block:
                if len(row) != width or not all(_is_delay(ns) for ns in row[:-1]):
                    raise StepDelaysError(f"a step of block {number} is {row}; allowed: {width} delays, ns >= 0")
                if row[-1] is not None and not _is_delay(row[-1]):
                    raise StepDelaysError(f"the actuation in block {number} is {row[-1]}; allowed: ns >= 0, or null")

    @property
    def count(self) -> int:
        """How many steps there are."""
        return sum(len(block) for block in self.blocks)

    def ages_ns(self, sensor: str) -> list[int]:
        """Return the ages of one sensor's readings."""
        index = self.sensors.index(sensor)
        return [row[index] or 0 for block in self.blocks for row in block]

    def obs_to_command_ns(self) -> list[int]:
        """Return how long after the observation each command left."""
        return [row[-2] or 0 for block in self.blocks for row in block]

    def actuation_ns(self) -> list[int]:
        """Return how long each command took to act, where that was measured."""
        return [row[-1] for block in self.blocks for row in block if row[-1] is not None]

    def as_mapping(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {"sensors": list(self.sensors), "blocks_ns": [[list(row) for row in block] for block in self.blocks]}


def read_steps(data: Any) -> MeasuredStepDelays:  # noqa: ANN401 - whatever a file holds
    """Read what `MeasuredStepDelays.as_mapping` wrote; raises StepDelaysError for anything else."""
    if not isinstance(data, Mapping) or data.keys() != {"sensors", "blocks_ns"}:
        raise StepDelaysError("the steps are not a mapping of sensors and blocks_ns")
    sensors, blocks = data["sensors"], data["blocks_ns"]
    if not isinstance(sensors, Sequence) or not all(isinstance(name, str) for name in sensors):
        raise StepDelaysError(f"the sensors of the steps are {sensors!r}; allowed: names")
    try:
        rows = tuple(tuple(tuple(row) for row in block) for block in blocks)
    except TypeError:
        raise StepDelaysError("blocks_ns are not lists of lists of lists") from None
    return MeasuredStepDelays(sensors=tuple(sensors), blocks=rows)


def _is_delay(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LONGEST_NS


class BlockReservoir:
    """Takes steps one after another, and keeps evenly chosen blocks of them: never more than twice `most`."""

    def __init__(self, most: int = 1000) -> None:
        """Keep at least `most` blocks, if there were so many."""
        self._most = most
        self._stride = 1
        self._seen = 0
        self._kept: list[tuple[tuple[int | None, ...], ...]] = []
        self._block: list[tuple[int | None, ...]] = []

    def take(self, row: Sequence[int | None]) -> None:
        """Take a step that follows the last one."""
        self._block.append(tuple(row))
        if len(self._block) == BLOCK:
            self.end()

    def end(self) -> None:
        """What comes next does not follow what was taken."""
        if not self._block:
            return
        if self._seen % self._stride == 0:
            self._kept.append(tuple(self._block))
        self._seen += 1
        self._block = []
        if len(self._kept) >= 2 * self._most:
            self._kept = self._kept[::2]
            self._stride *= 2

    def blocks(self) -> tuple[tuple[tuple[int | None, ...], ...], ...]:
        """Return what was kept, in the order it came."""
        self.end()
        return tuple(self._kept)


SCHEMA = "embodied_env/latency_profile/2"

LARGEST_PROFILE = 2**26
"""Bytes of a profile that is read."""

_HEAD = ("contract", "fingerprint", "backend", "created_utc", "host", "seed")
_SINGLE = ("actuation_s", "lag_s", "obs_to_command_s")
_BY_NAME = ("evidence", "capture_s", "transport_s", "age_s")


class LatencyProfileError(EmbodiedEnvError, ValueError):
    """A profile of latencies cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One latency, seconds: its value, and the interval that holds the true one with this confidence.

    `samples_s` are single measurements in order of time, as far as there are any; `n` is how many independent things
    were measured. `detail`: what else must be known of it.
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
        """Raise LatencyProfileError for what is no number, or outside of its own interval."""
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
    """The latencies of one world under one contract.

    `actuation_s`: from the publication of a command until the joint begins to act, by the best evidence there was;
    `evidence` has what each method says. `lag_s`: time constant of the lag that follows.
    `capture_s`: sensor -> from the acquisition of a reading until it is here. `transport_s`: sensor -> the part of that
    in the middleware. `unknown`: what could not be identified -> why.

    Of a run: `age_s`: sensor -> how old its reading was when the observation was frozen; `obs_to_command_s`: from then
    until the command left; `steps`: these of single steps, together.
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
    """Return `profile` as plain values, for JSON."""
    stages: dict[str, Any] = {}
    for key in _SINGLE:
        estimate = getattr(profile, key)
        stages[key] = None if estimate is None else _plain(estimate)
    for key in _BY_NAME:
        stages[key] = {name: _plain(estimate) for name, estimate in getattr(profile, key).items()}
    head = {key: getattr(profile, key) for key in _HEAD}
    steps = None if profile.steps is None else profile.steps.as_mapping()
    return {"schema": SCHEMA, **head, "stages": stages, "unknown": dict(profile.unknown), "steps": steps}


def to_text(profile: LatencyProfile) -> str:
    """Return `profile` as JSON: a line for each stage, and one for the steps."""
    data = as_mapping(profile)
    steps = json.dumps(data.pop("steps"), separators=(",", ":"))
    return f'{json.dumps(data, indent=1)[:-2]},\n "steps": {steps}\n}}'


def write_profile(profile: LatencyProfile, path: str | Path) -> None:
    """Write `profile` to `path`, whole or not at all.

    Raises:
        LatencyProfileError: when it cannot be written.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(to_text(profile) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise LatencyProfileError(f"{path} cannot be written: {error.strerror or error}") from error


def read_profile(path: str | Path) -> LatencyProfile:
    """Read a profile; raises LatencyProfileError, which names what is wrong, for anything but a whole and sound one."""
    try:
        data = parse_json(read_text_file(path, most_bytes=LARGEST_PROFILE), max_bytes=LARGEST_PROFILE)
    except (OSError, ValueError) as error:
        raise LatencyProfileError(f"{path}: {error}") from error
    try:
        return _parsed(data)
    except LatencyProfileError as error:
        raise LatencyProfileError(f"{path}: {error}") from None


def _plain(estimate: Estimate) -> dict[str, Any]:
    return asdict(estimate) | {"samples_s": list(estimate.samples_s)}


def _parsed(data: Any) -> LatencyProfile:  # noqa: ANN401 - whatever a file holds
    if isinstance(data, dict) and data.get("schema", SCHEMA) != SCHEMA:
        raise LatencyProfileError(f"schema {data['schema']!r} is not allowed; allowed: {SCHEMA!r}")
    _check_keys(data, ("schema", *_HEAD, "stages", "unknown", "steps"), "the profile")
    stages, unknown = data["stages"], data["unknown"]
    _check_keys(stages, (*_SINGLE, *_BY_NAME), "stages")
    for key in _HEAD:
        allowed = int if key == "seed" else str
        if type(data[key]) is not allowed:
            raise LatencyProfileError(f"{key} {data[key]!r} is not allowed; allowed: {allowed.__name__}")
    if not isinstance(unknown, dict) or not all(isinstance(why, str) for why in unknown.values()):
        raise LatencyProfileError(f"unknown {unknown!r} is not allowed; allowed: a mapping to texts")
    values: dict[str, Any] = {key: data[key] for key in _HEAD}
    values |= {key: None if stages[key] is None else _estimate(stages[key], f"stages.{key}") for key in _SINGLE}
    for key in _BY_NAME:
        if not isinstance(stages[key], dict):
            raise LatencyProfileError(f"stages.{key} {stages[key]!r} is not allowed; allowed: a mapping")
        values[key] = {name: _estimate(value, f"stages.{key}.{name}") for name, value in stages[key].items()}
    try:
        values["steps"] = None if data["steps"] is None else read_steps(data["steps"])
    except StepDelaysError as error:
        raise LatencyProfileError(f"steps: {error}") from None
    return LatencyProfile(**values, unknown=unknown)


def _estimate(data: Any, path: str) -> Estimate:  # noqa: ANN401 - whatever a file holds
    _check_keys(data, tuple(each.name for each in fields(Estimate)), path)
    texts = [key for key in ("method", "detail") if not isinstance(data[key], str)]
    if texts or type(data["n"]) is not int or not isinstance(data["samples_s"], list):
        raise LatencyProfileError(f"{path}: method and detail must be texts, n an integer, samples_s a list")
    try:
        return Estimate(**{**data, "samples_s": tuple(data["samples_s"])})
    except LatencyProfileError as error:
        raise LatencyProfileError(f"{path}: {error}") from None


def _check_keys(data: Any, keys: tuple[str, ...], path: str) -> None:  # noqa: ANN401 - whatever a file holds
    if not isinstance(data, dict):
        raise LatencyProfileError(f"{path} is {type(data).__name__}; allowed: a mapping with {', '.join(keys)}")
    if missing := [key for key in keys if key not in data]:
        raise LatencyProfileError(f"{path} has no {', '.join(missing)}")
    if strange := [str(key) for key in data if key not in keys]:
        raise LatencyProfileError(f"{path} has {', '.join(strange)}; allowed: {', '.join(keys)}")
