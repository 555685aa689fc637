import copy
import pickle

import gymnasium
import numpy as np
import pytest
from delay_models import VARYING
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from middleware_backend import two_actuators

import embodied_env
from embodied_env import NoAction, NumericInfo
from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.contract.contract_loader import shipped_files
from embodied_env.core.code_table import CODES, END_CODES
from embodied_env.core.code_types import end_kind
from embodied_env.errors import UsageError

TEXTS = {
    "wrapper_version",
    "contract",
    "backend",
    "instruction",
    "reset.level",
    "reset.options_ignored",
    "safety.unmoved",
    "latency.clock.rmw",
}
"""The keys that are left out, as documented, besides annotations."""

SIGNED = {"reset.seed_applied", "latency.actuation_behind"}
"""The integers that can be -1, as documented: the number of an absent one is another."""


def make(contract="arm_reach", **options):
    return NumericInfo(embodied_env.make(contract, backend="fake", **options))


def structure(info):
    """Return the type, dtype and shape of each value."""
    assert all(isinstance(value, (np.float64, np.int64, np.ndarray)) for value in info.values())
    assert all(value.dtype.kind in "fiu" for value in info.values())
    return {key: (type(value), value.dtype, value.shape) for key, value in info.items()}


def leaves(info, path=()):
    for key, value in info.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield ".".join((*path, key)), value


def is_nan(value):
    return np.asarray(value).dtype.kind == "f" and bool(np.isnan(value).all())


def assert_encodes(numeric, info, codes):
    """Compare each number with the value of the nested info, or with the number of an absent one."""
    expected = {key: value for key, value in leaves(info) if key not in TEXTS and not key.startswith("annotations.")}
    assert expected.keys() <= numeric.keys()
    for key, number in numeric.items():
        if key not in expected:
            absent = -(2**63) if key in SIGNED else -1
            assert is_nan(number) if number.dtype.kind == "f" else np.all(number == absent), key
        elif isinstance(value := expected[key], str):
            assert number == codes[key].get(value, codes[key].get(end_kind(value))), key
        else:
            np.testing.assert_array_equal(number, value, err_msg=key)
            assert not isinstance(value, np.ndarray) or number.dtype == value.dtype, key


OPTIONS: dict = {
    "lockstep": {},
    "evaluator": {"evaluator_info": True},
    "free running": {"pacing": "realtime"},
    "delays": {"delay_profile": VARYING, "clock": "virtual"},
}
FAULTS = [
    ScriptedFault(kind=kind, step=step) for kind in ("drop", "nan", "stale", "future", "refuse") for step in (1, 2, 3)
]
ACTIONS = ["sample", None, "what?", float("nan"), NoAction("late"), NoAction("lost")]
CASES: list = [(name, "lockstep") for name in ("arm_reach", "cart_goal", "door_open", "two actuators")]
CASES += [
    pytest.param(name, "lockstep", marks=pytest.mark.long)
    for name in sorted(shipped_files().keys() - {"arm_reach", "cart_goal", "door_open"})
]
CASES += [("arm_reach", options) for options in OPTIONS if options != "lockstep"]
CASES += [("two actuators", "evaluator"), ("cart_goal", "evaluator"), ("door_open", "evaluator")]


@pytest.mark.parametrize(("contract", "options"), CASES)
@settings(max_examples=4)
@given(
    faults=st.lists(st.sampled_from(FAULTS), max_size=3, unique=True),
    actions=st.lists(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=5), min_size=1, max_size=2),
)
def test_the_structure_is_constant_and_has_the_values_of_the_info(contract, options, faults, actions):
    """`actions` are those of each episode."""
    chosen = two_actuators() if contract == "two actuators" else contract
    world = {"backend": "fake", "faults": faults}
    if options == "delays":  # the fake backend injects none
        pytest.importorskip("mujoco")
        world = {"backend": "mujoco"}
    inner = embodied_env.make(chosen, **world, **OPTIONS[options])
    raw = []
    env = NumericInfo(Kept(inner, raw))
    structures = []
    for asked in actions:
        infos = [env.reset(seed=1)[1]]
        for action in asked:
            *_, terminated, truncated, info = env.step(env.action_space.sample() if action == "sample" else action)
            infos.append(info)
            if terminated or truncated:
                break
        structures += [structure(info) for info in infos]
        for info in infos:
            assert_encodes(info, raw.pop(0), env.codes)
    env.close()
    assert all(each == structures[0] for each in structures)


