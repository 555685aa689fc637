"""Trajectories that continue each command to rest, for an interpolating controller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from embodied_env.core.types import ApprovedCommand, CommandState
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.publishing.single import LastWrite

_STEP_LEAD_DIVISOR, _WRITE_LEAD_DIVISOR = 4, 8  # parts of a period by which a point must be ahead


class Trajectories:
    """Publishes each command with the motion after it (`SafetyGate.extend`).

    The next command starts from a point of the last trajectory that is still ahead, and so always one control period
    later: there is no gap, and no joint comes to rest unplanned.
    """

    def __init__(self, gate: SafetyGate) -> None:
        """Publish the trajectories of `gate`."""
        self._gate = gate
        self._period_s = self.tick_s = gate.contract.control_period_s
        self._period_ns = gate.contract.control_period_ns
        self._due_ns = 0  # when the reference is due

    def reset(self) -> None:
        """Do nothing, since the last trajectory is part of the last write."""

    def reference_at(self, now_ns: int, reference: CommandState, last: LastWrite, /) -> tuple[CommandState, float]:
        """Return the published point from which motion can still change, and the control period.

        That is the first one at least a quarter period ahead: the message has to arrive before the controller is there.
        A robot at rest may stay there for half a period, so that the steps that follow, early or late, find the
        controller halfway to their reference.
        """
        period_ns = self._period_ns
        self._due_ns = now_ns + period_ns // 2
        if (trajectory := last.trajectory) is None:
            return reference, self._period_s
        passed = max(0, -((trajectory.first_ns - now_ns - period_ns // _STEP_LEAD_DIVISOR) // period_ns))
        point = trajectory.points[min(passed, len(trajectory.points) - 1)]
        due_ns = trajectory.first_ns + passed * period_ns
        is_at_rest = not point.velocities.any() and due_ns - period_ns <= now_ns
        if not is_at_rest:
            self._due_ns = due_ns
        return replace(point, seq=reference.seq), self._period_s

    def complete(
        self, command: ApprovedCommand, reference: CommandState, actions: Iterable[list[float]], /
    ) -> ApprovedCommand:
        """Return `command` with its trajectory, continued by the next steps' `actions`."""
        return self._gate.extend(command, reference, actions, self._due_ns)

    def is_late(self, _judged_ns: int, now_ns: int, _last: LastWrite, /) -> bool:
        """Return whether the message would arrive after the controller has passed the reference."""
        return self._due_ns - now_ns < self._period_ns // _WRITE_LEAD_DIVISOR

    def is_unsure(self, before: LastWrite, written: LastWrite, /) -> bool:
        """Return whether one of two writes may have arrived after its first point was due."""
        return _is_slow(before) or _is_slow(written)


def _is_slow(last: LastWrite) -> bool:
    return last.trajectory is not None and last.after_ns > last.trajectory.first_ns
