"""The relay arms, limits, refuses, brakes when commands stop, and stays at rest until it is armed again."""

import dataclasses
import math
import re

import numpy as np
import pytest
from arbiter_bench import RelayOutlet
from grippers import gripper_contract, gripper_text
from safety_strategies import contract_of, joint_limits, plain_contract
from shipped_contracts import changed_text

from embodied_env.cli import WRONG_USAGE
from embodied_env.cli.main import main
from embodied_env.contract import JointLimits
from embodied_env.contract.safety_schema import WatchdogSpec
from embodied_env.core.code_types import Severity
from embodied_env.core.safety_input_state import parse_states
from embodied_env.core.types import Finding
from embodied_env.errors import InternalFaultError
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.relay.relay import Relay
from embodied_env.safety.relay.relay_protocol import Armed, CommandId, stopping_time_s, write_command
from embodied_env.timing.clock import NS_PER_S, ManualClock

PERIOD_S = 0.05
PERIOD_NS = round(PERIOD_S * NS_PER_S)
WATCHDOG = WatchdogSpec(hold_steps=2, stop_steps=10)
LIMITS = joint_limits()
BASE = JointLimits(position=None, velocity=1.0, acceleration=4.0, deceleration=8.0)


class Robot:
    """A relay, its clock, and a client."""

    def __init__(self, contract=None, *, armed=True, gate=None, **options):
        self.contract = contract or plain_contract(watchdog=WATCHDOG)
        self.clock = ManualClock(start_ns=1_000 * NS_PER_S)
        self.spy = RelayOutlet()
        self.core = Relay(self.contract, self.spy, clock=self.clock, gate=gate, **options)
        self.layout = SafetyGate(self.contract).layout
        self.epoch, self.seq = 0, 0
        if armed:
            self.arm()

    def measure(self, positions=None, age_s=0.0):
        values = np.zeros(self.layout.size) if positions is None else np.array(positions)
        return self.core.on_joint_positions("joints", values, self.clock.now_ns() - round(age_s * NS_PER_S))

    def arm(self, positions=None):
        self.measure(positions)
        success, message = self.core.arm()
        assert success, message
        self.epoch, self.seq = Armed.from_text(message).epoch, 0

    def command(self, values, **tag):
        """Command `values`, or braking for None, under the next number, and return the report."""
        self.seq += 1
        vector = Severity.HOLD if values is None else np.array(values, dtype=np.float64)
        command_id = CommandId(**{"epoch": self.epoch, "seq": self.seq, **tag})
        self.core.command(write_command(command_id, vector, self.layout))
        return self.spy.reports[-1]

    def step(self, values):
        """Command `values` one period later."""
        self.clock.advance_ns(PERIOD_NS)
        return self.command(values)

    def wait(self, periods=1):
        """Advance the clock, with a tick at the end of each period."""
        for _ in range(periods):
            self.clock.advance_ns(PERIOD_NS)
            self.core.tick()

    def move(self, steps=4):
        """Drive both joints upwards, and stay in motion."""
        for _ in range(steps):
            self.step([1.5] * self.layout.size)
        assert not self.core.at_rest

    def send_setpoints(self):
        """Send the setpoints until the robot is commanded to be at rest."""
        while (due_ns := self.core.arbiter.setpoint_due_ns) is not None:
            self.clock.sleep_until_ns(due_ns)
            self.core.arbiter.send_setpoint()

    @property
    def state(self):
        return self.spy.states[-1].state


@pytest.fixture
def robot():
    return Robot()


@pytest.fixture
def base():
    """A robot with velocity commands and no position limits."""
    return Robot(contract_of(BASE, BASE, command="velocity", watchdog=WATCHDOG))


# ------------------------------------------------------------------------------------------------------------- arming


FULL = 2 * math.pi


