"""Models with inputs and outputs of their own, and the policy that connects one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium.spaces import flatdim, flatten
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.bounded_files import read_file
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import (
    AccountedPolicy,
    BoundedPolicy,
    InstructedPolicy,
    NoAction,
    Observation,
    PolicyIdentity,
    find_account_name,
    find_continuing,
    find_n_action_steps,
    find_required_sensors,
    find_start,
)
from embodied_env.core.types import EpisodeStart
from embodied_env.errors import UsageError, described
from embodied_env.policies.normalization import Normalization
from embodied_env.safety.action_parsing import MalformedActionError, parse_action

Inputs = Mapping[str, NDArray[Any] | str]
"""Arrays without a batch axis, and texts such as an instruction, by the model's names."""

Outputs = Mapping[str, NDArray[Any]]
"""Arrays without a batch axis by the model's names: an action (n_joints,) or a chunk (n, n_joints)."""

FLAT = "the whole observation as one vector"
_REMEDY = "map others in a policy file"

MOST_DEVIATIONS = 6.0  # largest distance of an input from the statistics of its training, in standard deviations
MOST_OUTSIDE = 0.5  # largest distance of an action from its space, as a share of the width of the space
_MOST_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """An input or output of a model."""

    shape: tuple[int | None, ...]  # without the batch axis; None: any length
    dtype: np.dtype[Any]
    low: NDArray[Any] | None = None  # bounds of an action that the model never leaves, same shape
    high: NDArray[Any] | None = None

    def fits(self, shape: tuple[int | None, ...]) -> bool:
        """Return whether arrays of `shape` fit."""
        return len(shape) == len(self.shape) and all(a in (None, b) for a, b in zip(self.shape, shape, strict=True))


@runtime_checkable
class PolicyModel(Protocol):
    """Computes outputs from inputs, in its own units and under its own names.

    The specifications are None where they are not known before an inference, as of some servers.
    """

    identity: PolicyIdentity
    inputs: Mapping[str, ArraySpec] | None
    outputs: Mapping[str, ArraySpec] | None

    def reset(self, *, seed: int, episode_index: int) -> None:  # noqa: ARG002 - the default
        """Discard all state of the previous episode, if any, and seed the next one."""
        return

    def infer(self, inputs: Inputs, /) -> Outputs | NoAction:
        """Return the outputs for one observation, or why there is none."""

    def close(self) -> None:
        """Free what is not freed with the object (idempotent)."""
        return


@runtime_checkable
class BatchModel(PolicyModel, Protocol):
    """A model without state that computes many observations at once."""

    def infer_batch(self, rows: Sequence[Inputs], /) -> Sequence[Outputs]:
        """Return the outputs of each row."""


@runtime_checkable
class NormalizingModel(Protocol):
    """A model that normalises its inputs itself, by `normalizations` by name."""

    normalizations: Mapping[str, Normalization]


@runtime_checkable
class ContractModel(Protocol):
    """A model that may have been made for one contract, such as that of a policy server."""

    def check_contract(self, contract: Contract, /) -> None:
        """Raise UsageError unless the names of `contract` fit the inputs and outputs of the model."""


@runtime_checkable
class TimedModel(Protocol):
    """A model whose actions have a period of their own, such as those of a recorded run."""

    control_period_s: float


