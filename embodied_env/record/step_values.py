"""Commands, readings, actions and findings of a recorded step, by joint and gate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.types import FloatArray
from embodied_env.record.row_types import ResetRow, TransitionRow

Firing = tuple[str, str, str]  # gate, code and joint of a finding; the joint is "" for a finding about the whole action
Vector = Sequence[float | None]
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
    key: str = ""  # key of the observation
    component: int = 0  # component of the field `key`


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
    """Return the place of a joint's reading in the agent's observation, or {} without one."""
    for sensor, spec in contract.sensors.items():
        field = spec.fields.get(joint.quantity)
        if field is not None and spec.visibility == "agent" and joint.name in (names := field.joints or ()):
            return {"sensor": sensor, "key": f"{sensor}_{joint.quantity}", "component": names.index(joint.name)}
    return {}


def read_joint(row: TransitionRow | ResetRow, joint: CommandedJoint) -> float:
    """Return the reading of a joint, or NaN without a good one in an observation of any form."""
    sensor = row["info"]["sensors"].get(joint.sensor)
    if sensor is None or sensor["quality"] not in _GOOD:
        return math.nan
    try:
        values = row["inner"]["observation"][joint.key]
        values = values[-1] if isinstance(values[-1], list) else values  # the newest of a history
        reading = float(values[joint.component])
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return math.nan
    return reading if math.isfinite(reading) else math.nan


def action_values(action: Vector | Mapping[str, Vector], layout: ActionLayout | None = None) -> list[float]:
    """Return the components of an action in the order of `layout`, NaN for non-finite ones."""
    parts: Iterable[Vector] = [action] if not isinstance(action, Mapping) else action.values()
    if isinstance(action, Mapping) and layout is not None and action.keys() == layout.slices.keys():
        parts = [action[actuator] for actuator in layout.slices]
    return [math.nan if value is None else value for part in parts for value in part]


def firings(row: TransitionRow) -> Iterator[tuple[Firing, Severity]]:
    """Yield the findings of a step once per joint, PASS included."""
    for finding in row["inner"]["findings"]:
        for joint in finding["joints"] or ("",):
            yield (finding["gate"], finding["code"], joint), Severity[finding["severity"]]


class Joints:
    """Values of the joints in their own units, or in those of the action without a contract."""

    def __init__(self, contract: Contract | None) -> None:
        self._layout = None if contract is None else ActionLayout(contract)
        self.by_name = {} if contract is None else {joint.name: joint for joint in commanded_joints(contract)}

    def values(self, row: TransitionRow) -> Iterator[tuple[str, float, float, float]]:
        """Yield name, requested, applied and measured value of each joint, NaN if unknown."""
        action, layout = row["info"]["action"], self._layout
        requested, applied = (action_values(action[key], layout) for key in ("requested", "applied"))
        published = self._published(row)
        if layout is None or not len(requested) == len(applied) == len(published) == layout.size:
            rows = zip(action["applied_si"], requested, applied, strict=False)
            yield from ((name, before, after, math.nan) for name, before, after in rows)
            return
        in_si = [layout.scale.each_to_si(values) for values in (requested, applied)]
        for index, (name, value) in enumerate(zip(layout.joints, published, strict=True)):
            asked = in_si[0][index]
            if layout.is_delta[index]:  # a displacement, from where that of the applied action began
                asked += value - in_si[1][index]
            yield name, asked, value, read_joint(row, self.by_name[name])

    def requested(self, row: TransitionRow) -> Iterator[tuple[str, float]]:
        """Yield the name and the requested value of each joint, in units of the action."""
        action, layout = row["info"]["action"], self._layout
        is_known = layout is not None and len(self._published(row)) == layout.size
        names = layout.joints if layout is not None and is_known else action["applied_si"]
        yield from zip(names, action_values(action["requested"], layout), strict=False)

    def origins(self, row: TransitionRow) -> list[float]:
        """Return the position from which each joint is displaced in a step, 0 for other actions."""
        action, layout = row["info"]["action"], self._layout
        published = self._published(row)
        if layout is None or len(published) != layout.size:
            return [0.0] * len(action["applied_si"])
        moved = layout.scale.each_to_si(action_values(action["applied"], layout))
        rows = zip(layout.is_delta.tolist(), published, moved, strict=True)
        return [at - by if is_delta else 0.0 for is_delta, at, by in rows]

    def _published(self, row: TransitionRow) -> list[float]:
        """Return the published values in the contract's order, or none where the joints differ."""
        values = row["info"]["action"]["applied_si"]
        if self._layout is None or values.keys() != set(self._layout.joints):
            return []
        return action_values([values[joint] for joint in self._layout.joints])

    def plan(self, actions: FloatArray, origins: list[float]) -> FloatArray:
        """Return joint values of successive actions from `origins` on, shape (n, n_joints)."""
        layout = self._layout
        if layout is None or actions.shape[1] != layout.size:
            return actions
        values = np.array([layout.scale.each_to_si(action) for action in actions.tolist()]).reshape(actions.shape)
        return np.where(layout.is_delta, np.cumsum(values, axis=0) + origins, values)
