"""The kinds of faults, and the pure function that decides which messages they hit.

The decision depends only on the seed, the fault's place in the list, the number of the message and the time since the
faults began, never on other messages or earlier draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.clock import NS_PER_S
from embodied_env.errors import UsageError

Message = Any  # a generated ROS type, or in tests anything that can be copied

MAX_HELD_S = 1.0
"""Longest time that a message waits to be overtaken (`Reorder`)."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Hits this `share` of the messages from `after_s` on, for `duration_s`.

    Times count from the first message after the faults were set. `counted_as`: key in `ChaosChannel.counts`.
    """

    share: float = 1.0
    after_s: float = 0.0
    duration_s: float = math.inf
    counted_as: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self._require(0.0 <= self.share <= 1.0, "share", "0 to 1")
        self._require(0.0 <= self.after_s < math.inf, "after_s", "finite seconds >= 0")
        self._require(self.duration_s > 0.0, "duration_s", "seconds > 0")

    def _require(self, holds: bool, name: str, allowed: str) -> None:  # noqa: FBT001 - a condition
        if not holds:
            raise UsageError(
                f"{type(self).__name__}: {name}={getattr(self, name)!r} is not allowed; allowed: {allowed}"
            )

    def is_active(self, elapsed_s: float) -> bool:
        """Return whether it may hit a message that arrives now."""
        return self.after_s <= elapsed_s < self.after_s + self.duration_s


@dataclass(frozen=True, kw_only=True)
class Drop(Fault):
    """The message is lost."""

    counted_as: ClassVar[str] = "dropped"


@dataclass(frozen=True, kw_only=True)
class Delay(Fault):
    """The message is delayed by `delay_s`, growing from 0 within `ramp_s`, plus up to `jitter_s`.

    `in_order`: no message overtakes another, delayed or not.
    """

    delay_s: float
    jitter_s: float = 0.0
    ramp_s: float = 0.0
    in_order: bool = True
    counted_as: ClassVar[str] = "delayed"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("delay_s", "jitter_s", "ramp_s"):
            self._require(0.0 <= getattr(self, name) < math.inf, name, "finite seconds >= 0")

    def seconds(self, elapsed_s: float, rng: np.random.Generator) -> float:
        """Return the delay of a message that arrives now."""
        grown = min(1.0, (elapsed_s - self.after_s) / self.ramp_s) if self.ramp_s > 0.0 else 1.0
        return self.delay_s * grown + self.jitter_s * rng.random()


@dataclass(frozen=True, kw_only=True)
class Duplicate(Fault):
    """The message is repeated `copies` times."""

    copies: int = 1
    counted_as: ClassVar[str] = "duplicated"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.copies >= 1, "copies", "1 or more")


@dataclass(frozen=True, kw_only=True)
class Reorder(Fault):
    """The message is overtaken by the next `places` that are not hit; it waits for at most `MAX_HELD_S`."""

    places: int = 1
    counted_as: ClassVar[str] = "reordered"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.places >= 1, "places", "1 or more")


@dataclass(frozen=True, kw_only=True)
class Corrupt(Fault):
    """A floating-point number of the message, drawn by the seed, or with `every` all of them, become `value`."""

    value: float = math.nan
    every: bool = False
    counted_as: ClassVar[str] = "corrupted"


@dataclass(frozen=True, kw_only=True)
class Freeze(Fault):
    """The message is replaced by the last one that was not frozen, with its old stamp."""

    counted_as: ClassVar[str] = "frozen"


@dataclass(frozen=True, kw_only=True)
class Restamp(Fault):
    """The stamp in the header is wrong.

    ``shift``: it is `offset_s` later (negative: earlier). ``zero``: it is 0. ``old_data``: the stamp is right, but the
    data are those of the last message that was not hit.
    """

    kind: Literal["shift", "zero", "old_data"] = "shift"
    offset_s: float = 0.0
    counted_as: ClassVar[str] = "restamped"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.kind in ("shift", "zero", "old_data"), "kind", "shift, zero, old_data")
        self._require(math.isfinite(self.offset_s), "offset_s", "finite seconds")


@dataclass(frozen=True, kw_only=True)
class Burst(Fault):
    """Messages that arrive in the first `hold_s` of each `every_s` are released together at the end of `hold_s`."""

    hold_s: float
    every_s: float
    counted_as: ClassVar[str] = "held"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0.0 < self.every_s < math.inf, "every_s", "finite seconds > 0")
        self._require(0.0 < self.hold_s <= self.every_s, "hold_s", f"more than 0, at most every_s {self.every_s}")

    def held_ns(self, elapsed_ns: int) -> int:
        """Return how long a message that arrives now is held; 0 or less: not held."""
        hold_ns, every_ns, after_ns = (round(t * NS_PER_S) for t in (self.hold_s, self.every_s, self.after_s))
        return hold_ns - (elapsed_ns - after_ns) % every_ns


@dataclass(frozen=True, kw_only=True)
class Edit(Fault):
    """The message is replaced by the result of `edit` on a copy of it."""

    edit: Callable[[Message], Message]
    counted_as: ClassVar[str] = "edited"


FAULTS: Mapping[str, type[Fault]] = {
    "drop": Drop,
    "delay": Delay,
    "duplicate": Duplicate,
    "reorder": Reorder,
    "corrupt": Corrupt,
    "freeze": Freeze,
    "restamp": Restamp,
    "burst": Burst,
}
"""Faults of the command line, by name."""


def rng_of(seed: int, place: int, number: int, copy: int = 0) -> np.random.Generator:
    """Return the random numbers of a message, or of a copy of it, at the fault at `place` in the list; all >= 0."""
    return np.random.default_rng((seed, place, number, copy))


def is_hit(fault: Fault, elapsed_s: float, rng: np.random.Generator) -> bool:
    """Return whether `fault` hits the message with these random numbers; always draws once."""
    return bool(rng.random() < fault.share) and fault.is_active(elapsed_s)


def decisions(fault: Fault, *, seed: int, place: int, count: int, elapsed_s: float | None = None) -> NDArray[np.bool_]:
    """Return which of the first `count` messages `fault` hits, shape (count,), `elapsed_s` after the faults began.

    `elapsed_s` None: while the fault is active.
    """
    at_s = fault.after_s if elapsed_s is None else elapsed_s
    return np.array([is_hit(fault, at_s, rng_of(seed, place, number)) for number in range(count)], dtype=np.bool_)
