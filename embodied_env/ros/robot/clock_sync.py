"""What the stamps of a sensor's messages are worth: of whose clock they are, and their place on the world's clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.utilities import get_rmw_implementation_identifier

from embodied_env.contract import Contract
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.codes import Quality
from embodied_env.core.types import ClockStatus
from embodied_env.core.world_clock import SimTimeTracker, SystemClockMonitor, WorldClock
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.receiver import POLL_S, ReceivedMessage
from embodied_env.ros.robot.profile import EVERY_SENSOR, ClockSpec

SYNCED_TOLERANCE_S = 0.02
"""How far ahead of now the stamp of a clock that is synchronised may be, at least."""

LATE_S = 60.0
"""Of a clock that is not known to be ours, how much longer a message took than the quickest of so long."""

CLOCK_TOPIC = "/clock"

_CLOCK_QOS = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
_SUSPECT_S = 5.0
_AHEAD_S: Mapping[str, float] = {"tai": 37.0, "gps": 18.0}  # of UTC
_NEAR_S = 1.0
_SETTLED_NS = NS_PER_S  # after a step of UTC, for messages that were stamped before it
_HOST = slice(2, 4)  # of a GUID of Fast DDS: vendor (2 bytes), host (2), process (4), participant (4), entity (4)


class Sync(StrEnum):
    """How a clock is known to relate to ours."""

    SAME = "same"
    SYNCED = "synced"
    UNKNOWN = "unknown"


@dataclass(kw_only=True, slots=True)
class TranslatedStamp:
    """A message's place on the world's clock. `quality` and `reason` are those of a reading that is not to be used.

    Nobody writes into it, as into an `ReceivedMessage`.
    """

    stamp_ns: int
    header_ns: int | None = None
    epoch: int = 0  # of the clock behind the world's
    stamp_quality: Quality = Quality.OK
    suspect_clock: str = ""
    quality: Quality = Quality.OK
    reason: str = ""

    def repeats(self, other: TranslatedStamp) -> bool:
        """Tell whether both have one stamp."""
        return self.header_ns == other.header_ns if self.header_ns else self.stamp_ns == other.stamp_ns

    def is_after(self, other: TranslatedStamp) -> bool:
        """Order by what the messages say; where the clock was set in between, by the world's clock."""
        if self.header_ns and other.header_ns and self.epoch == other.epoch:
            return self.header_ns > other.header_ns
        return self.stamp_ns > other.stamp_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportTiming:
    """What the middleware's stamps are worth; `excess_s` where they are of clocks that are not known to agree."""

    quality: Quality = Quality.OK
    excess_s: float | None = None


