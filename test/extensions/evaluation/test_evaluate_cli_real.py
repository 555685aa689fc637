"""A user's policy on a free-running robot is evaluated, and interrupted by Ctrl-C."""

import contextlib
import json
import signal
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from evidence import assert_sound
from shipped_contracts import unhurried
from waiting import wait_for

pytest.importorskip("rclpy", reason="needs rclpy")

from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import JointState

import embodied_env
from embodied_env.cli.launch.targets import TARGETS
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

ARM = embodied_env.load_contract("arm_reach")
NAMESPACE = "/evaluated"
PATIENCE_S = 60.0
REAL = {**ARM.backends["real"], "discovery_s": 0.0, "connect_timeout_s": PATIENCE_S}
QUICK = unhurried(replace(ARM, backends={**ARM.backends, "real": REAL}))
POLICY = """
import numpy as np
steps = 0
def turn(observation):
    global steps
    steps += 1
    return np.array([0.3 * np.cos(steps / 20), 0, 0, 0, 0, 0.3])
"""


@contextlib.contextmanager
def joint_speeds():
    """Receive joint states, and yield a list that grows by the largest joint speed of each, rad/s."""
    ros = RosNode("observer", namespace=NAMESPACE, clock=SteadyClock())
    listener, speeds = ReceiveThread(ros.node, SteadyClock()), []

    def take(message):
        speeds.append(max(map(abs, message.velocity)))

    ros.node.create_subscription(JointState, "joint_states", take, qos_profile_sensor_data)
    listener.start()
    try:
        yield speeds
    finally:
        listener.stop()
        ros.close()


def test_ctrl_c_to_all_processes_of_a_launch_ends_the_work_then_the_relay_then_the_robot(domain_id, tmp_path):
    """``ros2 launch`` starts each process under its supervisor, and a terminal signals all of them at once."""
    (tmp_path / "their_policy.py").write_text(POLICY)
    (tmp_path / "arm.yaml").write_text(dump_contract(QUICK))
    given = {"contract": str(tmp_path / "arm.yaml"), "namespace": NAMESPACE}
    real = {"policy": "their_policy:turn", "armed": "arm_reach", "emulator": "true", "out": str(tmp_path / "runs")}
    specs = [
        *TARGETS["sim"].processes({**given, "free_running": "true"}),
        *TARGETS["real"].processes({**given, **real}),
    ]
    specs = [replace(spec, grace_s=PATIENCE_S) for spec in specs]
    with joint_speeds() as speeds:
        processes = [subprocess.Popen(spec.supervised_command(), cwd=tmp_path) for spec in specs]
        try:
            wait_for(lambda: list(tmp_path.glob("runs/*/first_transition.json")), PATIENCE_S)
            wait_for(lambda: min(speeds[-10:], default=0.0) > 0.2, PATIENCE_S)  # the robot moves, not for a moment only
            for process in processes:
                process.send_signal(signal.SIGINT)
            statuses = [process.wait(PATIENCE_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    assert speeds[-1] < 0.05
    assert statuses == [0, 0, 0]
    (path,) = (tmp_path / "runs").iterdir()
    assert_sound(path)
    run = embodied_env.read_run(path)
    rows = list(run.transitions())
    assert run.clean
    assert max(np.abs(np.asarray(row["info"]["action"]["applied"])).max() for row in rows) > 0.1
    summary = json.loads((path / "summary.json").read_text())
    assert {"period_s", "jitter_s", "overrun_s", "driver_s[joints]", "data_age_s[joints]"} <= set(summary["latency"])
