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
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypedDict

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.json_messages import AnyNumber, JsonMessage, finite_or_text, read_only_array
from embodied_env.contract.key_types import Quantity, WholeNumber
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.typed_values import From, Keywords
from embodied_env.core.code_table import CODES, GATES
from embodied_env.core.code_types import Severity
from embodied_env.core.types import Finding
from embodied_env.errors import ContractError

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

GRIPPER_ENDED = ("rejected", "failed", "reached", "stalled")
"""States of a goal that is not sent again."""

_TAG = re.compile(r"([0-9]{1,19})/([0-9]{1,19})(?:\+([0-9]{1,19}))?")


class SetpointAccount(TypedDict):
    """Account of the setpoints since the last command."""

    rate_hz: Quantity
    sent: WholeNumber
    worst_gap_s: Quantity


class GripperAccount(TypedDict):
    """Account of a gripper with an action server."""

    goal: Quantity | None
    state: Literal["idle", "unsent", "sent", "accepted", "rejected", "failed", "reached", "stalled"]
    goals_sent: WholeNumber


@dataclass(frozen=True, kw_only=True, order=True)
class CommandId:
    """Tag of a command, ``<epoch>/<seq>``, or of a braking tick, ``<epoch>/<seq>+<tick>``."""

    epoch: int
    seq: int
    tick: int = 0

    def to_text(self) -> str:
        """Return the tag as written in ``header.frame_id``."""
        return f"{self.epoch}/{self.seq}" + (f"+{self.tick}" if self.tick else "")

    @classmethod
    def from_text(cls, text: str) -> CommandId:
        """Parse a tag, or raise ValueError."""
        found = _TAG.fullmatch(text)
        if found is None:
            raise ValueError(f"invalid tag: {reprlib.repr(text)} (expected <epoch>/<seq>, such as 1700000000000000/12)")
        epoch, seq, tick = (int(part or 0) for part in found.groups())
        return cls(epoch=epoch, seq=seq, tick=tick)


@dataclass(frozen=True, kw_only=True)
class JointFields:
    """Fields of a JointState, where `positions` and `velocities` are empty or one per name."""

    frame_id: str
    names: tuple[str, ...]
    positions: tuple[float, ...]
    velocities: tuple[float, ...]
    stamp_ns: int = 0  # stamp of the sender's system clock; 0: none

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
    """Parsed command, whose `target` is in SI units or the severity to brake for.

    Values have the shape (n_joints,) in contract order.
    """

    tag: CommandId
    target: FloatArray | Literal[Severity.HOLD, Severity.STOP]
    stamp_ns: int


class MalformedCommandError(Exception):
    """A command that cannot be parsed."""

    def __init__(self, code: str, detail: str, tag: CommandId | None = None) -> None:
        self.finding_code = code
        self.tag = tag
        super().__init__(detail)


def check_relayed(contract: Contract) -> None:
    """Raise ContractError unless a relay can enforce `contract`."""
    if contract.safety.mode != "enforce":
        problem = f"mode is {contract.safety.mode!r} (expected 'enforce', as a relay guarantees the limits)"
        raise ContractError("safety.mode", problem, source=contract.source)
    if contract.trajectory_steps is not None:
        problem = f"trajectory_steps: {contract.trajectory_steps} (expected null for a relay: one point per command)"
        raise ContractError("actuators", problem, source=contract.source)


def stopping_time_s(contract: Contract) -> float:
    """Return the longest time in which a joint brakes from its velocity limit, plus a period."""
    limits = ActionLayout(contract).limits
    moving = ~limits.is_goal
    longest = (limits.fastest[moving] / limits.deceleration[moving]).max(initial=0.0)
    return float(longest) + contract.control_period_s


