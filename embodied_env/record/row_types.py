"""The rows of a run and its manifest, in JSON types.

`embodied_env.record.rows` writes rows, `embodied_env.record.row_schema` validates them. The six fields of a transition
are the values that the outermost wrapper received and returned, and ``inner`` is the account of the environment itself.
A reader distinguishes the kinds of rows by ``row["schema"]`` and by ``row["inner"] is None``, as mypy does.
"""

from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

from embodied_env.contract.key_types import WholeNumber
from embodied_env.contract.typed_values import OPEN, Keywords
from embodied_env.core.code_table import CODES, GATES
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.info_types import (
    PER_GATE,
    ActionInfo,
    ArrayReference,
    EndReason,
    Guaranteed,
    Name,
    ResetDetails,
    ResetInfo,
    SafetyCode,
    SafetyInfo,
    SeverityCode,
    StepInfo,
)
from embodied_env.core.types import Confirmation, Routine

TRANSITION: Final = "embodied_env/transition/1"
RESET: Final = "embodied_env/reset/1"
RUN = "embodied_env/run/1"
Row = dict[str, Any]  # a row that is written, whose values need not be in JSON types yet
SeverityName = Annotated[str, Keywords(enum=tuple(severity.name for severity in Severity))]
QualityName = Annotated[str, Keywords(enum=tuple(quality.name for quality in Quality))]
Numbers = list[float | None]
Sha256 = Annotated[str, Keywords(pattern="^[0-9a-f]{64}$")]
_NotEmpty = Keywords(minLength=1)
_Truth = dict[Name, dict[Name, list[float] | list[list[Any]] | ArrayReference]]


class ActionRecord(ActionInfo):
    """``info["action"]``, whose arrays are lists in JSON."""

    requested: Numbers | dict[Name, Numbers]  # type: ignore[misc] # an array in memory
    applied: list[float] | dict[Name, list[float]]  # type: ignore[misc] # an array in memory


class SafetyRecord(SafetyInfo):
    """``info["safety"]``, whose arrays are lists in JSON."""

    severity: Annotated[list[SeverityCode], PER_GATE]  # type: ignore[misc] # an array in memory
    code: Annotated[list[SafetyCode], PER_GATE]  # type: ignore[misc] # an array in memory


class StepRecord(StepInfo):
    """``info`` of a step in JSON types."""

    action: ActionRecord  # type: ignore[misc] # has lists for arrays
    safety: SafetyRecord  # type: ignore[misc] # has lists for arrays
    evaluator: NotRequired[_Truth]  # type: ignore[misc] # has lists for arrays


class ResetDetailsRecord(ResetDetails):
    """``info["reset"]`` in JSON types."""

    sampled: dict[Name, list[float] | float]  # type: ignore[misc] # arrays in memory


class ResetRecord(ResetInfo):
    """``info`` of a reset in JSON types."""

    reset: ResetDetailsRecord  # type: ignore[misc] # has lists for arrays
    evaluator: NotRequired[_Truth]  # type: ignore[misc] # has lists for arrays


class FindingRecord(TypedDict):
    """`embodied_env.core.types.Finding`."""

    gate: Annotated[str, Keywords(enum=GATES)]
    severity: SeverityName
    code: Annotated[str, Keywords(enum=tuple(CODES))]
    joints: list[str]
    before: Numbers | None
    after: Numbers | None
    limit: Numbers | None
    margin: Numbers | None
    detail: str


class ReportRecord(TypedDict):
    """`embodied_env.core.types.GateReport`, whose findings are those of the step."""

    requested: Numbers
    applied: Numbers
    applied_si: Numbers
    velocity_si: Numbers
    dt_s: float
    disposition: SeverityName
    guaranteed: Guaranteed


class AnswerRecord(ReportRecord):
    """The report of the relay's gate."""

    findings: list[FindingRecord]
    intervened: bool


class ReferenceRecord(TypedDict):
    """`embodied_env.core.types.CommandState`."""

    positions: Numbers
    velocities: Numbers
    seq: WholeNumber
    epoch: int
    slack: Numbers | None
    accelerations: Numbers | None
    before_gap: Numbers | None


