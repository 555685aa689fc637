"""Measure the motion with and without setpoints between steps, and with one point per step and with trajectories.

``python benchmarks/smooth_motion.py``: a policy tracks a sine with jittering steps; deterministic, no ROS. Printed are

- for each control rate, with a controller that follows each command at once: the largest jump of the command, the
  largest change of its velocity from one setpoint period (or 2 ms) to the next, and its delay behind the policy;
- for chunks at 20 Hz, some of them late, with a controller that moves on straight lines, as
  joint_trajectory_controller with positions only and `interpolate_from_desired_state`: the largest change of its
  velocity, the longest standstill, and its delay behind the policy.

``python benchmarks/smooth_motion.py --emulator``: the emulated UR5e over ROS 2 in real time, its controller following
each command at once; with and without 30 ms of servo lag, as from the driver's lookahead of ``servoj``. Printed are
acceleration and jerk of the moving joint from its velocity at 500 Hz, and the worst gaps of the setpoints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

import embodied_env
from embodied_env.contract import load_contract
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.core.types import ApprovedCommand, SentCommand
from embodied_env.processes.child_process import Child, simulator
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.publishing import make_publishing
from embodied_env.timing.clock import NS_PER_S, ManualClock, SteadyClock

if TYPE_CHECKING:
    from embodied_env.ros.transport.receiver import ReceivedMessage

CONTROL_HZ, CHUNKS_HZ, STEPS = (10, 20, 50), 20, 8
SETPOINT_HZ = (None, 100, 200, 500)
JITTERS = (0.0, 0.05, 0.2)  # share of the control period
LATE = ((0.05, 0.0), (0.2, 0.0), (0.05, 1.5))  # jitter, and delay of every tenth step; share of the control period
DURATION_S, AMPLITUDE, FREQUENCY_HZ, TICK_NS = 8.0, 0.5, 0.25, 1_000_000


def wanted(time_s: float) -> np.ndarray:
    """Return the action of the policy."""
    action = np.zeros(6)
    action[0] = AMPLITUDE * (1.0 - np.cos(2.0 * np.pi * FREQUENCY_HZ * time_s)) / 2.0
    return action


def drive(
    control_hz: int,
    send: Callable[[int, ApprovedCommand], None],
    jitter: float,
    late: float = 0.0,
    **options: Any,  # noqa: ANN401 - the arbiter's
) -> Iterator[tuple[int, float]]:
    """Track the sine with the shipped arm, and yield the time in ns and the action of each step.

    `send` gets the commands.
    """
    contract = load_contract("arm_reach")
    arm = replace(contract.actuators["arm"], command="position", scale="physical")
    contract = replace(contract, control_period_s=1.0 / control_hz, actuators={"arm": arm})
    clock, rng, gate = ManualClock(), np.random.default_rng(1), SafetyGate(contract, fixed_rate=False)

    def send_now(command: ApprovedCommand) -> SentCommand:
        send(clock.now_ns(), command)
        return SentCommand(seq=command.seq, values=command.values)

    arbiter = Arbiter(send_now, gate, make_publishing(gate, **options), clock=clock, free_running=True)
    arbiter.reset(np.zeros(6), 0)
    for step in range(round(DURATION_S * control_hz)):
        shift = rng.uniform(-jitter, jitter) + (late if step % 10 == 9 else 0.0)
        end_ns = max(clock.now_ns(), round((step + 1 + shift) * contract.control_period_ns))
        while (due_ns := arbiter.setpoint_due_ns) is not None and due_ns < end_ns:
            clock.sleep_until_ns(due_ns)
            arbiter.send_setpoint()
        clock.sleep_until_ns(end_ns)
        action, *others = (wanted((step + k) / control_hz) for k in range(1 + STEPS))
        with arbiter.exclusive as (reference, dt_s):
            arbiter.send(gate.judge(action, reference, dt_s), [each.tolist() for each in others])
        yield clock.now_ns(), action[0]


def append_position(published: list[tuple[int, float]], now_ns: int, command: ApprovedCommand) -> None:
    """Append the time and the position of the first joint."""
    published.append((now_ns, float(command.values[0])))


def print_table(*columns: str) -> None:
    """Print the head of a table in Markdown."""
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")


def held(values: list[tuple[int, float]], times_ns: np.ndarray) -> np.ndarray:
    """Return the last value at each time."""
    stamps, found = zip(*values, strict=True)
    return np.array(found)[np.maximum(0, np.searchsorted(stamps, times_ns, side="right") - 1)]


def delay_ms(seen: np.ndarray, policy: np.ndarray) -> float:
    """Return the delay at which both differ least."""
    errors = [np.abs(seen[200:] - policy[200 - lag : len(policy) - lag]).mean() for lag in range(200)]
    return int(np.argmin(errors)) * TICK_NS / 1e6


def print_setpoints() -> None:
    """Print the table of setpoints."""
    print_table("control rate", "step jitter", "setpoints", "jump, mrad", "change of velocity, rad/s", "delay, ms")
    times = np.arange(0, round(DURATION_S * NS_PER_S), TICK_NS)
    for control_hz, jitter, setpoint_hz in product(CONTROL_HZ, JITTERS, SETPOINT_HZ):
        if setpoint_hz is not None and setpoint_hz % control_hz:
            continue
        published = [(0, 0.0)]
        per_step = 1 if setpoint_hz is None else setpoint_hz // control_hz
        actions = drive(control_hz, partial(append_position, published), jitter, setpoints_per_step=per_step)
        policy, seen = held(list(actions), times), held(published, times)
        width = 2 if setpoint_hz is None else round(NS_PER_S / setpoint_hz / TICK_NS)
        velocities = np.diff(seen[::width]) / (width * TICK_NS / NS_PER_S)
        rate = "none" if setpoint_hz is None else f"{setpoint_hz} Hz"
        jump, change = np.abs(np.diff(seen)).max() * 1e3, np.abs(np.diff(velocities)).max()
        delay = delay_ms(seen, policy)
        print(f"| {control_hz} Hz | {jitter:.0%} | {rate} | {jump:.1f} | {change:.3g} | {delay:.0f} |")


def interpolated(jitter: float, late: float, *, has_trajectories: bool) -> np.ndarray:
    """Return the position of the controller and that of the policy at each `TICK_NS`, shape (2, n)."""
    corners, period_ns = [(0, 0.0)], NS_PER_S // CHUNKS_HZ

    def follow(now_ns: int, command: ApprovedCommand) -> None:
        trajectory = command.trajectory
        due = [(now_ns + period_ns, command.values[0])]
        if trajectory is not None:
            due = [(trajectory.first_ns + k * period_ns, p.positions[0]) for k, p in enumerate(trajectory.points)]
        here = float(np.interp(now_ns, [at_ns for at_ns, _ in corners], [position for _, position in corners]))
        corners[:] = [*(each for each in corners if each[0] < now_ns), (now_ns, here), *due]

    for _ in drive(CHUNKS_HZ, follow, jitter, late, has_trajectories=has_trajectories):
        pass
    times = np.arange(period_ns, round(DURATION_S * NS_PER_S), TICK_NS)
    policy = [wanted(time_ns / NS_PER_S - 1.0 / CHUNKS_HZ)[0] for time_ns in times]
    times_ns, positions = np.array(corners).T
    return np.array([np.interp(times, times_ns, positions), policy])


def print_trajectories() -> None:
    """Print the table of trajectories."""
    columns = "step jitter", "every tenth step", "message", "change of velocity, rad/s", "standstill, ms", "delay, ms"
    print_table(*columns)
    for (jitter, late), has_trajectories in product(LATE, (False, True)):
        seen, policy = interpolated(jitter, late, has_trajectories=has_trajectories)
        velocities = np.diff(seen) / (TICK_NS / NS_PER_S)
        moving = np.abs(np.diff(policy)) * NS_PER_S / TICK_NS > 0.2
        rests, longest = 0, 0
        for is_resting in (np.abs(velocities) < 1e-6) & moving:
            rests = rests + 1 if is_resting else 0
            longest = max(longest, rests)
        message = "trajectory" if has_trajectories else "one point"
        when = f"{late * 1000 / CHUNKS_HZ:.0f} ms late" if late else "in time"
        change, delay = np.abs(np.diff(velocities)).max(), delay_ms(seen, policy)
        print(f"| {jitter:.0%} | {when} | {message} | {change:.2f} | {longest} | {delay:.0f} |")


def emulate(setpoint_hz: int | None, lag_s: float) -> tuple[np.ndarray, list[float]]:
    """Return the velocities of the moving joint every 2 ms, rad/s, and the worst gap of each step, s."""
    from embodied_env.ros.transport.node import RosNode  # noqa: PLC0415 - the other part needs no ROS
    from embodied_env.ros.transport.receive_thread import ReceiveThread  # noqa: PLC0415

    contract, namespace, seen, gaps_s = load_contract("ur5e_reach"), "/setpoints", {}, []
    profile = contract.backends["mujoco_ros"]
    emulator = {**profile["emulator"], "interpolation_s": 0.0, "servo_lag_s": lag_s}
    contract = replace(
        contract,
        confirmed=tuple(contract.all_chosen),
        actuators={"arm": replace(contract.actuators["arm"], setpoint_rate_hz=setpoint_hz)},
        backends={
            "mujoco_ros": {**profile, "emulator": emulator},
            "real": {"discovery_s": 0.5, "allow_no_downstream_timeout": True},
        },
    )

    def on_joints(arrival: ReceivedMessage) -> None:
        message = arrival.message
        stamp_ns = message.header.stamp.sec * NS_PER_S + message.header.stamp.nanosec
        seen[stamp_ns] = message.velocity[list(message.name).index("shoulder_pan_joint")]

    process = simulator("-", namespace=namespace, source=contract.source, free_running=True)
    with ExitStack() as stack:
        stack.callback(Child(process, first_line=dump_contract(contract)).stop)
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
    """Print the table of the emulator."""
    shares = "95%", "max"
    print_table("servo lag", "setpoints", "acceleration, rms", *shares, "jerk, rms", *shares, "worst gap", "max")
    for lag_s, setpoint_hz in product((0.0, 0.03), (None, 100, 200)):
        velocities, gaps_s = emulate(setpoint_hz, lag_s)
        found = []
        for n in (1, 2):
            values = np.abs(np.diff(velocities, n=n) / 0.002**n)
            found += [f"{x:.3g}" for x in (np.sqrt(np.mean(values**2)), np.percentile(values, 95), values.max())]
        rate = "none" if setpoint_hz is None else f"{setpoint_hz} Hz"
        gaps = f"{1e3 * np.median(gaps_s):.1f} ms | {1e3 * max(gaps_s):.1f} ms"
        print(f"| {1e3 * lag_s:.0f} ms | {rate} | {' | '.join(found)} | {gaps} |", flush=True)


if __name__ == "__main__":
    if "--emulator" in sys.argv:
        print_emulated()
    else:
        print_setpoints()
        print_trajectories()
