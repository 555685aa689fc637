"""Any action, latencies and options of an environment; `test_stepper` tests the ends of episodes."""

from __future__ import annotations

import numpy as np
import pytest
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.codes import CODES, Severity
from embodied_env.errors import UsageError
from embodied_env.testing import Fault, ManualClock

ZERO = np.zeros(6)
ENDLESS = changed_contract("arm_reach", {"task": {"type": "scripted_tasks:Running"}})


@pytest.fixture
def make(close_later):
    return lambda **options: close_later(embodied_env.make(ENDLESS, backend="fake", **options))


def sent(env):
    return env.unwrapped._stepper.backend.sent


class Tensor:
    """A stand-in for a torch tensor that requires grad."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")

    def detach(self):
        return self

    def cpu(self):
        return np.array(self.values, dtype=np.float32)


class Hostile:
    """Raises on every access."""

    def __array__(self, dtype=None, copy=None):
        raise MemoryError("no array for you")


REFUSED = {
    "nan": (np.full(6, np.nan), "form.nan"),
    "infinity": (np.full(6, np.inf), "form.nan"),
    "one nan among numbers": ([0.0, 0.0, 0.0, 0.0, 0.0, np.nan], "form.nan"),
    "a wrong shape": (np.zeros(5), "form.shape"),
    "a batch": (np.zeros((1, 6)), "form.shape"),
    "a scalar": (0.0, "form.shape"),
    "a ragged list": ([[0.0], [0.0, 1.0]], "form.type"),
    "a string": ("forward", "form.type"),
    "None": (None, "form.type"),
    "booleans": (np.zeros(6, dtype=bool), "form.type"),
    "complex numbers": (np.zeros(6, dtype=complex), "form.type"),
    "objects": (np.array([object()] * 6), "form.type"),
    "an object that raises": (Hostile(), "form.type"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_malformed_action_is_a_hold_with_its_reason_and_brakes(make, name):
    action, code = REFUSED[name]
    env = make()
    env.reset(seed=1)
    env.step(np.full(6, 0.1))
    before = sent(env)[-1]
    _, _, terminated, truncated, info = env.step(action)
    assert info["safety"]["disposition"] == Severity.HOLD
    assert CODES[code] in info["safety"]["code"]
    assert info["action_clipped"] is True
    assert (terminated, truncated) == (False, False)
    after = sent(env)[-1]
    assert np.isfinite(after.values).all()
    assert (np.abs(after.report.velocity_si) <= np.abs(before.report.velocity_si)).all()


@pytest.mark.parametrize(
    "action",
    [[0.1] * 6, (0.1,) * 6, np.full(6, 0.1, dtype=np.float16), np.full(6, 0.1, dtype=np.float32), Tensor([0.1] * 6)],
    ids=["list", "tuple", "float16", "float32", "tensor"],
)
def test_any_six_real_numbers_are_accepted(make, action):
    env = make()
    env.reset(seed=1)
    *_, info = env.step(action)
    assert info["safety"]["disposition"] == Severity.PASS
    np.testing.assert_allclose(info["action"]["requested"], 0.1, rtol=1e-3)


def test_a_torch_tensor_in_a_graph_is_accepted(make):
    torch = pytest.importorskip("torch", reason="needs the extra train")
    env = make()
    env.reset(seed=1)
    *_, info = env.step(torch.zeros(6, requires_grad=True))
    assert info["safety"]["disposition"] == Severity.PASS


def test_a_huge_finite_action_is_clipped_to_the_space_and_limited(make):
    env = make()
    env.reset(seed=1)
    *_, info = env.step(np.full(6, 1e308))
    assert CODES["box.clip"] in info["safety"]["code"]
    assert np.all(np.abs(info["action"]["applied"]) <= 1.0)
    np.testing.assert_array_equal(info["action"]["requested"], 1e308)


def test_three_malformed_actions_in_a_row_end_the_episode(make):
    env = make()
    env.reset(seed=1)
    results = [env.step(np.full(6, np.nan)) for _ in range(3)]
    assert [r[3] for r in results] == [False, False, True]
    assert results[-1][-1]["end_reason"] == "safety_stop:form.repeated"


def test_a_slow_world_appears_only_in_the_world_stage(make):
    clock = ManualClock()
    env = make(clock=clock, host_timing=True, faults=[Fault(kind="delay", step=1, delay_s=0.25)])
    env.reset(seed=1)
    latency = env.step(ZERO)[-1]["latency"]
    stages = ("handoff_s", "inference_s", "gate_s", "publish_s", "obs_to_command_s", "world_s")
    assert {stage: latency[stage] for stage in stages} == {**dict.fromkeys(stages, 0.0), "world_s": 0.25}


def test_a_slow_policy_appears_only_in_inference_and_its_sum(make):
    clock = ManualClock()
    env = make(clock=clock, host_timing=True)
    env.reset(seed=1)
    clock.advance_ns(30_000_000)
    env.unwrapped.mark("policy")
    clock.advance_ns(5_000_000)
    latency = env.step(ZERO)[-1]["latency"]
    assert latency["policy_s"] == 0.03
    assert latency["inference_s"] == latency["obs_to_command_s"] == 0.035
    assert latency["handoff_s"] == latency["gate_s"] == latency["publish_s"] == latency["world_s"] == 0.0


def test_an_unknown_mark_is_rejected(make):
    env = make()
    with pytest.raises(UsageError, match="expected 'policy'"):
        env.unwrapped.mark("thinking")


def test_environments_of_one_contract_have_their_own_action_spaces(make):
    a, b = make(), make()
    a.action_space.seed(1)
    b.action_space.seed(1)
    assert a.action_space.sample().tolist() == b.action_space.sample().tolist()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"backend": "mujocco"}, "unknown backend 'mujocco' \\(expected one of: fake, mujoco, mujoco_ros"),
        ({"render_mode": "human"}, "render_mode for .*: 'human'"),
        ({"pacing": "fast"}, "pacing for mujoco: 'fast' .*None, 'lockstep', 'realtime'"),
        ({"clock": "sundial"}, "unknown clock='sundial' .expected one of: steady, virtual"),
        (
            {"backend": "mujoco", "namespace": "/a"},
            "unexpected keyword argument 'namespace' \\(expected one of: step_timeout_s",
        ),
        ({"backend": "fake", "fault": []}, "'fault' .*faults, free_running"),
    ],
)
def test_an_invalid_option_of_make_is_rejected_by_name_and_value(options, problem):
    with pytest.raises(UsageError, match=problem):
        embodied_env.make("arm_reach", **options)
