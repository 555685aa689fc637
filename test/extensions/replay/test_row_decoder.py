"""Decoding of damaged rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embodied_env.contract import load_contract
from embodied_env.errors import RecordError
from embodied_env.extensions.replay.row_decoder import RowDecoder
from embodied_env.record.row_types import RESET


@pytest.mark.parametrize("observation", ["x", 1, None, [0.0]])
def test_reset_with_a_non_mapping_observation_is_not_decoded(observation):
    decoder = RowDecoder(load_contract("arm_reach"), np.asarray)
    row: Any = {"schema": RESET, "observation": {}, "inner": {"observation": observation}}
    with pytest.raises(RecordError, match="cannot read"):
        decoder.observation(row)


def test_a_number_beyond_the_precision_of_its_field_is_not_decoded():
    contract = load_contract("cart_goal")
    decoder = RowDecoder(contract, np.asarray)
    observation = {key: np.zeros(box.shape, box.dtype).tolist() for key, box in contract.observation_space.items()}
    observation["scan_ranges"][0] = 1e39
    row: Any = {"schema": RESET, "observation": {}, "inner": {"observation": observation}}
    with pytest.raises(RecordError, match="cannot read scan_ranges"):
        decoder.observation(row)
