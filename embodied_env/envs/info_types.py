"""Types of ``info``: the one definition of its keys, from which schema and documentation are generated.

``python .ci/info.py`` writes ``info.schema.json`` and ``docs/info.md`` from these types. In an annotation a text is the
description, `Keywords` are those of JSON Schema, `Shared` names a definition that several keys refer to; a text after
`Shared` describes the key alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.codes import CODES, END_REASONS, Quality, Severity
from embodied_env.safety.findings import GATES


@dataclass(frozen=True)
class Shared:
    """The type is a definition of the schema, by this name."""

    name: str


class Keywords:
    """Keywords of JSON Schema, and annotations of its own: `dtype`, `shape`, `codes`, `gates`, `kinds`."""

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - JSON types
        """Hold the keywords."""
        self.values = values


@dataclass(frozen=True)
class Items:
    """The type of each item of an array."""

    type: Any


def _coded(codes: Mapping[str, int]) -> Keywords:
    return Keywords(enum=list(codes.values()), codes=dict(codes))


def _nested_numbers(shape: list[str]) -> dict[str, Any]:
    """Return the schema of an evaluator's array, in the precision of its message."""
    items: dict[str, Any] = {"type": "number"}
    for _ in shape[1:]:
        items = {"type": "array", "items": items}
    return {"type": "array", "items": items, "dtype": _MESSAGE_DTYPES, "shape": shape}


_MESSAGE_DTYPES = ["float64", "float32", "int64", "int32", "int8", "uint8"]
_NOT_EMPTY = Keywords(minLength=1)
_COUNT = Keywords(minimum=0)
_SHARE = Keywords(minimum=0, maximum=1)
_STAGE = Keywords(minimum=0, maximum=1_000_000_000)  # s
_NUMBER = {"type": "number"}
_NUMBER_OR_NULL = {"type": ["number", "null"]}  # null: NaN in memory
_OR_NULL = Keywords(**_NUMBER_OR_NULL)
_PER_GATE = Keywords(minItems=len(GATES), maxItems=len(GATES), gates=list(GATES), shape=["n_gates"])
_ANY_END = "|".join(
    reason if reason in ("success", "horizon", "time_limit") else f"{reason}:.+" for reason in END_REASONS
)

