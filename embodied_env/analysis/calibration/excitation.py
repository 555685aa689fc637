"""The moves of a calibration: each joint in turn there and back, at random by the seed, through the gate.

A move ends where it began. Commands are taken from the account of each step (what was applied, and when it was
published), readings as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embodied_env.contract import ActuatorSpec, Contract, FloatArray
from embodied_env.contract.message_types import JOINT_SENSOR
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.core.codes import Severity
from embodied_env.core.types import Sample, Transition
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import BackendNotReadyError, EmbodiedEnvError, UsageError

_SPEED = 0.1  # of the limit
_CHANGE = 0.45  # of what the limits of acceleration let the velocity change in a period
_MOVING, _RESTING, _SETTLING = 12, 6, 5  # periods of each half of a move, and at rest after it; at the begin
_RUNS = (2, 5)  # periods between two changes of velocity
_ROUNDING = 1e-6  # of a sum of displacements
_TRIES = 3  # episodes that a task may end before their time
_ATTEMPTS = 3  # at one move, while readings make the gate hold
_MOST_MISSING = 3  # moves; with more, the rest is not tried either
_TWIST = {  # axis of a twist -> field of nav_msgs/msg/Odometry, component
    f"{kind}.{axis}": (kind, i) for kind in ("linear", "angular") for i, axis in enumerate("xyz")
}


class CalibrationError(EmbodiedEnvError):
    """A calibration came to no end; nothing was written."""


class _HeldError(CalibrationError):
    """A move was held because of a reading; it can be repeated."""


@dataclass(frozen=True, kw_only=True)
class JointReading:
    """Where the motion of a joint is read: sensor, field and index in it."""

    sensor: str
    field: str
    index: int


@dataclass(kw_only=True)
class MoveTrace:
    """What was sent and heard during one move of one joint."""

    joint: int
    begin_ns: int = 0
    end_ns: int = 0
    published_ns: list[int] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)


class SampleLog:
    """The readings of all sensors as they arrive, from any thread."""

    def __init__(self) -> None:
        """Nothing was heard yet."""
        self.samples: dict[str, list[Sample]] = {}
        self._newest: dict[str, int] = {}

    def take(self, sample: Sample) -> None:
        """Keep a reading that is new and well formed."""
        if sample.values and self._newest.get(sample.sensor) != sample.stamp_ns:
            self._newest[sample.sensor] = sample.stamp_ns
            self.samples.setdefault(sample.sensor, []).append(sample)


def find_joint_readings(contract: Contract, joints: Sequence[str]) -> dict[str, JointReading]:
    """Return where the motion of each of `joints` is read.

    Raises:
        UsageError: for one that the contract does not have, or whose position (velocity, when it is commanded so) no
            sensor of the agent reports.
    """
    found = {}
    by_joint = {joint: spec for spec in contract.actuators.values() for joint in spec.joints}
    for joint in joints:
        if joint not in by_joint:
            raise UsageError(f"no such joint: {one_of(joint, by_joint)}")
        place = next(_places_of(contract, joint, by_joint[joint]), None)
        if place is None:
            what = "velocity" if by_joint[joint].is_velocity else "position"
            raise UsageError(f"no sensor of the agent reports the {what} of {joint}: it cannot be calibrated")
        found[joint] = place
    return found


def _places_of(contract: Contract, joint: str, actuator: ActuatorSpec) -> Iterator[JointReading]:
    kind = "velocity" if actuator.is_velocity else "position"
    for name, sensor in contract.sensors.items():
        if sensor.visibility != "agent":
            continue
        if sensor.type == JOINT_SENSOR and kind in sensor.fields:
            known = sensor.fields[kind].joints or ()
            if joint in known:
                yield JointReading(sensor=name, field=kind, index=known.index(joint))
        if actuator.command == "twist" and joint in _TWIST and _TWIST[joint][0] in sensor.fields:
            yield JointReading(sensor=name, field=_TWIST[joint][0], index=_TWIST[joint][1])


def velocities(rng: np.random.Generator, *, fastest: float, change: float, way: float, period_s: float) -> FloatArray:
    """Return the velocities of a move there and back, one per period, in unit/s: at rest at both ends and between.

    Args:
        rng: draws it.
        fastest: no velocity is greater.
        change: no velocity differs more from the one before.
        way: nor does it lead farther, in the joint's unit.
        period_s: the control period.
    """
    goals: list[float] = []
    sign = rng.choice([-1.0, 1.0])
    while len(goals) < _MOVING:
        goals += [sign * fastest * rng.uniform(0.5, 1.0)] * int(rng.integers(*_RUNS))
        sign = -sign if rng.random() < 0.7 else sign
    velocity, there = 0.0, np.zeros(_MOVING)
    for i in range(_MOVING):
        reach = change * (_MOVING - 1 - i)  # so that it is at rest in time
        velocity += float(np.clip(np.clip(goals[i], -reach, reach) - velocity, -change, change))
        there[i] = velocity
    there *= min(1.0, way / max(1e-12, float(np.abs(np.cumsum(there)).max()) * period_s))
    rest = np.zeros(_RESTING)
    return np.concatenate([there, rest, -there[::-1], rest])


class Excitation:
    """One run of moves in an environment."""

    def __init__(
        self,
        env: Any,  # noqa: ANN401 - an environment under any wrappers
        heard: SampleLog,
        *,
        every_step: bool,
        joints: Sequence[str],
        amplitude: float,
    ) -> None:
        """Move `joints` of `env`; `every_step`: hear what each step read, since nobody tells of every reading."""
        self._env, self._heard, self._every_step = env, heard, every_step
        self._base: EmbodiedEnv = env.unwrapped
        self._contract = self._base.contract
        self._layout = ActionLayout(self._contract)
        self._joints = [self._layout.joints.index(joint) for joint in joints]
        self._amplitude = amplitude
        self._reference = self._applied = np.zeros(self._layout.size)  # what is wanted next; what was sent last
        self._was_reset = False
        self.traces: list[MoveTrace] = []
        self.missing: list[str] = []  # moves that were not made, each with the reason
        self.offsets_ns: list[int] = []  # of our steady clock from the world's, at each step; a little too great
        self.acted: dict[str, list[float]] = {}  # what evidence of actuation each step had, by method

    def moves(self, *, repeats: int, seed: int, progress: Callable[[int, int], None]) -> None:
        """Do all moves; one that is held because of a reading is repeated, and in the end left out.

        A reset that fails after the first move leaves out the rest.

        Raises:
            CalibrationError: when the gate holds or stops for another reason, an episode ends too early, or no move
                could be made.
        """
        rng = np.random.default_rng(seed)
        plan = [(joint, self._profile(rng, joint)) for _ in range(repeats) for joint in self._joints]
        left, tries, done, held = list(plan), 0, 0, 0
        room = self._room(_SETTLING + len(plan[0][1]))
        first = True
        while left:
            try:
                goes_on = self._begin(seed if first else None)
                first, steps = False, _SETTLING
                while goes_on and left and steps + len(left[0][1]) <= room and self._move(*left[0]):
                    steps += len(left.pop(0)[1])
                    done, held = done + 1, 0
                    progress(done, len(plan))
            except _HeldError as error:
                first, held = False, held + 1
                if held == _ATTEMPTS:
                    held = 0
                    self._leave_out(left, str(error))
                continue
            except BackendNotReadyError as error:
                if not self.traces:
                    raise
                self.missing += [f"{self._layout.joints[joint]}: {error}" for joint, _ in left]
                break
            if not left or steps + len(left[0][1]) > room:
                continue
            tries += 1
            if tries > _TRIES:
                raise CalibrationError(f"the task ended {tries} episodes before a move was complete: {self._ending()}")
        if not self.traces:
            raise CalibrationError(f"no move could be made: {self.missing[0]}")

    def _room(self, steps: int) -> int:
        """Return how many steps of an episode are for moves; raises UsageError where one of `steps` finds no room."""
        room: int = self._contract.episode.horizon_steps - 1
        if room < steps:
            raise UsageError(f"a horizon of {room + 1} steps is too short for a move of {steps} steps")
        return room

    def _leave_out(self, left: list[tuple[int, FloatArray]], why: str) -> None:
        """Give up the next of the moves that are left; with too many of them, all."""
        while left:
            self.missing.append(f"{self._layout.joints[left.pop(0)[0]]}: {why}")
            if len(self.missing) <= _MOST_MISSING:
                break

    def _profile(self, rng: np.random.Generator, joint: int) -> FloatArray:
        limits, period_s = self._layout.limits, self._contract.control_period_s
        fastest = _SPEED * float(limits.velocity[joint])
        span = float(limits.position_high[joint] - limits.position_low[joint])
        way = self._amplitude * (span if np.isfinite(span) else 10.0 * float(limits.velocity[joint]))
        change = _CHANGE * float(min(limits.acceleration[joint], limits.deceleration[joint])) * period_s
        change = min(change, 0.2 * float(limits.jerk[joint]) * period_s**2)
        return velocities(rng, fastest=fastest, change=change, way=way, period_s=period_s)

    def _begin(self, seed: int | None) -> bool:
        """Reset and come to rest; return False when the task ended the episode at once."""
        self._env.reset(seed=seed)
        self._reference, self._applied, self._was_reset = *np.zeros((2, self._layout.size)), True
        for i, joint in enumerate(self._layout.joints):
            if not (self._layout.is_delta[i] or self._layout.is_velocity[i]):
                self._reference[i] = self._measured(joint)
        for _ in range(_SETTLING):
            settled = self._step(np.zeros(self._layout.size))
            if settled.terminated or settled.truncated:
                return False
        return True

    def _measured(self, joint: str) -> float:
        place = find_joint_readings(self._contract, [joint])[joint]
        snapshot = self._base.last_reset
        assert snapshot is not None  # noqa: S101 - a reset came first
        return float(snapshot.samples[place.sensor].values[place.field][place.index])

    def _move(self, joint: int, profile: FloatArray) -> bool:
        """Do one move, and keep it; return False when the task ended the episode within it."""
        before = self._last()
        trace = MoveTrace(joint=joint, begin_ns=before.stamps_ns["published"])
        self._keep(trace, before)
        for velocity in profile.tolist():
            wanted = np.zeros(self._layout.size)
            wanted[joint] = velocity
            transition = self._step(wanted)
            self._keep(trace, transition)
            if transition.terminated or transition.truncated:
                return False
        trace.end_ns = transition.stamps_ns["observed"]
        if not np.isclose(trace.commands[0], trace.commands[-1], rtol=0.0, atol=_ROUNDING):
            name, way = self._layout.joints[joint], trace.commands[-1] - trace.commands[0]
            raise CalibrationError(f"{name} was led {way:.6f} away from where it began: the gate changed its commands")
        self.traces.append(trace)
        return True

    def _keep(self, trace: MoveTrace, transition: Transition) -> None:
        trace.published_ns.append(transition.stamps_ns["published"])
        trace.commands.append(float(transition.report.applied_si[trace.joint]))

    def _last(self) -> Transition:
        transition = self._base.last_transition
        assert transition is not None  # noqa: S101 - each episode begins with steps at rest
        return transition

    def _step(self, wanted: FloatArray) -> Transition:
        """Take a step towards these velocities; raises CalibrationError for what the gate does not let pass."""
        layout, is_velocity = self._layout, self._layout.is_velocity
        self._reference = np.where(is_velocity, wanted, self._reference + wanted * self._contract.control_period_s)
        si = np.where(layout.is_delta, self._reference - self._applied, self._reference)
        self._env.step(layout.as_action(layout.scale.from_si(si)))
        transition = self._last()
        if self._was_reset:  # a displacement is from where the robot was then
            self._reference = np.where(layout.is_delta, transition.report.applied_si, self._reference)
            self._was_reset = False
        self._applied = transition.report.applied_si
        findings = [f for f in transition.report.findings if f.severity >= Severity.HOLD]
        if findings:
            worst = max(findings, key=lambda found: found.severity)
            is_of_reading = worst.severity is Severity.HOLD and all(f.gate == "observation" for f in findings)
            raise (_HeldError if is_of_reading else CalibrationError)(
                f"{worst.severity.name} by the gate {worst.gate} ({worst.code}): {worst.detail}"
            )
        ending = transition.info["end_reason"]
        if ending and not ending.startswith(("success", "failure", "horizon", "time_limit", "out_of_bounds")):
            raise CalibrationError(f"the episode ended: {ending}")
        self._account(transition)
        return transition

    def _account(self, transition: Transition) -> None:
        snapshot = transition.snapshot
        self.offsets_ns.append(transition.stamps_ns["observed"] - snapshot.now_ns)
        if self._every_step:
            for sample in snapshot.samples.values():
                self._heard.take(sample)
        acted_s = transition.info["latency"].get("actuation_s")
        evidence = snapshot.actuation
        if evidence is not None and evidence.method != "declared" and acted_s is not None and np.isfinite(acted_s):
            self.acted.setdefault(evidence.method, []).append(float(acted_s))

    def _ending(self) -> str:
        return str(self._last().info["end_reason"])
