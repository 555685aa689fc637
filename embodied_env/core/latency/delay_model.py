"""Delays to be put into a world that waits: what is drawn, and when readings are taken and commands act by it.

Everything is in the world's own time, integer nanoseconds, and depends on the seed of the reset alone, so that whoever
knows model and seed knows every delay. Nothing here moves a world.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.files import read_text_file
from embodied_env.contract.frozen_dict import freeze
from embodied_env.core.bounded_json import parse_json
from embodied_env.core.clock import NS_PER_S
from embodied_env.core.latency.profile import (
    LARGEST_PROFILE,
    Estimate,
    LatencyProfile,
    MeasuredStepDelays,
    StepDelaysError,
    read_profile,
    read_steps,
)
from embodied_env.errors import UsageError

SCHEMA = "embodied_env/delays/1"

Order = Literal["keep", "as_drawn"]

_CUT_SIGMAS = 3.0902  # of a lognormal: its 99.9 % quantile
_FEWEST = {"constant": 1, "empirical": 1, "lognormal": 2}
_LONGEST_S = 1000.0


@dataclass(frozen=True, kw_only=True)
class DelayDistribution:
    """What a delay is drawn from, anew for each step.

    `values`: of ``constant`` the delay, s; of ``empirical`` measured ones, s; of ``lognormal`` its median, s, and the
    standard deviation of its logarithm. A lognormal is cut at its 99.9 % quantile, so that there is a longest one.
    """

    kind: Literal["constant", "empirical", "lognormal"]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise UsageError for what is no delay."""
        fewest = _FEWEST.get(self.kind)
        if fewest is None:
            raise UsageError(f"a draw of the kind {self.kind!r} is not allowed; allowed: {', '.join(_FEWEST)}")
        if len(self.values) < fewest or (self.kind != "empirical" and len(self.values) > fewest):
            raise UsageError(f"a {self.kind} draw has {len(self.values)} values; allowed: {fewest}")
        if not all(0.0 <= value <= _LONGEST_S for value in self.values):
            raise UsageError(f"a {self.kind} draw of {self.values[:4]} is not allowed; allowed: 0 to {_LONGEST_S} s")
        if self.longest_ns > _LONGEST_S * NS_PER_S:
            raise UsageError(f"a {self.kind} draw of up to {self.longest_ns / NS_PER_S} s; allowed: {_LONGEST_S} s")

    @property
    def longest_ns(self) -> int:
        """The longest delay that is ever drawn."""
        if self.kind == "lognormal":
            return round(self.values[0] * math.exp(min(700.0, _CUT_SIGMAS * self.values[1])) * NS_PER_S)
        return round(max(self.values) * NS_PER_S)

    def draw_ns(self, rng: np.random.Generator) -> int:
        """Return the next delay."""
        if self.kind == "constant":
            return round(self.values[0] * NS_PER_S)
        if self.kind == "empirical":
            return round(self.values[int(rng.integers(len(self.values)))] * NS_PER_S)
        median_s, sigma = self.values
        return min(round(median_s * math.exp(sigma * rng.standard_normal()) * NS_PER_S), self.longest_ns)

    def as_mapping(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {"kind": self.kind, "values": list(self.values)}


@dataclass(frozen=True, kw_only=True)
class DelayModel:
    """Which delays a world is given.

    `sensors`: how old a reading is when the observation is frozen; one that is not named is never late. `inference`:
    from then until the command leaves; `actuation`: from then until it acts; None: nothing is known, nothing is added.
    With `steps` whole steps are drawn from these instead, in blocks as they followed each other, so what belongs
    together stays together; where a step does not know its actuation, it is drawn from `actuation`.

    `order`: ``keep``: no command acts before an earlier one; ``as_drawn``: one that is quicker overtakes, and the
    slower acts after it, late. Readings keep their order either way: an old one is not handed out after a newer.
    """

    sensors: Mapping[str, DelayDistribution] = field(default_factory=dict)
    inference: DelayDistribution | None = None
    actuation: DelayDistribution | None = None
    steps: MeasuredStepDelays | None = None
    order: Order = "keep"

    def __post_init__(self) -> None:
        """Freeze the mapping; raise UsageError for what does not fit together."""
        freeze(self, "sensors")
        if self.order not in ("keep", "as_drawn"):
            raise UsageError(f"order {self.order!r} is not allowed; allowed: 'keep', 'as_drawn'")
        if self.steps is not None and (not self.steps.blocks or self.sensors or self.inference is not None):
            raise UsageError("steps are drawn whole; allowed: at least one, and neither sensors nor inference beside")

    @property
    def names(self) -> tuple[str, ...]:
        """The sensors that are late."""
        return tuple(self.sensors) if self.steps is None else self.steps.sensors

    @property
    def knows_actuation(self) -> bool:
        """Whether it says when commands act."""
        return self.actuation is not None or (self.steps is not None and bool(self.steps.actuation_ns()))

    def longest_age_ns(self) -> int:
        """Return how old a reading ever is by its draw."""
        if self.steps is not None:
            return max((max(self.steps.ages_ns(name)) for name in self.steps.sensors), default=0)
        return max((draw.longest_ns for draw in self.sensors.values()), default=0)

    def as_mapping(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {
            "schema": SCHEMA,
            "order": self.order,
            "sensors": {name: draw.as_mapping() for name, draw in self.sensors.items()},
            "inference": None if self.inference is None else self.inference.as_mapping(),
            "actuation": None if self.actuation is None else self.actuation.as_mapping(),
            "steps": None if self.steps is None else self.steps.as_mapping(),
        }


def parse_model(data: Any) -> DelayModel:  # noqa: ANN401 - whatever a file holds
    """Read what `DelayModel.as_mapping` wrote; raises UsageError for anything else."""
    keys = ("schema", "order", "sensors", "inference", "actuation", "steps")
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA or data.keys() != set(keys):
        raise UsageError(f"these are no delays; allowed: a mapping with {', '.join(keys)}, schema {SCHEMA!r}")
    if not isinstance(data["sensors"], Mapping):
        raise UsageError("sensors is no mapping; allowed: sensor -> draw")
    try:
        steps = None if data["steps"] is None else read_steps(data["steps"])
    except StepDelaysError as error:
        raise UsageError(f"steps: {error}") from None
    return DelayModel(
        sensors={str(name): _parse_draw(draw) for name, draw in data["sensors"].items()},
        inference=None if data["inference"] is None else _parse_draw(data["inference"]),
        actuation=None if data["actuation"] is None else _parse_draw(data["actuation"]),
        steps=steps,
        order=data["order"],
    )


def _parse_draw(data: Any) -> DelayDistribution:  # noqa: ANN401 - whatever a file holds
    if not isinstance(data, Mapping) or data.keys() != {"kind", "values"} or not isinstance(data["values"], list):
        raise UsageError(f"a draw is {data!r}; allowed: a mapping of kind and a list values")
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in data["values"]):
        raise UsageError(f"the values of a draw are {data['values']!r}; allowed: numbers")
    return DelayDistribution(kind=data["kind"], values=tuple(float(value) for value in data["values"]))


@dataclass(frozen=True, kw_only=True)
class PlannedDelays:
    """The delays around observation k, which is frozen at `frozen_ns` of the world's time; 0: that of the reset.

    `taken_ns`: by sensor, when its reading is taken. `early`: the sensors of which no reading since the reset is old
    enough: that of the reset is told again. `inference_ns`, `actuation_ns`: of the command that follows from it, which
    acts at `acts_ns`, their sum.
    """

    frozen_ns: int
    taken_ns: Mapping[str, int]
    early: tuple[str, ...]
    inference_ns: int
    actuation_ns: int

    @property
    def acts_ns(self) -> int:
        """When the command acts."""
        return self.frozen_ns + self.inference_ns + self.actuation_ns


class _Drawn(Protocol):
    """Draws the delays of one step after another: ages by sensor, inference, actuation."""

    def next(self) -> tuple[tuple[int, ...], int, int]: ...


class _Single:
    """Each delay on its own, by its name and the seed: one that is added changes no other."""

    def __init__(self, model: DelayModel, seed: int) -> None:
        self._sensors = [(draw, _rng(seed, f"age/{name}")) for name, draw in model.sensors.items()]
        self._inference = model.inference, _rng(seed, "inference")
        self._actuation = model.actuation, _rng(seed, "actuation")

    def next(self) -> tuple[tuple[int, ...], int, int]:
        ages = tuple(draw.draw_ns(rng) for draw, rng in self._sensors)
        inference, actuation = (0 if d is None else d.draw_ns(rng) for d, rng in (self._inference, self._actuation))
        return ages, inference, actuation


class _BlockBootstrap:
    """Whole steps, block by block."""

    def __init__(self, model: DelayModel, steps: MeasuredStepDelays, seed: int) -> None:
        self._blocks = steps.blocks
        self._rng, self._actuation_rng = _rng(seed, "steps"), _rng(seed, "actuation")
        self._actuation = model.actuation
        self._left: list[tuple[int | None, ...]] = []

    def next(self) -> tuple[tuple[int, ...], int, int]:
        if not self._left:
            self._left = list(self._blocks[int(self._rng.integers(len(self._blocks)))][::-1])
        *known, acted = self._left.pop()
        if acted is None:
            acted = 0 if self._actuation is None else self._actuation.draw_ns(self._actuation_rng)
        numbers = [ns or 0 for ns in known]
        return tuple(numbers[:-1]), numbers[-1], acted


def _rng(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, *b"delays/", *name.encode()])