Name = Annotated[str, Keywords(pattern="^[a-z][a-z0-9_]*$")]
QualityCode = Annotated[
    int, "What is known about a value.", _coded({q.name: q.value for q in Quality}), Shared("quality")
]
SeverityCode = Annotated[int, "How far a gate went.", _coded({s.name: s.value for s in Severity}), Shared("severity")]
SafetyCode = Annotated[int, "Why a gate fired.", _coded(CODES), Shared("code")]
EndReason = Annotated[
    str,
    "Why the episode ended: a kind, or kind:why. Empty while it runs. When several hold, the first of the kinds.",
    Keywords(pattern=f"^({_ANY_END})?$", kinds=list(END_REASONS)),
    Shared("end_reason"),
]
Duration = Annotated[float, "In s. Negative: two clocks disagree, and the quality is NEGATIVE.", Shared("duration")]
DurationOrLost = Annotated[
    float,
    "In s. Negative: two clocks disagree, and the quality is NEGATIVE. null: the quality is UNKNOWN.",
    _OR_NULL,
    Shared("duration_or_lost"),
]
Durations = dict[Name, Duration]
DurationsOrLost = dict[Name, DurationOrLost]
Qualities = Annotated[dict[Name, QualityCode], "Per sensor."]
Requested = Annotated[
    Annotated[NDArray[np.float64], Keywords(items=_NUMBER_OR_NULL, shape=["n_joints"])]
    | Annotated[
        dict[Name, Annotated[NDArray[np.float64], Keywords(items=_NUMBER_OR_NULL, shape=["n_actuator_joints"])]],
        "Per actuator.",
    ],
    "The action that the agent requested, in action units. null: the request had no number there.",
    Shared("requested"),
]
Applied = Annotated[
    Annotated[NDArray[np.float64], Keywords(items=_NUMBER, shape=["n_joints"])]
    | Annotated[
        dict[Name, Annotated[NDArray[np.float64], Keywords(items=_NUMBER, shape=["n_actuator_joints"])]],
        "Per actuator.",
    ],
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
Evaluator = Annotated[
    dict[
        Name,
        Annotated[
            dict[
                Name,
                Annotated[
                    NDArray[Any],
                    Keywords(
                        anyOf=[
                            _nested_numbers(["n_values"]),
                            _nested_numbers(["n_rows", "n_columns"]),
                            _nested_numbers(["height", "width", "channels"]),
                        ]
                    ),
                ],
            ],
            "Per field, in the precision of its message.",
        ],
    ],
    "The truth that the agent does not see: sensor -> field. Only with evaluator_info=True.",
    Shared("evaluator"),
]


class SensorInfo(TypedDict):
    """The account of one sensor's reading."""

    age_s: Annotated[float, "Acquired -> read, on the world's clock."]
    arrival_age_s: Annotated[float, "Arrived -> observation frozen, on the steady clock."]
    stamp_ns: Annotated[int, "When it was acquired, in ns since the reset, on the world's clock."]
    seq: Annotated[int, "Sequence number of the message."]
    lost: Annotated[int, "Messages lost since the previous step.", _COUNT]
    duplicated: Annotated[int, "Messages that arrived twice since the previous step.", _COUNT]
    reordered: Annotated[int, "Messages that arrived out of order since the previous step.", _COUNT]
    quality: QualityCode
    stamp_quality: NotRequired[QualityCode]
    suspect_clock: NotRequired[
        Annotated[
            Literal["", "tai", "gps", "epoch"],
            "Which clock the message seems to be stamped by: about 37 s (tai) or 18 s (gps) ahead of UTC, or more than "
            "5 s off otherwise (epoch). Only where sensors may stamp by clocks other than ours.",
        ]
    ]
    confidence: NotRequired[
        Annotated[
            float,
            "Probability that the position is within the contract's confidence_radius_m, from the covariance; null "
            "where that is unknown. Only where the message has one.",
            _OR_NULL,
            _SHARE,
        ]
    ]


class ActionInfo(TypedDict):
    """One vector over the joints, or one per actuator when there are several."""

    requested: Requested
    applied: Applied
    applied_si: Annotated[
        dict[str, Annotated[float, "rad or m"]], "Per joint, what was published: its position, in rad or m."
    ]


class Guaranteed(TypedDict):
    """Which limits the published command is known to keep."""

    position: bool
    velocity: bool
    acceleration: bool
    jerk: bool
    workspace: bool


class WatchdogInfo(TypedDict):
    """The in-process watchdog."""

    trips: Annotated[int, "How often it has braked.", _COUNT]


class SafetyInfo(TypedDict):
    """What the gates did."""

    disposition: Annotated[SeverityCode, "The most severe of the gates."]
    intervened: Annotated[bool, "The gates replaced or limited the action."]
    severity: Annotated[NDArray[np.int8], "Per gate, the most severe of its findings.", Items(SeverityCode), _PER_GATE]
    code: Annotated[NDArray[np.int16], "Per gate, why: the code of that finding.", Items(SafetyCode), _PER_GATE]
    guaranteed: Guaranteed
    dt_s: Annotated[float, "The time step that the limits were measured with, in s."]
    latched: Annotated[bool, "A STOP or an ESTOP is latched."]
    watchdog: WatchdogInfo
    intervention_share: Annotated[
        float, "Share of the last steps, over the contract's window, that the gates changed.", _SHARE
    ]
    estop: Annotated[bool, "The disposition is ESTOP."]


class InjectedInfo(TypedDict):
    """Delays put into a world that waits (delay_profile), in its own time; measured stages never include them."""

    age_s: Annotated[Durations, "Age of the readings that this step's command is based on, when they were handed out."]
    inference_s: Annotated[DurationOrLost, "From then until the command left; null: the world was lost."]
    actuation_s: Annotated[DurationOrLost, "From then until it acts."]
    data_age_s: Annotated[DurationsOrLost, "Acquired -> command left."]
    end_to_end_s: NotRequired[Annotated[DurationOrLost, "The data age of the primary sensor and the actuation."]]


class ClockInfo(TypedDict):
    """The clocks of a world that does not wait (docs/clocks.md)."""

    mode: Annotated[Literal["wall", "sim"], "Which clock stamps are of."]
    epoch: Annotated[int, "How often the clock was set since the connection.", _COUNT]
    jumps: Annotated[int, "How often since the reset.", _COUNT]
    rtf: Annotated[float, "Real-time factor of the world.", _COUNT]
    offset_error_s: Annotated[float, "How far the translation to our clock may be off.", _COUNT]
    rmw: Annotated[str, "The middleware."]


class InjectedQuality(TypedDict):
    """FIRST: no reading since the reset is old enough, so that of the reset is reported again."""

    age_s: Qualities
    inference_s: QualityCode
    actuation_s: QualityCode
    data_age_s: Qualities
    end_to_end_s: NotRequired[QualityCode]


class LatencyQuality(TypedDict):
    """A quality code for each stage above: only a value whose code is OK was measured as it is defined."""

    handoff_s: QualityCode
    inference_s: QualityCode
    policy_s: QualityCode
    gate_s: QualityCode
    publish_s: QualityCode
    obs_to_command_s: QualityCode
    world_s: QualityCode
    period_s: QualityCode
    capture_age_s: Qualities
    hold_s: Qualities
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
        float,
        "Observation frozen -> handed to the agent: by step() or reset(), or by a recorder once it has recorded.",
        _STAGE,
    ]
    inference_s: Annotated[float, "Handed to the agent -> step() entered: everything that the agent did.", _STAGE]
    policy_s: Annotated[
        float,
        "Handed to the agent -> mark('policy'). Not marked: until step() was entered, an upper bound, and the quality "
        "is UNMARKED.",
        _STAGE,
    ]
    gate_s: Annotated[float, "step() entered -> gates finished.", _STAGE]
    publish_s: Annotated[float, "Gates finished -> command left.", _STAGE]
    obs_to_command_s: Annotated[
        float,
        "Observation frozen -> command left: handoff + inference + gate + publish, exactly, in nanoseconds.",
        _STAGE,
    ]
    world_s: Annotated[float, "Command left -> next observation frozen.", _STAGE]
    period_s: Annotated[
        float,
        "step() entered -> step() entered. At the first step of an episode: since reset() returned, and the quality "
        "is FIRST.",
        _STAGE,
    ]
    capture_age_s: Annotated[Durations, "Age of the reading when the world was read, on the world's clock."]
    hold_s: Annotated[
        Durations, "Time between the arrival of the reading and the frozen observation, on the steady clock."
    ]
    transport_s: NotRequired[
        Annotated[
            DurationsOrLost,
            "Published -> received, on the system clock. Only where the middleware stamps both; null: no stamp.",
        ]
    ]
    queue_s: NotRequired[
        Annotated[
            DurationsOrLost,
            "Received -> taken, on the system clock. Only where the middleware stamps it; null: no stamp.",
        ]
    ]
    obs_skew_s: Annotated[DurationOrLost, "How far apart the readings of this observation were acquired."]
    obs_age_max_s: Annotated[DurationOrLost, "The age of the oldest reading of this observation."]
    driver_s: NotRequired[
        Annotated[
            DurationsOrLost,
            "Acquired -> published, where one clock stamps both. Only where sensors stamp by clocks of their own.",
        ]
    ]
    transport_excess_s: NotRequired[
        Annotated[
            DurationsOrLost,
            "Published -> received, less the quickest recent message: what is known where the two clocks do not agree.",
        ]
    ]
    data_age_s: NotRequired[
        Annotated[
            DurationsOrLost,
            "Acquired -> command of this step left, of the readings that it is based on. Only where the world does not "
            "wait.",
        ]
    ]
    jitter_s: NotRequired[
        Annotated[
            Duration,
            "The period, less the control period; may be negative. Only where the world does not wait.",
        ]
    ]
    overrun_s: NotRequired[
        Annotated[
            Duration,
            "How late this step began to wait for its deadline; 0: in time. Only where steps are paced.",
        ]
    ]
    overruns: NotRequired[Annotated[int, "Steps of this episode that were too late for their deadline.", _COUNT]]
    missed_deadlines: NotRequired[
        Annotated[int, "Deadlines of this episode that passed before a step waited for them.", _COUNT]
    ]
    actuation_s: NotRequired[
        Annotated[
            DurationOrLost,
            "Command left -> it acts, by the newest evidence since the last step; null: none.",
        ]
    ]
    actuation_behind: NotRequired[
        Annotated[
            int,
            "Which command that evidence is of: 0 this step's, 1 the one before; -1: no evidence.",
            Keywords(minimum=-1),
        ]
    ]
    actuation_method: NotRequired[
        Annotated[int, "Kind of the evidence.", _coded({"": 0, "echo": 1, "controller": 2, "declared": 3})]
    ]
    end_to_end_s: NotRequired[
        Annotated[
            DurationOrLost,
            "The data age of the primary sensor (the first that an action needs) and the actuation.",
        ]
    ]
    injected: NotRequired[InjectedInfo]
    clock: NotRequired[ClockInfo]
    quality: LatencyQuality