@pytest.fixture
def turned():
    """A robot whose first joint was commanded from -3 rad up to half a turn and on.

    Its driver reports -3 rad again.
    """
    turning = JointLimits(position=None, velocity=1.0, acceleration=4.0)
    robot = Robot(contract_of(turning, turning, command="position_delta", watchdog=WATCHDOG), armed=False)
    robot.arm([FULL - 3.02, 0.5])
    for _ in range(6):
        robot.step([FULL - 3.0, 0.5])
    assert robot.core.at_rest
    robot.arm([-3.0, 0.5])
    robot.spy.published.clear()
    return robot


@pytest.mark.parametrize(
    ("target", "published"),
    [
        pytest.param(FULL - 3.0, FULL - 3.0, id="the environment counts turns, too"),
        pytest.param(-3.0, -3.0, id="its process is new, or a service has reset the world"),
        pytest.param(None, FULL - 3.0, id="braking leaves it where it is"),
    ],
)
def test_the_first_command_of_an_epoch_starts_at_the_last_one_or_at_the_reading(turned, target, published):
    turned.step(None if target is None else [target, 0.5])
    assert turned.spy.published[-1].values.tolist() == pytest.approx([published, 0.5])


@pytest.mark.parametrize("turns", [-1, 2, 16])
def test_a_first_command_turns_away_is_refused(turned, turns):
    report = turned.step([turns * FULL - 3.0, 0.5])
    assert [finding.code for finding in report.findings] == ["act.jump"]
    assert turned.spy.published == []
    assert turned.command([FULL - 3.0, 0.5]).published


def test_arming_starts_an_epoch_and_returns_the_limits():
    robot = Robot(armed=False)
    robot.measure()
    success, message = robot.core.arm()
    armed = Armed.from_text(message)
    assert success
    assert armed.epoch > 0
    assert armed.fingerprint == robot.contract.fingerprint
    assert armed.outside == ()


def test_later_relay_has_greater_epochs(robot):
    for _ in range(3):
        robot.arm()
    later = Robot(armed=False)
    later.clock.advance_ns(NS_PER_S)
    later.arm()
    assert later.epoch > robot.epoch


@pytest.mark.parametrize(("age_s", "problem"), [(None, "j0"), (0.2, r"0\.200 s old \(maximum 0\.15 s\)"), (-1.0, "j0")])
def test_arming_requires_a_recent_measurement_of_every_joint(age_s, problem):
    robot = Robot(armed=False)
    if age_s is not None:
        assert robot.measure(age_s=age_s) == (age_s > 0.0)
    success, message = robot.core.arm()
    assert not success
    assert re.search(problem, message)


def test_reference_starts_at_the_newest_measured_positions():
    robot = Robot(armed=False)
    robot.measure([0.5, -0.5])
    robot.measure([0.1, 0.1], age_s=0.1)
    success, message = robot.core.arm()
    assert success
    assert robot.core.arbiter.reference.positions.tolist() == [0.5, -0.5]
    robot.epoch = Armed.from_text(message).epoch
    assert np.abs(robot.step([1.5, 1.5]).applied_si - [0.5, -0.5]).max() <= LIMITS.acceleration * PERIOD_S**2 + 1e-12


def test_joint_outside_its_limits_is_named_and_only_moves_inwards():
    robot = Robot(armed=False)
    robot.measure([2.5, 0.0])
    assert Armed.from_text(robot.core.arm()[1]).outside == ("j0",)
    robot.epoch = robot.core.tag.epoch
    assert robot.step([9.0, 0.0]).applied_si[0] <= 2.5
    assert robot.step([0.0, 0.0]).applied_si[0] < 2.5


# ----------------------------------------------------------------------------------------------------------- commands


def test_feasible_command_is_published_bit_for_bit(robot):
    report = robot.step([0.001, -0.001])
    assert report.published
    assert report.setpoints is None
    assert report.disposition is Severity.PASS
    assert robot.spy.published[-1].values.tolist() == [0.001, -0.001]


