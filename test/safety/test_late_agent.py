"""Ends that the time of the agent alone explains are the policy's, and audit and replay agree."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import scripted_tasks
from evidence import assert_replays, assert_sound
from scripted_tasks import PERIOD_NS, PERIOD_S, Scene
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.core.policy import NoAction
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.timing.clock import ManualClock
from embodied_env.timing.delay_model import DelayDistribution, DelayModel

STALE = {"observation": {"stop_steps": 3}, "watchdog": {"hold_steps": 50, "stop_steps": 100}}


def run(folder, gaps, *, safety=None, faults=(), action=None):
    """Take a step after each of these times of the agent, in periods.

    Returns:
        The path of the run and the last info.
    """
    contract = changed_contract("arm_reach", {"safety": safety} if safety else {})
    clock, info = ManualClock(), {}
    fake = EmbodiedEnv(contract, backend="fake", free_running=True, clock=clock, faults=faults)
    with embodied_env.RecordTransitions(fake, folder) as env:
        env.reset(seed=1)
        for periods in gaps:
            clock.advance_ns(round(periods * PERIOD_NS))
            *_, info = env.step(np.full(6, 0.3) if action is None else action)
        path = env.path
    assert_replays(path)
    assert_sound(path)
    return path, info


def silent(since):
    return [ScriptedFault(kind="drop", step=step, sensor="joints") for step in range(since, since + 9)]


ENDS: dict = {
    "the watchdog": ([0, 0, 12], {}, "policy_lost:late"),
    "the watchdog after the reset": ([12], {}, "policy_lost:late"),
    "old readings": ([0, 4, 4, 4], {"safety": STALE}, "policy_lost:late"),
    "a step in between": ([4, 4, 0, 4, 4], {"safety": STALE}, ""),
    "no action, once too often": ([0] * 9 + [12], {"action": NoAction("no answer in time")}, "policy_lost:late"),
    "a silent sensor": ([0] * 7, {"safety": STALE, "faults": silent(1)}, "safety_stop:obs.stale"),
    "a silent sensor, then the agent": ([0] * 5 + [4], {"safety": STALE, "faults": silent(1)[:4]}, ""),
    "a sensor that was invalid in one of the steps": (
        [0, 4, 0, 4],
        {"safety": STALE, "faults": [ScriptedFault(kind="nan", step=2, sensor="joints")]},
        "safety_stop:obs.stale",
    ),
    "a silent sensor before a late agent": ([0] * 4 + [12], {"faults": silent(1)}, "safety_stop:wd.stop"),
    "a slow world": (
        [0, 0, 0],
        {"faults": [ScriptedFault(kind="delay", step=2, delay_s=12 * PERIOD_S)]},
        "safety_stop:wd.stop",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_end_by_the_time_of_the_agent_is_the_policys(tmp_path, case):
    gaps, options, expected = ENDS[case]
    _, info = run(tmp_path, gaps, **options)
    assert info["end_reason"] == expected


def test_findings_and_latch_stay(tmp_path):
    path, info = run(tmp_path, [0, 12])
    *_, row = embodied_env.read_run(path).rows()
    assert info["safety"]["latched"]
    assert [found["detail"] for found in row["inner"]["findings"]] == ["latched by wd.stop"]
    assert row["inner"]["external_inputs"]["latched"]["code"] == "wd.stop"
    assert row["inner"]["end_reasons"] == ["policy_lost:late"]


def test_another_stop_comes_first():
    with closing(Scene(scripted_tasks.contract(), free_running=True)) as scene:
        scene.reset()
        scene.backend.estop_states = {"drives": "inactive"}
        scene.clock.advance_ns(12 * PERIOD_NS)
        assert scene.step().info["end_reason"] == "safety_stop:robot.inactive"


@pytest.mark.needs("vector")
def test_injected_time_of_an_inference_is_the_policys_in_vector_environments_too():
    constant = DelayDistribution(kind="empirical", values=(0.05,))
    slow = DelayDistribution(kind="empirical", values=(0.12,))
    sensors = dict.fromkeys(("joints", "tcp", "target"), constant)
    delays = DelayModel(sensors=sensors, inference=slow, actuation=constant)
    with embodied_env.make("arm_reach", delay_profile=delays) as env:
        env.reset(seed=1)
        alone = [env.step(np.zeros(6))[-1]["end_reason"] for _ in range(11)]
    envs = embodied_env.make_vec("arm_reach", num_envs=3, delay_profile=delays)
    with closing(envs):
        envs.reset(seed=1)
        together = [envs.step(np.zeros((3, 6)))[-1]["end_reason"].tolist() for _ in range(11)]
    assert (alone[-2:], together) == (["", "policy_lost:late"], [[reason] * 3 for reason in alone])


@pytest.mark.needs("audit")
@pytest.mark.parametrize(
    ("gaps", "options", "reason"),
    [
        ([0, 12], {}, "safety_stop:wd.stop"),  # the agent was late
        ([0] * 14, {"faults": silent(1)}, "policy_lost:late"),  # a sensor was silent
        ([0, 0], {}, "policy_lost:late"),  # nothing stopped
    ],
)
def test_audit_finds_a_late_end_that_was_none(tmp_path, gaps, options, reason):
    from embodied_env.extensions.audit.row_history_rules import SequenceRule

    path, _ = run(tmp_path, gaps, **options)
    rows: Any = list(embodied_env.read_run(path).rows())
    rows[-1]["inner"]["end_reasons"] = [reason]
    rule = SequenceRule(embodied_env.load_contract("arm_reach"))
    assert "ending.policy" in {found.rule for row in rows for found in rule.add(row)}
