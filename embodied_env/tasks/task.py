"""The `Task` protocol, and how to write a task.

The smallest task is a function of the snapshots before and after a step and of the applied action. It returns reward
and success; its keyword-only arguments are keys of ``task:`` in the contract, checked strictly::

    def lift(previous: Snapshot, current: Snapshot, applied: FloatArray, *, sensor: str = "tcp") -> tuple[float, bool]:
        height_m = float(current.samples[sensor].values["position"][2])
        return height_m, height_m > 0.3 and is_fresh(current, sensor)

and in the contract ``task: {type: ./lift.py:lift, sensor: tcp}`` for a file in the folder of the contract, or
``type: my_package.tasks:lift``. A function is also called once after each reset, with the reset snapshot as `previous`
and `current` and zeros as `applied`: its success means that the task was solved before the agent acted. With
``lift.terms = ("height",)`` it returns a third item, ``{"height": height_m}``.

A class can also fail an episode, keep state for one episode, check its parameters, and have a scripted policy. It has a
version, a frozen keyword-only dataclass of parameters, and `judge`; `reset` is optional (`ResettableTask`). Each
environment, slot and agent has its own task object::

    class Hover:
        '''Stay above a height.'''

        version = 1                                  # bump it when a result changes its meaning
        terms = ("height",)                          # the keys of every TaskResult.terms

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
            return Verdict.running()                 # hovering is never solved at reset

An exception, a reward that is not finite, or another wrong result ends the episode: the robot brakes, the step is
recorded as truncated with ``task_error:<why>``, and `step` raises `TaskError`, which names the line. `make` loads a
task; reading a contract or a run does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from embodied_env.contract import FloatArray
from embodied_env.core.policy import PolicyFunction
from embodied_env.core.types import Snapshot, TaskResult, Verdict


class Task(Protocol):
    """Computes the reward of a step and whether the task is over.

    Its parameters are in its dataclass `Parameters`.

    Attributes:
        version: part of the contract's fingerprint.
        terms: the keys of `TaskResult.terms`, fixed.
    """

    version: int
    terms: tuple[str, ...]

    def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:
        """Judge the step to `current` with the `applied` action, (n_joints,), flat over all joints."""
        ...


@runtime_checkable
class ResettableTask(Task, Protocol):
    """A task that judges the reset snapshot and may keep state for one episode."""

    def reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Verdict | None:
        """Set the state of the new episode and judge its first snapshot.

        It is called once after each reset, and by a replay with the recorded arguments. Verdict and state must depend
        on the arguments only, not on earlier episodes, clocks or random generators. The verdict follows the formula of
        `judge`, so that an episode solved without acting does not count as a success, and is None if unknown.

        Args:
            snapshot: the readings of the reset; ``snapshot.reset`` is its report.
            options: requested values by reset option; drawn ones are in ``snapshot.reset.sampled``.
        """
        ...


class SiteKinematics(Protocol):
    """Kinematics, for positions (n,), of sites named like their pose sensors, or themselves."""

    def position_m(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return the position of `site` in the world frame, shape (3,), m."""
        ...

    def jacobian(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return the translational Jacobian of `site`, shape (3, n), m per joint unit."""
        ...


@runtime_checkable
class ScriptedTask(Task, Protocol):
    """A task with a scripted policy, a baseline that shows that the task can be solved."""

    def scripted(self, kinematics: SiteKinematics) -> PolicyFunction:
        """Return a policy that uses the observation only."""
        ...