def test_a_velocity_is_braked_at_the_measured_position_limit():
    limits = dataclasses.replace(BASE, position=(-1.0, 1.0))
    robot = Robot(contract_of(limits, command="velocity", watchdog=WATCHDOG))
    robot.move(steps=6)
    robot.measure([0.999])
    report = robot.step([1.0])
    assert report.disposition >= Severity.HOLD
    assert report.velocity_si[0] < 1.0


def test_a_command_that_waited_in_a_suspended_relay_is_replaced_by_braking(robot, monkeypatch):
    robot.move()
    update = robot.core.arbiter.update_measured
    monkeypatch.setattr(
        robot.core.arbiter, "update_measured", lambda *given: (robot.clock.advance_ns(PERIOD_NS), update(*given))
    )
    report = robot.step([1.5, 1.5])
    assert (report.disposition, report.findings[0].code) == (Severity.HOLD, "act.late")


def test_contention_on_the_command_topic_stops_and_explains_every_refusal(robot):
    robot.move()
    contended = {"relay/command": "contention: 2 publishers: /a, /b"}
    published = len(robot.spy.published)
    for _ in range(5):
        robot.core.inputs(parse_states(contended))
    assert len(robot.spy.published) == published + 1  # it brakes at once, and then at each tick
    report = robot.command([1.0, 1.0])
    assert [finding.code for finding in report.findings] == ["latch.stop", "robot.contention"]
    assert "/a, /b" in report.findings[-1].detail
    robot.wait(30)
    robot.measure()
    success, message = robot.core.arm()
    assert not success
    assert "robot.contention" in message
    robot.core.inputs(parse_states({"relay/command": "ok"}))
    robot.arm()


# ------------------------------------------------------------------------------------------------------------ braking


def test_zero_is_sent_to_a_velocity_robot_until_the_relay_stops(base):
    base.move()
    base.wait(9)
    zeros = [command for command in base.spy.published if not command.values.any()]
    assert len(zeros) >= 3
    base.wait(1)
    assert base.state == "stopped"
    sent = len(base.spy.published)
    base.wait(100)
    assert len(base.spy.published) == sent
    assert not base.spy.published[-1].values.any()


@pytest.mark.parametrize("ticks", [True, False])
def test_missing_commands_latch_a_stop_also_without_a_tick(robot, ticks):
    robot.move()
    if ticks:
        robot.wait(10)
        assert robot.core.at_rest
        assert (robot.state, robot.spy.states[-1].latched) == ("stopped", "wd.stop")
    else:
        robot.clock.advance_ns(10 * PERIOD_NS)
    report = robot.command([1.0, 1.0])
    assert not report.published
    assert [finding.code for finding in report.findings] == ["latch.stop", "wd.stop"]


def test_requested_braking_continues_until_the_next_command(robot):
    robot.move()
    assert robot.step(None).cause == "brake"
    robot.wait(1)
    assert robot.spy.reports[-1].cause == "tick"
    assert robot.step([1.5, 1.5]).cause == "command"
    robot.wait(1)
    assert robot.spy.reports[-1].cause == "command"


# ------------------------------------------------------------------------------------------------------------- ESTOP


