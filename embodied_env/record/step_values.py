"""The values of a step that reports and viewers draw: what the gates did, and the joints in their own units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.codes import Quality, Severity

Firing = tuple[str, str, str]
"""Gate, code and joint; the joint is "" for a finding about the whole action."""

_GOOD = (Quality.OK, Quality.OUT_OF_RANGE)


def firings(row: Mapping[str, Any]) -> Iterator[tuple[Firing, Severity]]:
    """Yield the findings of the gates in the row of a step, once per joint."""
    for finding in row["inner"]["findings"]:
        for joint in finding["joints"] or ("",):
            yield (finding["gate"], finding["code"], joint), Severity[finding["severity"]]


def action_values(action: Any) -> list[float | None]:  # noqa: ANN401 - JSON types
    """Return the components of an action, a list or one list per actuator, in order; None for what is not finite."""
    return [value for part in action.values() for value in part] if isinstance(action, dict) else list(action)


class Joint(NamedTuple):
    """A commanded joint: its unit, its limits after margins, and where the observation has its reading, if anywhere."""

    name: str
    unit: str
    limits: tuple[float, float]
    sensor: str
    key: str
    component: int


class Joints:
    """Values of the joints of a contract in their own units; without a contract, in those of the action."""

    def __init__(self, contract: Contract | None) -> None:
        self._layout = None if contract is None else ActionLayout(contract)
        found = [] if contract is None or self._layout is None else _joints_of(contract, self._layout)
        self.by_name = {joint.name: joint for joint in found}

    def values(self, row: Mapping[str, Any]) -> Iterator[tuple[str, float, float, float]]:
        """Yield name, requested, applied and measured value of each joint in a step; NaN for what is not known."""
        action = row["info"]["action"]
        requested, applied = (
            [math.nan if value is None else value for value in action_values(action[kind])]
            for kind in ("requested", "applied")
        )
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
            yield name, asked, value, _reading(row, self.by_name[name])


def _joints_of(contract: Contract, layout: ActionLayout) -> Sequence[Joint]:
    limits, found = layout.limits, []
    commanded = [(spec, joint) for spec in contract.actuators.values() for joint in spec.joints]
    for index, (actuator, name) in enumerate(commanded):
        quantity, unit = ("velocity" if actuator.is_velocity else "position"), actuator.joints[name].unit
        high = float(limits.velocity[index] if actuator.is_velocity else limits.position_high[index])
        low = -high if actuator.is_velocity else float(limits.position_low[index])
        place = ("", "", 0)
        for sensor_name, sensor in contract.sensors.items():
            field = sensor.fields.get(quantity)
            if field is not None and sensor.visibility == "agent" and name in (field.joints or ()):
                place = sensor_name, f"{sensor_name}_{quantity}", (field.joints or ()).index(name)
                break
        found.append(Joint(name, f"{unit}/s" if actuator.is_velocity else unit, (low, high), *place))
    return found


def _reading(row: Mapping[str, Any], joint: Joint) -> float:
    """Return the reading of a joint, NaN without a good one; an observation is arrays, or JSON of any form."""
    if row["info"]["sensors"].get(joint.sensor, {}).get("quality") not in _GOOD:
        return math.nan
    try:
        values = row["inner"]["observation"][joint.key]
        values = values[-1] if isinstance(values[-1], (list, np.ndarray)) else values  # the newest of a history
        return float(values[joint.component])
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return math.nan
