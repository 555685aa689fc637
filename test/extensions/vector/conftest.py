"""Fixtures of the tests that compare batched slots with single environments."""

import pytest
from batches import Pair

from embodied_env.extensions.vector import vector_env


@pytest.fixture
def batch_few_slots(monkeypatch):
    """Batch few slots too, although their own environments are faster."""
    monkeypatch.setattr(vector_env, "FEWEST_SLOTS", 1)


@pytest.fixture
def pair(close_later, batch_few_slots):
    """Return a function that makes a pair of vector environments, which batch few slots too, and resets both."""

    def make(*arguments, **options):
        made = close_later(Pair.of(*arguments, **options))
        made.reset(seed=3)
        return made

    return make
