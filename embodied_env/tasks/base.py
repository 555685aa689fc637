"""The `Task` protocol: what a task is to the environment, and how one is written and loaded.

A task is a class with a version, a frozen keyword-only dataclass of parameters, and a judgement. It keeps no state: it
judges one step from the snapshots before and after it, and from what was applied. A whole task outside the package::

    class Hover:
        '''Stay above a height.'''

        version = 1                                  # bump it when a judgement changes its meaning
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
from embodied_env.transition import Snapshot, TaskResult

Policy = Callable[[Mapping[str, NDArray[Any]]], Any]
"""What acts: it is called with the observation, and returns an action of the contract's action space."""


class Task(Protocol):
    """Says what a step was worth, and whether the task is over. The class also has `Parameters`, a dataclass.

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
