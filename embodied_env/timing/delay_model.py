"""Delay models of a lockstep world, for the instants of readings and command effects.

All times are integer nanoseconds of world time. They depend only on the model and the seed of the reset, so that every
process computes the same delays.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.bounded_files import read_text_file
from embodied_env.contract.bounded_json import parse_json
from embodied_env.contract.frozen_dict import freeze
from embodied_env.contract.typed_values import parse_as
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import ContractError, UsageError
from embodied_env.timing.clock import NS_PER_S
from embodied_env.timing.latency_profile import (
    LARGEST_PROFILE,
    Estimate,
    LatencyProfile,
    MeasuredStepDelays,
    read_profile,
)

SCHEMA = "embodied_env/delays/1"

Kind = Literal["empirical", "constant", "lognormal"]
Order = Literal["keep", "as_drawn"]

_CUT_SIGMAS = 3.0902  # standard deviations at the 99.9 % quantile of a normal distribution
_COUNTS = {"constant": 1, "empirical": 1, "lognormal": 2}
_LONGEST_S = 1000.0


@dataclass(frozen=True, kw_only=True)
class DelayDistribution:
    """The distribution of one delay, drawn once per step.

    `values`: the delay, s, of ``constant``; the measured delays, s, of ``empirical``; the median, s, and the standard
    deviation of the logarithm of ``lognormal``, which is cut at its 99.9 % quantile, so that delays are bounded.
    """

    kind: Kind
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise UsageError for an unknown kind, or a wrong number or range of values."""
        count = _COUNTS.get(self.kind)
        if count is None:
            raise UsageError(f"unknown distribution {one_of(self.kind, _COUNTS)}")
        if len(self.values) < count or (self.kind != "empirical" and len(self.values) > count):
            raise UsageError(f"{self.kind} delay with {len(self.values)} values (expected {count})")
        is_bounded = all(0.0 <= value <= _LONGEST_S for value in self.values)
        if not is_bounded or self.longest_ns > _LONGEST_S * NS_PER_S:
            raise UsageError(f"{self.kind} delay {self.values[:4]} (expected delays from 0 to {_LONGEST_S} s)")

    @property
    def longest_ns(self) -> int:
        """Upper bound of the delay."""
        if self.kind == "lognormal":
            return round(self.values[0] * math.exp(min(700.0, _CUT_SIGMAS * self.values[1])) * NS_PER_S)
        return round(max(self.values) * NS_PER_S)

    def draw_ns(self, rng: np.random.Generator) -> int:
        """Draw a delay."""
        if self.kind == "constant":
            return round(self.values[0] * NS_PER_S)
        if self.kind == "empirical":
            return round(self.values[int(rng.integers(len(self.values)))] * NS_PER_S)
        median_s, sigma = self.values
        return min(round(median_s * math.exp(sigma * rng.standard_normal()) * NS_PER_S), self.longest_ns)


@dataclass(frozen=True, kw_only=True)
class DelayModel:
    """The delays of a lockstep world.

    `sensors`: age of a sensor's reading when the observation is frozen; a sensor without an entry has none.
    `inference`: from then until the command is sent; `actuation`: from then until it acts; None: no delay.
    `steps` replaces `sensors` and `inference`: whole measured steps are drawn, in blocks of consecutive steps, so that
    correlations are kept. A step without an actuation time draws it from `actuation`. With the `order` ``keep`` no
    command acts before an earlier one; with ``as_drawn`` it may. Readings always keep their order.
    """

    order: Order = "keep"
    sensors: Mapping[str, DelayDistribution] = field(default_factory=dict)
    inference: DelayDistribution | None = None
    actuation: DelayDistribution | None = None
    steps: MeasuredStepDelays | None = None

    def __post_init__(self) -> None:
        """Freeze the mapping, or raise UsageError for an unknown order or conflicting options."""
        freeze(self, "sensors")
        if self.order not in ("keep", "as_drawn"):
            raise UsageError(f"unknown order {self.order!r} (expected 'keep' or 'as_drawn')")
        if self.steps is not None and (not self.steps.blocks_ns or self.sensors or self.inference is not None):
            raise UsageError("invalid delays (expected at least one step without sensors and inference, or no steps)")

    @property
    def names(self) -> tuple[str, ...]:
        """The delayed sensors."""
        return tuple(self.sensors) if self.steps is None else self.steps.sensors

    @property
    def has_actuation(self) -> bool:
        """Whether the model has actuation delays."""
        return self.actuation is not None or (self.steps is not None and bool(self.steps.actuation_ns()))

    def longest_age_ns(self) -> int:
        """Return the upper bound of a reading's age."""
        if self.steps is not None:
            return max((max(self.steps.ages_ns(name)) for name in self.steps.sensors), default=0)
        return max((draw.longest_ns for draw in self.sensors.values()), default=0)

    def as_mapping(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "schema": SCHEMA,
            **asdict(self),
            "sensors": {name: asdict(draw) for name, draw in self.sensors.items()},
        }


