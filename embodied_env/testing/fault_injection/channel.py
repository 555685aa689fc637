"""The chaos channel: messages in, messages out, with faults in between. No thread, clock or ROS."""

from __future__ import annotations

import array
import copy
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embodied_env.core.clock import NS_PER_S
from embodied_env.errors import UsageError
from embodied_env.testing.fault_injection.faults import (
    MAX_HELD_S,
    Burst,
    Corrupt,
    Delay,
    Drop,
    Duplicate,
    Edit,
    Fault,
    Freeze,
    Message,
    Reorder,
    Restamp,
    is_hit,
    rng_of,
)

_LAST_STAMP_NS = (2**31 - 1) * NS_PER_S  # the seconds of a stamp are an int32


@dataclass(frozen=True, kw_only=True)
class _Item:
    """A message in transit: its arrival number, and when it leaves."""

    message: Message
    number: int
    due_ns: int
    copy: int = 0


@dataclass(frozen=True, kw_only=True)
class _Moment:
    """When an item passes a stage, the time since the faults began, and the item's random numbers there."""

    now_ns: int
    elapsed_ns: int
    rng: np.random.Generator


@dataclass(kw_only=True)
class _Waiting:
    """A message that waits until `places` more have passed, or until `latest_ns`."""

    item: _Item
    places: int
    latest_ns: int


class ChaosChannel:
    """Accepts messages with `put` and returns those that are due with `take`. Times are nanoseconds of one clock.

    Only a `Drop` loses messages: in `counts`, received + duplicated = dropped + published + pending.
    """

    def __init__(self, faults: Sequence[Fault] = (), *, seed: int) -> None:
        """Apply `faults` in this order.

        Raises:
            UsageError: for a negative seed.
        """
        if seed < 0:
            raise UsageError(f"seed={seed} is not allowed; allowed: 0 or more")
        self._seed = seed
        self._number = 0
        self._order = 0
        self._outbox: list[tuple[int, int, Message]] = []  # a heap: due, order, message
        self._counts = {"received": 0, "published": 0, **{kind.counted_as: 0 for kind in _STAGES}}
        self._stages: list[_Stage] = []
        self.replace(faults)

    def replace(self, faults: Sequence[Fault]) -> None:
        """Apply other faults from the next message on; messages in transit keep their time."""
        for place, stage in enumerate(self._stages):
            for item in stage.release(None):
                self._forward(item, place + 1, item.due_ns)
        self._began_ns: int | None = None
        self._stages = [_STAGES[type(fault)](fault, self._counts) for fault in faults]

    def put(self, message: Message, now_ns: int) -> None:
        """Accept a message that arrives now."""
        if self._began_ns is None:
            self._began_ns = now_ns
        self._counts["received"] += 1
        number, self._number = self._number, self._number + 1
        self._forward(_Item(message=message, number=number, due_ns=now_ns), 0, now_ns)

    def take(self, now_ns: int) -> list[Message]:
        """Return the messages that are due by now, in the order in which they leave."""
        for place, stage in enumerate(self._stages):
            for item in stage.release(now_ns):
                self._forward(item, place + 1, now_ns)
        taken = []
        while self._outbox and self._outbox[0][0] <= now_ns:
            taken.append(heapq.heappop(self._outbox)[2])
        self._counts["published"] += len(taken)
        return taken

    def next_ns(self) -> int | None:
        """Return when the next message is due if none arrives before; None: none is in transit."""
        waiting = [each.latest_ns for stage in self._stages for each in stage.waiting]
        return min([*waiting, *(due_ns for due_ns, _, _ in self._outbox[:1])], default=None)

    def counts(self) -> dict[str, int]:
        """Return the numbers of messages received, published, pending, and hit by each kind of fault."""
        pending = len(self._outbox) + sum(len(stage.waiting) for stage in self._stages)
        return {**self._counts, "pending": pending}

    def _forward(self, item: _Item, place: int, now_ns: int) -> None:
        """Pass an item through the stages from `place` on, into the outbox."""
        items = [item]
        elapsed_ns = now_ns - (now_ns if self._began_ns is None else self._began_ns)
        for index in range(place, len(self._stages)):
            stage = self._stages[index]
            passed: list[_Item] = []
            for each in items:
                rng = rng_of(self._seed, index, each.number, each.copy)
                hit = is_hit(stage.fault, elapsed_ns / NS_PER_S, rng)
                moment = _Moment(now_ns=now_ns, elapsed_ns=elapsed_ns, rng=rng)
                passed += stage.apply(each, moment) if hit else stage.skip(each)
            items = passed
        for each in items:
            heapq.heappush(self._outbox, (each.due_ns, self._order, each.message))
            self._order += 1


