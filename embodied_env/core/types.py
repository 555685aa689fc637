"""The values that travel: samples, snapshots, approved commands, verdicts, and the transition that accounts for a step.

All are frozen. Arrays inside them are never written after they were made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.codes import Quality, Severity

if TYPE_CHECKING:
    from embodied_env.contract.schema import EffectiveLimits

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of one sensor.

    `values` maps field to an array of the contract's shape and dtype. `stamp_ns` is the acquisition time on the world's
    clock, `arrival_ns` the local steady clock and `arrival_system_ns` the system clock at the same instant; `source_ns`
    and `received_ns` are the middleware's stamps of the system clock. Those that a world does not have are None.
    `lost`, `duplicated` and `reordered` count messages since the previous snapshot.

    Where messages are stamped by clocks that can be set, `header_ns` is what the message itself says, and `stamp_ns`
    its place on the world's clock, which never jumps; `stamp_quality` says how far that place is known,
    `suspect_clock` which clock the message seems to be stamped by ("tai", "gps", "epoch"; "": none is suspected), and
    `transport_quality` what the middleware's stamps are worth. With a clock that is not known to be ours
    `transport_excess_s` is how much longer the message took than the quickest of late.
    """

    sensor: str
    values: Mapping[str, NDArray[Any]]
    stamp_ns: int
    arrival_ns: int
    arrival_system_ns: int | None = None
    source_ns: int | None = None
    received_ns: int | None = None
    seq: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    quality: Quality = Quality.OK
    reason: str = ""
    confidence: float | None = None
    header_ns: int | None = None
    stamp_quality: Quality = Quality.OK
    suspect_clock: str = ""
    transport_quality: Quality = Quality.OK
    transport_excess_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStatus:
    """What is known of the clocks of a world that moves by itself.

    The world's clock is the robot's (UTC, or simulated time on a topic) as it was at the connection, carried on by our
    steady clock. `epoch` counts how often the clock behind it was set since the connection, `jumps` how often since the
    reset. `jump` says what was noticed since the last snapshot: "" nothing, "stepped" (UTC was set), "suspended" (the
    host slept), "rewound" or "skipped" (simulated time). `offset_ns` is that of the clock behind it from the steady
    one, within `offset_error_ns`; `rtf` is how fast the world's time runs by the steady clock.
    """

    mode: str  # "wall": stamps of UTC; "sim": of simulated time on a topic, or of a world in this process
    epoch: int = 0
    jumps: int = 0
    jump: str = ""
    offset_ns: int = 0
    offset_error_ns: int = 0
    rtf: float = 1.0
    rmw: str = ""  # the middleware, where there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class ActuationEvidence:
    """Evidence that a command acts: `seq` is the command's, `acted_ns` on our steady clock.

    `method`, best first: "echo" (a relay says that it published it), "controller" (a controller says that it refers to
    it); "declared" is no evidence: `acted_ns` is what a profile of latencies makes us expect.
    """

    seq: int
    acted_ns: int
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedDelays:
    """The delays that were put into a world that waits, in its own time.

    `inference_ns`, `actuation_ns`: of the command that led to this snapshot. `early`: the sensors whose reading in this
    snapshot is the reset's only because none since is old enough to be there.
    """

    inference_ns: int = 0
    actuation_ns: int = 0
    early: tuple[str, ...] = ()


