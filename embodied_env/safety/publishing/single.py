"""One message for each command, and the lowered reference after a gap."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.core.types import ApprovedCommand, CommandState, Trajectory
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.joint_limits import joint_bounds, lowered_velocity
from embodied_env.timing.clock import NS_PER_S

_STALL_PERIODS = 3  # control periods without a command after which position servos have arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWrite:
    """Last write, received by the robot between `before_ns` and `after_ns` (steady clock)."""

    before_ns: int
    after_ns: int
    trajectory: Trajectory | None = None


class SingleCommands:
    """Publishes each command once.

    dt is the time since the last publication, at most one control period, so a pause never enlarges the allowed jump.
    After a pause the reference velocities are lowered towards the measured motion, never raised.

    Attributes:
        tick_s: time between two commands that brake to rest.
    """

    def __init__(
        self,
        gate: SafetyGate,
        downstream_timeout_s: float | None = None,
        measured_velocities: Callable[[], tuple[FloatArray, FloatArray]] | None = None,
    ) -> None:
        """Publish the commands of `gate`.

        After `downstream_timeout_s` the controller stops a velocity command that is not repeated (None: no known
        timeout). `measured_velocities` returns velocities and their ages in s; it is called after a gap.
        """
        self._gate = gate
        self._period_s = self.tick_s = gate.contract.control_period_s
        self._period_ns = gate.contract.control_period_ns
        self._stall_ns = _STALL_PERIODS * self._period_ns
        timeout_ns = math.inf if downstream_timeout_s is None else round(downstream_timeout_s * NS_PER_S)
        self._rest_after_ns = self._stall_ns, timeout_ns  # until a position servo, or a velocity command, is at rest
        self._measured_velocities = measured_velocities
        self._gap_since_ns: int | None = None  # last publication before a gap, until a settled reading ends it

    def reset(self) -> None:
        """End the gap, since the reference is at rest."""
        self._gap_since_ns = None

    def reference_at(self, now_ns: int, reference: CommandState, last: LastWrite, /) -> tuple[CommandState, float]:
        """Return the last published command, lowered after a gap, and the time since then in s.

        The robot may have received that command at any time during its write. So a gap counts from before the write,
        and dt from after it.
        """
        if any(self._have_stopped(now_ns, last)):
            self._gap_since_ns = last.before_ns
        if self._gap_since_ns is not None:
            reference = self._lower_velocities(reference, now_ns, last)
        return reference, min((now_ns - last.after_ns) / NS_PER_S, self._period_s)

    def complete(
        self, command: ApprovedCommand, _reference: CommandState, _actions: Iterable[list[float]], /
    ) -> ApprovedCommand:
        """Return `command`, since its message contains nothing else."""
        return command

    def is_late(self, judged_ns: int, now_ns: int, last: LastWrite, /) -> bool:
        """Return whether a joint may have come to rest since the command was judged."""
        return self._has_rested(judged_ns, now_ns, last)

    def is_unsure(self, before: LastWrite, written: LastWrite, /) -> bool:
        """Return whether a write was slow, or a joint may have come to rest during the second."""
        if self._is_slow(before) or self._is_slow(written):
            return True
        return self._has_rested(written.before_ns, written.after_ns, before)

    def _is_slow(self, last: LastWrite) -> bool:
        """Return whether a write took so long that the time of its arrival is unknown."""
        return last.after_ns - last.before_ns > self._period_ns

    def _has_rested(self, begin_ns: int, end_ns: int, last: LastWrite) -> bool:
        """Return whether a servo arrived, or a velocity timed out, between two times."""
        before_ns = last.before_ns
        return any(begin_ns - before_ns <= limit_ns < end_ns - before_ns for limit_ns in self._rest_after_ns)

    def _have_stopped(self, now_ns: int, last: LastWrite) -> tuple[bool, bool]:
        """Return whether position servos arrived by `now_ns`, and velocities timed out."""
        gap_ns, (stall_ns, timeout_ns) = now_ns - last.before_ns, self._rest_after_ns
        return gap_ns > stall_ns, gap_ns > timeout_ns

    def _lower_velocities(self, reference: CommandState, now_ns: int, last: LastWrite) -> CommandState:
        """Return the reference after a gap, at rest if stopped, else towards measured motion."""
        is_velocity = self._gate.layout.is_velocity
        has_arrived, has_timed_out = self._have_stopped(now_ns, last)
        rests = ~is_velocity if has_arrived else np.zeros_like(is_velocity)
        if has_timed_out:
            rests, self._gap_since_ns = rests | is_velocity, None
        acting = np.where(rests, 0.0, reference.velocities)
        if self._gap_since_ns is not None:
            acting = self._towards_measured(acting, now_ns - self._gap_since_ns)
        published = reference.velocities if reference.before_gap is None else reference.before_gap
        is_lowered = is_velocity & (acting != published)
        return replace(
            reference,
            velocities=acting,
            accelerations=None if rests.any() or is_lowered.any() else reference.accelerations,
            before_gap=np.where(is_lowered, published, acting) if is_lowered.any() else None,
        )

    def _towards_measured(self, acting: FloatArray, gap_ns: int) -> FloatArray:
        """Return `acting` lowered towards measured velocities, where a settled reading ends a gap."""
        is_velocity = self._gate.layout.is_velocity
        if self._measured_velocities is None or not is_velocity.any():
            self._gap_since_ns = None
            return acting
        measured, ages_s = self._measured_velocities()
        settled_s = (gap_ns - self._stall_ns) / NS_PER_S
        if (ages_s[is_velocity] <= settled_s).all():
            self._gap_since_ns = None
        rows = zip(acting.tolist(), measured.tolist(), ages_s.tolist(), joint_bounds(self._gate.limits), strict=True)
        lowered = [
            lowered_velocity(v, m, age_s, bounds, settled=age_s <= settled_s, period_s=self._period_s)
            for v, m, age_s, bounds in rows
        ]
        return np.where(is_velocity, lowered, acting)
