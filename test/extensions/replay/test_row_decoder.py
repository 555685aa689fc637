"""A value of a recorded row that does not fit the contract is refused by name."""

from typing import Any

import numpy as np
import pytest

from embodied_env.contract import load_contract
from embodied_env.errors import RecordError
from embodied_env.extensions.replay.row_decoder import RowDecoder
from embodied_env.record.row_types import TRANSITION

DOOR = load_contract("door_open")
SPACE = DOOR.observation_space["camera_image"]


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2, 3), np.uint8), np.zeros(SPACE.shape, np.float32)], ids=["shape", "dtype"]
)
def test_an_image_of_another_shape_or_dtype_is_refused(array):
    reference = {"sha256": "a" * 64, "dtype": "uint8", "shape": list(SPACE.shape)}
    row: Any = {"schema": TRANSITION, "observation": {}, "inner": {"observation": {"camera_image": reference}}}
    with pytest.raises(RecordError, match=r"cannot read camera_image of a recorded step: .*expected uint8 of shape"):
        RowDecoder(DOOR, lambda _: array).observation(row)


def test_required_sensors_that_the_contract_lacks_are_refused():
    row: Any = {"inner": {"external_inputs": {"required": ["nose"]}}}
    row["inner"]["external_inputs"] |= dict.fromkeys(("action_age_s", "latency_s"), 0.0) | {"estops": {}}
    with pytest.raises(RecordError, match=r"invalid inner.external_inputs.required: \['nose'\] \(expected some of: "):
        RowDecoder(DOOR, lambda _: np.zeros(1)).external_inputs(row)