def parse_model(data: Mapping[str, Any]) -> DelayModel:
    """Parse the result of `DelayModel.as_mapping`, or raise UsageError for any other mapping."""
    try:
        return parse_as(DelayModel, {key: value for key, value in data.items() if key != "schema"})
    except ContractError as error:
        raise UsageError(f"delays: {error}") from None


_DrawnDelays = tuple[Sequence[int], int, int]  # of one step, ns: ages by sensor, inference, actuation


def _independent_delays(model: DelayModel, seed: int) -> Iterator[_DrawnDelays]:
    """Draw each delay from its own random stream, so that a new sensor changes no other delay."""
    sensors = [(draw, _rng(seed, f"age/{name}")) for name, draw in model.sensors.items()]
    commands = [(model.inference, _rng(seed, "inference")), (model.actuation, _rng(seed, "actuation"))]
    while True:
        inference, actuation = (0 if draw is None else draw.draw_ns(rng) for draw, rng in commands)
        yield [draw.draw_ns(rng) for draw, rng in sensors], inference, actuation


def _block_bootstrap(model: DelayModel, steps: MeasuredStepDelays, seed: int) -> Iterator[_DrawnDelays]:
    """Draw blocks of measured steps, and missing actuation times from the model."""
    block_rng, actuation_rng = _rng(seed, "steps"), _rng(seed, "actuation")
    while True:
        for *known, actuation in steps.blocks_ns[int(block_rng.integers(len(steps.blocks_ns)))]:
            if actuation is None:
                actuation = 0 if model.actuation is None else model.actuation.draw_ns(actuation_rng)  # noqa: PLW2901
            *ages, inference = (ns or 0 for ns in known)
            yield ages, inference, actuation


def _rng(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, *b"delays/", *name.encode()])


@dataclass(frozen=True, kw_only=True)
class PlannedDelays:
    """Delays of observation k in world time, where k = 0 is the observation of the reset."""

    frozen_ns: int
    taken_ns: Mapping[str, int]  # when each sensor's reading is taken
    early: tuple[str, ...]  # sensors that repeat the reset's reading because no later one is old enough
    inference_ns: int  # delay of the command computed from the observation, as `actuation_ns`
    actuation_ns: int

    @property
    def acts_ns(self) -> int:
        """When the command acts."""
        return self.frozen_ns + self.inference_ns + self.actuation_ns


