"""Draw the seeds of worlds, one for each reset."""

from __future__ import annotations

import numpy as np

_BOUND = 2**53  # every JSON reader keeps integers below this exactly


def draw_world_seed(generator: np.random.Generator) -> int:
    """Return the world's seed of the next reset."""
    return int(generator.integers(_BOUND))
