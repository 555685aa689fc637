"""At an implausible first action of a policy, a simulation warns and a robot asks its operator."""

import numpy as np
import pytest
from distributions import install
from evidence import assert_sound
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.policy import NoAction
from embodied_env.errors import UsageError
from embodied_env.extensions.evaluation.evaluation import evaluate

QUICK: dict = {"episodes": 2, "seed": 3, "clock": "virtual"}
ARM = changed_contract("arm_reach", {"episode.horizon_steps": 20})


@pytest.fixture
def robot(tmp_path, monkeypatch):
    """Install a backend that drives a robot according to its capabilities."""
    source = (
        "from dataclasses import replace\nfrom embodied_env.testing import FakeBackend\n"
        "def make(contract, *, clock):\n"
        "    backend = FakeBackend(contract, clock=clock)\n"
        "    backend.name, backend.capabilities = 'toy_robot', replace(backend.capabilities, simulated=False)\n"
        "    return backend\n"
    )
    install(monkeypatch, tmp_path, {"backends": {"toy_robot": "toy_robot:make"}}, toy_robot=source)


def in_degrees(first=None):
    """Return a policy with one action that is 57 times too large, after `first`, and zeros later."""
    answers = [*([first] * (first is not None)), np.full(6, 57.3)]
    return lambda _: answers.pop(0) if answers else np.zeros(6)


def test_simulation_warns(tmp_path, caplog):
    evaluate(ARM, in_degrees(), backend="fake", record=tmp_path, **QUICK)
    assert "action of j1 is 57.3" in caplog.text


@pytest.mark.parametrize("confirm", [None, lambda _: False])
def test_robot_refuses_without_the_consent_of_an_operator(robot, tmp_path, confirm):
    with pytest.raises(UsageError, match=r"action of j1 is 57\.3"):
        evaluate(ARM, in_degrees(), backend="toy_robot", record=tmp_path / "runs", confirm=confirm, **QUICK)
    (run,) = (tmp_path / "runs").iterdir()
    assert [row["info"]["step_index"] for row in embodied_env.read_run(run).rows()] == [0]


@pytest.mark.parametrize("first", [None, NoAction("late")])
def test_robot_starts_the_episode_again_once_the_operator_has_accepted(robot, tmp_path, first):
    asked = []
    policy = in_degrees(first)
    (result,) = evaluate(
        ARM, policy, backend="toy_robot", record=tmp_path, confirm=lambda text: not asked.append(text), **QUICK
    ).results
    rows = list(embodied_env.read_run(result.path).rows())
    assert len(asked) == 1
    assert [row["info"]["episode_index"] for row in rows if "step" not in row["schema"]][:2] == [0, 0]
    assert result.summary["episodes"] == 2
    assert_sound(result.path)


def test_plausible_policy_on_a_robot_is_not_asked_about(robot, tmp_path):
    evaluate(ARM, "random", backend="toy_robot", record=tmp_path, **QUICK)
