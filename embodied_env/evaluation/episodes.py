"""Recorded episodes of a policy. An episode depends neither on the process nor on the episodes before it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from embodied_env.contract import Contract
from embodied_env.contract.loader import restore_contract, save_contract
from embodied_env.core.codes import end_kind
from embodied_env.core.policy import policy_errors, policy_seed


class EpisodeObserver(Protocol):
    """Receives the progress of an evaluation."""

    def resetting(self) -> None:
        """Receive the start of a reset."""

    def stepped(self, info: Mapping[str, Any]) -> None:
        """Receive the `info` of a step."""

    def ended(self, episode: int) -> None:
        """Receive the end of the `episode`-th episode (from 1)."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluation of one policy."""

    policy: str  # address of the policy
    path: Path  # run directory; with an engine, the folder of its runs
    summary: Mapping[str, Any]  # summary of the episodes (``summary.json``)
    problem: str  # reason why it is not sound evidence, or ""
    parts: tuple[Path, ...] = ()  # run directories of an engine
    losses: tuple[str, ...] = ()  # description of each episode that was lost and repeated


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """The parameters of `evaluate` that do not depend on the episodes; `options` of `make` are in JSON types."""

    contract: Contract
    backend: str
    policy: str
    seed: int
    options: Mapping[str, Any]
    record_messages: bool = False
    trust_policy: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the job in JSON types."""
        return {**vars(self), "contract": save_contract(self.contract), "options": dict(self.options)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EvaluationJob:
        """Return the job of `to_json`."""
        values = {each.name: data[each.name] for each in fields(cls)}
        return cls(**{**values, "contract": restore_contract(data["contract"])})


class EpisodeRunner(AbstractContextManager["EpisodeRunner"]):
    """Runs episodes of one policy in one environment, recorded into one run directory.

    Episode k has the world seed of the k-th reset of a run that was seeded once. There is one policy object, which is
    reset before each episode with a seed drawn from the job's and k; a callable without `reset` keeps its state.

    Attributes:
        path: the run directory.
    """

    def __init__(self, job: EvaluationJob, out: Path, *, observer: EpisodeObserver | None = None) -> None:
        """Create the environment; nothing is started before the first episode."""
        from embodied_env.envs.embodied_env import EmbodiedEnv
        from embodied_env.policies.chunk_runner import ChunkRunner
        from embodied_env.policies.loader import accepts_option, load_policy
        from embodied_env.record import RecordTransitions

        self._job, self._observer, self._name = job, observer, f"--policy {job.policy!r}"
        options = {"backend": job.backend} if accepts_option(job.policy, "backend") else {}
        # before a run directory is created
        self._policy = ChunkRunner(load_policy(job.policy, job.contract, trust=job.trust_policy, **options))
        try:
            self._embodied = EmbodiedEnv(job.contract, backend=job.backend, **job.options)
            self._env = RecordTransitions(self._embodied, out, messages=job.record_messages)
        except BaseException:
            self._policy.close()
            raise
        self._env.policy = self._policy.identity.as_mapping()
        self._next = 0  # the episode of a reset without `seek_episode`
        self.path = self._env.path

    @property
    def losses(self) -> str:
        """Description of what could not be recorded, or ""."""
        return self._env.losses.problem

    def __exit__(self, *_: object) -> None:
        """Close the run, then the policy."""
        try:
            self._env.close()
        finally:
            with policy_errors(self._name, "close"):
                self._policy.close()

    def run(self, episode: int) -> None:
        """Run the episode with this number, from 0, to its end; raises PolicyError when the policy raises."""
        if self._observer is not None:
            self._observer.resetting()
        with policy_errors(self._name, f"the reset of episode {episode + 1}"):
            self._policy.reset(seed=policy_seed(self._job.seed, episode), episode_index=episode)
        if episode != self._next:
            self._embodied.seek_episode(self._job.seed, episode)
        observation, _ = self._env.reset(seed=self._job.seed if episode == 0 else None)
        self._next = episode + 1
        ended = False
        while not ended:
            with policy_errors(self._name, f"episode {episode + 1}, step {self._embodied.step_index + 1}"):
                action = self._policy(observation)
            self._embodied.mark("policy")
            observation, _, terminated, truncated, info = self._env.step(action)
            ended = terminated or truncated
            if self._observer is not None:
                self._observer.stepped(info)
        if self._observer is not None:
            self._observer.ended(episode + 1)


def lost_backends(summary: Mapping[str, Any]) -> str:
    """Return the end reasons of episodes that lost their backend, or ""."""
    return ", ".join(reason for reason in summary["end_reasons"] if end_kind(reason) == "backend_lost")
