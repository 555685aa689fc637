"""The slots of a vector environment: check their options, seeds and masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from embodied_env.backends.registry import accepts_option
from embodied_env.envs.embodied_env import check_seed
from embodied_env.errors import UsageError

PerSlot = Sequence[Mapping[str, Any]] | Callable[[int], Mapping[str, Any]]
"""Options of each slot: a sequence of mappings, or a function of the slot number."""

_NOT_FOR_MANY = ("fifo_priority", "switch_interval_s")  # lockstep worlds need no real-time scheduling
_PLACE = ("namespace", "domain_id")


def checked_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Return the mode; raises UsageError for an unknown one."""
    with suppress(ValueError):
        return AutoresetMode(mode)
    allowed = ", ".join(f"{each} or {each.value!r}" for each in AutoresetMode)
    raise UsageError(f"autoreset_mode={mode!r} is unknown; allowed: {allowed}")


def checked_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """Return a seed for each slot; raises ValueError for another number of seeds."""
    if seed is None:
        return [None] * num_envs
    check_seed(seed)
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + slot for slot in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"seed has {len(seed)} seeds; allowed: {num_envs}, one for each slot, or an int, or None")
    for each in seed:
        check_seed(each)
    return [None if each is None else int(each) for each in seed]


def checked_mask(mask: Any, num_envs: int) -> NDArray[np.bool_]:  # noqa: ANN401 - any object of the user
    """Return the mask; raises TypeError and ValueError as Gymnasium does."""
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"options['reset_mask'] is {type(mask).__name__}; allowed: a NumPy array")
    if mask.shape != (num_envs,):
        raise ValueError(f"options['reset_mask'] has the shape {mask.shape}; allowed: ({num_envs},)")
    if mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] is of {mask.dtype}; allowed: bool")
    if not mask.any():
        raise ValueError(f"options['reset_mask']={mask} resets nothing; allowed: at least one True")
    return mask


def options_of_slots(num_envs: int, options: Mapping[str, Any], per_slot: PerSlot | None) -> list[dict[str, Any]]:
    """Return the options of each slot; raises UsageError for those that cannot be shared."""
    if callable(per_slot):
        own: Sequence[Mapping[str, Any]] = [per_slot(slot) for slot in range(num_envs)]
    else:
        own = [{}] * num_envs if per_slot is None else per_slot
    if not isinstance(own, Sequence) or not all(isinstance(each, Mapping) for each in own):
        raise UsageError(
            f"per_slot={own!r} is not allowed; allowed: a mapping for each slot, or a function that returns it"
        )
    if len(own) != num_envs:
        raise UsageError(f"per_slot has options of {len(own)} slots; allowed: {num_envs}, one mapping for each")
    slots = [{**options, **each} for each in own]
    for name in _NOT_FOR_MANY:
        if any(each.get(name) is not None for each in slots):
            raise UsageError(f"{name} is not available in a vector: its worlds wait; allowed: None")
    clocks = [id(each["clock"]) for each in slots if getattr(each.get("clock"), "virtual", False)]
    if len(set(clocks)) < len(clocks):
        raise UsageError("one virtual clock cannot be under several slots; allowed: clock='virtual', a clock for each")
    places = [
        tuple(each.get(name) for name in _PLACE)
        for each in slots
        if each.get("namespace") is not None or _attaches(each)
    ]
    for place in places:
        if places.count(place) > 1:
            shared = ", ".join(f"{name}={value!r}" for name, value in zip(_PLACE, place, strict=True))
            raise UsageError(
                f"{places.count(place)} slots would share one world: {shared}; "
                "allowed: a namespace or a domain_id of its own for each, by per_slot"
            )
    return slots


def _attaches(options: Mapping[str, Any]) -> bool:
    """Tell whether a slot with these options attaches to a running world over ROS 2."""
    backend, pacing = options.get("backend", "mujoco"), options.get("pacing")
    if not any(accepts_option(backend, name, pacing=pacing) for name in _PLACE):
        return False
    return not (options.get("spawn", True) and accepts_option(backend, "spawn", pacing=pacing))