class DelaySchedule:
    """The plans of an episode, by the number of the observation. Equal seeds have equal plans."""

    def __init__(self, model: DelayModel, *, period_ns: int, intervals_ns: Mapping[str, float]) -> None:
        """Prepare for a control period.

        Args:
            model: what is drawn.
            period_ns: the control period.
            intervals_ns: by sensor, how far its readings lie apart; a sensor that is not named has one whenever one is
                asked for. A reading that would follow the last too soon is the last one again.
        """
        self.model = model
        self._period_ns = period_ns
        share = 0.9 if model.steps is None else 0.5  # measured steps know themselves when a reading is told again
        self._apart_ns = {name: share * intervals_ns.get(name, 0.0) for name in model.names}
        self._ahead = -(-model.longest_age_ns() // period_ns) + 1
        self.begin(0, 0)

    @property
    def ahead(self) -> int:
        """So many observations from now, readings may be taken now."""
        return self._ahead

    def begin(self, seed: int, origin_ns: int) -> None:
        """Begin an episode whose reset was frozen at `origin_ns`."""
        model = self.model
        self._drawn: _Drawn = _Single(model, seed) if model.steps is None else _BlockBootstrap(model, model.steps, seed)
        self._origin_ns = origin_ns
        self._plans: dict[int, PlannedDelays] = {}
        self._next = 0

    def plan(self, k: int) -> PlannedDelays:
        """Return the plan of observation `k`; of those long past there is none any more."""
        while self._next <= k:
            self._plans[self._next] = self._follow(self._plans.get(self._next - 1), self._next)
            self._plans.pop(self._next - 2 * self._ahead - 4, None)
            self._next += 1
        return self._plans[k]

    def _follow(self, last: PlannedDelays | None, k: int) -> PlannedDelays:
        ages, inference_ns, actuation_ns = self._drawn.next()
        now_ns = self._origin_ns + k * self._period_ns
        taken: dict[str, int] = {}
        early = []
        for name, age_ns in zip(self.model.names, ages, strict=True):
            wanted_ns = now_ns - age_ns
            last_ns = self._origin_ns if last is None else last.taken_ns[name]
            is_new = wanted_ns > last_ns and wanted_ns - last_ns >= self._apart_ns[name]
            taken[name] = wanted_ns if is_new and last is not None else last_ns
            if wanted_ns < self._origin_ns == taken[name]:
                early.append(name)
        if self.model.order == "keep" and last is not None:
            actuation_ns = max(actuation_ns, last.acts_ns - now_ns - inference_ns)
        return PlannedDelays(
            frozen_ns=now_ns,
            taken_ns=taken,
            early=tuple(early),
            inference_ns=inference_ns,
            actuation_ns=actuation_ns,
        )


Kind = Literal["empirical", "constant", "lognormal"]


def delays_of(profile: LatencyProfile, *, draw: Kind = "empirical", order: Order = "keep") -> DelayModel:
    """Return the delays that `profile` has measured.

    Args:
        profile: of a run (`profile_of_run`) or of a calibration (`analysis.calibration.calibrate`). Of a run, ages
            are those that readings had when the observation was frozen; of a calibration, those that they came with.
        draw: ``empirical``: single measurements, of a run whole steps in blocks as they followed each other;
            ``constant``: the median; ``lognormal``: fitted to the measurements by the moments of their logarithms.
        order: see `DelayModel`.

    Raises:
        UsageError: for another `draw`, or a profile that says nothing of sensors.
    """
    if draw not in ("empirical", "constant", "lognormal"):
        raise UsageError(f"draw {draw!r} is not allowed; allowed: 'empirical', 'constant', 'lognormal'")
    steps = profile.steps
    actuation = None if profile.actuation_s is None else _draw(profile.actuation_s, draw)
    if steps is not None and (acted := steps.actuation_ns()):
        actuation = _draw(profile.actuation_s, draw, _seconds(acted))
    if steps is not None and draw == "empirical":
        return DelayModel(actuation=actuation, steps=steps, order=order)
    if steps is not None:
        sensors = {name: _draw(profile.age_s.get(name), draw, _seconds(steps.ages_ns(name))) for name in steps.sensors}
        inference = _draw(profile.obs_to_command_s, draw, _seconds(steps.obs_to_command_ns()))
        return DelayModel(sensors=sensors, inference=inference, actuation=actuation, order=order)
    found = {**profile.capture_s, **profile.age_s}
    if not found:
        raise UsageError(f"the profile of {profile.backend} says nothing of sensors; allowed: one of a run, or of real")
    return DelayModel(
        sensors={name: _draw(estimate, draw) for name, estimate in found.items()},
        inference=None if profile.obs_to_command_s is None else _draw(profile.obs_to_command_s, draw),
        actuation=actuation,
        order=order,
    )


def load_delays(source: str | Path | LatencyProfile | DelayModel) -> DelayModel:
    """Return the delays that `source` stands for: a profile, the file of one, or of a `DelayModel`'s mapping.

    Raises:
        UsageError: when it is none of these.
        LatencyProfileError: for a file that is no profile.
    """
    if isinstance(source, DelayModel):
        return source
    if isinstance(source, LatencyProfile):
        return delays_of(source)
    if not isinstance(source, (str, Path)):
        raise UsageError(f"delay_profile {source!r} is not allowed; allowed: a file, a LatencyProfile, a DelayModel")
    try:
        data = parse_json(read_text_file(source, most_bytes=LARGEST_PROFILE), max_bytes=LARGEST_PROFILE)
    except (OSError, ValueError) as error:
        raise UsageError(f"delay_profile {source} cannot be read: {error}; allowed: a latency_profile.json") from None
    if isinstance(data, dict) and data.get("schema") == SCHEMA:
        return parse_model(data)
    return delays_of(read_profile(source))


def check_delays(model: DelayModel, contract: Contract) -> None:
    """Raise UsageError unless `model` is of exactly the sensors that the agent sees, or more that the contract has."""
    if strange := [name for name in model.names if name not in contract.sensors]:
        known = ", ".join(contract.sensors)
        raise UsageError(f"the delays are of {', '.join(strange)}, which the contract does not have; it has: {known}")
    seen = [name for name, sensor in contract.sensors.items() if sensor.visibility == "agent"]
    if missing := [name for name in seen if name not in model.names]:
        raise UsageError(
            f"the delays say nothing of {', '.join(missing)}; allowed: every sensor that the agent sees, "
            "of one that is never late a constant of 0 s"
        )


def schedule_of(model: DelayModel, contract: Contract) -> DelaySchedule:
    """Return the schedule of `model` in a world of `contract`; whoever makes one has the same."""
    intervals_ns = {name: NS_PER_S / spec.rate_hz for name, spec in contract.sensors.items() if spec.rate_hz}
    return DelaySchedule(model, period_ns=contract.control_period_ns, intervals_ns=intervals_ns)


class DelaysFile:
    """A file by which another process is told of a model; it is there from the first `path` until `remove`."""

    def __init__(self, model: DelayModel) -> None:
        """Stand for `model`; nothing is written."""
        self._model = model
        self._path: Path | None = None

    def path(self) -> str:
        """Return where it is."""
        if self._path is None:
            handle, name = tempfile.mkstemp(prefix="embodied_env_delays_", suffix=".json")
            self._path = Path(name)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self._model.as_mapping(), file)
        return str(self._path)

    def remove(self) -> None:
        """Remove it. Idempotent."""
        path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)


def _seconds(delays_ns: Sequence[int]) -> tuple[float, ...]:
    return tuple(ns / NS_PER_S for ns in delays_ns)


def _draw(estimate: Estimate | None, kind: Kind, samples_s: Sequence[float] = ()) -> DelayDistribution:
    """Return what to draw from: the samples, or, where there are none, the value alone."""
    given = samples_s or (() if estimate is None else estimate.samples_s)
    samples = np.array([max(0.0, s) for s in given])  # a lateness below zero is an error of its clocks
    if kind == "constant" or len(samples) == 0:
        middle = float(np.median(samples)) if estimate is None else max(0.0, estimate.value_s)
        return DelayDistribution(kind="constant", values=(middle,))
    if kind == "empirical":
        return DelayDistribution(kind="empirical", values=tuple(samples.tolist()))
    logs = np.log(np.maximum(samples, 1.0 / NS_PER_S))
    return DelayDistribution(kind="lognormal", values=(float(np.exp(logs.mean())), float(logs.std())))
