"""The protocol between an environment and a relay over ROS 2, without ROS.

The relay is the node `NODE`; topics are relative to its namespace. `ARM_SERVICE` returns an epoch (`Armed`). The
environment then sends commands tagged with a `CommandId`: that epoch and an increasing sequence number. The relay
answers each with a `RelayReport` of the same tag, and publishes the applied command on `APPLIED_TOPIC`. Between
commands it may brake on its own: those publications have the tag of the last accepted command and a tick.

Commands and applied commands are `sensor_msgs/msg/JointState` (`JointFields`): positions of joints commanded by
position, velocities of joints commanded by velocity, in SI units; NaN or empty where a joint has no such value. A
command without joints requests braking until the next command, as a HOLD; one that names only `STOP`, without values,
as a STOP, at which grippers do what the contract declares.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.json_objects import (
    ANY_NUMBER,
    COUNT,
    FLAG,
    OBJECTS,
    QUANTITY,
    TEXT,
    Kind,
    check_object,
    enum_of,
    list_of,
    object_of,
    object_with,
    or_null,
    read_object,
)
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.codes import CODES, Severity
from embodied_env.core.types import Finding, field_values
from embodied_env.safety.findings import GATES

NODE = "relay"
COMMAND_TOPIC = f"{NODE}/command"  # sensor_msgs/msg/JointState: write_command
APPLIED_TOPIC = f"{NODE}/applied"  # sensor_msgs/msg/JointState: the published command, for accepted commands and ticks
REPORT_TOPIC = f"{NODE}/report"  # std_msgs/msg/String: RelayReport.to_text(), for every command and tick
STATE_TOPIC = f"{NODE}/state"  # std_msgs/msg/String, latched: RelayState.to_text(), when it changes
ARM_SERVICE = f"{NODE}/arm"  # std_srvs/srv/Trigger; the message is Armed.to_text(), or the reason of a failure
ESTOP_SERVICE = f"{NODE}/estop"  # std_srvs/srv/Trigger
CLEAR_ESTOP_SERVICE = f"{NODE}/clear_estop"  # std_srvs/srv/Trigger
DIAGNOSTICS_TOPIC = "/diagnostics"  # diagnostic_msgs/msg/DiagnosticArray, 1 Hz

STOP = "stop"
"""The only name, without values, of a command that brakes as a STOP."""

SETPOINT_FIELDS = {"rate_hz": QUANTITY, "sent": COUNT, "worst_gap_s": QUANTITY}
"""Account of the setpoints since the last command."""

GRIPPER_ENDED = ("rejected", "failed", "reached", "stalled")
"""States of a goal that is not sent again."""

GRIPPER_FIELDS = {
    "goal": or_null(QUANTITY),
    "state": enum_of(("idle", "unsent", "sent", "accepted", *GRIPPER_ENDED), "the state of a goal"),
    "goals_sent": COUNT,
}
"""Account of a gripper with an action server."""

_TAG = re.compile(r"([0-9]{1,19})/([0-9]{1,19})(?:\+([0-9]{1,19}))?")


@dataclass(frozen=True, kw_only=True, order=True)
class CommandId:
    """The tag of a command, ``<epoch>/<seq>``, or of a braking tick after it, ``<epoch>/<seq>+<tick>``."""

    epoch: int
    seq: int
    tick: int = 0

    def to_text(self) -> str:
        """Return the tag as written in ``header.frame_id``."""
        return f"{self.epoch}/{self.seq}" + (f"+{self.tick}" if self.tick else "")

    @classmethod
    def from_text(cls, text: str) -> CommandId:
        """Parse a tag; raises ValueError."""
        found = _TAG.fullmatch(text)
        if found is None:
            raise ValueError(f"invalid tag: {reprlib.repr(text)} (expected <epoch>/<seq>, such as 1700000000000000/12)")
        epoch, seq, tick = (int(part or 0) for part in found.groups())
        return cls(epoch=epoch, seq=seq, tick=tick)


@dataclass(frozen=True, kw_only=True)
class JointFields:
    """The fields of a JointState; `positions` and `velocities` are empty or have one value per name."""

    frame_id: str
    names: tuple[str, ...]
    positions: tuple[float, ...]
    velocities: tuple[float, ...]
    stamp_ns: int = 0  # of the sender's system clock; 0: none

    @classmethod
    def of(cls, message: Any) -> JointFields:  # noqa: ANN401 - a generated type
        """Read a message."""
        stamp = message.header.stamp
        return cls(
            frame_id=message.header.frame_id,
            names=tuple(message.name),
            positions=tuple(message.position),
            velocities=tuple(message.velocity),
            stamp_ns=int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec),
        )

    def fill(self, message: Any) -> Any:  # noqa: ANN401 - a generated type
        """Fill in a message and return it."""
        message.header.frame_id = self.frame_id
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(self.stamp_ns, 1_000_000_000)
        message.name = list(self.names)
        message.position = list(self.positions)
        message.velocity = list(self.velocities)
        return message


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command; `target` in SI units, shape (n_joints,) in contract order, or the severity to brake for."""

    tag: CommandId
    target: FloatArray | Literal[Severity.HOLD, Severity.STOP]
    stamp_ns: int


