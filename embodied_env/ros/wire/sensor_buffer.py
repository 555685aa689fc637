"""Read sensor messages as the contract declares, and buffer each sensor's newest reading."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from embodied_env.contract import SensorSpec
from embodied_env.contract.field_paths import check_messages
from embodied_env.core.code_types import Quality
from embodied_env.core.reading_conversion import ReadingRules
from embodied_env.core.types import Sample
from embodied_env.errors import BackendNotReadyError
from embodied_env.messages.declaration import NO_WINDOW, InvalidReadingError, Message
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.messages.vectors import position_confidence
from embodied_env.ros.transport.byte_layout import RawMessage, as_message
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.ros.wire.stamp_translation import (
    NO_STAMP,
    ArrivalAges,
    StampTranslator,
    TranslatedStamp,
    TransportTiming,
)


def stamp_ns(message: Message) -> int:
    """Return the stamp of a message's header, ns of its clock."""
    if isinstance(message, RawMessage):
        return message.stamp_ns()
    stamp = message.header.stamp
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


class SensorReader:
    """Reads messages of one sensor into new arrays of the contract's shapes and dtypes.

    It keeps `raw_sha256` of resized images and the `driver` values of the last message, by field.
    """

    def __init__(self, name: str, sensor: SensorSpec) -> None:
        """Resolve the fields of `sensor`, or raise ContractError unless its message type has them."""
        check_messages({name: sensor})
        self._sensor = sensor
        self._rules = ReadingRules(name, sensor)
        self._readers = {field: known.reader(declared) for field, (known, declared) in self._rules.fields.items()}
        self._declaration = SENSOR_MESSAGES.get(sensor.type)
        self.raw_sha256, self.driver = self._rules.raw_sha256, self._rules.driver
        self._joints = {joint for spec in sensor.fields.values() for joint in spec.joints or ()}
        self._is_by_joint = sensor.type == JOINT_SENSOR and bool(self._joints)

    def read(self, message: Message) -> dict[str, NDArray[Any]]:
        """Return the arrays by field, or raise InvalidReadingError."""
        sensor = self._sensor
        if sensor.frame is not None:
            _check_frame("frame_id", message.header.frame_id, sensor.frame)
        if sensor.child_frame is not None:
            _check_frame("child_frame_id", message.child_frame_id, sensor.child_frame)
        values = {name: read(message) for name, read in self._readers.items()}
        window = NO_WINDOW if self._declaration is None else self._declaration.window(message)
        for name, accept in self._rules.acceptors.items():
            values[name] = accept(values[name], window)
        return values

    def concerns(self, message: Message) -> bool:
        """Return whether a message is of this sensor, False for a JointState of other joints."""
        return not self._is_by_joint or not self._joints.isdisjoint(message.name)

    def is_ready(self, message: Message) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether `read` has everything it needs, as a subclass may wait for a transform."""
        return True

    def confidence(self, message: Message) -> float | None:
        """Return the confidence in the position (`position_confidence`), None without a covariance."""
        if self._declaration is None or not self._declaration.covariance:
            return None
        return position_confidence(message.pose.covariance, self._sensor.confidence_radius_m)


def _check_frame(key: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise InvalidReadingError(f"{key} is {found!r} (expected {wanted!r})")


Stamping = StampTranslator | ArrivalAges

_MAX_UNSTAMPED = 64  # messages without a stamp that are kept for `assign_stamp`
_NO_TRANSPORT = TransportTiming()


class SensorBuffer:
    """Buffer of the newest reading of one sensor, which never steps back.

    A message with an older stamp is counted and dropped. The order is not measured against a stamp in the future, since
    the next message replaces it.

    A message of the timeline ``receive`` gets its stamp from `assign_stamp`, or from a `StampTranslator`.

    Attributes:
        stamp_ns: the newest stamp, on the world clock, or -1 before the first.
    """

    def __init__(
        self, name: str, sensor: SensorSpec, stamping: Stamping | None = None, reader: SensorReader | None = None
    ) -> None:
        """Start empty, with `stamping` to translate stamps, None if they are on the world clock."""
        self._name = name
        self._reader = SensorReader(name, sensor) if reader is None else reader
        self._by_header = sensor.timeline == "header"
        self._stamping = stamping
        self._is_wall = stamping is not None and stamping.is_wall
        self._counts: Counter[str] = Counter()  # lost, duplicated, reordered
        self._newest: tuple[ReceivedMessage, TranslatedStamp, TransportTiming] | None = None
        self._newest_valid: TranslatedStamp | None = None  # the newest that is not in the future
        self._last_number = 0  # number of the publisher, which counts from 1
        self._unstamped: dict[int, ReceivedMessage] = {}  # by publication number
        self._seq = -1
        self._sample: Sample | None = None
        self.stamp_ns = -1

    @property
    def placed(self) -> TranslatedStamp | None:
        """Translated stamp of the newest message, or None before the first."""
        return None if self._newest is None else self._newest[1]

    def clear(self) -> None:
        """Start an epoch by dropping the readings and resetting the counts."""
        self.clear_readings()
        self._last_number = 0  # the publisher may have changed
        self._seq = -1
        self._counts.clear()

    def clear_readings(self) -> None:
        """Drop the readings, while the counts continue."""
        self._newest = self._sample = self._newest_valid = None
        self.stamp_ns = -1
        self._unstamped.clear()

    def concerns(self, arrival: ReceivedMessage) -> bool:
        """Return whether a message is of this sensor, False for joint states of other joints."""
        return self._reader.concerns(as_message(arrival.message))

    def add(self, arrival: ReceivedMessage) -> None:
        """Store or count a message that has arrived."""
        number = arrival.info["publication_sequence_number"]
        if number is not None and number > self._last_number:
            if 0 < self._last_number < number - 1 and self._newest is not None:
                self._counts["lost"] += number - self._last_number - 1
            self._last_number = number
        if self._stamping is not None:
            self._add_stamped(arrival, self._translated(arrival, self._stamping), self._stamping.transport(arrival))
        elif self._by_header:
            header_ns = stamp_ns(arrival.message)
            stamp = TranslatedStamp(stamp_ns=header_ns) if header_ns else NO_STAMP
            self._add_stamped(arrival, stamp, _NO_TRANSPORT)
        elif number is None:
            raise BackendNotReadyError(
                f"{self._name}: timeline receive needs publication sequence numbers, which this middleware lacks; "
                "use rmw_fastrtps_cpp"
            )
        else:
            self._unstamped[number] = arrival
            while len(self._unstamped) > _MAX_UNSTAMPED:
                del self._unstamped[next(iter(self._unstamped))]

    def reevaluate(self) -> None:
        """Translate the newest stamp again, since a latched message comes only once."""
        if self._newest is not None and self._stamping is not None:
            arrival, _, transport = self._newest
            stamp = self._translated(arrival, self._stamping)
            self._newest, self._sample, self.stamp_ns = (arrival, stamp, transport), None, stamp.stamp_ns
            self._newest_valid = None if stamp.quality is Quality.FUTURE else stamp

    def assign_stamp(self, stamp_ns: int, number: int) -> bool:
        """Stamp message `number`, and return whether a reading of `stamp_ns` or later has arrived."""
        if not self._by_header and stamp_ns > self.stamp_ns and number in self._unstamped:
            self._store(self._unstamped[number], TranslatedStamp(stamp_ns=stamp_ns), _NO_TRANSPORT)
        return self.stamp_ns >= stamp_ns

    def newest(self) -> Sample | None:
        """Return the newest sample without its counts, or None before the first message."""
        if self._sample is None and self._newest is not None:
            self._sample = self._read(*self._newest)
        return self._sample

    def sample(self) -> Sample | None:
        """Return the newest sample with counts since the last call, None before the first message."""
        sample = self.newest()
        if sample is None or not self._counts:
            return sample
        counts, self._counts = self._counts, Counter()
        return replace(sample, lost=counts["lost"], duplicated=counts["duplicated"], reordered=counts["reordered"])

    def _translated(self, arrival: ReceivedMessage, stamping: Stamping) -> TranslatedStamp:
        return stamping.translate(arrival, stamp_ns(arrival.message) if self._by_header else None)

    def _add_stamped(self, arrival: ReceivedMessage, stamp: TranslatedStamp, transport: TransportTiming) -> None:
        newest, valid = self.placed, self._newest_valid
        if self._by_header and (
            (newest is not None and stamp.repeats(newest)) or (valid is not None and stamp.repeats(valid))
        ):
            self._counts["duplicated"] += 1
        elif self._by_header and valid is not None and not stamp.is_after(valid):
            self._counts["reordered"] += 1
        else:
            self._store(arrival, stamp, transport)

    def _store(self, arrival: ReceivedMessage, stamp: TranslatedStamp, transport: TransportTiming) -> None:
        self._newest, self._sample, self.stamp_ns = (arrival, stamp, transport), None, stamp.stamp_ns
        if stamp.quality is not Quality.FUTURE:
            self._newest_valid = stamp
        self._seq += 1

    def _read(self, arrival: ReceivedMessage, stamp: TranslatedStamp, transport: TransportTiming) -> Sample:
        quality, reason = Quality.OK, ""
        values: dict[str, Any]
        message = as_message(arrival.message)
        try:
            values = self._reader.read(message)
        except InvalidReadingError as error:
            quality, reason = Quality.INVALID, str(error)
            values = {}
        if stamp.quality is not Quality.OK:
            quality, reason = stamp.quality, stamp.reason
        return Sample(
            sensor=self._name,
            values=values,
            stamp_ns=stamp.stamp_ns,
            arrival_ns=arrival.arrival_ns,
            arrival_system_ns=arrival.arrival_system_ns,
            source_ns=arrival.info["source_timestamp"] or None,
            received_ns=arrival.info["received_timestamp"] or None,
            seq=self._seq,
            quality=quality,
            reason=reason,
            raw_sha256=dict(self._reader.raw_sha256) if values else {},
            driver=dict(self._reader.driver) if values else {},
            confidence=self._reader.confidence(message),
            header_ns=stamp.header_ns if self._is_wall else None,  # simulated time is not on the middleware's clock
            stamp_quality=stamp.stamp_quality,
            suspect_clock=stamp.suspect_clock,
            transport_quality=transport.quality,
            transport_excess_s=transport.excess_s,
        )
