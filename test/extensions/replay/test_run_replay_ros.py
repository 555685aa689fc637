"""Replay of ROS 2 runs without ROS 2 makes the same decisions, because rows record the timing."""

import time
from dataclasses import replace

import numpy as np
import pytest
from evidence import assert_sound

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.extensions.replay.run_replay import replay_run
from embodied_env.processes.child_process import Child, relay, simulator
from embodied_env.record import RecordTransitions

pytestmark = [pytest.mark.ros, pytest.mark.kills]

ARM = embodied_env.load_contract("arm_reach")
FORWARD = np.array([0.5, 0.0, 0.0, 0.0, 0.0, 0.0])
NAMESPACE = "/replayed"


def recorded(contract, folder, episodes, **options):
    """Record episodes in which the agent is late once, sends NaN once, and exceeds the limits at every step."""
    env = RecordTransitions(embodied_env.make(contract, **options), folder)
    codes = set()
    with env:
        for steps in episodes:
            env.reset(seed=1)
            for step in range(steps):
                if step == 8 and env.unwrapped.pacing == "realtime":
                    time.sleep(contract.safety.watchdog.hold_steps * contract.control_period_s * 1.8)
                *_, terminated, truncated, _ = env.step(FORWARD * (np.nan if step == 4 else 3.0))
                codes |= {found.code for found in env.unwrapped.last_transition.report.findings}
                if terminated or truncated:
                    break
        last = env.unwrapped.last_transition
    return env.path, codes, last


def test_a_run_over_ros_in_lockstep_replays_bit_for_bit(tmp_path):
    path, codes, _ = recorded(ARM, tmp_path, [12, 6], backend="mujoco_ros")
    replay = replay_run(path)
    assert replay.difference is None
    assert (replay.transitions, replay.sound) == (18, True)
    assert "form.nan" in codes
    assert_sound(path)


@pytest.mark.parametrize(
    "relayed", [pytest.param(False, marks=pytest.mark.long, id="alone"), pytest.param(True, id="relayed")]
)
def test_a_run_of_a_robot_replays_to_the_same_timing_decisions(tmp_path, relayed):
    keys = {"discovery_s": 0.0, "relay": relayed}
    watchdog = replace(ARM.safety.watchdog, stop_steps=1000)  # a busy machine ends no episode
    sensors = {name: replace(sensor, max_age_s=10.0) for name, sensor in ARM.sensors.items()}
    backends = {**ARM.backends, "real": {**ARM.backends["real"], **keys}}
    contract = replace(ARM, backends=backends, sensors=sensors, safety=replace(ARM.safety, watchdog=watchdog))
    children = [Child(simulator("-", namespace=NAMESPACE, free_running=True), first_line=dump_contract(contract))]
    if relayed:
        children.append(Child(relay("-", namespace=NAMESPACE), first_line=dump_contract(contract)))
    try:
        options = {"backend": "real", "namespace": NAMESPACE, "connect_timeout_s": 60.0}
        path, codes, last = recorded(contract, tmp_path, [12, 3], **options)
    finally:
        for child in children:
            child.stop()
    replay = replay_run(path)
    assert replay.difference is None
    assert (replay.transitions > 10, replay.sound) == (True, True)
    assert "act.late" in codes
    assert last.external_inputs.watchdog_trips >= 1
    assert (last.external_inputs.answer is not None) == relayed
