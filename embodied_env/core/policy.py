"""The protocol of a policy, of which there is one object per environment, slot or agent.

A policy returns one action, a chunk of actions, or `NoAction`. Every runner calls `reset` before each episode.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from numpy.typing import NDArray

from embodied_env.core.types import EpisodeStart
from embodied_env.errors import PolicyError, UsageError, described
from embodied_env.processes.signals import Terminated

Observation = Mapping[str, NDArray[Any]]

PolicyFunction = Callable[[Observation], Any]  # returns an action of the contract's action space
CHUNK_MODES = ("wait", "replace", "crossfade", "ensemble", "rtc")
"""Hand-over from one action chunk to the next; ``wait``: it is computed when the last one has ended."""

_MOST_CHARACTERS = 200  # length of a reason
_RESET = ("seed", "episode_index")
_RESET_FORM = "reset(*, seed, episode_index)"


@dataclass(frozen=True, slots=True)
class NoAction:
    """Passed to `step` instead of an action, so that the robot holds for one tick.

    The reason is recorded. After ``policy.max_missed`` in a row (in the contract) the episode is truncated with
    ``policy_lost:<reason>``.
    """

    reason: str

    def __post_init__(self) -> None:
        """Make the reason one printable line, since it may come from a server."""
        words = " ".join(str(self.reason).split())
        line = "".join(character if character.isprintable() else "?" for character in words[:_MOST_CHARACTERS])
        object.__setattr__(self, "reason", line.rstrip() or "no reason given")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyIdentity:
    """The identity of a policy in the manifest of a run."""

    name: str  # address
    format: str  # "built-in", "python", "onnx", "sb3", or that of a third party
    sha256: str | None = None  # hash of the model's file, or of the source of a Python policy
    library: str | None = None  # library that computes it, with its version
    policy_file: str | None = None  # file that maps its inputs and outputs
    policy_file_sha256: str | None = None  # hash of it and the data files that it names
    server: Mapping[str, Any] | None = None  # metadata of a policy server, in JSON types

    def as_mapping(self) -> dict[str, Any]:
        """Return the identity in JSON types, without `server` if there is none."""
        return {name: value for name, value in asdict(self).items() if name != "server" or value is not None}


@runtime_checkable
class Policy(Protocol):
    """Acts in one environment, slot or agent."""

    @property
    def identity(self) -> PolicyIdentity:
        """Name and version, for the manifest."""

    def reset(self, *, seed: int, episode_index: int) -> None:
        """Discard all state of the previous episode, such as a chunk, and seed the next one.

        Draw from a generator made of `seed`, because global ones, such as that of `numpy.random`, are not seeded.
        """

    def __call__(self, observation: Observation, /) -> Any:  # noqa: ANN401 - of the action space
        """Return the action for `observation`, a chunk of n actions (n, n_joints), or `NoAction`."""

    def close(self) -> None:
        """Free everything (idempotent)."""


@runtime_checkable
class BatchPolicy(Protocol):
    """A policy without state that computes the actions of many slots at once."""

    def act_batch(self, observations: Observation, mask: NDArray[np.bool_], /) -> Sequence[Any]:
        """Return the result for each row of `observations`, ignored where `mask` is False."""


@runtime_checkable
class StepObserver(Protocol):
    """A policy that needs the observation of every step, such as one with a history."""

    def observe(self, observation: Observation, /) -> None:
        """Receive the observation of a step in which an action of the last chunk is executed."""


@runtime_checkable
class SensingPolicy(Protocol):
    """A policy, or a model, that needs valid readings of its own inputs."""

    @property
    def required_sensors(self) -> Sequence[str]:
        """Sensors whose readings it takes, without those whose mask it may take."""


def find_required_sensors(policy: object) -> tuple[str, ...]:
    """Return the sensors that a policy or a model requires in addition to the contract."""
    return tuple(policy.required_sensors) if isinstance(policy, SensingPolicy) else ()


@runtime_checkable
class InstructedPolicy(Protocol):
    """A policy, or a model, that may take another prompt than that of its contract."""

    def instruct(self, instruction: str, /) -> bool:
        """Use this prompt from the next inference, or return False if the policy takes none.

        Raises UsageError for a policy that has another prompt, which it cannot change.
        """


@runtime_checkable
class AccountedPolicy(Protocol):
    """A policy, or a model, with an account of each inference, such as one on a policy server."""

    def take_account(self) -> Mapping[str, Any] | None:
        """Return the account of the inference since the last call, or None if there was none."""


@runtime_checkable
class PlayingPolicy(Protocol):
    """A policy or model that plays recorded episodes, and the name of its account in ``info``."""

    account_name: str

    @property
    def start(self) -> EpisodeStart | None:
        """The start of the episode of the last `reset`, or None if the policy plays nothing."""


def find_start(policy: object) -> EpisodeStart | None:
    """Return the start of the recorded episode that a policy plays, or None if it plays none."""
    return policy.start if isinstance(policy, PlayingPolicy) else None


def refuse_playback(policy: object, address: str, *, user: str) -> None:
    """Raise UsageError for a policy that plays a run, whose start `user` cannot reach."""
    if find_start(policy) is not None:
        problem = f"{address} plays a recorded run, and {user} cannot begin at its start"
        raise UsageError(f"{problem} (expected another policy); play it with evaluate --policy")


@runtime_checkable
class DrawingPolicy(Protocol):
    """A policy that draws its actions, such as ``random``."""

    def draw_from(self, space: gymnasium.Space[Any], /) -> None:
        """Draw the actions of the next episodes from the action space of the environment."""


def draw_from(policy: object, space: gymnasium.Space[Any]) -> None:
    """Make a policy draw from the action space of the environment, if it draws its actions."""
    if isinstance(policy, DrawingPolicy):
        policy.draw_from(space)


def find_account_name(policy: object) -> str:
    """Return the name of the account of a policy or a model in ``info["annotations"]``."""
    return policy.account_name if isinstance(policy, PlayingPolicy) else "inference"


@runtime_checkable
class BoundedPolicy(Protocol):
    """A policy, or a model, with a time limit of an inference, such as one on a policy server."""

    def bound_wait(self, limit_s: float, /) -> float:
        """Bound each inference after the first, unless the user has, and return the limit, s."""


@runtime_checkable
class ContinuingPolicy(Protocol):
    """A policy or model that may continue the chunk being executed by real-time chunking (RTC)."""

    @property
    def continues_chunks(self) -> bool:
        """Whether it can continue a chunk."""

    def continue_chunk(self, *, executed: int, delay: int) -> None:
        """Continue the last chunk, `executed` of it done and `delay` more expected, from now on."""


def find_continuing(policy: object) -> ContinuingPolicy | None:
    """Return a policy or a model that can continue a chunk, or None for one that cannot."""
    return policy if isinstance(policy, ContinuingPolicy) and policy.continues_chunks else None


@runtime_checkable
class ReservingPolicy(Protocol):
    """A policy or model whose chunks have a reserve of actions for a late next chunk."""

    @property
    def n_action_steps(self) -> int | None:
        """Number of actions of a chunk that are executed before the next, or None for all."""


def find_n_action_steps(policy: object) -> int | None:
    """Return the number of actions of a policy's chunk to execute, or None for all."""
    return policy.n_action_steps if isinstance(policy, ReservingPolicy) else None