class Kept(gymnasium.Wrapper):
    def __init__(self, env, infos):
        super().__init__(env)
        self._infos = infos

    def reset(self, **arguments):
        result = self.env.reset(**arguments)
        self._infos.append(copy.deepcopy(result[1]))
        return result

    def step(self, action):
        result = self.env.step(action)
        self._infos.append(copy.deepcopy(result[4]))
        return result


def test_absent_values_are_documented_numbers_and_all_worlds_have_the_same_structure():
    with make() as env:
        _, reset = env.reset(seed=1)
        step = env.step(env.action_space.sample())[4]
    assert np.isnan([reset["latency_ms"], step["reset.duration_s"], step["latency.jitter_s"]]).all()
    assert (reset["action_clipped"], reset["latency.overruns"], step["reset.routine"]) == (-1, -1, -1)
    assert (reset["latency.actuation_behind"], step["reset.seed_applied"]) == (-(2**63), -(2**63))
    assert (reset["safety.code"] == -1).all()
    pytest.importorskip("mujoco")
    others: list[dict] = [{"backend": "mujoco"}, {"backend": "fake", "pacing": "realtime"}]
    for options in others:
        with NumericInfo(embodied_env.make("arm_reach", **options)) as env:
            assert structure(env.reset(seed=1)[1]) == structure(reset)


def test_the_code_table_has_every_word():
    codes = make().codes
    assert codes["safety.code"] == dict(CODES)
    assert codes["end_reason"] == dict(END_CODES)
    assert codes["reset.confirmed_by"] == {"": 0, "prompt": 1, "topic": 2, "service": 3}
    assert codes["latency.quality.handoff_s"]["UNMARKED"] == 9


def test_an_end_reason_has_the_number_of_its_code_or_kind():
    with make() as env:
        env.reset(seed=1)
        for _ in range(3):
            stopped = env.step("what?")[4]
        assert stopped["end_reason"] == END_CODES["safety_stop:form.repeated"]
        env.reset()
        is_truncated = False
        while not is_truncated:
            *_, is_truncated, lost = env.step(NoAction("asleep"))
    assert lost["end_reason"] == END_CODES["policy_lost"]


@pytest.mark.needs("explain")
def test_explain_expects_the_info_of_the_environment_inside():
    with make() as env, pytest.raises(UsageError, match=r"without .*sensors.* not of NumericInfo"):
        embodied_env.explain(env.reset(seed=1)[1])


@pytest.mark.parametrize("vector", [SyncVectorEnv, pytest.param(AsyncVectorEnv, marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_vectors_stack_infos_in_numeric_arrays(vector, mode):
    env = vector([lambda: make(max_episode_steps=2)] * 2, autoreset_mode=mode)
    infos = [env.reset(seed=1)[1], *(env.step(env.action_space.sample())[4] for _ in range(4))]
    env.close()
    for info in infos:
        stacked = {key: value for key, value in leaves(info) if "final_obs" not in key}  # Gymnasium's own objects
        assert {value.dtype.kind for value in stacked.values()} <= set("fiub")
        assert info["safety.code"].shape == (2, len(make().reset(seed=1)[1]["safety.code"]))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])  # noqa: S301
def test_copies_and_the_spec_make_the_same_environment(close_later, duplicate):
    env = close_later(make(clock="virtual"))
    _, info = env.reset(seed=1)
    for twin in (
        duplicate(env),
        gymnasium.make(env.spec),
        gymnasium.make(type(env.spec).from_json(env.spec.to_json())),
    ):
        assert "not opened" in repr(twin)
        np.testing.assert_equal(twin.reset(seed=1)[1], info)
        twin.close()


def one_slot():
    return embodied_env.make_vec("arm_reach", num_envs=1, backend="fake")


@pytest.mark.parametrize(
    "make", [lambda: gymnasium.make("CartPole-v1"), pytest.param(one_slot, marks=pytest.mark.needs("vector"))]
)
def test_it_encodes_single_environments_of_this_package(make, close_later):
    with pytest.raises(UsageError, match="expected a single environment made by embodied_env"):
        NumericInfo(close_later(make()))
