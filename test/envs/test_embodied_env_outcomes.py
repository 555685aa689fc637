"""`test_stepper` tests the ends of episodes."""

import pytest
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.code_types import Severity
from embodied_env.errors import UsageError

ENDLESS = changed_contract("arm_reach", {"task": {"type": "scripted_tasks:Running"}})


@pytest.fixture
def make(close_later):
    return lambda **options: close_later(embodied_env.make(ENDLESS, backend="fake", **options))


def test_a_torch_tensor_in_a_graph_is_accepted(make):
    torch = pytest.importorskip("torch", reason="needs the extra train")
    env = make()
    env.reset(seed=1)
    *_, info = env.step(torch.zeros(6, requires_grad=True))
    assert info["safety"]["disposition"] == Severity.PASS


def test_an_unknown_mark_is_rejected(make):
    env = make()
    with pytest.raises(UsageError, match="expected 'policy'"):
        env.unwrapped.mark("thinking")


def test_environments_of_one_contract_have_their_own_action_spaces(make):
    a, b = make(), make()
    a.action_space.seed(1)
    b.action_space.seed(1)
    assert a.action_space.sample().tolist() == b.action_space.sample().tolist()