class FunctionPolicy:
    """A callable as a policy, with its `close`, and `reset` with the arguments it takes."""

    def __init__(self, act: PolicyFunction, identity: PolicyIdentity) -> None:
        """Wrap `act`, or raise UsageError unless `reset` needs only seed and episode_index."""
        self._act, self.identity = act, identity
        self.n_action_steps: int | None = getattr(act, "n_action_steps", None)
        self.required_sensors: Sequence[str] = getattr(act, "required_sensors", ())
        self._takes = _reset_keywords(act, f"policy {identity.name!r}")

    def reset(self, *, seed: int, episode_index: int) -> None:
        """Reset the callable, if it can be reset."""
        if (reset := getattr(self._act, "reset", None)) is not None:
            given = {"seed": seed, "episode_index": episode_index}
            reset(**{name: given[name] for name in self._takes})

    def __call__(self, observation: Observation, /) -> Any:  # noqa: ANN401 - of the action space
        """Return what the callable returns."""
        return self._act(observation)

    def instruct(self, instruction: str, /) -> bool:
        """Pass a prompt to the callable, or return False if it takes none."""
        instruct = getattr(self._act, "instruct", None)
        return instruct is not None and instruct(instruction) is not False

    def close(self) -> None:
        """Close the callable, if it can be closed."""
        if (close := getattr(self._act, "close", None)) is not None:
            close()


def as_policy(policy: object, identity: PolicyIdentity | None = None) -> Policy:
    """Return `policy`, or a callable as one named by `identity` or itself, or raise UsageError."""
    label = "policy" if identity is None else f"policy {identity.name!r}"
    if isinstance(policy, type):
        raise UsageError(f"{label} is a class: {policy.__name__} (expected an object); write {policy.__name__}()")
    if isinstance(policy, Policy):
        if not isinstance(policy.identity, PolicyIdentity):
            raise UsageError(f"{label} has the identity {policy.identity!r:.80} (expected a PolicyIdentity)")
        if len(_reset_keywords(policy, label)) < len(_RESET):
            raise UsageError(f"{label} has a reset() without {' or '.join(_RESET)} (expected {_RESET_FORM})")
        return policy
    if not callable(policy):
        raise UsageError(f"{label} is not callable: {policy!r:.80} (expected a callable from observation to action)")
    name = getattr(policy, "__qualname__", type(policy).__qualname__)
    return FunctionPolicy(policy, identity or PolicyIdentity(name=f"{policy.__module__}:{name}", format="python"))


def _reset_keywords(policy: object, label: str) -> Sequence[str]:
    """Return which of seed and episode_index the `reset` of a policy takes."""
    try:
        parameters = inspect.signature(policy.reset).parameters.values() if hasattr(policy, "reset") else ()
    except (TypeError, ValueError):  # without a signature
        return _RESET
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return _RESET
    named = [each for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [e.name for e in parameters if e.default is e.empty and e.kind is not e.VAR_POSITIONAL]
    if wrong := [name for name in needed if name not in [e.name for e in named] or name not in _RESET]:
        raise UsageError(f"{label} has a reset() that needs {wrong[0]!r} (expected {_RESET_FORM}, or reset())")
    return [each.name for each in named if each.name in _RESET]


@contextmanager
def policy_errors(policy: str, where: str) -> Iterator[None]:
    """Raise any error of the policy, including `sys.exit`, as PolicyError."""
    try:
        yield
    except Terminated:
        raise
    except (Exception, SystemExit) as error:
        raise PolicyError(f"{policy} failed in {where}: {described(error)}") from error


def policy_seed(seed: int, episode_index: int) -> int:
    """Return the seed of a policy for one episode, below 2**32."""
    return int(np.random.SeedSequence((seed, episode_index)).generate_state(1)[0])
