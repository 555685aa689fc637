"""The frozen contract: what a robot-and-task promises, in one value.

Field names are the YAML keys (``docs/contract.md``). Values are checked by `embodied_env.contract.rules`, whoever
builds them; a `Contract` that exists is sound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

K = TypeVar("K")
V = TypeVar("V")
FloatArray = NDArray[np.float64]

SCHEMA = "embodied_env/1"

TIME_REMAINING = "time_remaining"
APPLIED_ACTIONS = "applied_actions"
"""Keys of the observation that are no sensor's."""


class FrozenDict(Mapping[K, V]):
    """A read-only mapping that keeps its order, pickles, copies and hashes. Between two of them order counts."""

    __slots__ = ("_data",)

    def __init__(self, data: Mapping[K, V]) -> None:
        """Copy `data`."""
        self._data = dict(data)

    def __getitem__(self, key: K) -> V:
        """Return the value of `key`."""
        return self._data[key]

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys in their written order."""
        return iter(self._data)

    def __len__(self) -> int:
        """Count the keys."""
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        """Compare like OrderedDict: with another FrozenDict in order, with any other mapping without."""
        if isinstance(other, FrozenDict):
            return list(self.items()) == list(other.items())
        return super().__eq__(other)

    def __hash__(self) -> int:
        """Hash the items, whatever their order, so that equal mappings hash alike."""
        return hash(frozenset(self._data.items()))

    def __repr__(self) -> str:
        """Look like a dict."""
        return repr(self._data)


def _frozen(value: Any) -> Any:  # noqa: ANN401 - any value of a contract
    """Return `value` with its mappings and lists made read-only, all the way down."""
    if isinstance(value, Mapping):
        return FrozenDict({key: _frozen(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    return value


def _freeze(instance: object, *names: str) -> None:
    for name in names:
        object.__setattr__(instance, name, _frozen(getattr(instance, name)))


@dataclass(frozen=True, kw_only=True)
class Episode:
    """How an episode ends by itself.

    ``time_limit``: after `horizon_steps` the episode is truncated, the task itself has no horizon.
    ``finite_horizon``: the horizon belongs to the task: it terminates, and the observation has ``time_remaining``.
    """

    horizon_steps: int
    kind: Literal["time_limit", "finite_horizon"] = "time_limit"


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """One field of a sensor message. `low` and `high` are scalars or, for a vector, one value each, in `unit`."""

    unit: str | tuple[str, ...]  # of joints that turn and slide, one for each
    low: float | tuple[float, ...]
    high: float | tuple[float, ...]
    joints: tuple[str, ...] | None = None
    shape: tuple[int, ...] | None = None  # where the message type does not fix it
    path: str | None = None  # where in the message it stands, e.g. pose.pose.position.x; None: the type's own field
    dtype: str | None = None  # of a field with a path; None: float64
    no_return: float | None = None  # what stands for +inf, a ray that met nothing; None: +inf makes the sample invalid
    nan: float | None = None  # what stands for NaN, a ray that measured nothing; None: NaN makes the sample invalid

    def units_by_joint(self) -> dict[str, str]:
        """Return the unit of each joint."""
        joints = self.joints or ()
        units = self.unit if isinstance(self.unit, tuple) else (self.unit,) * len(joints)
        return dict(zip(joints, units, strict=True))


@dataclass(frozen=True, kw_only=True)
class SensorSpec:
    """One sensor: a topic, its fields, and what is done when it is late."""

    topic: str
    type: str
    fields: Mapping[str, FieldSpec]
    max_age_s: float
    rate_hz: float = 0.0  # 0: due at every step; else due at multiples of 1/rate of simulated time since the reset
    on_gap: Literal["hold", "stop"] = "hold"
    timeline: Literal["header", "receive"] = "header"
    visibility: Literal["agent", "evaluator"] = "agent"
    mask: bool = False
    frame: str | None = None  # what header.frame_id must be; None: anything
    child_frame: str | None = None  # the same for child_frame_id
    encoding: str | None = None  # of an image
    confidence_radius_m: float = 0.1  # with a covariance: the confidence is the probability to be this near the truth

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        _freeze(self, "fields")


@dataclass(frozen=True, kw_only=True)
class JointLimits:
    """The limits of one joint or axis of a twist, in `unit`, unit/s and unit/s^2. `position` None: unlimited."""

    position: tuple[float, float] | None
    velocity: float
    acceleration: float
    deceleration: float | None = None  # None: the same as acceleration
    unit: Literal["rad", "m"] = "rad"


@dataclass(frozen=True, kw_only=True)
class Margins:
    """How far inside the joint limits the commands stay."""

    position: float = 0.02  # inset at both ends, in the joint's unit
    velocity: float = 0.95  # fraction of the limit that is used
    acceleration: float = 0.9  # fraction of the limit that is used, braking included


@dataclass(frozen=True, kw_only=True)
class EffectiveLimits:
    """Joint limits after margins, as arrays of shape (n_joints,), in the order of the actuator's joints.

    A continuous joint has position limits of -inf and +inf.
    """

    joints: tuple[str, ...]
    position_low: FloatArray
    position_high: FloatArray
    velocity: FloatArray
    acceleration: FloatArray
    deceleration: FloatArray


@dataclass(frozen=True, kw_only=True)
class ActuatorSpec:
    """One actuator topic. The order of `joints` is the order of the action. The joints of a twist are its axes."""

    topic: str
    type: str
    command: Literal["position", "position_delta", "velocity", "twist"]
    joints: Mapping[str, JointLimits]
    scale: Literal["normalized", "physical"] = "normalized"
    frame: str | None = None  # header.frame_id of its messages

    @property
    def is_velocity(self) -> bool:
        """Whether what is published are velocities; else they are positions."""
        return self.command in ("velocity", "twist")

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        _freeze(self, "joints")

    def limits(self, margins: Margins) -> EffectiveLimits:
        """Return the limits that the gate enforces."""
        joints = tuple(self.joints.values())
        low, high = zip(*(j.position or (-np.inf, np.inf) for j in joints), strict=True)
        decelerations = [j.acceleration if j.deceleration is None else j.deceleration for j in joints]
        return EffectiveLimits(
            joints=tuple(self.joints),
            position_low=np.array(low, dtype=np.float64) + margins.position,
            position_high=np.array(high, dtype=np.float64) - margins.position,
            velocity=np.array([j.velocity for j in joints], dtype=np.float64) * margins.velocity,
            acceleration=np.array([j.acceleration for j in joints], dtype=np.float64) * margins.acceleration,
            deceleration=np.array(decelerations, dtype=np.float64) * margins.acceleration,
        )


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
class Safety:
    """The safety gate's settings."""

    mode: Literal["enforce", "monitor"] = "enforce"
    margins: Margins = field(default_factory=Margins)
    nonfinite: Nonfinite = field(default_factory=Nonfinite)
    watchdog: WatchdogSpec = field(default_factory=WatchdogSpec)


