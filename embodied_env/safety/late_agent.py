"""Stops that the agent's time alone explains, since all required readings were valid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from embodied_env.core.code_types import Quality

if TYPE_CHECKING:
    from embodied_env.contract import Contract

LATE = "policy_lost:late"
"""End reason in place of such a stop, unless another stop is reported too."""

_VALID = (Quality.OK, Quality.OUT_OF_RANGE)

Reading = tuple[Quality, float, float]
"""Quality and age of a reading when the snapshot was frozen, and its `max_age_s`."""


def have_aged(readings: Iterable[Reading], action_age_s: float) -> bool:
    """Return whether all readings were valid, and one became too old within the agent's time."""
    given = [*readings]
    is_old = any(age_s + action_age_s > max_age_s for _, age_s, max_age_s in given)
    return is_old and were_valid(quality for quality, *_ in given)


def were_valid(qualities: Iterable[Quality]) -> bool:
    """Return whether readings of these qualities were valid."""
    return all(quality in _VALID for quality in qualities)


def is_explained(contract: Contract, code: str, *, late_in_a_row: int, are_valid: bool, action_age_s: float) -> bool:
    """Return whether the agent's time alone explains a stop with this code.

    `late_in_a_row`: last steps in a row in which `have_aged` was true. `are_valid`: those of this step were valid. One
    control period of the watchdog's time is that of the step before.
    """
    safety = contract.safety
    if code == "obs.stale":
        return late_in_a_row >= safety.observation.stop_steps
    is_overdue = action_age_s >= (safety.watchdog.stop_steps - 1) * contract.control_period_s
    return code == "wd.stop" and are_valid and is_overdue