class MalformedCommandError(Exception):
    """A command that cannot be parsed."""

    def __init__(self, code: str, detail: str, tag: CommandId | None = None) -> None:
        self.finding_code = code
        self.tag = tag
        super().__init__(detail)


def write_command(
    tag: CommandId, values: FloatArray | Severity, layout: ActionLayout, *, stamp_ns: int = 0
) -> JointFields:
    """Return the fields of a command, or of an applied command; a severity requests braking.

    `values` are positions or velocities in SI units, shape (n_joints,), in contract order.
    """
    if isinstance(values, Severity):
        names = () if values is Severity.HOLD else (STOP,)
        return JointFields(frame_id=tag.to_text(), names=names, positions=(), velocities=(), stamp_ns=stamp_ns)
    by_velocity = layout.is_velocity
    return JointFields(
        frame_id=tag.to_text(),
        names=layout.joints,
        positions=() if by_velocity.all() else tuple(np.where(by_velocity, np.nan, values).tolist()),
        velocities=tuple(np.where(by_velocity, values, np.nan).tolist()) if by_velocity.any() else (),
        stamp_ns=stamp_ns,
    )


def read_command(fields: JointFields, layout: ActionLayout) -> Command:
    """Parse a command; joints may be in any order.

    Raises:
        MalformedCommandError: unless each joint has exactly one finite value, a position or a velocity as commanded.
    """
    try:
        tag = CommandId.from_text(fields.frame_id)
    except ValueError as error:
        raise MalformedCommandError("form.type", f"header.frame_id: {error}") from None
    if tag.tick:
        raise MalformedCommandError("form.type", f"header.frame_id: {fields.frame_id!r} has a tick (expected none)")
    for kind, values in (("position", fields.positions), ("velocity", fields.velocities)):
        if len(values) not in (0, len(fields.names)):
            detail = f"{kind} has {len(values)} values (expected {len(fields.names)}, one per name)"
            raise MalformedCommandError("form.shape", detail, tag)
    if fields.names in ((), (STOP,)) and not fields.positions and not fields.velocities:
        return Command(tag=tag, target=Severity.STOP if fields.names else Severity.HOLD, stamp_ns=fields.stamp_ns)
    if sorted(fields.names) != sorted(layout.joints):
        detail = f"joints are {reprlib.repr(list(fields.names))} (expected each of {list(layout.joints)} once)"
        raise MalformedCommandError("form.shape", detail, tag)
    index, unset = [fields.names.index(joint) for joint in layout.joints], (math.nan,) * len(layout.joints)
    positions, velocities = (
        np.array(values or unset, dtype=np.float64)[index] for values in (fields.positions, fields.velocities)
    )
    target = np.where(layout.is_velocity, velocities, positions)
    others = np.where(layout.is_velocity, positions, velocities)
    rows = zip(layout.joints, layout.is_velocity, target.tolist(), others.tolist(), strict=True)
    for joint, is_velocity, value, other in rows:
        wanted, unwanted = ("velocity", "position") if is_velocity else ("position", "velocity")
        if not math.isnan(other):
            detail = f"{joint} has the {unwanted} {other} (expected only a {wanted})"
            raise MalformedCommandError("form.shape", detail, tag)
        if not math.isfinite(value):
            raise MalformedCommandError("form.nan", f"{wanted} of {joint} is {value} (expected a finite number)", tag)
    return Command(tag=tag, target=target, stamp_ns=fields.stamp_ns)


