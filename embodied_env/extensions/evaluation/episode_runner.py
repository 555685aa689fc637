"""Record episodes that depend neither on the process nor on the episodes before them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from embodied_env.contract import Contract
from embodied_env.contract.contract_loader import restore_contract, save_contract
from embodied_env.contract.contract_schema import INSTRUCTION
from embodied_env.core.code_types import end_kind
from embodied_env.core.policy import NoAction, Policy, draw_from, find_start, policy_errors, policy_seed
from embodied_env.errors import UsageError
from embodied_env.safety.late_agent import LATE

if TYPE_CHECKING:
    from embodied_env.policies.chunk_execution import ChunkRunner
    from embodied_env.record import RecordTransitions


_log = logging.getLogger(__name__)

_MOST_CHECKED = 10_000  # actions of the first chunk


class EpisodeObserver(Protocol):
    """Receives the progress of an evaluation."""

    def resetting(self) -> None:
        """Receive the start of a reset."""

    def stepped(self, info: Mapping[str, Any]) -> None:
        """Receive the `info` of a step."""

    def ended(self, count: int) -> None:
        """Receive the number of episodes that have ended, those of all policies together."""


@dataclass(frozen=True, kw_only=True)
class PolicySource:
    """The address of a policy, and its policy file (`embodied_env.load_policy`)."""

    address: str
    policy_file: str | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """The parameters of `evaluate` that do not depend on the episodes.

    `options` of `make` are in JSON types. A trial is one episode of one policy. Trials are numbered in the order in
    which they run: all policies run episode 0, then episode 1, each time beginning with the next policy, so that a
    drift of the robot or the machine favours none.
    """

    contract: Contract
    backend: str
    policies: tuple[PolicySource | Policy, ...]  # a `Policy` only in this process
    seed: int
    options: Mapping[str, Any]
    record_messages: bool = False
    compression: str = "zstd"
    trust_policy: bool = False
    chunks: str = "wait"  # one of `CHUNK_MODES`
    instructions: tuple[str, ...] = ()  # prompts of the episodes, in turn, or that of the contract if empty

    @property
    def names(self) -> tuple[str, ...]:
        """Address, or name in the identity, of each policy, equal ones followed by their position."""
        names = [each.address if isinstance(each, PolicySource) else each.identity.name for each in self.policies]
        return tuple(
            name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, start=1)
        )

    def trial(self, number: int) -> tuple[int, int]:
        """Return the index of the policy, and the episode, of a trial."""
        episode, place = divmod(number, len(self.policies))
        return (place + episode) % len(self.policies), episode

    def reset_options(self, episode: int) -> dict[str, Any] | None:
        """Return the options of the reset of an episode, or None without any."""
        prompts = self.instructions
        return {INSTRUCTION: prompts[episode % len(prompts)]} if prompts else None

    def describe_trial(self, number: int) -> str:
        """Return the episode of a trial as text, with its policy if there are several."""
        index, episode = self.trial(number)
        return f"episode {episode}" + (f" of {self.names[index]}" if len(self.policies) > 1 else "")

    def folders(self, out: Path) -> list[Path]:
        """Return the folder of the runs of each policy, in the folder `out` of an engine."""
        several = [out / f"policy_{number}" for number in range(1, len(self.policies) + 1)]
        return [out] if len(several) == 1 else several

    def to_json(self) -> dict[str, Any]:
        """Return the job in JSON types, or raise UsageError for a policy without an address."""
        policies = []
        for source, name in zip(self.policies, self.names, strict=True):
            if not isinstance(source, PolicySource):
                raise UsageError(f"policy not passed to workers: {name} (expected an address); omit the engine")
            policies.append(asdict(source))
        contract = save_contract(self.contract)
        return {**vars(self), "contract": contract, "policies": policies, "options": dict(self.options)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EvaluationJob:
        """Return the job of `to_json`."""
        values = {each.name: data[each.name] for each in fields(cls)}
        values["instructions"] = tuple(data["instructions"])
        values["policies"] = tuple(PolicySource(**source) for source in data["policies"])
        return cls(**{**values, "contract": restore_contract(data["contract"])})


class EpisodeRunner(AbstractContextManager["EpisodeRunner"]):
    """Runs trials in one environment, and records those of each policy into its own run.

    Episode k has the world seed of the k-th reset of a run that was seeded once. There is one object per policy, which
    is reset before each of its episodes with a seed drawn from the job's and k.

    Attributes:
        recorders: those of the policies that have run, by index.
    """

    def __init__(
        self,
        job: EvaluationJob,
        folders: Sequence[Path],
        *,
        observer: EpisodeObserver | None = None,
        confirm: Callable[[str], bool] | None = None,
    ) -> None:
        """Load the policies and create the environment, which starts with the first episode.

        `folders` has the parent of the run directory of each policy. `confirm` asks the operator of a robot whether to
        continue with a policy whose first action is implausible. With None such a policy is refused.
        """
        from embodied_env.envs.embodied_env import EmbodiedEnv
        from embodied_env.policies.chunk_execution import ChunkRunner, longest_wait_s

        self._job, self._folders, self._observer, self._confirm = job, folders, observer, confirm
        self._checked: set[int] = set()  # policies whose first action has been checked
        with ExitStack() as stack:
            policies = [self._load(source, stack) for source in job.policies]
            runners = stack.enter_context(ExitStack())  # stopped after the robot
            options = {"host_timing": True, **job.options}  # for the live table
            if all(find_start(policy) is not None for policy in policies):
                options.setdefault("action_stages", None)
            self._embodied = EmbodiedEnv(job.contract, backend=job.backend, **options)
            stack.callback(self._embodied.close)
            for policy in policies:
                draw_from(policy, self._embodied.action_space)
            wait_s = longest_wait_s(job.contract) if self._embodied.capabilities.free_running else None
            pacing = self._embodied.pacing
            self._policies = [ChunkRunner(policy, job.chunks, pacing=pacing, wait_s=wait_s) for policy in policies]
            for runner in self._policies:
                runners.callback(runner.stop)
            self._stack = stack.pop_all()
        self.recorders: dict[int, RecordTransitions] = {}
        self._next = 0  # the episode of a reset without `seek_episode`
        self._ended = 0

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, trial: int) -> Path:
        """Create the run directory for a trial, unless its policy has one, and return it."""
        from embodied_env.record import RecordTransitions

        index, _ = self._job.trial(trial)
        if index not in self.recorders:
            identity = self._policies[index].identity.as_mapping()
            identity |= {} if self._job.chunks == "wait" else {"chunks": self._job.chunks}
            recorder = RecordTransitions(
                self._embodied,
                self._folders[index],
                policy=identity,
                messages=self._job.record_messages,
                compression=self._job.compression,
            )
            self._stack.callback(recorder.close)
            self.recorders[index] = recorder
        return self.recorders[index].path

    def run(self, trial: int) -> None:
        """Run a trial to its end, or raise PolicyError or, for a refused policy, UsageError."""
        from embodied_env.envs.action_chunks import attach_action
        from embodied_env.policies.policy_model import find_implausible

        self.open(trial)
        index, episode = self._job.trial(trial)
        policy, env = self._policies[index], self.recorders[index]
        if self._observer is not None:
            self._observer.resetting()
        name = f"policy {self._job.names[index]!r}"
        observation = self._reset(policy, env, name, episode)
        ended = False
        while not ended:
            with policy_errors(name, f"episode {episode + 1}, step {self._embodied.step_index + 1}"):
                action = policy(observation)
            if index not in self._checked and not isinstance(action, NoAction):
                self._checked.add(index)
                first = [action, *policy.upcoming(_MOST_CHECKED)]
                lines = find_implausible(policy.policy, self._job.contract, observation, first)
                if lines and self._accept(f"{name}: {'; '.join(lines)}"):
                    self.run(trial)  # again, with the same seed: the reset is too long ago
                    return
            attach_action(self._embodied, policy, action)
            observation, _, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
            if self._observer is not None:
                self._observer.stepped(info)
        self._ended += 1
        if self._observer is not None:
            self._observer.ended(self._ended)

    def _reset(self, policy: ChunkRunner, env: RecordTransitions, name: str, episode: int) -> Any:  # noqa: ANN401
        with policy_errors(name, f"the reset of episode {episode + 1}"):
            policy.reset(seed=policy_seed(self._job.seed, episode), episode_index=episode)
        if episode != self._next:
            self._embodied.seek_episode(self._job.seed, episode)
        if (start := find_start(policy.policy)) is not None:
            self._embodied.start_from(start)
        seed, options = self._job.seed if episode == 0 else None, self._job.reset_options(episode)
        observation, info = env.reset(seed=seed, options=options)
        self._next = episode + 1
        with policy_errors(name, f"the prompt of episode {episode + 1}"):
            policy.instruct(info["instruction"])
        self._embodied.require(policy.required_sensors)
        return observation

    def _accept(self, problem: str) -> bool:
        """Warn of an implausible policy, or on a robot ask the operator or raise UsageError."""
        if self._embodied.capabilities.world != "robot":
            _log.warning("implausible policy: %s", problem)
            return False
        if self._confirm is None or not self._confirm(problem):
            remedy = "correct unit, scale or statistics of the policy, or confirm at a terminal"
            raise UsageError(f"implausible policy on a robot: {problem}; {remedy}")
        return True

    def _load(self, source: PolicySource | Policy, stack: ExitStack) -> Policy:
        """Return the policy of a source, and close one that is loaded here with `stack`."""
        from embodied_env.policies.policy_loader import load_policy, policy_accepts

        if not isinstance(source, PolicySource):
            return source
        options = {"backend": self._job.backend} if policy_accepts(source.address, "backend") else {}
        policy = load_policy(
            source.address, self._job.contract, policy_file=source.policy_file, trust=self._job.trust_policy, **options
        )

        def close() -> None:
            with policy_errors(f"policy {source.address!r}", "close"):
                policy.close()

        stack.callback(close)
        return policy


def find_failure(summary: Mapping[str, Any]) -> str:
    """Return the end reasons of episodes without a backend or any action of the policy, or ""."""
    steps, ends = summary["steps"], summary["end_reasons"]
    if steps and steps in (summary["missed_actions"], ends.get(LATE)):
        return f"the policy never acted: no action in time in {steps} steps"
    return ", ".join(reason for reason in ends if end_kind(reason) == "backend_lost")
