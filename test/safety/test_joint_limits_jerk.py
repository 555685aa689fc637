import dataclasses

import numpy as np
import pytest
import scripted_tasks
from arbiter_bench import HOLD, ArbiterBench
from scripted_tasks import ACCELERATION, PERIOD_S, VELOCITY

from embodied_env.contract.actuator_schema import EffectiveLimits
from embodied_env.core.code_types import Severity
from embodied_env.core.types import CommandState
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.joint_limits import keeps_jerk, limit_jerk

JERK = 16.0  # x 0.0625 s = 1 unit/s^2 per step
DT_S = 0.0625


def limits(*jerks, most=4.0, braking=4.0) -> EffectiveLimits:
    size = len(jerks)
    return EffectiveLimits(
        joints=tuple(f"j{i}" for i in range(size)),
        position_low=np.full(size, -np.inf),
        position_high=np.full(size, np.inf),
        velocity_low=np.full(size, -1.0),
        velocity_high=np.full(size, 1.0),
        acceleration=np.full(size, most),
        deceleration=np.full(size, braking),
        jerk=np.array(jerks),
    )


def limited(desired, velocity=0.0, acceleration=0.0, **changes) -> float:
    target, v, a = (np.array([float(value)]) for value in (desired, velocity, acceleration))
    return float(limit_jerk(target, v, a, limits(JERK, **changes), DT_S)[0])


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("desired", "velocity", "acceleration", "reached"),
    [
        pytest.param(1.0, 0.0, 0.0, JERK * DT_S * DT_S, id="first step from rest"),
        pytest.param(1.0, 0.0, 2.0, (2.0 + JERK * DT_S) * DT_S, id="continued from the last acceleration"),
        pytest.param(3.0, 0.9, 0.5, 0.9 + JERK / 4.0 * 0.1 * DT_S, id="down to zero at the speed limit"),
        pytest.param(1.0, 1.0, 3.0, 1.0 + 2.0 * DT_S, id="by the jerk limit even beyond the speed limit"),
    ],
)
def test_acceleration_changes_by_at_most_the_jerk_limit(desired, velocity, acceleration, reached, sign):
    found = limited(sign * desired, velocity=sign * velocity, acceleration=sign * acceleration)
    assert found == pytest.approx(sign * reached, rel=1e-12)


def test_velocity_within_the_jerk_limit_is_unchanged():
    desired = np.array([0.0624999, -0.01])
    assert limit_jerk(desired, np.zeros(2), np.zeros(2), limits(JERK, JERK), DT_S).tolist() == desired.tolist()


def test_rounding_difference_is_unchanged():
    desired = JERK * DT_S * DT_S + 5e-10
    assert limited(desired) == desired


def test_barrier_uses_the_lesser_of_acceleration_and_deceleration():
    for pair in ((2.0, 4.0), (4.0, 2.0)):
        value = limited(1.0, 0.98, 0.5, most=pair[0], braking=pair[1])
        assert value == pytest.approx(0.98 + JERK / 2.0 * 0.02 * DT_S)


def test_joint_without_a_jerk_limit_is_unchanged():
    desired = np.array([1.0, 1.0])
    limited = limit_jerk(desired, np.zeros(2), np.zeros(2), limits(JERK, np.inf), DT_S)
    assert limited.tolist() == [JERK * DT_S * DT_S, 1.0]


def test_nothing_changes_without_jerk_limits():
    desired = np.array([1.0, 1e300])
    assert limit_jerk(desired, np.zeros(2), np.zeros(2), limits(np.inf, np.inf), DT_S) is desired


def test_change_may_equal_the_jerk_limit_up_to_rounding():
    bound, rounding = JERK * DT_S, 2e-9 / DT_S
    assert keeps_jerk(np.array([bound]), limits(JERK), DT_S)
    assert keeps_jerk(np.array([-bound - 0.9 * rounding]), limits(JERK), DT_S)
    assert not keeps_jerk(np.array([bound + 1.1 * rounding]), limits(JERK), DT_S)


@pytest.mark.parametrize(
    ("jerks", "changes", "kept"),
    [
        ((JERK, JERK), [0.0, 9.0], False),
        ((JERK, np.inf), [0.0, 9.0], True),
        ((np.inf, np.inf), [0.0, 0.0], False),  # nothing is guaranteed without a limit
        ((JERK,), [np.nan], False),
    ],
)
def test_only_limited_joints_keep_or_violate_the_jerk_limit(jerks, changes, kept):
    assert keeps_jerk(np.array(changes), limits(*jerks), DT_S) == kept


def contract_with_jerk(jerk=40.0, **changes):
    joint = scripted_tasks.document()["actuators"]["arm"]["joints"]["shoulder"]
    limited = {**joint, "deceleration": ACCELERATION, "jerk": jerk}
    return scripted_tasks.contract(actuators__arm__joints={"shoulder": limited, "elbow": joint}, **changes)


class Bench(ArbiterBench):
    """A robot with a jerk limit."""

    def __init__(self, *, free_running=False, **changes):
        super().__init__(contract_with_jerk(**changes), free_running=free_running, fixed_rate=not free_running)

    def step(self, *action, after_ns=50_000_000):
        return self.publish(action, after_ns=after_ns)

    def run(self, steps, action=1.0):
        for _ in range(steps):
            self.step(action, 0.0)

    def brake_to_rest(self):
        while self.arbiter.reference.velocities.any():
            self.clock.advance_ns(50_000_000)
            self.arbiter.brake(HOLD)