class RobotClock:
    """Keeps the world's time; all of it is used while the listener's `changed` is held, but for the waits.

    Attributes:
        timeline: the world's clock.
        stampings: by sensor.
    """

    def __init__(
        self, contract: Contract, clock: Clock, *, clocks: Mapping[str, ClockSpec], use_sim_time: bool = False
    ) -> None:
        """Begin: UTC is paired with the steady clock now; simulated time is waited for."""
        self._contract = contract
        self._clock = clock
        self._watch = SystemClockMonitor(clock)
        self._simulated = SimTimeTracker(self._watch, period_ns=contract.control_period_ns) if use_sim_time else None
        self.timeline: WorldClock = self._simulated or self._watch
        observation = contract.safety.observation
        self.stampings = {
            name: StampTranslator(
                name,
                clocks.get(name) or clocks.get(EVERY_SENSOR) or ClockSpec(),
                timeline=self.timeline,
                watch=self._watch,
                require_stamp=observation.require_stamp,
                future_tolerance_s=observation.future_tolerance_s,
            )
            for name in contract.sensors
        }

    def listen(self, listener: ReceiveThread, on_set: Callable[[], None]) -> None:
        """Listen to simulated time, where it counts. `on_set`: what is buffered is of a time that is no more."""
        simulated = self._simulated
        if simulated is None:
            return

        def take(arrival: ReceivedMessage) -> None:
            clock = arrival.message.clock
            if simulated.on_clock(int(clock.sec) * NS_PER_S + int(clock.nanosec), arrival.arrival_ns):
                on_set()

        listener.subscribe(CLOCK_TOPIC, "rosgraph_msgs/msg/Clock", CLOCK_TOPIC, _CLOCK_QOS, take)

    def locate_publishers(self, node: Node, listener: ReceiveThread) -> None:
        """Look at who publishes the sensors: on our host the clock is ours."""
        rmw = get_rmw_implementation_identifier()
        for name, sensor in self._contract.sensors.items():
            is_ours = is_on_our_host(node, sensor.topic, rmw)
            with listener.condition:
                self.stampings[name].set_publisher_locality(is_ours)

    def on_message(self, arrival: ReceivedMessage) -> None:
        """Look at the clocks as a message arrives."""
        self._watch.check_pair(arrival.arrival_ns, arrival.arrival_system_ns)

    def status(self) -> ClockStatus:
        """Return what is known of the clocks, and what happened to them since the last account."""
        self._watch.check_pair(self._clock.now_ns(), self._clock.system_ns())
        return replace(self.timeline.status(), rmw=get_rmw_implementation_identifier())

    def await_clock(self, listener: ReceiveThread, end: float) -> None:
        """Wait until simulated time is heard to go on, `end` by `time.monotonic`; raises BackendNotReadyError."""
        simulated, asked_ns = self._simulated, self._clock.now_ns()
        if simulated is None:
            return
        with listener.condition:
            while (simulated.advanced_ns or 0) < asked_ns:
                listener.raise_if_failed()
                if (left_s := end - time.monotonic()) <= 0:
                    was = "no message came" if simulated.advanced_ns is None else "it stands still"
                    raise BackendNotReadyError(f"no {CLOCK_TOPIC}: {was} (backends.real.use_sim_time is true)")
                listener.condition.wait(min(POLL_S, left_s))

    def check(self, timeout_s: float) -> None:
        """Raise BackendLostError when simulated time has stood still for longer."""
        if self._simulated is None:
            return
        stood_s = (self._clock.now_ns() - (self._simulated.advanced_ns or 0)) / NS_PER_S
        if stood_s > timeout_s:
            raise BackendLostError("clock_stopped", f"{CLOCK_TOPIC} stood still for {stood_s:.3f} s")


