"""Make planned moves through the gate, for a calibration or an identification.

Commands are those reported by each step (value applied, time of publication), readings are logged as they arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from embodied_env.backends.backend import Backend
from embodied_env.contract import ActuatorSpec, Contract, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.core.code_types import Severity
from embodied_env.core.types import Sample, Transition
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.reset_procedure import require_operator
from embodied_env.errors import BackendNotReadyError, EmbodiedEnvError, UsageError
from embodied_env.extensions.calibration.planned_moves import PlannedMove
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.record import RecordTransitions
from embodied_env.tasks import Task, describe_task
from embodied_env.tasks.no_goal import NoGoal

_SETTLING = 5  # periods: at rest after a reset
_ROOM_SHARE = 0.9  # of the way to the nearest limit of a joint
_ROUNDING = 1e-6  # of a sum of displacements
_MOST_DISTURBED = 2  # times per move, on average, that a move is disturbed and repeated
_LATE_CODES = ("obs.stale", "act.late", "lat.budget", "wd.hold", "wd.stop")  # a busy host, not the robot
_TWIST = {  # axis of a twist -> field of nav_msgs/msg/Odometry, component
    f"{kind}.{axis}": (kind, i) for kind in ("linear", "angular") for i, axis in enumerate("xyz")
}


class CalibrationError(EmbodiedEnvError):
    """A calibration could not be completed, and nothing was written."""


class _DisturbedError(CalibrationError):
    """A late reading or step disturbed a move, which can be repeated."""


class JointReading(NamedTuple):
    """Sensor, field and component of the field in which the motion of a joint is read."""

    sensor: str
    field: str
    component: int


@dataclass(kw_only=True)
class MoveTrace:
    """Commands of a move, each of shape (n_joints,), with the times of publication."""

    name: str
    begin_ns: int
    end_ns: int = 0
    is_late: bool = False  # a step came so late that the gate lowered the velocity
    published_ns: list[int] = field(default_factory=list)
    commands: list[FloatArray] = field(default_factory=list)

    def add(self, transition: Transition) -> None:
        """Add the command of a step."""
        self.published_ns.append(transition.stamps_ns["published"])
        self.commands.append(transition.report.applied_si)
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
    """Return where the motion of each joint is read.

    It is the velocity of a joint that is commanded by velocity, and the position of any other.

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
            raise UsageError(f"cannot measure {joint}: no agent-visible sensor reports its {what}")
        readings[joint] = reading
    return readings


def find_moved_joints(contract: Contract, joints: Sequence[str]) -> dict[str, JointReading]:
    """Return the joints that moves excite, and where their motion is read.

    By default these are all but those of grippers.

    Raises:
        UsageError: as `find_joint_readings`, and for a joint that moves in one direction only.
    """
    streamed = (actuator for actuator in contract.actuators.values() if actuator.gripper is None)
    readings = find_joint_readings(contract, joints or [joint for actuator in streamed for joint in actuator.joints])
    limits = {joint: each for actuator in contract.actuators.values() for joint, each in actuator.joints.items()}
    if one_way := [joint for joint in readings if 0.0 in limits[joint].velocities]:
        names = ", ".join(one_way)
        raise UsageError(f"cannot measure {names}: one direction only (expected joints that move there and back)")
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


class EnvWithoutTask(EmbodiedEnv):
    """The environment of a contract, in which no task ends a move."""

    def _load_task(self, world: Backend) -> tuple[Task, dict[str, Any]]:  # noqa: ARG002 - of a replay
        task = cast("Task", NoGoal(self.contract, NoGoal.Parameters()))
        return task, describe_task(task, self.contract)


