"""Require valid readings behind each action, and an action that follows them in time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from embodied_env.contract.key_types import Count
from embodied_env.contract.required_sensors import required_sensors
from embodied_env.contract.tightening_rules import AtMost
from embodied_env.core.code_types import Code, Gate, Quality, Severity
from embodied_env.core.types import Finding, SafetyContext
from embodied_env.safety.interlocks.interlock import Interlock
from embodied_env.safety.late_agent import have_aged

if TYPE_CHECKING:
    from embodied_env.contract import Contract, FloatArray
    from embodied_env.contract.spaces import ActionLayout

JUDGED_BY_AGE = (Quality.OK, Quality.OUT_OF_RANGE, Quality.STALE, Quality.MISSING)


@dataclass(frozen=True, kw_only=True)
class ActionAge:
    """Maximum time from the return of an observation to its action in a free-running world."""

    max_age_steps: AtMost[Count] = 2  # real time: maximum age of an action after its observation, in control periods


@dataclass(frozen=True, kw_only=True)
class ActionKey:
    """Key of the action age, without ``observation``, which sensors and clocks read too."""

    action: ActionAge = field(default_factory=ActionAge)


class ObservationGate(Interlock):
    """Requires each action to follow in time from valid readings, with no clock set in between.

    A reading of a required sensor may be `max_age_s` old, an action may come `max_age_steps` control periods after it.

    Attributes:
        in_a_row: number of consecutive steps, up to the last, in which a reading failed.
        late_in_a_row: number of them that the agent's time alone explains.
    """

    keys = ActionKey
    gates = (
        Gate(
            name="clock",
            condition="UTC or simulated time was set since the last action; the host was suspended",
            result="HOLD for one step; STOP after a suspend",
            codes={
                "clock.jump": Code(41, Severity.HOLD, "a clock was set"),
                "clock.suspended": Code(42, Severity.STOP, "the computer was suspended"),
            },
        ),
        Gate(
            name="observation",
            condition="each [required sensor](../reference/contract.md#which-lost-sensors-stop-the-robot), the inputs "
            "of a policy file included, is younger than `max_age_s` when the command is sent, valid, not in the future",
            result="HOLD; STOP after `observation.stop_steps`",
            codes={
                "obs.stale": Code(
                    80,
                    Severity.STOP,
                    "a required reading is too old",
                    "check the driver of the sensor, and the load of this computer",
                ),
                "obs.future": Code(81, Severity.STOP, "a required reading is stamped in the future"),
                "obs.invalid": Code(82, Severity.STOP, "a required reading is invalid"),
            },
        ),
        Gate(
            name="action_age",
            condition="time since the observation was returned, and from the computation of a command to its write "
            "(real time only)",
            result="HOLD; a relay reports commands out of order (`act.dup`, `act.epoch`, `act.jump`)",
            codes={
                "act.late": Code(90, Severity.HOLD, "the action came too late"),
                "act.dup": Code(91, Severity.HOLD, "the same action came twice"),
                "act.epoch": Code(92, Severity.HOLD, "the action belongs to another episode"),
                "act.jump": Code(93, Severity.HOLD, "the command jumps"),
            },
        ),
    )

    @classmethod
    def declared_by(cls, contract: Contract, layout: ActionLayout) -> Self | None:  # noqa: ARG003 - one interface
        """Return the interlock, which every contract has."""
        return cls(contract)

    def __init__(self, contract: Contract) -> None:
        self._required = required_sensors(contract)
        self._max_age_s = {name: sensor.max_age_s for name, sensor in contract.sensors.items()}
        self._future_tolerance_s = contract.safety.observation.future_tolerance_s
        self._stop_steps = contract.safety.observation.stop_steps
        self._max_action_age_s = contract.safety.action.max_age_steps * contract.control_period_s
        self.in_a_row = self.late_in_a_row = 0

    def reset(self) -> None:
        """Reset the count of failed steps."""
        self.in_a_row = 0

    def judge(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:  # noqa: ARG002 - one interface
        """HOLD for a clock jump, each sensor that fails, and a late action.

        STOP if the host was suspended, since the robot kept moving, and after `stop_steps` steps in a row in which a
        sensor failed.
        """
        found, problems = [], []
        if context.clock_jump:
            suspended = context.clock_jump == "suspended"
            severity, code = (Severity.STOP, "clock.suspended") if suspended else (Severity.HOLD, "clock.jump")
            detail = f"clock jump since the last action: {context.clock_jump}"
            found.append(Finding(gate="clock", severity=severity, code=code, detail=detail))
        if not context.action_age_s <= self._max_action_age_s:
            detail = f"action arrived {context.action_age_s:.3f} s after its observation"
            detail += f" (maximum {self._max_action_age_s} s)"
            found.append(Finding(gate="action_age", severity=Severity.HOLD, code="act.late", detail=detail))
        for name in dict.fromkeys((*self._required, *context.required)) if context.required else self._required:
            status, max_age_s = context.sensors.get(name), self._max_age_s[name]
            if status is None or not math.isfinite(status.age_s):
                problems.append(("obs.invalid", f"no reading of {name}"))
            elif status.quality is Quality.FUTURE or status.age_s < -self._future_tolerance_s:
                problems.append(("obs.future", f"reading of {name} is stamped in the future"))
            elif status.quality not in JUDGED_BY_AGE:
                problems.append(("obs.invalid", f"reading of {name} is {status.quality.name.lower()}"))
            elif status.age_s > max_age_s:
                detail = f"reading of {name} is {status.age_s:.3f} s old (maximum {max_age_s} s)"
                problems.append(("obs.stale", detail))
        if not problems:
            self.in_a_row = 0
            return found
        self.in_a_row += 1
        readings = [
            (each.quality, each.age_s - context.latency_s, self._max_age_s[name])
            for name, each in context.sensors.items()
        ]
        before = self.late_in_a_row if self.in_a_row > 1 else 0
        self.late_in_a_row = before + 1 if have_aged(readings, context.action_age_s) else 0
        severity = Severity.STOP if self.in_a_row >= self._stop_steps else Severity.HOLD
        return found + [
            Finding(gate="observation", severity=severity, code=code, detail=text) for code, text in problems
        ]
