"""The MuJoCo worlds of several slots, stepped together in threads and read as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.mujoco import MujocoBackend
from embodied_env.core.batches import ApprovedCommandBatch, IntArray, SnapshotBatch
from embodied_env.core.types import Snapshot
from embodied_env.errors import BackendLostError


class WorldBatch:
    """Steps the worlds of several slots, and reads their sensors as arrays.

    A slot belongs to the batch between `load` and the next reset or step by its own backend, which sees the true state
    of the world at any time. `slots` are the indices of different slots.

    Attributes:
        executor: computes the worlds beside the caller's thread; None with a single thread.
    """

    def __init__(self, backends: Sequence[MujocoBackend], *, threads: int | None = None) -> None:
        """Batch the worlds of backends that are not open yet; by default there is a thread per CPU, with 0 none."""
        self.executor: ThreadPoolExecutor | None = None

    def load(self, slot: int, snapshot: Snapshot) -> None:
        """Take over a slot after a reset or step of its own; `snapshot` becomes its row of `latest`."""

    @property
    def latest(self) -> SnapshotBatch:
        """The newest snapshot of each slot."""

    def send(self, commands: ApprovedCommandBatch, slots: Sequence[int] | NDArray[np.intp]) -> None:
        """Set the commands of the next period; raises TypeError for one that is not approved."""

    def step(self, slots: Sequence[int] | NDArray[np.intp]) -> dict[int, BackendLostError]:
        """Step these worlds by one control period; return the error of each that is unstable."""

    def read(self, slots: Sequence[int] | NDArray[np.intp], arrival_ns: IntArray) -> SnapshotBatch:
        """Return the newest samples, which arrived at `arrival_ns`, shape (n_slots,); other slots keep their rows.

        A reading that may be invalid has the quality INVALID here; then `hand_over` shows what the slot would read.
        """

    def hand_over(self, slot: int) -> None:
        """Let the slot's own backend finish the step that `step` took: it accepts the same command and moves nothing.

        `advance` raises the error of an unstable world.
        """

    def close(self) -> None:
        """End the threads. Idempotent; it leaves the backends open."""
