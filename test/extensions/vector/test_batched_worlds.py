"""Worlds of several slots step in one call of MuJoCo.

`test_batched_steps` compares their steps with those of single worlds.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from embodied_env.contract import load_contract
from embodied_env.core.types import ResetRequest, Snapshot
from embodied_env.extensions.vector.batched_types import ApprovedCommandBatch
from embodied_env.extensions.vector.batched_worlds import SlotBackend, WorldBatch
from embodied_env.timing.clock import ManualClock

DEADLINE_NS = 10**12
SLOTS = 3


@pytest.fixture
def backends() -> Iterator[list[SlotBackend]]:
    made, contract = WorldBatch(SLOTS, threads=2), load_contract("arm_reach")
    backends = [SlotBackend(contract, worlds=made, slot=slot, clock=ManualClock()) for slot in range(SLOTS)]
    with ExitStack() as stack:
        for slot, backend in enumerate(backends):
            stack.enter_context(closing(backend))
            made.select(slot)
            backend.open()
            made.load({slot: backend.reset(ResetRequest(epoch=0, seed=slot), DEADLINE_NS)})
        yield backends


@pytest.fixture
def batch(backends: list[SlotBackend]) -> WorldBatch:
    return backends[0]._worlds


def approved(values: NDArray[Any]) -> ApprovedCommandBatch:
    return ApprovedCommandBatch(values=values, is_decided=np.ones(len(values), bool), report=cast("Any", None))


def commands(batch: WorldBatch) -> NDArray[Any]:
    return 0.01 + batch.latest.samples["joints"].values["position"]


def read_alone(backend: SlotBackend) -> Snapshot:
    backend._worlds.select(backend._slot)
    return backend.read(DEADLINE_NS, DEADLINE_NS)


def test_a_slot_that_is_selected_has_the_state_of_the_arrays(batch: WorldBatch, backends: list[SlotBackend]) -> None:
    for _ in range(3):
        batch.send(approved(commands(batch)), [0, 2])
        batch.step([0, 2])
        batch.read([0, 2], np.zeros(SLOTS, int))
    for slot in range(SLOTS):
        alone = read_alone(backends[slot])
        assert repr(replace(alone, reset=None, clock=None)) == repr(batch.latest.slot(slot))


def test_a_step_that_is_handed_over_was_not_taken(batch: WorldBatch, backends: list[SlotBackend]) -> None:
    before = batch.latest.slot(1)
    batch.send(approved(commands(batch)), range(SLOTS))
    batch.step(range(SLOTS))
    batch.read(range(SLOTS), np.zeros(SLOTS, int))
    batch.hand_over(1)
    assert repr(read_alone(backends[1])) == repr(before)
    assert read_alone(backends[0]).now_ns > before.now_ns


def test_only_approved_commands_are_sent(batch: WorldBatch) -> None:
    undecided = replace(approved(commands(batch)), is_decided=np.array([True, False, True]))
    for refused in (commands(batch), undecided):
        with pytest.raises(TypeError, match="expected approved commands"):
            batch.send(cast("Any", refused), [1])


def test_arrays_returned_are_not_written_later(batch: WorldBatch) -> None:
    first = batch.latest.samples["joints"]
    kept = first.values["position"].copy()
    batch.send(approved(commands(batch)), [0])
    batch.step([0])
    batch.read([0], np.zeros(SLOTS, int))
    np.testing.assert_array_equal(first.values["position"], kept)
    assert (batch.latest.samples["joints"].seq - first.seq).tolist() == [1, 0, 0]