class ResetDetails(TypedDict):
    """What the reset did."""

    seed_applied: Annotated[int, "The seed of the world. -1: the world cannot be seeded.", Keywords(minimum=-1)]
    sampled: Annotated[
        dict[Name, Values],
        "Per reset option, what was drawn or set; the evaluator's only with evaluator_info=True.",
    ]
    level: Annotated[str, "How deep the reset went, e.g. task or world.", _NOT_EMPTY]
    routine: Annotated[
        Literal["", "service", "home", "service+home"],
        "What moved a robot to its start: its reset service, homing through the gate.",
    ]
    confirmed_by: Annotated[
        Literal["", "prompt", "topic", "service"],
        "How an operator confirmed that the episode may begin; empty: no confirmation was requested.",
    ]
    options_ignored: Annotated[
        str, "The reset options that have no meaning in this world, separated by commas; empty: none."
    ]
    judged: Annotated[bool, "The task judged the reset snapshot; false: whether it was solved then is not known."]
    solved: Annotated[bool, "The reset snapshot already satisfies the task: the episode counts in no success rate."]
    duration_s: Annotated[float, "reset() entered -> its observation frozen, in s.", _COUNT]
    sensors_verified: Annotated[int, "Sensors whose reading is newer than the reset.", Keywords(minimum=1)]


