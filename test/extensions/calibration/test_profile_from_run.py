from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from embodied_env.extensions.calibration.profile_from_run import BlockReservoir


@given(st.lists(st.integers(1, 25), max_size=60), st.integers(1, 5))
def test_reservoir_keeps_a_uniform_bounded_sample_of_blocks(lengths, most):
    keeper = BlockReservoir(most)
    count = 0
    for length in lengths:
        for _ in range(length):
            keeper.take((count, None))
            count += 1
        keeper.end()
    kept = keeper.blocks()
    assert len(kept) <= 2 * most
    assert all(later[0] == earlier[0] + 1 for block in kept for earlier, later in pairwise(block))
    assert count == 0 or (kept and kept[0][0][0] == 0)