class Interface(Protocol):
    """Connects observations and actions of a contract with inputs and outputs of a model.

    Attributes:
        is_stateless: whether an action depends on the observation of its step alone.
        has_history: whether an action depends on the observations of the steps before.
        rows_per_step: actions of the model in a control period; None: they are relative to the observation, so that no
            chunk can be continued after another one.
        n_action_steps: number of actions of a chunk that are executed; None: that of the model.
        required_sensors: those that every action needs a valid reading of, in addition to the contract's.
    """

    is_stateless: bool
    has_history: bool = False
    required_sensors: Sequence[str] = ()
    rows_per_step: float | None = 1.0
    n_action_steps: int | None = None

    def check(self, model: PolicyModel, /) -> None:
        """Make one inference, and raise UsageError unless `model` has these inputs and outputs."""

    def identify(self, identity: PolicyIdentity, /) -> PolicyIdentity:
        """Return the identity of a model with that of the interface."""
        return identity

    def reset(self) -> None:
        """Discard all state of the previous episode, such as a history."""
        return

    def instruct(self, instruction: str, /) -> bool:  # noqa: ARG002 - the default
        """Use this prompt in the inputs from now on, or return False without an input for it."""
        return False

    def observe(self, observation: Observation, /) -> None:  # noqa: ARG002 - the default
        """Receive the observation of a step without an inference."""
        return

    def deviations(self, observation: Observation, /) -> list[tuple[str, float]]:  # noqa: ARG002 - the default
        """Return name and distance of each input from its statistics, in standard deviations."""
        return []

    def to_start(self, start: EpisodeStart, /) -> EpisodeStart:
        """Return the start of a recorded episode in the joints of the contract."""
        return start

    def to_inputs(self, observation: Observation, /) -> Inputs:
        """Return the model's inputs for an observation."""

    def to_action(self, outputs: Outputs, /) -> Any:  # noqa: ANN401 - of the action space
        """Return the action, the chunk or `NoAction` of the outputs for the last observation."""


class ArrayInterface(Interface):
    """Connects a model that maps keys of the observation to an action of the contract."""

    is_stateless = True

    def __init__(self, model: PolicyModel, contract: Contract) -> None:
        """Match inputs by name or size and the output with the action, or raise UsageError."""
        self._label, self._layout = f"policy {model.identity.name}", ActionLayout(contract)
        self._contract, self._space = contract, contract.observation_space
        self.inputs = {key: key for key in self._space.spaces} if model.inputs is None else self._match(model.inputs)

    def check(self, model: PolicyModel) -> None:
        """Make one inference, and raise UsageError for an output with other bounds than an action."""
        scale = self._layout.scale
        for name, spec in (model.outputs or {}).items():
            for bound, expected in ((spec.low, scale.low), (spec.high, scale.high)):
                if bound is not None and (bound.shape != expected.shape or not np.allclose(bound, expected, atol=1e-6)):
                    problem = f"output {name!r} has the bound {bound.tolist()}"
                    remedy = f"expected the action space {self._contract.action_space}); map it in a policy file"
                    raise UsageError(f"{self._label}: {problem} ({remedy}")
        check_inference(model, self, self._contract, label=self._label)

    def to_inputs(self, observation: Observation) -> Inputs:
        """Return the value of each input."""
        return {
            name: np.asarray(flatten(self._space, observation) if key == FLAT else observation[key])
            for name, key in self.inputs.items()
        }

    def to_action(self, outputs: Outputs) -> Any:  # noqa: ANN401 - of the action space
        """Return the action or chunk in the form of the action space, or `NoAction`."""
        if len(outputs) != 1:
            return NoAction(f"outputs {list(outputs)} (expected one, the action); {_REMEDY}")
        (answer,) = outputs.values()
        if answer.ndim not in (1, 2) or answer.shape[-1] != self._layout.size or not answer.size:
            joints = ", ".join(self._layout.joints)
            return NoAction(f"action of the shape {answer.shape} (expected ({self._layout.size},): {joints})")
        if answer.dtype.kind not in "fiu" or not np.isfinite(answer).all():
            return NoAction("action with values that are not finite numbers")
        return self._layout.as_action(answer)  # not clipped: the gate does, and reports it

    def _match(self, inputs: Mapping[str, ArraySpec]) -> dict[str, str]:
        found, shapes = {}, {key: space.shape or () for key, space in self._space.spaces.items()}
        for name, spec in inputs.items():
            if name in shapes:
                key, shape, parts = name, shapes[name], ""
            elif len(inputs) == 1:
                sizes = ", ".join(f"{key} {flatdim(space)}" for key, space in self._space.spaces.items())
                key, shape, parts = FLAT, (flatdim(self._space),), f": {sizes}; {_REMEDY}"
            else:
                expected = f"expected keys of the observation: {', '.join(shapes)}; {_REMEDY}"
                raise UsageError(f"{self._label}: unknown input {name!r} ({expected})")
            if not spec.fits(shape):
                problem = f"input {name!r} has the shape {spec.shape} (expected {shape}{parts})"
                raise UsageError(f"{self._label}: {problem}")
            found[name] = key
        return found


