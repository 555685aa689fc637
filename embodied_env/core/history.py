"""Histories at control steps, oldest first: the last readings of a field, for a contract and for a policy file."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.types import FloatArray, Snapshot
from embodied_env.timing.clock import NS_PER_S

T = TypeVar("T")


def begin_history(first: T, length: int) -> deque[T]:
    """Return the history at the start of an episode: `first`, as often as it is long."""
    return deque([first] * length, maxlen=length)


def stack_values(history: Sequence[Snapshot], sensor: str, field: str) -> NDArray[Any]:
    """Return the values of a field, shape (n, ...)."""
    return np.stack([snapshot.samples[sensor].values[field] for snapshot in history])


def ages_s(history: Sequence[Snapshot], sensor: str, now_ns: int) -> FloatArray:
    """Return the ages of the readings at `now_ns`, shape (n,): one that was held is as old as its acquisition."""
    return np.array([(now_ns - snapshot.samples[sensor].stamp_ns) / NS_PER_S for snapshot in history])
