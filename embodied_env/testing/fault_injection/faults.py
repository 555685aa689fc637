"""What may happen to a message on its way: frozen values, and the pure function that decides whom they befall.

Whether a fault befalls a message depends only on the seed, the fault's place in the list, the number of the message and
the time since the faults began: never on other messages, and never on what was drawn before.
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

Message = Any  # a generated type, or in tests anything that can be copied

MAX_HELD_S = 1.0
"""After which a message that waits for others to overtake it (`Reorder`) waits no more."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Befalls this `share` of the messages from `after_s` on, for `duration_s`, since the faults began.

    They begin with the first message, and anew when they are replaced. `counted_as` is the key of the counts.
    """

    share: float = 1.0
    after_s: float = 0.0
    duration_s: float = math.inf
    counted_as: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check the numbers; raises UsageError."""
        self._require(0.0 <= self.share <= 1.0, "share", "0 to 1")
        self._require(0.0 <= self.after_s < math.inf, "after_s", "finite seconds >= 0")
        self._require(self.duration_s > 0.0, "duration_s", "seconds > 0")

    def _require(self, holds: bool, name: str, allowed: str) -> None:  # noqa: FBT001 - a condition
        if not holds:
            raise UsageError(
                f"{type(self).__name__}: {name}={getattr(self, name)!r} is not allowed; allowed: {allowed}"
            )

    def is_active(self, elapsed_s: float) -> bool:
        """Tell whether it may befall a message that comes now."""
        return self.after_s <= elapsed_s < self.after_s + self.duration_s


@dataclass(frozen=True, kw_only=True)
class Drop(Fault):
    """The message is lost."""

    counted_as: ClassVar[str] = "dropped"


@dataclass(frozen=True, kw_only=True)
class Delay(Fault):
    """The message comes later: by `delay_s`, growing from 0 within `ramp_s`, and by up to `jitter_s` more.

    `in_order`: no message overtakes another, also none that is not delayed.
    """

    delay_s: float
    jitter_s: float = 0.0
    ramp_s: float = 0.0
    in_order: bool = True
    counted_as: ClassVar[str] = "delayed"

    def __post_init__(self) -> None:
        """Check the numbers; raises UsageError."""
        super().__post_init__()
        for name in ("delay_s", "jitter_s", "ramp_s"):
            self._require(0.0 <= getattr(self, name) < math.inf, name, "finite seconds >= 0")

    def seconds(self, elapsed_s: float, rng: np.random.Generator) -> float:
        """Return how late a message is that comes now."""
        grown = min(1.0, (elapsed_s - self.after_s) / self.ramp_s) if self.ramp_s > 0.0 else 1.0
        return self.delay_s * grown + self.jitter_s * rng.random()


@dataclass(frozen=True, kw_only=True)
class Duplicate(Fault):
    """The message comes `copies` times more."""

    copies: int = 1
    counted_as: ClassVar[str] = "duplicated"

    def __post_init__(self) -> None:
        """Check the numbers; raises UsageError."""
        super().__post_init__()
        self._require(self.copies >= 1, "copies", "1 or more")


@dataclass(frozen=True, kw_only=True)
class Reorder(Fault):
    """The message is overtaken by the next `places` that are not befallen; it waits for `MAX_HELD_S` at most."""

    places: int = 1
    counted_as: ClassVar[str] = "reordered"

    def __post_init__(self) -> None:
        """Check the numbers; raises UsageError."""
        super().__post_init__()
        self._require(self.places >= 1, "places", "1 or more")


@dataclass(frozen=True, kw_only=True)
class Corrupt(Fault):
    """A floating-point number of the message, chosen by the seed, or with `every` all of them, becomes `value`."""

    value: float = math.nan
    every: bool = False
    counted_as: ClassVar[str] = "corrupted"


@dataclass(frozen=True, kw_only=True)
class Freeze(Fault):
    """Instead of the message comes the last one that was not frozen, with its old stamp."""

    counted_as: ClassVar[str] = "frozen"


@dataclass(frozen=True, kw_only=True)
class Restamp(Fault):
    """The stamp in the header lies.

    ``shift``: it is `offset_s` later (negative: earlier). ``zero``: it is 0. ``old_data``: the stamp is right, but the
    data are those of the last message that was not restamped.
    """

    kind: Literal["shift", "zero", "old_data"] = "shift"
    offset_s: float = 0.0
    counted_as: ClassVar[str] = "restamped"

    def __post_init__(self) -> None:
        """Check the values; raises UsageError."""
        super().__post_init__()
        self._require(self.kind in ("shift", "zero", "old_data"), "kind", "shift, zero, old_data")
        self._require(math.isfinite(self.offset_s), "offset_s", "finite seconds")


@dataclass(frozen=True, kw_only=True)
class Burst(Fault):
    """Of each `every_s`, what comes in the first `hold_s` is held, and released together at their end."""

    hold_s: float
    every_s: float
    counted_as: ClassVar[str] = "held"

    def __post_init__(self) -> None:
        """Check the numbers; raises UsageError."""
        super().__post_init__()
        self._require(0.0 < self.every_s < math.inf, "every_s", "finite seconds > 0")
        self._require(0.0 < self.hold_s <= self.every_s, "hold_s", f"more than 0, at most every_s {self.every_s}")

    def held_ns(self, elapsed_ns: int) -> int:
        """Return how long a message is held that comes now; 0 or less: not at all."""
        hold_ns, every_ns, after_ns = (round(t * NS_PER_S) for t in (self.hold_s, self.every_s, self.after_s))
        return hold_ns - (elapsed_ns - after_ns) % every_ns


@dataclass(frozen=True, kw_only=True)
class Edit(Fault):
    """The message is replaced by what `edit` returns for a copy of it: for what the others cannot do."""

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
"""What the command line knows, by name."""


def rng_of(seed: int, place: int, number: int, copy: int = 0) -> np.random.Generator:
    """Return the source of chance of a message, or of a copy of it, at the fault at `place` in the list; all >= 0."""
    return np.random.default_rng((seed, place, number, copy))


def is_befallen(fault: Fault, elapsed_s: float, rng: np.random.Generator) -> bool:
    """Decide whether `fault` befalls the message whose source of chance is `rng`: it draws once, whatever happens."""
    return bool(rng.random() < fault.share) and fault.is_active(elapsed_s)


def decisions(fault: Fault, *, seed: int, place: int, count: int, elapsed_s: float | None = None) -> NDArray[np.bool_]:
    """Return which of the first `count` messages `fault` befalls, shape (count,).

    `elapsed_s` None: within its time; else for messages that come so long after the faults began.
    """
    at_s = fault.after_s if elapsed_s is None else elapsed_s
    return np.array([is_befallen(fault, at_s, rng_of(seed, place, number)) for number in range(count)], dtype=np.bool_)