class ModelPolicy:
    """A model as a policy of a contract.

    Attributes:
        inputs: those of the last inference.
        observes_all: whether its caller passes the observation of every step, as `ChunkRunner` does.
    """

    def __init__(self, model: PolicyModel, interface: Interface) -> None:
        self.model, self.interface, self.identity = model, interface, interface.identify(model.identity)
        self.required_sensors = (*interface.required_sensors, *find_required_sensors(model))
        self.n_action_steps = interface.n_action_steps or find_n_action_steps(model)
        self.inputs: Inputs = {}
        self.observes_all = self._is_blind = False  # blind: a chunk is executed, and no step of it was observed

    def reset(self, *, seed: int, episode_index: int) -> None:
        """Discard the state of the interface and of the model."""
        self._is_blind = False
        self.interface.reset()
        self.model.reset(seed=seed, episode_index=episode_index)

    def instruct(self, instruction: str, /) -> bool:
        """Use this prompt as in `InstructedPolicy`, or that of a served model's contract."""
        if isinstance(self.model, InstructedPolicy):
            self.model.instruct(instruction)
        return self.interface.instruct(instruction)

    def __call__(self, observation: Observation, /) -> Any:  # noqa: ANN401 - of the action space
        """Return the action, the chunk or `NoAction` for `observation`.

        Raises UsageError for a flattened observation, and for a history without the steps in which the last chunk was
        executed.
        """
        if self._is_blind and not self.observes_all:
            problem = f"policy {self.identity.name!r}: its history lacks the steps of the last chunk"
            expected = "expected observe(observation) in each step without an inference"
            raise UsageError(f"{problem} ({expected}); call it, or run the policy in a ChunkRunner")
        if not isinstance(observation, Mapping):
            problem = f"policy {self.identity.name!r}: observation of type {type(observation).__name__}"
            raise UsageError(f"{problem} (expected the dict of the environment, without FlattenObservation)")
        self.inputs = self.interface.to_inputs(observation)
        outputs = self.model.infer(self.inputs)
        action = outputs if isinstance(outputs, NoAction) else self.interface.to_action(outputs)
        self._is_blind = self.observes_steps and not isinstance(action, NoAction)
        return action

    @property
    def observes_steps(self) -> bool:
        """Whether it must observe the steps in which a chunk is executed, for its history."""
        return self.interface.has_history and (self.n_action_steps or 1) > 1

    def observe(self, observation: Observation, /) -> None:
        """Receive the observation of a step in which an action of the last chunk is executed."""
        self._is_blind = False
        self.interface.observe(observation)

    def bound_wait(self, limit_s: float, /) -> float:
        """Bound the model's inferences (`BoundedPolicy`), or return 0.0 for one without a limit."""
        return self.model.bound_wait(limit_s) if isinstance(self.model, BoundedPolicy) else 0.0

    @property
    def continues_chunks(self) -> bool:
        """Whether the model can continue the chunk that is being executed."""
        return find_continuing(self.model) is not None and self.interface.rows_per_step is not None

    def continue_chunk(self, *, executed: int, delay: int) -> None:
        """Make the next inference continue the last chunk (`ContinuingPolicy`)."""
        model, rows = find_continuing(self.model), self.interface.rows_per_step
        if model is not None and rows is not None:
            model.continue_chunk(executed=int(executed * rows), delay=math.ceil(delay * rows))

    @property
    def account_name(self) -> str:
        """The name of the model's account (`PlayingPolicy`)."""
        return find_account_name(self.model)

    @property
    def start(self) -> EpisodeStart | None:
        """The recorded start, in joints of the contract, that the model plays, or None."""
        start = find_start(self.model)
        return None if start is None else self.interface.to_start(start)

    def take_account(self) -> Mapping[str, Any] | None:
        """Return the model's account of its last inference, if it has one."""
        return self.model.take_account() if isinstance(self.model, AccountedPolicy) else None

    def close(self) -> None:
        """Close the model."""
        self.model.close()


