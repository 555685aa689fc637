"""What the moves of a calibration say of the latencies: evidence of actuation, lag, and how late sensors are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_env.analysis.calibration.actuator_response import Move, Response, delay_by_correlation, fit_response
from embodied_env.analysis.calibration.excitation import (
    CalibrationError,
    Excitation,
    JointReading,
    MoveTrace,
    SampleLog,
)
from embodied_env.analysis.calibration.sensor_delay import MoveSamples, combine_evidence, estimate_lag, stamp_latency
from embodied_env.analysis.statistics import median_interval
from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.clock import NS_PER_S
from embodied_env.core.latency.profile import Estimate
from embodied_env.core.types import Sample

_LONGEST_S = 0.6  # the longest delay that is looked for
_LEAST_READINGS = 12  # of a joint during a move
_LEAST_TOLD = 5  # messages that say of a latency
_STAMPS_S = 5e-4  # neither is known better
_LEAST_EXPLAINED = 0.8  # of the motion; with less, the model says nothing
_ORDER_SHARE = 0.7  # of the fitted lag: what a servo of third order without overshoot shows as dead time

METHODS = ("echo", "controller", "state", "xcorr")
"""Evidence of actuation, the best first. Only `HEADLINE` is of the whole way, and of nothing but it."""
HEADLINE = ("controller", "state")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found out: the fields of a `LatencyProfile` of the same names."""

    actuation_s: Estimate | None
    lag_s: Estimate | None
    evidence: Mapping[str, Estimate]
    capture_s: Mapping[str, Estimate]
    transport_s: Mapping[str, Estimate]
    unknown: Mapping[str, str]


def estimated(contract: Contract, run: Excitation, heard: SampleLog, known: Mapping[str, JointReading]) -> Found:
    """Return what the moves of `run` say; raises CalibrationError when there are too few readings of them.

    Args:
        contract: of the robot.
        run: its moves are done.
        heard: the readings while they were.
        known: where the motion of each joint is read.
    """
    offset_ns = min(run.offsets_ns)
    moves = [_as_move(contract, trace, heard, known, offset_ns) for trace in run.traces]
    capture, transport, unknown = _captures(contract, run.traces, moves, heard, known, offset_ns)
    back_s = max((_way_s(samples) for samples in heard.samples.values()), default=0.0)
    told = {method: _told(method, values, back_s) for method, values in run.acted.items() if len(values) >= _LEAST_TOLD}
    moved, lag, why = _actuation(contract, moves)
    found = {**told, **moved}
    actuation = next((found[method] for method in HEADLINE if method in found), None)
    return Found(
        actuation_s=actuation,
        lag_s=lag,
        evidence={method: found[method] for method in METHODS if method in found},
        capture_s=capture,
        transport_s=transport,
        unknown={
            **_missing(run),
            **unknown,
            **{key: text for key, text in why.items() if key != "actuation_s" or actuation is None},
        },
    )


def _missing(run: Excitation) -> dict[str, str]:
    """Return which moves the estimates lack."""
    if not run.missing:
        return {}
    count = len(run.missing) + len(run.traces)
    return {"moves": f"{len(run.missing)} of {count} moves are missing: {'; '.join(run.missing)}"}


def _as_move(
    contract: Contract, trace: MoveTrace, heard: SampleLog, known: Mapping[str, JointReading], offset_ns: int
) -> Move:
    """Put commands and readings of a move on one clock: seconds of our steady clock since its begin."""
    joint = ActionLayout(contract).joints[trace.joint]
    place = known[joint]
    samples = [
        s for s in heard.samples.get(place.sensor, ()) if trace.begin_ns <= s.stamp_ns + offset_ns < trace.end_ns
    ]
    if len(samples) < _LEAST_READINGS:
        raise CalibrationError(f"{place.sensor}: only {len(samples)} readings while {joint} moved")
    read_s = np.array([(s.stamp_ns + offset_ns - trace.begin_ns) / NS_PER_S for s in samples])
    values = np.array([float(s.values[place.field][place.index]) for s in samples])
    order = np.argsort(read_s, kind="stable")
    return Move(
        joint=joint,
        commanded_s=np.array([(ns - trace.begin_ns) / NS_PER_S for ns in trace.published_ns]),
        commands=np.array(trace.commands),
        read_s=read_s[order],
        readings=values[order],
    )


def _actuation(
    contract: Contract, moves: Sequence[Move]
) -> tuple[dict[str, Estimate], Estimate | None, dict[str, str]]:
    """Return what the motion says of the dead time, by method, and of the lag; and what is unknown, and why."""
    period_s = contract.control_period_s
    is_velocity = any(spec.is_velocity for spec in contract.actuators.values() if moves[0].joint in spec.joints)
    delay_s, correlation = delay_by_correlation(moves, period_s, "step" if is_velocity else "line", _LONGEST_S)
    shapes: tuple[Any, ...] = ("step",) if is_velocity else ("line", "step")
    try:
        fit = fit_response(moves, period_s, shapes, max(0.01, delay_s))
    except ValueError as error:
        return {}, None, {"actuation_s": str(error), "lag_s": str(error)}
    if fit.explained < _LEAST_EXPLAINED:
        why = f"the commands explain only {100 * fit.explained:.0f} % of the motion"
        return {}, None, {"actuation_s": why, "lag_s": why}
    dead_time, lag = by_state(moves, fit)
    return {"state": dead_time, "xcorr": _by_correlation(moves, period_s, fit, delay_s, correlation)}, lag, {}


