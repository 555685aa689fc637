"""The newest sample of each sensor, with what the middleware's numbers say was lost, repeated or out of order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from embodied_env.backends.ros.convert import MalformedMessageError, SensorReader, stamp_ns
from embodied_env.backends.ros.node import Arrival
from embodied_env.contract import SensorSpec
from embodied_env.errors import BackendNotReadyError, ContractError
from embodied_env.transition import Quality, Sample

_KEPT = 64  # messages without a stamp that are kept for `accept`
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

    With the timeline ``receive`` a message has no stamp of its own: it gets the one that `accept` is asked for.
    """

    def __init__(self, name: str, sensor: SensorSpec) -> None:
        """Prepare to read `sensor`."""
        self._name = name
        self._reader = SensorReader(name, sensor)
        self._by_header = sensor.timeline == "header"
        if self._by_header and not self._reader.has_header:
            raise ContractError(
                f"sensors.{name}.timeline", f"'header' is not allowed: a {sensor.type} has none; allowed: receive"
            )
        self._counts = _Counts()
        self._newest: Arrival | None = None
        self._newest_stamp_ns = -1
        self._last_number = 0  # of the publisher; it counts from 1
        self._unstamped: dict[int, Arrival] = {}  # by the number of their publication
        self._seq = -1
        self._sample: Sample | None = None

    @property
    def stamp_ns(self) -> int:
        """The newest stamp, or -1 before the first."""
        return self._newest_stamp_ns

    def clear(self) -> None:
        """Begin an epoch: forget everything."""
        self._newest = self._sample = None
        self._unstamped.clear()
        self._last_number = 0  # it may be another publisher now
        self._newest_stamp_ns = -1
        self._seq = -1
        self._counts = _Counts()

    def put(self, arrival: Arrival) -> None:
        """Take a message that has arrived."""
        number = arrival.info["publication_sequence_number"]
        if number is not None:
            if 0 < self._last_number < number - 1 and self._newest is not None:
                self._counts.lost += number - self._last_number - 1
            self._last_number = max(number, self._last_number)
        if not self._by_header:
            if number is None:
                raise BackendNotReadyError(_NO_NUMBERS.format(self._name))
            self._unstamped[number] = arrival
            while len(self._unstamped) > _KEPT:
                del self._unstamped[next(iter(self._unstamped))]
            return
        stamp = stamp_ns(arrival.message)
        if stamp == self._newest_stamp_ns:
            self._counts.duplicated += 1
        elif stamp < self._newest_stamp_ns:
            self._counts.reordered += 1
        else:
            self._newest, self._newest_stamp_ns, self._sample = arrival, stamp, None
            self._seq += 1

    def accept(self, stamp_ns: int, number: int) -> bool:
        """Return whether the reading is here that has this stamp, and was last published under this number.

        With the timeline ``receive`` it gets the stamp, and is then the newest.
        """
        if self._by_header:
            return self._newest_stamp_ns >= stamp_ns
        if stamp_ns > self._newest_stamp_ns and number in self._unstamped:
            self._newest, self._newest_stamp_ns, self._sample = self._unstamped[number], stamp_ns, None
            self._seq += 1
        return self._newest_stamp_ns >= stamp_ns

    def newest(self) -> Sample | None:
        """Return the newest sample, and count nothing; None before the first message."""
        if self._sample is None and self._newest is not None:
            self._sample = self._read(self._newest)
        return self._sample

    def sample(self) -> Sample | None:
        """Return the newest sample, and the counts since the last call; None before the first message."""
        sample = self.newest()
        if sample is None:
            return None
        counts, self._counts = self._counts, _Counts()
        return replace(sample, lost=counts.lost, duplicated=counts.duplicated, reordered=counts.reordered)

    def _read(self, arrival: Arrival) -> Sample:
        quality, reason = Quality.OK, ""
        values: dict[str, Any]
        try:
            values = self._reader.read(arrival.message)
        except MalformedMessageError as error:
            quality, reason = Quality.INVALID, str(error)
            values = {}
        if self._by_header and self._newest_stamp_ns == 0:
            quality, reason = Quality.ZERO_STAMP, "the message carries no stamp"
        return Sample(
            sensor=self._name,
            values=values,
            stamp_ns=self._newest_stamp_ns,
            arrival_ns=arrival.arrival_ns,
            arrival_system_ns=arrival.arrival_system_ns,
            source_ns=arrival.info["source_timestamp"],
            received_ns=arrival.info["received_timestamp"],
            seq=self._seq,
            quality=quality,
            reason=reason,
            confidence=self._reader.confidence(arrival.message),
        )
