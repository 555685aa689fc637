"""The keys of a contract file as frozen dataclasses, which `Contract` validates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Interval, Len, MinLen

from embodied_env.contract.actuator_schema import ActuatorSpec, FloatArray
from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.contract.key_types import Count, Name, Positive, Quantity, like
from embodied_env.contract.safety_schema import Safety
from embodied_env.contract.sensor_schema import SensorSpec
from embodied_env.errors import ContractError

SCHEMA = "embodied_env/1"

RESERVED = ("source", "text", "files", "trusted")  # fields of a `Contract` that are not keys of its file
PROVENANCE = ("robot", "override_robot_limits", "chosen", "confirmed", "unknown")  # origin of values, in no fingerprint
SHAPE = "safety.workspace"  # key of `Contract.files` for the robot's shape in a MuJoCo model
TIME_REMAINING, APPLIED_ACTIONS = "time_remaining", "applied_actions"  # observation keys that belong to no sensor
INSTRUCTION = "instruction"  # the reset option that sets the prompt of an episode
EACH_ITS_OWN = "each_its_own"  # the task of a team's world, never loaded: each robot has its own contract


@dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
    """The end of an episode by its length."""

    horizon_steps: Count  # maximum number of steps
    # `time_limit` truncates; `finite_horizon` terminates, and adds `time_remaining` to the observation
    kind: Literal["time_limit", "finite_horizon"] = "time_limit"


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """The action space, whose actions the gate converts to float64 once, which is exact."""

    # precision of the action space; bounds of float32 are rounded inwards
    dtype: Literal["float32", "float64"] = "float64"


@dataclass(frozen=True, kw_only=True)
class ResetOption:
    """A value that each reset draws by its seed, unless `reset(options=...)` sets it."""

    type: Literal["vector", "scalar"]  # lists or numbers
    low: Quantity | tuple[Quantity, ...] | None = None  # lower bound of the draw; not with `choice`
    high: Quantity | tuple[Quantity, ...] | None = None  # upper bound, above `low`; not with `choice`
    # `log_uniform`: its logarithm is uniform, for `low` above 0; `normal`: with `mean` and `std`, truncated to the
    # bounds; `choice`: one of `values`, each as probable
    distribution: Literal["uniform", "log_uniform", "normal", "choice"] = "uniform"
    mean: Quantity | tuple[Quantity, ...] | None = None  # `normal`: the mean before truncation, within the bounds
    std: Positive | tuple[Positive, ...] | None = None  # `normal`: the standard deviation before truncation
    # `choice`: numbers, or vectors of one length
    values: Annotated[tuple[Quantity | Annotated[tuple[Quantity, ...], MinLen(1)], ...], MinLen(1)] | None = None
    observed: bool = False  # the agent observes it under its name, constant in an episode, in every backend
    visibility: Literal["agent", "evaluator"] = "agent"  # `evaluator`: in `info` only with `evaluator_info=True`

    @property
    def low_array(self) -> FloatArray:
        """Lower bound of shape (n,) for a vector, or () for a scalar."""
        return np.array(self.low if self.values is None else np.min(self.values, axis=0), dtype=np.float64)

    @property
    def high_array(self) -> FloatArray:
        """Upper bound of shape (n,) for a vector, or () for a scalar."""
        return np.array(self.high if self.values is None else np.max(self.values, axis=0), dtype=np.float64)

    def allows(self, value: FloatArray) -> bool:
        """Return whether `value` has the shape and is in the support of the draw."""
        if value.shape != self.low_array.shape:
            return False
        if self.values is not None:
            return any(np.array_equal(value, each) for each in self.values)
        return bool(((self.low_array <= value) & (value <= self.high_array)).all())

    @property
    def support(self) -> str:
        """The values that `allows` accepts, for errors."""
        if self.values is not None:
            return f"one of: {', '.join(str(np.array(each).tolist()) for each in self.values)}"
        return f"shape {self.low_array.shape} from {self.low_array.tolist()} to {self.high_array.tolist()}"


@dataclass(frozen=True, kw_only=True)
class TaskSpec(FrozenFields):
    """The task's class or function, its instruction, and its own parameters."""

    # name of a task of this package or of another (entry point `embodied_env.tasks`), or a class or function:
    # `module:NAME`, or `FILE.py:NAME` relative to the contract
    type: Annotated[
        str,
        like(
            r"(([A-Za-z_][\w.]*|[^\0:]+\.py):)?[A-Za-z_]\w*",
            "the name of a task such as reach, or module:NAME or FILE.py:NAME of a class or function",
        ),
    ]
    parameters: Mapping[str, Any]  # in YAML, written next to `type`: the parameters of the class or function
    instruction: Annotated[str, Len(1, 1000)] | None = None  # prompt of a language-conditioned policy


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """The limits of a policy that may fail to answer in time."""

    # steps in a row without an action (`NoAction`) after which `policy_lost` truncates the episode
    max_missed: Count = 10