def _way_s(samples: Sequence[Sample]) -> float:
    """Return how long messages take from their publication until they are here, by the median; 0: nobody says."""
    ways_ns = [s.arrival_system_ns - s.source_ns for s in samples if s.arrival_system_ns and s.source_ns]
    return max(0.0, float(np.median(ways_ns)) / NS_PER_S) if ways_ns else 0.0


def _told(method: str, values: Sequence[float], back_s: float) -> Estimate:
    """Return what messages said; `back_s`: what they may have taken on their way, which is in the values."""
    value_s, low_s, high_s = median_interval(np.array(values))
    covers = {
        "echo": "until the relay said that it published the command; what is after the relay is not in it",
        "controller": "until the controller said that it refers to the command, and that was here: an upper bound",
    }
    return Estimate(
        value_s=value_s,
        low_s=max(0.0, low_s - back_s - _STAMPS_S),
        high_s=high_s + _STAMPS_S,
        method=method,
        n=len(values),
        detail=covers.get(method, ""),
        samples_s=tuple(values),
    )


def by_state(moves: Sequence[Move], fit: Response) -> tuple[Estimate, Estimate]:
    """Return the dead time and the lag, each the median over the moves.

    A servo of higher order shows part of its lag as dead time. The intervals allow for servos up to third order that
    do not overshoot.
    """
    dead_s, dead_low_s, dead_high_s = median_interval(fit.dead_s)
    lag_s, lag_low_s, lag_high_s = median_interval(fit.lags_s)
    command = "a straight line over a control period" if fit.shape == "line" else "a step"
    dead_time = Estimate(
        value_s=dead_s,
        low_s=max(0.0, dead_low_s - _ORDER_SHARE * lag_s - _STAMPS_S),
        high_s=dead_high_s + _STAMPS_S,
        method="state",
        n=len(moves),
        detail=f"median of the moves; commands act as {command}; the fit explains {100 * fit.explained:.2f} % of the "
        f"motion; up to {_ORDER_SHARE:.0%} of the lag may be in it",
        samples_s=tuple(fit.dead_s.tolist()),
    )
    joints = dict.fromkeys(move.joint for move in moves)
    of_joint = {joint: fit.lags_s[[move.joint == joint for move in moves]] for joint in joints}
    lag = Estimate(
        value_s=lag_s,
        low_s=max(0.0, lag_low_s - _STAMPS_S),
        high_s=lag_high_s + _ORDER_SHARE * lag_s + _STAMPS_S,
        method="state",
        n=len(moves),
        detail="median of the moves; "
        + ", ".join(f"{joint} {1e3 * np.median(lags_s):.1f} ms" for joint, lags_s in of_joint.items()),
        samples_s=tuple(fit.lags_s.tolist()),
    )
    return dead_time, lag


def _by_correlation(
    moves: Sequence[Move], period_s: float, fit: Response, delay_s: float, correlation: float
) -> Estimate:
    alone = [delay_by_correlation([move], period_s, fit.shape, _LONGEST_S)[0] for move in moves]
    value_s, low_s, high_s = median_interval(np.array(alone))
    return Estimate(
        value_s=value_s,
        low_s=max(0.0, low_s - _STAMPS_S),
        high_s=high_s + _STAMPS_S,
        method="xcorr",
        n=len(alone),
        detail=f"dead time and lag together; over all moves {1e3 * delay_s:.1f} ms, correlation {correlation:.4f}",
        samples_s=tuple(alone),
    )


def _captures(
    contract: Contract,
    traces: Sequence[MoveTrace],
    moves: Sequence[Move],
    heard: SampleLog,
    known: Mapping[str, JointReading],
    offset_ns: int,
) -> tuple[dict[str, Estimate], dict[str, Estimate], dict[str, str]]:
    """Return how late each sensor's readings are, the middleware's part of it, and what is unknown and why."""
    capture: dict[str, Estimate] = {}
    transport: dict[str, Estimate] = {}
    unknown: dict[str, str] = {}
    references = {place.sensor for place in known.values()}
    for name, sensor in contract.sensors.items():
        samples = heard.samples.get(name, [])
        if len(samples) < _LEAST_TOLD:
            unknown[f"capture_s.{name}"] = f"only {len(samples)} readings"
            continue
        late_s = np.array([(s.arrival_ns - s.stamp_ns - offset_ns) / NS_PER_S for s in samples])
        found: Any = "the others are measured against it"
        if name not in references:
            seen = [_seen(trace, samples, offset_ns) for trace in traces]
            integrated = any(spec.is_velocity for spec in contract.actuators.values())
            found = estimate_lag(moves, seen, _LONGEST_S, integrated=integrated)
        estimate = combine_evidence(stamp_latency(late_s), found, is_stamped=sensor.timeline == "header")
        if isinstance(estimate, str):
            unknown[f"capture_s.{name}"] = estimate
        else:
            capture[name] = estimate
        both = [(s.received_ns - s.source_ns) / NS_PER_S for s in samples if s.received_ns and s.source_ns]
        if len(both) >= _LEAST_TOLD and min(both) >= 0.0:
            transport[name] = stamp_latency(np.array(both))
    return capture, transport, unknown


def _seen(trace: MoveTrace, samples: Sequence[Sample], offset_ns: int) -> MoveSamples:
    during = [s for s in samples if trace.begin_ns <= s.stamp_ns + offset_ns < trace.end_ns + NS_PER_S]
    stamped_s = np.array([(s.stamp_ns + offset_ns - trace.begin_ns) / NS_PER_S for s in during])
    rows = [np.concatenate([np.asarray(v, dtype=np.float64).ravel() for v in s.values.values()]) for s in during]
    return MoveSamples(stamped_s=stamped_s, values=np.array(rows) if rows else np.zeros((0, 0)))
