"""The e-stops of the robot emulator: pressed by services, and republished within their timeouts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from embodied_env.contract.message_types import message_class
from embodied_env.core.clock import NS_PER_S
from embodied_env.errors import ContractError
from embodied_env.ros.embedded_sim.sensor_messages import Message, write_path
from embodied_env.ros.robot.estops import EstopSpec

_REPEATS = 5  # messages per timeout, since one may be late


class EmulatedEstop:
    """One safety input. It does not publish while another node publishes its topic."""

    def __init__(self, spec: EstopSpec, node: Any, latched_qos: Any, repeated_qos: Any) -> None:  # noqa: ANN401 - rclpy's
        """Create the publisher and the service ``~/estop/<name>`` (std_srvs/srv/SetBool; true presses)."""
        self._node = node
        self._messages = {pressed: message_of(spec, pressed=pressed) for pressed in (False, True)}
        self._publisher = node.create_publisher(
            message_class(spec.type), spec.topic, latched_qos if spec.latched else repeated_qos
        )
        service = f"~/estop/{re.sub(r'[^A-Za-z0-9_]', '_', spec.name)}"
        node.create_service(message_class("std_srvs/srv/SetBool"), service, self._on_press)
        self._period_ns = None if spec.latched else round(spec.timeout_s * NS_PER_S / _REPEATS)
        self._is_pressed = False
        self.next_ns: int | None = 0

    def serve(self, now_ns: int) -> None:
        """Publish the state if it is due at this time of the steady clock."""
        if self.next_ns is None or now_ns < self.next_ns:
            return
        self.next_ns = None if self._period_ns is None else now_ns + self._period_ns
        if self._node.count_publishers(self._publisher.topic_name) < 2:
            self._publisher.publish(self._messages[self._is_pressed])

    def _on_press(self, request: Any, response: Any) -> Any:  # noqa: ANN401 - generated types
        self._is_pressed = bool(request.data)
        self.next_ns = 0
        response.success, response.message = True, "pressed" if self._is_pressed else "released"
        return response


def message_of(spec: EstopSpec, *, pressed: bool) -> Message:
    """Return the message of a pressed or a safe input; raises ContractError if its type cannot represent it."""
    value = _unsafe(spec.safe) if pressed else spec.safe[0]
    message = message_class(spec.type)()
    try:
        write_path(message, spec.path, np.array([value]))
    except (AssertionError, AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
        problem = f"{value!r} does not fit the field {spec.path} of a {spec.type}: {error}"
        raise ContractError(f"backends.real.estop.{spec.name}.safe", problem) from None
    return message


def _unsafe(safe: Sequence[Any]) -> Any:  # noqa: ANN401 - a value of a message
    """Return a value of the type of ``safe[0]`` that is not in `safe`."""
    if isinstance(safe[0], bool):
        return not safe[0]
    if isinstance(safe[0], str):
        return "pressed" + "".join(map(str, safe))
    return next(type(safe[0])(number) for number in range(len(safe) + 1) if number not in safe)
