"""Messages in, messages out, with faults between: no thread, no clock, no ROS."""

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
    is_befallen,
    rng_of,
)

_LAST_STAMP_NS = (2**31 - 1) * NS_PER_S  # seconds of a stamp are an int32


@dataclass(frozen=True, kw_only=True)
class _Item:
    """A message under way: the number of its arrival, and when it is to leave."""

    message: Message
    number: int
    due_ns: int
    copy: int = 0


@dataclass(frozen=True, kw_only=True)
class _Moment:
    """When an item passes a stage, how long after the faults began, and its source of chance there."""

    now_ns: int
    elapsed_ns: int
    rng: np.random.Generator


@dataclass(kw_only=True)
class _Overtaken:
    """A message that waits until `places` more have passed, or until `latest_ns`."""

    item: _Item
    places: int
    latest_ns: int


class ChaosChannel:
    """Takes messages with `put`, gives those that are due with `take`. Times are nanoseconds of one clock.

    Nothing is lost but what a `Drop` takes: received + duplicated = dropped + published + pending, in `counts`.
    """

    def __init__(self, faults: Sequence[Fault] = (), *, seed: int) -> None:
        """Prepare.

        Args:
            faults: applied in this order.
            seed: >= 0; the same seed and messages lead to the same decisions.

        Raises:
            UsageError: for a negative seed.
        """
        if seed < 0:
            raise UsageError(f"seed={seed} is not allowed; allowed: 0 or more")
        self._seed = seed
        self._number = 0
        self._order = 0
        self._began_ns: int | None = None
        self._outbox: list[tuple[int, int, Message]] = []  # a heap: due, order, message
        self._counts = {"received": 0, "published": 0, **{kind.counted_as: 0 for kind in _STAGES}}
        self._stages: list[_Stage] = []
        self._set(faults)

    def replace(self, faults: Sequence[Fault]) -> None:
        """Apply other faults from the next message on; what is under way arrives as it was to."""
        for place, stage in enumerate(self._stages):
            for item in stage.release(None):
                self._forward(item, place + 1, item.due_ns)
        self._set(faults)

    def _set(self, faults: Sequence[Fault]) -> None:
        self._began_ns = None
        self._stages = [_STAGES[type(fault)](fault, self._counts) for fault in faults]

    def put(self, message: Message, now_ns: int) -> None:
        """Take a message that has arrived now."""
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
        """Return when `take` will have something, if nothing arrives before; None: never."""
        times = [time for stage in self._stages if (time := stage.next_ns()) is not None]
        return min([*times, *(entry[0] for entry in self._outbox[:1])], default=None)

    def counts(self) -> dict[str, int]:
        """Return how many messages were received and published, how many each kind of fault befell, and are pending."""
        pending = len(self._outbox) + sum(stage.pending() for stage in self._stages)
        return {**self._counts, "pending": pending}

    def _forward(self, item: _Item, place: int, now_ns: int) -> None:
        """Send an item through the stages from `place` on, and into the outbox."""
        items = [item]
        elapsed_ns = now_ns - (now_ns if self._began_ns is None else self._began_ns)
        for index in range(place, len(self._stages)):
            stage = self._stages[index]
            passed: list[_Item] = []
            for each in items:
                rng = rng_of(self._seed, index, each.number, each.copy)
                is_hit = is_befallen(stage.fault, elapsed_ns / NS_PER_S, rng)
                moment = _Moment(now_ns=now_ns, elapsed_ns=elapsed_ns, rng=rng)
                passed += stage.befall(each, moment) if is_hit else stage.spare(each, moment)
            items = passed
        for each in items:
            heapq.heappush(self._outbox, (each.due_ns, self._order, each.message))
            self._order += 1


