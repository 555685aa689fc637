"""Measure the motion with and without setpoints between steps.

``python benchmarks/setpoints.py``: a policy at each control rate tracks a sine with jittering steps; a controller
follows each command at once. Printed are the largest jump of the command, the largest change of its velocity from one
setpoint period (or 2 ms) to the next, and its delay behind the policy. Deterministic; no ROS.

``python benchmarks/setpoints.py --emulator``: the emulated UR5e over ROS 2 in real time, its controller following each
command at once; with and without 30 ms of servo lag, as from the driver's lookahead of ``servoj``. Printed are
acceleration and jerk of the moving joint from its velocity at 500 Hz, and the worst gaps of the setpoints.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

import embodied_env
from embodied_env.contract import Contract, load_contract
from embodied_env.contract.loader import dump_contract
from embodied_env.core.clock import NS_PER_S, ManualClock, SteadyClock
from embodied_env.core.process.child import Child, simulator
from embodied_env.core.types import ApprovedCommand, SentCommand
from embodied_env.safety import Arbiter, SafetyGate

if TYPE_CHECKING:
    from embodied_env.ros.receiver import ReceivedMessage

CONTROL_HZ = (10, 20, 50)
SETPOINT_HZ = (None, 100, 200, 500)
JITTERS = (0.0, 0.05, 0.2)  # share of the control period
DURATION_S, AMPLITUDE, FREQUENCY_HZ, TICK_NS = 8.0, 0.5, 0.25, 1_000_000


def contract_at(control_hz: int) -> Contract:
    """Return the shipped arm, commanded by position at `control_hz`."""
    contract = load_contract("arm_reach")
    arm = replace(contract.actuators["arm"], command="position", scale="physical")
    return replace(contract, control_period_s=1.0 / control_hz, actuators={"arm": arm})


def drive(control_hz: int, setpoint_hz: int | None, jitter: float) -> np.ndarray:
    """Return the first joint's command, seen every `TICK_NS`, and that of the policy; shape (2, n)."""
    contract, clock, rng = contract_at(control_hz), ManualClock(), np.random.default_rng(1)
    gate, published, wanted = SafetyGate(contract, fixed_rate=False), [(0, 0.0)], []

    def send(command: ApprovedCommand) -> SentCommand:
        published.append((clock.now_ns(), float(command.values[0])))
        return SentCommand(seq=command.seq, values=command.values)

    arbiter = Arbiter(
        send,
        gate,
        clock=clock,
        control_period_s=contract.control_period_s,
        free_running=True,
        setpoints_per_step=1 if setpoint_hz is None else setpoint_hz // control_hz,
    )
    arbiter.reset(np.zeros(6), 0)
    period_ns = contract.control_period_ns
    for step in range(round(DURATION_S * control_hz)):
        end_ns = round((step + 1 + rng.uniform(-jitter, jitter)) * period_ns)
        while (due_ns := arbiter.setpoint_due_ns) is not None and due_ns < end_ns:
            clock.sleep_until_ns(due_ns)
            arbiter.send_setpoint()
        clock.sleep_until_ns(end_ns)
        action = np.zeros(6)
        action[0] = AMPLITUDE * (1.0 - np.cos(2.0 * np.pi * FREQUENCY_HZ * step / control_hz)) / 2.0
        with arbiter.exclusive() as (reference, dt_s):
            arbiter.send(gate.judge(action, reference, dt_s))
        wanted.append((clock.now_ns(), action[0]))
    times = np.arange(0, round(DURATION_S * NS_PER_S), TICK_NS)
    return np.array([_held(published, times), _held(wanted, times)])


def _held(values: list[tuple[int, float]], times_ns: np.ndarray) -> np.ndarray:
    """Return the last value at each time."""
    stamps, found = zip(*values, strict=True)
    return np.array(found)[np.maximum(0, np.searchsorted(stamps, times_ns, side="right") - 1)]