class BatchModelPolicy(ModelPolicy):
    """A model and an interface without state as a policy of many slots at once."""

    model: BatchModel

    def act_batch(self, observations: Observation, mask: NDArray[np.bool_], /) -> Sequence[Any]:
        """Return the action of each row where `mask` is True."""
        slots = np.flatnonzero(mask).tolist()
        rows = [{key: values[slot] for key, values in observations.items()} for slot in slots]
        answers = self.model.infer_batch([self.interface.to_inputs(row) for row in rows])
        found = dict(zip(slots, map(self.interface.to_action, answers), strict=True))
        return [found.get(slot) for slot in range(len(mask))]


def connect(model: PolicyModel, interface: Interface) -> ModelPolicy:
    """Return the policy of `model` by `interface`, with `act_batch` if neither has a state."""
    is_batched = isinstance(model, BatchModel) and interface.is_stateless
    return BatchModelPolicy(model, interface) if is_batched else ModelPolicy(model, interface)


def check_inference(model: PolicyModel, interface: Interface, contract: Contract, *, label: str) -> None:
    """Raise UsageError unless one inference gives an action for a plausible observation."""
    policy = ModelPolicy(model, interface)
    policy.reset(seed=0, episode_index=0)
    try:
        action = policy(plausible_observation(contract))
    except Exception as error:
        raise UsageError(f"{label}: inference of a plausible observation failed: {described(error)}") from error
    if isinstance(action, NoAction):
        raise UsageError(f"{label}: no action for a plausible observation: {action.reason}")
    interface.reset()


def plausible_observation(contract: Contract) -> dict[str, NDArray[Any]]:
    """Return a valid observation in the middle of the bounds, or near 0, without rotation."""
    found = {}
    for key, space in contract.observation_space.spaces.items():
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)  # type: ignore[attr-defined]
        with np.errstate(invalid="ignore"):  # infinite bounds
            middle = np.clip(np.nan_to_num((low + high) / 2, nan=0.0, posinf=0.0, neginf=0.0), low, high)
        if key.endswith("_orientation") and space.shape and space.shape[-1] == 4:
            middle[...] = (0.0, 0.0, 0.0, 1.0)
        found[key] = (high if key.endswith("_valid") else middle).astype(space.dtype)
    return found


def read_model(location: str, *, kind: str, most_bytes: int) -> tuple[bytes, str]:
    """Return content and SHA-256 of a model's file, or raise UsageError for an unusable one."""
    try:
        data = read_file(location, most_bytes=most_bytes)
    except OSError as error:
        raise UsageError(f"cannot read {kind} {location!r}: {error} (expected a file)") from None
    return data, hashlib.sha256(data).hexdigest()


def find_implausible(policy: object, contract: Contract, observation: Observation, actions: Sequence[Any]) -> list[str]:
    """Return a line for each input and joint beyond the limits right after a reset."""
    lines = [*_find_inputs(policy, observation), *_find_joints(contract, actions)]
    return lines[:_MOST_SHOWN] + ([f"and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else [])


def _find_inputs(policy: object, observation: Observation) -> Iterator[str]:
    if not isinstance(policy, ModelPolicy):
        return
    found = policy.interface.deviations(observation)
    for name, own in policy.model.normalizations.items() if isinstance(policy.model, NormalizingModel) else ():
        if (values := np.asarray(policy.inputs.get(name, own.first))).ndim == 1:
            found += [(f"{name}[{index}]", each) for index, each in enumerate(own.deviations(values).tolist())]
    for name, deviations in found:
        if not deviations <= MOST_DEVIATIONS:
            expected = f"expected at most {MOST_DEVIATIONS:g} in an observation of a reset"
            yield f"input {name} is {deviations:.3g} standard deviations away from its statistics ({expected})"


def _find_joints(contract: Contract, actions: Sequence[Any]) -> Iterator[str]:
    layout = ActionLayout(contract)
    low, high = layout.scale.low, layout.scale.high
    rows = []
    for action in actions:
        with suppress(MalformedActionError):  # the gate reports it
            rows.append(parse_action(action, layout))
    outside = np.array([np.maximum(low - row, row - high) for row in rows]).reshape(-1, layout.size)
    for index in np.flatnonzero((outside > MOST_OUTSIDE * (high - low)).any(axis=0)).tolist():
        value = rows[int(outside[:, index].argmax())][index]
        expected = f"expected {low[index]:g} to {high[index]:g}, and at most half of that width outside"
        yield f"action of {layout.joints[index]} is {value:.6g} ({expected})"
