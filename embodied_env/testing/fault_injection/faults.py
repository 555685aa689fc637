"""Kinds of faults, and the channel that applies them, without a thread, clock or ROS.

Whether a fault hits a message depends only on the seed, the fault's place in the list, the number of the message and
the time since the faults began, never on other messages or earlier draws.
"""

from __future__ import annotations

import array
import copy
import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from embodied_env.errors import UsageError
from embodied_env.timing.clock import NS_PER_S

Message = Any  # a generated ROS type, or in tests anything that can be copied

MAX_HELD_S = 1.0
"""Longest time that a message waits to be overtaken (`Reorder`)."""

_LAST_STAMP_NS = (2**31 - 1) * NS_PER_S  # the seconds of a stamp are an int32


@dataclass(frozen=True, kw_only=True)
class Item:
    """Message in transit with its arrival number and the time at which it leaves."""

    message: Message
    number: int
    due_ns: int
    copy: int = 0


@dataclass(frozen=True, kw_only=True)
class Hit:
    """When a fault hits an item, since the faults began, with the item's random numbers there."""

    now_ns: int
    elapsed_ns: int
    rng: np.random.Generator


@dataclass(kw_only=True)
class WaitingItem:
    """An item that waits until `places` more have passed, or until `latest_ns`."""

    item: Item
    places: int
    latest_ns: int


@dataclass(kw_only=True)
class FaultState:
    """The state of a fault between messages."""

    last: Message | None = None  # last message that it did not hit
    last_due_ns: int = 0  # when the last message leaves (`Delay`)
    waiting: list[WaitingItem] = field(default_factory=list)  # to be overtaken (`Reorder`)

    def release(self, now_ns: int | None) -> list[Item]:
        """Return the items that have waited long enough by `now_ns`, or all items if it is None."""
        done = [each.item for each in self.waiting if now_ns is None or each.latest_ns <= now_ns]
        self.waiting = [each for each in self.waiting if now_ns is not None and each.latest_ns > now_ns]
        return done


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

    def _require(self, holds: bool, name: str, expected: str) -> None:  # noqa: FBT001 - a condition
        if not holds:
            raise UsageError(f"invalid {type(self).__name__}.{name}: {getattr(self, name)!r} (expected {expected})")

    def hits(self, elapsed_s: float, rng: np.random.Generator) -> bool:
        """Return whether the fault hits a message that arrives now, by exactly one draw of `rng`."""
        return bool(rng.random() < self.share) and self.after_s <= elapsed_s < self.after_s + self.duration_s

    def apply(self, item: Item, hit: Hit, state: FaultState) -> list[Item] | None:
        """Return the items that replace `item` when hit, or None if the fault does not apply."""
        raise NotImplementedError

    def skip(self, item: Item, state: FaultState) -> list[Item]:
        """Return the items that pass when the fault does not hit `item`."""
        state.last = item.message
        return [item]


@dataclass(frozen=True, kw_only=True)
class Drop(Fault):
    """The message is lost."""

    counted_as: ClassVar[str] = "dropped"

    def apply(self, item: Item, hit: Hit, state: FaultState) -> list[Item]:  # noqa: ARG002
        """Drop the message."""
        return []


