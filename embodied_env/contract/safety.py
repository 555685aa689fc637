"""The part of a contract that says how careful the safety gate is. Field names are the YAML keys under ``safety``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from embodied_env.contract.frozen import freeze
from embodied_env.contract.workspace import WorkspaceSpec


@dataclass(frozen=True, kw_only=True)
class Margins:
    """How far inside the joint limits the commands stay."""

    position: float = 0.02  # inset at both ends, in the joint's unit
    velocity: float = 0.95  # fraction of the limit that is used
    acceleration: float = 0.9  # fraction of the limit that is used, braking included


@dataclass(frozen=True, kw_only=True)
class Nonfinite:
    """What a malformed action (NaN, infinite, wrong shape or type) leads to: HOLD, then STOP."""

    stop_after: int = 3  # malformed actions in a row that make a STOP


@dataclass(frozen=True, kw_only=True)
class WatchdogSpec:
    """When the in-process watchdog acts, in control periods without a step. Only in free-running worlds."""

    hold_steps: int = 2
    stop_steps: int = 10


@dataclass(frozen=True, kw_only=True)
class ObservationAge:
    """Which sensors must be valid, and younger than their ``max_age_s``, for an action to count: else HOLD, then STOP.

    `required` None: the sensors that report the positions of the commanded joints. `future_tolerance_s` is how far a
    stamp may be ahead of now in a free-running world, where a clock is read twice; in lockstep nothing is.
    `require_stamp` false: a robot's message without a stamp counts from its publication, or from its arrival.
    """

    required: tuple[str, ...] | None = None
    stop_steps: int = 10  # steps of HOLD in a row that make a STOP
    future_tolerance_s: float = 0.005
    require_stamp: bool = True


@dataclass(frozen=True, kw_only=True)
class ActionAge:
    """How long after its observation was returned an action still counts. Only in free-running worlds."""

    max_age_steps: int = 2


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """How far a joint may be from where it was sent, before HOLD and then STOP.

    `tolerance` is a share of the range of the joint's position limits; of a joint without, of a turn or of a metre.
    """

    tolerance: float = 0.05
    delay_steps: int = 2  # a joint may be where any of so many commands before the last sent it
    debounce_steps: int = 3  # steps in a row before HOLD
    stop_steps: int = 10  # steps in a row before STOP


@dataclass(frozen=True, kw_only=True)
class LatencyBudget:
    """How long from the observation to the command, s. So many misses of so many steps are told, or HOLD."""

    budget_s: float | None = None
    misses: int = 3
    window_steps: int = 10
    action: Literal["warn", "hold"] = "warn"


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """Which share of the last steps the gate may change before it is told, or makes a STOP."""

    window_steps: int = 50
    warn_share: float = 0.5
    stop_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class ForceLimit:
    """The largest length of a field of a sensor, in its unit: beyond it STOP."""

    field: str
    limit: float


@dataclass(frozen=True, kw_only=True)
class Safety:
    """The safety gate's settings.

    `urdf` is a file, relative to the contract's folder: the tighter of its limits and the contract's hold, and the
    workspace takes its shape (else that of the MuJoCo model of a profile). `gates`: those of third parties, by name,
    each with its parameters.
    """

    mode: Literal["enforce", "monitor"] = "enforce"
    margins: Margins = field(default_factory=Margins)
    nonfinite: Nonfinite = field(default_factory=Nonfinite)
    watchdog: WatchdogSpec = field(default_factory=WatchdogSpec)
    observation: ObservationAge = field(default_factory=ObservationAge)
    action: ActionAge = field(default_factory=ActionAge)
    tracking: Tracking | None = field(default_factory=Tracking)
    latency: LatencyBudget = field(default_factory=LatencyBudget)
    intervention: Intervention = field(default_factory=Intervention)
    forces: Mapping[str, ForceLimit] = field(default_factory=dict)
    urdf: str | None = None
    workspace: WorkspaceSpec | None = None
    gates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        freeze(self, "forces", "gates")
