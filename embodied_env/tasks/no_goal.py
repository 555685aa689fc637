"""No goal: the smallest task, for the first steps of a robot that has none yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.value_checks import allow
from embodied_env.core.types import Snapshot, TaskResult, Verdict


@dataclass(frozen=True, kw_only=True)
class NoGoalParameters:
    """The keys of ``task:``."""

    effort_weight: float = 0.01  # penalty per squared norm of the applied action, >= 0


class NoGoal:
    """Reward: minus the weighted square of the applied action. An episode ends at its horizon, never as a success."""

    version = 1
    terms = ("effort",)
    Parameters = NoGoalParameters

    def __init__(self, contract: Contract, parameters: NoGoalParameters) -> None:  # noqa: ARG002 - protocol
        """Check the weight; raises ContractError at ``task.effort_weight``."""
        self._weight = parameters.effort_weight
        allow(self._weight >= 0, "task.effort_weight", self._weight, "a weight >= 0")

    def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:  # noqa: ARG002 - protocol
        """Judge one step by the applied action."""
        effort = -self._weight * float(applied.dot(applied))
        return TaskResult(reward=effort, verdict=Verdict.running(), terms={"effort": effort})

    def reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Verdict:  # noqa: ARG002 - protocol
        """Return that the task is never solved."""
        return Verdict.running()
