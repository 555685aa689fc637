"""Policies of many robots, one per slot of a vector environment or agent of a team."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from typing import Any, Generic, TypeVar

import numpy as np

from embodied_env.core.policy import BatchPolicy, NoAction, Observation, Policy, policy_seed, refuse_playback
from embodied_env.errors import PolicyError
from embodied_env.policies.chunk_execution import ChunkRunner

Name = TypeVar("Name", int, str)

_OF_A_RESET = ("step_index", "episode_index", "instruction")
_ENDED = NoAction("the episode has ended")


class TeamPolicies(Generic[Name]):
    """One policy per agent, each reset before every episode, also with automatic resets."""

    def __init__(
        self, make: Callable[[Name], Policy], names: Iterable[Name], *, seed: int = 0, chunks: str = "wait"
    ) -> None:
        """Make the policy of each agent by its name, the i-th with the seed `seed` + i."""
        self._runners: dict[Name, ChunkRunner] = {}
        self._instructions: dict[Name, str] = {}
        with ExitStack() as stack:
            for name in names:
                policy = stack.enter_context(closing(make(name)))
                refuse_playback(policy, policy.identity.name, user="one of several robots")
                self._runners[name] = ChunkRunner(policy, chunks)
            self._stack = stack.pop_all()
        self._seeds: dict[Name, int] = {name: seed + number for number, name in enumerate(self._runners)}

    def act(self, observations: Mapping[Name, Observation], infos: Mapping[Name, Mapping[str, Any]]) -> dict[Name, Any]:
        """Return the actions of agents whose episode continues, from their last results."""
        self.begin_episodes(infos)
        continuing = [name for name in observations if not infos[name]["end_reason"]]
        return {name: self._runners[name](observations[name]) for name in continuing}

    def take_accounts(self) -> dict[Name, Mapping[str, Mapping[str, Any]]]:
        """Return the accounts of the last action of each agent by name, to annotate its step."""
        return {name: runner.take_accounts() for name, runner in self._runners.items()}

    def begin_episodes(self, infos: Mapping[Name, Mapping[str, Any]]) -> None:
        """Reset the policy of each agent whose info is that of a reset."""
        for name, info in infos.items():
            if info["step_index"] == 0:
                index = int(info["episode_index"])
                self._runners[name].reset(seed=policy_seed(self._seeds[name], index), episode_index=index)
                if (instruction := info.get("instruction")) is not None:
                    self._instructions[name] = instruction
                    self._runners[name].instruct(instruction)

    def close(self) -> None:
        """Close every policy, also after an error of another one (idempotent)."""
        self._stack.close()


class VectorPolicies(TeamPolicies[int]):
    """One policy per slot of a vector environment, each reset before every episode of its slot.

    Policies with `act_batch` and one identity share an inference: the first slot's, for all slots that need one, unless
    `chunks` is set.
    """

    def __init__(self, make: Callable[[int], Policy], num_envs: int, *, seed: int = 0, chunks: str = "wait") -> None:
        super().__init__(make, range(num_envs), seed=seed, chunks=chunks)
        self._has_ended = np.zeros(num_envs, dtype=np.bool_)
        first = self._runners[0].policy
        is_one = all(runner.identity == first.identity for runner in self._runners.values())
        self._batch = first if is_one and isinstance(first, BatchPolicy) and chunks == "wait" else None

    def act_all(self, observations: Observation, infos: Mapping[str, Any]) -> list[Any]:
        """Return the action of each slot for the stacked results of the last reset or step."""
        present = infos.get("_step_index", np.zeros(len(self._runners), dtype=np.bool_))
        for slot in np.flatnonzero(present).tolist():
            self._has_ended[slot] = bool(infos["end_reason"][slot])
            self.begin_episodes({slot: {key: infos[key][slot] for key in _OF_A_RESET if key in infos}})
        runners = self._runners.values()
        needs = np.array([not each.has_due for each in runners]) & ~self._has_ended
        batch = self._batch if len(set(self._instructions.values())) < 2 else None  # one prompt for all
        answers = batch.act_batch(observations, needs) if batch is not None and needs.any() else None
        if answers is not None and len(answers) != len(needs):
            raise PolicyError(f"act_batch returned {len(answers)} answers (expected {len(needs)}, one per slot)")
        actions: list[Any] = []
        for slot, runner in self._runners.items():
            if self._has_ended[slot]:
                actions.append(_ENDED)
            elif answers is not None and needs[slot]:
                actions.append(runner.begin(answers[slot]))
            else:
                actions.append(runner({key: rows[slot] for key, rows in observations.items()}))
        return actions
