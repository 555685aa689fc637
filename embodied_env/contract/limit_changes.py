"""Limits that change while a robot runs: never beyond the contract's, all of them or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from embodied_env.contract.contract import Contract
from embodied_env.contract.schema import EffectiveLimits, JointLimits
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import UsageError

_UPPER = ("position_high", "velocity", "acceleration", "deceleration", "jerk")


def changed_limits(contract: Contract, changes: Mapping[str, JointLimits]) -> EffectiveLimits:
    """Return the limits of `contract` after margins, with these joints' changed.

    Raises:
        UsageError: for a joint that is not there, or a limit beyond the contract's.
        ContractError: for limits that no contract may have.
    """
    own = ActionLayout(contract).limits
    for joint in changes:
        if joint not in own.joints:
            raise UsageError(f"no such joint: {one_of(joint, own.joints)}")
    actuators = {
        name: replace(actuator, joints={joint: changes.get(joint, limits) for joint, limits in actuator.joints.items()})
        for name, actuator in contract.actuators.items()
    }
    wanted = ActionLayout(replace(contract, actuators=actuators)).limits
    for i, joint in enumerate(own.joints):
        for key in _UPPER:
            if getattr(wanted, key)[i] > getattr(own, key)[i]:
                raise UsageError(
                    f"{key} of {joint} would be {getattr(wanted, key)[i]} after margins; "
                    f"allowed: at most the contract's, {getattr(own, key)[i]}"
                )
        if wanted.position_low[i] < own.position_low[i]:
            raise UsageError(
                f"position_low of {joint} would be {wanted.position_low[i]} after margins; "
                f"allowed: at least the contract's, {own.position_low[i]}"
            )
    return wanted


def are_equal(some: EffectiveLimits, others: EffectiveLimits) -> bool:
    """Tell whether two sets of limits are the same."""
    return all(np.array_equal(value, getattr(others, name)) for name, value in vars(some).items())


def is_tighter(wanted: EffectiveLimits, in_force: EffectiveLimits) -> bool:
    """Tell whether whatever keeps `wanted` keeps `in_force`, from every state: with the same accelerations."""
    return bool(
        (wanted.position_low >= in_force.position_low).all()
        and (wanted.position_high <= in_force.position_high).all()
        and (wanted.velocity <= in_force.velocity).all()
        and all(
            np.array_equal(getattr(wanted, key), getattr(in_force, key))
            for key in ("acceleration", "deceleration", "jerk")
        )
    )
