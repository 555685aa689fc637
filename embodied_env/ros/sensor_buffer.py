"""The newest sample of each sensor, with what the middleware's numbers say was lost, repeated or out of order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from embodied_env.contract import SensorSpec
from embodied_env.core.codes import Quality
from embodied_env.core.types import Sample
from embodied_env.errors import BackendNotReadyError, ContractError
from embodied_env.ros.message_fields import MalformedMessageError
from embodied_env.ros.receiver import ReceivedMessage
from embodied_env.ros.robot.stamp_translation import StampTranslator, TranslatedStamp, TransportTiming
from embodied_env.ros.sensor_readers import SensorReader, stamp_ns
from embodied_env.ros.serialization.layout_cache import as_message

_KEPT = 64  # messages without a stamp that are kept for `accept`
_NO_TRAVEL = TransportTiming()
_NO_NUMBERS = (
    "{}: this middleware does not number its messages, which a sensor by receipt needs; allowed: rmw_fastrtps_cpp"
)


@dataclass(kw_only=True)
class _Counts:
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0


class SensorBuffer:
    """One sensor's buffer. The observation never steps back: an older stamp is counted, not taken.

    A stamp of the future is never the measure of those that follow: it is replaced by the next message.

    With the timeline ``receive`` a message has no stamp of its own: it gets the one that `accept` is asked for, or that
    of its arrival where a `StampTranslator` knows it.

    Attributes:
        stamp_ns: the newest stamp, on the world's clock, or -1 before the first.
    """

    def __init__(
        self, name: str, sensor: SensorSpec, stamping: StampTranslator | None = None, reader: SensorReader | None = None
    ) -> None:
        """Prepare to read `sensor`.

        Args:
            name: the sensor's.
            sensor: what the contract says of it.
            stamping: what its stamps are worth; None: they are of the world's clock.
            reader: reads its messages; None: the one for its type.
        """
        self._name = name
        self._reader = SensorReader(name, sensor) if reader is None else reader
        self._by_header = sensor.timeline == "header"
        if self._by_header and not self._reader.has_header:
            raise ContractError(
                f"sensors.{name}.timeline", f"'header' is not allowed: a {sensor.type} has none; allowed: receive"
            )
        self._stamping = stamping
        self._is_wall = stamping is not None and stamping.is_wall
        self._counts = _Counts()
        self._newest: tuple[ReceivedMessage, TranslatedStamp, TransportTiming] | None = None
        self._believed: TranslatedStamp | None = None  # the newest that was not of the future
        self._last_number = 0  # of the publisher; it counts from 1
        self._unstamped: dict[int, ReceivedMessage] = {}  # by the number of their publication
        self._seq = -1
        self._sample: Sample | None = None
        self.stamp_ns = -1

    @property
    def placed(self) -> TranslatedStamp | None:
        """The place of the newest message on the world's clock; None before the first."""
        return None if self._newest is None else self._newest[1]

    def clear(self) -> None:
        """Begin an epoch: forget everything."""
        self.clear_readings()
        self._last_number = 0  # it may be another publisher now
        self._seq = -1
        self._counts = _Counts()

    def clear_readings(self) -> None:
        """Forget what was received: it is of a time that is no more. What is counted is counted on."""
        self._newest = self._sample = self._believed = None
        self.stamp_ns = -1
        self._unstamped.clear()

    def add(self, arrival: ReceivedMessage) -> None:
        """Take a message that has arrived."""
        number = arrival.info["publication_sequence_number"]
        if number is not None and number > self._last_number:
            if 0 < self._last_number < number - 1 and self._newest is not None:
                self._counts.lost += number - self._last_number - 1
            self._last_number = number
        if self._stamping is not None:
            self._judge(arrival, self._place(arrival, self._stamping), self._stamping.transport(arrival))
        elif self._by_header:
            self._judge_stamp(arrival, stamp_ns(arrival.message))
        elif number is None:
            raise BackendNotReadyError(_NO_NUMBERS.format(self._name))
        else:
            self._unstamped[number] = arrival
            while len(self._unstamped) > _KEPT:
                del self._unstamped[next(iter(self._unstamped))]

    def reevaluate(self) -> None:
        """More is known of who publishes: place the newest message anew, as a latched one comes only once."""
        if self._newest is not None and self._stamping is not None:
            arrival, _, travel = self._newest
            placed = self._place(arrival, self._stamping)
            self._newest, self._sample, self.stamp_ns = (arrival, placed, travel), None, placed.stamp_ns
            self._believed = None if placed.quality is Quality.FUTURE else placed

    def _place(self, arrival: ReceivedMessage, stamping: StampTranslator) -> TranslatedStamp:
        return stamping.translate(arrival, stamp_ns(arrival.message) if self._by_header else None)

    def _judge(self, arrival: ReceivedMessage, placed: TranslatedStamp, travel: TransportTiming) -> None:
        """Take what is newer; count what is repeated or older."""
        newest, believed = self.placed, self._believed
        if self._by_header and (
            (newest is not None and placed.repeats(newest)) or (believed is not None and placed.repeats(believed))
        ):
            self._counts.duplicated += 1
        elif self._by_header and believed is not None and not placed.is_after(believed):
            self._counts.reordered += 1
        else:
            self._take(arrival, placed, travel)

    def _judge_stamp(self, arrival: ReceivedMessage, header_ns: int) -> None:
        """The same for a stamp of the world's clock itself, which says all."""
        if self._newest is None or header_ns > self.stamp_ns:
            self._take(arrival, _as_stamped(header_ns), _NO_TRAVEL)
        elif header_ns == self.stamp_ns:
            self._counts.duplicated += 1
        else:
            self._counts.reordered += 1

    def _take(self, arrival: ReceivedMessage, placed: TranslatedStamp, travel: TransportTiming) -> None:
        self._newest, self._sample, self.stamp_ns = (arrival, placed, travel), None, placed.stamp_ns
        if placed.quality is not Quality.FUTURE:
            self._believed = placed
        self._seq += 1

    def assign_stamp(self, stamp_ns: int, number: int) -> bool:
        """Return whether the reading is here that has this stamp, and was last published under this number.

        With the timeline ``receive`` it gets the stamp, and is then the newest.
        """
        if not self._by_header and stamp_ns > self.stamp_ns and number in self._unstamped:
            self._take(self._unstamped[number], TranslatedStamp(stamp_ns=stamp_ns), _NO_TRAVEL)
        return self.stamp_ns >= stamp_ns

    def newest(self) -> Sample | None:
        """Return the newest sample, and count nothing; None before the first message."""
        if self._sample is None and self._newest is not None:
            self._sample = self._read(*self._newest)
        return self._sample

    def sample(self) -> Sample | None:
        """Return the newest sample, and the counts since the last call; None before the first message."""
        sample = self.newest()
        if sample is None:
            return None
        counts = self._counts
        if not (counts.lost or counts.duplicated or counts.reordered):
            return sample
        self._counts = _Counts()
        return replace(sample, lost=counts.lost, duplicated=counts.duplicated, reordered=counts.reordered)

    def _read(self, arrival: ReceivedMessage, placed: TranslatedStamp, travel: TransportTiming) -> Sample:
        quality, reason = Quality.OK, ""
        values: dict[str, Any]
        message = as_message(arrival.message)
        try:
            values = self._reader.read(message)
        except MalformedMessageError as error:
            quality, reason = Quality.INVALID, str(error)
            values = {}
        if placed.quality is not Quality.OK:
            quality, reason = placed.quality, placed.reason
        return Sample(
            sensor=self._name,
            values=values,
            stamp_ns=placed.stamp_ns,
            arrival_ns=arrival.arrival_ns,
            arrival_system_ns=arrival.arrival_system_ns,
            source_ns=arrival.info["source_timestamp"] or None,
            received_ns=arrival.info["received_timestamp"] or None,
            seq=self._seq,
            quality=quality,
            reason=reason,
            confidence=self._reader.confidence(message),
            header_ns=placed.header_ns if self._is_wall else None,  # simulated time is nothing to the middleware's
            stamp_quality=placed.stamp_quality,
            suspect_clock=placed.suspect_clock,
            transport_quality=travel.quality,
            transport_excess_s=travel.excess_s,
        )


def _as_stamped(header_ns: int) -> TranslatedStamp:
    """Return the place of a stamp that is of the world's clock itself."""
    if header_ns == 0:
        return TranslatedStamp(stamp_ns=0, quality=Quality.ZERO_STAMP, reason="the message carries no stamp")
    return TranslatedStamp(stamp_ns=header_ns)
