"""The wrapper `ActionChunks`: executes chunks of actions."""

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
        expired: number of actions that were dropped because their step had been taken.
        unused: number of actions left when the episode ended, or all of a rejected chunk.
        rejected: why nothing was executed: the chunk is for another epoch, or not due yet; "": it was accepted.
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
    Step k is the step that makes ``info["step_index"]`` k: the first action after a reset is for step 1. The epoch of
    an episode is ``env.unwrapped.epoch`` after its reset, and ``env.unwrapped.step_index`` counts its steps.

    Every action of a chunk is judged separately: a malformed one brakes for its step, as it does without chunks. A
    chunk that cannot be split (not a sequence, or for `step` not of `length` actions) counts as one malformed action:
    the robot brakes for one step, and several in a row end the episode as in the contract.

    Attributes:
        length: number of actions in a chunk of `step`; `step_chunk` takes any number.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], length: int) -> None:
        """Wrap an environment of this package, in any wrappers; its action space is a Box or a Dict of Boxes.

        Raises:
            UsageError: for another environment or action space, or a length < 1.
        """
        RecordConstructorArgs.__init__(self, length=length)
        super().__init__(env)
        base = env.unwrapped
        if not isinstance(base, EmbodiedEnv):
            raise UsageError(
                f"{type(base).__qualname__} cannot take chunks: it does not count its episodes and steps; "
                "allowed: an environment made by embodied_env"
            )
        space = env.action_space
        boxes = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        nans = {name: np.full(box.shape, np.nan) for name, box in boxes.items() if isinstance(box, spaces.Box)}
        if len(nans) < len(boxes):
            raise UsageError(f"the action space {space} has no chunks; allowed: a Box, or a Dict of Boxes")
        self.length = checked_count("length", length, at_least=1)
        self.action_space = batch_space(space, self.length)
        self._base = base
        self._brake = nans if isinstance(space, spaces.Dict) else nans[""]  # also through wrappers that compute
        self._episode: int | None = None  # the epoch of the running episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._episode = self._base.epoch
        return observation, info

    def step(self, actions: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - agents send anything
        """Execute a chunk, for a learner whose action is a chunk.

        Args:
            actions: an element of `action_space`: shape (length, n), or a dict of them; or a sequence of `length`
                actions. It is executed until it or the episode ends.

        Returns:
            The last observation, the sum of the rewards, the last flags, and the last info with ``info["chunk"]``:
            ``executed`` steps, their ``rewards`` (shape (length,) float64, NaN for a step that was not taken), and
            ``malformed``: the chunk could not be split.

        Raises:
            ResetNeededError: outside an episode. Nothing is published.
        """
        self._check_running()
        chunk = _split_chunk(actions)
        malformed = chunk is None or len(chunk) != self.length
        transitions: list[StepReturn] = []
        for action in [self._brake] if chunk is None or malformed else chunk:
            transitions.append(self._take(action))
            if self._episode is None:
                break
        last = transitions[-1]
        rewards = np.full(self.length, np.nan)
        rewards[: len(transitions)] = [float(taken.reward) for taken in transitions]
        total = float(np.sum(rewards[: len(transitions)]))
        result = {"executed": len(transitions), "rewards": rewards, "malformed": malformed}
        return last.observation, total, last.terminated, last.truncated, {**last.info, "chunk": result}

    def step_chunk(self, actions: Any, *, epoch: int, first_step: int) -> ChunkResult:  # noqa: ANN401 - see step
        """Execute the due actions of a chunk, for a policy that infers while the robot moves.

        An action is only executed at its own step; it expires and is dropped when that step has been taken. A chunk
        for another epoch, or one that begins after the next step, is rejected: nothing is executed, and an early chunk
        may be given again when its first step is due.

        Args:
            actions: a sequence of actions for the steps `first_step`, `first_step` + 1, ...; or, as in `step`, an array
                or a dict of arrays. It must not be written to before this returns.
            epoch: ``env.unwrapped.epoch`` of the episode that the actions are for.
            first_step: step of the first action, >= 1.

        Raises:
            UsageError: when `epoch` or `first_step` is not such an integer. Nothing is published.
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
        for step, action in enumerate(chunk, first):
            if step <= self._base.step_index:  # read again: an inner wrapper may take several steps for one action
                expired += 1
                continue
            transitions.append(self._take(action))
            if self._episode is None:
                break
        unused = len(chunk) - expired - len(transitions)
        return ChunkResult(transitions=tuple(transitions), expired=expired, unused=unused)

    def _check_running(self) -> None:
        if self._episode != self._base.epoch:
            raise ResetNeededError("a chunk outside an episode: call reset() first; nothing was published")

    def _take(self, action: Any) -> StepReturn:  # noqa: ANN401 - agents send anything
        """Take one step; after its end or an error no episode is running."""
        episode, self._episode = self._episode, None
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            self._episode = episode
        return StepReturn(observation, cast("float", reward), terminated, truncated, info)


def _split_chunk(actions: Any) -> list[Any] | None:  # noqa: ANN401 - agents send anything
    """Return the single actions of a chunk, or None where it cannot be split."""
    try:
        if isinstance(actions, Mapping):
            (count,) = {len(part) for part in actions.values()}
            return [{name: part[i] for name, part in actions.items()} for i in range(count)]
        return [actions[i] for i in range(len(actions))]
    except Exception:  # noqa: BLE001 - a foreign object may raise anything; the robot must brake, not crash
        return None
