"""The clock of a simulator as it is heard on a topic: where it is, how often it said so, and whether it went back."""

from __future__ import annotations


class ClockMonitor:
    """Follows the stamps of a clock, in the order of their arrival. No ROS needed; times are ns.

    Attributes:
        now_ns: the newest stamp; None before the first.
        seen: how often the present stamp was heard in a row.
        heard: how many stamps there were.
        rewinds: how often it went back.
        from_ns: from where it last went back; None: it never did.
        changed_s: when the present stamp was first heard, monotonic s.
    """

    def __init__(self) -> None:
        """Begin with a clock of which nothing is known."""
        self.now_ns: int | None = None
        self.seen = self.heard = self.rewinds = 0
        self.from_ns: int | None = None
        self.changed_s = 0.0

    def on_clock(self, stamp_ns: int, at_s: float) -> None:
        """Take a stamp that was heard at `at_s`, monotonic s."""
        self.heard += 1
        if stamp_ns == self.now_ns:
            self.seen += 1
            return
        if self.now_ns is not None and stamp_ns < self.now_ns:
            self.rewinds += 1
            self.from_ns = self.now_ns
        self.now_ns, self.seen, self.changed_s = stamp_ns, 1, at_s
