"""The `Task` protocol: what a task is to the environment, and how one is written and loaded.

A task is a class with a version, a frozen keyword-only dataclass of parameters, and `judge`, which judges one step from
the snapshots before and after it, and from what was applied. A task may also have `reset` (`ResettableTask`): it sets
the state that the task keeps for one episode, and says whether the task is solved before the agent acts. Each
environment, slot and agent has a task object of its own. A whole task outside the package::

    class Hover:
        '''Stay above a height.'''

        version = 1                                  # bump it when a result changes its meaning
        terms = ("height",)                          # the keys of TaskResult.terms, always all of them

        @dataclass(frozen=True, kw_only=True)
        class Parameters:                            # the keys of `task:` in the contract, checked strictly
            sensor: str
            height_m: float = 0.3

        def __init__(self, contract: Contract, parameters: Parameters) -> None:
            self._sensor, self._height_m = parameters.sensor, parameters.height_m

        def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:
            height_m = float(current.samples[self._sensor].values["position"][2])
            verdict = Verdict.running() if height_m >= self._height_m else Verdict.failed("too_low")
            return TaskResult(reward=height_m, verdict=verdict, terms={"height": height_m})

        def reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Verdict | None:    # optional
            return Verdict.running()                 # hovering is never solved before the first step

and in the contract ``task: {type: my_package.hover:Hover, sensor: tcp}``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray, KinematicModel
from embodied_env.contract.fingerprint import task_class
from embodied_env.contract.loader import parse_as
from embodied_env.errors import ContractError
from embodied_env.transition import Snapshot, TaskResult, Verdict

Policy = Callable[[Mapping[str, NDArray[Any]]], Any]
"""What acts: it is called with the observation, and returns an action of the contract's action space."""


class Task(Protocol):
    """Computes the reward of a step, and whether the task is over. The class also has `Parameters`, a dataclass.

    Attributes:
        version: part of the contract's fingerprint.
        terms: the keys of `TaskResult.terms`, fixed.
    """

    version: int
    terms: tuple[str, ...]

    def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:
        """Judge one step.

        Args:
            previous: the world before the step.
            current: the world after it.
            applied: the command that was applied, flat over all joints, in action units, shape (n_joints,).
        """
        ...


@runtime_checkable
class ResettableTask(Task, Protocol):
    """A task that judges the reset snapshot, and may keep state for one episode."""

    def reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Verdict | None:
        """Set the state of the episode that begins, and judge the snapshot that it begins with.

        It is called once after each reset, and again with the recorded arguments by a replay. So verdict and state
        follow from the arguments alone: nothing of earlier episodes, of a clock or of a random generator.

        Args:
            snapshot: what the reset has read; ``snapshot.reset`` is its report.
            options: the values that were asked for, by reset option; those that were drawn are in
                ``snapshot.reset.sampled``.

        Returns:
            The verdict, by the same formula as `judge`, so that an episode that is solved without acting does not
            count as a success; None: not known.
        """
        ...


@runtime_checkable
class ScriptedTask(Task, Protocol):
    """A task that knows a policy for itself: a baseline to evaluate against, and a check that it can be solved."""

    def scripted(self, kinematics: KinematicModel) -> Policy:
        """Return a policy that acts from the observation alone."""
        ...


def load_task(contract: Contract) -> Task:
    """Build the task of `contract`: the class named by ``task.type``, with the other keys as its parameters.

    Raises:
        ContractError: when the class cannot be imported or is not a task, and for an unknown, missing or wrong key.
    """
    found = task_class(contract)
    parameters = getattr(found, "Parameters", None)
    missing = [name for name in ("version", "terms", "judge") if not hasattr(found, name)]
    if not (isinstance(parameters, type) and dataclasses.is_dataclass(parameters)):
        missing.append("Parameters (a dataclass)")
    if missing:
        raise ContractError(
            "task.type",
            f"{contract.task.type!r} is not a task, it has no {', '.join(missing)}; see embodied_env.tasks.base",
            source=contract.source,
        )
    values = parse_as(cast("type[Any]", parameters), contract.task.parameters, path="task", source=contract.source)
    return cast("Task", found(contract, values))
