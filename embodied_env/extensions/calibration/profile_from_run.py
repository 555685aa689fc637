"""Latency profile of a recorded run, read row by row in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embodied_env.core.code_types import Quality
from embodied_env.core.confidence_intervals import median_estimate
from embodied_env.core.terminal import NO_PROGRESS, Progress
from embodied_env.record.manifest import world_of
from embodied_env.record.row_types import RESET
from embodied_env.record.run import Run
from embodied_env.timing.clock import NS_PER_S
from embodied_env.timing.latency_profile import (
    Estimate,
    LatencyProfile,
    LatencyProfileError,
    MeasuredStepDelays,
    Step,
)

_GOOD = (Quality.OK, Quality.OUT_OF_RANGE)
_LEAST_STEPS = 20
_BLOCK = 10  # largest number of consecutive steps of one episode in a block

Values = Mapping[str, Any]


def profile_of_run(run: Run, *, progress: Progress = NO_PROGRESS) -> LatencyProfile:
    """Return the age of readings and the command delays at each step of `run`.

    Only steps with all stages measured count, except the actuation. Injected delays replace those of the simulator. Of
    a long run evenly spaced blocks of steps are kept.

    Raises:
        LatencyProfileError: for fewer than 20 such steps.
    """
    sensors: tuple[str, ...] = ()
    kept = BlockReservoir()
    ages: dict[str, int] | None = None
    seed: int | None = None
    progress.start("rows", None)
    for row in run.rows():
        progress.advance()
        if row["inner"] is None or row["schema"] == RESET:  # the first step after a reset has readings of the reset
            if row["schema"] == RESET and seed is None:
                seed = row["seed"]
            kept.end()
            ages = None
            continue
        info = row["info"]
        sensors = sensors or tuple(sorted(info["sensors"]))
        delays = _step_delays(ages, sensors, info["latency"])
        if delays is None:
            kept.end()
        else:
            kept.take(delays)
        ages = _ages_ns(info, sensors)
    steps = MeasuredStepDelays(sensors=sensors, blocks_ns=kept.blocks())
    if steps.count < _LEAST_STEPS:
        raise LatencyProfileError(
            f"too few steps with all latencies measured: {steps.count} (expected at least {_LEAST_STEPS})"
        )
    acted = steps.actuation_ns()
    has_evidence = len(acted) >= _LEAST_STEPS
    manifest = run.manifest
    return LatencyProfile(
        contract=manifest["contract"]["name"],
        fingerprint=manifest["contract"]["fingerprint"],
        backend=f"{manifest['backend']} ({world_of(manifest)})",
        created_utc=manifest["started_utc"],
        host=str(manifest["host"].get("platform", "")),
        seed=seed or 0,
        actuation_s=_estimate(acted, "recorded actuation") if has_evidence else None,
        obs_to_command_s=_estimate(steps.obs_to_command_ns(), "recorded steps"),
        age_s={name: _estimate(steps.ages_ns(name), "recorded steps") for name in steps.sensors},
        unknown={} if has_evidence else {"actuation_s": f"measured in {len(acted)} steps, of at least {_LEAST_STEPS}"},
        steps=steps,
    )


class BlockReservoir:
    """Collects steps into blocks and keeps an even selection of `most` to twice `most` blocks."""

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._stride = 1
        self._seen = 0
        self._kept: list[tuple[Step, ...]] = []
        self._block: list[Step] = []

    def take(self, row: Sequence[int | None]) -> None:
        """Add a step that follows the last one."""
        self._block.append(tuple(row))
        if len(self._block) == _BLOCK:
            self.end()

    def end(self) -> None:
        """End the block, since the next step does not follow the last one."""
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


def _step_delays(ages: Mapping[str, int] | None, sensors: tuple[str, ...], latency: Values) -> list[int | None] | None:
    """Return reading ages and command delays of a step, ns, or None if not all are measured."""
    values, quality, command = latency, latency["quality"], "obs_to_command_s"
    if "injected" in latency:  # it has the ages too
        values, quality, command = latency["injected"], latency["quality"].get("injected", {}), "inference_s"
        ages = _all_ns(values["age_s"], quality.get("age_s", {}), sensors)
    command_ns = _measured_ns(values, quality, command)
    if ages is None or command_ns is None:
        return None
    return [*(ages[name] for name in sensors), command_ns, _measured_ns(values, quality, "actuation_s")]


def _ages_ns(info: Values, sensors: tuple[str, ...]) -> dict[str, int] | None:
    """Return the age of each reading, ns, or None if one is not known."""
    if any(info["sensors"].get(name, {}).get("quality") not in _GOOD for name in sensors):
        return None
    latency = info["latency"]
    return _all_ns(latency["capture_age_s"], latency["quality"].get("capture_age_s", {}), sensors)


def _all_ns(values: Values, quality: Values, sensors: tuple[str, ...]) -> dict[str, int] | None:
    found = {name: _measured_ns(values, quality, name) for name in sensors}
    return None if None in found.values() else {name: ns or 0 for name, ns in found.items()}


def _measured_ns(values: Values, quality: Values, key: str) -> int | None:
    value = values.get(key)
    if value is None or quality.get(key) not in _GOOD or not 0.0 <= value < float("inf"):
        return None
    return round(float(value) * NS_PER_S)


def _estimate(delays_ns: list[int], method: str) -> Estimate:
    """Return the estimate of a stage, without its measurements, which are in the steps."""
    values_s = np.array(delays_ns, dtype=np.float64) / NS_PER_S
    detail = f"median; 95 % of the steps within {np.percentile(values_s, 95.0):.4f} s"
    return replace(median_estimate(values_s, method=method, detail=detail), samples_s=())
