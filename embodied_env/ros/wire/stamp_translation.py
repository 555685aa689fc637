"""Translate the stamps of a sensor's messages to the world clock, and judge them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from rclpy.node import Node

from embodied_env.contract.safety_schema import ObservationAge
from embodied_env.core.code_types import Quality
from embodied_env.core.types import SuspectClock
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.ros.wire.world_clock import ClockSpec, SystemClockMonitor, WorldClock
from embodied_env.timing.clock import NS_PER_S

SYNCED_TOLERANCE_S = 0.02  # least tolerance of a stamp of a synchronised clock that is ahead of its arrival

WINDOW_S = 60.0  # the window of the least transport delay of a clock that is not synchronised

_SUSPECT_S = 5.0
_AHEAD_S: Mapping[SuspectClock, float] = {"tai": 37.0, "gps": 18.0}  # of UTC
_CLOCK_NAMES: Mapping[str, str] = {"tai": "TAI", "gps": "GPS time", "epoch": "a clock of another epoch"}
_NEAR_S = 1.0
_SETTLED_NS = NS_PER_S  # after a step of UTC, for messages that were stamped before it
_HOST = slice(2, 4)  # of a GUID of Fast DDS: vendor (2 bytes), host (2), process (4), participant (4), entity (4)


class Sync(StrEnum):
    """The known relation of a clock to ours."""

    SAME = "same"
    SYNCED = "synced"
    UNKNOWN = "unknown"


@dataclass(kw_only=True, slots=True)
class TranslatedStamp:
    """Stamp of a message on the world clock, read-only and, for speed, not frozen.

    `quality` and `reason` are those of an unusable reading, `stamp_quality` that of the stamp. `epoch` is that of the
    world clock.
    """

    stamp_ns: int
    header_ns: int | None = None
    epoch: int = 0
    stamp_quality: Quality = Quality.OK
    suspect_clock: SuspectClock = ""
    quality: Quality = Quality.OK
    reason: str = ""

    def repeats(self, other: TranslatedStamp) -> bool:
        """Return whether both have the same stamp."""
        return self.header_ns == other.header_ns if self.header_ns else self.stamp_ns == other.stamp_ns

    def is_after(self, other: TranslatedStamp) -> bool:
        """Return whether this stamp is later by headers, or by the world clock if set in between."""
        if self.header_ns and other.header_ns and self.epoch == other.epoch:
            return self.header_ns > other.header_ns
        return self.stamp_ns > other.stamp_ns


NO_STAMP = TranslatedStamp(stamp_ns=0, quality=Quality.ZERO_STAMP, reason="the message has no stamp")
"""The stamp of a message that requires one and has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportTiming:
    """Trust in the middleware's stamps, with `excess_s` over the least delay if unsynchronised."""

    quality: Quality = Quality.OK
    excess_s: float | None = None


