"""``embodied-env evaluate --backend real``: a user's policy on a free-running robot, interrupted by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import JointState

import embodied_env
from embodied_env.contract.loader import dump_contract
from embodied_env.core.clock import SteadyClock
from embodied_env.core.process.child import Child, simulator
from embodied_env.ros.node import RosNode

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

ARM = embodied_env.load_contract("arm_reach")
QUICK = replace(ARM, backends={**ARM.backends, "real": {**ARM.backends["real"], "discovery_s": 0.0}})
NAMESPACE = "/evaluated"
PATIENCE_S = 60.0
POLICY = """
import numpy as np
steps = 0
def turn(observation):
    global steps
    steps += 1
    return np.array([0.3 * np.cos(steps / 20), 0, 0, 0, 0, 0.3])
"""


@pytest.fixture
def evaluation(domain_id, tmp_path):
    """Start the emulator of an arm and the evaluation of a user's policy on it, each in its own process."""
    (tmp_path / "their_policy.py").write_text(POLICY)
    (tmp_path / "arm.yaml").write_text(dump_contract(QUICK))
    arm = Child(simulator("-", namespace=NAMESPACE, free_running=True), first_line=dump_contract(QUICK))
    command = ["evaluate", "arm.yaml", "--backend", "real", "--namespace", NAMESPACE, "--episodes", "100"]
    process = subprocess.Popen(
        [sys.executable, "-m", "embodied_env.cli", *command, "--policy", "their_policy:turn", "--out", "runs"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process, tmp_path
    process.kill()
    process.communicate()
    arm.stop()


def fastest_joint():
    """Return the largest joint speed measured now, rad/s."""
    ros = RosNode("observer", namespace=NAMESPACE, clock=SteadyClock())
    received = []
    try:
        ros.node.create_subscription(JointState, "joint_states", received.append, qos_profile_sensor_data)
        from rclpy.executors import SingleThreadedExecutor

        executor = SingleThreadedExecutor(context=ros.node.context)
        executor.add_node(ros.node)
        end = time.monotonic() + PATIENCE_S
        while not received and time.monotonic() < end:
            executor.spin_once(timeout_sec=0.1)
        executor.shutdown()
    finally:
        ros.close()
    return max(map(abs, received[-1].velocity))


def test_ctrl_c_brakes_and_leaves_a_valid_run(evaluation):
    process, folder = evaluation
    end = time.monotonic() + PATIENCE_S
    while not list(folder.glob("runs/*/first_transition.json")) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(10 * ARM.control_period_s)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert fastest_joint() < 0.05
    (path,) = (folder / "runs").iterdir()
    report = embodied_env.audit_run(path)
    assert report.problems == ()
    run = embodied_env.read_run(path)
    rows = list(run.transitions())
    assert run.clean
    assert len(rows) >= 5
    assert np.abs(rows[-1]["info"]["action"]["applied"]).max() > 0.1  # the robot was moving
    summary = json.loads((path / "summary.json").read_text())
    assert {"period_s", "jitter_s", "overrun_s", "driver_s[joints]", "data_age_s[joints]"} <= set(summary["latency"])
