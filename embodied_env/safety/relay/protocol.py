"""What an environment and a relay say to each other over ROS 2, without ROS.

The relay is a node called `NODE`; the topics below are relative to its namespace. It answers `ARM_SERVICE` with an
epoch (`Armed`). The environment then sends commands with a `Tag`: that epoch, and a sequence number that grows. The
relay answers each with a `RelayReport` of the same tag; what it published stands in it, and on `APPLIED_TOPIC`. Between
commands it may brake by itself: these publications bear the tag of the last accepted command and a tick.

Commands and what was applied are `sensor_msgs/msg/JointState` (`JointFields`): positions of joints that are commanded
by position, velocities of those commanded by velocity, SI units, NaN or nothing where a joint has no such value. A
command that names no joint asks for braking until the next command.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.codes import CODES, Severity
from embodied_env.core.json_messages import (
    ANY_NUMBER,
    COUNT,
    FLAG,
    OBJECTS,
    QUANTITY,
    TEXT,
    Kind,
    check_object,
    list_of,
    object_of,
    one_of,
    or_null,
    read_object,
)
from embodied_env.core.types import Finding, field_values
from embodied_env.safety.findings import GATES

NODE = "relay"
COMMAND_TOPIC = f"{NODE}/command"  # sensor_msgs/msg/JointState: write_command
APPLIED_TOPIC = f"{NODE}/applied"  # sensor_msgs/msg/JointState: what was published, for accepted commands and ticks
REPORT_TOPIC = f"{NODE}/report"  # std_msgs/msg/String: RelayReport.to_text(), for every command and tick
STATE_TOPIC = f"{NODE}/state"  # std_msgs/msg/String, latched: RelayState.to_text(), when it changes
ARM_SERVICE = f"{NODE}/arm"  # std_srvs/srv/Trigger; the message of a success is Armed.to_text(), else why not
ESTOP_SERVICE = f"{NODE}/estop"  # std_srvs/srv/Trigger
CLEAR_ESTOP_SERVICE = f"{NODE}/clear_estop"  # std_srvs/srv/Trigger
DIAGNOSTICS_TOPIC = "/diagnostics"  # diagnostic_msgs/msg/DiagnosticArray, 1 Hz

_TAG = re.compile(r"([0-9]{1,19})/([0-9]{1,19})(?:\+([0-9]{1,19}))?")


@dataclass(frozen=True, kw_only=True, order=True)
class CommandId:
    """What a command is known by: ``<epoch>/<seq>``; a braking tick after it is ``<epoch>/<seq>+<tick>``."""

    epoch: int
    seq: int
    tick: int = 0

    def to_text(self) -> str:
        """Return it as in ``header.frame_id``."""
        return f"{self.epoch}/{self.seq}" + (f"+{self.tick}" if self.tick else "")

    @classmethod
    def from_text(cls, text: str) -> CommandId:
        """Read it; raises ValueError when it is none."""
        found = _TAG.fullmatch(text)
        if found is None:
            raise ValueError(f"{reprlib.repr(text)} is no tag; allowed: <epoch>/<seq>, as in 1700000000000000/12")
        epoch, seq, tick = (int(part or 0) for part in found.groups())
        return cls(epoch=epoch, seq=seq, tick=tick)


@dataclass(frozen=True, kw_only=True)
class JointFields:
    """The fields of a JointState that are used; `positions` and `velocities` are empty or one per name."""

    frame_id: str
    names: tuple[str, ...]
    positions: tuple[float, ...]
    velocities: tuple[float, ...]
    stamp_ns: int = 0  # of the sender's system clock; 0: not said

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
        """Write a message, and return it."""
        message.header.frame_id = self.frame_id
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(self.stamp_ns, 1_000_000_000)
        message.name = list(self.names)
        message.position = list(self.positions)
        message.velocity = list(self.velocities)
        return message


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that could be read: its `target` in SI units, shape (n_joints,) in contract order; None: brake."""

    tag: CommandId
    target: FloatArray | None
    stamp_ns: int