class StampTranslator:
    """Translator of one sensor's stamps on arrival, under the lock of its timeline.

    Attributes:
        sync: the relation of the stamping clock to ours.
        is_wall: stamps are in UTC, not in simulated time.
    """

    def __init__(
        self, name: str, spec: ClockSpec, limits: ObservationAge, *, timeline: WorldClock, utc: SystemClockMonitor
    ) -> None:
        """Translate the stamps of the sensor `name` to `timeline`, `utc` or simulated time."""
        self._name = name
        self._spec = spec
        self._timeline = timeline
        self._utc = utc
        self.is_wall = timeline is utc
        self._require_stamp = limits.require_stamp
        self._future_ns = round(limits.future_tolerance_s * NS_PER_S)
        self._error_ns = round((spec.error_s or 0.0) * NS_PER_S)
        self._least_header = SlidingMinimum(round(WINDOW_S * NS_PER_S))
        self._least_source = SlidingMinimum(round(WINDOW_S * NS_PER_S))
        self.sync = Sync.UNKNOWN
        self.set_publisher_locality(None)

    def set_publisher_locality(self, is_on_our_host: bool | None) -> None:  # noqa: FBT001 - three values
        """Derive `sync` from the profile and the publisher's host."""
        sync = self._spec.sync
        if sync == "same_host" or (sync == "auto" and is_on_our_host):
            self.sync = Sync.SAME
        else:
            self.sync = Sync.SYNCED if sync in ("ptp", "chrony") else Sync.UNKNOWN

    # ------------------------------------------------------------------------------------------------ acquisition

    def translate(self, arrival: ReceivedMessage, header_ns: int | None) -> TranslatedStamp:
        """Return the stamp of a message, which is its arrival if `header_ns` is None."""
        arrived_ns, epoch = self._timeline.at_ns(arrival.arrival_ns), self._timeline.epoch
        if header_ns is None:
            return TranslatedStamp(stamp_ns=arrived_ns, epoch=epoch)
        if header_ns == 0:
            return self._translate_unstamped(arrival)
        if not self.is_wall or self.sync is not Sync.UNKNOWN:
            return self._judge(arrival, self._timeline.to_world_ns(header_ns), header_ns, Quality.OK)
        took_ns = arrived_ns - header_ns  # only differences of such stamps count
        excess_ns = took_ns - self._least_header.add(arrived_ns, took_ns)
        unsynced = TranslatedStamp(
            stamp_ns=arrived_ns, header_ns=header_ns, epoch=epoch, stamp_quality=Quality.UNSYNCED
        )
        if self._spec.least_delay_s is None:
            path = f"backends.real.clocks.{self._name}"
            return replace(
                unsynced,
                quality=Quality.UNSYNCED,
                reason=f"stamped by a clock that may not be synchronised with this host; declare {path}: "
                "sync: same_host, sync: ptp or chrony with error_s, or least_delay_s",
            )
        return replace(unsynced, stamp_ns=arrived_ns - excess_ns - round(self._spec.least_delay_s * NS_PER_S))

    def _judge(self, arrival: ReceivedMessage, stamp_ns: int, header_ns: int, quality: Quality) -> TranslatedStamp:
        """Judge whether a stamp of a known clock is in the future or across a step of UTC."""
        arrived_ns = self._timeline.at_ns(arrival.arrival_ns)
        age_ns = arrived_ns - stamp_ns
        is_synced = self.is_wall and self.sync is Sync.SYNCED
        if is_synced and abs(age_ns) < 2 * self._error_ns:
            quality = Quality.UNSYNCED
        found = TranslatedStamp(
            stamp_ns=stamp_ns,
            header_ns=header_ns,
            epoch=self._timeline.epoch,
            suspect_clock=suspect_clock(age_ns / NS_PER_S),
        )
        synced_ns = max(round(SYNCED_TOLERANCE_S * NS_PER_S), self._error_ns) if is_synced else 0
        if age_ns < -max(self._future_ns, synced_ns):
            found.stamp_quality = found.quality = Quality.FUTURE
            suspect = f" (possibly {_CLOCK_NAMES[found.suspect_clock]})" if found.suspect_clock else ""
            found.reason = f"stamped {-age_ns / NS_PER_S:.3f} s after its arrival{suspect}"
            return found
        if self.is_wall and self._is_across_step(arrival, stamp_ns):
            quality = Quality.JUMP
        if age_ns < -self._future_ns:  # within the accuracy of the clocks: no later than its arrival
            found.stamp_ns, quality = arrived_ns, Quality.UNSYNCED
        found.stamp_quality = quality
        return found

    def _translate_unstamped(self, arrival: ReceivedMessage) -> TranslatedStamp:
        """Refuse a message without a stamp, or use the time of its publication or arrival."""
        epoch = self._timeline.epoch
        if self._require_stamp:
            return replace(NO_STAMP, epoch=epoch, header_ns=0, stamp_quality=Quality.ZERO_STAMP)
        source_ns = arrival.info["source_timestamp"]
        if source_ns and self.is_wall and self.sync is not Sync.UNKNOWN:
            return self._judge(arrival, self._timeline.to_world_ns(source_ns), 0, Quality.FALLBACK_SOURCE)
        arrived_ns = self._timeline.at_ns(arrival.arrival_ns)
        return TranslatedStamp(stamp_ns=arrived_ns, header_ns=0, epoch=epoch, stamp_quality=Quality.FALLBACK_RECEIVED)

    # -------------------------------------------------------------------------------------------------- transport

    def transport(self, arrival: ReceivedMessage) -> TransportTiming:
        """Judge the middleware's stamps of a message, which are in UTC even with simulated time."""
        source_ns, received_ns = arrival.info["source_timestamp"], arrival.info["received_timestamp"]
        if not source_ns or not received_ns:
            return TransportTiming(quality=Quality.UNKNOWN)
        if self._is_across_step(arrival, self._utc.to_world_ns(source_ns)):
            return TransportTiming(quality=Quality.JUMP)
        if self.sync is Sync.UNKNOWN:
            received_ns = self._utc.to_world_ns(received_ns)  # without steps of UTC
            took_ns = received_ns - source_ns
            least_ns = self._least_source.add(received_ns, took_ns)
            return TransportTiming(quality=Quality.UNSYNCED, excess_s=(took_ns - least_ns) / NS_PER_S)
        took_ns = received_ns - source_ns
        if self.sync is Sync.SYNCED and abs(took_ns) < 2 * self._error_ns:
            return TransportTiming(quality=Quality.UNSYNCED)
        return TransportTiming(quality=Quality.NEGATIVE if took_ns < 0 else Quality.OK)

    def _is_across_step(self, arrival: ReceivedMessage, stamp_ns: int) -> bool:
        """Return whether UTC may have been set between a stamp and its message's arrival."""
        step = self._utc.last_step
        if step is None:
            return False
        is_soon = arrival.arrival_ns - step.found_ns <= _SETTLED_NS
        if self.sync is Sync.UNKNOWN:
            return is_soon
        if stamp_ns < self._utc.at_ns(step.found_ns):
            return True
        if step.size_ns > 0 or not is_soon:
            return False
        age_ns = self._utc.at_ns(arrival.arrival_ns) - stamp_ns
        return age_ns < 0 or age_ns - step.size_ns <= _SETTLED_NS  # by UTC as it was before


