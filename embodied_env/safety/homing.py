"""The way home: joints are driven to where an episode begins, slowly, through the same gate as any action.

It goes straight in the space of joints, and knows no workspace: where the workspace gate holds it, it ends with an
error that says so. Each joint asks for no more than its share of the velocity limit, and brakes so that it does not
pass its home; the gate keeps the same share (`SafetyGate.slowed`), a relay the limits of the contract.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.codes import Severity
from embodied_env.core.measured_joints import MeasuredJoints
from embodied_env.core.reset_spec import ResetRoutine
from embodied_env.core.types import ApprovedCommand, Finding, SafetyContext, Snapshot
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.safety import Arbiter, CommandState, SafetyGate, merge_relay_report
from embodied_env.safety.joint_limits import joint_bounds, limit_joint

_HELD_PERIODS = 20  # commands in a row that were refused: it does not pass by itself
_SETTLE_S = 2.0  # a joint that was commanded home for so long and is not there is blocked
_NEAR = 0.1  # of the tolerance: the command is home
_PEAKS = (0.2707, 0.2306)  # of speed and acceleration on a smooth way, for a distance of 1 and a haste of 1/s
_SHARE = 0.8  # of what the limits allow on a smooth way: it is followed in steps
_ON_THE_WAY = 1e-6  # how far from its smooth way a joint may be, in its unit


@dataclass(frozen=True, kw_only=True)
class HomingContext:
    """What the way home needs of the world, given by the stepper.

    `turn` waits for the end of the control period, and returns the settled snapshot and the sensors with a gap that
    ends episodes. `situation` tells what is known beside a command based on it. `feed` tells the watchdog.
    """

    turn: Callable[[], tuple[Snapshot, list[str]]]
    situation: Callable[[], SafetyContext]
    feed: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class _SmoothApproach:
    """A smooth way home from rest at `away` of it, shape (n_joints,), with this haste."""

    away: FloatArray
    haste_per_s: FloatArray

    def at(self, time_s: float) -> FloatArray:
        """Return how far the joints are from home after so long."""
        ht = self.haste_per_s * time_s
        left: FloatArray = self.away * (1.0 + ht + ht * ht / 2.0) * np.exp(-ht)
        return left


class HomingMotion:
    """Drives one robot home. Limits, latch and the last command are the gate's and the arbiter's, as in steps."""

    def __init__(
        self, contract: Contract, routine: ResetRoutine, gate: SafetyGate, arbiter: Arbiter, clock: Clock
    ) -> None:
        """Prepare the way for `contract` as `routine` says."""
        self._routine = routine
        self._gate, self._arbiter, self._clock = gate, arbiter, clock
        layout = self._layout = gate.layout
        self._measured = MeasuredJoints(contract, layout.joints)
        self._goes = ~layout.is_velocity
        self._home = np.array([routine.home.get(joint, 0.0) for joint in layout.joints])
        self._held: Counter[str] = Counter()
        self._in_a_row = self._commands = 0
        self._positions = np.full(layout.size, np.nan)
        self._period_s = contract.control_period_s
        self._way: _SmoothApproach | None = None  # of the joints whose jerk is limited
        self._since_s = 0.0  # on it
        self._home_ns: int | None = None  # since when the command is home
        self._hindrance = ""  # the last thing that held or weakened a command

    def drive(self, world: HomingContext, deadline_ns: int) -> str:
        """Drive home, and come to rest there. Return the account in words.

        Raises:
            BackendNotReadyError: when a gate stops or keeps holding it, a joint does not arrive, the world is lost, or
                at the deadline. It names the joint and how far it is, or the ESTOP that is latched. The robot may be in
                motion: the caller brakes.
        """
        if self._routine.timeout_s is not None:
            deadline_ns = min(deadline_ns, self._clock.now_ns() + round(self._routine.timeout_s * NS_PER_S))
        self._check_estop()
        with self._gate.scaled_velocity_limits(self._routine.speed):
            try:
                while not self._arrives(world, deadline_ns):
                    self._check_gate_result(self._command(world.situation))
                self._arbiter.brake_to_rest(
                    Finding(gate="latch", severity=Severity.HOLD, code="latch.stop", detail="home")
                )
            except BackendLostError as error:
                raise self._failed(f"the robot is lost, {error}") from error
        held = ", ".join(f"{count} x {code}" for code, count in sorted(self._held.items()))
        return f"{self._commands} commands" + (f", held: {held}" if held else "")

    def check_arrived(self, snapshot: Snapshot) -> None:
        """Raise BackendNotReadyError when a joint is not where it was sent, by these readings."""
        self._positions, _ = self._measured.measured(snapshot)
        if self._offsets(self._positions).max() > self._routine.tolerance:
            raise BackendNotReadyError(f"the robot has left its home since: {self._farthest()}")

    def _arrives(self, world: HomingContext, deadline_ns: int) -> bool:
        """Let a control period pass, and read; return whether the robot is home. Raise when it cannot go on."""
        world.feed()
        snapshot, gaps = world.turn()
        self._positions, ages_s = self._measured.measured(snapshot)
        if self._layout.is_velocity.any():
            self._arbiter.update_measured(self._positions, ages_s)
        now_ns, tolerance = self._clock.now_ns(), self._routine.tolerance
        if self._offsets(self._arbiter.reference.positions).max() > _NEAR * tolerance:
            self._home_ns = None
        else:
            self._home_ns = now_ns if self._home_ns is None else self._home_ns
        if gaps:
            raise self._failed(f"no valid reading of {', '.join(gaps)}")
        if self._home_ns is not None and self._offsets(self._positions).max() <= tolerance:
            return True
        if self._home_ns is not None and now_ns - self._home_ns > _SETTLE_S * NS_PER_S:
            raise self._failed(f"it was commanded home for {_SETTLE_S} s, and is not there")
        if now_ns >= deadline_ns:
            raise self._failed("the time is over")
        return False

    # ------------------------------------------------------------------------------------------- one command

    def _command(self, situation: Callable[[], SafetyContext]) -> ApprovedCommand:
        """Ask for the next piece of the way; return what became of it, in the words of who had the last one."""
        with self._arbiter.exclusive() as (reference, dt_s):
            action = self._layout.as_action(self._action(reference, dt_s))
            approved = self._gate.judge(action, reference, dt_s, situation())
            sent = self._arbiter.send(approved)
        self._commands += 1
        if sent.report is None:
            return approved
        answered = merge_relay_report(approved, sent.report)
        for finding in answered.report.findings:
            if finding.severity >= Severity.STOP:
                self._gate.latch(finding)  # what is latched where the command went is latched here
        return answered

    def _action(self, reference: CommandState, dt_s: float) -> FloatArray:
        """Return the action that leads towards home, flat: slowly, and with room to brake before it."""
        if not dt_s > 0.0:
            return self._gate.hold_action(reference)
        smooth, jerks = self._smooth_way(reference, dt_s), self._gate.limits.jerk
        target = np.zeros(self._layout.size)
        state = zip(reference.positions.tolist(), reference.velocities.tolist(), self._home.tolist(), strict=True)
        for i, ((x, v, home), bounds) in enumerate(zip(state, joint_bounds(self._gate.limits), strict=True)):
            if self._goes[i] and np.isfinite(jerks[i]):
                target[i] = smooth[i]
            elif self._goes[i]:
                between = replace(bounds, low=min(x, home), high=max(x, home))
                target[i] = limit_joint(x, v, home, between, dt_s).position
        return self._gate.action_for(self._gate.smoothed(target, reference, dt_s), reference)

    def _smooth_way(self, reference: CommandState, dt_s: float) -> FloatArray:
        """Return where each joint is after `dt_s` on a way without corners, which never passes home.

        From rest at the distance d it is at d (1 + ht + (ht)^2/2) e^-ht: the step response of a triple pole. Its
        greatest speed is 2 e^-2 h d, its greatest acceleration 0.2306 h^2 d, its greatest jerk h^3 d. It accelerates no
        more than one step can undo: the gate, which does not know what will be asked for next, allows no more. It
        begins anew where a joint is not on it any more.
        """
        away = reference.positions - self._home
        if self._way is None or not np.allclose(self._way.at(self._since_s), away, rtol=0.0, atol=_ON_THE_WAY):
            self._way, self._since_s = self._way_from(away), 0.0
        self._since_s += dt_s
        way: FloatArray = self._home + self._way.at(self._since_s)
        return way

    def _way_from(self, away: FloatArray) -> _SmoothApproach:
        limits, far = self._gate.limits, np.maximum(np.abs(away), 1e-9)
        least = np.minimum(np.minimum(limits.acceleration, limits.deceleration), limits.jerk * self._period_s)
        haste = np.minimum(limits.velocity / (_PEAKS[0] * far), np.sqrt(least / (_PEAKS[1] * far)))
        return _SmoothApproach(away=away, haste_per_s=_SHARE * np.minimum(haste, np.cbrt(limits.jerk / far)))

    def _check_estop(self) -> None:
        """Raise BackendNotReadyError while an ESTOP is latched: where the joints are is not what hinders them."""
        latched = self._gate.latched
        if latched is not None and latched.severity is Severity.ESTOP:
            raise BackendNotReadyError(
                f"the robot was not driven home: an ESTOP is latched, {_describe(latched)} (expected none); "
                "release it, then call clear_estop() of the environment and reset() again"
            )

    def _check_gate_result(self, answered: ApprovedCommand) -> None:
        """Remember what hindered a command; raise for what ends the way."""
        for finding in answered.report.findings:
            if finding.severity >= Severity.HOLD or finding.gate in ("workspace", "plugins"):
                self._hindrance = _describe(finding)
            if finding.severity >= Severity.HOLD:
                self._held[finding.code] += 1
        self._in_a_row = self._in_a_row + 1 if answered.report.disposition >= Severity.HOLD else 0
        self._check_estop()
        if answered.report.disposition >= Severity.STOP:
            raise self._failed("it was stopped")
        if self._in_a_row >= _HELD_PERIODS:
            raise self._failed(f"{self._in_a_row} commands in a row were held")

    # ----------------------------------------------------------------------------------------------- the end

    def _offsets(self, positions: FloatArray) -> FloatArray:
        """Return how far each joint is from home; what has none is there."""
        return np.where(self._goes, np.abs(self._home - positions), 0.0)

    def _farthest(self) -> str:
        i = int(np.argmax(self._offsets(self._positions)))
        off = self._offsets(self._positions)[i]
        return (
            f"{self._layout.joints[i]} is at {self._positions[i]:.6g}, {off:.6g} from its home {self._home[i]:.6g}; "
            f"allowed: {self._routine.tolerance:.6g}"
        )

    def _failed(self, why: str) -> BackendNotReadyError:
        hindrance = f" ({self._hindrance})" if self._hindrance else ""
        return BackendNotReadyError(f"the robot did not come home, {why}{hindrance}: {self._farthest()}")


def _describe(finding: Finding) -> str:
    if finding.gate == "workspace":
        return f"the straight way of the joints is held by the workspace gate, {finding.code}: {finding.detail}"
    joints = f" of {', '.join(finding.joints)}" if finding.joints else ""
    return f"{finding.gate} {finding.code}{joints}" + (f": {finding.detail}" if finding.detail else "")
