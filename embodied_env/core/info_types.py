"""Define the keys of ``info``, from which schema and documentation are generated.

`TransitionBuilder` writes them as literals, which mypy checks. The schema of rows, `NumericInfo` and the info page of
the site follow from them. Keys that are not required depend on backend, clock or options.

In an annotation a string is the description, `Keywords` are those of JSON Schema and `dtype`, `shape`, `codes`,
`gates`, `kinds`, `host` and, only over a middleware, `transport`. `Shared` names a definition that several keys refer
to; a string after `Shared` describes that key only.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.key_types import WholeNumber
from embodied_env.contract.typed_values import From, Keywords, Shared
from embodied_env.core.code_table import CODES, END_CODES, GATES
from embodied_env.core.code_types import END_REASONS, Quality, Severity
from embodied_env.core.types import Confirmation, Routine, SuspectClock, World


def coded(codes: Mapping[str, int]) -> Keywords:
    """Return the keywords of a number with one of these codes."""
    return Keywords(enum=list(codes.values()), codes=dict(codes))


COUNT = Keywords(minimum=0)
OR_NULL = Keywords(type=["number", "null"])  # null: NaN in memory
HOST = Keywords(host=True)  # not simulated time: in lockstep only with host_timing

Name = Annotated[str, Keywords(pattern="^[a-z][a-z0-9_]*$")]
QualityCode = Annotated[int, "How reliable a value is.", coded({q.name: q.value for q in Quality}), Shared("quality")]

_HOST_STAGE = Keywords(host=True, minimum=0, maximum=1_000_000_000)  # s
_HOST_OF_SOME = Keywords(host=True, optional=True)  # not of every world

Duration = Annotated[float, "In s. Negative: two clocks disagree, and the quality is NEGATIVE.", Shared("duration")]
DurationOrLost = Annotated[
    float,
    "In s. Negative: two clocks disagree, and the quality is NEGATIVE. null: the quality is UNKNOWN.",
    OR_NULL,
    Shared("duration_or_lost"),
]
Durations = dict[Name, Duration]
DurationsOrLost = dict[Name, DurationOrLost]
Qualities = Annotated[dict[Name, QualityCode], "Per sensor."]


class InjectedInfo(TypedDict):
    """Delays of `delay_profile` in the own time of a lockstep world, never in measured stages."""

    age_s: Annotated[Durations, "Age of the readings that this step's command is based on, when they were returned."]
    inference_s: Annotated[DurationOrLost, "From then until the command was sent; null: the world was lost."]
    actuation_s: Annotated[DurationOrLost, "From then until it acts."]
    data_age_s: Annotated[DurationsOrLost, "Acquired -> command sent."]
    end_to_end_s: Annotated[NotRequired[DurationOrLost], "Data age of the primary sensor plus the actuation."]


class ClockInfo(TypedDict):
    """The clocks of a free-running world (docs/concepts/clocks.md)."""

    mode: Annotated[Literal["wall", "sim"], "The clock of the stamps."]
    epoch: Annotated[int, "How often the clock was set since the connection.", COUNT]
    jumps: Annotated[int, "How often since the reset.", COUNT]
    rtf: Annotated[float, "Real-time factor of the world.", COUNT]
    offset_error_s: Annotated[float, "Error bound of the translation to the steady clock.", COUNT]
    rmw: Annotated[str, "The middleware."]


class InjectedQuality(TypedDict):
    """Quality of injected delays, FIRST while only the reading of the reset is old enough."""

    age_s: Qualities
    inference_s: QualityCode
    actuation_s: QualityCode
    data_age_s: Qualities
    end_to_end_s: NotRequired[QualityCode]


class LatencyQuality(TypedDict):
    """Quality codes of the stages, of which only values with code OK were measured as defined."""

    handoff_s: NotRequired[QualityCode]
    inference_s: NotRequired[QualityCode]
    policy_s: NotRequired[QualityCode]
    gate_s: NotRequired[QualityCode]
    publish_s: NotRequired[QualityCode]
    obs_to_command_s: NotRequired[QualityCode]
    world_s: NotRequired[QualityCode]
    render_s: NotRequired[QualityCode]
    period_s: NotRequired[QualityCode]
    capture_age_s: Qualities
    hold_s: NotRequired[Qualities]
    obs_skew_s: QualityCode
    obs_age_max_s: QualityCode
    transport_s: NotRequired[Qualities]
    queue_s: NotRequired[Qualities]
    driver_s: NotRequired[Qualities]
    transport_excess_s: NotRequired[Qualities]
    data_age_s: NotRequired[Qualities]
    jitter_s: NotRequired[QualityCode]
    overrun_s: NotRequired[QualityCode]
    actuation_s: NotRequired[QualityCode]
    end_to_end_s: NotRequired[QualityCode]
    injected: NotRequired[InjectedQuality]


class LatencyInfo(TypedDict):
    """The stages of this step, in s."""

    handoff_s: Annotated[
        NotRequired[float],
        "Observation frozen -> returned to the agent by step(), reset() or our wrappers around them.",
        _HOST_STAGE,
    ]
    inference_s: Annotated[
        NotRequired[float], "Returned to the agent -> step() entered: all of the agent's time.", _HOST_STAGE
    ]
    policy_s: Annotated[
        NotRequired[float],
        "Returned to the agent -> mark('policy'). Without a mark: until step() was entered, and the quality is "
        "UNMARKED.",
        _HOST_STAGE,
    ]
    gate_s: Annotated[NotRequired[float], "step() entered -> gates finished.", _HOST_STAGE]
    publish_s: Annotated[NotRequired[float], "Gates finished -> command sent.", _HOST_STAGE]
    obs_to_command_s: Annotated[
        NotRequired[float],
        "Observation frozen -> command sent: handoff + inference + gate + publish, exact in nanoseconds.",
        _HOST_STAGE,
    ]
    world_s: Annotated[NotRequired[float], "Command sent -> next observation frozen.", _HOST_STAGE]
    render_s: Annotated[
        NotRequired[float],
        "The part of world_s that was spent on rendering images of sensors, where the agent's process renders them "
        "during a step; null: the world was lost.",
        OR_NULL,
        _HOST_STAGE,
        _HOST_OF_SOME,
    ]
    period_s: Annotated[
        NotRequired[float],
        "step() entered -> step() entered. In the first step of an episode: since reset() returned, and the quality "
        "is FIRST.",
        _HOST_STAGE,
    ]
    capture_age_s: Annotated[Durations, "Age of the reading when the world was read, on the world's clock."]
    hold_s: Annotated[NotRequired[Durations], "Reading arrived -> observation frozen, on the steady clock.", HOST]
    obs_skew_s: Annotated[DurationOrLost, "Time between the oldest and the newest reading of this observation."]
    obs_age_max_s: Annotated[DurationOrLost, "Age of the oldest reading of this observation."]
    quality: LatencyQuality
    transport_s: Annotated[
        NotRequired[DurationsOrLost],
        "Published -> received, on the system clock, where the middleware stamps both; null: no stamp.",
        _HOST_OF_SOME,
    ]
    queue_s: Annotated[
        NotRequired[DurationsOrLost],
        "Received -> taken, on the system clock, where the middleware stamps it; null: no stamp.",
        _HOST_OF_SOME,
    ]
    driver_s: Annotated[
        NotRequired[DurationsOrLost],
        "Acquired -> published, where one clock stamps both. Only where sensors have their own clocks.",
    ]
    transport_excess_s: Annotated[
        NotRequired[DurationsOrLost],
        "Published -> received, less the shortest recent one: also known where the two clocks disagree.",
    ]
    data_age_s: Annotated[
        NotRequired[DurationsOrLost],
        "Acquired -> command of this step sent, for the readings that it is based on. Only in a free-running world.",
    ]
    jitter_s: Annotated[
        NotRequired[Duration], "Period minus control period; may be negative. Only in a free-running world."
    ]
    overrun_s: Annotated[
        NotRequired[Duration],
        "Delay of this step when it began to wait for its deadline; 0: in time. Only where steps are paced.",
    ]
    overruns: Annotated[NotRequired[int], "Steps of this episode that were too late for their deadline.", COUNT]
    missed_deadlines: Annotated[
        NotRequired[int], "Deadlines of this episode that passed before a step waited for them.", COUNT
    ]
    actuation_s: Annotated[
        NotRequired[DurationOrLost], "Command sent -> it acts, by the newest evidence since the last step; null: none."
    ]
    actuation_behind: Annotated[
        NotRequired[int],
        "The command of that evidence: 0 this step's, 1 the one before; -1: no evidence.",
        Keywords(minimum=-1),
    ]
    actuation_method: Annotated[
        NotRequired[int], "Kind of the evidence.", coded({"": 0, "echo": 1, "controller": 2, "declared": 3})
    ]
    end_to_end_s: Annotated[
        NotRequired[DurationOrLost],
        "Data age of the primary sensor (the first that an action needs) plus the actuation.",
    ]
    injected: NotRequired[InjectedInfo]
    clock: NotRequired[ClockInfo]


class ArrayReference(TypedDict):
    """Reference in a row to an array that is stored outside it (`embodied_env.record.arrays`)."""

    sha256: Annotated[str, Keywords(pattern="^[0-9a-f]{64}$")]
    dtype: Annotated[str, Keywords(minLength=1)]
    shape: list[WholeNumber]


def _nested_numbers(shape: list[str]) -> dict[str, Any]:
    """Return the schema of an array with the dtype of its message."""
    items: dict[str, Any] = {"type": "number"}
    for _ in shape[1:]:
        items = {"type": "array", "items": items}
    return {"type": "array", "items": items, "dtype": _MESSAGE_DTYPES, "shape": shape}


_MESSAGE_DTYPES = ["float64", "float32", "int64", "int32", "int8", "uint8"]
_NOT_EMPTY = Keywords(minLength=1)
_SHARE = Keywords(minimum=0, maximum=1)
_NUMBER = {"type": "number"}
PER_GATE = Keywords(minItems=len(GATES), maxItems=len(GATES), gates=list(GATES), shape=["n_gates"])
_ANY_END = "|".join(
    reason if reason in ("success", "horizon", "time_limit") else f"{reason}:.+" for reason in END_REASONS
)

SeverityCode = Annotated[int, "The reaction of a gate.", coded({s.name: s.value for s in Severity}), Shared("severity")]
SafetyCode = Annotated[int, "Why a gate reacted.", coded(CODES), Shared("code")]
EndReason = Annotated[
    str,
    "Why the episode ended: a kind, or kind:why. Empty while it runs. Of several, the first kind in this order.",
    Keywords(pattern=f"^({_ANY_END})?$", kinds=list(END_REASONS), codes=dict(END_CODES)),
    Shared("end_reason"),
]
_Vector = Annotated[NDArray[np.float64], From(list[float])]
_VectorOrNull = Annotated[NDArray[np.float64], From(list[float | None])]
_PER_JOINT, _PER_ACTUATOR_JOINT = Keywords(shape=["n_joints"]), Keywords(shape=["n_actuator_joints"])
Requested = Annotated[
    Annotated[_VectorOrNull, _PER_JOINT]
    | Annotated[dict[Name, Annotated[_VectorOrNull, _PER_ACTUATOR_JOINT]], "Per actuator."],
    "The action that the agent requested, in action units. null: the request had no number there.",
    Shared("requested"),
]
Applied = Annotated[
    Annotated[_Vector, _PER_JOINT] | Annotated[dict[Name, Annotated[_Vector, _PER_ACTUATOR_JOINT]], "Per actuator."],
    "The action that was applied, in action units.",
    Shared("applied"),
]
Values = Annotated[
    NDArray[np.float64],
    "A vector or a scalar.",
    Keywords(
        anyOf=[
            {"type": "array", "items": _NUMBER, "dtype": "float64", "shape": ["n_values"]},
            {"type": "number", "dtype": "float64", "shape": []},
        ]
    ),
    Shared("values"),
]
_Truth = Annotated[
    NDArray[Any],
    Keywords(
        anyOf=[
            _nested_numbers(["n_values"]),
            _nested_numbers(["n_rows", "n_columns"]),
            _nested_numbers(["height", "width", "channels"]),
        ]
    ),
]
Evaluator = Annotated[
    dict[Name, Annotated[dict[Name, _Truth], "Per field, with the dtype of its message."]],
    "Readings that the agent does not see: sensor -> field. Only with evaluator_info=True.",
    Shared("evaluator"),
]


class SensorInfo(TypedDict):
    """The reading of one sensor."""

    age_s: Annotated[float, "Acquired -> read, on the world's clock."]
    arrival_age_s: Annotated[NotRequired[float], "Arrived -> observation frozen, on the steady clock.", HOST]
    stamp_ns: Annotated[int, "Time of acquisition in ns since the reset, on the world's clock."]
    seq: Annotated[int, "Sequence number of the message."]
    lost: Annotated[int, "Messages lost since the previous step.", COUNT]
    duplicated: Annotated[int, "Duplicate messages since the previous step.", COUNT]
    reordered: Annotated[int, "Messages out of order since the previous step.", COUNT]
    quality: QualityCode
    stamp_quality: NotRequired[QualityCode]
    suspect_clock: Annotated[
        NotRequired[SuspectClock],
        "Clock that seems to stamp the messages: about 37 s (tai) or 18 s (gps) ahead of UTC, or more than 5 s off "
        "otherwise (epoch). Only where sensors may stamp by other clocks.",
    ]
    padded: Annotated[NotRequired[int], "Missing points of a cloud: they are at the contract's `points.pad`.", COUNT]
    suspect_motion: Annotated[
        NotRequired[str],
        "How the odometry of a base disagrees over the last second with its own pose, or with the applied velocities; "
        "empty: not at all, or the base stands. Only of a robot or world that moves by itself.",
    ]
    confidence: Annotated[
        NotRequired[float],
        "Probability that the position is within the contract's confidence_radius_m, from the covariance of the "
        "message. Only where the message has one that is valid: absent while it is unknown.",
        _SHARE,
    ]


class ActionInfo(TypedDict):
    """One vector over the joints, or one per actuator when there are several."""

    requested: Requested
    applied: Applied
    applied_si: Annotated[dict[str, Annotated[float, "rad or m"]], "Per joint, the published position in rad or m."]
    applied_driver: Annotated[
        NotRequired[dict[str, Annotated[float, "In the driver's unit."]]],
        "Per joint with `driver` in the contract, applied_si in the units of the message that its driver takes.",
    ]


class Guaranteed(TypedDict):
    """Limits that the published command provably keeps."""

    position: bool
    velocity: bool
    acceleration: bool
    jerk: bool
    workspace: bool


class WatchdogInfo(TypedDict):
    """The in-process watchdog."""

    trips: Annotated[int, "How often it has braked.", COUNT]


class SafetyInfo(TypedDict):
    """The result of the gates."""

    disposition: Annotated[SeverityCode, "The most severe of the gates."]
    intervened: Annotated[bool, "The gates replaced or limited the action."]
    severity: Annotated[
        NDArray[np.int8], "Per gate, the most severe of its findings.", From(list[SeverityCode]), PER_GATE
    ]
    code: Annotated[NDArray[np.int16], "Per gate, the code of that finding.", From(list[SafetyCode]), PER_GATE]
    joints: Annotated[
        dict[str, SafetyCode], "Per joint, the code of the most severe finding that names it, 0 without one."
    ]
    unmoved: Annotated[
        str, "Joints with a tracking error that have not moved since the reset, separated by commas; empty: none."
    ]
    guaranteed: Guaranteed
    dt_s: Annotated[float, "Time step of the limits in s."]
    latched: Annotated[bool, "A STOP or an ESTOP is latched."]
    watchdog: WatchdogInfo
    intervention_share: Annotated[float, "Share of steps changed by the gates, over the contract's window.", _SHARE]
    estop: Annotated[bool, "The disposition is ESTOP."]


class ResetDetails(TypedDict):
    """The result of the reset."""

    seed_applied: Annotated[int, "The seed of the world. -1: the world cannot be seeded.", Keywords(minimum=-1)]
    sampled: Annotated[
        dict[Name, Values], "Per reset option, the drawn or given value; the evaluator's only with evaluator_info=True."
    ]
    level: Annotated[str, "Level of the reset, e.g. task or world.", _NOT_EMPTY]
    routine: Annotated[Routine, "How a robot was moved to its start: by its reset service, by homing through the gate."]
    home_offset: Annotated[
        float, "Largest distance of a joint from home after homing, in rad or m. -1: no homing.", Keywords(minimum=-1)
    ]
    confirmed_by: Annotated[
        Confirmation, "How an operator confirmed that the episode may begin; empty: no confirmation was requested."
    ]
    options_ignored: Annotated[str, "Reset options that this world ignores, separated by commas; empty: none."]
    judged: Annotated[bool, "The task judged the reset snapshot; false: whether it was solved then is not known."]
    solved: Annotated[bool, "The reset snapshot already satisfies the task: the episode counts in no success rate."]
    duration_s: Annotated[NotRequired[float], "reset() entered -> its observation frozen, in s.", HOST, COUNT]
    sensors_verified: Annotated[int, "Sensors with a reading newer than the reset.", Keywords(minimum=1)]


class Origin(TypedDict):
    """The keys that never change in an environment."""

    wrapper_version: Annotated[str, "Version of the package, and name and version of the contract.", _NOT_EMPTY]
    contract: Annotated[str, "Fingerprint of the contract: SHA-256, hexadecimal.", Keywords(pattern="^[0-9a-f]{64}$")]
    backend: Annotated[str, "Name of the backend.", _NOT_EMPTY]
    world: Annotated[
        World, "World that the commands move: the robot emulator counts as no robot, and a dry run moves nothing."
    ]


class CommonInfo(Origin):
    """The keys of both calls."""

    episode_index: Annotated[int, "Episodes since the last seeded reset; the first is 0.", COUNT]
    instruction: Annotated[
        str,
        'Prompt of the policy: that of the contract, of `reset(options={"instruction": ...})` or of `instruct`; empty: '
        "none.",
    ]
    sensors: Annotated[
        dict[Name, Annotated[SensorInfo, Shared("sensor")]],
        "Per sensor. Those of the evaluator only with evaluator_info=True.",
    ]
    evaluator: NotRequired[Evaluator]


class StepInfo(CommonInfo):
    """info of step()."""

    latency_ms: Annotated[NotRequired[float], "Observation frozen -> command sent, in ms.", HOST, COUNT]
    action_clipped: Annotated[bool, "The applied action differs from the requested one."]
    step_index: Annotated[int, "Steps of this episode, this one included.", Keywords(minimum=1)]
    end_reason: EndReason
    is_success: Annotated[bool, "The episode ended with success."]
    action: ActionInfo
    safety: SafetyInfo
    latency: LatencyInfo
    task: Annotated[
        dict[str, Annotated[float, "In the task's own unit.", OR_NULL]],
        "The terms of the reward. null: nothing was judged, since the world was lost or the task failed.",
    ]
    annotations: Annotated[
        NotRequired[
            dict[Name, Annotated[dict[str, Any], Keywords(anyOf=[{"type": "object", "dtype": "dict", "shape": []}])]]
        ],
        "Accounts of this step: of `annotate`, such as `inference` of a policy server, and the environment's own, "
        "`setpoints`, `grippers`, and `instruction` with the prompt `before` a change. Only in such steps.",
    ]


class ResetInfo(CommonInfo):
    """info of reset()."""

    step_index: Annotated[Literal[0], "No step yet."]
    end_reason: Annotated[Literal[""], "The episode has not ended."]
    is_success: Annotated[Literal[False], "The episode has not ended."]
    reset: ResetDetails