class ArrivalAges:
    """Places UTC stamps on the steady clock by their age at arrival, without a world clock."""

    is_wall = False

    def __init__(self, future_tolerance_s: float) -> None:
        """Mark stamps that are further ahead of their arrival as in the future."""
        self._future_ns = round(future_tolerance_s * NS_PER_S)

    def translate(self, arrival: ReceivedMessage, header_ns: int | None) -> TranslatedStamp:
        """Return the stamp of a message, which is its arrival if `header_ns` is None."""
        age_ns = 0 if header_ns is None else arrival.arrival_system_ns - header_ns
        quality = Quality.FUTURE if age_ns < -self._future_ns else Quality.OK
        return TranslatedStamp(stamp_ns=arrival.arrival_ns - age_ns, quality=quality)

    def transport(self, arrival: ReceivedMessage) -> TransportTiming:  # noqa: ARG002 - of StampTranslator
        """Return that nothing is known of the middleware's stamps."""
        return TransportTiming()


def suspect_clock(age_s: float) -> SuspectClock:
    """Return the clock that would explain a message's age, "tai", "gps", "epoch" or ""."""
    for name, ahead_s in _AHEAD_S.items():
        if abs(-age_s - ahead_s) <= _NEAR_S:
            return name
    return "epoch" if abs(age_s) > _SUSPECT_S else ""


def is_on_our_host(node: Node, topic: str, rmw: str) -> bool | None:
    """Return whether Fast DDS GUIDs show all publishers on our host, None if unknown."""
    if not rmw.startswith("rmw_fastrtps"):
        return None
    ours = {
        bytes(end.endpoint_gid[_HOST])
        for end in node.get_subscriptions_info_by_topic(topic)
        if (end.node_name, end.node_namespace) == (node.get_name(), node.get_namespace())
    }
    theirs = {bytes(end.endpoint_gid[_HOST]) for end in node.get_publishers_info_by_topic(topic)}
    return theirs <= ours if ours and theirs else None


class SlidingMinimum:
    """The minimum of the last `window_ns`."""

    def __init__(self, window_ns: int) -> None:
        """Start with an empty window."""
        self._window_ns = window_ns
        self._kept: deque[tuple[int, int]] = deque()  # increasing: each is below all later ones

    def add(self, at_ns: int, value: int) -> int:
        """Add the value of an instant, and return the minimum."""
        kept = self._kept
        while kept and kept[-1][1] >= value:
            kept.pop()
        kept.append((at_ns, value))
        while kept[0][0] < at_ns - self._window_ns:
            kept.popleft()
        return kept[0][1]
