"""Task resets are pure functions of their arguments, with the verdict of `judge`, whose terms add up to the reward."""

import copy
import functools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import examples

from embodied_env.contract import load_contract
from embodied_env.contract.spaces import ActionLayout, field_layouts
from embodied_env.core.code_types import Quality
from embodied_env.core.types import ResetReport, Sample, Snapshot
from embodied_env.tasks import ResettableTask, load_task

CONTRACTS = ("arm_reach", "cart_goal", "door_open")
QUALITIES = (Quality.OK, Quality.OK, Quality.OK, Quality.OUT_OF_RANGE, Quality.STALE)

some = examples(40)


@functools.cache
def known(name):
    """Return contract, task, the layouts of numeric fields, and the number of joints."""
    contract = load_contract(name)
    fields = {
        sensor: [layout for layout in field_layouts(sensor, spec) if layout.dtype.kind != "u"]
        for sensor, spec in contract.sensors.items()
    }
    return contract, load_task(contract), fields, ActionLayout(contract).size


def snapshot_of(name, seed, size):
    """Return a snapshot of every sensor with values up to `size` within their ranges, and any quality."""
    random = np.random.default_rng(seed)
    samples = {}
    for sensor, layouts in known(name)[2].items():
        values = {
            layout.field: np.clip(random.uniform(-size, size, layout.shape), layout.low, layout.high).astype(
                layout.dtype
            )
            for layout in layouts
        }
        quality = QUALITIES[random.integers(len(QUALITIES))]
        samples[sensor] = Sample(sensor=sensor, values=values, stamp_ns=0, arrival_ns=0, seq=1, quality=quality)
    return Snapshot(now_ns=0, samples=samples, reset=ResetReport(level="world", seed_applied=1, sampled={}))


snapshots = st.tuples(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.5, 1.0, 5.0]))


def state_of(task):
    return pickle.dumps({key: value for key, value in vars(task).items() if key != "_contract"})


@pytest.mark.parametrize("name", CONTRACTS)
@some
@given(one=snapshots, another=snapshots)
def test_a_reset_gives_the_same_verdict_and_state_after_any_steps(name, one, another):
    _, loaded, _, joints = known(name)
    task = copy.copy(loaded)
    assert isinstance(task, ResettableTask)
    first, other = snapshot_of(name, *one), snapshot_of(name, *another)
    before = pickle.dumps(first)
    verdict, state = task.reset(first, {}), state_of(task)
    task.reset(other, {"target": np.ones(3)})
    task.judge(other, first, np.zeros(joints))
    assert (task.reset(first, {}), state_of(task)) == (verdict, state)
    assert pickle.dumps(first) == before


@pytest.mark.parametrize("name", CONTRACTS)
@some
@given(before=snapshots, after=snapshots, action=st.floats(-1.0, 1.0))
def test_a_reset_snapshot_has_the_verdict_of_a_step_that_ends_there_whose_reward_is_its_terms(
    name, before, after, action
):
    _, task, _, joints = known(name)
    current = snapshot_of(name, *after)
    result = task.judge(snapshot_of(name, *before), current, np.full(joints, action))
    assert task.reset(current, {}) == result.verdict
    assert tuple(result.terms) == task.terms
    assert result.reward == sum(result.terms.values())
