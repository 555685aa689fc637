"""Many environments as one vector environment (`docs/vector.md`)."""

from __future__ import annotations

from embodied_env.vector.environment import EmbodiedVectorEnv
from embodied_env.vector.making import make_vec

__all__ = ["EmbodiedVectorEnv", "make_vec"]
