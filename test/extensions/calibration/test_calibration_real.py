"""Calibration identifies the delays of the robot emulator, which runs in its own process, over ROS 2."""

import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.extensions.calibration.calibration import calibrate
from embodied_env.processes.child_process import Child, simulator

pytestmark = [pytest.mark.ros, pytest.mark.long, pytest.mark.realtime]

NAMESPACE = "/calibrated"
COMMAND_DELAY_S, SERVO_LAG_S, DRIVER_DELAY_S, HIDDEN_S, LATE_S = 0.03, 0.04, 0.005, 0.02, 0.06
SERVO_S = 0.0304  # MuJoCo's own values: (kv + damping) / kp, large joints 242 / 8000, small ones 30.5 / 1000
STATE_PERIOD_S = 0.004
ARM_EMULATOR = {
    "tick_s": 0.0025,
    "command_delay_s": COMMAND_DELAY_S,
    "servo_lag_s": SERVO_LAG_S,
    "controller_state": True,
    "sensors": {
        "joints": {"rate_hz": 1.0 / STATE_PERIOD_S, "driver_delay_s": DRIVER_DELAY_S},
        "tcp": {"rate_hz": 50, "driver_delay_s": HIDDEN_S, "stamp": "publication"},
        "target": {"rate_hz": 20},
        "true_distance": {"rate_hz": 20, "driver_delay_s": LATE_S},  # like a camera with correct stamps
    },
}
CART_EMULATOR = {
    "tick_s": 0.005,
    "command_delay_s": 0.05,
    "servo_lag_s": 0.03,
    "controller_state": True,
    "sensors": {"odom": {"rate_hz": 100, "driver_delay_s": DRIVER_DELAY_S}},
}


def host_s(profile, sensor):
    """Return twice the delay that a busy host adds, by a correctly stamped sensor."""
    return 2.0 * max(0.0, profile.capture_s[sensor].value_s - DRIVER_DELAY_S)


def near(estimate, true_s, added_s, period_s=STATE_PERIOD_S):
    """Return whether the values agree within 10 %, 2 ms or half the state period, whichever is largest, plus the host's."""
    return abs(estimate.value_s - true_s) <= max(0.1 * true_s, 0.002, period_s / 2.0) + added_s


def sum_is_near(profile, true_s, added_s):
    """Return whether dead time plus lag, measured from the motion, is within 10 % of the true sum, plus the delay of the host."""
    return abs(profile.evidence["state"].value_s + profile.lag_s.value_s - true_s) <= 0.1 * true_s + added_s


def contains(estimate, true_s, added_s):
    """Return whether the interval contains the true value, which excludes the middleware."""
    return estimate.low_s <= true_s + 0.0005 + added_s and estimate.high_s >= true_s


@contextmanager
def robot(name, emulator):
    contract = embodied_env.load_contract(name)
    backends = {
        **contract.backends,
        "mujoco_ros": {**contract.backends["mujoco_ros"], "emulator": emulator},
        "real": {**contract.backends["real"], "controller_state": {"topic": "simulator/controller_state"}},
    }
    contract = replace(contract, backends=backends)
    spec = simulator("-", namespace=NAMESPACE, source=contract.source, free_running=True)
    child = Child(spec, first_line=dump_contract(contract))
    try:
        yield contract, child
    finally:
        child.stop()


def profile_of(contract, seed, **options):
    options |= {"emulator": True, "connect_timeout_s": 60.0, "reset_timeout_s": 90.0}  # a busy host starts it late
    profile = calibrate(contract, backend="real", namespace=NAMESPACE, seed=seed, **options)
    show(profile)
    return profile


def show(profile):
    named = {f"actuation by {k}": v for k, v in profile.evidence.items()} | {"lag": profile.lag_s}
    named |= {f"capture {k}": v for k, v in profile.capture_s.items()}
    print(f"{profile.contract} seed {profile.seed}, load {os.getloadavg()[0]:.0f}, ms:")
    for name, each in named.items():
        print(f"  {name}: {1e3 * each.value_s:.2f} [{1e3 * each.low_s:.2f}, {1e3 * each.high_s:.2f}] {each.method}")
    print(*(f"  {name}: {why}" for name, why in profile.unknown.items()), sep="\n")