@dataclass(frozen=True, kw_only=True)
class ResetOption:
    """A value that each reset draws uniformly from [low, high] by its seed, unless `reset(options=...)` sets it."""

    type: Literal["vector", "scalar"]
    low: float | tuple[float, ...]
    high: float | tuple[float, ...]
    visibility: Literal["agent", "evaluator"] = "agent"  # evaluator: what was drawn is not in info["reset"]["sampled"]

    @property
    def low_array(self) -> FloatArray:
        """Lower bound: shape (n,) for a vector, () for a scalar."""
        return np.array(self.low, dtype=np.float64)

    @property
    def high_array(self) -> FloatArray:
        """Upper bound: shape (n,) for a vector, () for a scalar."""
        return np.array(self.high, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """The task's class (``module:Class``) and its own parameters."""

    type: str
    parameters: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        _freeze(self, "parameters")


@dataclass(frozen=True, kw_only=True)
class Contract:
    """One robot-and-task: spaces, limits, timing, safety, task, and the profile of each backend."""

    name: str
    version: int
    control_period_s: float
    episode: Episode
    sensors: Mapping[str, SensorSpec]
    actuators: Mapping[str, ActuatorSpec]
    task: TaskSpec
    safety: Safety = field(default_factory=Safety)
    reset_options: Mapping[str, ResetOption] = field(default_factory=dict)
    applied_actions: int = 0  # so many of the last applied actions are in the observation, oldest first
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    source: str = field(default="", compare=False)  # where it was read from
    text: str = field(default="", compare=False, repr=False)  # the YAML as written

    def __post_init__(self) -> None:
        """Freeze the mappings and check every rule; raises ContractError."""
        from embodied_env.contract.rules import check  # noqa: PLC0415 - rules read the model

        _freeze(self, "sensors", "actuators", "reset_options", "backends")
        check(self)

    @cached_property
    def control_period_ns(self) -> int:
        """The control period in integer nanoseconds."""
        return round(self.control_period_s * 1e9)

    @cached_property
    def observation_space(self) -> spaces.Dict:
        """The agent's observation: a flat Dict of Boxes, from the contract alone."""
        from embodied_env.contract.spaces import observation_space  # noqa: PLC0415

        return observation_space(self)

    @cached_property
    def action_space(self) -> spaces.Box | spaces.Dict:
        """The action: one Box, or a Dict of Boxes by actuator when there are several."""
        from embodied_env.contract.spaces import action_space  # noqa: PLC0415

        return action_space(self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of everything that gives a result its meaning; the backend profile is not in it."""
        from embodied_env.contract.fingerprint import contract_fingerprint  # noqa: PLC0415

        return contract_fingerprint(self)

    def backend_fingerprint(self, backend: str) -> str:
        """SHA-256 (hex) of the profile of `backend` in this contract."""
        from embodied_env.contract.fingerprint import backend_fingerprint  # noqa: PLC0415

        return backend_fingerprint(self, backend)
