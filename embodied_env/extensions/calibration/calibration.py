"""Estimate actuation, lag and sensor age of a free-running backend by gentle moves."""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from embodied_env.backends.backend_registry import backend_accepts
from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.actuator_response import ActuatorResponse, Move, Shape, delay_by_correlation, fit_response
from embodied_env.core.confidence_intervals import median_estimate
from embodied_env.core.types import FloatArray, Sample
from embodied_env.errors import UsageError
from embodied_env.extensions.calibration.excitation import (
    CalibrationError,
    EnvWithoutTask,
    Excitation,
    JointReading,
    MoveTrace,
    SampleLog,
    find_moved_joints,
)
from embodied_env.extensions.calibration.planned_moves import GENTLE_AMPLITUDE, gentle_moves
from embodied_env.extensions.calibration.sensor_delay import (
    MoveSamples,
    SensorLag,
    combine_evidence,
    estimate_lag,
    stamp_latency,
)
from embodied_env.timing.clock import NS_PER_S, SteadyClock
from embodied_env.timing.latency_profile import Estimate, LatencyProfile

_LONGEST_S = 0.6  # greatest delay of the search
_LEAST_READINGS = 12  # of a joint during a move
_LEAST_SAMPLES = 5  # of a measured latency
_STAMP_ERROR_S = 5e-4
_LEAST_EXPLAINED = 0.8  # of the motion by the model
_ORDER_SHARE = 0.7  # of the fitted lag: dead time that a servo of third order without overshoot appears to have

METHODS = ("echo", "controller", "state", "xcorr")
"""Evidence of actuation, the best first."""

HEADLINE = ("controller", "state")
"""Methods that cover the whole actuation and nothing else."""


def calibrate(  # noqa: PLR0913 - what a user may choose
    contract: Contract,
    *,
    backend: str,
    seed: int = 0,
    amplitude: float = GENTLE_AMPLITUDE,
    joints: Sequence[str] = (),
    repeats: int = 3,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    resetting: Callable[[], None] = lambda: None,
    **options: Any,  # noqa: ANN401 - of make
) -> LatencyProfile:
    """Move each joint gently, and estimate the latencies of a free-running `backend`.

    Each of `joints`, by default all but those of grippers, makes `repeats` moves, at least 2, of an `amplitude` above 0
    and at most 0.2 of its range. `progress` is called with the number of finished moves and of all moves, `resetting`
    before each reset, in which an operator may be asked, and `options` are those of `EmbodiedEnv`.

    Raises:
        UsageError: for a backend that waits for the agent, an unknown joint, one without a reading of its motion, or
            one that moves in one direction only.
        CalibrationError: when the gate held or stopped a step, or an episode ended too early; the robot was braked.
        BackendNotReadyError: for a robot without a channel to an operator, or when its reset fails.
    """
    if not 0.0 < amplitude <= 0.2:
        raise UsageError(f"invalid amplitude: {amplitude} (expected above 0, at most 0.2)")
    if repeats < 2:
        raise UsageError(f"invalid repeats: {repeats} (expected 2 or more)")
    readings = find_moved_joints(contract, joints)
    moves = gentle_moves(contract, list(readings), amplitude=amplitude, repeats=repeats, seed=seed)
    log = SampleLog()
    reports_samples = backend_accepts(backend, "on_sample", pacing=options.get("pacing"))
    if reports_samples:
        options["on_sample"] = log.add
    env = EnvWithoutTask(contract, backend=backend, **options)
    try:
        if env.pacing != "realtime":
            raise UsageError(
                f"cannot calibrate {backend}: it waits for the agent, so its latencies are 0 "
                "(expected a free-running backend, such as real)"
            )
        run = Excitation(env, log, every_step=not reports_samples, resetting=resetting)
        gc.collect()
        gc.freeze()  # a full collection, 0.1 s with all modules loaded, would delay a step
        run.make_moves(moves, seed=seed, progress=progress)
    finally:
        gc.unfreeze()
        env.close()
    return estimate_profile(contract, run, log, readings, backend=f"{backend} ({env.capabilities.world})", seed=seed)


