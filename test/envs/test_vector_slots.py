"""Infos are stacked as Gymnasium stacks them, slot by slot."""

from __future__ import annotations

import numpy as np
import pytest
from batches import assert_same
from gymnasium.vector import VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_env.envs.vector_slots import stack_infos

SLOTS = 4
LEAVES = {
    "flag": st.booleans(),
    "count": st.integers(-5, 5),
    "ratio": st.floats(allow_nan=True, width=32),
    "word": st.text(max_size=3),
    "nothing": st.none(),
    "narrow": st.integers(0, 9).map(np.int16),
    "vector": st.lists(st.floats(-1, 1), min_size=3, max_size=3).map(np.array),
    "codes": st.lists(st.integers(0, 9), min_size=2, max_size=2).map(lambda row: np.array(row, dtype=np.int8)),
    "final_obs": st.dictionaries(st.just("x"), st.integers(0, 3), max_size=1),
}
INFOS = st.fixed_dictionaries({}, optional={**LEAVES, "inner": st.fixed_dictionaries({}, optional=LEAVES)})


def by_gymnasium(infos):
    vector = VectorEnv()
    vector.num_envs = len(infos)
    together = {}
    for slot, info in enumerate(infos):
        if info is not None:
            together = vector._add_info(together, info, slot)
    return together


@settings(max_examples=12, deadline=None)
@given(st.lists(st.none() | INFOS, min_size=SLOTS, max_size=SLOTS))
def test_the_infos_of_slots_are_stacked_as_gymnasium_stacks_them(infos):
    assert_same(stack_infos(infos), by_gymnasium(infos))


def test_the_dtype_is_that_of_the_first_slot_that_has_the_key():
    infos = [None, {"n": 1}, {"n": 2.5}]
    assert_same(stack_infos(infos), by_gymnasium(infos))
    assert stack_infos(infos)["n"].dtype == np.int64


def test_arrays_of_two_shapes_cannot_be_one():
    with pytest.raises(ValueError, match="broadcast"):
        stack_infos([{"x": np.zeros(2)}, {"x": np.zeros(3)}])


def test_no_slot_writes_into_the_mask_of_another_key():
    together = stack_infos([{"a": 1, "b": 2}, {"a": 1, "b": 2}])
    together["_a"][0] = False
    assert together["_b"].all()
