"""Protocol of the embedded simulator and the robot emulator, without ROS imports.

The environment resets it by parameters and a service. In lockstep it publishes a command on each actuator topic, then a
step token. The simulator runs step k of an epoch once, when it has received the token and the commands that the token
lists by a digest of their bytes, so duplicate, late, foreign or braking commands neither add a step nor take part in
one. Then it publishes the new readings, and an acknowledgement that identifies the newest message of each sensor. The
environment waits for these messages only, not for readings that are delayed, lost or not due.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.json_messages import JsonMessage, RegularArray
from embodied_env.contract.key_types import like
from embodied_env.core.types import ResetRequest

NODE = "simulator"
STEP_TOPIC = f"{NODE}/step"  # std_msgs/msg/Int64MultiArray: StepRequest.to_data()
STEPPED_TOPIC = f"{NODE}/stepped"  # std_msgs/msg/Int64MultiArray: StepAck.to_data(), after the readings of that step
FAULT_TOPIC = f"{NODE}/fault"  # std_msgs/msg/String: SimulatorFault.to_text()
RENDER_SERVICE = f"{NODE}/render"  # std_srvs/srv/Trigger; the image is published on IMAGE_TOPIC before the response
IMAGE_TOPIC = f"{NODE}/picture"  # sensor_msgs/msg/Image
CLOCK_TOPIC = "clock"  # rosgraph_msgs/msg/Clock, in the namespace of the simulator
RESET_SERVICE = f"{NODE}/reset"  # std_srvs/srv/Trigger; the message of its response is ResetReply.to_text()

EPOCH_PARAMETER = "reset.epoch"
SEED_PARAMETER = "reset.seed"
OPTIONS_PARAMETER = "reset.options"  # a JSON object: reset option -> value

ANY_EPOCH = -1  # no epoch; `RESET_SERVICE` in lockstep refuses it


@dataclass(frozen=True, kw_only=True)
class ResetReply(JsonMessage):
    """Result of a reset, with other choices of the simulator in `details`."""

    place = RESET_SERVICE

    epoch: int
    stamp_ns: int  # simulated time at the end of the reset
    sampled: Mapping[str, RegularArray]
    fingerprint: str
    details: Mapping[str, str]

    def as_mapping(self) -> dict[str, Any]:
        """Return the fields, with arrays of any shape as nested lists."""
        return {**vars(self), "sampled": {name: np.asarray(value).tolist() for name, value in self.sampled.items()}}


def reset_parameters(request: ResetRequest, epoch: int = ANY_EPOCH) -> list[Any]:
    """Return the parameter messages of seed, options and epoch of the next reset."""
    from rclpy.parameter import Parameter  # noqa: PLC0415 - it imports rcl_interfaces

    options = {name: value.tolist() for name, value in request.options.items()}
    values = {EPOCH_PARAMETER: epoch, SEED_PARAMETER: request.seed, OPTIONS_PARAMETER: json.dumps(options)}
    return [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]


def command_crc32(command: FloatArray) -> int:
    """Return the CRC-32 of a command's bytes."""
    return zlib.crc32(np.ascontiguousarray(command, dtype=np.float64).tobytes())


@dataclass(frozen=True, kw_only=True)
class StepRequest:
    """Token to run step `step` (1, 2, ...) of `epoch` with one command digest per actuator."""

    LENGTH: ClassVar = 2  # integers, plus one for each actuator

    epoch: int
    step: int
    digests: tuple[int, ...]

    def to_data(self) -> list[int]:
        """Return the token as integers."""
        return [self.epoch, self.step, *self.digests]

    @classmethod
    def from_data(cls, data: Sequence[int]) -> StepRequest | None:
        """Return the token in `data`, or None for invalid data."""
        if len(data) < 3:
            return None
        epoch, step, *digests = (int(value) for value in data)
        return cls(epoch=epoch, step=step, digests=tuple(digests))


@dataclass(frozen=True, kw_only=True)
class StepAck:
    """Acknowledgement of step `step` of `epoch`, where step 0 is the reset.

    `newest` has the newest reading of each sensor, in contract order. A reading is identified by its stamp and the
    number of its last publication (from 1, as the middleware counts).
    """

    epoch: int
    step: int
    newest: tuple[tuple[int, int], ...]

    def to_data(self) -> list[int]:
        """Return the acknowledgement as integers."""
        return [self.epoch, self.step, *(value for pair in self.newest for value in pair)]

    @classmethod
    def from_data(cls, data: Sequence[int], sensors: int) -> StepAck | None:
        """Return the acknowledgement for this number of sensors, or None for invalid data."""
        if len(data) != 2 + 2 * sensors:
            return None
        numbers = list(map(int, data))
        return cls(epoch=numbers[0], step=numbers[1], newest=tuple(zip(numbers[2::2], numbers[3::2], strict=True)))


@dataclass(frozen=True, kw_only=True)
class SimulatorFault(JsonMessage):
    """Failure that ends `epoch`, with the code `why`."""

    place = FAULT_TOPIC

    epoch: int
    why: Annotated[str, like("[A-Za-z_][A-Za-z0-9_]{0,63}", "a word")]
    detail: str
