"""Measure the motion of a controller that interpolates, with one point per step and with trajectories.

A policy at 20 Hz tracks a sine with chunks; steps jitter, and some are late. The controller moves on straight lines, as
joint_trajectory_controller with positions only and `interpolate_from_desired_state`. Printed are the largest change of
its velocity, the longest standstill, and the delay behind the policy. Deterministic; no ROS. Run
``python benchmarks/trajectories.py``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embodied_env.contract import Contract, load_contract
from embodied_env.core.clock import NS_PER_S, ManualClock
from embodied_env.core.types import ApprovedCommand, SentCommand
from embodied_env.safety import Arbiter, SafetyGate

CONTROL_HZ, STEPS = 20, 8
CASES = ((0.05, 0.0), (0.2, 0.0), (0.05, 1.5))  # jitter, and delay of every tenth step; share of the control period
DURATION_S, AMPLITUDE, FREQUENCY_HZ, TICK_NS = 8.0, 0.5, 0.25, 1_000_000


def arm() -> Contract:
    """Return the shipped arm, commanded by position."""
    contract = load_contract("arm_reach")
    actuator = replace(contract.actuators["arm"], command="position", scale="physical")
    return replace(contract, control_period_s=1.0 / CONTROL_HZ, actuators={"arm": actuator})


def wanted(time_s: float) -> np.ndarray:
    """Return the action of the policy."""
    action = np.zeros(6)
    action[0] = AMPLITUDE * (1.0 - np.cos(2.0 * np.pi * FREQUENCY_HZ * time_s)) / 2.0
    return action


def drive(jitter: float, late: float, *, has_trajectories: bool) -> np.ndarray:
    """Return the position of the controller and that of the policy at each `TICK_NS`, shape (2, n)."""
    contract, clock, rng = arm(), ManualClock(), np.random.default_rng(1)
    gate, corners, period_ns = SafetyGate(contract, fixed_rate=False), [(0, 0.0)], contract.control_period_ns

    def send(command: ApprovedCommand) -> SentCommand:
        now_ns, trajectory = clock.now_ns(), command.trajectory
        due = [(now_ns + period_ns, command.values[0])]
        if trajectory is not None:
            due = [(trajectory.first_ns + k * period_ns, p.positions[0]) for k, p in enumerate(trajectory.points)]
        here = np.interp(now_ns, *zip(*corners, strict=True))
        corners[:] = [*(each for each in corners if each[0] < now_ns), (now_ns, here), *due]
        return SentCommand(seq=command.seq, values=command.values)

    arbiter = Arbiter(
        send,
        gate,
        clock=clock,
        control_period_s=contract.control_period_s,
        free_running=True,
        has_trajectories=has_trajectories,
    )
    arbiter.reset(np.zeros(6), 0)
    for step in range(round(DURATION_S * CONTROL_HZ)):
        shift = rng.uniform(-jitter, jitter) + (late if step % 10 == 9 else 0.0)
        clock.sleep_until_ns(max(clock.now_ns(), round((step + 1 + shift) * period_ns)))
        chunk = [wanted((step + k) / CONTROL_HZ) for k in range(1 + STEPS)]
        with arbiter.exclusive() as (reference, dt_s):
            arbiter.send(gate.judge(chunk[0], reference, dt_s), chunk[1:])
    times = np.arange(period_ns, round(DURATION_S * NS_PER_S), TICK_NS)
    policy = [wanted(time_ns / NS_PER_S - 1.0 / CONTROL_HZ)[0] for time_ns in times]
    return np.array([np.interp(times, *zip(*corners, strict=True)), policy])


def main() -> None:
    """Print a table in Markdown."""
    columns = "step jitter", "every tenth step", "message", "change of velocity, rad/s", "standstill, ms", "delay, ms"
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for jitter, late in CASES:
        for has_trajectories in (False, True):
            seen, policy = drive(jitter, late, has_trajectories=has_trajectories)
            velocities = np.diff(seen) / (TICK_NS / NS_PER_S)
            moving = np.abs(np.diff(policy)) * NS_PER_S / TICK_NS > 0.2
            rests, longest = 0, 0
            for is_resting in (np.abs(velocities) < 1e-6) & moving:
                rests = rests + 1 if is_resting else 0
                longest = max(longest, rests)
            errors = [np.abs(seen[200:] - policy[200 - lag : len(policy) - lag]).mean() for lag in range(200)]
            message = "trajectory" if has_trajectories else "one point"
            when = f"{late * 1000 / CONTROL_HZ:.0f} ms late" if late else "in time"
            change = np.abs(np.diff(velocities)).max()
            delay_ms = int(np.argmin(errors)) * TICK_NS / 1e6
            print(f"| {jitter:.0%} | {when} | {message} | {change:.2f} | {longest} | {delay_ms:.0f} |")


if __name__ == "__main__":
    main()