class MalformedCommandError(Exception):
    """A command that cannot be read: a code of findings, the reason, and its tag where it had one."""

    def __init__(self, code: str, detail: str, tag: CommandId | None = None) -> None:
        """Keep them."""
        self.finding_code = code
        self.tag = tag
        super().__init__(detail)


def write_command(tag: CommandId, values: FloatArray | None, layout: ActionLayout, *, stamp_ns: int = 0) -> JointFields:
    """Return what says `values`: positions or velocities in SI units, shape (n_joints,), in contract order.

    Also what was applied is said so. None asks for braking.
    """
    if values is None:
        return JointFields(frame_id=tag.to_text(), names=(), positions=(), velocities=(), stamp_ns=stamp_ns)
    by_velocity = layout.is_velocity
    return JointFields(
        frame_id=tag.to_text(),
        names=layout.joints,
        positions=() if by_velocity.all() else tuple(np.where(by_velocity, np.nan, values).tolist()),
        velocities=tuple(np.where(by_velocity, values, np.nan).tolist()) if by_velocity.any() else (),
        stamp_ns=stamp_ns,
    )


def read_command(fields: JointFields, layout: ActionLayout) -> Command:
    """Read a command; the joints may come in any order, but each exactly once.

    Raises:
        MalformedCommandError: for anything that is not exactly one finite value per joint, of its kind.
    """
    try:
        tag = CommandId.from_text(fields.frame_id)
    except ValueError as error:
        raise MalformedCommandError("form.type", f"header.frame_id: {error}") from None
    if tag.tick:
        raise MalformedCommandError("form.type", f"header.frame_id: {fields.frame_id!r} has a tick: only a relay's do")
    for kind, values in (("position", fields.positions), ("velocity", fields.velocities)):
        if len(values) not in (0, len(fields.names)):
            detail = f"{kind} has {len(values)} values for {len(fields.names)} names"
            raise MalformedCommandError("form.shape", detail, tag)
    if not fields.names:
        return Command(tag=tag, target=None, stamp_ns=fields.stamp_ns)
    if sorted(fields.names) != sorted(layout.joints):
        detail = f"the joints are {reprlib.repr(list(fields.names))}; allowed: each of {list(layout.joints)} once"
        raise MalformedCommandError("form.shape", detail, tag)
    target = np.array(
        [
            _value(fields, joint, is_velocity=bool(by_velocity), tag=tag)
            for joint, by_velocity in zip(layout.joints, layout.is_velocity, strict=True)
        ]
    )
    return Command(tag=tag, target=target, stamp_ns=fields.stamp_ns)


def _value(fields: JointFields, joint: str, *, is_velocity: bool, tag: CommandId) -> float:
    """Return the one value that a command has for a joint."""
    index = fields.names.index(joint)
    position = fields.positions[index] if fields.positions else math.nan
    velocity = fields.velocities[index] if fields.velocities else math.nan
    value, other = (velocity, position) if is_velocity else (position, velocity)
    wanted, unwanted = ("velocity", "position") if is_velocity else ("position", "velocity")
    if not math.isnan(other):
        detail = f"{joint} has a {unwanted}, {other}; it is commanded by {wanted} alone"
        raise MalformedCommandError("form.shape", detail, tag)
    if not math.isfinite(value):
        raise MalformedCommandError("form.nan", f"the {wanted} of {joint} is {value}; allowed: finite", tag)
    return value


def limits_fingerprint(layout: ActionLayout) -> str:
    """Return the SHA-256 (hex) of the limits that are enforced: joints, their kind of command, limits after margins."""
    limits = {name: value for name, value in vars(layout.limits).items() if name != "joints"}
    plain = {
        "joints": list(layout.joints),
        "is_velocity": layout.is_velocity.tolist(),
        **{name: [repr(float(x)) for x in value] for name, value in limits.items()},
    }
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Armed:
    """What arming gives: a new epoch, and what the relay holds the commands against. `outside`: joints found so."""

    epoch: int
    fingerprint: str  # of the contract
    limits: str  # limits_fingerprint
    outside: tuple[str, ...] = ()

    def to_text(self) -> str:
        """Return it as JSON."""
        return json.dumps(vars(self))

    @classmethod
    def from_text(cls, text: str) -> Armed:
        """Read it back; raises ValueError that names the field."""
        plain = read_object(text, ARM_SERVICE, _ARMED)
        return cls(**{**plain, "outside": tuple(plain["outside"])})


