"""The smallest task, which has no goal, for the first steps of a robot that has none yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.key_types import NotNegative
from embodied_env.core.types import TaskResult, Verdict
from embodied_env.tasks.task_parts import ArrayTask, squared_norm


@dataclass(frozen=True, kw_only=True)
class NoGoalParameters:
    """The keys of `task`."""

    effort_weight: NotNegative = 0.01  # penalty per squared norm of the applied action


class NoGoal(ArrayTask):
    """Penalizes the weighted square of the applied action, and never ends before the horizon."""

    version = 1
    terms = ("effort",)
    Parameters = NoGoalParameters

    def __init__(self, contract: Contract, parameters: NoGoalParameters) -> None:  # noqa: ARG002 - protocol
        self._weight = parameters.effort_weight

    def evaluate(self, previous: Any, current: Any, applied: FloatArray) -> TaskResult:  # noqa: ANN401, ARG002
        """Judge by the applied action."""
        effort = -self._weight * squared_norm(applied)
        return TaskResult(reward=effort, verdict=Verdict.running(), terms={"effort": effort})
