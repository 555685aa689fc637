"""Require each joint to be near its command."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np

from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.contract.key_types import Count, Positive, WholeNumber
from embodied_env.contract.required_sensors import commanded_joint_names
from embodied_env.contract.tightening_rules import AtMost, Free, KeptGroup, at_most, tighten
from embodied_env.contract.value_checks import allow, check_names
from embodied_env.core.code_types import Code, Gate, Severity
from embodied_env.core.measured_joints import TURN, nearest_turn
from embodied_env.core.types import Finding, SafetyContext
from embodied_env.safety.interlocks.interlock import Interlock

if TYPE_CHECKING:
    from embodied_env.contract import Contract, FloatArray
    from embodied_env.contract.contract_schema import ContractFields
    from embodied_env.contract.spaces import ActionLayout

_FULL_RANGE = {"rad": 2.0 * math.pi, "m": 1.0}  # range of a joint without position limits


def _tolerances_at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - tolerances by joint; None: not checked
    """Accept tolerances that are no larger for the joints of both."""
    return all(at_most(tolerance, own[joint]) for joint, tolerance in robot.items() if joint in own)


@dataclass(frozen=True, kw_only=True)
class Tracking(FrozenFields):
    """Tracking error of a joint that leads to HOLD and then STOP."""

    # largest distance from the command, as a fraction of the joint's range (of a turn or a metre if unlimited)
    tolerance: AtMost[Positive] = 0.05
    delay_steps: AtMost[WholeNumber] = 2  # number of earlier commands at which the joint may still be
    debounce_steps: AtMost[Count] = 3  # consecutive steps before HOLD
    stop_steps: AtMost[Count] = 10  # consecutive steps before STOP, above `debounce_steps`
    actuators: Free[Mapping[str, Positive | None]] = field(default_factory=dict)  # by actuator; null: not checked
    # tolerances by joint, which take precedence over `actuators`; null: not checked
    joints: Annotated[Mapping[str, Positive | None], tighten(_tolerances_at_most)] = field(default_factory=dict)

    def of(self, actuator: str, joint: str) -> float | None:
        """Return the tolerance of a joint, or None if it is not checked."""
        return self.joints.get(joint, self.actuators.get(actuator, self.tolerance))


@dataclass(frozen=True, kw_only=True)
class TrackingKey:
    """The key of the tracking error."""

    # tracking error of a joint; null: not checked
    tracking: KeptGroup[Tracking | None] = field(default_factory=Tracking)


class TrackingGate(Interlock):
    """Requires position-commanded joints near their commands, so a blocked robot is not pushed.

    A gripper may be further open than commanded: it holds an object. A reading of a joint that turns without limits
    may differ by whole turns.

    Attributes:
        is_checked: whether each joint is checked, shape (n_joints,).
        above, below: the largest distances above and below the commands, shape (n_joints,).
    """

    keys = TrackingKey
    gates = (
        Gate(
            name="tracking",
            condition="joints are where they were commanded, within a share of their range (by joint or actuator: "
            "`tracking.joints`, `tracking.actuators`); a gripper may close on an object",
            result="HOLD after `debounce_steps`, STOP after `stop_steps`",
            codes={
                "track.error": Code(
                    100,
                    Severity.STOP,
                    "the robot does not follow its command",
                    "free the joint if it is blocked, else check its name, controller and gains",
                )
            },
        ),
    )

    @classmethod
    def validate(cls, contract: ContractFields) -> None:
        """Check the names that have tolerances of their own, and the order of the counts."""
        if (spec := contract.safety.tracking) is not None:
            check_names("safety.tracking.actuators", spec.actuators, contract.actuators)
            check_names("safety.tracking.joints", spec.joints, commanded_joint_names(contract.actuators))
            value = f"debounce_steps {spec.debounce_steps}, stop_steps {spec.stop_steps}"
            is_ordered = spec.debounce_steps < spec.stop_steps
            allow(is_ordered, "safety.tracking", value, "debounce_steps < stop_steps")

    @classmethod
    def declared_by(cls, contract: Contract, layout: ActionLayout) -> Self | None:
        """Return the interlock of ``safety.tracking``."""
        spec, actuators = contract.safety.tracking, contract.actuators.values()
        units = {joint: limits.unit for actuator in actuators for joint, limits in actuator.joints.items()}
        return None if spec is None else cls(spec, layout, units)

    def __init__(self, spec: Tracking, layout: ActionLayout, units: Mapping[str, str]) -> None:
        """Resolve the tolerance of each joint, whose entry in `units` is "rad" or "m"."""
        self.spec = spec
        self._layout = layout
        shares = [spec.of(name, joint) for name, part in layout.slices.items() for joint in layout.joints[part]]
        full_ranges = np.array([_FULL_RANGE[units[joint]] for joint in layout.joints])
        ranges = layout.limits.position_high - layout.limits.position_low
        is_goal = layout.is_goal  # an action server takes its time
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
        """Discard the commands of the last episode."""
        self.sent.clear()
        self.in_a_row = 0

    def judge(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:
        """HOLD after `debounce_steps` steps in a row with an error, STOP after `stop_steps`."""
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
            joints=tuple(self._layout.joints[i] for i in np.flatnonzero(hit)),
            before=commanded[hit],
            after=measured[hit],
            limit=self._tolerance[hit],
            margin=self._tolerance[hit] - error[hit],
        )
        return [finding]