def write_command(
    tag: CommandId, values: FloatArray | Severity, layout: ActionLayout, *, stamp_ns: int = 0
) -> JointFields:
    """Return the fields of a command or applied command, where a severity requests braking.

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
    """Parse a command, whose joints may be in any order.

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
    """Return the SHA-256 (hex) of joints, kinds of command and enforced limits after margins."""
    plain = {
        "joints": list(layout.joints),
        "is_velocity": layout.is_velocity.tolist(),
        **{name: [repr(float(x)) for x in value] for name, value in layout.limits.vectors().items()},
    }
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


_Numbers = Annotated[FloatArray, From(list[AnyNumber], read_only_array)]
_Vector = Annotated[FloatArray, From(list[Quantity], read_only_array)]


@dataclass(frozen=True, kw_only=True)
class Armed(JsonMessage):
    """Answer to arming, with a new epoch, enforced limits and joints `outside` their limits."""

    place = ARM_SERVICE

    epoch: WholeNumber
    fingerprint: str  # fingerprint of the contract
    limits: str  # limits_fingerprint
    outside: tuple[str, ...]


class _FindingFields(TypedDict):
    gate: Annotated[str, Keywords(enum=GATES)]
    severity: Severity
    code: Annotated[str, Keywords(enum=tuple(CODES))]
    joints: tuple[str, ...]
    before: _Numbers | None
    after: _Numbers | None
    limit: _Numbers | None
    margin: _Numbers | None
    detail: str


_Finding = Annotated[Finding, From(_FindingFields, lambda fields: Finding(**fields))]


@dataclass(frozen=True, kw_only=True)
class RelayReport(JsonMessage):
    """The result of one command or one braking tick.

    `tag` is None if the command's tag was invalid. `cause`: ``command``, ``brake`` (a command that requested it) or
    ``tick``. `applied_si` is the published command, or if refused (not `published`) the one still in force; `applied`
    is the same in action units, relative to the command before. `number` counts publications over the life of the
    relay (0: refused); `published_ns` is on its steady clock. `setpoints`: of an accepted command, the account of the
    setpoints since the one before; None without `setpoint_rate_hz`. `grippers`: the accounts of those with an action
    server.
    """

    place = REPORT_TOPIC

    tag: Annotated[CommandId, From(str, CommandId.from_text)] | None
    cause: Annotated[str, Keywords(enum=("command", "brake", "tick"))]
    published: bool
    disposition: Severity
    findings: tuple[_Finding, ...]
    dt_s: Quantity
    guaranteed: Mapping[str, bool]
    joints: tuple[str, ...]
    applied: _Vector
    applied_si: _Vector
    velocity_si: _Vector
    number: WholeNumber
    published_ns: WholeNumber
    setpoints: Annotated[Mapping[str, float], From(SetpointAccount)] | None
    grippers: Mapping[str, Annotated[Mapping[str, Any], From(GripperAccount)]]

    def as_mapping(self) -> dict[str, Any]:
        """Return the fields, with text for the tag and for a duration that is not finite."""
        tag = None if self.tag is None else self.tag.to_text()
        return {**vars(self), "tag": tag, "dt_s": finite_or_text(self.dt_s)}

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse an untrusted report, or raise ValueError that names the field."""
        report = super().from_text(text)
        for name in ("applied", "applied_si", "velocity_si"):
            if (found := len(getattr(report, name))) != len(report.joints):
                expected = f"expected one for each of {len(report.joints)} joints"
                raise ValueError(f"{REPORT_TOPIC}: {name}: {found} values ({expected})")
        return report


@dataclass(frozen=True, kw_only=True)
class RelayState(JsonMessage):
    """State of the relay, ``disarmed`` (first), ``armed``, ``stopped`` or ``estop`` (latched).

    `braking` means that it brakes and is not yet at rest. `latched` is the code of the latched finding, or "". `inputs`
    are the robot's safety inputs (`embodied_env.core.types.SafetyContext.estops`).
    """

    place = STATE_TOPIC

    state: Annotated[str, Keywords(enum=("disarmed", "armed", "stopped", "estop"))]
    epoch: WholeNumber
    braking: bool
    latched: str
    detail: str
    fingerprint: str
    limits: str
    inputs: Mapping[str, str]
