"""The delays of a stand-in robot, found again by moving it: in a process of its own, over ROS 2."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.calibration import calibrate
from embodied_env.contract.loader import dump_contract
from embodied_env.processes import Child, simulator

pytestmark = pytest.mark.ros

NAMESPACE = "/calibrated"
COMMAND_DELAY_S, SERVO_LAG_S, DRIVER_DELAY_S, HIDDEN_S = 0.03, 0.04, 0.005, 0.02
SERVO_S = 0.0303  # MuJoCo's own: (kv + damping) / kp, large joints 242 / 8000, small ones 30.5 / 1000
STATE_PERIOD_S = 0.005
STAND_IN = {
    "tick_s": 0.005,
    "command_delay_s": COMMAND_DELAY_S,
    "servo_lag_s": SERVO_LAG_S,
    "sensors": {
        "joints": {"rate_hz": 1.0 / STATE_PERIOD_S, "driver_delay_s": DRIVER_DELAY_S},
        "tcp": {"rate_hz": 50, "driver_delay_s": HIDDEN_S, "stamp": "publication"},
        "target": {"rate_hz": 10},
        "true_distance": {"rate_hz": 10},
    },
}


def near(estimate, true_s, period_s=STATE_PERIOD_S):
    """Within 10 %, 2 ms or half the period of the states, whichever is largest."""
    return abs(estimate.value_s - true_s) <= max(0.1 * true_s, 0.002, period_s / 2.0)


@pytest.mark.long
def test_the_delays_of_the_stand_in_are_found_again_over_five_seeds(domain_id):
    contract = embodied_env.load_contract("arm_reach")
    backends = {
        **contract.backends,
        "mujoco_ros": {**contract.backends["mujoco_ros"], "stand_in": STAND_IN},
        "real": {**contract.backends["real"], "discovery_s": 0.2, "step_timeout_s": 5.0},
    }
    safety = replace(  # a machine that is busy with other things is no matter of the estimators
        contract.safety,
        action=replace(contract.safety.action, max_age_steps=20),
        watchdog=replace(contract.safety.watchdog, hold_steps=20, stop_steps=40),
    )
    sensors = {name: replace(sensor, max_age_s=1.0) for name, sensor in contract.sensors.items()}
    contract = replace(contract, backends=backends, safety=safety, sensors=sensors)
    spec = simulator("-", namespace=NAMESPACE, source=contract.source, free_running=True)
    child = Child(spec, first_line=dump_contract(contract))
    try:
        found = [calibrate(contract, backend="real", namespace=NAMESPACE, seed=seed, repeats=2) for seed in range(5)]
    finally:
        child.stop()
    for profile in found:
        shown = {"actuation": profile.actuation_s, "lag": profile.lag_s, **profile.capture_s}
        print(json.dumps({k: [round(1e3 * v, 2) for v in (e.value_s, e.low_s, e.high_s)] for k, e in shown.items()}))
    assert all(near(profile.actuation_s, COMMAND_DELAY_S) for profile in found)
    assert all(near(profile.lag_s, SERVO_LAG_S + SERVO_S) for profile in found)
    assert all(near(profile.capture_s["joints"], DRIVER_DELAY_S) for profile in found)
    assert all(near(profile.capture_s["tcp"], HIDDEN_S, period_s=0.008) for profile in found)
    assert all(
        "target" in profile.capture_s and "not identifiable" in profile.capture_s["target"].detail for profile in found
    )
