"""The gates that refuse an action for what is known beside it, before it is touched: each one idea, in order.

Each looks at the `SafetyContext` and at the last published command and says what is wrong. HOLD brakes for this step,
STOP
and ESTOP are latched by the chain.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.schema import Intervention, LatencyBudget, Safety, Tracking
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.codes import Quality, Severity
from embodied_env.core.types import Finding, SafetyContext, SensorStatus
from embodied_env.safety.context import required_sensors

_INPUTS: Mapping[str, tuple[Severity, str]] = {
    "active": (Severity.ESTOP, "estop.active"),
    "expired": (Severity.ESTOP, "estop.expired"),
    "unknown": (Severity.ESTOP, "estop.unknown"),
    "protective_stop": (Severity.ESTOP, "robot.protective_stop"),
    "lapsed": (Severity.HOLD, "robot.inactive"),
    "inactive": (Severity.STOP, "robot.inactive"),
    "contention": (Severity.STOP, "robot.contention"),
}
"""By the word that a state begins with; after a colon it may say why."""

_JUDGED_BY_AGE = (Quality.OK, Quality.OUT_OF_RANGE, Quality.STALE)

_FULL_TURN = {"rad": 2.0 * math.pi, "m": 1.0}  # the range of a joint without position limits


class Interlock(Protocol):
    """One gate that refuses."""

    def reset(self) -> None:
        """Begin an episode."""
        ...

    def check(self, situation: SafetyContext, commanded: FloatArray) -> list[Finding]:
        """Say what is wrong; `commanded` is the last published command, shape (n_joints,)."""
        ...


def safety_input_findings(inputs: Mapping[str, str]) -> list[Finding]:
    """Return a finding for each safety input that is not "ok"; a state that nobody knows is unknown."""
    findings = []
    for name, state in inputs.items():
        if state != "ok":
            severity, code = _INPUTS.get(str(state).partition(":")[0], _INPUTS["unknown"])
            findings.append(Finding(gate="estop", severity=severity, code=code, detail=f"{name} is {state}"))
    return findings


class EstopGate:
    """No motion while a safety input is asserted, has expired, or is unknown."""

    def reset(self) -> None:
        """Nothing is remembered: the latch is the chain's."""

    def check(self, situation: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one protocol
        """Mirror the inputs."""
        return safety_input_findings(situation.estops)


class ClockGate:
    """An action is about the time that its observation is of: a clock that was set in between makes it another one."""

    def reset(self) -> None:
        """Nothing is remembered."""

    def check(self, situation: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one protocol
        """HOLD for one step where a clock was set; STOP where this host slept, and the robot went on without us."""
        if not situation.clock_jump:
            return []
        slept = situation.clock_jump == "suspended"
        severity, code = (Severity.STOP, "clock.suspended") if slept else (Severity.HOLD, "clock.jump")
        detail = f"since the last action the clock was {situation.clock_jump}"
        return [Finding(gate="clock", severity=severity, code=code, detail=detail)]


class ObservationGate:
    """An action counts only with a valid and young reading of each sensor that it needs."""

    def __init__(self, contract: Contract) -> None:
        """Resolve the required sensors and how old each may be."""
        self._max_age_s = {name: contract.sensors[name].max_age_s for name in required_sensors(contract)}
        self._future_tolerance_s = contract.safety.observation.future_tolerance_s
        self._stop_steps = contract.safety.observation.stop_steps
        self._in_a_row = 0

    def reset(self) -> None:
        """Begin to count anew."""
        self._in_a_row = 0

    def check(self, situation: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one protocol
        """HOLD for each sensor that fails; STOP when steps in a row did."""
        problems = []
        for name, max_age_s in self._max_age_s.items():
            state = situation.sensors.get(name)
            if state is None or state.quality is not Quality.OK or not 0.0 <= state.age_s <= max_age_s:
                problem = self._problem(name, state)
                if problem is not None:
                    problems.append(problem)
        if not problems:
            self._in_a_row = 0
            return []
        self._in_a_row += 1
        severity = Severity.STOP if self._in_a_row >= self._stop_steps else Severity.HOLD
        return [Finding(gate="observation", severity=severity, code=code, detail=text) for code, text in problems]

    def _problem(self, name: str, state: SensorStatus | None) -> tuple[str, str] | None:
        if state is None or not math.isfinite(state.age_s):
            return "obs.invalid", f"nothing is known of {name}"
        if state.quality is Quality.FUTURE or state.age_s < -self._future_tolerance_s:
            return "obs.future", f"{name} is stamped in the future"
        if state.quality not in _JUDGED_BY_AGE:
            return "obs.invalid", f"{name} is {state.quality.name.lower()}"
        if state.age_s > self._max_age_s[name]:
            return "obs.stale", f"{name} is {state.age_s:.3f} s old; allowed: {self._max_age_s[name]} s"
        return None


class ActionAgeGate:
    """An action counts only for so long after its observation. In a world that waits it is 0 old."""

    def __init__(self, contract: Contract) -> None:
        """Resolve the bound."""
        self._max_age_s = contract.safety.action.max_age_steps * contract.control_period_s

    def reset(self) -> None:
        """Nothing is remembered."""

    def check(self, situation: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one protocol
        """HOLD for an action that comes too late."""
        if situation.action_age_s <= self._max_age_s:
            return []
        detail = f"{situation.action_age_s:.3f} s after its observation; allowed: {self._max_age_s} s"
        return [Finding(gate="action_age", severity=Severity.HOLD, code="act.late", detail=detail)]


class TrackingGate:
    """The joints are where they were sent, give or take: a blocked robot is not driven further into what blocks it."""

    def __init__(self, spec: Tracking, layout: ActionLayout, units: Mapping[str, str]) -> None:
        """Resolve the tolerance of each joint that is commanded by position; `units`: joint -> "rad" or "m"."""
        self._spec = spec
        self._layout = layout
        limits = layout.limits
        turns = np.array([_FULL_TURN[units[joint]] for joint in layout.joints])
        ranges = limits.position_high - limits.position_low
        self._by_position: list[bool] = (~layout.is_velocity).tolist()
        self._tolerance = spec.tolerance * np.where(np.isfinite(ranges), ranges, turns)
        self._tolerances: list[float] = self._tolerance.tolist()
        self._sent: deque[FloatArray] = deque(maxlen=spec.delay_steps + 1)
        self._in_a_row = 0

    def reset(self) -> None:
        """Forget where the joints were sent."""
        self._sent.clear()
        self._in_a_row = 0

    def check(self, situation: SafetyContext, commanded: FloatArray) -> list[Finding]:
        """HOLD, then STOP, for joints that have been far from where they were sent for several steps."""
        self._sent.append(commanded)
        if self._is_close(situation.measured, commanded):
            self._in_a_row = 0
            return []
        errors = self._errors(situation.measured)
        are_hit = [not error <= tolerance for error, tolerance in zip(errors, self._tolerances, strict=True)]
        self._in_a_row = self._in_a_row + 1 if True in are_hit else 0
        if self._in_a_row < self._spec.debounce_steps:
            return []
        severity = Severity.STOP if self._in_a_row >= self._spec.stop_steps else Severity.HOLD
        hit, error = np.array(are_hit), np.array(errors)
        finding = Finding(
            gate="tracking",
            severity=severity,
            code="track.error",
            joints=tuple(joint for joint, is_hit in zip(self._layout.joints, hit, strict=True) if is_hit),
            before=commanded[hit],
            after=situation.measured[hit],
            limit=self._tolerance[hit],
            margin=self._tolerance[hit] - error[hit],
        )
        return [finding]

    def _is_close(self, measured: FloatArray, commanded: FloatArray) -> bool:
        """Tell whether every joint is close to the last of the commands, and so to the nearest of them."""
        for position, sent, tolerance in zip(measured.tolist(), commanded.tolist(), self._tolerances, strict=True):
            if not -tolerance <= position - sent <= tolerance:
                return False
        return True

    def _errors(self, measured: FloatArray) -> list[float]:
        """Return how far each joint is from the nearest of the commands that may be acting. NaN where unknown.

        What is commanded by velocity is nowhere to be: 0.
        """
        errors = []
        rows = zip(measured.tolist(), self._by_position, *(sent.tolist() for sent in self._sent), strict=True)
        for position, is_by_position, *sent in rows:
            above, below = position - max(sent), min(sent) - position
            error = above if above > below else below  # noqa: FURB136 - it keeps NaN, and is faster
            errors.append(0.0 if error < 0.0 or not is_by_position else error)
        return errors


class ForceGate:
    """No reading of force is larger than its limit."""

    def __init__(self, safety: Safety) -> None:
        """Resolve the limits."""
        self._limits = {name: limit.limit for name, limit in safety.forces.items()}

    def reset(self) -> None:
        """Nothing is remembered."""

    def check(self, situation: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one protocol
        """STOP for each sensor beyond its limit, or of which nothing is known."""
        findings = []
        for name, limit in self._limits.items():
            force = situation.forces.get(name, math.nan)
            if not force <= limit:
                detail = f"{name} measures {force:.6g}; allowed: {limit}"
                findings.append(Finding(gate="force", severity=Severity.STOP, code="force.limit", detail=detail))
        return findings


class LatencyGate:
    """From the observation to the command no more time passes than the budget: misses are told, or HOLD."""

    def __init__(self, spec: LatencyBudget) -> None:
        """Count over a window of steps."""
        self._spec = spec
        self._missed: deque[bool] = deque(maxlen=spec.window_steps)

    def reset(self) -> None:
        """Begin to count anew."""
        self._missed.clear()

    def check(self, situation: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one protocol
        """Tell a miss; HOLD at so many of so many, where that is asked for."""
        budget_s = self._spec.budget_s
        if budget_s is None:
            return []
        self._missed.append(not situation.latency_s <= budget_s)
        misses = sum(self._missed)
        if misses < self._spec.misses:
            return []
        severity = Severity.HOLD if self._spec.action == "hold" else Severity.PASS
        detail = f"{misses} of the last {len(self._missed)} steps took longer than {budget_s} s"
        return [Finding(gate="latency", severity=severity, code="lat.budget", detail=detail)]


def make_interlocks(contract: Contract, layout: ActionLayout) -> tuple[Interlock, ...]:
    """Return the refusing gates of `contract`, in order."""
    safety = contract.safety
    units = {
        joint: limits.unit for actuator in contract.actuators.values() for joint, limits in actuator.joints.items()
    }
    tracking = () if safety.tracking is None else (TrackingGate(safety.tracking, layout, units),)
    return (
        EstopGate(),
        ClockGate(),
        ObservationGate(contract),
        ActionAgeGate(contract),
        *tracking,
        ForceGate(safety),
        LatencyGate(safety.latency),
    )


class InterventionRate:
    """The share of the last steps in which the gate stepped in."""

    def __init__(self, spec: Intervention) -> None:
        """Count over a window of steps."""
        self._spec = spec
        self._seen: deque[bool] = deque()
        self._changed = 0  # how many of them

    @property
    def share(self) -> float:
        """In [0, 1]; 0 before the first step."""
        return self._changed / len(self._seen) if self._seen else 0.0

    def reset(self) -> None:
        """Begin an episode."""
        self._seen.clear()
        self._changed = 0

    def count(self, *, intervened: bool) -> None:
        """One more step."""
        self._seen.append(intervened)
        self._changed += intervened
        if len(self._seen) > self._spec.window_steps:
            self._changed -= self._seen.popleft()

    def check(self) -> list[Finding]:
        """Tell a share that is too large, once the window is full; make a STOP of one where that is asked for."""
        spec = self._spec
        if not self._changed or len(self._seen) < spec.window_steps:
            return []
        share = self.share
        stops = spec.stop_share is not None and share > spec.stop_share
        if not (stops or share > spec.warn_share):
            return []
        return [
            Finding(
                gate="intervention",
                severity=Severity.STOP if stops else Severity.PASS,
                code="rate.intervention",
                detail=f"the gate changed {share:.0%} of the last {len(self._seen)} steps",
            )
        ]