class LimitsRecord(TypedDict):
    """`embodied_env.contract.EffectiveLimits` with null for unlimited."""

    joints: list[str]
    position_low: Numbers
    position_high: Numbers
    velocity: Numbers
    acceleration: Numbers
    deceleration: Numbers
    jerk: Numbers
    velocity_low: NotRequired[Numbers]


class DelayRecord(TypedDict):
    """`embodied_env.core.types.WriteDelay`."""

    passed_s: float
    reference: ReferenceRecord | None
    dt_s: float
    is_guaranteed: bool


class ChunkRecord(TypedDict):
    """`embodied_env.core.types.ActionChunk`, whose action i is for step ``born + 1 + i``."""

    id: WholeNumber
    born: WholeNumber
    actions: ArrayReference  # float64 of shape (n, n_joints), in contract order


class InputsRecord(TypedDict):
    """The part of `core.types.ExternalInputs` that does not follow from actions and readings."""

    action_age_s: float
    latency_s: float
    estops: dict[str, str]
    latched: FindingRecord | None
    latched_after: FindingRecord | None
    watchdog_trips: WholeNumber
    dt_s: float | None
    reference: ReferenceRecord | None
    answer: AnswerRecord | None
    annotations: NotRequired[dict[Name, dict[str, Any]]]
    chunk: NotRequired[ChunkRecord]
    limits: NotRequired[LimitsRecord]
    required: NotRequired[list[str]]
    delay: NotRequired[DelayRecord]
    instruction: str


class SampleRecord(TypedDict):
    """`embodied_env.core.types.Sample`, without its values."""

    stamp_ns: int
    header_ns: int | None
    arrival_ns: int
    arrival_system_ns: int | None
    source_ns: int | None
    received_ns: int | None
    quality: QualityName
    reason: str
    stamp_quality: QualityName
    transport_quality: QualityName
    transport_excess_s: float | None
    suspect_clock: str
    seq: int
    lost: int
    duplicated: int
    reordered: int
    confidence: NotRequired[float | None]
    raw_sha256: NotRequired[dict[Name, Sha256]]
    driver: NotRequired[dict[Name, Numbers]]  # values of converted fields in the driver's units


class ClockRecord(TypedDict):
    """`embodied_env.core.types.ClockStatus`."""

    mode: Literal["wall", "sim"]
    epoch: WholeNumber
    jumps: WholeNumber
    jump: Literal["", "stepped", "suspended", "rewound", "skipped"]
    offset_ns: int
    offset_error_ns: int
    rtf: float
    rmw: str


class ActuationRecord(TypedDict):
    """`embodied_env.core.types.ActuationEvidence`."""

    seq: WholeNumber
    acted_ns: int
    method: str


class InjectedRecord(TypedDict):
    """`embodied_env.core.types.InjectedDelays`."""

    inference_ns: WholeNumber
    actuation_ns: WholeNumber
    early: list[str]


class VerdictRecord(TypedDict):
    """`embodied_env.core.types.Verdict`."""

    success: bool
    failure: str
    out_of_bounds: str


class StampsRecord(TypedDict):
    """Stamps of the ledger, on the steady clock."""

    previous_entered: int
    previous_observed: int
    previous_returned: int
    marked: NotRequired[int]
    entered: int
    gated: int
    published: int
    observed: int


class SnapshotRecord(TypedDict):
    """`embodied_env.core.types.Snapshot`, and the values of the evaluator's sensors."""

    observation: Any
    now_ns: int
    sensors: dict[Name, SampleRecord]
    clock: ClockRecord | None
    injected: InjectedRecord | None
    evaluator: _Truth


class StepAccount(SnapshotRecord):
    """``inner`` of a step."""

    action: Any
    reward: float
    terminated: bool
    truncated: bool
    end_reasons: list[Annotated[EndReason, _NotEmpty]]
    findings: list[FindingRecord]
    stamps_ns: StampsRecord
    report: ReportRecord
    external_inputs: InputsRecord
    actuation: ActuationRecord | None


