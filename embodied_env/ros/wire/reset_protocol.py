"""Reset of a simulator or a robot emulator over ROS 2: by parameters of its node, then a service. No ROS needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embodied_env.contract.json_objects import ARRAY, INTEGER, TEXT, object_of, read_object

NODE = "simulator"
RESET_SERVICE = f"{NODE}/reset"  # std_srvs/srv/Trigger; the message of its response is ResetReply.to_text()

EPOCH_PARAMETER = "reset.epoch"
SEED_PARAMETER = "reset.seed"
OPTIONS_PARAMETER = "reset.options"  # a JSON object: reset option -> value

ANY_EPOCH = -1  # no epoch; `RESET_SERVICE` in lockstep refuses it

_REPLY = {
    "epoch": INTEGER,
    "stamp_ns": INTEGER,
    "sampled": object_of(ARRAY),
    "fingerprint": TEXT,
    "details": object_of(TEXT),
}


@dataclass(frozen=True, kw_only=True)
class ResetReply:
    """Result of a reset: its epoch, the simulated time at its end, sampled values, and the contract's fingerprint.

    `details`: other choices of the simulator, e.g. the rendering library.
    """

    epoch: int
    stamp_ns: int
    sampled: Mapping[str, Any]
    fingerprint: str
    details: Mapping[str, str]

    def to_text(self) -> str:
        """Return the reply as JSON; floats keep every bit."""
        sampled = {name: np.asarray(value).tolist() for name, value in self.sampled.items()}
        return json.dumps({**vars(self), "sampled": sampled, "details": dict(self.details)})

    @classmethod
    def from_text(cls, text: str) -> ResetReply:
        """Parse JSON; raises ValueError with the invalid field."""
        reply = cls(**read_object(text, RESET_SERVICE, _REPLY))
        return replace(reply, sampled={name: np.array(x, dtype=np.float64) for name, x in reply.sampled.items()})
