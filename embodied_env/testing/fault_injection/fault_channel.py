"""The chaos channel: messages in, messages out, with faults in between. No thread, clock or ROS."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

from embodied_env.errors import UsageError
from embodied_env.testing.fault_injection.faults import FAULTS, Fault, FaultState, Hit, Item, Message, rng_of
from embodied_env.timing.clock import NS_PER_S


class FaultChannel:
    """Accepts messages with `put` and returns those that are due with `take`. Times are nanoseconds of one clock.

    Only a `Drop` loses messages: in `counts`, received + duplicated = dropped + published + pending.
    """

    def __init__(self, faults: Sequence[Fault] = (), *, seed: int) -> None:
        """Apply `faults` in this order; raises UsageError for a negative seed."""
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
        """Apply other faults from the next message on; messages in transit keep their time."""
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
        """Return when the next message is due if none arrives before; None if none is in transit."""
        waiting = [each.latest_ns for _, state in self._stages for each in state.waiting]
        return min([*waiting, *(due_ns for due_ns, _, _ in self._outbox[:1])], default=None)

    def counts(self) -> dict[str, int]:
        """Return the number of messages received, published, pending, and hit by each kind of fault."""
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
