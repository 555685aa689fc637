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

from embodied_env.clock import NS_PER_S, Clock
from embodied_env.contract import Contract, FloatArray
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.observation import MeasuredJoints
from embodied_env.routine import Routine
from embodied_env.safety import Arbiter, Reference, SafetyGate, merged
from embodied_env.safety.limits import joint_bounds, limit_joint
from embodied_env.transition import Approved, Finding, Severity, Situation, Snapshot

_HELD_PERIODS = 20  # commands in a row that were refused: it does not pass by itself
_SETTLE_S = 2.0  # a joint that was commanded home for so long and is not there is blocked
_NEAR = 0.1  # of the tolerance: the command is home
_JERK_SHARE = 0.25  # of the deceleration is planned with where jerk is limited: the gate brakes later than asked


@dataclass(frozen=True, kw_only=True)
class World:
    """What the way home needs of the world, given by the stepper.

    `turn` waits for the end of the control period, and returns the settled snapshot and the sensors with a gap that
    ends episodes. `situation` tells what is known beside a command based on it. `feed` tells the watchdog.
    """

    turn: Callable[[], tuple[Snapshot, list[str]]]
    situation: Callable[[], Situation]
    feed: Callable[[], None]


class Homing:
    """Drives one robot home. Limits, latch and the last command are the gate's and the arbiter's, as in steps."""

    def __init__(self, contract: Contract, routine: Routine, gate: SafetyGate, arbiter: Arbiter, clock: Clock) -> None:
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
        self._home_ns: int | None = None  # since when the command is home
        self._hindrance = ""  # the last thing that held or weakened a command

    def drive(self, world: World, deadline_ns: int) -> str:
        """Drive home, and come to rest there. Return the account in words.

        Raises:
            BackendNotReadyError: when a gate stops or keeps holding it, a joint does not arrive, the world is lost, or
                at the deadline. It names the joint and how far it is. The robot may be in motion: the caller brakes.
        """
        if self._routine.timeout_s is not None:
            deadline_ns = min(deadline_ns, self._clock.now_ns() + round(self._routine.timeout_s * NS_PER_S))
        with self._gate.slowed(self._routine.speed):
            try:
                while not self._arrives(world, deadline_ns):
                    self._look_at(self._command(world.situation))
                self._arbiter.stop(Finding(gate="latch", severity=Severity.HOLD, code="latch.stop", detail="home"))
            except BackendLostError as error:
                raise self._ended(f"the robot is lost, {error}") from error
        held = ", ".join(f"{count} x {code}" for code, count in sorted(self._held.items()))
        return f"{self._commands} commands" + (f", held: {held}" if held else "")

    def check_arrived(self, snapshot: Snapshot) -> None:
        """Raise BackendNotReadyError when a joint is not where it was sent, by these readings."""
        self._positions, _ = self._measured.measured(snapshot)
        if self._offsets(self._positions).max() > self._routine.tolerance:
            raise BackendNotReadyError(f"the robot has left its home since: {self._farthest()}")

    def _arrives(self, world: World, deadline_ns: int) -> bool:
        """Let a control period pass, and read; return whether the robot is home. Raise when it cannot go on."""
        world.feed()
        snapshot, gaps = world.turn()
        self._positions, ages_s = self._measured.measured(snapshot)
        if self._layout.is_velocity.any():
            self._arbiter.measure(self._positions, ages_s)
        now_ns, tolerance = self._clock.now_ns(), self._routine.tolerance
        if self._offsets(self._arbiter.reference.positions).max() > _NEAR * tolerance:
            self._home_ns = None
        else:
            self._home_ns = now_ns if self._home_ns is None else self._home_ns
        if gaps:
            raise self._ended(f"no valid reading of {', '.join(gaps)}")
        if self._home_ns is not None and self._offsets(self._positions).max() <= tolerance:
            return True
        if self._home_ns is not None and now_ns - self._home_ns > _SETTLE_S * NS_PER_S:
            raise self._ended(f"it was commanded home for {_SETTLE_S} s, and is not there")
        if now_ns >= deadline_ns:
            raise self._ended("the time is over")
        return False

    # ------------------------------------------------------------------------------------------- one command

    def _command(self, situation: Callable[[], Situation]) -> Approved:
        """Ask for the next piece of the way; return what became of it, in the words of who had the last one."""
        with self._arbiter.turn() as (reference, dt_s):
            action = self._layout.as_action(self._action(reference, dt_s))
            approved = self._gate.judge(action, reference, dt_s, situation())
            sent = self._arbiter.send(approved)
        self._commands += 1
        if sent.report is None:
            return approved
        answered = merged(approved, sent.report)
        for finding in answered.report.findings:
            if finding.severity >= Severity.STOP:
                self._gate.latch(finding)  # what is latched where the command went is latched here
        return answered

    def _action(self, reference: Reference, dt_s: float) -> FloatArray:
        """Return the action that leads towards home, flat: slowly, and with room to brake before it."""
        if not dt_s > 0.0:
            return self._gate.hold_action(reference)
        share = np.where(np.isfinite(self._gate.limits.jerk), _JERK_SHARE, 1.0)
        limits = replace(self._gate.limits, deceleration=self._gate.limits.deceleration * share)
        target = np.zeros(self._layout.size)
        state = zip(reference.positions.tolist(), reference.velocities.tolist(), self._home.tolist(), strict=True)
        for i, ((x, v, home), bounds) in enumerate(zip(state, joint_bounds(limits), strict=True)):
            if self._goes[i]:
                between = replace(bounds, low=min(x, home), high=max(x, home))
                target[i] = limit_joint(x, v, home, between, dt_s).position
        return self._gate.action_for(self._gate.smoothed(target, reference, dt_s), reference)

    def _look_at(self, answered: Approved) -> None:
        """Remember what hindered a command; raise for what ends the way."""
        for finding in answered.report.findings:
            if finding.severity >= Severity.HOLD or finding.gate in ("workspace", "plugins"):
                self._hindrance = _said(finding)
            if finding.severity >= Severity.HOLD:
                self._held[finding.code] += 1
        self._in_a_row = self._in_a_row + 1 if answered.report.disposition >= Severity.HOLD else 0
        if answered.report.disposition >= Severity.STOP:
            raise self._ended("it was stopped")
        if self._in_a_row >= _HELD_PERIODS:
            raise self._ended(f"{self._in_a_row} commands in a row were held")

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

    def _ended(self, why: str) -> BackendNotReadyError:
        hindrance = f" ({self._hindrance})" if self._hindrance else ""
        return BackendNotReadyError(f"the robot did not come home, {why}{hindrance}: {self._farthest()}")


def _said(finding: Finding) -> str:
    if finding.gate == "workspace":
        return f"the straight way of the joints is held by the workspace gate, {finding.code}: {finding.detail}"
    joints = f" of {', '.join(finding.joints)}" if finding.joints else ""
    return f"{finding.gate} {finding.code}{joints}" + (f": {finding.detail}" if finding.detail else "")
