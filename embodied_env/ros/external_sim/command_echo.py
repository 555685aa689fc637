"""The echo of a command: some receivers repeat what they got on a topic, and then it is known to have come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.message_types import message_class
from embodied_env.ros.qos import ANY
from embodied_env.ros.receiver import ReceivedMessage, Receiver

_ECHO = "/echo/"  # before the name of an actuator: not a sensor's


class CommandEchoes:
    """Which commands were not repeated yet."""

    def __init__(self, contract: Contract, topics: Mapping[str, str]) -> None:
        """Prepare; `topics`: actuator -> the topic of its echoes, of the type of its commands."""
        self._contract, self._topics = contract, topics
        self._pending: dict[str, Any] = {}  # actuator -> its command, until its echo came

    def subscribe(self, receiver: Receiver) -> None:
        """Subscribe to the echoes; whoever takes them hands them to `add`."""
        for name, topic in self._topics.items():
            receiver.subscribe(_ECHO + name, message_class(self._contract.actuators[name].type), topic, ANY)

    def clear(self) -> None:
        """Wait for none any more."""
        self._pending.clear()

    def expect(self, name: str, command: Any) -> None:  # noqa: ANN401 - a generated type
        """Wait for the echo of a message that commands the actuator `name`, where it has any."""
        if name in self._topics:
            self._pending[name] = command

    def add(self, arrival: ReceivedMessage) -> bool:
        """Take a message; return whether it is of one of these topics."""
        if not arrival.key.startswith(_ECHO):
            return False
        name = arrival.key.removeprefix(_ECHO)
        if name in self._pending and _says_the_same(arrival.message, self._pending[name]):
            del self._pending[name]
        return True

    def silent(self) -> list[str]:
        """Return the topics whose echo is still waited for."""
        return [self._topics[name] for name in self._pending]


def _says_the_same(echo: Any, command: Any) -> bool:  # noqa: ANN401 - generated types
    """Compare two messages, but for their headers."""
    fields = [name for name in command.get_fields_and_field_types() if name != "header"]
    return type(echo) is type(command) and all(getattr(echo, name) == getattr(command, name) for name in fields)
