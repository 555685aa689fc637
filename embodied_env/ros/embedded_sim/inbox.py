"""What the embedded simulator in lockstep has said in an epoch: readings, acknowledgements, a fault, a picture."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.message_types import message_class
from embodied_env.core.json_messages import INVALID_MESSAGE
from embodied_env.core.types import Sample
from embodied_env.ros.embedded_sim.protocol import (
    CLOCK_TOPIC,
    FAULT_TOPIC,
    PICTURE_TOPIC,
    STEPPED_TOPIC,
    SimulatorFault,
    StepAck,
)
from embodied_env.ros.receiver import ReceivedMessage, Receiver
from embodied_env.ros.sensor_buffer import SensorBuffer
from embodied_env.ros.serialization.layout_cache import as_message

_FAULT = "/fault"  # not a sensor's name
_STEPPED = "/stepped"
_PICTURE = "/picture"
_CLOCK = "/clock"
_ENDS = (_STEPPED, _FAULT)  # what the simulator says last: one wait for all that a step brings


class SimulatorInbox:
    """Of the messages of its topics, what is of the present epoch. Anybody may publish there.

    Attributes:
        step: the step that was asked for last; 0: none since the reset.
        fault: why the simulator cannot go on with this epoch; None: it can.
        picture: the newest message with a picture, or None.
    """

    def __init__(self, contract: Contract) -> None:
        """Prepare to read the sensors of `contract`; nothing is subscribed to."""
        self._sensors = contract.sensors
        self._buffers: dict[str, SensorBuffer] = {}
        self._epoch = self.step = 0
        self._stepped: StepAck | None = None  # the last step of this epoch that was acknowledged
        self.fault: SimulatorFault | None = None
        self.picture: Any = None

    def subscribe(self, receiver: Receiver, *, clock: bool) -> None:
        """Subscribe to all that it says; to its clock, which nobody here needs, if a recorder wants it."""
        self._buffers = {name: SensorBuffer(name, sensor) for name, sensor in self._sensors.items()}
        for name, sensor in self._sensors.items():
            receiver.subscribe(name, message_class(sensor.type), sensor.topic, raw=True)
        receiver.subscribe(_FAULT, message_class("std_msgs/msg/String"), FAULT_TOPIC)
        receiver.subscribe(_PICTURE, message_class("sensor_msgs/msg/Image"), PICTURE_TOPIC, raw=True)
        if clock:
            receiver.subscribe(_CLOCK, message_class("rosgraph_msgs/msg/Clock"), CLOCK_TOPIC, raw=True)
        receiver.subscribe(_STEPPED, message_class("std_msgs/msg/Int64MultiArray"), STEPPED_TOPIC, raw=True)

    def start_epoch(self, epoch: int) -> None:
        """Forget the last epoch."""
        for buffer in self._buffers.values():
            buffer.clear()
        self.fault = self._stepped = None
        self._epoch, self.step = epoch, 0

    @property
    def wake_on(self) -> Collection[str]:
        """What is waited for now, as `Receiver.take` wants it."""
        return () if self._is_acknowledged() else _ENDS

    def dispatch(self, arrivals: Iterable[ReceivedMessage]) -> None:
        """Take what has arrived."""
        for arrival in arrivals:
            if (buffer := self._buffers.get(arrival.key)) is not None:
                buffer.add(arrival)
            elif arrival.key == _STEPPED:
                self._take_acknowledgement(as_message(arrival.message).data)
            elif arrival.key == _PICTURE:
                self.picture = as_message(arrival.message)
            elif arrival.key == _FAULT:
                self._take_fault(arrival.message.data)

    def missing(self) -> list[str]:
        """Return whose newest reading, as the simulator told it, is not here yet."""
        if self._stepped is None or not self._is_acknowledged():
            return ["the simulator's acknowledgement"]
        newest = zip(self._buffers.items(), self._stepped.newest, strict=True)
        return [name for (name, buffer), (stamp_ns, number) in newest if not buffer.assign_stamp(stamp_ns, number)]

    def from_future(self, now_ns: int) -> dict[str, int]:
        """Return the stamps, ns, of the newest readings that are of a later time, by sensor."""
        return {name: buffer.stamp_ns for name, buffer in self._buffers.items() if buffer.stamp_ns > now_ns}

    def from_past(self, now_ns: int) -> list[str]:
        """Return whose newest reading is of an earlier time."""
        return [name for name, buffer in self._buffers.items() if buffer.stamp_ns < now_ns]

    def samples(self) -> dict[str, Sample]:
        """Return the newest readings."""
        samples = {name: buffer.sample() for name, buffer in self._buffers.items()}
        return {name: sample for name, sample in samples.items() if sample is not None}

    def _is_acknowledged(self) -> bool:
        return self._stepped is not None and self._stepped.step >= self.step

    def _take_acknowledgement(self, data: Any) -> None:  # noqa: ANN401 - an array of Python, or one of numpy
        stepped = StepAck.from_data(data.tolist(), len(self._buffers))
        if stepped is None or stepped.epoch != self._epoch or stepped.step > self.step:
            return  # not a simulator's, or not this episode's
        if self._stepped is None or stepped.step >= self._stepped.step:
            self._stepped = stepped

    def _take_fault(self, text: str) -> None:
        try:
            fault = SimulatorFault.from_text(text)
        except ValueError as error:
            fault = SimulatorFault(epoch=self._epoch, why=INVALID_MESSAGE, detail=str(error))
        if fault.epoch == self._epoch:
            self.fault = fault
