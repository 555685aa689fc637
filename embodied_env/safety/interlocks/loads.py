"""Limit efforts, currents and temperatures over time, also of joints that stall."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from annotated_types import Le
from numpy.typing import NDArray

from embodied_env.contract.key_types import Name, NotNegative, Positive
from embodied_env.contract.tightening_rules import at_most, tighten
from embodied_env.contract.value_checks import allow, check_reading
from embodied_env.core.code_types import Code, Gate, Severity
from embodied_env.core.measured_joints import nearest_turn
from embodied_env.core.types import Finding, SafetyContext
from embodied_env.safety.interlocks.interlock import Interlock
from embodied_env.safety.interlocks.observation import JUDGED_BY_AGE

if TYPE_CHECKING:
    from embodied_env.contract import Contract, FloatArray
    from embodied_env.contract.contract_schema import ContractFields
    from embodied_env.contract.safety_schema import Safety
    from embodied_env.contract.spaces import ActionLayout

_NEVER = np.iinfo(np.int64).max
_LEVELS = {"stop": Severity.STOP, "hold": Severity.HOLD, "warn": Severity.PASS}  # the most severe first


@dataclass(frozen=True, kw_only=True)
class LoadLimit:
    """Limits of the magnitude of a field's values, at least one of warn, hold and stop."""

    sensor: str  # sensor; every action then requires a valid reading of it
    field: str  # field of the sensor: the effort of joints, a current, a temperature
    warn: Positive | None = None  # magnitude above which the load is reported, in the field's unit
    hold: Positive | None = None  # magnitude above which the robot brakes, larger than `warn`
    stop: Positive | None = None  # magnitude above which the episode ends, larger than `hold`
    # minimum time of a magnitude above a limit, at most an hour
    duration_s: Annotated[NotNegative, Le(3600.0)] = 0.0
    # stall: a magnitude counts only while its joint is further than this from its command, rad or m; null: always
    tracking_error: Positive | None = None


def _loads_at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of load limits
    """Accept limits of the same fields that are at least as tight in every key."""
    return all(name in own and _is_as_tight(limit, own[name]) for name, limit in robot.items())


