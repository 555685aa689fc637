"""What the slots of a vector are made with: the options of each, and whether they can live side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gymnasium.vector import AutoresetMode

from embodied_env.backends import offers_option
from embodied_env.errors import UsageError

PerSlot = Sequence[Mapping[str, Any]] | Callable[[int], Mapping[str, Any]]
"""Options of each slot: a mapping for each, or what gives it for a number."""

_NOT_FOR_MANY = ("fifo_priority", "switch_interval_s")  # worlds that wait need no punctual steps
_PLACE = ("namespace", "domain_id")


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
    if not any(offers_option(backend, name, pacing=pacing) for name in _PLACE):
        return False
    return not (options.get("spawn", True) and offers_option(backend, "spawn", pacing=pacing))