class _Stage:
    """One fault at work; what it keeps between messages is in here."""

    def __init__(self, fault: Any, counts: dict[str, int]) -> None:  # noqa: ANN401 - of the stage's kind
        self.fault = fault
        self._counts = counts

    def spare(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        """Return what goes on to the next stage when the fault does not befall `item`."""
        return [item]

    def befall(self, item: _Item, moment: _Moment) -> list[_Item]:
        """Return what goes on to the next stage when it does."""
        raise NotImplementedError

    def release(self, now_ns: int | None) -> list[_Item]:  # noqa: ARG002 - most keep nothing
        """Return what has waited long enough by now; None: everything."""
        return []

    def next_ns(self) -> int | None:
        """Return when `release` will have something."""
        return None

    def pending(self) -> int:
        """Count what is kept."""
        return 0

    def _count(self, number: int = 1) -> None:
        self._counts[self.fault.counted_as] += number


class _Drop(_Stage):
    def befall(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        self._count()
        return []


class _Delay(_Stage):
    _last_due_ns = 0

    def spare(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        return [self._in_order(item)]

    def befall(self, item: _Item, moment: _Moment) -> list[_Item]:
        self._count()
        late_ns = round(self.fault.seconds(moment.elapsed_ns / NS_PER_S, moment.rng) * NS_PER_S)
        return [self._in_order(replace(item, due_ns=item.due_ns + late_ns))]

    def _in_order(self, item: _Item) -> _Item:
        if self.fault.in_order:
            item = replace(item, due_ns=max(item.due_ns, self._last_due_ns))
            self._last_due_ns = item.due_ns
        return item


class _Duplicate(_Stage):
    def befall(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        self._count(self.fault.copies)
        return [replace(item, copy=item.copy * (self.fault.copies + 1) + i) for i in range(self.fault.copies + 1)]


class _Reorder(_Stage):
    def __init__(self, fault: Reorder, counts: dict[str, int]) -> None:
        super().__init__(fault, counts)
        self._waiting: list[_Overtaken] = []

    def spare(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        for waiting in self._waiting:
            waiting.places -= 1
        done = [waiting.item for waiting in self._waiting if waiting.places == 0]
        self._waiting = [waiting for waiting in self._waiting if waiting.places > 0]
        return [item, *(replace(each, due_ns=max(each.due_ns, item.due_ns)) for each in done)]

    def befall(self, item: _Item, moment: _Moment) -> list[_Item]:
        self._count()
        latest_ns = moment.now_ns + round(MAX_HELD_S * NS_PER_S)
        self._waiting.append(_Overtaken(item=item, places=self.fault.places, latest_ns=latest_ns))
        return []

    def release(self, now_ns: int | None) -> list[_Item]:
        done = [waiting.item for waiting in self._waiting if now_ns is None or waiting.latest_ns <= now_ns]
        self._waiting = [waiting for waiting in self._waiting if now_ns is not None and waiting.latest_ns > now_ns]
        return done

    def next_ns(self) -> int | None:
        return min((waiting.latest_ns for waiting in self._waiting), default=None)

    def pending(self) -> int:
        return len(self._waiting)


class _Corrupt(_Stage):
    def befall(self, item: _Item, moment: _Moment) -> list[_Item]:
        message = copy.deepcopy(item.message)
        places = float_places(message)
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
    _last: Message | None = None

    def spare(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        self._last = item.message
        return [item]

    def befall(self, item: _Item, moment: _Moment) -> list[_Item]:
        if self._last is None:  # there is nothing older: this one is repeated from now on
            return self.spare(item, moment)
        self._count()
        return [replace(item, message=self._last)]


class _Restamp(_Stage):
    _last: Message | None = None

    def spare(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
        self._last = item.message
        return [item]

    def befall(self, item: _Item, moment: _Moment) -> list[_Item]:
        is_old = self.fault.kind == "old_data"
        given = self._last if is_old else item.message
        if given is None:  # there is nothing older
            return self.spare(item, moment)
        self._count()
        message = copy.deepcopy(given)
        stamp = item.message.header.stamp
        offset_ns = 0 if is_old else round(self.fault.offset_s * NS_PER_S)
        stamp_ns = 0 if self.fault.kind == "zero" else stamp.sec * NS_PER_S + stamp.nanosec + offset_ns
        stamp = message.header.stamp
        stamp.sec, stamp.nanosec = divmod(max(0, min(stamp_ns, _LAST_STAMP_NS)), NS_PER_S)
        return [replace(item, message=message)]


class _Burst(_Stage):
    def befall(self, item: _Item, moment: _Moment) -> list[_Item]:
        held_ns = self.fault.held_ns(moment.elapsed_ns)
        if held_ns <= 0:
            return [item]
        self._count()
        return [replace(item, due_ns=max(item.due_ns, moment.now_ns + held_ns))]


class _Edit(_Stage):
    def befall(self, item: _Item, moment: _Moment) -> list[_Item]:  # noqa: ARG002
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


def float_places(message: Message) -> list[tuple[Any, str | int]]:
    """Return where the floating-point numbers of a ROS message stand: an object and an attribute, or an index."""
    places: list[tuple[Any, str | int]] = []
    for field in message.get_fields_and_field_types():
        value = getattr(message, field)
        if isinstance(value, float):
            places.append((message, field))
            continue
        places += _places_in(value)
    return places


def _places_in(value: Any) -> list[tuple[Any, str | int]]:  # noqa: ANN401 - part of a message
    if hasattr(value, "get_fields_and_field_types"):
        return float_places(value)
    if isinstance(value, (array.array, np.ndarray)):
        is_float = value.typecode in "fd" if isinstance(value, array.array) else value.dtype.kind == "f"
        return [(value, index) for index in range(len(value))] if is_float else []
    if isinstance(value, list):
        floats: list[tuple[Any, str | int]] = [(value, i) for i, each in enumerate(value) if isinstance(each, float)]
        return floats + [place for each in value for place in _places_in(each)]
    return []
