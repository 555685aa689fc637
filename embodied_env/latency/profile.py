"""What a calibration or a run found out: latencies with methods and intervals, and the file that keeps them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from embodied_env.bounded_json import parse_json
from embodied_env.contract.files import read_text_file
from embodied_env.contract.frozen import freeze
from embodied_env.errors import EmbodiedEnvError
from embodied_env.latency.steps import StepDelays, StepDelaysError, read_steps

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
    steps: StepDelays | None = field(default=None, repr=False)

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
