"""Types of ``info["latency"]``; `envs.latency_info` writes it."""

from typing import Annotated, Literal, NotRequired, TypedDict

from embodied_env.core.info_annotations import COUNT, HOST, OR_NULL, Keywords, Name, QualityCode, Shared, coded

_HOST_STAGE = Keywords(host=True, minimum=0, maximum=1_000_000_000)  # s
_HOST_TRANSPORT = Keywords(host=True, transport=True)  # only over a middleware

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
    """Delays injected into a lockstep world (delay_profile), in its own time; measured stages never include them."""

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
    """FIRST: no reading since the reset is old enough, so the reading of the reset is returned again."""

    age_s: Qualities
    inference_s: QualityCode
    actuation_s: QualityCode
    data_age_s: Qualities
    end_to_end_s: NotRequired[QualityCode]


class LatencyQuality(TypedDict):
    """A quality code for each stage: only a value with code OK was measured as defined."""

    handoff_s: NotRequired[QualityCode]
    inference_s: NotRequired[QualityCode]
    policy_s: NotRequired[QualityCode]
    gate_s: NotRequired[QualityCode]
    publish_s: NotRequired[QualityCode]
    obs_to_command_s: NotRequired[QualityCode]
    world_s: NotRequired[QualityCode]
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
        _HOST_TRANSPORT,
    ]
    queue_s: Annotated[
        NotRequired[DurationsOrLost],
        "Received -> taken, on the system clock, where the middleware stamps it; null: no stamp.",
        _HOST_TRANSPORT,
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
