"""Check the options of the slots of a vector environment, and stack their infos."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from embodied_env.backends.registry import accepts_option
from embodied_env.errors import UsageError

PerSlot = Sequence[Mapping[str, Any]] | Callable[[int], Mapping[str, Any]]
"""Options of each slot: a mapping for each, or what gives it for a number."""

_NOT_FOR_MANY = ("fifo_priority", "switch_interval_s")  # worlds that wait need no punctual steps
_PLACE = ("namespace", "domain_id")
_FINAL = "final_obs"  # Gymnasium leaves it unstacked, whatever it is


def checked_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Return the mode by its value or itself; raises UsageError."""
    with suppress(ValueError):
        return AutoresetMode(mode)
    allowed = ", ".join(f"{each} or {each.value!r}" for each in AutoresetMode)
    raise UsageError(f"autoreset_mode={mode!r} is unknown; allowed: {allowed}")


def options_of_slots(num_envs: int, options: Mapping[str, Any], per_slot: PerSlot | None) -> list[dict[str, Any]]:
    """Return the options of each slot; raises UsageError for those that cannot be shared."""
    if callable(per_slot):
        own: Sequence[Mapping[str, Any]] = [per_slot(slot) for slot in range(num_envs)]
    else:
        own = [{}] * num_envs if per_slot is None else per_slot
    if not isinstance(own, Sequence) or not all(isinstance(each, Mapping) for each in own):
        raise UsageError(f"per_slot={own!r} is not allowed; allowed: a mapping for each slot, or what gives it")
    if len(own) != num_envs:
        raise UsageError(f"per_slot has options of {len(own)} slots; allowed: {num_envs}, one mapping for each")
    slots = [{**options, **each} for each in own]
    for name in _NOT_FOR_MANY:
        if any(each.get(name) is not None for each in slots):
            raise UsageError(f"{name} is not available in a vector: its worlds wait; allowed: None")
    clocks = [id(each["clock"]) for each in slots if getattr(each.get("clock"), "virtual", False)]
    if len(set(clocks)) < len(clocks):
        raise UsageError("one virtual clock cannot be under several slots; allowed: clock='virtual', a clock for each")
    _check_places(slots)
    return slots


def stacked(infos: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return the infos of all slots as one; None: the slot has none.

    Raises:
        ValueError: for arrays of one key in different shapes.
    """
    there = [(slot, info) for slot, info in enumerate(infos) if info is not None]
    return _stacked(there, len(infos))


def _stacked(there: list[tuple[int, Mapping[str, Any]]], size: int) -> dict[str, Any]:
    together: dict[str, Any] = {}
    keys = dict.fromkeys(key for _, info in there for key in info)
    everywhere = all(len(info) == len(keys) for _, info in there)
    slots = [slot for slot, _ in there]
    for key in keys:
        if everywhere:
            values = [info[key] for _, info in there]
        else:
            slots = [slot for slot, info in there if key in info]
            values = [info[key] for _, info in there if key in info]
        if isinstance(values[0], dict) and key != _FINAL:
            together[key] = _stacked(list(zip(slots, values, strict=True)), size)
        else:
            together[key] = _column(values, slots, size, as_it_is=key == _FINAL)
        together[f"_{key}"] = _mask(slots, size)
    return together


def _column(values: list[Any], slots: list[int], size: int, *, as_it_is: bool) -> NDArray[Any]:
    """Return one row per slot: zero, or None, for those without a value."""
    first = values[0]
    kind = type(first)
    if as_it_is:
        column = np.full(size, None, dtype=object)
    elif kind in (bool, int, float) or issubclass(kind, np.number):
        if len(values) == size:
            return np.array(values, dtype=kind)
        column = np.zeros(size, dtype=kind)
    elif isinstance(first, np.ndarray):
        column = np.zeros((size, *first.shape), dtype=first.dtype)
    else:
        column = np.full(size, None, dtype=object)
    for slot, value in zip(slots, values, strict=True):
        column[slot] = value
    return column


def _mask(slots: list[int], size: int) -> NDArray[np.bool_]:
    if len(slots) == size:
        return np.full(size, fill_value=True)
    mask = np.zeros(size, dtype=np.bool_)
    mask[slots] = True
    return mask


def _check_places(slots: Sequence[Mapping[str, Any]]) -> None:
    """Raise UsageError when two slots would meet in one world of ROS 2: none of them would have started it."""
    places = [
        tuple(each.get(name) for name in _PLACE)
        for each in slots
        if each.get("namespace") is not None or _attaches(each)
    ]
    for place in places:
        if places.count(place) > 1:
            said = ", ".join(f"{name}={value!r}" for name, value in zip(_PLACE, place, strict=True))
            raise UsageError(
                f"{places.count(place)} slots would share one world: {said}; "
                "allowed: a namespace or a domain_id of its own for each, by per_slot"
            )


def _attaches(options: Mapping[str, Any]) -> bool:
    """Say whether a slot of these options joins a world that somebody else has started."""
    backend, pacing = options.get("backend", "mujoco"), options.get("pacing")
    if not any(accepts_option(backend, name, pacing=pacing) for name in _PLACE):
        return False
    return not (options.get("spawn", True) and accepts_option(backend, "spawn", pacing=pacing))
