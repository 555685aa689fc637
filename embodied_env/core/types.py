"""Data types of a step, such as samples, snapshots, commands, verdicts and transitions.

None is modified after its creation (mypy checks it), and the arrays inside them are never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.safety_input_state import InputStates

if TYPE_CHECKING:
    from dataclasses import dataclass as value_type

    from _typeshed import DataclassInstance

    from embodied_env.contract.actuator_schema import EffectiveLimits
else:
    from dataclasses import dataclass

    def value_type(*, frozen: bool, slots: bool, kw_only: bool = False) -> Callable[[type], type]:
        """Return the decorator of a hashable dataclass that is `frozen` only for mypy.

        At run time a frozen one assigns each field by `object.__setattr__`, a sixth of the cost of a step.
        """
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=frozen)


__all__ = ["value_type"]  # a type checker takes it for an import

FloatArray = NDArray[np.float64]
SuspectClock = Literal["", "tai", "gps", "epoch"]
World = Literal["simulator", "emulator", "robot", "dry run"]
Routine = Literal["", "service", "home", "service+home"]
Confirmation = Literal["", "prompt", "topic", "service"]


@value_type(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of one sensor, with None for a stamp that the world lacks."""

    sensor: str
    values: Mapping[str, NDArray[Any]]  # field -> array of the contract's shape and dtype
    stamp_ns: int  # acquisition on the world clock, which never jumps
    arrival_ns: int  # steady clock
    arrival_system_ns: int | None = None
    source_ns: int | None = None  # middleware's stamp of the publication, system clock
    received_ns: int | None = None  # middleware's stamp of the receipt, system clock
    seq: int = 0
    lost: int = 0  # messages since the previous snapshot, as the next two
    duplicated: int = 0
    reordered: int = 0
    quality: Quality = Quality.OK
    reason: str = ""
    confidence: float | None = None
    header_ns: int | None = None  # the stamp in the message, if its clock can be set
    stamp_quality: Quality = Quality.OK  # quality of `stamp_ns`
    suspect_clock: SuspectClock = ""  # the clock that seems to have stamped the message
    transport_quality: Quality = Quality.OK  # quality of the middleware's stamps
    transport_excess_s: float | None = None  # transport time above its recent minimum, for clocks not known to agree
    raw_sha256: Mapping[str, str] = field(default_factory=dict)  # field -> hash of the pixels before `resize`
    driver: Mapping[str, Any] = field(default_factory=dict)  # converted field -> values in the driver's units, by rows


@value_type(frozen=True, slots=True, kw_only=True)
class ClockStatus:
    """The clocks of a free-running world.

    The world clock is the robot's (UTC, or simulated time on a topic) at the connection, continued by our steady clock.
    """

    mode: Literal["wall", "sim"]  # "wall": UTC stamps; "sim": simulated time, on a topic or of a world in this process
    epoch: int = 0  # number of times that its source was set since the connection
    jumps: int = 0  # and since the reset
    # since the last snapshot: "", "stepped" (UTC), "suspended" (the host), "rewound", "skipped" (simulated)
    jump: str = ""
    offset_ns: int = 0  # source minus steady clock
    offset_error_ns: int = 0
    rtf: float = 1.0  # real-time factor
    rmw: str = ""  # the ROS middleware, if any


@value_type(frozen=True, slots=True, kw_only=True)
class ActuationEvidence:
    """Evidence that command `seq` acts since `acted_ns`, on our steady clock.

    `method`, best first: "echo" (a relay reports that it published the command), "controller" (a controller reports the
    command as its reference), "declared" (no evidence: expected from a latency profile).
    """

    seq: int
    acted_ns: int
    method: str


@value_type(frozen=True, slots=True, kw_only=True)
class InjectedDelays:
    """Delays injected into a lockstep world, in world time."""

    inference_ns: int = 0  # delay of the command that led to this snapshot, as `actuation_ns`
    actuation_ns: int = 0
    early: tuple[str, ...] = ()  # sensors that still show the reset's reading because no later one is old enough


def name_world(flags: Mapping[str, Any]) -> World:
    """Return the world that commands move by the flags of a backend."""
    if flags.get("actuates") is False:
        return "dry run"
    if flags.get("emulated") is True:
        return "emulator"
    return "robot" if flags.get("simulated") is False else "simulator"


@value_type(frozen=True, slots=True, kw_only=True)
class ResetReport:
    """The result of a reset."""

    level: str  # one of Capabilities.reset_levels
    seed_applied: int | None  # None: the world cannot be seeded
    sampled: Mapping[str, FloatArray]  # reset option -> value drawn or set
    details: Mapping[str, str] = field(default_factory=dict)  # other choices of the backend, e.g. the renderer
    ignored: tuple[str, ...] = ()  # reset options without meaning in this world
    routine: Routine = ""  # what moved the robot to its start
    confirmed_by: Confirmation = ""  # channel of the operator's confirmation
    options: Mapping[str, FloatArray] = field(default_factory=dict)  # reset option -> value that the agent requested
    verdict: Verdict | None = None  # the task's verdict on the reset snapshot; None: not judged
    instruction: str = ""  # prompt of the episode
    dry_run: bool = False  # commands do not reach the robot


