"""Observers and tasks of users and other packages receive copies, and their errors are named."""

from __future__ import annotations

import numpy as np
import pytest
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.core.types import TaskResult, Verdict
from embodied_env.envs.observers import _separated
from embodied_env.errors import UsageError
from embodied_env.tasks.judging import judge_step

ARM = changed_contract("arm_reach", {"episode.horizon_steps": 4})


class Forger:
    def observe(self, transition):
        transition.snapshot.samples["joints"].values["position"][:] = 9.0
        transition.observation["joints_position"][:] = 9.0
        transition.info["safety"]["code"][:] = 1
        transition.report.applied[:] = 9.0


class Failing:
    def __init__(self, method):
        self.method, self.calls = method, []

    def _fail(self, method):
        self.calls.append(method)
        if method == self.method:
            raise KeyError("lost")

    def observe(self, _):
        self._fail("observe")

    def stop(self):
        self._fail("stop")

    def close(self):
        self._fail("close")


def play(**options):
    env = embodied_env.make(ARM, backend="fake", clock="virtual", **options)
    env.reset(seed=1)
    results = [env.step(np.full(6, 0.1))[:4] for _ in range(3)]
    env.close()
    return results


def test_an_observer_cannot_change_what_the_next_step_uses():
    np.testing.assert_equal(play(observers=[Forger()]), play())


def test_the_error_of_an_observer_names_it():
    with pytest.raises(UsageError, match=r"'Failing'.*observe.*lost"):
        play(observers=[Failing("observe")])


@pytest.mark.parametrize("method", ["stop", "close"])
def test_the_error_of_an_observer_that_ends_names_it(method):
    with pytest.raises(UsageError, match=rf"'lab'.*{method}.*lost"):
        getattr(_separated(Failing(method), "lab"), method)()


class Swapping:
    version = 1
    terms: tuple = ()

    def judge(self, previous, current, applied):
        for snapshot in (previous, current):
            snapshot.samples["joints"].values["position"] = np.full(6, 9.0)
            del snapshot.samples["target"]
        applied[:] = 9.0
        return TaskResult(reward=1.0, verdict=Verdict(), terms={})


def test_a_task_cannot_change_the_readings():
    env = embodied_env.make(ARM, backend="fake", clock="virtual")
    env.reset(seed=1)
    env.step(np.full(6, 0.1))
    last = env.unwrapped.last_transition
    applied = last.report.applied.copy()
    before = last.snapshot.samples["joints"].values["position"].copy()
    assert judge_step(Swapping(), ARM, last.snapshot, last.snapshot, last.report.applied).reward == 1.0
    assert set(last.snapshot.samples) == set(ARM.sensors)
    np.testing.assert_array_equal(last.snapshot.samples["joints"].values["position"], before)
    np.testing.assert_array_equal(last.report.applied, applied)
    env.close()
