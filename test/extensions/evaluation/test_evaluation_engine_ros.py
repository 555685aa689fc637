"""Local evaluation workers over ROS 2: each has its own domain and simulator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from evidence import assert_sound

import embodied_env
from embodied_env.extensions.evaluation import evaluate
from embodied_env.extensions.evaluation.episode_runner import EvaluationJob, PolicySource
from embodied_env.extensions.evaluation.evaluation_engine import Engine

ARM = embodied_env.load_contract("arm_reach")


@pytest.mark.long
@pytest.mark.ros
def test_workers_over_ros_give_the_same_summary_as_one_process(tmp_path):
    short = replace(ARM, episode=replace(ARM.episode, horizon_steps=40))
    options = {"contract": short, "backend": "mujoco_ros", "policies": (PolicySource(address="scripted"),), "seed": 3}
    (one,) = evaluate(**options, episodes=12, record=tmp_path, clock="virtual").results
    job = EvaluationJob(**options, options={"clock": "virtual"})
    (three,) = Engine(3).evaluate(job, episodes=12, out=tmp_path, ended=lambda _: None)
    assert three.problem == ""
    assert three.losses == ()
    assert outcome(three.summary) == outcome(one.summary)
    assert len(three.parts) == 3
    for path in three.parts:
        assert_sound(path)
    processes = [json.loads((Path(path) / "manifest.json").read_text())["processes"] for path in three.parts]
    assert len({process["pid"] for run in processes for process in run}) == 6


def outcome(summary):
    """Return everything but latencies, which depend on the machine."""
    return {key: value for key, value in summary.items() if key != "latency"}
