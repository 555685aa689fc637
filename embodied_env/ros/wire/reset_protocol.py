"""Reset of a simulator or a robot emulator by parameters of its node, then a service, without ROS imports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_env.contract.json_messages import JsonMessage, RegularArray
from embodied_env.core.types import ResetRequest

NODE = "simulator"
RESET_SERVICE = f"{NODE}/reset"  # std_srvs/srv/Trigger; the message of its response is ResetReply.to_text()

EPOCH_PARAMETER = "reset.epoch"
SEED_PARAMETER = "reset.seed"
OPTIONS_PARAMETER = "reset.options"  # a JSON object: reset option -> value

ANY_EPOCH = -1  # no epoch; `RESET_SERVICE` in lockstep refuses it


@dataclass(frozen=True, kw_only=True)
class ResetReply(JsonMessage):
    """Result of a reset with its epoch, the simulated time at its end, sampled values and the contract's fingerprint.

    `details` are other choices of the simulator, e.g. the rendering library.
    """

    place = RESET_SERVICE

    epoch: int
    stamp_ns: int
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