@dataclass(frozen=True, kw_only=True)
class Delay(Fault):
    """The message is delayed by `delay_s`, plus up to `jitter_s`.

    The delay grows from 0 within `ramp_s`. `in_order`: no message overtakes another, delayed or not.
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

    def skip(self, item: Item, state: FaultState) -> list[Item]:
        """Keep a message behind the delayed ones unless overtaking is allowed."""
        if self.in_order:
            state.last_due_ns = max(item.due_ns, state.last_due_ns)
            item = replace(item, due_ns=state.last_due_ns)
        return [item]

    def apply(self, item: Item, hit: Hit, state: FaultState) -> list[Item]:
        """Delay the message."""
        elapsed_s = hit.elapsed_ns / NS_PER_S
        grown = min(1.0, (elapsed_s - self.after_s) / self.ramp_s) if self.ramp_s > 0.0 else 1.0
        delay_s = self.delay_s * grown + self.jitter_s * hit.rng.random()
        return self.skip(replace(item, due_ns=item.due_ns + round(delay_s * NS_PER_S)), state)


@dataclass(frozen=True, kw_only=True)
class Duplicate(Fault):
    """The message is repeated `copies` times."""

    copies: int = 1
    counted_as: ClassVar[str] = "duplicated"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.copies >= 1, "copies", "1 or more")

    def apply(self, item: Item, hit: Hit, state: FaultState) -> list[Item]:  # noqa: ARG002
        """Return the message and its copies."""
        return [replace(item, copy=item.copy * (self.copies + 1) + i) for i in range(self.copies + 1)]


@dataclass(frozen=True, kw_only=True)
class Reorder(Fault):
    """The next `places` messages without a hit overtake one, which waits `MAX_HELD_S` at most."""

    places: int = 1
    counted_as: ClassVar[str] = "reordered"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.places >= 1, "places", "1 or more")

    def skip(self, item: Item, state: FaultState) -> list[Item]:
        """Pass the message on, and those that it was the last to overtake."""
        for each in state.waiting:
            each.places -= 1
        done = [each.item for each in state.waiting if each.places == 0]
        state.waiting = [each for each in state.waiting if each.places > 0]
        return [item, *(replace(each, due_ns=max(each.due_ns, item.due_ns)) for each in done)]

    def apply(self, item: Item, hit: Hit, state: FaultState) -> list[Item]:
        """Keep the message waiting."""
        latest_ns = hit.now_ns + round(MAX_HELD_S * NS_PER_S)
        state.waiting.append(WaitingItem(item=item, places=self.places, latest_ns=latest_ns))
        return []


@dataclass(frozen=True, kw_only=True)
class Corrupt(Fault):
    """One floating-point number of the message, drawn, or with `every` all, become `value`."""

    value: float = math.nan
    every: bool = False
    counted_as: ClassVar[str] = "corrupted"

    def apply(self, item: Item, hit: Hit, state: FaultState) -> list[Item] | None:  # noqa: ARG002
        """Corrupt a copy of the message, unless it has no floating-point numbers."""
        message = copy.deepcopy(item.message)
        places = _float_places(message)
        if not places:
            return None
        chosen = places if self.every else [places[int(hit.rng.integers(len(places)))]]
        for owner, key in chosen:
            if isinstance(key, str):
                setattr(owner, key, self.value)
            else:
                owner[key] = self.value
        return [replace(item, message=message)]


@dataclass(frozen=True, kw_only=True)
class Freeze(Fault):
    """The message is replaced by the last one that was not frozen, with its old stamp."""

    counted_as: ClassVar[str] = "frozen"

    def apply(self, item: Item, hit: Hit, state: FaultState) -> list[Item] | None:  # noqa: ARG002
        """Return the last message that was not frozen instead, or None for the first one."""
        return None if state.last is None else [replace(item, message=state.last)]


@dataclass(frozen=True, kw_only=True)
class Restamp(Fault):
    """The stamp in the header is wrong, or right but above old data.

    ``shift``: it is `offset_s` later (negative: earlier). ``zero``: it is 0. ``old_data``: the stamp is unchanged, the
    data are those of the last message that was not hit.
    """

    kind: Literal["shift", "zero", "old_data"] = "shift"
    offset_s: float = 0.0
    counted_as: ClassVar[str] = "restamped"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.kind in ("shift", "zero", "old_data"), "kind", "shift, zero, old_data")
        self._require(math.isfinite(self.offset_s), "offset_s", "finite seconds")

    def apply(self, item: Item, hit: Hit, state: FaultState) -> list[Item] | None:  # noqa: ARG002
        """Change the stamp in a copy of the message."""
        is_old = self.kind == "old_data"
        data = state.last if is_old else item.message
        if data is None:
            return None
        message, stamp = copy.deepcopy(data), item.message.header.stamp
        offset_ns = 0 if is_old else round(self.offset_s * NS_PER_S)
        stamp_ns = 0 if self.kind == "zero" else stamp.sec * NS_PER_S + stamp.nanosec + offset_ns
        stamp = message.header.stamp
        stamp.sec, stamp.nanosec = divmod(max(0, min(stamp_ns, _LAST_STAMP_NS)), NS_PER_S)
        return [replace(item, message=message)]


@dataclass(frozen=True, kw_only=True)
class Burst(Fault):
    """Messages of the first `hold_s` of each `every_s` are released together at its end."""

    hold_s: float
    every_s: float
    counted_as: ClassVar[str] = "held"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0.0 < self.every_s < math.inf, "every_s", "finite seconds > 0")
        self._require(0.0 < self.hold_s <= self.every_s, "hold_s", f"more than 0, at most every_s {self.every_s}")

    def apply(self, item: Item, hit: Hit, state: FaultState) -> list[Item] | None:  # noqa: ARG002
        """Hold the message if it arrives in a burst."""
        hold_ns, every_ns, after_ns = (round(t * NS_PER_S) for t in (self.hold_s, self.every_s, self.after_s))
        held_ns = hold_ns - (hit.elapsed_ns - after_ns) % every_ns
        if held_ns <= 0:
            return None
        return [replace(item, due_ns=max(item.due_ns, hit.now_ns + held_ns))]


@dataclass(frozen=True, kw_only=True)
class Edit(Fault):
    """The message is replaced by the result of `edit` on a copy of it."""

    edit: Callable[[Message], Message]
    counted_as: ClassVar[str] = "edited"

    def apply(self, item: Item, hit: Hit, state: FaultState) -> list[Item]:  # noqa: ARG002
        """Return the edited copy."""
        return [replace(item, message=self.edit(copy.deepcopy(item.message)))]


FAULTS: tuple[type[Fault], ...] = (Drop, Delay, Duplicate, Reorder, Corrupt, Freeze, Restamp, Burst, Edit)
"""Every kind of fault."""


def rng_of(seed: int, place: int, number: int, copy: int = 0) -> np.random.Generator:
    """Return the random numbers of a message or copy at the fault at `place`, all numbers >= 0."""
    return np.random.default_rng((seed, place, number, copy))


def _float_places(value: Any) -> list[tuple[Any, str | int]]:  # noqa: ANN401 - a message, or a part of one
    """Return the floats of a message as pairs of an owner and an attribute or index."""
    if isinstance(value, (array.array, np.ndarray)):
        is_float = value.typecode in "fd" if isinstance(value, array.array) else value.dtype.kind == "f"
        return [(value, index) for index in range(len(value))] if is_float else []
    parts: list[tuple[str | int, Any]] = []
    if hasattr(value, "get_fields_and_field_types"):
        parts = [(field, getattr(value, field)) for field in value.get_fields_and_field_types()]
    elif isinstance(value, list):
        parts = list(enumerate(value))
    return [
        place for key, part in parts for place in ([(value, key)] if isinstance(part, float) else _float_places(part))
    ]


class FaultChannel:
    """Channel that accepts messages with `put` and returns those that are due with `take`.

    Times are nanoseconds of one clock. Only a `Drop` loses messages, so that in `counts` received + duplicated =
    dropped + published + pending.
    """

    def __init__(self, faults: Sequence[Fault] = (), *, seed: int) -> None:
        """Apply `faults` in this order, or raise UsageError for a negative seed."""
        if seed < 0:
            raise UsageError(f"invalid seed: {seed} (expected 0 or more)")
        self._seed = seed
        self._number = 0
        self._order = 0
        self._outbox: list[tuple[int, int, Message]] = []  # a heap: due, order, message
        self._counts = Counter({"received": 0, "published": 0, **{kind.counted_as: 0 for kind in FAULTS}})
        self._stages: list[tuple[Fault, FaultState]] = []
        self.replace(faults)

    def replace(self, faults: Sequence[Fault]) -> None:
        """Apply other faults from the next message on, while messages in transit keep their time."""
        for place, (_, state) in enumerate(self._stages):
            for item in state.release(None):
                self._forward(item, place + 1, item.due_ns)
        self._began_ns: int | None = None
        self._stages = [(fault, FaultState()) for fault in faults]

    def put(self, message: Message, now_ns: int) -> None:
        """Accept a message that arrives now."""
        if self._began_ns is None:
            self._began_ns = now_ns
        self._counts["received"] += 1
        number, self._number = self._number, self._number + 1
        self._forward(Item(message=message, number=number, due_ns=now_ns), 0, now_ns)

    def take(self, now_ns: int) -> list[Message]:
        """Return the messages that are due by now, in the order in which they leave."""
        for place, (_, state) in enumerate(self._stages):
            for item in state.release(now_ns):
                self._forward(item, place + 1, now_ns)
        taken = []
        while self._outbox and self._outbox[0][0] <= now_ns:
            taken.append(heapq.heappop(self._outbox)[2])
        self._counts["published"] += len(taken)
        return taken

    def next_ns(self) -> int | None:
        """Return when the next message is due, or None if none is in transit."""
        waiting = [each.latest_ns for _, state in self._stages for each in state.waiting]
        return min([*waiting, *(due_ns for due_ns, _, _ in self._outbox[:1])], default=None)

    def counts(self) -> dict[str, int]:
        """Return the number of messages received, published, pending, and hit by each fault."""
        pending = len(self._outbox) + sum(len(state.waiting) for _, state in self._stages)
        return {**self._counts, "pending": pending}

    def _forward(self, item: Item, place: int, now_ns: int) -> None:
        """Pass an item through the stages from `place` on, into the outbox."""
        items = [item]
        elapsed_ns = now_ns - (now_ns if self._began_ns is None else self._began_ns)
        for index in range(place, len(self._stages)):
            fault, state = self._stages[index]
            passed: list[Item] = []
            for each in items:
                rng = rng_of(self._seed, index, each.number, each.copy)
                hit = Hit(now_ns=now_ns, elapsed_ns=elapsed_ns, rng=rng)
                replaced = fault.apply(each, hit, state) if fault.hits(elapsed_ns / NS_PER_S, rng) else None
                if replaced is not None:
                    self._counts[fault.counted_as] += max(1, len(replaced) - 1)  # each copy counts
                passed += fault.skip(each, state) if replaced is None else replaced
            items = passed
        for each in items:
            heapq.heappush(self._outbox, (each.due_ns, self._order, each.message))
            self._order += 1
