"""Delays of the robot emulator, measured in a run and injected into the simulator, give equal latencies."""

import time
from dataclasses import replace

import numpy as np
import pytest
from shipped_contracts import changed_contract

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.core.code_types import Quality
from embodied_env.extensions.calibration.profile_from_run import profile_of_run
from embodied_env.processes.child_process import Child, simulator
from embodied_env.record import read_run
from embodied_env.timing.latency_profile import read_profile, write_profile

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

NAMESPACE = "/delayed"
STEPS = 3000
EMULATOR = {
    "tick_s": 0.005,
    "command_delay_s": 0.03,
    "command_jitter_s": 0.01,
    "controller_state": True,
    "sensors": {
        "joints": {"rate_hz": 100, "driver_delay_s": 0.005},
        "tcp": {"rate_hz": 40, "driver_delay_s": 0.02},
        "target": {"rate_hz": 10, "driver_delay_s": 0.01},
    },
}
SENSORS = ("joints", "tcp", "target")
STAGES = (*(f"data_age_s[{name}]" for name in SENSORS), "end_to_end_s")


def contract():
    arm = embodied_env.load_contract("arm_reach")
    state = {"topic": "simulator/controller_state", "type": "sensor_msgs/msg/JointState"}
    backends = {
        **arm.backends,
        "mujoco_ros": {**arm.backends["mujoco_ros"], "emulator": EMULATOR},
        "real": {**arm.backends["real"], "discovery_s": 0.0, "step_timeout_s": 5.0, "controller_state": state},
    }
    # a busy machine must not end the episode
    steps = {"action.max_age_steps": 40, "watchdog.hold_steps": 40, "watchdog.stop_steps": 80}
    patient = changed_contract(arm, {f"safety.{key}": value for key, value in steps.items()})
    sensors = {name: replace(sensor, max_age_s=2.0) for name, sensor in arm.sensors.items()}
    return replace(patient, backends=backends, sensors=sensors)


def drive(steps, *, thinking_s=0.0, **options):
    """Step back and forth, with a random policy delay."""
    env = embodied_env.make(contract(), **options)
    try:
        taken, ended, seed = 0, True, 0
        while taken < steps:
            if ended:
                env.reset(seed=seed)
                seed += 1
            if thinking_s:
                time.sleep(thinking_s * (1.0 + (taken % 7) / 7.0))
            turn = 0.2 * np.cos(taken / 15.0)
            _, _, terminated, truncated, _ = env.step(np.array([turn, 0.0, 0.0, 0.0, 0.0, 0.3 * turn]))
            ended = terminated or truncated
            taken += 1
    finally:
        env.close()


def measured_ns(folder, *, injected=False):
    """Return the measured stages, ns, with the delays `injected` or those of the robot, and the run."""
    (path,) = folder.iterdir()
    found = {stage: [] for stage in STAGES}
    for row in read_run(path).transitions():
        latency = row["info"]["latency"]
        of, quality = (
            (latency["injected"], latency["quality"]["injected"]) if injected else (latency, latency["quality"])
        )
        for stage in STAGES:
            name, _, sensor = stage.rstrip("]").partition("[")
            code = quality[name][sensor] if sensor else quality[name]
            if code == Quality.OK:
                found[stage].append(round(1e9 * (of[name][sensor] if sensor else of[name])))
    return {stage: np.array(values) for stage, values in found.items()}, path


def without_delays_ns(folder):
    """In a world that waits, a reading is as old as its capture and a command acts at once."""
    (path,) = folder.iterdir()
    ages = {name: [] for name in SENSORS}
    for row in read_run(path).transitions():
        for name in SENSORS:
            ages[name].append(round(1e9 * row["info"]["latency"]["capture_age_s"][name]))
    return {
        **{f"data_age_s[{name}]": np.array(v) for name, v in ages.items()},
        "end_to_end_s": np.array(ages["joints"]),
    }


def ks_distance(a, b):
    both = np.concatenate([a, b])
    shares = [np.searchsorted(np.sort(values), both, side="right") / len(values) for values in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())


@pytest.mark.long
def test_data_age_and_end_to_end_latency_match_the_simulator_with_the_measured_profile(domain_id, tmp_path):
    spec = simulator("-", namespace=NAMESPACE, source=contract().source, free_running=True)
    child = Child(spec, first_line=dump_contract(contract()))
    try:
        drive(STEPS, thinking_s=0.005, backend="real", namespace=NAMESPACE, record=tmp_path / "real")
    finally:
        child.stop()
    real, path = measured_ns(tmp_path / "real")
    write_profile(profile_of_run(read_run(path)), tmp_path / "latency_profile.json")
    profile = tmp_path / "latency_profile.json"
    steps = read_profile(profile).steps
    drive(STEPS, backend="mujoco", record=tmp_path / "before")
    drive(STEPS, backend="mujoco", record=tmp_path / "after", delay_profile=profile)
    before, (after, _) = without_delays_ns(tmp_path / "before"), measured_ns(tmp_path / "after", injected=True)
    for stage in STAGES:
        percentiles_ms = [np.percentile(values, (5, 50, 95)) / 1e6 for values in (real[stage], after[stage])]
        print(
            f"{stage}: KS {ks_distance(real[stage], before[stage]):.3f} before,"
            f" {ks_distance(real[stage], after[stage]):.4f} after; n {len(real[stage])}, {len(after[stage])};"
            f" real {percentiles_ms[0].round(2)} ms, simulator {percentiles_ms[1].round(2)} ms; {steps.count} steps in the profile"
        )
    for stage in STAGES:
        assert min(len(real[stage]), len(after[stage])) >= 2000
        assert ks_distance(real[stage], before[stage]) > 0.5
        assert ks_distance(real[stage], after[stage]) < 0.1