@dataclass(frozen=True, kw_only=True)
class RelayReport:
    """What became of one command, or one braking tick.

    `tag` is None for a command whose tag could not be read. `cause`: ``command``, ``brake`` (a command that asked for
    it), or ``tick``. When it was refused nothing was `published`: then `applied_si` is what acts, the last published.
    `applied` is the same in action units, in relation to what was published before. `number` counts publications over
    the life of the relay (0: refused); `published_ns` is its steady clock.
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

    def to_text(self) -> str:
        """Return it as JSON; floats keep every bit, and what is not finite is text."""
        plain = {
            **vars(self),
            "tag": None if self.tag is None else self.tag.to_text(),
            "disposition": int(self.disposition),
            "findings": [_finding_to_plain(finding) for finding in self.findings],
            "dt_s": _number_to_plain(self.dt_s),
            "guaranteed": dict(self.guaranteed),
            "applied": _to_plain(self.applied),
            "applied_si": _to_plain(self.applied_si),
            "velocity_si": _to_plain(self.velocity_si),
        }
        return json.dumps(plain, allow_nan=False)

    @classmethod
    def from_text(cls, text: str) -> RelayReport:
        """Read it back; raises ValueError that names the field."""
        plain = read_object(text, REPORT_TOPIC, _REPORT)
        for name in ("applied", "applied_si", "velocity_si"):
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
                "applied": _from_plain(plain["applied"]),
                "applied_si": _from_plain(plain["applied_si"]),
                "velocity_si": _from_plain(plain["velocity_si"]),
            }
        )


@dataclass(frozen=True, kw_only=True)
class RelayState:
    """How the relay is: ``disarmed`` (as it started), ``armed``, ``stopped`` or ``estop`` (latched: arm it anew).

    `braking`: it brakes now, and is not at rest. `latched` is the code of what latched, or "". `inputs` are the robot's
    own safety inputs (`embodied_env.core.types.Situation.estops`).
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
        """Return it as JSON."""
        return json.dumps({**vars(self), "inputs": dict(self.inputs)})

    @classmethod
    def from_text(cls, text: str) -> RelayState:
        """Read it back; raises ValueError that names the field."""
        return cls(**read_object(text, STATE_TOPIC, _STATE))


_ARRAYS = ("before", "after", "limit", "margin")

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
    "cause": one_of(("command", "brake", "tick"), "'command', 'brake' or 'tick'"),
    "published": FLAG,
    "disposition": _SEVERITY,
    "findings": OBJECTS,
    "dt_s": QUANTITY,
    "guaranteed": object_of(FLAG),
    "joints": list_of(TEXT),
    "applied": list_of(QUANTITY),
    "applied_si": list_of(QUANTITY),
    "velocity_si": list_of(QUANTITY),
    "number": COUNT,
    "published_ns": COUNT,
}
_FINDING = {
    "gate": one_of(GATES, "the name of a gate"),
    "severity": _SEVERITY,
    "code": one_of(CODES, "a code of findings"),
    "joints": list_of(TEXT),
    **dict.fromkeys(_ARRAYS, or_null(list_of(ANY_NUMBER))),
    "detail": TEXT,
}
_STATE = {
    "state": one_of(("disarmed", "armed", "stopped", "estop"), "'disarmed', 'armed', 'stopped' or 'estop'"),
    "epoch": COUNT,
    "braking": FLAG,
    "latched": TEXT,
    "detail": TEXT,
    "fingerprint": TEXT,
    "limits": TEXT,
    "inputs": object_of(TEXT),
}


def _number_to_plain(value: float) -> float | str:
    return float(value) if math.isfinite(value) else repr(float(value))


def _to_plain(array: FloatArray) -> list[float | str]:
    return [_number_to_plain(value) for value in array.tolist()]


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
