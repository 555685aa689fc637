"""The gates in order and the codes that they report, as one table of the declarations.

Each interlock declares its gates in its own file, and the other gates are declared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from embodied_env.core.code_types import END_REASONS, Code, Severity, end_kind
from embodied_env.plugins.plugin_table import built_in_classes

if TYPE_CHECKING:
    from embodied_env.contract import Contract

_PASS, _LIMIT, _HOLD, _STOP, _ESTOP = Severity
_Gates = Mapping[str, Mapping[str, Code]]

_BEFORE_INTERLOCKS: _Gates = {
    "latch": {
        "latch.stop": Code(1, _STOP, "an earlier stop is latched until reset()"),
        "latch.estop": Code(2, _ESTOP, "an earlier emergency stop is latched until it is cleared", "check the robot"),
    },
    "form": {
        "form.nan": Code(10, _HOLD, "the action is not finite"),
        "form.shape": Code(11, _HOLD, "the action has the wrong shape or keys"),
        "form.type": Code(12, _HOLD, "the action is not made of real numbers"),
        "form.repeated": Code(13, _STOP, "too many malformed actions in a row"),
        "form.none": Code(14, _HOLD, "the policy returned no action"),
    },
    "estop": {
        "estop.active": Code(70, _ESTOP, "the emergency stop is pressed", "release the emergency stop"),
        "estop.expired": Code(
            71, _ESTOP, "the emergency stop topic fell silent", "restart the node that publishes the emergency stop"
        ),
        "estop.unknown": Code(
            72,
            _ESTOP,
            "the state of the emergency stop is not known",
            "start the node that publishes the emergency stop",
        ),
        "robot.protective_stop": Code(
            73, _ESTOP, "protective stop of the robot", "clear the stop at the robot, by its teach pendant or driver"
        ),
        "robot.inactive": Code(
            74, _STOP, "the robot or its controller is not active", "activate the robot and its controller"
        ),
        "robot.contention": Code(
            75,
            _STOP,
            "another node publishes the robot's commands or readings",
            "stop the other node that publishes the robot's commands or readings",
        ),
        "gripper.silent": Code(
            76, _STOP, "the action server of a gripper does not answer", "restart the action server of the gripper"
        ),
        "robot.restarted": Code(
            77, _STOP, "a driver of the robot has restarted", "check that the driver has finished starting"
        ),
    },
}
_AFTER_INTERLOCKS: _Gates = {
    "space_box": {"box.clip": Code(20, _LIMIT, "outside the action space")},
    "mapping": {},
    "jerk": {"jerk.limit": Code(120, _LIMIT, "jerk limit")},
    "joint_limits": {
        "pos.limit": Code(30, _LIMIT, "position limit"),
        "vel.limit": Code(31, _LIMIT, "velocity limit"),
        "acc.limit": Code(32, _LIMIT, "acceleration limit"),
        "limits.infeasible": Code(33, _STOP, "no command keeps all limits"),
        "vel.gap": Code(34, _PASS, "reference velocity lowered after a gap in the commands"),
        "limits.tightened": Code(35, _PASS, "still braking into tightened limits"),
        "clock.dt": Code(40, _HOLD, "no time since the last command"),
    },
    "plugins": {"gate.plugin": Code(140, _ESTOP, "a command filter decided so, or failed")},
    "workspace": {"ws.keepout": Code(130, _STOP, "a forbidden part of the workspace is near")},
    "post_condition": {"fault.internal": Code(60, _STOP, "internal fault")},
    "watchdog": {
        "wd.hold": Code(50, _HOLD, "the watchdog braked, since no action came in time"),
        "wd.stop": Code(51, _STOP, "the watchdog stopped, since no action came for too long"),
    },
    "intervention": {"rate.intervention": Code(160, _STOP, "too many actions were changed")},
    "relay": {"relay.silent": Code(170, _HOLD, "no answer from the relay")},
}
_INTERLOCKS: dict[str, dict[str, Code]] = {}
for _gate in (gate for each in built_in_classes("interlocks") for gate in each.gates):
    _INTERLOCKS.setdefault(_gate.name, {}).update(_gate.codes)  # several may report the same gate
_CODES_BY_GATE: _Gates = {**_BEFORE_INTERLOCKS, **_INTERLOCKS, **_AFTER_INTERLOCKS}

GATES = tuple(_CODES_BY_GATE)
"""The gates in the order of the axis of ``info["safety"]["severity"]`` and ``["code"]``.

Interlocks come first, then limits, then filters. The last three are not part of the chain.
"""

CODE_TABLE: Mapping[str, Code] = dict(  # gate code, as in reports and ``end_reason`` -> its declaration, by number
    sorted((pair for codes in _CODES_BY_GATE.values() for pair in codes.items()), key=lambda pair: pair[1].number)
)

CODES: Mapping[str, int] = {"": 0, **{name: code.number for name, code in CODE_TABLE.items()}}
"""Gate code -> its number in ``info["safety"]["code"]``."""

END_CODES: Mapping[str, int] = {
    **{reason: number for number, reason in enumerate(("", *END_REASONS))},
    **{f"safety_stop:{name}": 1000 + code.number for name, code in CODE_TABLE.items()},
}
"""Number of each end reason in numeric infos, where another reason has the number of its kind."""

UNMOVED = "has not moved since the reset: are joint names and controller right?"  # why a joint may not follow at all


def operator_remedy(reason: str, contract: Contract | None = None) -> str:
    """Return the remedy of an end reason, by input of `contract` if given, or "" without one."""
    code = reason.partition(":")[2]
    remedy = CODE_TABLE[code].remedy if end_kind(reason) == "safety_stop" and code in CODE_TABLE else ""
    kind = {"estop.active": "estop", "robot.protective_stop": "robot_mode"}.get(code)
    inputs = {} if contract is None else contract.backends.get("real", {}).get("estop") or {}
    named = [
        f"{name} on topic {spec['topic']}: {spec.get('release') or remedy}"
        for name, spec in inputs.items()
        if remedy and spec.get("kind", "estop") == kind
    ]
    return "; ".join(named) or remedy