def _is_as_tight(robot: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    is_same = (robot["sensor"], robot["field"]) == (own["sensor"], own["field"])
    is_lower = all(at_most(robot[key], own[key]) for key in (*_LEVELS, "duration_s"))
    theirs, ours = robot["tracking_error"], own["tracking_error"]
    return is_same and is_lower and (ours is None or (theirs is not None and ours <= theirs))


@dataclass(frozen=True, kw_only=True)
class LoadsKey:
    """The key of the loads."""

    # load limits by a name of your choice, see [loads](#loads)
    loads: Annotated[Mapping[Name, LoadLimit], tighten(_loads_at_most)] = dataclasses.field(default_factory=dict)


class LoadGate(Interlock):
    """Requires each load to be known, and none to be too large for longer than its duration."""

    keys = LoadsKey
    gates = (
        Gate(
            name="force",
            condition="effort, current or temperature that a field measures (`safety.loads`), for longer than "
            "`duration_s`; with `tracking_error` only of a joint that does not follow its command (stall)",
            result="reported above `warn`, HOLD above `hold` or while the load is unknown, STOP above `stop`",
            codes={
                "load.warn": Code(180, Severity.PASS, "a load is high"),
                "load.hold": Code(181, Severity.HOLD, "a load is too high"),
                "load.stop": Code(
                    182,
                    Severity.STOP,
                    "a load is far too high",
                    "free the joint if it is blocked, and let its motor cool",
                ),
                "load.unknown": Code(183, Severity.HOLD, "a load is not known"),
            },
        ),
    )

    @classmethod
    def validate(cls, contract: ContractFields) -> None:
        """Check the fields, the limits, and that the joints of a stall are commanded by position."""
        from embodied_env.contract.sensor_validation import check_limit_in_range  # noqa: PLC0415 - it imports this module

        followed = {joint for each in contract.actuators.values() if not each.is_velocity for joint in each.joints}
        for name, spec in contract.safety.loads.items():
            path = f"safety.loads.{name}"
            check_reading((f"{path}.sensor", spec.sensor), (f"{path}.field", spec.field), contract.sensors)
            limits = [limit for limit in (spec.warn, spec.hold, spec.stop) if limit is not None]
            is_rising = bool(limits) and all(low < high for low, high in pairwise(limits))
            allow(is_rising, path, f"warn, hold, stop: {limits}", "at least one of them, in rising order")
            check_limit_in_range(path, limits[-1], contract.sensors[spec.sensor], spec.field)
            joints = contract.sensors[spec.sensor].fields[spec.field].joints or ()
            has_commands = spec.tracking_error is None or (bool(joints) and followed.issuperset(joints))
            expected = "a field of joints commanded by position"
            allow(has_commands, f"{path}.tracking_error", f"joints {list(joints)}", expected)

    @classmethod
    def readings(cls, safety: Safety) -> list[tuple[str, str]]:
        """Return sensor and field of each load."""
        return [(spec.sensor, spec.field) for spec in safety.loads.values()]

    @classmethod
    def declared_by(cls, contract: Contract, layout: ActionLayout) -> Self | None:
        """Return the interlock of ``safety.loads``."""
        return cls(contract, layout) if contract.safety.loads else None

    def __init__(self, contract: Contract, layout: ActionLayout) -> None:
        self._layout = layout
        self._loads = [_Load(name, spec, contract, layout) for name, spec in contract.safety.loads.items()]

    def reset(self) -> None:
        """Clear the durations."""
        for load in self._loads:
            load.since_ns.clear()

    def judge(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:
        """Return each load's worst finding, where an unknown load is a HOLD and clears no duration."""
        measured = nearest_turn(context.measured, commanded, self._layout.turns)
        found = (load.judge(context, np.abs(measured - commanded)) for load in self._loads)
        return [finding for finding in found if finding is not None]


class _Load:
    """A load, and since when each of its values has been above each limit, in ns."""

    def __init__(self, name: str, spec: LoadLimit, contract: Contract, layout: ActionLayout) -> None:
        sensor = contract.sensors[spec.sensor]
        self._name, self._spec, self._max_age_s = name, spec, sensor.max_age_s
        self._commanded = layout.joints
        self._joints = sensor.fields[spec.field].joints or ()
        self._indices = [layout.joints.index(joint) for joint in self._joints] if spec.tracking_error else []
        self.since_ns: dict[str, NDArray[np.int64]] = {}

    def judge(self, context: SafetyContext, errors: FloatArray) -> Finding | None:
        """Return the most severe finding, if any, for tracking `errors`, shape (n_joints,)."""
        if (snapshot := context.snapshot) is None or not self._is_valid(context):
            return self._finding("load.unknown", Severity.HOLD, f"no valid reading of {self._spec.sensor}")
        magnitudes = np.abs(np.ravel(snapshot.samples[self._spec.sensor].values[self._spec.field]).astype(np.float64))
        if not np.isfinite(magnitudes).all():
            return self._finding("load.unknown", Severity.HOLD, f"{self._spec.sensor} measures {magnitudes.tolist()}")
        counts = np.ones(len(magnitudes), dtype=np.bool_)
        if self._spec.tracking_error is not None:
            counts = ~(errors[self._indices] <= self._spec.tracking_error)  # NaN included
        findings = []
        for level, severity in _LEVELS.items():
            limit = getattr(self._spec, level)
            if limit is None:
                continue
            since_ns = np.minimum(self.since_ns.get(level, _NEVER), snapshot.now_ns)
            is_above = counts & (magnitudes > limit)
            self.since_ns[level] = np.where(is_above, since_ns, _NEVER)
            lasting = np.flatnonzero(is_above & (snapshot.now_ns - since_ns >= self._spec.duration_s * 1e9))
            if len(lasting):
                joints = tuple(self._joints[i] for i in lasting) if self._joints else ()
                text = f"{', '.join(joints) or self._spec.sensor}: {magnitudes[lasting].tolist()} (limit {limit})"
                findings.append(self._finding(f"load.{level}", severity, text, joints))
        return next(iter(findings), None)

    def _is_valid(self, context: SafetyContext) -> bool:
        if (status := context.sensors.get(self._spec.sensor)) is None:
            return False
        return status.quality in JUDGED_BY_AGE and status.age_s <= self._max_age_s

    def _finding(self, code: str, severity: Severity, text: str, joints: tuple[str, ...] = ()) -> Finding:
        own = tuple(joint for joint in joints if joint in self._commanded)
        return Finding(gate="force", severity=severity, code=code, joints=own, detail=f"{self._name}: {text}")
