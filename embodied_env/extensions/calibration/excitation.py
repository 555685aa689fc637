"""Calibration moves: each joint there and back, drawn from a seed, through the gate.

Commands are those reported by each step (value applied, time of publication), readings are logged as they arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from embodied_env.contract import ActuatorSpec, Contract, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.core.codes import Severity
from embodied_env.core.types import Sample, Transition
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import BackendNotReadyError, EmbodiedEnvError, UsageError
from embodied_env.messages.message_types import JOINT_SENSOR

_SPEED = 0.1  # of the velocity limit
_CHANGE = 0.45  # of the velocity change per period that the acceleration limits allow
_MOVING, _RESTING, _SETTLING = 12, 6, 5  # periods: half a move, at rest after it, at rest after a reset
_RUNS = (2, 5)  # periods between two changes of velocity
_ROUNDING = 1e-6  # of a sum of displacements
_MOST_DISTURBED = 2  # times per move, on average, that a move is disturbed and repeated
_LATE_CODES = ("obs.stale", "act.late", "lat.budget", "wd.hold", "wd.stop")  # a busy host, not the robot
_TWIST = {  # axis of a twist -> field of nav_msgs/msg/Odometry, component
    f"{kind}.{axis}": (kind, i) for kind in ("linear", "angular") for i, axis in enumerate("xyz")
}


class CalibrationError(EmbodiedEnvError):
    """A calibration could not be completed; nothing was written."""


class _DisturbedError(CalibrationError):
    """A late reading or step disturbed a move; the move can be repeated."""


class JointReading(NamedTuple):
    """Source of the motion of a joint: sensor, field and component of the field."""

    sensor: str
    field: str
    component: int


@dataclass(kw_only=True)
class MoveTrace:
    """Commands of one move of the joint number `joint`, with the times of their publication."""

    joint: int
    begin_ns: int
    end_ns: int = 0
    is_late: bool = False  # a step came so late that the gate lowered the velocity
    published_ns: list[int] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)

    def add(self, transition: Transition) -> None:
        """Add the command of a step."""
        self.published_ns.append(transition.stamps_ns["published"])
        self.commands.append(float(transition.report.applied_si[self.joint]))
        self.end_ns = transition.stamps_ns["observed"]
        self.is_late |= any(finding.code == "vel.gap" for finding in transition.report.findings)


class SampleLog:
    """Readings of all sensors as they arrive, from any thread."""

    def __init__(self) -> None:
        self.samples: dict[str, list[Sample]] = {}
        self._newest: dict[str, int] = {}

    def add(self, sample: Sample) -> None:
        """Add a reading if it is new and well formed."""
        if sample.values and self._newest.get(sample.sensor) != sample.stamp_ns:
            self._newest[sample.sensor] = sample.stamp_ns
            self.samples.setdefault(sample.sensor, []).append(sample)


def find_joint_readings(contract: Contract, joints: Sequence[str]) -> dict[str, JointReading]:
    """Return where the motion of each joint is read: its velocity if it is commanded by velocity, else its position.

    Raises:
        UsageError: for a joint that the contract does not have, or that no sensor of the agent reads.
    """
    actuators = {joint: spec for spec in contract.actuators.values() for joint in spec.joints}
    readings = {}
    for joint in joints:
        if joint not in actuators:
            raise UsageError(f"unknown joint: {one_of(joint, actuators)}")
        reading = _find_reading(contract, joint, actuators[joint])
        if reading is None:
            what = "velocity" if actuators[joint].is_velocity else "position"
            raise UsageError(f"cannot calibrate {joint}: no agent-visible sensor reports its {what}")
        readings[joint] = reading
    return readings


def _find_reading(contract: Contract, joint: str, actuator: ActuatorSpec) -> JointReading | None:
    quantity = "velocity" if actuator.is_velocity else "position"
    for name, sensor in contract.sensors.items():
        if sensor.visibility != "agent":
            continue
        if sensor.type == JOINT_SENSOR and quantity in sensor.fields:
            joints = sensor.fields[quantity].joints or ()
            if joint in joints:
                return JointReading(name, quantity, joints.index(joint))
        if actuator.command == "twist" and joint in _TWIST and _TWIST[joint][0] in sensor.fields:
            return JointReading(name, *_TWIST[joint])
    return None


def draw_velocities(
    rng: np.random.Generator, *, fastest: float, change: float, way: float, period_s: float
) -> FloatArray:
    """Return the velocities of a move there and back, one per period, in unit/s: at rest in the middle and at the end.

    `fastest` is the greatest velocity, `change` the greatest change of velocity per period, `way` the greatest
    displacement, in the unit of the joint.
    """
    goals: list[float] = []
    sign = rng.choice([-1.0, 1.0])
    while len(goals) < _MOVING:
        goals += [sign * fastest * rng.uniform(0.5, 1.0)] * int(rng.integers(*_RUNS))
        sign = -sign if rng.random() < 0.7 else sign
    velocity, there = 0.0, np.zeros(_MOVING)
    for i in range(_MOVING):
        reach = change * (_MOVING - 1 - i)  # so that it comes to rest in time
        velocity += float(np.clip(np.clip(goals[i], -reach, reach) - velocity, -change, change))
        there[i] = velocity
    there *= min(1.0, way / max(1e-12, float(np.abs(np.cumsum(there)).max()) * period_s))
    rest = np.zeros(_RESTING)
    return np.concatenate([there, rest, -there[::-1], rest])


class Excitation:
    """One run of moves in an environment.

    Attributes:
        traces: of the finished moves.
        missing: joint -> why moves of it are missing.
        offsets_ns: of our steady clock from that of the backend, at each step; upper bounds.
        acted: measured actuation of the steps, s, by method.
    """

    def __init__(
        self,
        env: Any,  # noqa: ANN401 - an environment under any wrappers
        log: SampleLog,
        *,
        every_step: bool,
        joints: Sequence[str],
        amplitude: float,
    ) -> None:
        """Prepare moves of `joints`; with `every_step`, the readings of each step are added to `log`."""
        self._env, self._log, self._every_step = env, log, every_step
        self._base: EmbodiedEnv = env.unwrapped
        self._contract = self._base.contract
        self._layout = ActionLayout(self._contract)
        self._joints = [self._layout.joints.index(joint) for joint in joints]
        self._amplitude = amplitude
        self._reference = self._applied = np.zeros(self._layout.size)  # requested next; applied last
        self._was_reset = False
        self._reset_seed: int | None = None
        self.traces: list[MoveTrace] = []
        self.missing: dict[str, str] = {}
        self.offsets_ns: list[int] = []
        self.acted: dict[str, list[float]] = {}

    def make_moves(self, *, repeats: int, seed: int, progress: Callable[[int, int], None]) -> None:
        """Make all moves. One that is disturbed by a late reading or step is repeated after the others.

        After too many disturbances the remaining moves are missing.

        Raises:
            UsageError: when the horizon is too short for a move.
            CalibrationError: when the gate holds or stops for another reason, an episode ends, or no move could be
                made.
        """
        rng = np.random.default_rng(seed)
        left = [(joint, self._draw_move(rng, joint)) for _ in range(repeats) for joint in self._joints]
        count, steps = len(left), _SETTLING + len(left[0][1])
        room: int = self._contract.episode.horizon_steps - 1
        if room < steps:
            raise UsageError(f"horizon of {room + 1} steps is too short for a move (expected more than {steps})")
        disturbed, self._reset_seed = 0, seed
        reasons: dict[int, str] = {}
        while left and disturbed < _MOST_DISTURBED * count:
            try:
                self._run_episode(left, room, lambda done: progress(done, count))
            except (_DisturbedError, BackendNotReadyError) as error:
                is_reset = isinstance(error, BackendNotReadyError)  # it takes long: two of them are enough
                if is_reset and not self.traces:
                    raise
                disturbed += count if is_reset else 1
                reasons[left[0][0]] = str(error)
                left.append(left.pop(0))
        for joint, times in Counter(joint for joint, _ in left).items():
            why = reasons.get(joint, "not made after too many disturbances")
            self.missing[self._layout.joints[joint]] = f"{times} of {repeats}: {why}"
        if not self.traces:
            raise CalibrationError(f"no move could be made: {next(iter(reasons.values()))}")

    def _run_episode(self, left: list[tuple[int, FloatArray]], room: int, progress: Callable[[int], None]) -> None:
        """Reset and make moves while the episode has room."""
        self._begin()
        steps = _SETTLING
        while left and steps + len(left[0][1]) <= room:
            self._move(*left[0])
            steps += len(left.pop(0)[1])
            progress(len(self.traces))

    def _draw_move(self, rng: np.random.Generator, joint: int) -> FloatArray:
        limits, period_s = self._layout.limits, self._contract.control_period_s
        fastest = _SPEED * float(min(-limits.velocity_low[joint], limits.velocity_high[joint]))
        span = float(limits.position_high[joint] - limits.position_low[joint])
        way = self._amplitude * (span if np.isfinite(span) else 10.0 * float(limits.fastest[joint]))
        change = _CHANGE * float(min(limits.acceleration[joint], limits.deceleration[joint])) * period_s
        change = min(change, 0.2 * float(limits.jerk[joint]) * period_s**2)
        return draw_velocities(rng, fastest=fastest, change=change, way=way, period_s=period_s)

    def _begin(self) -> None:
        """Reset and come to rest."""
        layout = self._layout
        self._env.reset(seed=self._reset_seed)
        self._reset_seed = None  # only the first reset has one
        snapshot = self._base.last_reset
        assert snapshot is not None  # noqa: S101 - a reset came first
        self._reference, self._applied, self._was_reset = *np.zeros((2, layout.size)), True
        absolute = [joint for i, joint in enumerate(layout.joints) if not (layout.is_delta[i] or layout.is_velocity[i])]
        for joint, (sensor, name, component) in find_joint_readings(self._contract, absolute).items():
            self._reference[layout.joints.index(joint)] = snapshot.samples[sensor].values[name][component]
        for _ in range(_SETTLING):
            self._step(np.zeros(layout.size))

    def _move(self, joint: int, profile: FloatArray) -> None:
        """Make and keep one move."""
        trace = MoveTrace(joint=joint, begin_ns=self._last_transition.stamps_ns["published"])
        trace.add(self._last_transition)
        trips = self._last_transition.info["safety"]["watchdog"]["trips"]
        for velocity in profile.tolist():
            wanted = np.zeros(self._layout.size)
            wanted[joint] = velocity
            trace.add(self._step(wanted))
        if self._last_transition.info["safety"]["watchdog"]["trips"] > trips:
            raise _DisturbedError("the watchdog braked between two steps (wd.hold): a step was late")
        if not np.isclose(trace.commands[0], trace.commands[-1], rtol=0.0, atol=_ROUNDING):
            name, way = self._layout.joints[joint], trace.commands[-1] - trace.commands[0]
            problem = f"{name} ended {way:.6f} from where it started: the gate changed its commands"
            raise (_DisturbedError if trace.is_late else CalibrationError)(problem)
        self.traces.append(trace)

    @property
    def _last_transition(self) -> Transition:
        transition = self._base.last_transition
        assert transition is not None  # noqa: S101 - each episode begins with steps at rest
        return transition

    def _step(self, wanted: FloatArray) -> Transition:
        """Take a step at these velocities; raise CalibrationError when the gate holds or stops it."""
        layout, is_velocity = self._layout, self._layout.is_velocity
        self._reference = np.where(is_velocity, wanted, self._reference + wanted * self._contract.control_period_s)
        si = np.where(layout.is_delta, self._reference - self._applied, self._reference)
        self._env.step(layout.as_action(layout.scale.from_si(si)))
        transition = self._last_transition
        self._applied = transition.report.applied_si
        if self._was_reset:  # a displacement is relative to the position at the reset
            self._reference = np.where(layout.is_delta, self._applied, self._reference)
            self._was_reset = False
        ending = transition.info["end_reason"]
        findings = [f for f in transition.report.findings if f.severity >= Severity.HOLD]
        if findings:
            worst = max(findings, key=lambda found: found.severity)
            is_late = {f.code for f in findings} <= {*_LATE_CODES, "latch.stop" if ending.endswith("wd.stop") else ""}
            raise (_DisturbedError if is_late else CalibrationError)(
                f"gate {worst.gate} returned {worst.severity.name} ({worst.code}): {worst.detail}"
            )
        if ending:
            raise (_DisturbedError if ending.startswith("sensor_gap") else CalibrationError)(f"episode ended: {ending}")
        self._keep_measurements(transition)
        return transition

    def _keep_measurements(self, transition: Transition) -> None:
        snapshot = transition.snapshot
        self.offsets_ns.append(transition.stamps_ns["observed"] - snapshot.now_ns)
        if self._every_step:
            for sample in snapshot.samples.values():
                self._log.add(sample)
        acted_s, evidence = transition.info["latency"].get("actuation_s"), snapshot.actuation
        if evidence is not None and evidence.method != "declared" and acted_s is not None and np.isfinite(acted_s):
            self.acted.setdefault(evidence.method, []).append(float(acted_s))
