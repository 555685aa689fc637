"""Step results equal the transition, and share no array with it."""

import numpy as np
import pytest
from delay_models import VARYING
from delayed_fake import DelayedFake
from hypothesis import given, settings
from hypothesis import strategies as st
from middleware_backend import MiddlewareBackend, two_actuators
from scripted_tasks import OneClock

from embodied_env.backends.fake_backend import FakeBackend, ScriptedFault
from embodied_env.contract import load_contract
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.stepper import Stepper
from embodied_env.envs.transition_builder import copy_info, copy_observation
from embodied_env.tasks import load_task

ARM = load_contract("arm_reach")
KINDS: list = ["drop", "nan", "stale", "future"]
FAULTS = tuple(ScriptedFault(kind=kind, step=1 + i) for i, kind in enumerate(KINDS))


def stepper(contract, backend=FakeBackend, *, evaluator_info=False, **options):
    clock = OneClock()
    world = backend(contract, clock=clock, **options)
    return Stepper(contract, world, load_task(contract, trust=True), clock=clock, evaluator_info=evaluator_info)


WORLDS = {
    "that waits": lambda: stepper(ARM),
    "with what only the evaluator sees": lambda: stepper(ARM, evaluator_info=True),
    "with faults": lambda: stepper(ARM, faults=FAULTS, evaluator_info=True),
    "in real time": lambda: stepper(ARM, free_running=True),
    "in real time, over a middleware": lambda: stepper(ARM, DelayedFake),
    "behind a middleware": lambda: stepper(ARM, MiddlewareBackend),
    "of two actuators": lambda: stepper(two_actuators()),
    "of images": lambda: stepper(load_contract("door_open")),
    "with delays": lambda: EmbodiedEnv(ARM, delay_profile=VARYING, clock="virtual").stepper,
}


def containers(value, path="info"):
    """Yield every dict and array in `value`, with its path."""
    if isinstance(value, dict):
        yield path, value
        for key, item in value.items():
            yield from containers(item, f"{path}.{key}")
    elif isinstance(value, np.ndarray):
        yield path, value
    else:
        assert type(value) in (float, int, str, bool), f"{path} is {value!r}"


def shared(mine, yours):
    """Return the paths of the objects in both."""
    of_yours = {id(value) for _, value in containers(yours)}
    arrays = [value for _, value in containers(yours) if isinstance(value, np.ndarray)]
    return [
        path
        for path, value in containers(mine)
        if id(value) in of_yours
        or (isinstance(value, np.ndarray) and any(np.may_share_memory(value, array) for array in arrays))
    ]


def assert_same(mine, yours):
    """Assert equality, including types and the order of keys."""
    assert type(mine) is type(yours)
    if isinstance(mine, dict):
        assert list(mine) == list(yours)
        for key, value in mine.items():
            assert_same(value, yours[key])
    elif isinstance(mine, np.ndarray):
        assert mine.dtype == yours.dtype
        np.testing.assert_array_equal(mine, yours)
    else:
        assert mine == yours or (mine != mine and yours != yours)  # noqa: PLR0124 - NaN


@pytest.mark.parametrize("world", WORLDS)
@settings(max_examples=3)
@given(
    asked=st.lists(st.sampled_from([0.0, 0.4, -1.5, float("nan"), None]), min_size=1, max_size=6), marks=st.booleans()
)
def test_step_results_equal_the_transition_and_share_no_memory(world, asked, marks):
    stepped = WORLDS[world]()
    stepped.reset(world_seed=1, options=None, seeded=True)
    for value in asked:
        if marks:
            stepped.ledger.mark("policy")
        hold = stepped.gate.hold_action(stepped._arbiter.reference)
        stepped.begin(None if value is None else stepped.gate.layout.as_action(np.full_like(hold, value)))
        done = stepped.finish()
        observation, info = copy_observation(done.observation), copy_info(done.info)
        assert shared(info, done.info) == shared(observation, dict(done.observation)) == []
        assert_same(info, done.info)
        assert_same(observation, done.observation)
        if done.terminated or done.truncated:
            break
    stepped.close()