class DelaySchedule:
    """Planned delays of an episode, by observation number, which are equal for equal seeds.

    `ahead` is the number of future observations whose readings may be taken now.
    """

    def __init__(self, model: DelayModel, *, period_ns: int, intervals_ns: Mapping[str, float]) -> None:
        """Start a first episode at 0.

        `intervals_ns` are the intervals between the readings of sensors with a rate. A drawn instant too soon after the
        last reading of such a sensor repeats that reading.
        """
        self.model = model
        self._period_ns = period_ns
        share = 0.9 if model.steps is None else 0.5  # measured steps contain repeated readings already
        self._min_interval_ns = {name: share * intervals_ns.get(name, 0.0) for name in model.names}
        self.ahead = -(-model.longest_age_ns() // period_ns) + 1
        self.begin(0, 0)

    def begin(self, seed: int, origin_ns: int) -> None:
        """Start an episode whose reset was frozen at `origin_ns`."""
        model = self.model
        if model.steps is None:
            self._source = _independent_delays(model, seed)
        else:
            self._source = _block_bootstrap(model, model.steps, seed)
        self._origin_ns = origin_ns
        self._plans: dict[int, PlannedDelays] = {}
        self._next = 0

    def plan(self, k: int) -> PlannedDelays:
        """Return the plan of observation `k` and drop older plans."""
        while self._next <= k:
            self._plans[self._next] = self._plan_next(self._plans.get(self._next - 1))
            self._plans.pop(self._next - 2 * self.ahead - 4, None)
            self._next += 1
        return self._plans[k]

    def _plan_next(self, last: PlannedDelays | None) -> PlannedDelays:
        ages, inference_ns, actuation_ns = next(self._source)
        now_ns = self._origin_ns + self._next * self._period_ns
        taken: dict[str, int] = {}
        early = []
        for name, age_ns in zip(self.model.names, ages, strict=True):
            wanted_ns = now_ns - age_ns
            last_ns = self._origin_ns if last is None else last.taken_ns[name]
            is_new = wanted_ns > last_ns and wanted_ns - last_ns >= self._min_interval_ns[name]
            taken[name] = wanted_ns if is_new and last is not None else last_ns
            if wanted_ns < self._origin_ns == taken[name]:
                early.append(name)
        if self.model.order == "keep" and last is not None:
            actuation_ns = max(actuation_ns, last.acts_ns - now_ns - inference_ns)
        delays_ns = {"inference_ns": inference_ns, "actuation_ns": actuation_ns}
        return PlannedDelays(frozen_ns=now_ns, taken_ns=taken, early=tuple(early), **delays_ns)


def delays_of(profile: LatencyProfile, *, draw: Kind = "empirical", order: Order = "keep") -> DelayModel:
    """Return the delays measured in `profile`, or raise UsageError if it has no sensors.

    Args:
        profile: of a run (`profile_of_run`): ages are those at which the observation was frozen; or of a calibration
            (`extensions.calibration.calibration.calibrate`): ages are those at arrival.
        draw: ``empirical``: the measurements, of a run whole steps in blocks of consecutive ones; ``constant``: the
            median; ``lognormal``: fitted by the moments of the logarithms.
        order: see `DelayModel`.
    """
    if draw not in ("empirical", "constant", "lognormal"):
        raise UsageError(f"unknown draw {draw!r} (expected 'empirical', 'constant' or 'lognormal')")
    steps, actuation_s = profile.steps, profile.actuation_s
    acted_ns = () if steps is None else steps.actuation_ns()
    actuation = _distribution(actuation_s, draw, acted_ns) if acted_ns or actuation_s is not None else None
    inference: DelayDistribution | None = None
    if steps is not None:
        if draw == "empirical":
            return DelayModel(actuation=actuation, steps=steps, order=order)
        sensors = {name: _distribution(profile.age_s.get(name), draw, steps.ages_ns(name)) for name in steps.sensors}
        inference = _distribution(profile.obs_to_command_s, draw, steps.obs_to_command_ns())
    else:
        sensors = {name: _distribution(each, draw) for name, each in {**profile.capture_s, **profile.age_s}.items()}
        if not sensors:
            raise UsageError(f"no sensors in the profile of {profile.backend} (expected one of a run, or of real)")
        if profile.obs_to_command_s is not None:
            inference = _distribution(profile.obs_to_command_s, draw)
    return DelayModel(sensors=sensors, inference=inference, actuation=actuation, order=order)


def _distribution(estimate: Estimate | None, kind: Kind, delays_ns: Sequence[int] = ()) -> DelayDistribution:
    """Return a distribution of single delays, else of the estimate's samples or value."""
    given = [ns / NS_PER_S for ns in delays_ns] or (() if estimate is None else estimate.samples_s)
    samples = np.array([max(0.0, s) for s in given])  # a negative delay is an error of its clocks
    if kind == "constant" or len(samples) == 0:
        middle = float(np.median(samples)) if estimate is None else max(0.0, estimate.value_s)
        return DelayDistribution(kind="constant", values=(middle,))
    if kind == "empirical":
        return DelayDistribution(kind="empirical", values=tuple(samples.tolist()))
    logs = np.log(np.maximum(samples, 1.0 / NS_PER_S))
    return DelayDistribution(kind="lognormal", values=(float(np.exp(logs.mean())), float(logs.std())))


def load_delays(source: str | Path | LatencyProfile | DelayModel) -> DelayModel:
    """Return the delay model of `source`, a profile, a model, or a file of either."""
    if isinstance(source, DelayModel):
        return source
    if isinstance(source, LatencyProfile):
        return delays_of(source)
    if not isinstance(source, (str, Path)):
        raise UsageError(f"invalid delay_profile={source!r} (expected a file, a LatencyProfile or a DelayModel)")
    try:
        data = parse_json(read_text_file(source, most_bytes=LARGEST_PROFILE), max_bytes=LARGEST_PROFILE)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read delay_profile: {error} (expected a latency_profile.json)") from None
    if isinstance(data, dict) and data.get("schema") == SCHEMA:
        return parse_model(data)
    return delays_of(read_profile(source))


def schedule_of(model: DelayModel, contract: Contract) -> DelaySchedule:
    """Return the schedule of `model` under `contract`, the same in every process.

    Raises:
        UsageError: unless `model` covers every agent-visible sensor, and no sensor outside the contract.
    """
    if not isinstance(model, DelayModel):
        raise UsageError(f"invalid delays={model!r:.80} (expected a DelayModel); for a file use delay_profile")
    for name in model.names:
        if name not in contract.sensors:
            raise UsageError(f"delay of an unknown sensor {one_of(name, contract.sensors)}")
    for name, sensor in contract.sensors.items():
        if sensor.visibility == "agent" and name not in model.names:
            raise UsageError(f"no delay of the sensor {name!r} (expected one for each); for none use a constant of 0 s")
    intervals_ns = {name: NS_PER_S / spec.rate_hz for name, spec in contract.sensors.items() if spec.rate_hz}
    return DelaySchedule(model, period_ns=contract.control_period_ns, intervals_ns=intervals_ns)


def write_delays_file(model: DelayModel) -> Path:
    """Write the model to a temporary file, which another process loads and the caller removes."""
    prefix, suffix = "embodied_env_delays_", ".json"
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix=prefix, suffix=suffix, delete=False) as file:
        json.dump(model.as_mapping(), file)
    return Path(file.name)
