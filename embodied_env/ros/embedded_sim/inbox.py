"""Messages of the embedded simulator in lockstep, by epoch: readings, acknowledgements, a fault, a picture."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.message_types import message_class
from embodied_env.core.json_messages import INVALID_MESSAGE
from embodied_env.ros.embedded_sim.protocol import (
    CLOCK_TOPIC,
    FAULT_TOPIC,
    PICTURE_TOPIC,
    STEPPED_TOPIC,
    SimulatorFault,
    StepAck,
)
from embodied_env.ros.qos import RELIABLE
from embodied_env.ros.receiver import ReceivedMessage, Receiver
from embodied_env.ros.serialization.layout_cache import as_message
from embodied_env.ros.step_arrivals import ExpectedReading, StepArrivals

_FAULT = "/fault"  # a slash, unlike the names of sensors
_STEPPED = "/stepped"
_PICTURE = "/picture"
_CLOCK = "/clock"
_LAST_OF_STEP = (_STEPPED, _FAULT)


class SimulatorInbox:
    """Messages of the current epoch. Any node may publish on the topics, so each message is checked.

    Attributes:
        arrivals: the readings.
        step: the step that was requested last; 0: none since the reset.
        fault: the simulator's failure in this epoch, or None.
        picture: the newest message with a picture, or None.
    """

    def __init__(self, contract: Contract) -> None:
        """Prepare to read the sensors of `contract`; nothing is subscribed to."""
        self.arrivals = StepArrivals(contract.sensors)
        self._epoch = self.step = 0
        self._stepped: StepAck | None = None  # the newest acknowledgement of this epoch
        self._expected: dict[str, ExpectedReading] = {}  # the readings that it lists
        self.fault: SimulatorFault | None = None
        self.picture: Any = None

    def subscribe(self, receiver: Receiver, *, clock: bool) -> None:
        """Subscribe to the simulator's topics; to its clock, which only recorders need, if `clock` is true."""
        self.arrivals.subscribe(receiver, RELIABLE, raw=True)
        receiver.subscribe(_FAULT, message_class("std_msgs/msg/String"), FAULT_TOPIC)
        receiver.subscribe(_PICTURE, message_class("sensor_msgs/msg/Image"), PICTURE_TOPIC, raw=True)
        if clock:
            receiver.subscribe(_CLOCK, message_class("rosgraph_msgs/msg/Clock"), CLOCK_TOPIC, raw=True)
        receiver.subscribe(_STEPPED, message_class("std_msgs/msg/Int64MultiArray"), STEPPED_TOPIC, raw=True)

    def start_epoch(self, epoch: int) -> None:
        """Drop the messages of the last epoch."""
        self.arrivals.clear()
        self.fault = self._stepped = None
        self._epoch, self.step = epoch, 0

    @property
    def wake_on(self) -> Collection[str]:
        """The keys that end the next wait (`Receiver.receive`): one wait for all messages of a step."""
        return () if self._is_acknowledged() else _LAST_OF_STEP

    def dispatch(self, received: Iterable[ReceivedMessage]) -> None:
        """Store messages that have arrived."""
        for message in received:
            if self.arrivals.add(message):
                continue
            if message.key == _STEPPED:
                self._store_acknowledgement(as_message(message.message).data)
            elif message.key == _PICTURE:
                self.picture = as_message(message.message)
            elif message.key == _FAULT:
                try:
                    fault = SimulatorFault.from_text(message.message.data)
                except ValueError as error:
                    fault = SimulatorFault(epoch=self._epoch, why=INVALID_MESSAGE, detail=str(error))
                if fault.epoch == self._epoch:
                    self.fault = fault

    def missing(self) -> list[str]:
        """Return the sensors whose reading of the requested step, as acknowledged, has not arrived."""
        return self.arrivals.missing(self._expected) if self._is_acknowledged() else ["the simulator's acknowledgement"]

    def _is_acknowledged(self) -> bool:
        return self._stepped is not None and self._stepped.step >= self.step

    def _store_acknowledgement(self, data: Any) -> None:  # noqa: ANN401 - an array of Python, or one of numpy
        stepped = StepAck.from_data(data.tolist(), len(self.arrivals.sensors))
        if stepped is None or stepped.epoch != self._epoch or stepped.step > self.step:
            return  # not from our simulator, or of another episode
        if self._stepped is None or stepped.step >= self._stepped.step:
            self._stepped = stepped
            self._expected = {
                key: ExpectedReading(earliest_ns=stamp_ns, number=number, stamp_ns=stamp_ns)
                for key, (stamp_ns, number) in zip(self.arrivals.sensors, stepped.newest, strict=True)
            }
