"""Define the keys of ``info``, from which schema and documentation are generated.

`TransitionBuilder` writes them as literals, which mypy checks. ``python tools/info.py`` writes ``info.schema.json``
from them, and the site its info page. Keys that are not required depend on backend, clock or options.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.codes import CODES, END_CODES, END_REASONS, Severity
from embodied_env.core.info_annotations import (
    COUNT,
    HOST,
    NUMBER_OR_NULL,
    OR_NULL,
    Items,
    Keywords,
    Name,
    QualityCode,
    Shared,
    coded,
)
from embodied_env.core.latency_info_types import LatencyInfo
from embodied_env.core.types import Confirmation, Routine, SuspectClock, World
from embodied_env.safety.findings import GATES


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
_PER_GATE = Keywords(minItems=len(GATES), maxItems=len(GATES), gates=list(GATES), shape=["n_gates"])
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
_PerJoint = Annotated[NDArray[np.float64], Keywords(items=_NUMBER, shape=["n_joints"])]
_PerActuatorJoint = Annotated[NDArray[np.float64], Keywords(items=_NUMBER, shape=["n_actuator_joints"])]
_PerJointOrNull = Annotated[NDArray[np.float64], Keywords(items=NUMBER_OR_NULL, shape=["n_joints"])]
_PerActuatorJointOrNull = Annotated[NDArray[np.float64], Keywords(items=NUMBER_OR_NULL, shape=["n_actuator_joints"])]
Requested = Annotated[
    _PerJointOrNull | Annotated[dict[Name, _PerActuatorJointOrNull], "Per actuator."],
    "The action that the agent requested, in action units. null: the request had no number there.",
    Shared("requested"),
]
Applied = Annotated[
    _PerJoint | Annotated[dict[Name, _PerActuatorJoint], "Per actuator."],
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


class Guaranteed(TypedDict):
    """Which limits the published command provably keeps."""

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
    severity: Annotated[NDArray[np.int8], "Per gate, the most severe of its findings.", Items(SeverityCode), _PER_GATE]
    code: Annotated[NDArray[np.int16], "Per gate, the code of that finding.", Items(SafetyCode), _PER_GATE]
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
    routine: Annotated[
        Routine,
        "How a robot was moved to its start: by its reset service, by homing through the gate.",
    ]
    home_offset: Annotated[
        float, "Largest distance of a joint from home after homing, in rad or m. -1: no homing.", Keywords(minimum=-1)
    ]
    confirmed_by: Annotated[
        Confirmation,
        "How an operator confirmed that the episode may begin; empty: no confirmation was requested.",
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
        World,
        "World that the commands move: the robot emulator counts as no robot, and a dry run moves nothing.",
    ]


class CommonInfo(Origin):
    """The keys of both calls."""

    episode_index: Annotated[int, "Episodes since the last seeded reset; the first is 0.", COUNT]
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
        "`setpoints` and `grippers`. Only in such steps.",
    ]


class ResetInfo(CommonInfo):
    """info of reset()."""

    step_index: Annotated[Literal[0], "No step yet."]
    end_reason: Annotated[Literal[""], "The episode has not ended."]
    is_success: Annotated[Literal[False], "The episode has not ended."]
    reset: ResetDetails
