"""The wrapper `ActionChunks`, and the step with an action of a `ChunkRunner`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector.utils import batch_space

from embodied_env.contract.argument_checks import checked_count
from embodied_env.core.policy import NoAction
from embodied_env.core.types import CHUNK
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import ResetNeededError, UsageError
from embodied_env.policies.chunk_execution import ChunkRunner


def attach_action(env: EmbodiedEnv, policy: ChunkRunner, action: Any) -> None:  # noqa: ANN401 - of the action space
    """Attach accounts, preview and end of inference of `policy` to the step that follows."""
    env.mark("policy")
    for kind, account in policy.take_accounts().items():
        env.annotate(kind, account)
    if steps := env.contract.trajectory_steps:
        env.preview([action, *policy.upcoming(steps)])


class ActionChunks(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Executes chunks of actions, each action by one `step` of the wrapped environment.

    It is for learners whose action is a chunk. A policy that infers while the robot moves runs in
    `embodied_env.policies.chunk_execution.ChunkRunner`. Wrap it around `RecordTransitions`, whose rows are steps, and
    around every wrapper that changes single actions.

    Every action of a chunk is judged separately. A malformed one makes the robot brake for its step, and a chunk that
    is not a sequence of `length` actions counts as one malformed action. `NoAction` in place of a chunk is one step.

    Attributes:
        length: number of actions in a chunk.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], length: int) -> None:
        """Wrap `env`, or raise UsageError for a foreign environment or a length < 1."""
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
        self._chunks = 0  # of the episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._episode, self._chunks = self._base.epoch, 0
        return observation, info

    def step(self, actions: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - agents send anything
        """Execute a chunk until it or the episode ends.

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
        if self._episode != self._base.epoch:
            raise ResetNeededError("chunk outside an episode; call reset() first (nothing was published)")
        chunk = _split_chunk(actions)
        malformed = chunk is None or (len(chunk) != self.length and not isinstance(actions, NoAction))
        executed = [self._brake] if chunk is None or malformed else chunk
        rewards = np.full(self.length, np.nan)
        if len(executed) > 1:  # record the chunk in its first step
            account = {"id": self._chunks, "born": self._base.step_index, "length": len(executed)}
            self._base.annotate(CHUNK, {"mode": "wrapper", **account, "actions": executed})
            self._chunks += 1
        for place in range(len(executed)):
            observation, reward, terminated, truncated, info = self._take(executed[place:])
            rewards[place] = reward
            if self._episode is None:
                break
        taken = place + 1
        result = {"executed": taken, "rewards": rewards, "malformed": malformed}
        return observation, float(np.sum(rewards[:taken])), terminated, truncated, {**info, "chunk_result": result}

    def _take(self, actions: list[Any]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step, and drop the episode if the step ends it or raises."""
        episode, self._episode = self._episode, None
        self._base.preview(actions)
        result = self.env.step(actions[0])
        if not (result[2] or result[3]):
            self._episode = episode
        return result


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