def limits_fingerprint(layout: ActionLayout) -> str:
    """Return the SHA-256 (hex) of the enforced limits: joints, kinds of command, limits after margins."""
    plain = {
        "joints": list(layout.joints),
        "is_velocity": layout.is_velocity.tolist(),
        **{name: [repr(float(x)) for x in value] for name, value in layout.limits.vectors().items()},
    }
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Armed:
    """The answer to arming: a new epoch and the limits enforced. `outside`: joints found outside their limits."""

    epoch: int
    fingerprint: str  # of the contract
    limits: str  # limits_fingerprint
    outside: tuple[str, ...] = ()

    def to_text(self) -> str:
        """Return the message as JSON."""
        return json.dumps(vars(self))

    @classmethod
    def from_text(cls, text: str) -> Armed:
        """Parse the JSON; raises ValueError that names the field."""
        plain = read_object(text, ARM_SERVICE, _ARMED)
        return cls(**{**plain, "outside": tuple(plain["outside"])})


@dataclass(frozen=True, kw_only=True)
class RelayReport:
    """The result of one command or one braking tick.

    `tag` is None if the command's tag was invalid. `cause`: ``command``, ``brake`` (a command that requested it) or
    ``tick``. `applied_si` is the published command, or if refused (not `published`) the one still in force; `applied`
    is the same in action units, relative to the command before. `number` counts publications over the life of the
    relay (0: refused); `published_ns` is on its steady clock. `setpoints`: of an accepted command, the account of the
    setpoints since the one before; None without `setpoint_rate_hz`. `grippers`: the accounts of those with an action
    server.
    """

    tag: CommandId | None
    cause: str
    published: bool
    disposition: Severity
    findings: tuple[Finding, ...]
    dt_s: float
    guaranteed: Mapping[str, bool]
    joints: tuple[str, ...]
    applied: FloatArray
    applied_si: FloatArray
    velocity_si: FloatArray
    number: int
    published_ns: int
    setpoints: Mapping[str, float] | None = None
    grippers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the report as JSON; floats keep every bit, non-finite ones are strings."""
        plain = {
            **vars(self),
            "tag": None if self.tag is None else self.tag.to_text(),
            "disposition": int(self.disposition),
            "findings": [_finding_to_plain(finding) for finding in self.findings],
            "dt_s": _number_to_plain(self.dt_s),
            "guaranteed": dict(self.guaranteed),
            **{name: _to_plain(getattr(self, name)) for name in _VECTORS},
        }
        return json.dumps(plain, allow_nan=False)

    @classmethod
    def from_text(cls, text: str) -> RelayReport:
        """Parse the JSON; raises ValueError that names the field."""
        plain = read_object(text, REPORT_TOPIC, _REPORT)
        for name in _VECTORS:
            if len(plain[name]) != len(plain["joints"]):
                found = f"{len(plain[name])} values (expected one for each of {len(plain['joints'])} joints)"
                raise ValueError(f"{REPORT_TOPIC}: field {name}: {found}")
        return cls(
            **{
                **plain,
                "tag": None if plain["tag"] is None else CommandId.from_text(plain["tag"]),
                "disposition": Severity(plain["disposition"]),
                "findings": tuple(_finding_from_plain(finding) for finding in plain["findings"]),
                "dt_s": float(plain["dt_s"]),
                "joints": tuple(plain["joints"]),
                **{name: _from_plain(plain[name]) for name in _VECTORS},
            }
        )


@dataclass(frozen=True, kw_only=True)
class RelayState:
    """The state of the relay: ``disarmed`` (initially), ``armed``, ``stopped`` or ``estop`` (latched).

    `braking`: it is braking and not yet at rest. `latched` is the code of the latched finding, or "". `inputs` are the
    robot's safety inputs (`embodied_env.core.types.SafetyContext.estops`).
    """

    state: str
    epoch: int
    braking: bool
    latched: str
    detail: str
    fingerprint: str
    limits: str
    inputs: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the message as JSON."""
        return json.dumps({**vars(self), "inputs": dict(self.inputs)})

    @classmethod
    def from_text(cls, text: str) -> RelayState:
        """Parse the JSON; raises ValueError that names the field."""
        return cls(**read_object(text, STATE_TOPIC, _STATE))


