"""Client of the embedded simulator's services: reset and rendering (`ros.embedded_sim.protocol`)."""

from __future__ import annotations

import json
import reprlib
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.core.json_messages import INVALID_MESSAGE
from embodied_env.core.types import ResetRequest
from embodied_env.errors import BackendLostError, BackendNotReadyError, MissingDependencyError
from embodied_env.ros.embedded_sim.protocol import (
    EPOCH_PARAMETER,
    NODE,
    OPTIONS_PARAMETER,
    RENDER_SERVICE,
    RESET_SERVICE,
    SEED_PARAMETER,
    ResetReply,
)
from embodied_env.ros.receiver import LivenessCheck, Receiver
from embodied_env.ros.sensor_readers import stamp_ns


@dataclass(frozen=True, kw_only=True)
class SimulatorServices:
    """Calls the simulator through `receiver`; `patrol` raises an error to end a wait.

    `end` is always the monotonic time, s, at which a call raises TimeoutError.
    """

    receiver: Receiver
    patrol: LivenessCheck

    def set_reset_parameters(self, epoch: int, request: ResetRequest, end: float) -> None:
        """Set seed, options and epoch of the next reset; raises BackendNotReadyError if they are refused."""
        from rcl_interfaces.srv import SetParameters  # noqa: PLC0415 - rclpy is installed if there is a receiver
        from rclpy.parameter import Parameter  # noqa: PLC0415

        options = {name: value.tolist() for name, value in request.options.items()}
        values = {EPOCH_PARAMETER: epoch, SEED_PARAMETER: request.seed, OPTIONS_PARAMETER: json.dumps(options)}
        call = SetParameters.Request(
            parameters=[Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        )
        service = f"{NODE}/set_parameters"
        response = self.receiver.call(SetParameters, service, call, end - time.monotonic(), self.patrol)
        refused = [result.reason for result in response.results if not result.successful]
        if refused:
            raise BackendNotReadyError(f"the simulator refused the reset: {'; '.join(refused)}")

    def reset(self, epoch: int, fingerprint: str, end: float) -> ResetReply:
        """Reset the simulator; a repeated call for an epoch returns the same reply.

        Raises:
            BackendNotReadyError: if it fails, is at another epoch, or runs another contract.
        """
        success, text = self._trigger(RESET_SERVICE, end)
        if not success:
            raise BackendNotReadyError(f"the simulator could not reset: {text}")
        try:
            reply = ResetReply.from_text(text)
        except ValueError as error:
            raise BackendNotReadyError(str(error)) from None
        if reply.epoch != epoch:
            raise BackendNotReadyError("the simulator was reset by somebody else at the same time")
        if reply.fingerprint != fingerprint:
            raise BackendNotReadyError(
                f"the simulator runs a contract of fingerprint {reply.fingerprint[:12]}, not {fingerprint[:12]}"
            )
        return reply

    def render(self, end: float) -> int:
        """Let the simulator publish a picture; return its stamp, ns.

        Raises:
            BackendLostError: without a valid reply in time.
            MissingDependencyError: if the simulator cannot render.
        """
        try:
            success, text = self._trigger(RENDER_SERVICE, end)
        except TimeoutError as error:
            raise BackendLostError("timeout", str(error)) from None
        if not success:
            raise MissingDependencyError("a renderer", needed_for="render()", remedy=text)
        try:
            return int(text)
        except ValueError:
            detail = f"{RENDER_SERVICE}: {reprlib.repr(text)} (expected the stamp of the picture, ns)"
            raise BackendLostError(INVALID_MESSAGE, detail) from None

    def _trigger(self, service: str, end: float) -> tuple[bool, str]:
        from std_srvs.srv import Trigger  # noqa: PLC0415 - as above

        response = self.receiver.call(Trigger, service, Trigger.Request(), end - time.monotonic(), self.patrol)
        return response.success, response.message


def picture_of(message: Any, taken_ns: int) -> NDArray[np.uint8] | None:  # noqa: ANN401 - a sensor_msgs/Image, or None
    """Return the picture with this stamp, shape (height, width, 3); None for another message on the topic."""
    if message is None or stamp_ns(message) != taken_ns or message.encoding != "rgb8":
        return None
    height, width = int(message.height), int(message.width)
    if len(message.data) != height * width * 3:
        return None
    return np.frombuffer(message.data, dtype=np.uint8).reshape(height, width, 3).copy()
