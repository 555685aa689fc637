"""Measure the published motion with and without set-points between steps, for several control rates.

A policy at each control rate tracks a sine with jittering steps; a controller follows each command at once. Printed are
the largest jump of the command, the largest change of its velocity from one set-point period (or 2 ms) to the next, and
its delay behind the policy. Deterministic; no ROS. Run ``python benchmarks/setpoints.py``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embodied_env.contract import Contract, load_contract
from embodied_env.core.clock import NS_PER_S, ManualClock
from embodied_env.core.types import ApprovedCommand, SentCommand
from embodied_env.safety import Arbiter, SafetyGate

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


def main() -> None:
    """Print a table in Markdown."""
    columns = "control rate", "step jitter", "set-points", "jump, mrad", "change of velocity, rad/s", "delay, ms"
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
    main()