def emulate(setpoint_hz: int | None, lag_s: float) -> tuple[np.ndarray, list[float]]:
    """Return the velocities of the moving joint every 2 ms, rad/s, and the worst gap of each step, s."""
    from embodied_env.ros.node import RosNode  # noqa: PLC0415 - the other part needs no ROS
    from embodied_env.ros.receive_thread import ReceiveThread  # noqa: PLC0415

    contract, namespace, seen, gaps_s = load_contract("ur5e_reach"), "/setpoints", {}, []
    profile = contract.backends["mujoco_ros"]
    stand_in = {**profile["stand_in"], "interpolation_s": 0.0, "servo_lag_s": lag_s}
    contract = replace(
        contract,
        confirmed=tuple(contract.all_chosen),
        actuators={"arm": replace(contract.actuators["arm"], setpoint_rate_hz=setpoint_hz)},
        backends={
            "mujoco_ros": {**profile, "stand_in": stand_in},
            "real": {"discovery_s": 0.5, "allow_no_downstream_timeout": True},
        },
    )

    def on_joints(arrival: ReceivedMessage) -> None:
        message = arrival.message
        stamp_ns = message.header.stamp.sec * NS_PER_S + message.header.stamp.nanosec
        seen[stamp_ns] = message.velocity[list(message.name).index("shoulder_pan_joint")]

    emulator = simulator("-", namespace=namespace, source=contract.source, free_running=True)
    with ExitStack() as stack:
        stack.callback(Child(emulator, first_line=dump_contract(contract)).stop)
        ros = RosNode("probe", namespace=namespace, clock=SteadyClock())
        stack.callback(ros.close)
        listener = ReceiveThread(ros.node, SteadyClock())
        listener.subscribe("joints", "sensor_msgs/msg/JointState", "joint_states", 100, on_joints)
        env = embodied_env.make(contract, backend="real", emulator=True, namespace=namespace)
        stack.callback(env.close)
        env.reset(seed=1)
        listener.start()
        stack.callback(listener.stop)
        for step in range(160):
            action = np.zeros(6)
            action[0] = 0.25 * np.sin(2.0 * np.pi * FREQUENCY_HZ * step * contract.control_period_s)
            *_, info = env.step(action)
            if info["end_reason"]:  # such as reach's success, or a stop on a busy machine
                env.reset()
            gaps_s.append(info.get("annotations", {}).get("setpoints", {}).get("worst_gap_s", 0.0))
    return np.array([seen[stamp_ns] for stamp_ns in sorted(seen)]), gaps_s


def print_emulated() -> None:
    """Print a table in Markdown."""
    of_rates = "rms", "95%", "max"
    columns = ("servo lag", "setpoints", "acceleration", *of_rates[1:], "jerk", *of_rates[1:], "worst gap", "max")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for lag_s in (0.0, 0.03):
        for setpoint_hz in (None, 100, 200):
            velocities, gaps_s = emulate(setpoint_hz, lag_s)
            found = []
            for n in (1, 2):
                values = np.abs(np.diff(velocities, n=n) / 0.002**n)
                found += [f"{x:.3g}" for x in (np.sqrt(np.mean(values**2)), np.percentile(values, 95), values.max())]
            rate = "none" if setpoint_hz is None else f"{setpoint_hz} Hz"
            gaps = f"{1e3 * np.median(gaps_s):.1f} ms | {1e3 * max(gaps_s):.1f} ms"
            print(f"| {1e3 * lag_s:.0f} ms | {rate} | {' | '.join(found)} | {gaps} |", flush=True)


def print_commands() -> None:
    """Print a table in Markdown."""
    columns = "control rate", "step jitter", "setpoints", "jump, mrad", "change of velocity, rad/s", "delay, ms"
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for control_hz in CONTROL_HZ:
        for jitter in JITTERS:
            for setpoint_hz in SETPOINT_HZ:
                if setpoint_hz is not None and setpoint_hz % control_hz:
                    continue
                seen, wanted = drive(control_hz, setpoint_hz, jitter)
                width = 2 if setpoint_hz is None else round(NS_PER_S / setpoint_hz / TICK_NS)
                velocities = np.diff(seen[::width]) / (width * TICK_NS / NS_PER_S)
                lags = range(200)
                errors = [np.abs(seen[200:] - wanted[200 - lag : len(wanted) - lag]).mean() for lag in lags]
                rate = "none" if setpoint_hz is None else f"{setpoint_hz} Hz"
                jump, change = np.abs(np.diff(seen)).max() * 1e3, np.abs(np.diff(velocities)).max()
                delay_ms = int(np.argmin(errors)) * TICK_NS / 1e6
                print(f"| {control_hz} Hz | {jitter:.0%} | {rate} | {jump:.1f} | {change:.3g} | {delay_ms:.0f} |")


if __name__ == "__main__":
    print_emulated() if "--emulator" in sys.argv else print_commands()