_VECTORS = ("applied", "applied_si", "velocity_si")  # of a report
_ARRAYS = ("before", "after", "limit", "margin")  # of a finding

_SEVERITY = Kind(
    expected=f"one of {[int(severity) for severity in Severity]}",
    is_valid=lambda value: COUNT.is_valid(value) and value <= max(Severity),
)
_TAG_TEXT = Kind(
    expected="text like 1700000000000000/12+1",
    is_valid=lambda value: isinstance(value, str) and _TAG.fullmatch(value) is not None,
)
_ARMED = {"epoch": COUNT, "fingerprint": TEXT, "limits": TEXT, "outside": list_of(TEXT)}
_REPORT = {
    "tag": or_null(_TAG_TEXT),
    "cause": enum_of(("command", "brake", "tick"), "'command', 'brake' or 'tick'"),
    "published": FLAG,
    "disposition": _SEVERITY,
    "findings": OBJECTS,
    "dt_s": QUANTITY,
    "guaranteed": object_of(FLAG),
    "joints": list_of(TEXT),
    **dict.fromkeys(_VECTORS, list_of(QUANTITY)),
    "number": COUNT,
    "published_ns": COUNT,
    "setpoints": or_null(object_with(SETPOINT_FIELDS)),
    "grippers": object_of(object_with(GRIPPER_FIELDS)),
}
_FINDING = {
    "gate": enum_of(GATES, "the name of a gate"),
    "severity": _SEVERITY,
    "code": enum_of(CODES, "a code of findings"),
    "joints": list_of(TEXT),
    **dict.fromkeys(_ARRAYS, or_null(list_of(ANY_NUMBER))),
    "detail": TEXT,
}
_STATE = {
    "state": enum_of(("disarmed", "armed", "stopped", "estop"), "'disarmed', 'armed', 'stopped' or 'estop'"),
    "epoch": COUNT,
    "braking": FLAG,
    "latched": TEXT,
    "detail": TEXT,
    "fingerprint": TEXT,
    "limits": TEXT,
    "inputs": object_of(TEXT),
}


def _to_plain(array: FloatArray) -> list[float | str]:
    return [_number_to_plain(value) for value in array.tolist()]


def _number_to_plain(value: float) -> float | str:
    return float(value) if math.isfinite(value) else repr(float(value))


def _from_plain(values: list[float | str]) -> FloatArray:
    array = np.array([float(value) for value in values], dtype=np.float64)
    array.flags.writeable = False
    return array


def _finding_to_plain(finding: Finding) -> dict[str, Any]:
    arrays = {name: getattr(finding, name) for name in _ARRAYS}
    return {
        **field_values(finding),
        "severity": int(finding.severity),
        **{name: None if value is None else _to_plain(np.atleast_1d(value)) for name, value in arrays.items()},
    }


def _finding_from_plain(plain: Mapping[str, Any]) -> Finding:
    check_object(plain, f"{REPORT_TOPIC}: findings", _FINDING)
    return Finding(
        **{
            **plain,
            "severity": Severity(plain["severity"]),
            "joints": tuple(plain["joints"]),
            **{name: None if plain[name] is None else _from_plain(plain[name]) for name in _ARRAYS},
        }
    )
