"""Values of a recorded step by joint and gate: commanded joints, their readings, actions, and findings of the gates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.codes import Quality, Severity

Firing = tuple[str, str, str]
"""Gate, code and joint of a finding; the joint is "" for a finding about the whole action."""

_GOOD = (Quality.OK, Quality.OUT_OF_RANGE)


class CommandedJoint(NamedTuple):
    """A commanded joint, and where the observation has its reading, if anywhere."""

    name: str
    quantity: str  # "position" or "velocity"
    unit: str
    limits: tuple[float, float]  # after margins
    step: float  # largest change of position in a control period, or largest velocity
    wraps: bool
    sensor: str = ""  # "" without a reading
    key: str = ""  # of the observation
    component: int = 0  # of the field `key`


def commanded_joints(contract: Contract) -> list[CommandedJoint]:
    """Return the joints of the actuators, in the order of the action."""
    limits, found = ActionLayout(contract).limits, []
    commanded = [(spec, name) for spec in contract.actuators.values() for name in spec.joints]
    for index, (actuator, name) in enumerate(commanded):
        joint, low, high = actuator.joints[name], limits.velocity_low[index].item(), limits.velocity_high[index].item()
        if actuator.is_velocity:
            of_joint = CommandedJoint(name, "velocity", f"{joint.unit}/s", (low, high), joint.fastest, wraps=False)
        else:
            span = float(limits.position_low[index]), float(limits.position_high[index])
            wraps, step = joint.position is None and joint.unit == "rad", joint.fastest * contract.control_period_s
            of_joint = CommandedJoint(name, "position", joint.unit, span, step, wraps)
        found.append(of_joint._replace(**_place(contract, of_joint)))
    return found


def _place(contract: Contract, joint: CommandedJoint) -> dict[str, Any]:
    """Return where the observation has the reading of a joint; nothing where no sensor of the agent reads it."""
    for sensor, spec in contract.sensors.items():
        field = spec.fields.get(joint.quantity)
        if field is not None and spec.visibility == "agent" and joint.name in (names := field.joints or ()):
            return {"sensor": sensor, "key": f"{sensor}_{joint.quantity}", "component": names.index(joint.name)}
    return {}


def read_joint(row: Mapping[str, Any], joint: CommandedJoint) -> float:
    """Return the reading of a joint, NaN without a good one; an observation is JSON of any form."""
    try:
        if row["info"]["sensors"][joint.sensor]["quality"] not in _GOOD:
            return math.nan
        values = row["inner"]["observation"][joint.key]
        values = values[-1] if isinstance(values[-1], list) else values  # the newest of a history
        reading = float(values[joint.component])
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return math.nan
    return reading if math.isfinite(reading) else math.nan


def action_values(action: Any) -> list[float]:  # noqa: ANN401 - JSON types
    """Return the components of an action, a list or one list per actuator, in order; NaN for what is not finite."""
    values = [value for part in action.values() for value in part] if isinstance(action, dict) else action
    return [math.nan if value is None else value for value in values]


def firings(row: Mapping[str, Any]) -> Iterator[tuple[Firing, Severity]]:
    """Yield the findings of the gates in the row of a step, once per joint; one of severity PASS changes nothing."""
    for finding in row["inner"]["findings"]:
        for joint in finding["joints"] or ("",):
            yield (finding["gate"], finding["code"], joint), Severity[finding["severity"]]


class Joints:
    """Values of the joints of a contract in their own units; without a contract, in those of the action."""

    def __init__(self, contract: Contract | None) -> None:
        self._layout = None if contract is None else ActionLayout(contract)
        self.by_name = {} if contract is None else {joint.name: joint for joint in commanded_joints(contract)}

    def values(self, row: Mapping[str, Any]) -> Iterator[tuple[str, float, float, float]]:
        """Yield name, requested, applied and measured value of each joint in a step; NaN for what is not known."""
        action = row["info"]["action"]
        requested, applied = action_values(action["requested"]), action_values(action["applied"])
        names, layout = list(action["applied_si"]), self._layout
        if layout is None or tuple(names) != layout.joints or not len(requested) == len(applied) == layout.size:
            rows = zip(names, requested, applied, strict=False)
            yield from ((name, before, after, math.nan) for name, before, after in rows)
            return
        in_si = [layout.scale.each_to_si(values) for values in (requested, applied)]
        for index, (name, published) in enumerate(action["applied_si"].items()):
            value, asked = (math.nan if published is None else published), in_si[0][index]
            if layout.is_delta[index]:  # a displacement, from where that of the applied action began
                asked += value - in_si[1][index]
            yield name, asked, value, read_joint(row, self.by_name[name])