def test_estop_brakes_at_once_and_is_latched(robot):
    robot.move()
    sent = len(robot.spy.published)
    robot.clock.advance_ns(PERIOD_NS // 2)
    robot.core.estop("pressed")
    assert len(robot.spy.published) == sent + 1
    robot.wait(5)
    assert robot.core.at_rest
    assert robot.state == "estop"
    assert [finding.code for finding in robot.command([1.0, 1.0]).findings] == ["latch.estop", "estop.active"]


# ------------------------------------------------------------------------------------------------------------- faults


class FaultyGate(SafetyGate):
    """Reports a broken limit once the test sets its flag."""

    broken = False

    def limit(self, target, reference, dt_s):
        if self.broken:
            raise InternalFaultError("on purpose")
        return super().limit(target, reference, dt_s)


def test_internal_fault_stops_and_brakes():
    contract = plain_contract(watchdog=WATCHDOG)
    gate = FaultyGate(contract)
    robot = Robot(contract, gate=gate)
    robot.move()
    gate.broken = True
    robot.clock.advance_ns(PERIOD_NS)
    sent = len(robot.spy.published)
    robot.command([1.0, 1.0])
    assert len(robot.spy.published) == sent
    assert robot.spy.states[-1].latched == "fault.internal"
    robot.wait(5)
    assert robot.core.at_rest
    assert len(robot.spy.published) > sent


class StoppingGate(SafetyGate):
    """Requests a STOP once the test sets its flag."""

    stopping = False

    def limit(self, target, reference, dt_s):
        if self.stopping:
            return self.brake(reference, dt_s, Finding(gate="plugins", severity=Severity.STOP, code="gate.plugin"))
        return super().limit(target, reference, dt_s)


def test_gate_stop_is_latched_and_ends_publication():
    contract = contract_of(BASE, BASE, command="velocity", watchdog=WATCHDOG)
    gate = StoppingGate(contract)
    robot = Robot(contract, gate=gate)
    robot.move()
    gate.stopping = True
    assert robot.step([1.0, 1.0]).disposition is Severity.STOP
    assert (robot.state, robot.spy.states[-1].latched) == ("stopped", "gate.plugin")
    robot.wait(5)
    assert robot.core.at_rest
    sent = len(robot.spy.published)
    robot.wait(20)
    assert len(robot.spy.published) == sent


# ------------------------------------------------------------------------------------------------- supported contracts


def test_stopping_time_is_that_of_the_slowest_joint_plus_a_period():
    slow = dataclasses.replace(LIMITS, deceleration=0.5)
    assert stopping_time_s(contract_of(LIMITS, slow)) == pytest.approx(LIMITS.fastest / 0.5 + PERIOD_S)


def test_relaying_a_monitored_contract_is_a_usage_error(tmp_path, capsys):
    other = tmp_path / "other.yaml"
    other.write_text(changed_text("arm_reach", {"safety.mode": "monitor"}))
    assert main(["relay", str(other)]) == WRONG_USAGE
    assert "safety.mode: mode is 'monitor'" in capsys.readouterr().err


def test_backend_without_a_profile_is_a_usage_error(capsys):
    assert main(["relay", "arm_reach", "--backend", "reel"]) == WRONG_USAGE
    assert "--backend 'reel'" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------------- state


def test_state_is_published_only_on_change(robot):
    robot.core.announce()
    count = len(robot.spy.states)
    robot.step([0.001, 0.0])
    robot.core.tick()
    robot.core.announce()
    assert len(robot.spy.states) == count


# -------------------------------------------------------------------------------------------------- after a gap


def speeding_base(**options):
    """Return a base at full speed, with a sensor of its joint velocities, behind a relay."""
    contract = contract_of(BASE, BASE, command="velocity", watchdog=WATCHDOG)
    joints = contract.sensors["joints"]
    velocity = dataclasses.replace(joints.fields["position"], unit="rad/s")
    joints = dataclasses.replace(joints, fields={**joints.fields, "velocity": velocity})
    robot = Robot(dataclasses.replace(contract, sensors={"joints": joints}), **options)
    robot.move(6)
    return robot


def test_suspended_relay_does_not_restart_a_stopped_base():
    robot = speeding_base(downstream_timeout_s=0.5)
    robot.clock.advance_ns(3 * NS_PER_S)
    robot.core.tick()
    (finding,) = [each for each in robot.spy.reports[-1].findings if each.code == "vel.gap"]
    assert finding.after.tolist() == [0.0, 0.0]
    robot.wait(5)
    assert not any(command.values.any() for command in robot.spy.published[6:])


def test_relay_without_a_timeout_uses_measured_velocities():
    robot = speeding_base()
    robot.clock.advance_ns(3 * NS_PER_S)
    robot.core.on_joint_velocities(
        "joints", {"velocity": np.array([0.002, 0.9])}, robot.clock.now_ns() - PERIOD_NS // 2
    )
    robot.core.tick()
    braked = robot.spy.published[-1].values
    assert braked[0] == 0.0
    assert braked[1] == pytest.approx(1.0 - 8.0 * PERIOD_S)  # 0.9 and 8 rad/s^2 for 25 ms are more than 1


@pytest.mark.parametrize(("velocity", "age_s"), [(math.nan, 0.0), (0.0, 1.0), (0.0, -1.0), (2e9, 0.0)])
def test_relay_ignores_unknown_velocities(velocity, age_s):
    robot = speeding_base()
    robot.clock.advance_ns(3 * NS_PER_S)
    acquired_ns = robot.clock.now_ns() - round(age_s * NS_PER_S)
    robot.core.on_joint_velocities("joints", {"velocity": np.full(2, velocity)}, acquired_ns)
    robot.core.tick()
    assert robot.spy.published[-1].values.tolist() == pytest.approx([1.0 - 8.0 * PERIOD_S] * 2)


# --------------------------------------------------------------------------------------------------------- setpoints


@pytest.fixture
def streaming():
    """A relay that publishes five setpoints for each command."""
    contract = plain_contract(watchdog=WATCHDOG)
    actuators = {n: dataclasses.replace(each, setpoint_rate_hz=5 / PERIOD_S) for n, each in contract.actuators.items()}
    return Robot(dataclasses.replace(contract, actuators=actuators))


def test_a_command_is_reached_in_several_setpoints_and_reported_once(streaming):
    report = streaming.step([0.005] * streaming.layout.size)
    streaming.send_setpoints()
    positions = [command.values[0] for command in streaming.spy.published]
    assert report.applied_si[0] == 0.005
    assert len(streaming.spy.reports) == 1
    assert len(positions) > 5
    assert positions == sorted(positions)
    assert not streaming.spy.published[-1].report.velocity_si.any()
    assert streaming.core.at_rest


def test_setpoints_brake_once_a_stop_is_latched(streaming):
    streaming.move()
    streaming.core.estop("test")
    count = len(streaming.spy.published)
    streaming.send_setpoints()
    speeds = [abs(command.report.velocity_si[0]) for command in streaming.spy.published[count:]]
    assert speeds == sorted(speeds, reverse=True)
    assert streaming.core.at_rest


def test_the_report_of_a_command_has_the_account_of_the_setpoints_before_it(streaming):
    first = streaming.step([0.005] * streaming.layout.size)
    for _ in range(4):
        streaming.clock.sleep_until_ns(streaming.core.arbiter.setpoint_due_ns)
        streaming.core.arbiter.send_setpoint()
    second = streaming.command([0.01] * streaming.layout.size)
    streaming.core.estop("test")
    assert first.setpoints == {"rate_hz": 5 / PERIOD_S, "sent": 0, "worst_gap_s": 0.0}
    assert second.setpoints == {"rate_hz": 5 / PERIOD_S, "sent": 5, "worst_gap_s": pytest.approx(PERIOD_S / 5)}
    assert streaming.spy.reports[-1].cause == "tick"
    assert streaming.spy.reports[-1].setpoints is None


# -------------------------------------------------------------------------------------- grippers with an action server


GRIPPER_GOAL = 0.3
ACCOUNTS = {"gripper": {"goal": GRIPPER_GOAL, "state": "sent", "goals_sent": 1}}


@pytest.fixture
def grasping(tmp_path):
    """A relay of an arm and a gripper that opens at a STOP, in motion towards a goal of each."""
    contract = gripper_contract(tmp_path, gripper_text(scale="physical", more="on_stop: open"))
    contract = dataclasses.replace(contract, safety=dataclasses.replace(contract.safety, watchdog=WATCHDOG))
    robot = Robot(contract, gripper_accounts=lambda: ACCOUNTS)
    assert robot.step([0.0, GRIPPER_GOAL]).applied_si.tolist() == [0.0, GRIPPER_GOAL]
    return robot


def goals(robot):
    return [command.values[1] for command in robot.spy.published]


def test_a_goal_is_relayed_at_once_and_limited_in_position_only(grasping):
    report = grasping.step([0.0, 2.0])
    assert report.applied_si[1] == 0.8
    assert [finding.code for finding in report.findings] == ["pos.limit"]
    assert stopping_time_s(grasping.contract) == pytest.approx(0.95 / 3.6 + PERIOD_S)


@pytest.mark.parametrize("is_moving", [False, True])
def test_silence_of_the_client_is_a_stop_of_the_gripper_also_at_rest(grasping, is_moving):
    if is_moving:
        grasping.step([0.5, GRIPPER_GOAL])
    grasping.wait(9)
    assert set(goals(grasping)) == {GRIPPER_GOAL}
    grasping.wait(6)
    assert grasping.state == "stopped"
    assert goals(grasping)[-1] == 0.8
    assert goals(grasping).count(0.8) == 1
    assert grasping.core.at_rest


def test_silence_after_a_request_to_brake_keeps_the_goal(grasping):
    grasping.command(None)
    grasping.wait(15)
    assert grasping.state == "stopped"
    assert set(goals(grasping)) == {GRIPPER_GOAL}


def test_a_stop_of_the_client_is_a_stop_of_the_gripper(grasping):
    grasping.clock.advance_ns(PERIOD_NS)
    grasping.seq += 1
    tag = CommandId(epoch=grasping.epoch, seq=grasping.seq)
    grasping.core.command(write_command(tag, Severity.STOP, grasping.layout))
    grasping.wait(15)
    assert goals(grasping) == [GRIPPER_GOAL, 0.8]


@pytest.mark.parametrize("state", ["silent: goal 0.3 is rejected for more than 5 s", "active"])
def test_a_silent_server_or_an_estop_stops_the_gripper_at_rest(grasping, state):
    grasping.clock.advance_ns(PERIOD_NS)
    grasping.core.inputs(parse_states({"actuators.gripper": state}))
    assert goals(grasping) == [GRIPPER_GOAL, 0.8]
    assert grasping.spy.states[-1].latched == ("estop.active" if state == "active" else "gripper.silent")
    assert grasping.spy.reports[-1].grippers == ACCOUNTS
    grasping.wait(15)
    assert goals(grasping) == [GRIPPER_GOAL, 0.8]


def test_a_relay_that_ends_keeps_the_goal(grasping):
    grasping.step([0.5, GRIPPER_GOAL])
    grasping.core.end()
    grasping.wait(5)
    assert set(goals(grasping)) == {GRIPPER_GOAL}


def test_nothing_is_sent_at_a_stop_before_the_first_command(grasping):
    grasping.wait(15)
    grasping.arm([0.0, 0.3])
    sent = len(goals(grasping))
    grasping.core.estop("test")
    grasping.wait(5)
    assert len(goals(grasping)) == sent


def test_a_goal_is_one_setpoint_while_the_arm_gets_several(tmp_path):
    contract = gripper_contract(tmp_path, gripper_text(scale="physical"))
    arm = dataclasses.replace(contract.actuators["arm"], setpoint_rate_hz=100.0)
    actuators = {**contract.actuators, "arm": arm}
    robot = Robot(dataclasses.replace(contract, actuators=actuators))
    robot.step([0.005, GRIPPER_GOAL])
    robot.send_setpoints()
    assert set(goals(robot)) == {GRIPPER_GOAL}
    assert len({command.values[0] for command in robot.spy.published}) >= 5