def test_jerk_finding_names_the_joint_and_its_target():
    approved = Bench().step(1.0, 0.0)
    (finding,) = [found for found in approved.report.findings if found.gate == "jerk"]
    assert (finding.code, finding.severity, finding.joints) == ("jerk.limit", Severity.LIMIT, ("shoulder",))
    assert finding.before == pytest.approx([VELOCITY * PERIOD_S])
    assert finding.after == pytest.approx([40.0 * PERIOD_S**3])
    assert approved.report.velocity_si[0] == pytest.approx(40.0 * PERIOD_S**2)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_stopping_does_not_overshoot_zero(sign):
    bench = Bench(jerk=20.0)
    bench.run(25, sign)
    speeds = [float(bench.step(0.0, 0.0).report.velocity_si[0]) * sign for _ in range(60)]
    assert min(speeds) >= 0.0
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] < 1e-3


def test_jerk_is_guaranteed_at_a_fixed_rate_if_kept():
    assert Bench().step(1.0, 0.0).report.guaranteed["jerk"]
    assert not Bench(free_running=True).step(1.0, 0.0).report.guaranteed["jerk"]
    gate = SafetyGate(contract_with_jerk())
    moving = CommandState(positions=np.zeros(2), velocities=np.array([0.5, 0.0]), seq=0, epoch=0)
    assert not gate.brake(moving, PERIOD_S, HOLD).report.guaranteed["jerk"]


def test_braking_ignores_the_jerk_limit():
    bench = Bench()
    bench.run(30)
    before = bench.arbiter.reference.velocities[0]
    assert bench.arbiter.brake(HOLD).report.velocity_si[0] == pytest.approx(before - ACCELERATION * PERIOD_S)


def test_acceleration_jump_after_braking_is_not_guaranteed():
    bench = Bench()
    bench.run(30)
    bench.brake_to_rest()
    assert not bench.step(0.0, 0.0).report.guaranteed["jerk"]
    assert bench.step(0.0, 0.0).report.guaranteed["jerk"]


@pytest.mark.parametrize("steps", [1, 3, 30])
def test_free_running_robot_does_not_move_backwards_after_a_pause(steps):
    """A servo left alone has arrived, so its velocity and acceleration are zero."""
    bench = Bench(free_running=True)
    bench.run(steps)
    speeds = [
        float(bench.step(0.3, 0.0, after_ns=1_000_000_000 if k == 0 else 50_000_000).report.velocity_si[0])
        for k in range(6)
    ]
    assert min(speeds) >= 0.0


def test_acceleration_is_zero_after_a_pause():
    bench = Bench(free_running=True)
    bench.run(10)
    bench.clock.advance_ns(1_000_000_000)
    with bench.arbiter.exclusive as (reference, _):
        assert reference.accelerations is None
    bench.step(0.0, 0.0, after_ns=0)
    assert bench.arbiter.reference.accelerations.tolist() == [0.0, 0.0]  # not from the velocity before the pause


def test_reset_starts_without_acceleration():
    bench = Bench()
    bench.run(3)
    bench.arbiter.reset(np.zeros(2), 1)
    assert bench.arbiter.reference.accelerations is None
    assert bench.step(1.0, 0.0).report.velocity_si[0] == pytest.approx(40.0 * PERIOD_S**2)


def test_reference_has_the_published_acceleration():
    bench = Bench()
    bench.step(1.0, 0.0)
    bench.step(1.0, 0.0)
    assert bench.arbiter.reference.accelerations == pytest.approx([80.0 * PERIOD_S, 0.0])


def test_no_acceleration_with_zero_dt():
    bench = Bench(free_running=True)
    bench.step(1.0, 0.0)
    bench.step(1.0, 0.0, after_ns=0)
    assert bench.arbiter.reference.accelerations is None


def test_velocity_joints_keep_the_jerk_limit():
    gate = SafetyGate(contract_with_jerk(actuators__arm__command="velocity"))
    rest = CommandState(positions=np.zeros(2), velocities=np.zeros(2), seq=0, epoch=0)
    approved = gate.judge([1.0, 1.0], rest, PERIOD_S)
    assert approved.values[0] == pytest.approx(40.0 * PERIOD_S**2)
    assert approved.values[1] == pytest.approx(ACCELERATION * PERIOD_S)
    again = gate.judge([1.0, 1.0], dataclasses.replace(rest, velocities=approved.values), PERIOD_S)
    assert again.values[0] == pytest.approx(2 * 40.0 * PERIOD_S**2)


def test_rounding_never_exceeds_the_speed_limit():
    """A million adversarial steps found that the barrier ends at the limit, plus the rounding of v + a dt."""
    found = EffectiveLimits(
        joints=("b",),
        position_low=np.array([-np.inf]),
        position_high=np.array([np.inf]),
        velocity_low=np.array([-2.0 * 0.95]),
        velocity_high=np.array([2.0 * 0.95]),
        acceleration=np.array([20.0 * 0.9]),
        deceleration=np.array([5.0 * 0.9]),
        jerk=np.array([100.0]),
    )
    for sign in (1.0, -1.0):
        values = sign * 1.9, -sign * 1.4250000000000003, -sign * 14.500000000000004
        target, v, a = (np.array([value]) for value in values)
        assert np.abs(limit_jerk(target, v, a, found, 0.05)) <= found.fastest
