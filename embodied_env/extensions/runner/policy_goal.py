"""A goal of the runner, its check against a contract, and its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from embodied_env.contract import Contract, JointLimits
from embodied_env.contract.runtime_values import changed_limits, check_instruction
from embodied_env.contract.value_checks import one_of
from embodied_env.core.code_types import TERMINATED_REASONS, end_kind
from embodied_env.errors import UsageError

_COMPLETE = (*TERMINATED_REASONS, "time_limit", "out_of_bounds")
"""Kinds of end reasons that complete an episode, since any other one aborts the goal."""


@dataclass(frozen=True, kw_only=True)
class PolicyGoal:
    """A goal of a client, with the fields of ``RunPolicy.action``, which describes them."""

    instruction: str = ""
    episodes: int = 0
    seconds: float = 0.0
    limit_joints: tuple[str, ...] = ()
    limit_velocities: tuple[float, ...] = ()
    limit_accelerations: tuple[float, ...] = ()

    @classmethod
    def of(cls, message: Any) -> Self:  # noqa: ANN401 - a generated type, or parameters
        """Return the goal in an object with these fields, with arrays as tuples."""
        values: dict[str, Any] = {each.name: getattr(message, each.name) for each in fields(cls)}
        values |= {name: tuple(value) for name, value in values.items() if name.startswith("limit_")}
        return cls(**values)

    @property
    def last_episode(self) -> float:
        """The number of episodes, which is infinite if only the time counts."""
        return self.episodes or (math.inf if self.seconds else 1)


def check_goal(goal: PolicyGoal, contract: Contract) -> dict[str, JointLimits]:
    """Return the limits of a goal by joint, or raise UsageError if it is forbidden."""
    if goal.instruction:
        check_instruction(goal.instruction)
    if goal.episodes < 0:
        raise UsageError(f"invalid episodes: {goal.episodes} (expected an integer >= 0)")
    if not 0.0 <= goal.seconds < math.inf:
        raise UsageError(f"invalid seconds: {goal.seconds} (expected a number >= 0)")
    if len(set(goal.limit_joints)) < len(goal.limit_joints):
        raise UsageError(f"repeated joint in limit_joints: {', '.join(goal.limit_joints)}")
    if goal.limit_joints and not (goal.limit_velocities or goal.limit_accelerations):
        names = ", ".join(goal.limit_joints)
        raise UsageError(f"no limit of limit_joints: {names} (expected limit_velocities or limit_accelerations)")
    known = {joint: spec for each in contract.actuators.values() for joint, spec in each.joints.items()}
    changes: dict[str, JointLimits] = {}
    for joint in goal.limit_joints:
        if joint not in known:
            raise UsageError(f"unknown joint in limit_joints: {one_of(joint, known)}")
        changes[joint] = known[joint]
    for joint, value in _by_joint(goal, "limit_velocities"):
        bound = changes[joint].velocity
        tighter = (max(-value, bound[0]), value) if isinstance(bound, tuple) else value
        changes[joint] = replace(changes[joint], velocity=tighter)
    for joint, value in _by_joint(goal, "limit_accelerations"):
        spec = changes[joint]
        deceleration = None if spec.deceleration is None else min(value, spec.deceleration)
        changes[joint] = replace(spec, acceleration=value, deceleration=deceleration)
    changed_limits(contract, changes)
    return changes


def _by_joint(goal: PolicyGoal, name: str) -> list[tuple[str, float]]:
    """Return a field with one number per joint of the goal, if it is given."""
    values: tuple[float, ...] = getattr(goal, name)
    if values and len(values) != len(goal.limit_joints):
        raise UsageError(f"{len(values)} {name} (expected none or {len(goal.limit_joints)}, one for each limit_joints)")
    for joint, value in zip(goal.limit_joints, values, strict=False):
        if not 0.0 < value < math.inf:
            raise UsageError(f"invalid {name} of {joint}: {value} (expected a number > 0)")
    return list(zip(goal.limit_joints, values, strict=False))


@dataclass(kw_only=True)
class GoalResult:
    """The result of a goal so far, with the fields of the result of ``RunPolicy.action``."""

    end_reason: str = ""
    verdict: Literal["success", "failure", "none"] = "none"
    episodes: int = 0
    successes: int = 0
    steps: int = 0
    run: str = ""
    message: str = ""  # empty if complete

    def add_episode(self, info: Mapping[str, Any], *, is_cut: bool) -> None:
        """Add an episode by its last info, with `is_cut` if the goal's time was over."""
        kind = end_kind(info["end_reason"])
        self.end_reason = info["end_reason"]
        self.verdict = "success" if info["is_success"] else "failure" if kind == "failure" else "none"
        self.episodes += 1
        self.successes += bool(info["is_success"])
        self.steps += info["step_index"]
        if kind not in _COMPLETE and not (self.message or is_cut):
            self.message = f"episode {self.episodes - 1} ended by {self.end_reason}"
