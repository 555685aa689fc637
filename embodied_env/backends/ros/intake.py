"""What stands between a sensor's topic and its buffer: messages of others are passed over, and some have to wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from embodied_env.backends.ros.convert import SensorReader
from embodied_env.backends.ros.frames import Frames, TransformedReader
from embodied_env.backends.ros.receiver import Arrival
from embodied_env.clock import NS_PER_S
from embodied_env.contract import Contract, SensorSpec
from embodied_env.errors import BackendNotReadyError

_KEPT = 64  # messages that wait


def make_readers(contract: Contract, wanted: Mapping[str, str], frames: Frames | None) -> dict[str, SensorReader]:
    """Return the reader of each sensor.

    `wanted`: in which frame its values are wanted, if not as they come. Without `frames` there may be none.
    """
    readers = {name: SensorReader(name, sensor) for name, sensor in contract.sensors.items() if name not in wanted}
    for name, target in wanted.items():
        if frames is None:
            raise BackendNotReadyError(f"nobody knows how to transform {name} to {target}")
        readers[name] = TransformedReader(name, contract.sensors[name], target, frames)
    return {name: readers[name] for name in contract.sensors}


class Intake:
    """Hands the messages that concern a sensor on, in order.

    One whose transform is not known yet waits, as in tf2's message filter, for no longer than a reading may be old.
    Then it is handed on all the same, and its reading says what was missing. Who waits keeps the stamps of his arrival.
    """

    def __init__(self, sensor: SensorSpec, reader: SensorReader, hand_on: Callable[[Arrival], None]) -> None:
        """Hand on to `hand_on` what `reader` can read of `sensor`."""
        self._reader = reader
        self._hand_on = hand_on
        self._patience_ns = round(sensor.max_age_s * NS_PER_S)
        self._waiting: deque[Arrival] = deque(maxlen=_KEPT)

    def put(self, arrival: Arrival) -> None:
        """Take a message that has arrived."""
        if not self._reader.concerns(arrival.message):
            return
        if not isinstance(self._reader, TransformedReader):
            self._hand_on(arrival)
            return
        self._waiting.append(arrival)
        self.look(arrival.arrival_ns)

    def look(self, now_ns: int) -> None:
        """Hand on those that need not wait any longer at `now_ns` of the steady clock."""
        if not isinstance(self._reader, TransformedReader):
            return
        for arrival in list(self._waiting):
            is_late = now_ns - arrival.arrival_ns > self._patience_ns
            if is_late or self._reader.is_ready(arrival.message):
                self._waiting.remove(arrival)
                self._hand_on(arrival)
