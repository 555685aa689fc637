"""Values for the reset options of a contract, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_env.contract.contract import Contract
from embodied_env.contract.schema import FloatArray
from embodied_env.errors import UsageError


def checked_options(contract: Contract, options: Mapping[str, Any] | None) -> dict[str, FloatArray]:
    """Return `options` as arrays within the bounds of the contract.

    Raises:
        UsageError: for an option that the contract does not have, or a value of another shape or outside its bounds.
    """
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"options={options!r} is not allowed; allowed: a mapping of reset options, or None")
    known = contract.reset_options
    checked: dict[str, FloatArray] = {}
    for name, value in (options or {}).items():
        if name not in known:
            raise UsageError(f"reset option {name!r} is not known; allowed: {', '.join(known) or 'none'}")
        low, high = known[name].low_array, known[name].high_array
        array = _numbers(value)
        if array.shape != low.shape or not ((low <= array) & (array <= high)).all():
            raise UsageError(
                f"reset option {name}={value!r} is not allowed; "
                f"allowed: shape {low.shape} between {low.tolist()} and {high.tolist()}"
            )
        checked[name] = array
    return checked


def _numbers(value: Any) -> FloatArray:  # noqa: ANN401 - users give anything
    """Return `value` as an array of numbers; what is none, is masked or is a truth value becomes NaN."""
    try:
        given = np.asarray(value)
        is_number = given.dtype.kind in "fiu" and not np.ma.isMaskedArray(value)
        return given.astype(np.float64) if is_number else np.array(np.nan)
    except (TypeError, ValueError, OverflowError):
        return np.array(np.nan)