class _Stage:
    """A fault with its state between messages."""

    def __init__(self, fault: Any, counts: dict[str, int]) -> None:  # noqa: ANN401 - of the stage's kind
        self.fault = fault
        self.waiting: list[_Waiting] = []
        self._counts = counts
        self._last: Message | None = None  # the last message without a fault

    def skip(self, item: _Item) -> list[_Item]:
        """Return what goes on to the next stage when the fault does not hit `item`."""
        self._last = item.message
        return [item]

    def apply(self, item: _Item, moment: _Moment) -> list[_Item]:
        """Return what goes on to the next stage when the fault hits `item`."""
        raise NotImplementedError

    def release(self, now_ns: int | None) -> list[_Item]:
        """Return the items that have waited long enough by now; None: all."""
        done = [each.item for each in self.waiting if now_ns is None or each.latest_ns <= now_ns]
        self.waiting = [each for each in self.waiting if now_ns is not None and each.latest_ns > now_ns]
        return done

    def _count(self, number: int = 1) -> None:
        self._counts[self.fault.counted_as] += number


class _Drop(_Stage):
    def apply(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        self._count()
        return []


class _Delay(_Stage):
    _last_due_ns = 0

    def skip(self, item: _Item) -> list[_Item]:
        if self.fault.in_order:
            item = replace(item, due_ns=max(item.due_ns, self._last_due_ns))
            self._last_due_ns = item.due_ns
        return [item]

    def apply(self, item: _Item, moment: _Moment) -> list[_Item]:
        self._count()
        late_ns = round(self.fault.seconds(moment.elapsed_ns / NS_PER_S, moment.rng) * NS_PER_S)
        return self.skip(replace(item, due_ns=item.due_ns + late_ns))


class _Duplicate(_Stage):
    def apply(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        self._count(self.fault.copies)
        return [replace(item, copy=item.copy * (self.fault.copies + 1) + i) for i in range(self.fault.copies + 1)]


class _Reorder(_Stage):
    def skip(self, item: _Item) -> list[_Item]:
        for each in self.waiting:
            each.places -= 1
        done = [each.item for each in self.waiting if each.places == 0]
        self.waiting = [each for each in self.waiting if each.places > 0]
        return [item, *(replace(each, due_ns=max(each.due_ns, item.due_ns)) for each in done)]

    def apply(self, item: _Item, moment: _Moment) -> list[_Item]:
        self._count()
        latest_ns = moment.now_ns + round(MAX_HELD_S * NS_PER_S)
        self.waiting.append(_Waiting(item=item, places=self.fault.places, latest_ns=latest_ns))
        return []


class _Corrupt(_Stage):
    def apply(self, item: _Item, moment: _Moment) -> list[_Item]:
        message = copy.deepcopy(item.message)
        places = _float_places(message)
        if not places:
            return [item]
        self._count()
        chosen = places if self.fault.every else [places[int(moment.rng.integers(len(places)))]]
        for owner, key in chosen:
            if isinstance(key, str):
                setattr(owner, key, self.fault.value)
            else:
                owner[key] = self.fault.value
        return [replace(item, message=message)]


class _Freeze(_Stage):
    def apply(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        if self._last is None:  # the first message is repeated from now on
            return self.skip(item)
        self._count()
        return [replace(item, message=self._last)]


class _Restamp(_Stage):
    def apply(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        is_old = self.fault.kind == "old_data"
        data = self._last if is_old else item.message
        if data is None:
            return self.skip(item)
        self._count()
        message = copy.deepcopy(data)
        stamp = item.message.header.stamp
        offset_ns = 0 if is_old else round(self.fault.offset_s * NS_PER_S)
        stamp_ns = 0 if self.fault.kind == "zero" else stamp.sec * NS_PER_S + stamp.nanosec + offset_ns
        stamp = message.header.stamp
        stamp.sec, stamp.nanosec = divmod(max(0, min(stamp_ns, _LAST_STAMP_NS)), NS_PER_S)
        return [replace(item, message=message)]


class _Burst(_Stage):
    def apply(self, item: _Item, moment: _Moment) -> list[_Item]:
        held_ns = self.fault.held_ns(moment.elapsed_ns)
        if held_ns <= 0:
            return [item]
        self._count()
        return [replace(item, due_ns=max(item.due_ns, moment.now_ns + held_ns))]


class _Edit(_Stage):
    def apply(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        self._count()
        return [replace(item, message=self.fault.edit(copy.deepcopy(item.message)))]


_STAGES: dict[type[Fault], type[_Stage]] = {
    Drop: _Drop,
    Delay: _Delay,
    Duplicate: _Duplicate,
    Reorder: _Reorder,
    Corrupt: _Corrupt,
    Freeze: _Freeze,
    Restamp: _Restamp,
    Burst: _Burst,
    Edit: _Edit,
}


def _float_places(value: Any) -> list[tuple[Any, str | int]]:  # noqa: ANN401 - a message, or a part of one
    """Return the floating-point numbers of a message as pairs of an owner and an attribute or index."""
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