class CommonInfo(TypedDict):
    """The keys of both calls."""

    wrapper_version: Annotated[str, "The version of the package, and name and version of the contract.", _NOT_EMPTY]
    contract: Annotated[
        str, "The fingerprint of the contract: SHA-256, hexadecimal.", Keywords(pattern="^[0-9a-f]{64}$")
    ]
    backend: Annotated[str, "The name of the backend.", _NOT_EMPTY]
    episode_index: Annotated[int, "Episodes since the last seeded reset; the first is 0.", _COUNT]
    sensors: Annotated[
        dict[Name, Annotated[SensorInfo, Shared("sensor")]],
        "Per sensor. Those of the evaluator only with evaluator_info=True.",
    ]
    evaluator: NotRequired[Evaluator]


class StepInfo(CommonInfo):
    """info of step()."""

    latency_ms: Annotated[float, "Observation frozen -> command left, in ms.", _COUNT]
    action_clipped: Annotated[bool, "The applied action differs from the requested one."]
    step_index: Annotated[int, "Steps of this episode, this one included.", Keywords(minimum=1)]
    end_reason: EndReason
    is_success: Annotated[bool, "The episode ended with success."]
    action: ActionInfo
    safety: SafetyInfo
    latency: LatencyInfo
    task: Annotated[
        dict[str, Annotated[float, "In the task's own unit.", _OR_NULL]],
        "The terms of the reward. null: the world was lost, nothing was judged.",
    ]


class ResetInfo(CommonInfo):
    """info of reset()."""

    step_index: Annotated[Literal[0], "No step was made yet."]
    end_reason: Annotated[Literal[""], "The episode has not ended."]
    is_success: Annotated[Literal[False], "The episode has not ended."]
    reset: ResetDetails
