"""Check the options, seeds and masks of the slots of a vector environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from embodied_env.backends.backend_registry import backend_accepts
from embodied_env.envs.option_checks import check_seed
from embodied_env.errors import UsageError

PerSlot = Sequence[Mapping[str, Any]] | Callable[[int], Mapping[str, Any]]
"""Options of each slot, as a sequence of mappings or a function of the slot number."""

_UNSUPPORTED = {
    "fifo_priority": "its worlds are in lockstep",
    "switch_interval_s": "its worlds are in lockstep",
    "view": "a view shows a single robot; use make",
}
_ADDRESS = ("namespace", "domain_id")


def checked_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Return the mode, or raise UsageError for an unknown one."""
    with suppress(ValueError):
        return AutoresetMode(mode)
    expected = ", ".join(f"{each} or {each.value!r}" for each in AutoresetMode)
    raise UsageError(f"unknown autoreset_mode: {mode!r} (expected one of: {expected})")


def unsupported_pacing(pacing: str, backend: str) -> UsageError:
    """Return the error of slots whose worlds move by themselves."""
    return UsageError(
        f"unsupported pacing for a vector environment: {pacing!r} with {backend} "
        "(expected 'lockstep', since slots wait for each other)"
    )


def checked_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """Return the seed of each slot, or raise ValueError for a wrong number of seeds."""
    if seed is None:
        return [None] * num_envs
    check_seed(seed)
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + slot for slot in range(num_envs)]
    if isinstance(seed, str) or not isinstance(seed, Sized):
        raise TypeError(f"invalid seed: {seed!r} (expected an int, a list of one per slot, or None)")
    if len(seed) != num_envs:
        raise ValueError(f"wrong number of seeds: {len(seed)} (expected {num_envs}, one per slot, or an int, or None)")
    for each in seed:
        check_seed(each)
    return [None if each is None else int(each) for each in seed]


def checked_mask(mask: Any, num_envs: int) -> NDArray[np.bool_]:  # noqa: ANN401 - any object of the user
    """Return the mask, or raise TypeError and ValueError as Gymnasium does."""
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"invalid type of options['reset_mask']: {type(mask).__name__} (expected a NumPy array)")
    if mask.shape != (num_envs,):
        raise ValueError(f"invalid shape of options['reset_mask']: {mask.shape} (expected ({num_envs},))")
    if mask.dtype != np.bool_:
        raise TypeError(f"invalid dtype of options['reset_mask']: {mask.dtype} (expected bool)")
    if not mask.any():
        raise ValueError(f"empty options['reset_mask']: {mask} (expected at least one True)")
    return mask


def options_of_slots(num_envs: int, options: Mapping[str, Any], per_slot: PerSlot | None) -> list[dict[str, Any]]:
    """Return the options of each slot, or raise UsageError for those that cannot be shared."""
    if callable(per_slot):
        own: Sequence[Mapping[str, Any]] = [per_slot(slot) for slot in range(num_envs)]
    else:
        own = [{}] * num_envs if per_slot is None else per_slot
    if not isinstance(own, Sequence) or not all(isinstance(each, Mapping) for each in own):
        raise UsageError(f"invalid per_slot: {own!r} (expected a mapping per slot, or a function that returns it)")
    if len(own) != num_envs:
        raise UsageError(f"wrong number of mappings in per_slot: {len(own)} (expected {num_envs})")
    slots = [{**options, **each} for each in own]
    for name, reason in _UNSUPPORTED.items():
        if any(each.get(name) is not None for each in slots):
            raise UsageError(f"unsupported option of a vector environment: {name} ({reason})")
    clocks = [id(each["clock"]) for each in slots if getattr(each.get("clock"), "virtual", False)]
    if len(set(clocks)) < len(clocks):
        raise UsageError("virtual clock shared by several slots (expected clock='virtual', which makes one per slot)")
    stages = [stage for each in slots for stage in each.get("action_stages") or () if not isinstance(stage, str)]
    if len({id(stage) for stage in stages}) < len(stages):
        raise UsageError("action stage shared by several slots (expected names, or objects of each slot by per_slot)")
    addresses = [
        tuple(each.get(name) for name in _ADDRESS)
        for each in slots
        if (each.get("namespace") is not None and not each.get("launch")) or _attaches(each)
    ]
    for address in addresses:
        if addresses.count(address) > 1:
            shared = ", ".join(f"{name}={value!r}" for name, value in zip(_ADDRESS, address, strict=True))
            raise UsageError(
                f"world shared by {addresses.count(address)} slots: {shared}; "
                "give each slot its own namespace or domain_id by per_slot, or start Gazebo servers by launch=True"
            )
    return slots


def _attaches(options: Mapping[str, Any]) -> bool:
    """Return whether a slot with these options attaches to a running world over ROS 2."""
    if options.get("launch") and options.get("domain_id") is None:
        return False
    backend, pacing = options.get("backend", "mujoco"), options.get("pacing")
    if not any(backend_accepts(backend, name, pacing=pacing) for name in _ADDRESS):
        return False
    return not (options.get("spawn", True) and backend_accepts(backend, "spawn", pacing=pacing))