class Excitation:
    """One run of moves in an environment."""

    def __init__(
        self,
        env: Any,  # noqa: ANN401 - an environment under any wrappers
        log: SampleLog,
        *,
        every_step: bool,
        resetting: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare to move `env`, and to add each step's readings to `log` if `every_step` is set."""
        self._env, self._log, self._every_step, self._resetting = env, log, every_step, resetting
        self._base: EmbodiedEnv = env.unwrapped
        self._contract = self._base.contract
        self._layout = ActionLayout(self._contract)
        self._reference = self._applied = np.zeros(self._layout.size)  # requested next, and applied last
        self._was_reset = False
        self._reset_seed: int | None = None
        self.traces: list[MoveTrace] = []  # of the finished moves
        self.missing: dict[str, str] = {}  # joint, or name of a move -> why moves of it are missing
        self.offsets_ns: list[int] = []  # upper bounds of our steady clock less that of the backend, at each step
        self.acted: dict[str, list[float]] = {}  # measured actuation of the steps, s, by method

    def make_moves(self, moves: Sequence[PlannedMove], *, seed: int, progress: Callable[[int, int], None]) -> None:
        """Make all moves, and repeat those that a late reading or step disturbed after the others.

        After too many disturbances the remaining moves are missing.

        Raises:
            UsageError: when the horizon is too short for a move.
            BackendNotReadyError: for a robot without a channel to an operator, before anything connects, or when the
                first reset fails.
            CalibrationError: when the gate holds or stops for another reason, an episode ends, or no move could be
                made.
        """
        require_operator(self._base.stepper.backend, "planned moves")
        left, count = list(moves), len(moves)
        room: int = self._contract.episode.horizon_steps - 1
        if room < (steps := _SETTLING + max(len(move.velocities) for move in moves)):
            raise UsageError(f"horizon of {room + 1} steps is too short for a move (expected more than {steps})")
        disturbed, self._reset_seed = 0, seed
        reasons: dict[str, str] = {}
        while left and disturbed < _MOST_DISTURBED * count:
            try:
                self._run_episode(left, room, lambda done: progress(done, count))
            except (_DisturbedError, BackendNotReadyError) as error:
                is_reset = isinstance(error, BackendNotReadyError)  # two of them are enough, since it takes long
                if is_reset and not self.traces:
                    raise
                disturbed += count if is_reset else 1
                reasons[left[0].name] = str(error)
                left.append(left.pop(0))
        repeats = Counter(move.name for move in moves)
        for name, times in Counter(move.name for move in left).items():
            why = reasons.get(name, "not made after too many disturbances")
            self.missing[name] = f"{times} of {repeats[name]}: {why}"
        if not self.traces:
            why = next(iter(reasons.values()))
            raise CalibrationError(f"no move could be made: {why}; on a busy host, end other programs")

    def _run_episode(self, left: list[PlannedMove], room: int, progress: Callable[[int], None]) -> None:
        self._begin()
        steps = _SETTLING
        while left and steps + len(left[0].velocities) <= room:
            self._move(left[0])
            steps += len(left.pop(0).velocities)
            progress(len(self.traces))

    def _begin(self) -> None:
        layout = self._layout
        self._resetting()
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

    def _move(self, move: PlannedMove) -> None:
        """Make and keep one move, smaller for joints that are close to a limit."""
        trace = MoveTrace(name=move.name, begin_ns=self._last_transition.stamps_ns["published"])
        trace.add(self._last_transition)
        trips = self._last_transition.info["safety"]["watchdog"]["trips"]
        for wanted in move.velocities * self._share_with_room(move):
            trace.add(self._step(wanted))
        if self._last_transition.info["safety"]["watchdog"]["trips"] > trips:
            raise _DisturbedError("the watchdog braked between two steps (wd.hold): a step was late")
        way = trace.commands[-1] - trace.commands[0]
        if np.abs(way).max() > _ROUNDING:
            worst = int(np.abs(way).argmax())
            problem = f"{self._layout.joints[worst]} ended {way[worst]:.6f} from where it started"
            raise (_DisturbedError if trace.is_late else CalibrationError)(f"{problem}: the gate changed its commands")
        self.traces.append(trace)

    def _share_with_room(self, move: PlannedMove) -> FloatArray:
        """Return the share of each joint's move, (n_joints,), within its position limits."""
        limits, period_s = self._layout.limits, self._contract.control_period_s
        room = np.minimum(limits.position_high - self._reference, self._reference - limits.position_low)
        ways = np.abs(np.cumsum(move.velocities, axis=0)).max(axis=0) * period_s
        shares: FloatArray = np.clip(_ROOM_SHARE * room / np.maximum(ways, 1e-12), 0.0, 1.0)
        return np.where(self._layout.is_velocity, 1.0, shares)

    @property
    def _last_transition(self) -> Transition:
        transition = self._base.last_transition
        assert transition is not None  # noqa: S101 - each episode begins with steps at rest
        return transition

    def _step(self, wanted: FloatArray) -> Transition:
        """Take a step at these velocities, or raise CalibrationError if the gate intervenes."""
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


class RecordedExcitation(NamedTuple):
    """The run directory, and the moves that were disturbed too often, with the reason."""

    path: Path
    missing: Mapping[str, str]


def record_excitation(
    contract: Contract,
    moves: Sequence[PlannedMove],
    *,
    backend: str,
    record: Path,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    resetting: Callable[[], None] = lambda: None,
    **options: Any,  # noqa: ANN401 - of make
) -> RecordedExcitation:
    """Make moves of `brisk_moves` through the gate, without a task, and record them.

    `progress` is called with the number of finished moves and of all moves, `resetting` before each reset, and
    `options` are those of `EmbodiedEnv`. Raises like `Excitation.make_moves`, or RecordError for `record`.
    """
    env = RecordTransitions(EnvWithoutTask(contract, backend=backend, **options), record, policy="excitation")
    try:
        run = Excitation(env, SampleLog(), every_step=True, resetting=resetting)
        run.make_moves(moves, seed=seed, progress=progress)
    finally:
        env.close()
    return RecordedExcitation(path=env.path, missing=run.missing)
