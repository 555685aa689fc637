"""The latencies of a recorded run: read row by row, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from embodied_env.analysis.progress import NoProgress, Progress
from embodied_env.analysis.statistics import median_interval
from embodied_env.core.clock import NS_PER_S
from embodied_env.core.codes import Quality
from embodied_env.core.latency.profile import (
    BlockReservoir,
    Estimate,
    LatencyProfile,
    LatencyProfileError,
    MeasuredStepDelays,
)

_GOOD = (Quality.OK, Quality.OUT_OF_RANGE)
_ENOUGH = 20

Row = Mapping[str, Any]


class RecordedRun(Protocol):
    """What is needed of a run (`embodied_env.record.Run`)."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Say where it comes from."""
        ...

    def rows(self) -> Iterator[Any]:
        """Yield the rows of resets and transitions in their order."""
        ...


def profile_of_run(run: RecordedRun, *, most_blocks: int = 1000, progress: Progress | None = None) -> LatencyProfile:
    """Return the latencies of `run`: of each step how old its readings were, and when its command left and acted.

    Only steps count whose stages were all measured; the actuation may be unknown. Where the run's delays were injected,
    these are taken. Of a long run evenly chosen blocks of steps are kept, `most_blocks` at least and less than twice
    as many.

    Raises:
        LatencyProfileError: for a run with fewer than 20 such steps, or one that is not of an environment of ours.
    """
    sensors: tuple[str, ...] = ()
    keeper = BlockReservoir(most_blocks)
    ages: dict[str, int] | None = None
    seed: int | None = None
    progress = progress or NoProgress()
    progress.start("rows", None)
    for row in run.rows():
        progress.advance()
        info = row.get("info") or {}
        if row.get("inner") is None or "latency" not in info:  # what a reset has read is newer than what a step has
            seed = row.get("seed") if seed is None else seed
            keeper.end()
            ages = None
            continue
        sensors = sensors or tuple(sorted(info["sensors"]))
        step = _step(ages, sensors, info["latency"])
        if step is None:
            keeper.end()
        else:
            keeper.take(step)
        ages = _ages(info, sensors)
    steps = MeasuredStepDelays(sensors=sensors, blocks=keeper.blocks())
    if steps.count < _ENOUGH:
        raise LatencyProfileError(
            f"the run has {steps.count} steps whose latencies are all known; allowed: {_ENOUGH} or more"
        )
    return _profile(run.manifest, steps, seed or 0)


def _step(ages: Mapping[str, int] | None, sensors: tuple[str, ...], latency: Row) -> tuple[int | None, ...] | None:
    """Return the row of one step, given the ages of the readings that it is based on; None: not all was measured."""
    of, quality, command = latency, latency["quality"], "obs_to_command_s"
    if "injected" in latency:  # the ages too are told there, and which of them are the reset's
        of, quality, command = latency["injected"], latency["quality"].get("injected", {}), "inference_s"
        ages = _all_ns(of["age_s"], quality.get("age_s", {}), sensors)
    command_ns, acted_ns = _measured_ns(of, quality, command), _measured_ns(of, quality, "actuation_s")
    if ages is None or command_ns is None:
        return None
    return (*(ages[name] for name in sensors), command_ns, acted_ns)


def _ages(info: Row, sensors: tuple[str, ...]) -> dict[str, int] | None:
    """Return how old each reading is, ns; None: of some sensor it is not known."""
    if any(info["sensors"].get(name, {}).get("quality") not in _GOOD for name in sensors):
        return None
    latency = info["latency"]
    return _all_ns(latency["capture_age_s"], latency["quality"].get("capture_age_s", {}), sensors)


def _all_ns(values: Row, quality: Row, sensors: tuple[str, ...]) -> dict[str, int] | None:
    found = {name: _measured_ns(values, quality, name) for name in sensors}
    return None if None in found.values() else {name: ns or 0 for name, ns in found.items()}


def _measured_ns(values: Row, quality: Row, key: str) -> int | None:
    """Return a duration that was measured, and is none less than nothing."""
    value = values.get(key)
    if value is None or quality.get(key) not in _GOOD or not 0.0 <= value < float("inf"):
        return None
    return round(float(value) * NS_PER_S)


def _profile(manifest: Row, steps: MeasuredStepDelays, seed: int) -> LatencyProfile:
    acted = steps.actuation_ns()
    enough = len(acted) >= _ENOUGH
    contract, host = manifest.get("contract", {}), manifest.get("host", {})
    return LatencyProfile(
        contract=str(contract.get("name", "")),
        fingerprint=str(contract.get("fingerprint", "")),
        backend=str(manifest.get("backend", "")),
        created_utc=str(manifest.get("started_utc", "")),
        host=str(host.get("platform", "")),
        seed=seed,
        actuation_s=_estimate(acted, "the run's evidence") if enough else None,
        obs_to_command_s=_estimate(steps.obs_to_command_ns(), "the run's steps"),
        age_s={name: _estimate(steps.ages_ns(name), "the run's steps") for name in steps.sensors},
        unknown={} if enough else {"actuation_s": f"only {len(acted)} steps with evidence that a command acts"},
        steps=steps,
    )


def _estimate(delays_ns: list[int], method: str) -> Estimate:
    """Return the estimate of a stage; its single measurements stand in the steps."""
    values_s = np.array(delays_ns, dtype=np.float64) / NS_PER_S
    value_s, low_s, high_s = median_interval(values_s)
    p95_s = float(np.percentile(values_s, 95.0))
    detail = f"median; 95 % of the steps within {p95_s:.4f} s"
    return Estimate(value_s=value_s, low_s=low_s, high_s=high_s, method=method, n=len(delays_ns), detail=detail)