class StampTranslator:
    """Judges the stamps of one sensor's messages as they arrive. Used under the lock of its timeline."""

    def __init__(
        self,
        name: str,
        spec: ClockSpec,
        *,
        timeline: WorldClock,
        watch: SystemClockMonitor,
        require_stamp: bool,
        future_tolerance_s: float,
    ) -> None:
        """Place stamps on `timeline`: `watch` itself, or simulated time."""
        self._name = name
        self._spec = spec
        self._timeline = timeline
        self._watch = watch
        self.is_wall = timeline is watch  # stamps are of UTC
        self._require_stamp = require_stamp
        self._future_ns = round(future_tolerance_s * NS_PER_S)
        self._error_ns = round((spec.error_s or 0.0) * NS_PER_S)
        self._least_header = SlidingMinimum(round(LATE_S * NS_PER_S))
        self._least_source = SlidingMinimum(round(LATE_S * NS_PER_S))
        self.sync = Sync.UNKNOWN
        self.set_publisher_locality(None)

    def set_publisher_locality(self, is_on_our_host: bool | None) -> None:  # noqa: FBT001 - an answer
        """Take what the middleware says of the publisher."""
        sync = self._spec.sync
        if sync == "same_host" or (sync == "auto" and is_on_our_host):
            self.sync = Sync.SAME
        else:
            self.sync = Sync.SYNCED if sync in ("ptp", "chrony") else Sync.UNKNOWN

    # ------------------------------------------------------------------------------------------------ acquisition

    def translate(self, arrival: ReceivedMessage, header_ns: int | None) -> TranslatedStamp:
        """Place a message; `header_ns` None: it counts from its arrival."""
        if header_ns is None:
            return TranslatedStamp(stamp_ns=self._timeline.at_ns(arrival.arrival_ns), epoch=self._timeline.epoch)
        if header_ns == 0:
            return self._unstamped(arrival)
        if self.is_wall and self.sync is Sync.UNKNOWN:
            return self._foreign(arrival, header_ns)
        return self._judged(arrival, self._timeline.to_world_ns(header_ns), header_ns, Quality.OK)

    def _judged(self, arrival: ReceivedMessage, stamp_ns: int, header_ns: int, quality: Quality) -> TranslatedStamp:
        """A stamp of a clock that we know: is it of the future, or of another clock than it is said to be?"""
        arrived_ns, epoch = self._timeline.at_ns(arrival.arrival_ns), self._timeline.epoch
        age_ns = arrived_ns - stamp_ns
        is_synced = self.is_wall and self.sync is Sync.SYNCED
        if is_synced and abs(age_ns) < 2 * self._error_ns:
            quality = Quality.UNSYNCED
        suspect = suspect_clock(age_ns / NS_PER_S)
        synced_ns = max(round(SYNCED_TOLERANCE_S * NS_PER_S), self._error_ns) if is_synced else 0
        if age_ns < -max(self._future_ns, synced_ns):
            reason = f"stamped {-age_ns / NS_PER_S:.3f} s after it came" + _by(suspect)
            return TranslatedStamp(
                stamp_ns=stamp_ns,
                header_ns=header_ns,
                epoch=epoch,
                stamp_quality=Quality.FUTURE,
                suspect_clock=suspect,
                quality=Quality.FUTURE,
                reason=reason,
            )
        if self.is_wall and self._is_across(arrival, stamp_ns):
            quality = Quality.JUMP
        if age_ns < -self._future_ns:  # the clocks do not agree better: it cannot be younger than its arrival
            stamp_ns, quality = arrived_ns, Quality.UNSYNCED
        return TranslatedStamp(
            stamp_ns=stamp_ns, header_ns=header_ns, epoch=epoch, stamp_quality=quality, suspect_clock=suspect
        )

    def _unstamped(self, arrival: ReceivedMessage) -> TranslatedStamp:
        """A message without a stamp: refused, or taken for as old as its publication or its arrival."""
        if self._require_stamp:
            return TranslatedStamp(
                stamp_ns=0,
                header_ns=0,
                epoch=self._timeline.epoch,
                stamp_quality=Quality.ZERO_STAMP,
                quality=Quality.ZERO_STAMP,
                reason="the message carries no stamp",
            )
        source_ns = arrival.info["source_timestamp"]
        if source_ns and self.is_wall and self.sync is not Sync.UNKNOWN:
            return self._judged(arrival, self._timeline.to_world_ns(source_ns), 0, Quality.FALLBACK_SOURCE)
        arrived_ns = self._timeline.at_ns(arrival.arrival_ns)
        return TranslatedStamp(
            stamp_ns=arrived_ns, header_ns=0, epoch=self._timeline.epoch, stamp_quality=Quality.FALLBACK_RECEIVED
        )

    def _foreign(self, arrival: ReceivedMessage, header_ns: int) -> TranslatedStamp:
        """A stamp of a clock that is not known to be ours: its differences count, and what is declared."""
        arrived_ns = self._timeline.at_ns(arrival.arrival_ns)
        took_ns = arrived_ns - header_ns
        excess_ns = took_ns - self._least_header.add(arrived_ns, took_ns)
        if self._spec.least_delay_s is None:
            path = f"backends.real.clocks.{self._name}"
            return TranslatedStamp(
                stamp_ns=arrived_ns,
                header_ns=header_ns,
                epoch=self._timeline.epoch,
                stamp_quality=Quality.UNSYNCED,
                quality=Quality.UNSYNCED,
                reason=f"the clock that stamps it is not known to be that of this host; declare {path}: "
                "sync: same_host, sync: ptp or chrony with error_s, or least_delay_s",
            )
        age_ns = excess_ns + round(self._spec.least_delay_s * NS_PER_S)
        return TranslatedStamp(
            stamp_ns=arrived_ns - age_ns,
            header_ns=header_ns,
            epoch=self._timeline.epoch,
            stamp_quality=Quality.UNSYNCED,
        )

    # -------------------------------------------------------------------------------------------------- transport

    def transport(self, arrival: ReceivedMessage) -> TransportTiming:
        """Judge the middleware's stamps, which are of UTC, whatever the time of the world. Asked of every message."""
        source_ns, received_ns = arrival.info["source_timestamp"], arrival.info["received_timestamp"]
        if not source_ns or not received_ns:
            return TransportTiming(quality=Quality.UNKNOWN)
        is_across = self._is_across(arrival, self._watch.to_world_ns(source_ns))
        if self.sync is Sync.UNKNOWN:
            if is_across:
                return TransportTiming(quality=Quality.JUMP)
            received_ns = self._watch.to_world_ns(received_ns)  # by a clock that nobody sets
            took_ns = received_ns - source_ns
            least_ns = self._least_source.add(received_ns, took_ns)
            return TransportTiming(quality=Quality.UNSYNCED, excess_s=(took_ns - least_ns) / NS_PER_S)
        if is_across:
            return TransportTiming(quality=Quality.JUMP)
        took_ns = received_ns - source_ns
        if self.sync is Sync.SYNCED and abs(took_ns) < 2 * self._error_ns:
            return TransportTiming(quality=Quality.UNSYNCED)
        return TransportTiming(quality=Quality.NEGATIVE if took_ns < 0 else Quality.OK)

    def _is_across(self, arrival: ReceivedMessage, placed_ns: int) -> bool:
        """Tell whether UTC may have been set between a stamp, by its place, and the arrival of its message."""
        step = self._watch.last_step
        if step is None:
            return False
        is_soon = arrival.arrival_ns - step.found_ns <= _SETTLED_NS
        if self.sync is Sync.UNKNOWN:
            return is_soon
        if placed_ns < self._watch.at_ns(step.found_ns):
            return True
        if step.size_ns > 0 or not is_soon:
            return False
        age_ns = self._watch.at_ns(arrival.arrival_ns) - placed_ns
        return age_ns < 0 or age_ns - step.size_ns <= _SETTLED_NS  # by UTC as it was before