@dataclass(frozen=True, kw_only=True)
class RobotSource(FrozenFields):
    """The robot file that a contract was merged over (`contract.robot_files`)."""

    name: str
    sha256: str  # hex, of the file's text
    chosen: Mapping[str, str] = field(default_factory=dict)  # path -> reason: values without a source, still in force
    overridden: tuple[str, ...] = ()  # limits of the robot file that the contract loosens


@dataclass(frozen=True, kw_only=True)
class ContractFields(FrozenFields):
    """The fields of a contract, for validation, spaces and fingerprint."""

    name: Name  # name of the contract
    version: Count  # revision of the contract
    # time between steps, a whole number of the embedded model's timesteps
    control_period_s: Annotated[float, Interval(ge=1e-6, le=1e3)]
    episode: EpisodeSpec
    sensors: Annotated[Mapping[Name, SensorSpec], MinLen(1)]  # see [sensors](#sensors)
    actuators: Annotated[Mapping[Name, ActuatorSpec], MinLen(1)]  # see [actuators](#actuators)
    task: TaskSpec  # see [task](#task)
    action: ActionSpec = field(default_factory=ActionSpec)
    safety: Safety = field(default_factory=Safety)  # see [safety](#safety)
    policy: PolicySpec = field(default_factory=PolicySpec)
    reset_options: Mapping[Name, ResetOption] = field(default_factory=dict)  # see [reset options](#reset-options)
    # number of last applied actions in the observation, oldest first
    applied_actions: Annotated[int, Interval(ge=0, le=1000)] = 0
    # profiles by backend, see [backends](#backends)
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # keys of plug-ins by name, see [blocks](#blocks)
    blocks: Mapping[Name, Mapping[str, Any]] = field(default_factory=dict)
    # in the file: name or path of the robot file that the contract builds on, see [robot files](#robot-files)
    robot: RobotSource | None = None
    override_robot_limits: bool = False  # allow looser limits and safety settings than the robot file's
    # conservative values without a source, path -> reason, in addition to the robot file's; `contract init` writes them
    chosen: Mapping[str, str] = field(default_factory=dict)
    # paths of `chosen` values that were checked on the robot; also of limits, and of fields with the positions of
    # joints, that look like degrees and are not
    confirmed: tuple[str, ...] = ()
    # values of which a wrong one moves the robot wrongly, path -> question: `real` moves no robot until each is set and
    # its entry removed, and no option confirms them; `contract init` writes them
    unknown: Mapping[str, str] = field(default_factory=dict)
    source: str = field(default="", compare=False)  # the file it was read from
    text: str = field(default="", compare=False, repr=False)  # the YAML as written
    files: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """Contents of the named files at load time, by name; also that of the key `SHAPE`."""
    trusted: bool = field(default=True, compare=False, repr=False)
    """False for the contract of a run: none of the files it names is opened and its task is not imported."""

    @property
    def unconfirmed(self) -> Mapping[str, str]:
        """The reasons of the chosen values that are in force and not confirmed, by path."""
        return {path: reason for path, reason in self.all_chosen.items() if path not in self.confirmed}

    @property
    def all_chosen(self) -> Mapping[str, str]:
        """The reasons of the chosen values in force, of robot file and contract, by path."""
        return {**({} if self.robot is None else self.robot.chosen), **self.chosen}

    @property
    def fingers(self) -> Mapping[str, tuple[str, float]]:
        """The fingers that follow a gripper's joint, each with the joint and the multiplier."""
        return {
            finger: (joint, factor)
            for actuator in self.actuators.values()
            for joint in actuator.joints
            for finger, factor in actuator.mimic.items()
        }

    @cached_property
    def control_period_ns(self) -> int:
        """The control period in integer nanoseconds."""
        return round(self.control_period_s * 1e9)

    @cached_property
    def setpoints_per_step(self) -> int:
        """The number of setpoints in a control period, or 1 without `setpoint_rate_hz`."""
        rates_hz = {actuator.setpoint_rate_hz for actuator in self.actuators.values()} - {None}
        return max((round(rate_hz * self.control_period_s) for rate_hz in rates_hz if rate_hz is not None), default=1)

    @cached_property
    def trajectory_steps(self) -> int | None:
        """The most actions that follow the command in a trajectory, or None."""
        return next((a.trajectory_steps for a in self.actuators.values() if a.trajectory_steps is not None), None)

    def resolve_path(self, file: str) -> Path:
        """Return the path of a file that a trusted contract names, or raise ContractError."""
        if not self.trusted:
            problem = f"file not opened: {file!r}, named by the contract of a run; give the contract's own file instead"
            raise ContractError("", problem, source=self.source)
        return Path(self.source).parent / file

    def content_of(self, file: str) -> bytes:
        """Return a named file's content at load time, or raise ContractError if not read."""
        if file not in self.files:
            problem = f"content not known: {file!r} (expected one read with the contract); load the contract again"
            raise ContractError("safety.urdf", problem, source=self.source)
        return self.files[file]
