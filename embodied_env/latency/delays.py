"""From measured latencies to the delays that a world is given: a file, a profile, or a model of one's own."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from embodied_env.bounded_json import parse_json
from embodied_env.clock import NS_PER_S
from embodied_env.contract import Contract
from embodied_env.contract.files import read_text_file
from embodied_env.errors import UsageError
from embodied_env.latency.injection import SCHEMA, DelayModel, Draw, Order, Schedule, parse_model
from embodied_env.latency.profile import LARGEST_PROFILE, Estimate, LatencyProfile, read_profile

Kind = Literal["empirical", "constant", "lognormal"]


def delays_of(profile: LatencyProfile, *, draw: Kind = "empirical", order: Order = "keep") -> DelayModel:
    """Return the delays that `profile` has measured.

    Args:
        profile: of a run (`profile_of_run`) or of a calibration (`embodied_env.calibration.calibrate`). Of a run, ages
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


def schedule_of(model: DelayModel, contract: Contract) -> Schedule:
    """Return the schedule of `model` in a world of `contract`; whoever makes one has the same."""
    intervals_ns = {name: NS_PER_S / spec.rate_hz for name, spec in contract.sensors.items() if spec.rate_hz}
    return Schedule(model, period_ns=contract.control_period_ns, intervals_ns=intervals_ns)


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


def _draw(estimate: Estimate | None, kind: Kind, samples_s: Sequence[float] = ()) -> Draw:
    """Return what to draw from: the samples, or, where there are none, the value alone."""
    given = samples_s or (() if estimate is None else estimate.samples_s)
    samples = np.array([max(0.0, s) for s in given])  # a lateness below zero is an error of its clocks
    if kind == "constant" or len(samples) == 0:
        middle = float(np.median(samples)) if estimate is None else max(0.0, estimate.value_s)
        return Draw(kind="constant", values=(middle,))
    if kind == "empirical":
        return Draw(kind="empirical", values=tuple(samples.tolist()))
    logs = np.log(np.maximum(samples, 1.0 / NS_PER_S))
    return Draw(kind="lognormal", values=(float(np.exp(logs.mean())), float(logs.std())))
