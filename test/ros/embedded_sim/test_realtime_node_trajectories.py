"""Trajectories move the robot emulator, also when a policy is killed in motion."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
from shipped_contracts import changed_text

pytest.importorskip("rclpy", reason="needs rclpy")

from hosted_simulator import hosted_world

from embodied_env.contract import load_contract
from embodied_env.errors import UsageError
from embodied_env.ros.robot.robot_backend import make_real_backend
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.ros.wire.command_messages import from_trajectory
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.kills, pytest.mark.realtime]

NAMESPACE = "/ahead"
PATIENCE_S = 60.0
STEPS = 6
PERIOD_NS = 50_000_000
CHANGES = {
    "actuators.arm.type": "trajectory_msgs/msg/JointTrajectory",
    "actuators.arm.trajectory_steps": STEPS,
    "backends.real.discovery_s": 0.3,
    "backends.real.connect_timeout_s": 25.0,
}
PROGRAM = """
import os, signal, sys
import numpy as np
import embodied_env

env = embodied_env.make(sys.argv[1], backend="real", namespace=sys.argv[2], emulator=True)
env.reset(seed=1)
k, terminated, truncated = 0, False, False
while True:
    chunk = [np.array([0.2 * min(k + i, 6), 0, 0, 0, 0, 0]) for i in range(7)]
    env.unwrapped.preview(chunk)
    *_, terminated, truncated, info = env.step(chunk[0])
    k += 1
    if terminated or truncated:  # on a busy machine
        env.reset()
        k = 0
    elif k > 10 and info["annotations"]["trajectory"]["previewed"] == 6:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "arm.yaml"
    path.write_text(changed_text("arm_reach", CHANGES), encoding="utf-8")
    return path


@pytest.fixture
def emulator(path, domain_id):
    """Host the emulator in this process, and yield the messages to it and its joint states."""
    contract = load_contract(path)
    world = World(contract, load_profile(contract, "mujoco_ros"), free_running=True)
    arm, joints, messages, states = contract.actuators["arm"], contract.sensors["joints"], [], []
    with hosted_world(contract, world, NAMESPACE):
        ros = RosNode("witness", namespace=NAMESPACE, clock=SteadyClock())
        listener = ReceiveThread(ros.node, SteadyClock())
        listener.subscribe("commands", arm.type, arm.topic, RELIABLE, lambda arrival: messages.append(arrival.message))
        listener.subscribe(
            "joints", joints.type, joints.topic, RELIABLE, lambda arrival: states.append(arrival.message)
        )
        listener.start()
        yield arm, messages, states
        listener.stop()
        ros.close()


def positions_of(message, joints):
    return np.array([message.position[list(message.name).index(joint)] for joint in joints])


def stamp_ns(message):
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec


def test_after_a_killed_policy_the_robot_goes_on_and_comes_to_rest_by_itself(emulator, path):
    arm, messages, states = emulator
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), NAMESPACE],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        env=dict(os.environ),
        check=False,
    )
    assert program.returncode == -signal.SIGKILL, program.stdout
    message = None
    while messages[-1] is not message:  # until the last one has arrived and ended
        message, points = messages[-1], from_trajectory(arm, messages[-1])
        time.sleep(max(0.0, (stamp_ns(message) + points[-1][0] - time.time_ns()) / 1e9) + 0.4)
    assert all(not point.velocities and not point.accelerations for point in message.points)
    assert {then - first for (first, _), (then, _) in pairwise(points)} == {PERIOD_NS}
    assert 0 < points[0][0] < 2 * PERIOD_NS
    assert len(points) > STEPS + 2
    assert points[-1][1].tolist() == points[-2][1].tolist()
    begun, goal = positions_of(_first_after(states, stamp_ns(message)), arm.joints), points[-1][1]
    end = time.monotonic() + PATIENCE_S
    while not (np.abs(positions_of(states[-1], arm.joints) - goal).max() < 0.02 > np.abs(states[-1].velocity).max()):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert abs(goal - begun)[0] > 0.05


def _first_after(states, time_ns):
    return next((state for state in states if stamp_ns(state) >= time_ns), states[-1])


def test_trajectories_are_refused_with_a_relay(path):
    with pytest.raises(UsageError, match="trajectory_steps conflicts with a relay"):
        make_real_backend(load_contract(path), clock=SteadyClock(), relay=True)