@value_type(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The newest sample of each sensor at the instant `now_ns` of the world clock."""

    now_ns: int
    samples: Mapping[str, Sample]
    reset: ResetReport | None = None
    clock: ClockStatus | None = None  # None: lockstep
    actuation: ActuationEvidence | None = None  # the newest evidence since the previous snapshot
    injected: InjectedDelays | None = None  # None: no delays are injected
    render_ns: int | None = None  # time spent on rendering images in the step; None: not measured


@value_type(frozen=True, slots=True, kw_only=True)
class ResetRequest:
    """A reset request to a backend with validated reset options in `options`."""

    epoch: int
    seed: int
    options: Mapping[str, FloatArray] = field(default_factory=dict)


@value_type(frozen=True, slots=True, kw_only=True)
class EpisodeStart:
    """The start of an episode that plays a recorded one (`EmbodiedEnv.start_from`)."""

    label: str  # names the recorded episode in messages
    positions: Mapping[str, float]  # joint -> measured position, in the joint's unit
    rehearse: Callable[[], str]  # plays the episode without a robot; returns the deviations in text
    seed: int | None = None  # of the world; None: drawn as in any reset
    options: Mapping[str, Any] = field(default_factory=dict)  # those of `reset`
    question: str = ""  # the deviations, for the operator of a robot


@value_type(frozen=True, slots=True, kw_only=True)
class Finding:
    """One intervention of a gate, with numbers in arrays of one entry per name in `joints`."""

    gate: str
    severity: Severity
    code: str
    joints: tuple[str, ...] = ()
    before: FloatArray | None = None
    after: FloatArray | None = None
    limit: FloatArray | None = None
    margin: FloatArray | None = None
    detail: str = ""


@value_type(frozen=True, slots=True, kw_only=True)
class SensorStatus:
    """Quality of the newest reading and age of the last valid one when an action is judged."""

    quality: Quality
    age_s: float


@value_type(frozen=True, slots=True, kw_only=True)
class SafetyContext:
    """The context in which the gate judges an action, with the robot's safety inputs `estops`."""

    sensors: Mapping[str, SensorStatus]  # those that an action depends on
    measured: FloatArray  # joint positions, shape (n_joints,), NaN where unknown
    action_age_s: float = 0.0  # time since the observation was returned; 0 in lockstep
    latency_s: float = 0.0  # time since the observation was frozen; 0 in lockstep
    estops: InputStates = field(default_factory=dict)
    forces: Mapping[str, float] = field(default_factory=dict)  # sensor -> norm of its limited field
    clock_jump: str = ""  # `ClockStatus.jump` since the last action
    required: tuple[str, ...] = ()  # those of `sensors` that the policy requires in addition to the contract
    snapshot: Snapshot | None = None  # the readings that the agent acted on


@value_type(frozen=True, slots=True, kw_only=True)
class CommandState:
    """The last published command, with arrays of shape (n_joints,)."""

    positions: FloatArray  # joint commanded by velocity: the measured one, zero without position limits
    velocities: FloatArray
    seq: int
    epoch: int
    slack: FloatArray | None = None  # possible motion since that measurement, in the joint's unit; None: zero
    accelerations: FloatArray | None = None  # those of the last published command; None: none
    before_gap: FloatArray | None = None  # published velocities where a gap has lowered them (`safety.joint_limits`)


@value_type(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The report of one pass through the gates, flat over all joints in contract order."""

    disposition: Severity
    findings: tuple[Finding, ...]
    intervened: bool
    requested: FloatArray  # action units; NaN for a malformed action
    applied: FloatArray  # action units
    applied_si: FloatArray  # published positions in the joint's unit, or velocities in its unit/s
    velocity_si: FloatArray  # the resulting velocities
    dt_s: float
    guaranteed: Mapping[str, bool]


@value_type(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Approved points, one control period apart.

    A controller moves between them in straight lines. They are the reference of the command, to which the controller is
    moving already, the command, `previewed` further actions, and braking to rest.
    """

    points: tuple[CommandState, ...]
    first_ns: int  # when the first is due, steady clock
    previewed: int


@value_type(frozen=True, slots=True, kw_only=True)
class ApprovedCommand:
    """A command that passed the gate, and the only one that can be sent.

    Only `embodied_env.safety.gate` creates it. `values` are positions, or velocities of joints and axes commanded by
    velocity, flat over all joints in contract order. `seq` strictly increases over the life of an arbiter.
    """

    values: FloatArray
    seq: int
    epoch: int
    report: GateReport
    trajectory: Trajectory | None = None  # for controllers that interpolate (`trajectory_steps`)


def check_approved(command: object) -> None:
    """Raise TypeError unless `command` is approved, as every `send` does first."""
    if not isinstance(command, ApprovedCommand):
        raise TypeError(f"invalid command: {type(command).__name__} (expected an ApprovedCommand)")


@value_type(frozen=True, slots=True, kw_only=True)
class SentCommand:
    """The values that a backend sent for an approved command, shape (n_joints,)."""

    seq: int
    values: FloatArray
    report: GateReport | None = None  # report of the relay's gate, if it decided last
    command: ApprovedCommand | None = None  # as written, if a delay changed it (`Arbiter.delay`)
    published_ns: int | None = None  # steady clock; None: when `send` returned
    annotations: Mapping[str, Any] = field(default_factory=dict)  # accounts by name, in JSON types


@value_type(frozen=True, slots=True, kw_only=True)
class ActionChunk:
    """An action chunk, in the step in which it takes effect."""

    id: int  # number in its episode, counted from 0
    born: int  # step whose observation it was computed from; the reset is 0
    actions: FloatArray  # shape (n, n_joints), in contract order; the first is for the step after `born`


CHUNK = "chunk"  # name in ``info["annotations"]`` of the account of an action chunk
OWN_ANNOTATIONS = ("action_stages", "grippers", "instruction", "setpoints", "trajectory")
"""Names in ``info["annotations"]`` that only the environment itself writes."""


@value_type(frozen=True, slots=True, kw_only=True)
class WriteDelay:
    """A delay of a write on a free-running backend that changed the command or its guarantees."""

    passed_s: float = 0.0  # since the time step of the command was computed
    reference: CommandState | None = None  # braking from it was written instead; None: the command itself
    dt_s: float = 0.0  # time step of that braking
    is_guaranteed: bool = True  # the acceleration; False: this write, or the one before, took longer than a period


@value_type(frozen=True, slots=True, kw_only=True)
class ExternalInputs:
    """Inputs of a step that do not follow from actions and readings, recorded for replay."""

    safety_context: SafetyContext  # the context of the gate
    latched: Finding | None = None  # the latched finding before the step
    latched_after: Finding | None = None
    watchdog_trips: int = 0  # since the environment was created
    dt_s: float = 0.0  # time since `reference`
    reference: CommandState | None = None  # the last published command; None: lockstep, it follows from earlier steps
    answer: GateReport | None = None  # report of the relay's gate, if it decided last
    limits: EffectiveLimits | None = None  # those in force after `change_limits`
    delay: WriteDelay | None = None  # delay of the command
    annotations: Mapping[str, Any] = field(default_factory=dict)  # accounts of `annotate` by name, in JSON types
    chunk: ActionChunk | None = None  # the chunk that takes effect in this step
    instruction: str = ""  # the prompt


@value_type(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The task's verdict on a step, whose fields may hold at once."""

    success: bool = False
    failure: str = ""
    out_of_bounds: str = ""

    @staticmethod
    def running() -> Verdict:
        """The episode goes on."""
        return Verdict()

    @staticmethod
    def succeeded() -> Verdict:
        """Return the verdict that the goal was reached, which terminates the episode."""
        return Verdict(success=True)

    @staticmethod
    def failed(why: str) -> Verdict:
        """Return the verdict that the task can no longer be solved, which terminates the episode."""
        return Verdict(failure=why)


@value_type(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Reward, verdict and explanatory terms of one step."""

    reward: float
    verdict: Verdict
    terms: Mapping[str, float]


@value_type(frozen=True, slots=True, kw_only=True)
class Transition:
    """One step, with the five values that Gymnasium returns and the record behind them."""

    observation: Mapping[str, NDArray[Any]]
    action: Any  # the argument of `step`, after the action stages
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    end_reasons: tuple[str, ...]  # all that applied; ``info["end_reason"]`` is the first
    report: GateReport
    stamps_ns: Mapping[str, int]  # stamps of the ledger, steady clock
    snapshot: Snapshot  # the world as it was read
    external_inputs: ExternalInputs

    @property
    def result(self) -> tuple[Mapping[str, NDArray[Any]], float, bool, bool, Mapping[str, Any]]:
        """The five values that `step` returns."""
        return self.observation, self.reward, self.terminated, self.truncated, self.info


@runtime_checkable
class Observer(Protocol):
    """Receives each transition, a foreign one a copy, and may end the step by an error."""

    def observe(self, transition: Transition) -> None:
        """Process one transition."""


def field_values(value: DataclassInstance) -> dict[str, Any]:
    """Return the fields by name in order of declaration, which are no copies as in `asdict`."""
    return {each.name: getattr(value, each.name) for each in fields(value)}
