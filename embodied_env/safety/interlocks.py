"""Interlocks: conditions under which no action is accepted, and the context that they judge.

Each interlock judges the `SafetyContext` of a step and the last published command. HOLD brakes for this step; STOP and
ESTOP are latched by the gate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Protocol, Self, runtime_checkable

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.plugins import BUILT_IN, get_plugin
from embodied_env.contract.required_sensors import required_sensors
from embodied_env.contract.safety_schema import Intervention, LatencyBudget, Safety, Tracking
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.codes import Quality, Severity
from embodied_env.core.extensions import load_plugin, make_plugin
from embodied_env.core.measured_joints import TURN, MeasuredJoints, nearest_turn
from embodied_env.core.types import Finding, SafetyContext, SensorStatus, Snapshot
from embodied_env.errors import ContractError, escaped
from embodied_env.processes.signals import Terminated
from embodied_env.safety.findings import select_joints
from embodied_env.safety.late_agent import have_aged
from embodied_env.timing.clock import NS_PER_S

_INPUTS: Mapping[str, tuple[Severity, str]] = {
    "active": (Severity.ESTOP, "estop.active"),
    "expired": (Severity.ESTOP, "estop.expired"),
    "unknown": (Severity.ESTOP, "estop.unknown"),
    "protective_stop": (Severity.ESTOP, "robot.protective_stop"),
    "lapsed": (Severity.HOLD, "robot.inactive"),
    "inactive": (Severity.STOP, "robot.inactive"),
    "unclear": (Severity.HOLD, "robot.contention"),
    "contention": (Severity.STOP, "robot.contention"),
    "restarted": (Severity.STOP, "robot.restarted"),
    "silent": (Severity.STOP, "gripper.silent"),
}
"""State of a safety input, up to the colon -> severity and code."""

INPUT_REMEDIES: Mapping[str, str] = {
    "latch.estop": "check the robot",
    "estop.active": "release the emergency stop",
    "estop.expired": "restart the node that publishes the emergency stop",
    "estop.unknown": "start the node that publishes the emergency stop",
    "robot.protective_stop": "clear the stop at the robot, by its teach pendant or driver",
    "robot.inactive": "activate the robot and its controller",
    "robot.contention": "stop the other node that publishes the robot's commands or readings",
    "robot.restarted": "check that the driver has finished starting",
    "gripper.silent": "restart the action server of the gripper",
}
"""Code of a stop by a safety input, now or earlier -> what an operator does."""

AFTER_ESTOP = "then call clear_estop() and reset(), which runs the whole reset again, homing included"
"""The remedy once an operator has resolved the cause of an ESTOP."""

JUDGED_BY_AGE = (Quality.OK, Quality.OUT_OF_RANGE, Quality.STALE, Quality.MISSING)

_SEVERITIES = {Severity.PASS, Severity.HOLD, Severity.STOP, Severity.ESTOP}  # of a code of another package
_MOST_DETAIL = 500  # characters

_NO_FORCES: Mapping[str, float] = {}
_FULL_RANGE = {"rad": 2.0 * math.pi, "m": 1.0}  # of a joint without position limits


class SafetyContextBuilder:
    """Builds the safety context of each step of one contract."""

    def __init__(self, contract: Contract, joints: MeasuredJoints) -> None:
        self._required = required_sensors(contract)
        self._forces = {name: limit.field for name, limit in contract.safety.forces.items()}
        self._joints = joints

    def build(
        self,
        snapshot: Snapshot,
        *,
        since_frozen_ns: int,
        since_returned_ns: int,
        estops: Mapping[str, str],
        required: tuple[str, ...] = (),
    ) -> SafetyContext:
        """Return the safety context of an action based on `snapshot`.

        The times since the snapshot was taken, and since the agent received it, are 0 in lockstep. `estops` are the
        states of the robot's safety inputs, `required` the sensors of the policy in addition to the contract's.
        """
        latency_s = since_frozen_ns / NS_PER_S
        samples, now_ns = snapshot.samples, snapshot.now_ns
        sensors = {}
        for name in dict.fromkeys((*self._required, *required)) if required else self._required:
            sample = samples[name]
            age_s = (now_ns - sample.stamp_ns) / NS_PER_S + latency_s
            sensors[name] = SensorStatus(quality=sample.quality, age_s=age_s)
        return SafetyContext(
            sensors=sensors,
            measured=self._joints.positions_or_nan(snapshot),
            action_age_s=since_returned_ns / NS_PER_S,
            latency_s=latency_s,
            estops=estops,
            required=required,
            clock_jump="" if snapshot.clock is None else snapshot.clock.jump,
            forces=self._measured_forces(snapshot) if self._forces else _NO_FORCES,
            snapshot=snapshot,
        )

    def _measured_forces(self, snapshot: Snapshot) -> dict[str, float]:
        return {
            name: float(np.linalg.norm(np.asarray(snapshot.samples[name].values[field], dtype=np.float64)))
            for name, field in self._forces.items()
        }


def make_interlocks(contract: Contract, layout: ActionLayout) -> tuple[Interlock, ...]:
    """Return the interlocks that `contract` declares, in the order of their gates, after the safety inputs.

    Those of other packages come last. Raises ContractError for one that cannot be made.
    """
    classes = [load_plugin(get_plugin("interlocks", name), name) for name in BUILT_IN["interlocks"]]
    own = (each.declared_by(contract, layout) for each in classes)
    foreign = {
        name: make_plugin(contract, "interlocks", name, given) for name, given in contract.safety.interlocks.items()
    }
    for name, each in foreign.items():
        codes = getattr(each, "codes", None)
        severities = codes.values() if isinstance(codes, Mapping) else [None]
        if not isinstance(each, ForeignInterlock) or not _SEVERITIES.issuperset(severities):
            problem = f"{name} made a {type(each).__name__} (expected codes with severities, and reset and judge)"
            raise ContractError(f"safety.interlocks.{name}", problem, source=contract.source)
    return (*(each for each in own if each is not None), *(PluginInterlock(*pair) for pair in foreign.items()))


def safety_input_findings(inputs: Mapping[str, str]) -> list[Finding]:
    """Return a finding for each safety input that is not "ok"; an undefined state counts as unknown."""
    findings = []
    for name, state in inputs.items():
        if state != "ok":
            severity, code = _INPUTS.get(str(state).partition(":")[0], _INPUTS["unknown"])
            findings.append(Finding(gate="estop", severity=severity, code=code, detail=f"{name} is {state}"))
    return findings


class Interlock:
    """Base of the interlocks; one without state needs no `reset`."""

    @classmethod
    def declared_by(cls, contract: Contract, layout: ActionLayout) -> Self | None:
        """Return the interlock if `contract` declares it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Clear the state of the last episode."""

    def check(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:
        """Return the findings against an action; `commanded` is the last published command, shape (n_joints,)."""
        raise NotImplementedError


class ObservationGate(Interlock):
    """Requires each action to follow in time from valid readings, with no clock set in between.

    A reading of a required sensor may be `max_age_s` old, an action may come `max_age_steps` control periods after it.

    Attributes:
        in_a_row: last steps in a row in which a reading failed.
        late_in_a_row: those of them that the agent's time alone explains.
    """

    @classmethod
    def declared_by(cls, contract: Contract, layout: ActionLayout) -> Self | None:  # noqa: ARG003 - one interface
        """Return the interlock, which every contract has."""
        return cls(contract)

    def __init__(self, contract: Contract) -> None:
        self._required = required_sensors(contract)
        self._max_age_s = {name: sensor.max_age_s for name, sensor in contract.sensors.items()}
        self._future_tolerance_s = contract.safety.observation.future_tolerance_s
        self._stop_steps = contract.safety.observation.stop_steps
        self._max_action_age_s = contract.safety.action.max_age_steps * contract.control_period_s
        self.in_a_row = self.late_in_a_row = 0

    def reset(self) -> None:
        """Reset the count of failed steps."""
        self.in_a_row = 0

    def check(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one interface
        """HOLD for a clock jump, each sensor that fails, and a late action.

        STOP if the host was suspended, since the robot kept moving, and after `stop_steps` steps in a row in which a
        sensor failed.
        """
        found, problems = [], []
        if context.clock_jump:
            suspended = context.clock_jump == "suspended"
            severity, code = (Severity.STOP, "clock.suspended") if suspended else (Severity.HOLD, "clock.jump")
            detail = f"clock jump since the last action: {context.clock_jump}"
            found.append(Finding(gate="clock", severity=severity, code=code, detail=detail))
        if not context.action_age_s <= self._max_action_age_s:
            detail = f"action arrived {context.action_age_s:.3f} s after its observation"
            detail += f" (maximum {self._max_action_age_s} s)"
            found.append(Finding(gate="action_age", severity=Severity.HOLD, code="act.late", detail=detail))
        for name in dict.fromkeys((*self._required, *context.required)) if context.required else self._required:
            status, max_age_s = context.sensors.get(name), self._max_age_s[name]
            if status is None or not math.isfinite(status.age_s):
                problems.append(("obs.invalid", f"no reading of {name}"))
            elif status.quality is Quality.FUTURE or status.age_s < -self._future_tolerance_s:
                problems.append(("obs.future", f"reading of {name} is stamped in the future"))
            elif status.quality not in JUDGED_BY_AGE:
                problems.append(("obs.invalid", f"reading of {name} is {status.quality.name.lower()}"))
            elif status.age_s > max_age_s:
                detail = f"reading of {name} is {status.age_s:.3f} s old (maximum {max_age_s} s)"
                problems.append(("obs.stale", detail))
        if not problems:
            self.in_a_row = 0
            return found
        self.in_a_row += 1
        readings = [
            (each.quality, each.age_s - context.latency_s, self._max_age_s[name])
            for name, each in context.sensors.items()
        ]
        before = self.late_in_a_row if self.in_a_row > 1 else 0
        self.late_in_a_row = before + 1 if have_aged(readings, context.action_age_s) else 0
        severity = Severity.STOP if self.in_a_row >= self._stop_steps else Severity.HOLD
        return found + [
            Finding(gate="observation", severity=severity, code=code, detail=text) for code, text in problems
        ]


class TrackingGate(Interlock):
    """Requires each position-commanded joint to be near its command, so that a blocked robot is not pushed further.

    A gripper may be further open than commanded: it holds an object. A reading of a joint that turns without limits
    may differ by whole turns.

    Attributes:
        is_checked: whether each joint is, shape (n_joints,).
        above, below: the largest distances above and below the commands, shape (n_joints,).
    """

    @classmethod
    def declared_by(cls, contract: Contract, layout: ActionLayout) -> Self | None:
        """Return the interlock of ``safety.tracking``."""
        spec, actuators = contract.safety.tracking, contract.actuators.values()
        units = {joint: limits.unit for actuator in actuators for joint, limits in actuator.joints.items()}
        return None if spec is None else cls(spec, layout, units)

    def __init__(self, spec: Tracking, layout: ActionLayout, units: Mapping[str, str]) -> None:
        """Resolve the tolerance of each joint; `units`: joint -> "rad" or "m"."""
        self.spec = spec
        self._layout = layout
        shares = [spec.of(name, joint) for name, part in layout.slices.items() for joint in layout.joints[part]]
        full_ranges = np.array([_FULL_RANGE[units[joint]] for joint in layout.joints])
        ranges = layout.limits.position_high - layout.limits.position_low
        is_goal = layout.is_goal  # which takes its time
        self.is_checked = ~(layout.is_velocity | is_goal) & np.array([share is not None for share in shares])
        self._tolerance = np.array([share or 0.0 for share in shares])
        self._tolerance *= np.where(np.isfinite(ranges), ranges, full_ranges)
        self.above = np.where(layout.closing < 0.0, np.inf, self._tolerance)
        self.below = np.where(layout.closing > 0.0, np.inf, self._tolerance)
        columns = (np.arange(layout.size), -self.below, self.above, layout.turns)
        self._rows = [*zip(*(column[self.is_checked].tolist() for column in columns), strict=True)]
        self.sent: deque[list[float]] = deque(maxlen=spec.delay_steps + 1)
        self.in_a_row = 0

    def reset(self) -> None:
        """Forget the commands of the last episode."""
        self.sent.clear()
        self.in_a_row = 0

    def check(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:
        """HOLD after `debounce_steps` steps in a row with a tracking error, STOP after `stop_steps`."""
        newest: list[float] = commanded.tolist()
        self.sent.append(newest)
        positions = context.measured.tolist()
        for joint, lowest, highest, turns in self._rows:
            position, command = positions[joint], newest[joint]
            if turns and math.isfinite(position):
                position += TURN * round((command - position) / TURN)  # the same pose
            if not lowest <= position - command <= highest:  # NaN included
                acting = [sent[joint] for sent in self.sent]
                if not (position - max(acting) <= highest and lowest <= position - min(acting)):
                    break
        else:
            self.in_a_row = 0
            return []
        self.in_a_row += 1
        if self.in_a_row < self.spec.debounce_steps:
            return []
        measured = nearest_turn(context.measured, commanded, self._layout.turns)
        above, below = measured - np.max(self.sent, axis=0), np.min(self.sent, axis=0) - measured
        hit = ~((above <= self.above) & (below <= self.below)) & self.is_checked
        error = np.maximum(above, below)
        finding = Finding(
            gate="tracking",
            severity=Severity.STOP if self.in_a_row >= self.spec.stop_steps else Severity.HOLD,
            code="track.error",
            joints=select_joints(self._layout.joints, hit),
            before=commanded[hit],
            after=measured[hit],
            limit=self._tolerance[hit],
            margin=self._tolerance[hit] - error[hit],
        )
        return [finding]


class ForceGate(Interlock):
    """Requires each force reading to be known and within its limit."""

    @classmethod
    def declared_by(cls, contract: Contract, layout: ActionLayout) -> Self | None:  # noqa: ARG003 - one interface
        """Return the interlock of ``safety.forces``."""
        return cls(contract.safety) if contract.safety.forces else None

    def __init__(self, safety: Safety) -> None:
        self._limits = {name: limit.limit for name, limit in safety.forces.items()}

    def check(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one interface
        """STOP for each sensor whose force is unknown or above its limit."""
        findings = []
        for name, limit in self._limits.items():
            force = context.forces.get(name, math.nan)
            if not force <= limit:
                detail = f"{name} measures {force:.6g} (limit {limit})"
                findings.append(Finding(gate="force", severity=Severity.STOP, code="force.limit", detail=detail))
        return findings


class LatencyGate(Interlock):
    """Limits how many of the last steps exceed the latency budget, from observation to command."""

    @classmethod
    def declared_by(cls, contract: Contract, layout: ActionLayout) -> Self | None:  # noqa: ARG003 - one interface
        """Return the interlock of ``safety.latency``, if it has a budget."""
        spec = contract.safety.latency
        return None if spec.budget_s is None else cls(spec, spec.budget_s)

    def __init__(self, spec: LatencyBudget, budget_s: float) -> None:
        self._spec, self._budget_s = spec, budget_s
        self.missed: deque[bool] = deque(maxlen=spec.window_steps)

    def reset(self) -> None:
        """Clear the window."""
        self.missed.clear()

    def check(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one interface
        """Report, or HOLD where the contract declares it, when the window has at least `misses` misses."""
        self.missed.append(not context.latency_s <= self._budget_s)
        misses = sum(self.missed)
        if misses < self._spec.misses:
            return []
        severity = Severity.HOLD if self._spec.action == "hold" else Severity.PASS
        detail = f"{misses} of the last {len(self.missed)} steps exceeded the latency budget of {self._budget_s} s"
        return [Finding(gate="latency", severity=severity, code="lat.budget", detail=detail)]


@runtime_checkable
class ForeignInterlock(Protocol):
    """An interlock of another package, made by its factory ``(contract, **parameters)``.

    Attributes:
        codes: severity of each of its codes: PASS reports, HOLD brakes, STOP and ESTOP are latched.
    """

    codes: Mapping[str, Severity]

    def reset(self) -> None:
        """Begin an episode."""
        ...

    def judge(self, context: SafetyContext, commanded: FloatArray) -> Mapping[str, str]:
        """Return code and detail of each condition that holds.

        `commanded` is the last published command. Both arguments are copies.
        """
        ...


class PluginInterlock(Interlock):
    """Judges by an interlock of another package, which receives copies.

    An interlock that raises, or returns an unknown code, is a STOP.
    """

    def __init__(self, name: str, made: ForeignInterlock) -> None:
        self._name, self._made, self._failed = name, made, ""

    def reset(self) -> None:
        """Begin an episode."""
        self._failed = ""
        try:
            self._made.reset()
        except Terminated:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of another package; the robot must brake
            self._failed = f"interlock raised {type(error).__name__} from reset"

    def check(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:
        """Return a finding for each code that `judge` returns."""
        try:
            found = {} if self._failed else dict(self._made.judge(deepcopy(context), commanded.copy()))
            texts = [(self._made.codes[code], f"{code}: {detail}") for code, detail in found.items()]
        except Terminated:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            texts = [(Severity.STOP, f"interlock raised {type(error).__name__}")]
        if self._failed:
            texts = [(Severity.STOP, self._failed)]
        return [
            Finding(gate="plugins", severity=severity, code="gate.plugin", detail=_detail(self._name, text))
            for severity, text in texts
        ]


def _detail(name: str, text: str) -> str:
    """Return bounded text of another package as one line."""
    return escaped(f"{name}: {text}"[:_MOST_DETAIL])


class InterventionRate:
    """The share of recent steps in which the gate changed the action.

    Attributes:
        window: whether the gate changed each action, oldest first.
        share: in [0, 1]; 0 before the first step.
        findings: the report of a share above `warn_share`, a STOP above `stop_share`; none before the window is full.
    """

    def __init__(self, spec: Intervention) -> None:
        self._spec = spec
        self.window: deque[bool] = deque(maxlen=spec.window_steps)
        self.reset()

    def reset(self) -> None:
        """Clear the window."""
        self.restore(())

    def restore(self, window: Iterable[bool]) -> None:
        """Replace the window with these steps."""
        self.window.clear()
        self._changed, self.share, self.findings = 0, 0.0, list[Finding]()
        for intervened in window:
            self.count(intervened=intervened)

    def count(self, *, intervened: bool) -> None:
        """Add a step to the window."""
        window, spec = self.window, self._spec
        is_full = len(window) == window.maxlen
        self._changed += intervened - (window[0] if is_full else 0)
        window.append(intervened)
        self.share = share = self._changed / len(window)
        self.findings = []
        if len(window) < spec.window_steps:
            return
        stops = spec.stop_share is not None and share > spec.stop_share
        if stops or share > spec.warn_share:
            severity = Severity.STOP if stops else Severity.PASS
            detail = f"the gate changed {share:.0%} of the last {len(window)} steps"
            self.findings = [Finding(gate="intervention", severity=severity, code="rate.intervention", detail=detail)]
