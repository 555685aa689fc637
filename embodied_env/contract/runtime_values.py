"""Reset options, prompts and limits set at run time, checked against the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from embodied_env.contract.actuator_schema import EffectiveLimits, FloatArray, JointLimits
from embodied_env.contract.contract import Contract
from embodied_env.contract.contract_schema import INSTRUCTION
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import UsageError

_LONGEST_INSTRUCTION = 1000  # characters, as in a contract


def checked_instruction(contract: Contract, options: Mapping[str, Any] | None) -> str:
    """Return the prompt of the reset options or the contract, or raise UsageError."""
    if isinstance(options, Mapping) and options.get(INSTRUCTION) is not None:
        return check_instruction(options[INSTRUCTION])
    return contract.task.instruction or ""


def check_instruction(text: object) -> str:
    """Return a prompt of 1 to 1,000 characters in UTF-8, or raise UsageError."""
    is_valid = isinstance(text, str) and 1 <= len(text) <= _LONGEST_INSTRUCTION and text.isprintable()
    if not is_valid:
        expected = f"expected 1 to {_LONGEST_INSTRUCTION} printable characters"
        raise UsageError(f"invalid instruction: {text!r:.80} ({expected})")
    return str(text)


def checked_options(contract: Contract, options: Mapping[str, Any] | None) -> dict[str, FloatArray]:
    """Return reset options as arrays, or raise UsageError for one that cannot be drawn."""
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"invalid options={options!r} (expected a mapping of reset options, or None)")
    known = contract.reset_options
    checked: dict[str, FloatArray] = {}
    for name, value in (options or {}).items():
        if name == INSTRUCTION:
            continue
        if name not in known:
            raise UsageError(f"unknown reset option {one_of(name, known)}")
        array = _numbers(value)
        if not known[name].allows(array):
            raise UsageError(f"invalid reset option {name}={value!r} (expected {known[name].support})")
        checked[name] = array
    return checked


def changed_limits(contract: Contract, changes: Mapping[str, JointLimits]) -> EffectiveLimits:
    """Return the limits of `contract` after margins, with `changes` to these joints.

    Raises UsageError for an unknown joint or a limit beyond the contract's, and ContractError for invalid limits.
    """
    own = ActionLayout(contract).limits
    if not isinstance(changes, Mapping):
        raise UsageError(f"invalid limits: {changes!r:.200} (expected a mapping of joints to JointLimits)")
    for joint in changes:
        if joint not in own.joints:
            raise UsageError(f"unknown joint {one_of(joint, own.joints)}")
        if not isinstance(changes[joint], JointLimits):
            raise UsageError(f"invalid limits of {joint}: {changes[joint]!r:.200} (expected JointLimits)")
    actuators = {
        name: replace(actuator, joints={joint: changes.get(joint, limits) for joint, limits in actuator.joints.items()})
        for name, actuator in contract.actuators.items()
    }
    wanted = ActionLayout(replace(contract, actuators=actuators)).limits  # it validates types and rules
    keys = ("position_high", "velocity_high", "velocity_low", "acceleration", "deceleration", "jerk", "position_low")
    for i, joint in enumerate(own.joints):
        for key in keys:
            value, bound = getattr(wanted, key)[i], getattr(own, key)[i]
            is_low = key.endswith("_low")
            if value < bound if is_low else value > bound:
                expected = f"at {'least' if is_low else 'most'} {bound}, the contract's limit"
                found = f"{key.replace('velocity_high', 'velocity')} of {joint} is {value} after margins"
                raise UsageError(f"limit not tighter: {found} (expected {expected})")
    return wanted


def are_equal(some: EffectiveLimits, others: EffectiveLimits) -> bool:
    """Return whether two sets of limits are the same."""
    return all(np.array_equal(getattr(some, each.name), getattr(others, each.name)) for each in fields(some))


def is_tighter(wanted: EffectiveLimits, in_force: EffectiveLimits) -> bool:
    """Return whether obeying `wanted` implies obeying `in_force` from every state."""
    equal = ("acceleration", "deceleration", "jerk")
    return bool(
        (wanted.position_low >= in_force.position_low).all()
        and (wanted.position_high <= in_force.position_high).all()
        and (wanted.velocity_low >= in_force.velocity_low).all()
        and (wanted.velocity_high <= in_force.velocity_high).all()
        and all(np.array_equal(getattr(wanted, key), getattr(in_force, key)) for key in equal)
    )


def _numbers(value: Any) -> FloatArray:  # noqa: ANN401 - users give anything
    """Return `value` as an array, or NaN for booleans, masked arrays and other types."""
    try:
        given = np.asarray(value)
        is_number = given.dtype.kind in "fiu" and not np.ma.isMaskedArray(value)
        return given.astype(np.float64) if is_number else np.array(np.nan)
    except (TypeError, ValueError, OverflowError):
        return np.array(np.nan)
