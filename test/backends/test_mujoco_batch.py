"""Worlds of several slots in threads; `test_batched_steps` compares their steps with those of single worlds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from randomised_arm import DRAWS, OPTIONS, randomised_arm

from embodied_env.backends.mujoco import MujocoBackend
from embodied_env.backends.mujoco_batch import WorldBatch
from embodied_env.contract import Contract, load_contract
from embodied_env.core.batches import ApprovedCommandBatch
from embodied_env.core.clock import Domain, ManualClock, Stamp
from embodied_env.core.types import ResetRequest
from embodied_env.errors import BackendError
from embodied_env.safety.approved_commands import approve_command

DEADLINE = Stamp(10**12, Domain.STEADY)
SLOTS = 3


def drawn() -> Contract:
    kept = [key for key in OPTIONS if key != "lag"]
    return randomised_arm({key: OPTIONS[key] for key in kept}, {key: DRAWS[key] for key in kept if key in DRAWS})


@pytest.fixture
def batch() -> Iterator[WorldBatch]:
    """Return a batch of worlds of `arm_reach` that were reset, with three threads."""
    with ExitStack() as stack:
        backends = [MujocoBackend(load_contract("arm_reach"), clock=ManualClock()) for _ in range(SLOTS)]
        made = stack.enter_context(closing(WorldBatch(backends, threads=3)))
        for slot, backend in enumerate(backends):
            stack.enter_context(closing(backend))
            backend.open()
            made.load({slot: backend.reset(ResetRequest(epoch=0, seed=slot), DEADLINE)})
        yield made


def approved(values: NDArray[Any]) -> ApprovedCommandBatch:
    return ApprovedCommandBatch(values=values, is_decided=np.ones(len(values), bool), report=cast("Any", None))


def commands(batch: WorldBatch) -> NDArray[Any]:
    return 0.01 + np.array([backend.world.target for backend in batch._backends])


@pytest.mark.parametrize("name", ["arm_reach", "so101_reach", "ur5e_reach", "drawn"])
def test_a_control_period_of_an_arm_is_one_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MujocoBackend(drawn() if name == "drawn" else load_contract(name), clock=ManualClock())
    with closing(backend):
        backend.open()
        backend.reset(ResetRequest(epoch=0, seed=1), DEADLINE)
        run, steps = backend.world.physics._run, []
        monkeypatch.setattr(
            backend.world.physics, "_run", lambda inputs, states: (steps.append(len(inputs)), run(inputs, states))
        )
        backend.world.step()
        assert len(steps) == 1
        assert backend.world.ideal


def test_a_step_handed_over_is_that_of_its_command_alone(batch: WorldBatch) -> None:
    values = commands(batch)
    batch.send(approved(values), [1])
    batch.step([1])
    batch.hand_over(1)
    wrong = approve_command(cast("Any", SimpleNamespace(applied_si=-values[1])), seq=1, epoch=0)
    with pytest.raises(BackendError, match="wrong command"):
        batch._backends[1].send(wrong)


def test_only_approved_commands_are_sent(batch: WorldBatch) -> None:
    undecided = replace(approved(commands(batch)), is_decided=np.array([True, False, True]))
    for refused in (commands(batch), undecided):
        with pytest.raises(TypeError, match="expected approved commands"):
            batch.send(cast("Any", refused), [1])


def test_no_thread_is_left_after_close(batch: WorldBatch) -> None:
    before = threading.active_count()
    batch.send(approved(commands(batch)), range(SLOTS))
    batch.step(range(SLOTS))
    assert threading.active_count() > before
    batch.close()
    assert threading.active_count() == before


def test_arrays_returned_are_not_written_later(batch: WorldBatch) -> None:
    first = batch.latest.samples["joints"]
    kept = first.values["position"].copy()
    batch.send(approved(commands(batch)), [0])
    batch.step([0])
    batch.read([0], np.zeros(SLOTS, int))
    np.testing.assert_array_equal(first.values["position"], kept)
    assert (batch.latest.samples["joints"].seq - first.seq).tolist() == [1, 0, 0]