DRY_RUN = "dry_run"
"""The key of `ResetReport.details` that says that nothing which is sent reaches the robot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetReport:
    """What a backend's reset really did."""

    level: str  # of Capabilities.reset_levels
    seed_applied: int | None  # None: the world cannot be seeded
    sampled: Mapping[str, FloatArray]  # what was drawn or set, by reset option
    details: Mapping[str, str] = field(default_factory=dict)  # what else the backend chose, e.g. the renderer
    ignored: tuple[str, ...] = ()  # reset options that mean nothing to this world
    routine: str = ""  # what moved the robot to its begin: "", "service", "home", or "service+home"
    confirmed_by: str = ""  # who was asked and agreed: "" nobody was, "prompt", "topic", "service"
    options: Mapping[str, FloatArray] = field(default_factory=dict)  # what the agent asked for, by reset option
    verdict: Verdict | None = None  # what the task says of the reset snapshot; None: it does not judge it


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The newest sample of each sensor at one instant `now_ns` of the world's clock."""

    now_ns: int
    samples: Mapping[str, Sample]
    reset: ResetReport | None = None
    clock: ClockStatus | None = None  # None: the world waits, and its clock is its own
    actuation: ActuationEvidence | None = None  # the newest evidence since the previous snapshot
    injected: InjectedDelays | None = None  # None: nothing was

    def with_samples(self, samples: Mapping[str, Sample]) -> Snapshot:
        """Return the same instant with other samples."""
        return replace(self, samples=samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequest:
    """What a reset asks of a backend. `options` are checked values of the contract's reset options."""

    epoch: int
    seed: int
    options: Mapping[str, FloatArray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing a gate did, with the numbers that explain it. Arrays have one entry per name in `joints`."""

    gate: str
    severity: Severity
    code: str
    joints: tuple[str, ...] = ()
    before: FloatArray | None = None
    after: FloatArray | None = None
    limit: FloatArray | None = None
    margin: FloatArray | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorStatus:
    """A sensor when an action is judged: the age of its last valid reading, and the quality of its newest."""

    quality: Quality
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyContext:
    """What is known beside an action when it is judged.

    `sensors` are those that an action needs. `measured` are the positions of the joints, shape (n_joints,), NaN where
    unknown. `action_age_s` is the time since the observation was returned, `latency_s` that since it was frozen: both 0
    in a world that waits. `estops` are the robot's own safety inputs: name -> "ok", or what is wrong ("active",
    "expired", "unknown", "protective_stop", "lapsed", "inactive", "contention"), where after a colon it may say why.
    "lapsed" is HOLD: what must be active has just been found not to be. `forces`: sensor -> length of its limited
    field.
    `clock_jump`: what happened to the clocks since the last action (`ClockStatus.jump`).
    """

    sensors: Mapping[str, SensorStatus]
    measured: FloatArray
    action_age_s: float = 0.0
    latency_s: float = 0.0
    estops: Mapping[str, str] = field(default_factory=dict)
    forces: Mapping[str, float] = field(default_factory=dict)
    clock_jump: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandState:
    """The last published command: positions and velocities of shape (n_joints,), its number, and its epoch.

    What is commanded by velocity has its measured position here, and zero when it has no position limits; `slack` is
    how far it may have moved since it was measured, in the joint's unit (None: not at all). `before_gap` are the
    published velocities, where a gap has lowered them (`embodied_env.safety.joint_limits`).
    """

    positions: FloatArray
    velocities: FloatArray
    seq: int
    epoch: int
    slack: FloatArray | None = None
    accelerations: FloatArray | None = None  # of the last published command; None: none
    before_gap: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The account of one pass through the gates. Vectors are flat over all joints, in contract order.

    `requested` and `applied` are in action units (`requested` NaN where the request had no such shape), `applied_si` is
    what is published: positions in the joint's unit, or velocities in its unit/s. `velocity_si` are the velocities
    that the command leads to.
    """

    disposition: Severity
    findings: tuple[Finding, ...]
    intervened: bool
    requested: FloatArray
    applied: FloatArray
    applied_si: FloatArray
    velocity_si: FloatArray
    dt_s: float
    guaranteed: Mapping[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedCommand:
    """A command that passed the gate. Only `embodied_env.safety.gate` makes one; only this can be sent.

    `values` are positions, or velocities of joints and axes that are commanded so: flat over all joints in contract
    order. `seq` is strictly increasing over the life of an arbiter.
    """

    values: FloatArray
    seq: int
    epoch: int
    report: GateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class SentCommand:
    """What a backend did with an approved command: the values that really left, shape (n_joints,).

    `report` is the account of the gate in another process that had the last word on them (a relay). `published_ns` is
    when the command left us, on the steady clock; None: as `send` returned.
    """

    seq: int
    values: FloatArray
    report: GateReport | None = None
    published_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalInputs:
    """What time, people and other processes did to a step: what does not follow from actions and readings.

    `situation` is what the gate was told, `latched` what was latched when it was asked, and `latched_after` when the
    step was over. `dt_s` is the time since `reference`, the last published command; None: the world waits, and both
    follow from the steps before. `watchdog_trips` counts since the environment was made. `answer` is the account of the
    gate in another process that had the last word. `limits` are those in force where `change_limits` has changed them.
    """

    situation: SafetyContext
    latched: Finding | None = None
    latched_after: Finding | None = None
    watchdog_trips: int = 0
    dt_s: float = 0.0
    reference: CommandState | None = None
    answer: GateReport | None = None
    limits: EffectiveLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the task says of a step. Build it with the functions named for what happened.

    Several may hold at once; the stepper orders them.
    """

    success: bool = False
    failure: str = ""
    out_of_bounds: str = ""

    @staticmethod
    def running() -> Verdict:
        """Nothing ended."""
        return Verdict()

    @staticmethod
    def succeeded() -> Verdict:
        """The goal was reached: terminated."""
        return Verdict(success=True)

    @staticmethod
    def failed(why: str) -> Verdict:
        """The task cannot be solved any more: terminated."""
        return Verdict(failure=why)

    @staticmethod
    def left_bounds(why: str) -> Verdict:
        """The state left the region that the task is about: truncated."""
        return Verdict(out_of_bounds=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """A task's answer for one step: reward, verdict, and the terms that explain them."""

    reward: float
    verdict: Verdict
    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One step, whole: the five values that Gymnasium returns, and the account behind them.

    `action` is what `step` was given. `stamps_ns` are the raw ledger stamps (steady domain). `end_reasons` holds every
    reason that applied, `info["end_reason"]` the first of them. `snapshot` is the world as it was read, `circumstances`
    what else the step was judged under.
    """

    observation: Mapping[str, NDArray[Any]]
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    end_reasons: tuple[str, ...]
    report: GateReport
    stamps_ns: Mapping[str, int]
    snapshot: Snapshot
    circumstances: ExternalInputs


@runtime_checkable
class Observer(Protocol):
    """Told of each transition as it is complete. It never reaches back, and what it raises ends the step."""

    def observe(self, transition: Transition) -> None:
        """Look at one transition."""
        ...