def estimate_profile(
    contract: Contract,
    run: Excitation,
    log: SampleLog,
    readings: Mapping[str, JointReading],
    *,
    backend: str,
    seed: int,
) -> LatencyProfile:
    """Return the latencies that the moves of `run` and the readings in `log` show.

    `readings` is where the motion of each joint is read. Raises CalibrationError when a joint has too few readings
    during a move.
    """
    offset_ns = min(run.offsets_ns)
    moves = [_to_move(contract, trace, log, readings, offset_ns) for trace in run.traces]
    unknown: dict[str, str] = {}
    references = {reading.sensor for reading in readings.values()}
    capture, transport, without_capture = _sensor_latencies(contract, run, moves, log, references, offset_ns)
    unknown |= without_capture
    transit_s = max((_median_transit_s(samples) for samples in log.samples.values()), default=0.0)
    evidence = {
        method: _by_messages(method, np.array(values), transit_s)
        for method, values in run.acted.items()
        if len(values) >= _LEAST_SAMPLES
    }
    by_motion, lag, problem = _by_motion(contract, moves)
    evidence |= by_motion
    actuation = next((evidence[method] for method in HEADLINE if method in evidence), None)
    if problem:
        unknown |= {"lag_s": problem} if actuation else {"actuation_s": problem, "lag_s": problem}
    if run.missing:
        unknown |= {f"moves.{joint}": f"missing {why}" for joint, why in run.missing.items()}
        reached = {f"capture_s.{name}": each for name, each in capture.items() if "xcorr" in each.method}
        for name, each in {"actuation_s": actuation, "lag_s": lag, **reached}.items():
            if each is not None:
                interval = f"{1e3 * each.low_s:.2f} .. {1e3 * each.high_s:.2f} ms"
                unknown[f"moves.{name}"] = f"not of all moves; the interval reached is {interval}, n = {each.n}"
    return LatencyProfile(
        contract=contract.name,
        fingerprint=contract.fingerprint,
        backend=backend,
        created_utc=datetime.fromtimestamp(SteadyClock().system_ns() // NS_PER_S, UTC).isoformat(),
        host=platform.node(),
        seed=seed,
        actuation_s=actuation,
        lag_s=lag,
        evidence={method: evidence[method] for method in METHODS if method in evidence},
        capture_s=capture,
        transport_s=transport,
        unknown=unknown,
    )


def _to_move(
    contract: Contract, trace: MoveTrace, log: SampleLog, readings: Mapping[str, JointReading], offset_ns: int
) -> Move:
    """Return commands and readings of a move in seconds of our steady clock since its start."""
    joint, place = trace.name, ActionLayout(contract).joints.index(trace.name)
    reading = readings[joint]
    samples = sorted(_samples_during(trace, log.samples.get(reading.sensor, ()), offset_ns), key=lambda s: s.stamp_ns)
    if len(samples) < _LEAST_READINGS:
        raise CalibrationError(
            f"too few readings of {reading.sensor} while {joint} moved: {len(samples)} (minimum {_LEAST_READINGS})"
        )
    return Move(
        joint=joint,
        commanded_s=(np.array(trace.published_ns) - trace.begin_ns) / NS_PER_S,
        commands=np.array(trace.commands)[:, place],
        read_s=_stamps_s(trace, samples, offset_ns),
        readings=np.array([float(sample.values[reading.field][reading.component]) for sample in samples]),
    )


def _samples_during(trace: MoveTrace, samples: Sequence[Sample], offset_ns: int, *, after_ns: int = 0) -> list[Sample]:
    """Return the samples that are stamped during a move, or up to `after_ns` later."""
    return [s for s in samples if trace.begin_ns <= s.stamp_ns + offset_ns < trace.end_ns + after_ns]


def _stamps_s(trace: MoveTrace, samples: Sequence[Sample], offset_ns: int) -> FloatArray:
    return np.array([(sample.stamp_ns + offset_ns - trace.begin_ns) / NS_PER_S for sample in samples])


def _median_transit_s(samples: Sequence[Sample]) -> float:
    transit_ns = [s.arrival_system_ns - s.source_ns for s in samples if s.arrival_system_ns and s.source_ns]
    return max(0.0, float(np.median(transit_ns)) / NS_PER_S) if transit_ns else 0.0


def _by_messages(method: str, values: FloatArray, transit_s: float) -> Estimate:
    """Return the actuation that messages report, with up to `transit_s` of transport."""
    covers = {
        "echo": "until the relay reported publishing the command; excludes everything after the relay",
        "controller": "until a controller state with this command as its reference arrived: an upper bound",
    }
    return _median_estimate(method, values, covers.get(method, ""), below_s=transit_s)


def _by_motion(contract: Contract, moves: Sequence[Move]) -> tuple[dict[str, Estimate], Estimate | None, str]:
    """Return the dead time by method, the lag, and why both are unknown, or ""."""
    period_s = contract.control_period_s
    is_velocity = any(spec.is_velocity for spec in contract.actuators.values() if moves[0].joint in spec.joints)
    shapes: tuple[Shape, ...] = ("step",) if is_velocity else ("line", "step")
    delay_s, correlation = delay_by_correlation(moves, period_s, shapes[0], _LONGEST_S)
    try:
        fit = fit_response(moves, period_s, shapes, max(0.01, delay_s))
    except ValueError as error:
        return {}, None, str(error)
    if fit.explained < _LEAST_EXPLAINED:
        return {}, None, f"commands explain only {100 * fit.explained:.0f} % of the motion"
    dead_time, lag = by_state(moves, fit)
    delays_s = np.array([delay_by_correlation([move], period_s, fit.shape, _LONGEST_S)[0] for move in moves])
    detail = f"dead time and lag together; over all moves {1e3 * delay_s:.1f} ms, correlation {correlation:.4f}"
    return {"state": dead_time, "xcorr": _median_estimate("xcorr", delays_s, detail)}, lag, ""


def by_state(moves: Sequence[Move], fit: ActuatorResponse) -> tuple[Estimate, Estimate]:
    """Return the dead time and the lag, each the median over the moves.

    A servo of higher order shows part of its lag as dead time. The intervals allow for servos up to third order
    without overshoot.
    """
    shift_s = _ORDER_SHARE * float(np.median(fit.lags_s))
    command = "a straight line over a control period" if fit.shape == "line" else "a step"
    detail = f"median of the moves; commands act as {command}; the fit explains {100 * fit.explained:.2f} % of the "
    detail += f"motion; it may include up to {_ORDER_SHARE:.0%} of the lag"
    dead_time = _median_estimate("state", fit.dead_s, detail, below_s=shift_s)
    joints = dict.fromkeys(move.joint for move in moves)
    lag_ms = {joint: 1e3 * np.median(fit.lags_s[[move.joint == joint for move in moves]]) for joint in joints}
    detail = "median of the moves; " + ", ".join(f"{joint} {value:.1f} ms" for joint, value in lag_ms.items())
    return dead_time, _median_estimate("state", fit.lags_s, detail, above_s=shift_s)


def _median_estimate(
    method: str, values: FloatArray, detail: str, *, below_s: float = 0.0, above_s: float = 0.0
) -> Estimate:
    """Return the median with its interval extended by `below_s`, `above_s` and stamp error."""
    estimate = median_estimate(values, method=method, detail=detail)
    low_s, high_s = estimate.low_s - below_s - _STAMP_ERROR_S, estimate.high_s + above_s + _STAMP_ERROR_S
    return replace(estimate, low_s=max(0.0, low_s), high_s=high_s)


def _sensor_latencies(
    contract: Contract, run: Excitation, moves: Sequence[Move], log: SampleLog, references: set[str], offset_ns: int
) -> tuple[dict[str, Estimate], dict[str, Estimate], dict[str, str]]:
    """Return capture latency and transport of each other sensor, or why it is unknown."""
    capture: dict[str, Estimate] = {}
    transport: dict[str, Estimate] = {}
    unknown: dict[str, str] = {}
    integrated = any(spec.is_velocity for spec in contract.actuators.values())
    for name, sensor in contract.sensors.items():
        samples = log.samples.get(name, [])
        if len(samples) < _LEAST_SAMPLES:
            unknown[f"capture_s.{name}"] = f"only {len(samples)} readings"
            continue
        latency_s = np.array([(s.arrival_ns - s.stamp_ns - offset_ns) / NS_PER_S for s in samples])
        lag: SensorLag | str = "it is the reference of the other sensors"
        if name not in references:
            seen = [_move_samples(trace, samples, offset_ns) for trace in run.traces]
            lag = estimate_lag(moves, seen, _LONGEST_S, integrated=integrated)
        estimate = combine_evidence(stamp_latency(latency_s), lag, is_stamped=sensor.timeline == "header")
        if run.missing and isinstance(lag, str) and "too few" in lag:
            estimate = lag  # its stamps may be late, which the missing moves would have shown
        if isinstance(estimate, str):
            unknown[f"capture_s.{name}"] = estimate
        else:
            capture[name] = estimate
        transit_s = [(s.received_ns - s.source_ns) / NS_PER_S for s in samples if s.received_ns and s.source_ns]
        if len(transit_s) >= _LEAST_SAMPLES and min(transit_s) >= 0.0:
            transport[name] = stamp_latency(np.array(transit_s))
    return capture, transport, unknown


def _move_samples(trace: MoveTrace, samples: Sequence[Sample], offset_ns: int) -> MoveSamples:
    during = _samples_during(trace, samples, offset_ns, after_ns=NS_PER_S)
    rows = [np.concatenate([np.asarray(v, dtype=np.float64).ravel() for v in s.values.values()]) for s in during]
    values = np.array(rows) if rows else np.zeros((0, 0))
    return MoveSamples(stamped_s=_stamps_s(trace, during, offset_ns), values=values)