def test_the_delays_of_an_arm_are_recovered_over_five_seeds(domain_id):
    with robot("arm_reach", ARM_EMULATOR) as (contract, _):
        found = [profile_of(contract, seed, repeats=2) for seed in range(5)]
    assert [name for each in found for name in each.unknown] == []
    added_s = [host_s(each, "joints") for each in found]
    apparent = {
        "state": [(each.evidence["state"], COMMAND_DELAY_S) for each in found],
        "lag": [(each.lag_s, SERVO_LAG_S + SERVO_S) for each in found],
    }
    truths = {
        "controller": [(each.evidence["controller"], COMMAND_DELAY_S) for each in found],
        "joints": [(each.capture_s["joints"], DRIVER_DELAY_S) for each in found],
        "hidden": [(each.capture_s["tcp"], HIDDEN_S) for each in found],
        "late": [(each.capture_s["true_distance"], LATE_S) for each in found],
    }
    held = {
        name: sum(contains(*pair, s) for pair, s in zip(pairs, added_s, strict=True))
        for name, pairs in (truths | apparent).items()
    }
    print("intervals that hold the truth, of 5:", held)
    assert all(each.actuation_s == each.evidence["controller"] for each in found)
    for name, pairs in truths.items():
        assert all(near(*pair, s) for pair, s in zip(pairs, added_s, strict=True)), name
    true_s = COMMAND_DELAY_S + SERVO_LAG_S + SERVO_S
    assert all(sum_is_near(each, true_s, s) for each, s in zip(found, added_s, strict=True))
    assert min(held.values()) >= 4
    assert all(each.capture_s["tcp"].method == "stamp+xcorr" for each in found)
    assert all(each.capture_s["true_distance"].method == "stamp" for each in found)
    assert all("not identifiable" in each.capture_s["target"].detail for each in found)


def test_calibration_recovers_the_delay_of_a_velocity_driven_cart(domain_id):
    with robot("cart_goal", CART_EMULATOR) as (contract, _):
        found = profile_of(contract, 0)
    added_s = host_s(found, "odom")
    assert near(found.actuation_s, 0.05, added_s, period_s=0.01)
    assert contains(found.actuation_s, 0.05, added_s)
    assert found.actuation_s.method == "controller"
    assert found.evidence["state"].value_s == pytest.approx(0.05, abs=0.02 + added_s)  # it overshoots: not first order
    assert near(found.capture_s["odom"], DRIVER_DELAY_S, added_s, period_s=0.01)


def test_a_robot_that_stalls_leaves_a_partial_and_true_profile(domain_id):
    done = threading.Event()

    def stall(child):
        while not done.wait(0.8):
            os.kill(child.pid, signal.SIGSTOP)
            time.sleep(0.3)  # above max_age_s
            os.kill(child.pid, signal.SIGCONT)

    with robot("arm_reach", ARM_EMULATOR) as (contract, child):
        stalling = threading.Thread(target=stall, args=(child,))
        try:
            found = profile_of(
                contract,
                0,
                repeats=2,
                joints=["j1", "j4"],
                progress=lambda count, _: stalling.start() if count == 2 else None,
            )
        finally:
            done.set()
            stalling.join()
    assert found.unknown.keys() >= {"moves.j1", "moves.j4", "moves.actuation_s", "moves.lag_s"}
    assert found.unknown["moves.j1"].startswith("missing 1 of 2: gate observation returned HOLD (obs.stale)")
    assert contains(found.actuation_s, COMMAND_DELAY_S, host_s(found, "joints"))
    assert contains(found.lag_s, SERVO_LAG_S + SERVO_S, 0.0)
    assert "too few" in found.unknown["capture_s.tcp"]  # its late stamps cannot be seen
