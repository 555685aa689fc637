"""Read a recorded run as segments of commands and readings for a fit.

All times are on the clock of the world. A command counts from its publication, in lockstep from the start of the step,
and a reading from its acquisition. A segment has no gap: the gate did not brake, no command came late, no clock jumped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.fingerprint import differences, meaning
from embodied_env.core.code_types import Severity
from embodied_env.errors import EmbodiedEnvError
from embodied_env.record.manifest import contract_of_manifest, world_of
from embodied_env.record.row_types import RESET, ResetRow, TransitionRow
from embodied_env.record.run import Run
from embodied_env.record.step_values import CommandedJoint, commanded_joints, read_joint
from embodied_env.sim.identified_parameters import IdentifiedRun

_GAP = 1.5  # control periods between two commands
_SAME_ROBOT = ("control_period_s", "actuators", "joint_order")
_MOST_LIMITED = 0.5  # share of the steps
_LEAST_MOTION = 0.5  # of the largest step of a command, by which a joint moves


class IdentificationError(EmbodiedEnvError):
    """The runs cannot be used for a fit, and nothing was written."""


@dataclass(frozen=True, kw_only=True)
class MotionSegment:
    """Commands and readings of consecutive steps, with times in ns after the first command.

    `start` has positions and velocities of the joints at time 0, shape (2, n_joints), NaN where they are not known;
    `before` is the command until then. `values` are the readings of the joints with the indices `joints` at `read_ns`,
    shape (n_readings,), without those of the warm-up.
    """

    title: str
    start: FloatArray
    before: FloatArray
    commands: tuple[tuple[int, FloatArray], ...]
    joints: tuple[int, ...]
    read_ns: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RunMotion:
    """The segments of one run, the joints that moved, and counts by kind of the gaps."""

    source: IdentifiedRun
    segments: list[MotionSegment]
    moved: set[str]
    gaps: Counter[str]


_Readings = list[tuple[int, float, float]]  # of each joint: time, value, velocity


@dataclass(kw_only=True)
class _Stretch:
    """Steps without a gap, with their commands and the readings before each and after the last."""

    first_row: int
    published_ns: list[int] = field(default_factory=list)
    commands: list[FloatArray] = field(default_factory=list)
    readings: list[_Readings] = field(default_factory=list)


def read_motion(run: Run, contract: Contract, *, segment_steps: int, warm_up_steps: int) -> RunMotion:
    """Return the motion of a run in segments of a number of steps, each after a warm-up.

    Raises IdentificationError for a run that is not sound, of another robot, without motion, or with a saturated gate.
    """
    name, manifest = run.path.name, run.manifest
    if run.problem or not run.chain.head:
        problem = run.problem or "its rows have no hash chain"
        raise IdentificationError(f"run {name} is not sound: {problem} (expected a closed, unmodified run)")
    _check_robot(name, contract_of_manifest(manifest), contract)
    reader = _RunReader(contract, is_lockstep=manifest["pacing"] != "realtime")
    segments = [
        _cut(stretch, first, f"{name}, row {stretch.first_row + first}", segment_steps, warm_up_steps)
        for stretch in reader.read_stretches(run)
        for first in range(0, len(stretch.commands) - segment_steps - warm_up_steps + 1, segment_steps)
    ]
    limited = reader.limited.total() / max(1, reader.steps)
    if limited > _MOST_LIMITED:
        problem = f"the gate limited {100 * limited:.0f} % of its steps, most by {reader.limited.most_common(1)[0][0]}"
        raise IdentificationError(f"run {name} is saturated: {problem} (expected at most half); excite it less")
    moved = reader.moved()
    if not moved:
        raise IdentificationError(f"run {name} has no excitation: no joint moved on command (expected motion)")
    source = IdentifiedRun(name=name, sha256=run.chain.head, backend=f"{manifest['backend']} ({world_of(manifest)})")
    return RunMotion(source=source, segments=segments, moved=moved, gaps=reader.gaps)


def _check_robot(name: str, own: Contract, contract: Contract) -> None:
    one, other = ({key: meaning(each, with_defaults=True)[key] for key in _SAME_ROBOT} for each in (contract, own))
    if found := differences(one, other):
        path, expected, value = found[0]
        more = f"; also {len(found) - 1} other values" if found[1:] else ""
        raise IdentificationError(f"run {name} is of another robot: {path} {value} (expected {expected}){more}")


class _RunReader:
    def __init__(self, contract: Contract, *, is_lockstep: bool) -> None:
        self._is_lockstep, self._gap_ns = is_lockstep, _GAP * contract.control_period_ns
        self._joints = commanded_joints(contract)
        if not any(joint.sensor for joint in self._joints):
            raise IdentificationError("no commanded joint is measured (expected a JointState sensor of the agent)")
        self._velocities = [_velocity_of(joint, contract) for joint in self._joints]
        # of commands and readings
        self._low, self._high = np.full((2, 2, len(self._joints)), [[[math.inf]], [[-math.inf]]])
        self.steps, self.limited, self.gaps = 0, Counter[str](), Counter[str]()

    def moved(self) -> set[str]:
        ways = zip(self._joints, (self._high - self._low).min(axis=0).tolist(), strict=True)
        return {joint.name for joint, way in ways if way >= _LEAST_MOTION * joint.step}

    def read_stretches(self, run: Run) -> Iterator[_Stretch]:
        stretch = _Stretch(first_row=0)
        before: TransitionRow | ResetRow | None = None  # with the observation that the next command answers
        for number, row in enumerate(run.rows()):
            if row["schema"] == RESET or row["inner"] is None:
                yield self._ended(stretch, before)
                stretch = _Stretch(first_row=number + 1)
                before = row if row["schema"] == RESET and row["inner"] is not None else None
                continue
            self.steps += 1
            inner = row["inner"]
            limits = [each["code"] for each in inner["findings"] if each["severity"] == Severity.LIMIT.name]
            self.limited.update(limits[:1])
            published_ns = inner["stamps_ns"]["published"] - inner["stamps_ns"]["observed"] + inner["now_ns"]
            if self._is_lockstep and before is not None:
                published_ns = before["inner"]["now_ns"]
            applied = row["info"]["action"]["applied_si"]
            found = [applied.get(joint.name) for joint in self._joints]
            command = np.array([math.nan if x is None else x for x in found])
            why = _gap(row, command)
            if not why and stretch.commands and published_ns - stretch.published_ns[-1] > self._gap_ns:
                why = "late commands"
            if why:
                self.gaps[why] += 1
                yield self._ended(stretch, before)
                stretch = _Stretch(first_row=number)
            if before is not None and why in ("", "late commands"):
                self._extend_range(0, command)
                stretch.readings.append(self._readings(before))
                stretch.published_ns.append(published_ns)
                stretch.commands.append(command)
            before = row
        yield self._ended(stretch, before)

    def _ended(self, stretch: _Stretch, row: TransitionRow | ResetRow | None) -> _Stretch:
        if row is not None and stretch.commands:
            stretch.readings.append(self._readings(row))
        return stretch

    def _readings(self, row: TransitionRow | ResetRow) -> _Readings:
        found = []
        for joint, velocity in zip(self._joints, self._velocities, strict=True):
            value = read_joint(row, joint)
            account = row["inner"]["sensors"].get(joint.sensor)
            is_read = account is not None and math.isfinite(value)
            at_ns = account["stamp_ns"] if account is not None and is_read else 0
            found.append((at_ns, value if is_read else math.nan, read_joint(row, velocity)))
        self._extend_range(1, np.array([value for _, value, _ in found]))
        return found

    def _extend_range(self, row: int, values: FloatArray) -> None:
        self._low[row], self._high[row] = np.fmin(self._low[row], values), np.fmax(self._high[row], values)


def _gap(row: TransitionRow, command: FloatArray) -> str:
    """Return why the command of a step is not used, or ""."""
    clock = row["inner"]["clock"]
    for finding in row["inner"]["findings"]:
        if Severity[finding["severity"]] >= Severity.HOLD:
            return f"steps braked by {finding['code']}"
    if clock is not None and clock["jump"]:
        return "clock jumps"
    return "" if np.isfinite(command).all() else "unknown commands"


def _velocity_of(joint: CommandedJoint, contract: Contract) -> CommandedJoint:
    """Return where a joint's sensor reports its velocity, or else the joint without a sensor."""
    spec = contract.sensors[joint.sensor].fields.get("velocity") if joint.sensor else None
    if spec is None or joint.name not in (names := spec.joints or ()):
        return joint._replace(sensor="")
    return joint._replace(key=f"{joint.sensor}_velocity", component=names.index(joint.name))


def _cut(stretch: _Stretch, first: int, title: str, length: int, warm_up: int) -> MotionSegment:
    begin_ns, last = stretch.published_ns[first], first + warm_up + length
    start = np.array([(value, velocity) for _, value, velocity in stretch.readings[first]]).T
    age_s = np.array([(begin_ns - at_ns) / 1e9 for at_ns, _, _ in stretch.readings[first]])
    start[0] += np.nan_to_num(start[1]) * age_s
    read = {  # a reading may be the newest one in several steps
        (joint, at_ns - begin_ns): value
        for readings in stretch.readings[first + warm_up + 1 : last + 1]
        for joint, (at_ns, value, _) in enumerate(readings)
        if math.isfinite(value)
    }
    return MotionSegment(
        title=title,
        start=start,
        before=stretch.commands[first - 1] if first else np.full(len(start[0]), math.nan),
        commands=tuple((stretch.published_ns[k] - begin_ns, stretch.commands[k]) for k in range(first, last)),
        joints=tuple(joint for joint, _ in read),
        read_ns=tuple(at_ns for _, at_ns in read),
        values=tuple(read.values()),
    )
