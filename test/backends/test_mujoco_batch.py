"""Worlds that are stepped and read together are those stepped and read one by one, bit for bit."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from randomised_arm import DRAWS, OPTIONS, randomised_arm
from shipped_contracts import changed_contract
from strategies import ABSENT

from embodied_env.backends.mujoco import MujocoBackend
from embodied_env.backends.mujoco_batch import WorldBatch
from embodied_env.contract import Contract, load_contract
from embodied_env.core.batches import ApprovedCommandBatch
from embodied_env.core.clock import Domain, ManualClock, Stamp
from embodied_env.core.types import ApprovedCommand, ResetRequest, Snapshot
from embodied_env.errors import BackendError, BackendLostError
from embodied_env.safety.approved_commands import approve_command

DEADLINE = Stamp(10**12, Domain.STEADY)
ARM = load_contract("arm_reach")
SLOTS = 3
ARMS = ("arm_reach", "so101_reach", "ur5e_reach")


@functools.cache
def contract_of(name: str) -> Contract:
    """Return a shipped contract; the door without cameras; the arm with slow sensors, drawn properties or delays."""
    if name == "door":
        paths = [
            f"{path}.{camera}" for camera in ("camera", "depth") for path in ("sensors", "backends.mujoco.sources")
        ]
        return changed_contract("door_open", dict.fromkeys(paths, ABSENT))
    if name == "slow":  # also due during a control period
        rates = {"tcp": 8.0, "target": 10.0}
        slow = {sensor: replace(ARM.sensors[sensor], rate_hz=rate, max_age_s=1.0) for sensor, rate in rates.items()}
        return replace(ARM, sensors={**ARM.sensors, **slow})
    if name == "drawn":
        kept = [key for key in OPTIONS if key != "lag"]
        return randomised_arm({key: OPTIONS[key] for key in kept}, {key: DRAWS[key] for key in kept if key in DRAWS})
    return randomised_arm() if name == "late" else load_contract(name)


def opened(contract: Contract) -> MujocoBackend:
    backend = MujocoBackend(contract, clock=ManualClock())
    backend.open()
    return backend


class Twins:
    """Slots in a batch, and equal ones that are stepped one by one."""

    def __init__(self, contract: Contract, threads: int) -> None:
        self.alone = [opened(contract) for _ in range(SLOTS)]
        self.together = [opened(contract) for _ in range(SLOTS)]
        self.batch = WorldBatch(self.together, threads=threads)
        self.rng = np.random.default_rng(5)
        for slot in range(SLOTS):
            self.reset(slot, seed=slot)
        self.is_velocity = self.alone[0].world.is_velocity
        self.commands = np.array([backend.world.target for backend in self.alone])

    def reset(self, slot: int, seed: int) -> None:
        request = ResetRequest(epoch=0, seed=seed)
        alone, own = (backends[slot].reset(request, DEADLINE) for backends in (self.alone, self.together))
        assert_equal(own, alone)
        self.batch.load({slot: own})

    def draw(self) -> None:
        speeds = self.rng.uniform(-1.0, 1.0, self.commands.shape)
        self.commands = np.where(self.is_velocity, speeds, self.commands + 0.05 * speeds)

    def step(self, slots: Sequence[int]) -> dict[int, BackendLostError]:
        self.batch.send(approved(self.commands), slots)
        return self.batch.step(slots)

    def read_alone(self, slot: int) -> Snapshot:
        step(self.alone[slot], self.commands[slot])
        return self.alone[slot].read(DEADLINE, DEADLINE)


@contextmanager
def twins(name: str, threads: int = 2) -> Iterator[Twins]:
    made = Twins(contract_of(name), threads)
    try:
        yield made
    finally:
        made.batch.close()
        for backend in [*made.alone, *made.together]:
            backend.close()


def approved(values: NDArray[Any]) -> ApprovedCommandBatch:
    return ApprovedCommandBatch(values=values.copy(), is_decided=np.ones(len(values), bool), report=cast("Any", None))


def command_of(values: NDArray[Any]) -> ApprovedCommand:
    report = cast("Any", type("Report", (), {"applied_si": values}))
    return approve_command(report, seq=1, epoch=0)


def step(backend: MujocoBackend, values: NDArray[Any]) -> None:
    backend.send(command_of(values))
    backend.advance(DEADLINE, DEADLINE)


def assert_equal(ours: Snapshot, theirs: Snapshot) -> None:
    assert ours.now_ns == theirs.now_ns
    for name, sample in theirs.samples.items():
        own = ours.samples[name]
        assert (own.stamp_ns, own.seq, own.quality) == (sample.stamp_ns, sample.seq, sample.quality), name
        np.testing.assert_array_equal(own.confidence, sample.confidence)
        for field, value in sample.values.items():
            assert own.values[field].dtype == value.dtype
            assert own.values[field].tobytes() == value.tobytes(), (name, field)


def compare(pair: Twins, steps: int) -> None:
    """Step all slots, sometimes one of them by its own backend, and reset some in between."""
    everyone = range(SLOTS)
    for k in range(steps):
        pair.draw()
        slots = [slot for slot in everyone if k % 7 != 3 or slot != 1]
        assert pair.step(slots) == {}
        pair.batch.read(slots, np.full(SLOTS, k))
        for slot in everyone:
            expected = pair.read_alone(slot)
            if slot not in slots:
                step(pair.together[slot], pair.commands[slot])
                pair.batch.load({slot: pair.together[slot].read(DEADLINE, DEADLINE)})
            assert_equal(pair.batch.latest.slot(slot), expected)
            if k % 5 == slot:
                assert_equal(pair.together[slot].read(DEADLINE, DEADLINE), expected)
        if k == steps // 2:
            pair.reset(0, seed=50)
            pair.commands[0] = pair.alone[0].world.target


@pytest.mark.parametrize("name", [*ARMS, "cart_goal", "turtlebot4_goal", "door", "slow", "drawn", "late"])
@pytest.mark.parametrize("threads", [0, 2])
def test_worlds_stepped_together_equal_worlds_stepped_alone(name: str, threads: int) -> None:
    with twins(name, threads) as pair:
        compare(pair, steps=16 if threads else 8)


@pytest.mark.long
@pytest.mark.parametrize("name", [*ARMS, "cart_goal", "turtlebot4_goal", "door_open", "slow", "drawn", "late"])
def test_many_steps_together_equal_those_alone(name: str) -> None:
    with twins(name) as pair:
        compare(pair, steps=60)


@pytest.mark.parametrize("name", [*ARMS, "drawn"])
def test_threads_run_through_the_control_periods_of_arms(name: str) -> None:
    with twins(name) as pair:
        assert all(backend.world.runs_through and backend.world.ideal for backend in pair.together)


def test_an_unstable_world_is_reported_and_the_others_go_on() -> None:
    with twins("arm_reach") as pair:
        pair.draw()
        pair.commands[1] = np.nan
        errors = pair.step(range(SLOTS))
        assert list(errors) == [1]
        pair.batch.read([0, 2], np.zeros(SLOTS, int))
        for slot in (0, 2):
            assert_equal(pair.batch.latest.slot(slot), pair.read_alone(slot))
        pair.batch.hand_over(1)
        with pytest.raises(BackendLostError, match="mjWARN_BADCTRL"):
            step(pair.together[1], pair.commands[1])


def test_a_step_handed_over_is_not_taken_again() -> None:
    with twins("arm_reach") as pair:
        pair.draw()
        pair.step([0, 1])
        pair.batch.hand_over(0)
        pair.batch.hand_over(1)
        step(pair.together[0], pair.commands[0])
        assert_equal(pair.together[0].read(DEADLINE, DEADLINE), pair.read_alone(0))
        with pytest.raises(BackendError, match="wrong command"):
            pair.together[1].send(command_of(-pair.commands[1]))


def test_only_approved_commands_are_sent() -> None:
    with twins("arm_reach") as pair:
        with pytest.raises(TypeError, match="expected approved commands"):
            pair.batch.send(cast("Any", pair.commands), [0])
        undecided = replace(approved(pair.commands), is_decided=np.array([True, False, True]))
        with pytest.raises(TypeError, match="expected approved commands"):
            pair.batch.send(undecided, [1])


def test_no_thread_is_left_after_close() -> None:
    before = threading.active_count()
    with twins("arm_reach", threads=3) as pair:
        pair.step(range(SLOTS))
        assert threading.active_count() > before
    assert threading.active_count() == before


def test_arrays_returned_are_not_written_later() -> None:
    with twins("arm_reach") as pair:
        first = pair.batch.latest
        kept = first.samples["joints"].values["position"].copy()
        pair.draw()
        pair.step([0])
        pair.batch.read([0], np.zeros(SLOTS, int))
        np.testing.assert_array_equal(first.samples["joints"].values["position"], kept)
        assert (pair.batch.latest.samples["joints"].seq - first.samples["joints"].seq).tolist() == [1, 0, 0]