def suspect_clock(age_s: float) -> str:
    """Return which clock a message seems to be stamped by that says it is so old: "tai", "gps", "epoch" or ""."""
    for name, ahead_s in _AHEAD_S.items():
        if abs(-age_s - ahead_s) <= _NEAR_S:
            return name
    return "epoch" if abs(age_s) > _SUSPECT_S else ""


def is_on_our_host(node: Node, topic: str, rmw: str) -> bool | None:
    """Return whether all who publish `topic` are on our host, by the ids of Fast DDS. None: it cannot be told.

    `node` must listen to `topic` itself: its own endpoint says what our host is called.
    """
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
    """The least of the values of the last `window_ns`."""

    def __init__(self, window_ns: int) -> None:
        """Begin with none."""
        self._window_ns = window_ns
        self._kept: deque[tuple[int, int]] = deque()  # values that grow: none is above a later one

    def add(self, at_ns: int, value: int) -> int:
        """Take the value of an instant, and return the least."""
        kept = self._kept
        while kept and kept[-1][1] >= value:
            kept.pop()
        kept.append((at_ns, value))
        while kept[0][0] < at_ns - self._window_ns:
            kept.popleft()
        return kept[0][1]


def _by(suspect: str) -> str:
    names = {"tai": "TAI", "gps": "GPS time", "epoch": "a clock of another epoch"}
    return f" (by {names[suspect]}?)" if suspect else ""