class ResetAccount(SnapshotRecord):
    """``inner`` of a reset."""

    level: Annotated[str, _NotEmpty]
    seed_applied: int | None
    sampled: dict[str, Any]
    details: dict[str, str]
    ignored: list[str]
    routine: Routine
    confirmed_by: Confirmation
    options: dict[str, Any]
    verdict: VerdictRecord | None
    instruction: str


class _Transition(TypedDict):
    schema: Literal["embodied_env/transition/1"]
    row: WholeNumber
    previous_sha256: NotRequired[Sha256]
    log_time_ns: NotRequired[WholeNumber]
    observation: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool


class TransitionRow(_Transition):
    """A step with an ``info`` that may have keys of wrappers."""

    info: Annotated[StepRecord, OPEN]
    inner: StepAccount


class OuterTransitionRow(_Transition):
    """A step that an outer wrapper made."""

    info: dict[str, Any]
    inner: None


class ReturnedRow(TypedDict):
    """The values that `step` returned, without an account, from elsewhere than a run."""

    schema: Literal["embodied_env/transition/1"]
    observation: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    info: Annotated[StepRecord, OPEN]
    inner: None


class _Reset(TypedDict):
    schema: Literal["embodied_env/reset/1"]
    row: WholeNumber
    previous_sha256: NotRequired[Sha256]
    log_time_ns: NotRequired[WholeNumber]
    seed: int | None
    options: dict[str, Any] | None
    observation: Any


class ResetRow(_Reset):
    """A reset with an ``info`` that may have keys of wrappers."""

    info: Annotated[ResetRecord, OPEN]
    inner: ResetAccount


class OuterResetRow(_Reset):
    """A reset that an outer wrapper made."""

    info: dict[str, Any]
    inner: None


StepRow = TransitionRow | ReturnedRow
RecordedTransition = TransitionRow | OuterTransitionRow
RecordedReset = ResetRow | OuterResetRow
RecordedRow = RecordedTransition | RecordedReset


class _ContractRecord(TypedDict):
    name: str
    source: str
    fingerprint: str
    text: str
    version: int
    robot: NotRequired[Any]


class _CapabilitiesRecord(TypedDict, total=False):
    actuates: bool
    emulated: bool
    simulated: bool
    chosen_confirmed: bool
    reset_levels: list[str]
    ignored_inputs: list[str]
    variants: list[str]
    injected: str


_Wrapper = TypedDict("_Wrapper", {"class": str, "kwargs": dict[str, Any] | None})


class _LossesRecord(TypedDict):
    complete: bool
    lost_rows: WholeNumber
    lost_messages: WholeNumber


class ChainRecord(TypedDict):
    """``chain`` of a manifest."""

    head: Sha256  # of the last row, or of the start without rows
    rows: WholeNumber
    resets: WholeNumber


class _RepairRecord(TypedDict):
    utc: str
    problem: str
    files: NotRequired[list[dict[str, Any]]]


class Manifest(TypedDict):
    """``manifest.json``, whose objects may have further keys."""

    schema: Literal["embodied_env/run/1"]
    run_id: str
    problem: str
    started_utc: str
    backend: str
    backend_fingerprint: str
    clock: str
    clean: bool
    ended_utc: str | None
    pacing: str | None
    rows_sha256: NotRequired[str | None]
    chain: NotRequired[Annotated[ChainRecord, OPEN] | None]
    contract: Annotated[_ContractRecord, OPEN]
    capabilities: Annotated[_CapabilitiesRecord, OPEN] | None
    task: NotRequired[Any]
    delays: dict[str, Any] | None
    scheduling: dict[str, Any] | None
    policy: Any
    seeds: list[Any]
    distributions: dict[str, Any]
    wrappers: Annotated[list[Annotated[_Wrapper, OPEN]], Keywords(minItems=1)]
    versions: dict[str, str | None]
    ros: dict[str, str | None]
    host: dict[str, Any]
    processes: list[dict[str, Any]]
    record: Annotated[_LossesRecord, OPEN] | None
    messages: bool
    flush_period_s: NotRequired[float]
    repaired: NotRequired[Annotated[list[Annotated[_RepairRecord, OPEN]], Keywords(minItems=1)]]
