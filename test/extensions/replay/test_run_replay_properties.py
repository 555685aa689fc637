"""A run of any actions replays bit for bit under its own contract."""

import functools
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.contract import load_contract
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.extensions.replay.run_replay import replay_run
from embodied_env.record import RecordTransitions

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(few, max_examples=500)

floats = st.floats(-2.0, 2.0) | st.floats()
good = npst.arrays(np.float64, 6, elements=st.floats(-2.0, 2.0))
actions = st.one_of(
    good,
    good,
    npst.arrays(np.float32, 6, elements=st.floats(width=32)),
    npst.arrays(npst.scalar_dtypes(), npst.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=7)),
    st.lists(floats, max_size=8),
    npst.arrays(np.complex128, 6),
    st.sampled_from([None, "go", {1: 2}, object(), type(None), [True] * 6, 10**2000, b"x", float("nan")]),
)
faults = st.lists(
    st.builds(
        ScriptedFault,
        kind=st.sampled_from(["drop", "nan", "stale", "future"]),
        step=st.integers(1, 6),
        sensor=st.sampled_from([None, "joints", "tcp"]),
    ),
    max_size=2,
)


@functools.cache
def contract():
    return load_contract("arm_reach")


runs = given(episodes=st.lists(st.lists(actions, max_size=6), min_size=1, max_size=3), faults=faults)


def check_equal_replay(episodes, faults):
    with tempfile.TemporaryDirectory() as folder:
        env = RecordTransitions(EmbodiedEnv(contract(), backend="fake", faults=faults), folder)
        count = 0
        with env:
            for number, each in enumerate(episodes):
                env.reset(seed=7 if number == 0 else None)
                for action in each:
                    *_, terminated, truncated, _ = env.step(action)
                    count += 1
                    if terminated or truncated:
                        break
        replay = replay_run(env.path)
    assert replay.difference is None
    assert (replay.transitions, replay.resets) == (count, len(episodes))


@few
@runs
def test_any_run_replays_equal(episodes, faults):
    check_equal_replay(episodes, faults)


@pytest.mark.long
@many
@runs
def test_many_runs_replay_equal(episodes, faults):
    check_equal_replay(episodes, faults)
