"""Braking after a late command is written, recorded and replayed bit for bit."""

import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from evidence import assert_replays, assert_sound
from shipped_contracts import arm_of

import embodied_env
from embodied_env.core.code_types import Severity
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.record import RecordTransitions, read_run
from embodied_env.safety.publishing.trajectory import Trajectories
from embodied_env.timing.clock import NS_PER_S, ManualClock

FOLLOWING = {"type": "trajectory_msgs/msg/JointTrajectory", "trajectory_steps": 4}
ARM, CART = (embodied_env.load_contract(name) for name in ("arm_reach", "cart_goal"))


class SlowAction:
    """An action whose numbers take a while, as of a tensor on a busy device, so that its verdict is late."""

    def __init__(self, values, wait=lambda: None):
        self.values, self.wait = values, wait

    def detach(self):
        self.wait()
        self.wait = lambda: None
        return self

    def cpu(self):
        return self.values


def record(folder, contract, *, late, slow, steps=14, follows=False, **options):
    """Record an episode of full speed.

    The verdict takes half a second in step `late`, and the write in step `slow`.
    """
    patient = replace(contract.safety.watchdog, hold_steps=1000, stop_steps=2000)
    contract = replace(contract, safety=replace(contract.safety, watchdog=patient))
    with RecordTransitions(EmbodiedEnv(contract, backend="fake", free_running=True, **options), folder) as env:
        stepper, size = env.unwrapped.stepper, env.action_space.shape[0]
        clock, send, waits = stepper.clock, stepper.backend.send, []

        def pause(duration_s):
            clock.sleep_until_ns(clock.now_ns() + round(duration_s * NS_PER_S))

        def delayed(command):
            pause(waits.pop() if waits else 0.0)
            return send(command)

        stepper._arbiter._send = delayed
        if follows:
            stepper._arbiter.publishing = Trajectories(stepper.gate)
        env.reset(seed=1)
        for step in range(steps):
            pause(contract.control_period_s)
            waits = [0.5] if step == slow else []
            env.step(SlowAction(np.full(size, 0.6), partial(pause, 0.5 if step == late else 0.0)))
    return env.path, list(read_run(env.path).transitions())


def codes(row):
    return {finding["code"] for finding in row["inner"]["findings"]}


@pytest.mark.parametrize(
    ("contract", "options"),
    [
        pytest.param(CART, {"clock": ManualClock()}, id="twist"),
        pytest.param(ARM, {"clock": ManualClock()}, id="position"),
        pytest.param(arm_of(FOLLOWING), {"clock": ManualClock(), "follows": True}, id="trajectory"),
        pytest.param(arm_of({"setpoint_rate_hz": 100}), {}, id="setpoints", marks=pytest.mark.realtime),
    ],
)
def test_braking_in_place_of_a_late_command_replays_equal_and_its_audit_is_sound(tmp_path, contract, options):
    path, rows = record(tmp_path, contract, late=8, slow=11, **options)
    late, guaranteed = rows[8], [row["info"]["safety"]["guaranteed"]["acceleration"] for row in rows]
    assert "act.late" in codes(late)
    assert late["inner"]["report"]["disposition"] == Severity.HOLD.name
    assert late["inner"]["external_inputs"]["delay"]["reference"] is not None
    assert (np.array(late["info"]["action"]["requested"]) == 0.6).all()
    assert not (np.array(late["info"]["action"]["applied"]) == 0.6).any()
    assert guaranteed[11:13] == [False, False]
    assert ("trajectory" in late["info"].get("annotations", {})) == options.get("follows", False)
    assert_replays(path, transitions=14)
    assert_sound(path)


def test_a_run_in_lockstep_has_no_delays(tmp_path):
    with RecordTransitions(embodied_env.make(ARM, backend="fake"), tmp_path) as env:
        env.reset(seed=1)
        env.step(SlowAction(np.full(6, 0.6), partial(time.sleep, 0.1)))
    (row,) = read_run(env.path).transitions()
    assert "act.late" not in codes(row)
    assert "delay" not in row["inner"]["external_inputs"]
