"""Slow motion of the joints to the home positions of an episode, through the safety gate.

The motion is a straight line in joint space without planning; if the workspace filter stops it, homing fails with an
error that names it. Meanwhile the gate scales its velocity limits (`SafetyGate.scaled_velocity_limits`), while a relay
enforces those of the contract.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.code_types import AFTER_ESTOP, Severity
from embodied_env.core.measured_joints import MeasuredJoints, nearest_turn
from embodied_env.core.reset_draws import ResetRoutine
from embodied_env.core.types import ApprovedCommand, CommandState, Finding, SafetyContext, Snapshot
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.safety.approved_commands import merge_relay_report
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.joint_limits import joint_bounds, limit_joints
from embodied_env.timing.clock import NS_PER_S, Clock

_MAX_HELD_PERIODS = 20  # held commands in a row before homing fails
_SETTLE_S = 2.0  # a joint not within the tolerance this long after its last command is blocked
_NEAR = 0.1  # share of the tolerance within which a command with limited jerk counts as home
_AT_HOME = 1e-6  # distance from home, in the unit of a joint, within which any other command does: single precision
_SETTLES = 0.5  # a joint settles while each control period takes it to this share of its distance, or nearer
_LAST = 0.5  # of the speed that one step can brake: the most of the last command, which is home itself
_PEAKS = (0.2707, 0.2306)  # of speed and acceleration of a smooth approach, for a distance of 1 and a rate of 1/s
_SHARE = 0.8  # of the limits used by a smooth approach, as it is sampled at the control period
_APPROACH_TOLERANCE = 1e-6  # of a joint's distance from its smooth approach, in its unit


@dataclass(frozen=True, kw_only=True)
class HomingContext:
    """Callbacks of the stepper.

    `turn` waits for the end of the control period and returns the snapshot and the sensors whose gap ends episodes.
    `safety_context` returns the safety context of a command based on that snapshot. `feed` feeds the watchdog. `now_ns`
    returns the time that limits count: simulated where steps are exact, since a slow simulator is no blocked joint.
    """

    turn: Callable[[], tuple[Snapshot, list[str]]]
    safety_context: Callable[[], SafetyContext]
    feed: Callable[[], None]
    now_ns: Callable[[], int]


class HomingMotion:
    """Moves one robot home, with the gate and the arbiter of its steps."""

    def __init__(
        self, contract: Contract, routine: ResetRoutine, gate: SafetyGate, arbiter: Arbiter, clock: Clock
    ) -> None:
        """Prepare homing for `contract` as `routine` specifies."""
        self._routine = routine
        self._gate, self._arbiter, self._clock = gate, arbiter, clock
        layout = self._layout = gate.layout
        self._measured = MeasuredJoints(contract, layout.joints)
        self._goes = ~layout.is_velocity
        self._home = np.array([routine.home.get(joint, 0.0) for joint in layout.joints])
        self._goal = self._home  # goal of the commands
        self._held: Counter[str] = Counter()
        self._in_a_row = self._commands = 0
        self._positions = np.full(layout.size, np.nan)
        self._period_s = contract.control_period_s
        self._approach = np.full(layout.size, np.nan), np.zeros(layout.size)  # initial distances and rates
        self._approach_s = 0.0  # time since the approach began
        self._end_ns = np.inf  # end of `timeout_s`
        self._home_ns: int | None = None  # when the command reached home
        self._nearest = np.inf  # largest distance of a joint since then
        self._hindrance = ""  # the last finding that held or scaled a command

    def drive(self, world: HomingContext, deadline_ns: int) -> str:
        """Move home, come to rest, and return a summary.

        A summary is, for example, "120 commands, held: 3 x obs.stale". `deadline_ns` is of the steady clock. A robot
        within the tolerance when its time is over is home.

        Raises:
            BackendNotReadyError: when a gate stops or keeps holding the robot, a joint does not arrive or would have to
                move against its only direction, the backend is lost, or at the deadline. It names the joint and its
                distance, or the latched ESTOP. The robot may be in motion: the caller must brake.
        """
        if self._routine.timeout_s is not None:
            self._end_ns = world.now_ns() + round(self._routine.timeout_s * NS_PER_S)
        self._check_estop()
        self._check_directions()
        with self._gate.scaled_velocity_limits(self._routine.speed):
            try:
                while not self._arrives(world, deadline_ns):
                    self._check_gate_result(self._command(world.safety_context))
                self._arbiter.brake_to_rest(
                    Finding(gate="latch", severity=Severity.HOLD, code="latch.stop", detail="home")
                )
            except BackendLostError as error:
                raise self._failed(f"failed, backend lost: {error}") from error
        held = ", ".join(f"{count} x {code}" for code, count in sorted(self._held.items()))
        return f"{self._commands} commands" + (f", held: {held}" if held else "")

    def check_arrived(self, snapshot: Snapshot) -> float:
        """Return the largest distance from home, or raise BackendNotReadyError if not at home."""
        self._positions = nearest_turn(self._measured.measured(snapshot)[0], self._home, self._layout.turns)
        largest: float = self._offsets(self._positions).max().item()
        if largest > self._routine.tolerance:
            raise BackendNotReadyError(f"the robot left home after homing: {self._farthest()}")
        return largest

    def _arrives(self, world: HomingContext, deadline_ns: int) -> bool:
        """Wait a control period, read, and return whether the robot is home, or raise on failure."""
        world.feed()
        snapshot, gaps = world.turn()
        measured, ages_s = self._measured.measured(snapshot)
        self._positions = nearest_turn(measured, self._home, self._layout.turns)
        if self._layout.is_velocity.any():
            self._arbiter.update_measured(self._positions, ages_s)
        now_ns = world.now_ns()
        near = np.where(np.isfinite(self._gate.limits.jerk), _NEAR * self._routine.tolerance, _AT_HOME)
        if (self._goes & (np.abs(self._goal - self._arbiter.reference.positions) > near)).any():
            self._home_ns, self._nearest = None, np.inf
        else:
            self._home_ns = now_ns if self._home_ns is None else self._home_ns
        if gaps:
            raise self._failed(f"failed, no valid reading of {', '.join(gaps)}")
        if self._home_ns is not None and self._has_settled():
            return True
        is_blocked = self._home_ns is not None and now_ns - self._home_ns > _SETTLE_S * NS_PER_S
        if not (is_blocked or now_ns >= self._end_ns or self._clock.now_ns() >= deadline_ns):
            return False
        if self._offsets(self._positions).max() <= self._routine.tolerance:
            return True
        raise self._failed(f"failed, not home {_SETTLE_S} s after the last command" if is_blocked else "timed out")

    def _has_settled(self) -> bool:
        """Return whether the robot is within tolerance of home, and came no nearer this period."""
        before, self._nearest = self._nearest, self._offsets(self._positions).max().item()
        is_settling = self._nearest > _AT_HOME and self._nearest < _SETTLES * before
        return self._nearest <= self._routine.tolerance and not is_settling

    def _command(self, safety_context: Callable[[], SafetyContext]) -> ApprovedCommand:
        """Send the next command and return it as published, with any report of the relay."""
        with self._arbiter.exclusive as (reference, dt_s):
            action = self._layout.as_action(self._action(reference, dt_s))
            approved = self._gate.judge(action, reference, dt_s, safety_context())
            sent = self._arbiter.send(approved)
        approved = sent.command or approved
        self._commands += 1
        if sent.report is None:
            return approved
        answered = merge_relay_report(approved, sent.report)
        self._gate.latch_stops(answered.report.findings)  # a STOP of the relay, too
        return answered

    def _action(self, reference: CommandState, dt_s: float) -> FloatArray:
        """Return the flat action that leads slowly towards home, with room to brake before it."""
        if not dt_s > 0.0:
            return self._gate.hold_action(reference)
        limits, goal = self._gate.limits, self._goal.tolist()
        positions, velocities = reference.positions.tolist(), reference.velocities.tolist()
        bounds = joint_bounds(limits)
        for i, (b, x, home) in enumerate(zip(bounds, positions, goal, strict=True)):
            if abs(home - x) > _LAST * b.deceleration * dt_s * dt_s:
                bounds[i] = replace(b, low=min(x, home), high=max(x, home))
        braking, _, _ = limit_joints(positions, velocities, bounds, goal, [False] * len(goal), dt_s)
        target = np.where(np.isfinite(limits.jerk), self._approach_positions(reference, dt_s), braking)
        return self._gate.smooth_action(np.where(self._goes, target, 0.0), reference, dt_s)

    def _approach_positions(self, reference: CommandState, dt_s: float) -> FloatArray:
        """Return positions after `dt_s` on a smooth approach, which never overshoots home.

        From rest at the distance d it is at d (1 + rt + (rt)^2/2) e^-rt: the step response of a triple pole at rate r,
        with peak speed 2 e^-2 r d, peak acceleration 0.2306 r^2 d and peak jerk r^3 d. It accelerates no more than one
        step can undo, as the gate allows no more. It restarts when a joint has left it.
        """
        away, limits = reference.positions - self._goal, self._gate.limits
        start, rate = self._approach
        if not np.allclose(_distances(start, rate, self._approach_s), away, rtol=0.0, atol=_APPROACH_TOLERANCE):
            far = np.maximum(np.abs(away), 1e-9)
            least = np.minimum(np.minimum(limits.acceleration, limits.deceleration), limits.jerk * self._period_s)
            fastest = np.where(away > 0.0, -limits.velocity_low, limits.velocity_high)
            rate = np.minimum(fastest / (_PEAKS[0] * far), np.sqrt(least / (_PEAKS[1] * far)))
            rate = np.where(limits.is_goal, 0.0, np.minimum(rate, np.cbrt(limits.jerk / far)))
            start, rate = away, _SHARE * rate
            self._approach, self._approach_s = (start, rate), 0.0
        self._approach_s += dt_s
        return np.asarray(self._goal + _distances(start, rate, self._approach_s))

    def _check_estop(self) -> None:
        latched = self._gate.latched
        if latched is not None and latched.severity is Severity.ESTOP:
            raise BackendNotReadyError(f"homing refused: an ESTOP is latched, {_describe(latched)}; {AFTER_ESTOP}")

    def _check_directions(self) -> None:
        """Raise BackendNotReadyError if a joint past home, beyond the tolerance, cannot move back."""
        limits, positions = self._gate.limits, self._arbiter.reference.positions
        fastest = np.where(positions > self._home, -limits.velocity_low, limits.velocity_high)
        stays = self._goes & (positions != self._home) & (fastest == 0.0)
        for i in np.flatnonzero(stays & (self._offsets(positions) > self._routine.tolerance)):
            where = f"{self._layout.joints[i]} is at {positions[i]:.6g}, past home {self._home[i]:.6g}"
            raise BackendNotReadyError(
                f"homing refused: {where}, and moves in one direction only; move it home by hand"
            )
        self._goal = np.where(stays, positions, self._home)

    def _check_gate_result(self, answered: ApprovedCommand) -> None:
        for finding in answered.report.findings:
            if finding.severity >= Severity.HOLD or finding.gate in ("workspace", "plugins"):
                self._hindrance = _describe(finding)
            if finding.severity >= Severity.HOLD:
                self._held[finding.code] += 1
        self._in_a_row = self._in_a_row + 1 if answered.report.disposition >= Severity.HOLD else 0
        self._check_estop()
        if answered.report.disposition >= Severity.STOP:
            raise self._failed("was stopped by the safety gate")
        if self._in_a_row >= _MAX_HELD_PERIODS:
            raise self._failed(f"failed, {self._in_a_row} commands in a row were held")

    def _offsets(self, positions: FloatArray) -> FloatArray:
        """Return each joint's distance from home, 0 for joints without one."""
        return np.where(self._goes, np.abs(self._home - positions), 0.0)

    def _farthest(self) -> str:
        i = int(np.argmax(self._offsets(self._positions)))
        off = self._offsets(self._positions)[i]
        return (
            f"{self._layout.joints[i]} is at {self._positions[i]:.6g}, {off:.6g} from home {self._home[i]:.6g} "
            f"(tolerance {self._routine.tolerance:.6g})"
        )

    def _failed(self, result: str) -> BackendNotReadyError:
        hindrance = f" ({self._hindrance})" if self._hindrance else ""
        return BackendNotReadyError(f"homing {result}{hindrance}: {self._farthest()}")


def _distances(away: FloatArray, rate_per_s: FloatArray, time_s: float) -> FloatArray:
    rt = rate_per_s * time_s
    return np.asarray(away * (1.0 + rt + rt * rt / 2.0) * np.exp(-rt))


def _describe(finding: Finding) -> str:
    if finding.gate == "workspace":
        return f"the straight joint path is blocked by the workspace gate, {finding.code}: {finding.detail}"
    joints = f" of {', '.join(finding.joints)}" if finding.joints else ""
    return f"{finding.gate} {finding.code}{joints}" + (f": {finding.detail}" if finding.detail else "")
