"""The wrapper `ActionChunks`, which executes chunks of actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector.utils import batch_space

from embodied_env.core.arguments import checked_count
from embodied_env.core.policy import NoAction
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import ResetNeededError, UsageError


class StepReturn(NamedTuple):
    """The result of one `step`."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ChunkResult:
    """The result of a chunk. Each action is in exactly one of `transitions`, `expired` and `unused`.

    Attributes:
        transitions: results of the executed actions, in order.
        expired: number of actions dropped because their step had already been taken.
        unused: number of actions left when the episode ended, or all of a rejected chunk.
        rejected: why nothing was executed: the chunk is for another epoch, or not due yet; empty if accepted.
    """

    transitions: tuple[StepReturn, ...] = ()
    expired: int = 0
    unused: int = 0
    rejected: Literal["", "epoch", "future"] = ""

    @property
    def ended(self) -> bool:
        """Whether the episode ended with the last transition."""
        return any(taken.terminated or taken.truncated for taken in self.transitions[-1:])


class ActionChunks(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Executes chunks of actions, each action by one `step` of the wrapped environment.

    Wrap it around `RecordTransitions`, whose rows are steps, and around every wrapper that changes single actions.
    Step k sets ``info["step_index"]`` to k, so the first action after a reset is for step 1. ``env.unwrapped.epoch``
    and ``env.unwrapped.step_index`` are the present episode and step.

    Every action of a chunk is judged separately. A malformed one makes the robot brake for its step, and a chunk that
    cannot be split (not a sequence, or for `step` not of `length` actions) counts as one malformed action. `NoAction`
    in place of a chunk is one step.

    Attributes:
        length: number of actions in a chunk of `step`; `step_chunk` takes any number.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], length: int) -> None:
        """Wrap an environment of this package, in any wrappers; raises UsageError for another one or a length < 1."""
        RecordConstructorArgs.__init__(self, length=length)
        super().__init__(env)
        base = env.unwrapped
        if not isinstance(base, EmbodiedEnv):
            name = type(base).__qualname__
            raise UsageError(f"unsupported environment for action chunks: {name} (expected one of embodied_env.make)")
        space = env.action_space
        boxes = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        nans = {name: np.full(box.shape, np.nan) for name, box in boxes.items() if isinstance(box, spaces.Box)}
        if len(nans) < len(boxes):
            raise UsageError(f"unsupported action space for chunks: {space} (expected a Box or a Dict of Boxes)")
        self.length = checked_count("length", length, at_least=1)
        self.action_space = batch_space(space, self.length)
        self._base = base
        self._brake = nans if isinstance(space, spaces.Dict) else nans[""]  # NaN also passes wrappers that compute
        self._episode: int | None = None  # the epoch of the running episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._episode = self._base.epoch
        return observation, info

    def step(self, actions: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - agents send anything
        """Execute a chunk, for a learner whose action is a chunk, until it or the episode ends.

        Args:
            actions: an element of `action_space`, shape (length, n) or a dict of them; or a sequence of `length`
                actions.

        Returns:
            The last observation, the sum of the rewards, the last flags, and the last info with
            ``info["chunk_result"]``: ``executed`` steps, their ``rewards`` (shape (length,) float64, NaN for a step
            that was not taken), and ``malformed``: the chunk could not be split.

        Raises:
            ResetNeededError: outside an episode. Nothing is published.
        """
        self._check_running()
        chunk = _split_chunk(actions)
        malformed = chunk is None or (len(chunk) != self.length and not isinstance(actions, NoAction))
        transitions: list[StepReturn] = []
        executed = [self._brake] if chunk is None or malformed else chunk
        for place in range(len(executed)):
            transitions.append(self._take(executed[place:]))
            if self._episode is None:
                break
        last = transitions[-1]
        rewards = np.full(self.length, np.nan)
        rewards[: len(transitions)] = [float(taken.reward) for taken in transitions]
        total = float(np.sum(rewards[: len(transitions)]))
        result = {"executed": len(transitions), "rewards": rewards, "malformed": malformed}
        return last.observation, total, last.terminated, last.truncated, {**last.info, "chunk_result": result}

    def step_chunk(self, actions: Any, *, epoch: int, first_step: int) -> ChunkResult:  # noqa: ANN401 - see step
        """Execute the due actions of a chunk, for a policy that infers while the robot moves.

        An action is executed at its own step only, and dropped when that step has already been taken. A chunk for
        another epoch, or one that begins after the next step, is rejected; submit an early one again when it is due.

        Args:
            actions: actions for the steps `first_step`, `first_step` + 1, ...: a sequence, an array or a dict of
                arrays. It must not be modified before this returns.
            epoch: ``env.unwrapped.epoch`` of the episode that the actions are for.
            first_step: step of the first action, >= 1.

        Raises:
            UsageError: for an invalid `epoch` or `first_step`. Nothing is published.
            ResetNeededError: outside an episode. Nothing is published.
        """
        first = checked_count("first_step", first_step, at_least=1)
        epoch = checked_count("epoch", epoch, at_least=0)
        self._check_running()
        chunk = _split_chunk(actions)
        if chunk is None:
            chunk = [self._brake]
        if epoch != self._base.epoch:
            return ChunkResult(unused=len(chunk), rejected="epoch")
        if first > self._base.step_index + 1:
            return ChunkResult(unused=len(chunk), rejected="future")
        transitions: list[StepReturn] = []
        expired = 0
        for step in range(first, first + len(chunk)):
            if step <= self._base.step_index:  # read again: an inner wrapper may take several steps for one action
                expired += 1
                continue
            transitions.append(self._take(chunk[step - first :]))
            if self._episode is None:
                break
        unused = len(chunk) - expired - len(transitions)
        return ChunkResult(transitions=tuple(transitions), expired=expired, unused=unused)

    def _check_running(self) -> None:
        if self._episode != self._base.epoch:
            raise ResetNeededError("chunk outside an episode; call reset() first (nothing was published)")

    def _take(self, actions: list[Any]) -> StepReturn:
        """Take one step with the first of `actions`; after its end or an error, no episode is running."""
        episode, self._episode = self._episode, None
        self._base.preview(actions)
        observation, reward, terminated, truncated, info = self.env.step(actions[0])
        if not (terminated or truncated):
            self._episode = episode
        return StepReturn(observation, cast("float", reward), terminated, truncated, info)


def _split_chunk(actions: Any) -> list[Any] | None:  # noqa: ANN401 - agents send anything
    """Return the single actions of a chunk, or None where it cannot be split."""
    if isinstance(actions, NoAction):
        return [actions]
    try:
        if isinstance(actions, Mapping):
            (count,) = {len(part) for part in actions.values()}
            return [{name: part[i] for name, part in actions.items()} for i in range(count)]
        return [actions[i] for i in range(len(actions))]
    except Exception:  # noqa: BLE001 - a foreign object may raise anything, and the robot must brake
        return None
