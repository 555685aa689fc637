"""Motion published as trajectories has these properties at any timing of the steps.

Controllers interpolate the trajectories.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scripted_tasks
from arbiter_bench import HOLD, ArbiterBench
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import FunctionFilter, examples
from scripted_tasks import PERIOD_NS, PERIOD_S

from embodied_env.contract import parse_contract
from embodied_env.core.code_types import Severity
from embodied_env.errors import BackendLostError, ContractError
from embodied_env.safety.command_filters import FilterDecision
from embodied_env.safety.joint_limits import joint_bounds, limit_violation
from embodied_env.safety.relay.relay_protocol import check_relayed

STEPS = 5


def contract(command="position", elbow=(-0.3, 1.0)):
    document = scripted_tasks.document()
    document["actuators"]["arm"] |= {"command": command, "scale": "physical"}
    document["actuators"]["arm"]["joints"]["elbow"]["velocity"] = elbow
    return parse_contract(json.dumps(document))


class Bench(ArbiterBench):
    """An arbiter on a manual clock, and a controller that moves on straight lines through the last message."""

    def __init__(self, contract_of=None, filters=None):
        super().__init__(contract_of or contract(), fixed_rate=False, filters=filters, has_trajectories=True)
        self.line = [(self.clock.now_ns(), np.zeros(2))]  # corners of the controller's motion
        self.clock.advance_ns(10 * PERIOD_NS)

    def _send(self, command):
        sent, now_ns = super()._send(command), self.clock.now_ns()
        due = [(command.trajectory.first_ns + k * PERIOD_NS, p) for k, p in enumerate(command.trajectory.points)]
        done = [corner for corner in self.line if corner[0] <= now_ns]
        self.line = [*done, (now_ns, self.at(now_ns)), *((t, p.positions) for t, p in due if t > now_ns)]
        return sent

    def at(self, time_ns):
        """Return where the controller is."""
        times, points = zip(*self.line, strict=True)
        return np.array([np.interp(time_ns, times, column) for column in np.array(points).T])

    def step(self, action, *further):
        with self.arbiter.exclusive as (reference, dt_s):
            approved = self.gate.judge(list(action), reference, dt_s)
            self.arbiter.send(approved, [list(each) for each in further])
        return self.sent[-1]

    def corners(self):
        """Return the message times of the motion and their points, without those on a straight line."""
        kept = [self.line[0]]
        for before, (time_ns, point), after in zip(self.line, self.line[1:], self.line[2:], strict=False):
            share = (time_ns - before[0]) / max(1, after[0] - before[0])
            if np.abs(before[1] + share * (after[1] - before[1]) - point).max() > 1e-9:
                kept.append((time_ns, point))
        return [*kept, self.line[-1]]


actions = st.tuples(*[st.floats(-4.0, 4.0)] * 2)
steps = st.tuples(st.lists(actions, min_size=1, max_size=STEPS), st.integers(1, 4 * PERIOD_NS))


@pytest.mark.parametrize(("command", "lowest"), [("position", -0.3), ("position", 0.0), ("position_delta", -0.3)])
@examples(40)
@given(st.lists(steps, min_size=1, max_size=12))
def test_consecutive_points_keep_the_limits_and_the_last_is_at_rest(command, lowest, chunks):
    bench = Bench(contract(command, elbow=(lowest, 1.0)))
    bounds = joint_bounds(bench.gate.limits)
    for chunk, wait_ns in chunks:
        trajectory = bench.step(*chunk).trajectory
        assert 0 <= trajectory.previewed < len(chunk)
        for before, after in pairwise(trajectory.points):
            states = (before.positions, before.velocities, after.positions, after.velocities)
            for at, limits in enumerate(bounds):
                x, v, next_x, next_v = (float(each[at]) for each in states)
                assert limit_violation(x, v, next_x, next_v, limits, PERIOD_S) == ""
        assert not trajectory.points[-1].velocities.any()
        assert np.abs(trajectory.points[-1].positions - trajectory.points[-2].positions).max() < 1e-9
        if lowest == 0.0:  # one way: exactly
            assert (np.diff([point.positions[1] for point in trajectory.points]) >= 0.0).all()
        bench.clock.advance_ns(wait_ns)


@examples(40)
@given(st.lists(steps, min_size=1, max_size=12))
def test_the_controller_keeps_the_limits_however_late_the_steps_are(chunks):
    bench = Bench()
    limits = bench.gate.limits
    for chunk, wait_ns in chunks:
        bench.step(*chunk)
        bench.clock.advance_ns(wait_ns)
    before = np.zeros(2)
    _, points = zip(*bench.line, strict=True)
    assert (np.array(points) >= limits.position_low - 1e-9).all()
    assert (np.array(points) <= limits.position_high + 1e-9).all()
    velocities = [(b - a) / (t2 - t1) * 1e9 for (t1, a), (t2, b) in pairwise(bench.corners()) if t2 - t1 > 10]
    for after in velocities:
        assert (limits.velocity_low * (1 + 1e-6) - 1e-6 <= after).all()
        assert (after <= limits.velocity_high * (1 + 1e-6) + 1e-6).all()
        assert (np.abs(after - before) <= np.maximum(limits.acceleration, limits.deceleration) * PERIOD_S + 1e-5).all()
        before = after
    assert (np.abs(before) <= limits.deceleration * PERIOD_S + 1e-6).all()  # then it rests


def test_a_step_in_time_starts_at_the_command_before_and_the_controller_is_halfway_to_it():
    bench = Bench()
    for k in range(1, 6):
        command = bench.step((0.01 * k, 0.0))
        assert command.trajectory.first_ns - bench.clock.now_ns() == PERIOD_NS // 2
        assert command.trajectory.points[0].positions[0] == pytest.approx(0.01 * (k - 1))
        bench.clock.advance_ns(PERIOD_NS)
    assert bench.at(bench.clock.now_ns())[0] == pytest.approx(0.045)


@pytest.mark.parametrize(("late", "passed"), [(-0.4, 0), (0.2, 0), (0.3, 1), (0.6, 1), (1.2, 1), (1.3, 2)])
def test_the_reference_of_a_late_step_is_the_point_to_which_the_controller_moves(late, passed):
    bench = Bench()
    bench.step((0.005, 0.0), (0.015, 0.0), (0.025, 0.0))
    bench.clock.advance_ns(round((1 + late) * PERIOD_NS))
    with bench.arbiter.exclusive as (reference, dt_s):
        assert reference.positions.tolist() == bench.sent[0].trajectory.points[1 + passed].positions.tolist()
        assert dt_s == PERIOD_S


def test_an_early_step_replaces_the_command_before():
    bench = Bench()
    bench.step((0.005, 0.0))
    bench.clock.advance_ns(PERIOD_NS)
    bench.step((0.015, 0.0))
    bench.clock.advance_ns(PERIOD_NS // 4)
    trajectory = bench.step((0.005, 0.0)).trajectory
    assert trajectory.points[0].positions[0] == 0.005
    assert bench.sent[-1].seq == 3


def test_braking_replaces_the_actions_at_once():
    bench = Bench()
    actions = [(0.01 * k, 0.0) for k in range(1, 6)]
    assert bench.step(*actions).trajectory.previewed == 4
    bench.clock.advance_ns(PERIOD_NS)
    bench.arbiter.brake(HOLD)
    trajectory = bench.sent[-1].trajectory
    assert trajectory.previewed == 0
    speeds = [point.velocities[0] for point in trajectory.points]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] == 0.0


def test_braking_to_rest_ends_when_the_controller_is_commanded_to_rest():
    bench = Bench()
    for k in range(1, 9):
        bench.step((0.05 * k, 0.0), (0.05 * (k + 1), 0.0))
        bench.clock.advance_ns(PERIOD_NS)
    bench.arbiter.brake_to_rest(HOLD)
    assert not bench.arbiter.reference.velocities.any()
    sent = len(bench.sent)
    bench.clock.advance_ns(10 * PERIOD_NS)
    bench.arbiter.brake(HOLD)
    assert bench.sent[sent].values.tolist() == bench.at(bench.clock.now_ns()).tolist()


def test_a_refused_message_changes_nothing():
    bench = Bench()
    bench.step((0.005, 0.0), (0.015, 0.0))
    bench.clock.advance_ns(2 * PERIOD_NS)
    before, bench.failures = bench.arbiter.last.trajectory, 1
    with pytest.raises(BackendLostError):
        bench.step((0.02, 0.0))
    assert bench.arbiter.last.trajectory is before


def test_the_actions_end_before_one_that_a_filter_refuses():
    def fence(proposal):
        ends = proposal.positions + proposal.velocities * proposal.dt_s
        return FilterDecision(severity=Severity.HOLD, detail="fence") if ends[0] > 0.1 else None

    bench = Bench(filters={"fence": FunctionFilter(fence)})
    trajectory = bench.step(*[(0.02 * k, 0.0) for k in range(1, 9)]).trajectory
    assert 0 < trajectory.previewed < 7
    positions = [point.positions[0] for point in trajectory.points[: trajectory.previewed + 2]]
    assert max(positions) <= 0.1
    assert not trajectory.points[-1].velocities.any()


def test_a_relay_refuses_trajectories():
    text = json.dumps(scripted_tasks.document())
    made = parse_contract(text)
    arm = replace(made.actuators["arm"], type="trajectory_msgs/msg/JointTrajectory", trajectory_steps=4)
    with pytest.raises(ContractError, match=r"trajectory_steps: 4 .expected null for a relay"):
        check_relayed(replace(made, actuators={"arm": arm}))


def moving():
    """Return a bench in motion, and when each point of its last trajectory is due."""
    bench = Bench()
    command = bench.step((0.005, 0.0), (0.015, 0.0), (0.025, 0.0))
    first_ns, points = command.trajectory.first_ns, command.trajectory.points
    return bench, [(first_ns + k * PERIOD_NS, point) for k, point in enumerate(points)]


def test_a_message_that_would_arrive_after_its_first_point_is_due_is_replaced_by_braking():
    bench, due = moving()
    bench.clock.sleep_until_ns(due[1][0] - 3 * PERIOD_NS // 10)
    with bench.arbiter.exclusive as (reference, dt_s):
        assert reference.positions.tolist() == due[1][1].positions.tolist()
        approved = bench.gate.judge([0.035, 0.0], reference, dt_s)
        bench.clock.advance_ns(PERIOD_NS // 4)  # less than half an interval
        sent = bench.arbiter.send(approved)
    assert "act.late" in [finding.code for finding in sent.command.report.findings]
    assert bench.sent[-1].trajectory.first_ns >= bench.clock.now_ns() + PERIOD_NS // 8


def test_a_robot_that_is_not_at_rest_yet_reaches_its_resting_point_when_planned():
    bench, due = moving()
    rest_ns, rest = next((due_ns, point) for due_ns, point in due if due_ns > due[2][0] and not point.velocities.any())
    bench.clock.sleep_until_ns(rest_ns - 11 * PERIOD_NS // 10)
    command = bench.step(rest.positions)
    assert command.trajectory.points[0].positions.tolist() == rest.positions.tolist()
    assert command.trajectory.first_ns == rest_ns
