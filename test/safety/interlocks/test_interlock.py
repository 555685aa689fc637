"""Each interlock is tested alone for accepted values, threshold, finding, and what a reset clears."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import pytest
import scripted_tasks
from distributions import install
from scripted_tasks import JOINTS, PERIOD_S

from embodied_env.core.code_table import GATES
from embodied_env.core.code_types import Quality, Severity
from embodied_env.core.safety_input_state import InputState
from embodied_env.core.types import CommandState, Finding, SafetyContext, SensorStatus
from embodied_env.errors import ContractError
from embodied_env.safety.findings import safety_input_findings
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.interlocks.force import ForceGate
from embodied_env.safety.interlocks.latency import LatencyGate
from embodied_env.safety.interlocks.observation import JUDGED_BY_AGE, ObservationGate
from embodied_env.safety.interlocks.plugin_interlock import make_interlocks
from embodied_env.safety.interlocks.tracking import TrackingGate

MAX_AGE_S = 0.15  # of the joints, in the contract
REST = CommandState(positions=np.zeros(2), velocities=np.zeros(2), seq=0, epoch=0)
MOVING = CommandState(positions=np.zeros(2), velocities=np.array([0.5, -0.3]), seq=0, epoch=0)
ZERO = np.zeros(2)
FORCES = {"beacon": {"field": "position", "limit": 5.0}}


def states_of(texts):
    """Return the states of texts, and anything else unchanged."""
    return {name: InputState.parse(text) if isinstance(text, str) else text for name, text in texts.items()}


def context(quality=Quality.OK, age_s=0.0, measured=(0.0, 0.0), **others) -> SafetyContext:
    """Return a context without faults, except for the given values."""
    sensors = {"joints": SensorStatus(quality=quality, age_s=age_s)}
    others["estops"] = states_of(others.get("estops", {}))
    return SafetyContext(**{"sensors": sensors, "measured": np.array(measured, float), **others})


FAULTLESS = context()


def contract_with(**safety):
    return scripted_tasks.contract(safety={**scripted_tasks.document()["safety"], **safety})


def gate_of(kind, **safety):
    """Return the only interlock of this class, for the scripted contract."""
    contract = contract_with(**safety)
    (found,) = [gate for gate in make_interlocks(contract, SafetyGate(contract).layout) if isinstance(gate, kind)]
    return found


def codes_of(findings: Iterable[Finding]) -> list[tuple[str, Severity]]:
    return [(finding.code, finding.severity) for finding in findings]


def codes(approved) -> list[str]:
    return [finding.code for finding in approved.report.findings]


# ---------------------------------------------------------------------------------------------------------- the chain


def test_interlocks_with_limits_in_the_contract_are_in_the_order_of_the_gates():
    for safety, expected in (
        (STRICT, [ObservationGate, TrackingGate, ForceGate, LatencyGate]),
        ({"tracking": None}, [ObservationGate]),
    ):
        contract = contract_with(**safety)
        assert [type(gate) for gate in make_interlocks(contract, SafetyGate(contract).layout)] == expected


@pytest.mark.parametrize(
    ("jump", "found"),
    [
        ("", []),
        *((jump, [("clock.jump", Severity.HOLD)]) for jump in ("stepped", "rewound", "skipped")),
        ("suspended", [("clock.suspended", Severity.STOP)]),
    ],
)
def test_clock_jump_is_a_hold_and_a_suspended_host_a_stop(jump, found):
    assert codes_of(gate_of(ObservationGate).judge(context(clock_jump=jump), ZERO)) == found


ALL_WRONG = {"age_s": 1.0, "measured": (1.0, 1.0), "action_age_s": 1.0, "latency_s": 1.0, "forces": {"beacon": 6.0}}
STRICT = {
    "tracking": {"debounce_steps": 1},
    "forces": FORCES,
    "observation": {"required": ["joints"]},
    "latency": {"budget_s": 0.1, "misses": 1, "action": "hold"},
}


def all_wrong() -> SafetyContext:
    """Return a context in which everything but the safety inputs and the beacon's force is wrong."""
    safety_context = context(**ALL_WRONG)
    sensors = {**safety_context.sensors, "beacon": SensorStatus(quality=Quality.OK, age_s=0.0)}
    return dataclasses.replace(safety_context, sensors=sensors)


def test_all_findings_are_reported_in_the_order_of_the_gates():
    report = SafetyGate(contract_with(**STRICT)).judge([0.0, 0.0], REST, PERIOD_S, all_wrong()).report
    assert [finding.code for finding in report.findings] == [
        "obs.stale",
        "act.late",
        "track.error",
        "force.limit",
        "lat.budget",
    ]
    order = [GATES.index(finding.gate) for finding in report.findings]
    assert order == sorted(order)


def test_refused_action_brakes_within_the_limits_until_its_reason_ends():
    """An action that brakes is not reported as clipped, since interlocks come before limits."""
    gate = SafetyGate(scripted_tasks.contract())
    approved = gate.judge([7.0, 7.0], MOVING, PERIOD_S, context(age_s=1.0))
    assert codes(approved) == ["obs.stale"]
    assert approved.report.requested.tolist() == [7.0, 7.0]
    assert approved.report.velocity_si.tolist() == pytest.approx([0.1, 0.0])
    assert approved.report.disposition is Severity.HOLD
    assert gate.judge([0.0, 0.0], REST, PERIOD_S, FAULTLESS).report.disposition is Severity.PASS


def test_malformed_action_does_not_hide_other_findings():
    """The force is a STOP also for a NaN action, since adding a gate never lowers the disposition (P13)."""
    gate = SafetyGate(contract_with(**STRICT))
    approved = gate.judge([math.nan, 0.0], REST, PERIOD_S, all_wrong())
    assert codes(approved)[0] == "form.nan"
    assert "force.limit" in codes(approved)
    assert gate.latched.code == "force.limit"


def test_interlocks_are_skipped_without_a_context():
    approved = SafetyGate(contract_with(forces=FORCES)).judge([0.0, 0.0], REST, PERIOD_S)
    assert approved.report.findings == ()


# ------------------------------------------------------------------------------------------------------ safety inputs

INPUTS = [
    ("active", "estop.active", Severity.ESTOP),
    ("expired", "estop.expired", Severity.ESTOP),
    ("unknown", "estop.unknown", Severity.ESTOP),
    ("protective_stop", "robot.protective_stop", Severity.ESTOP),
    ("inactive", "robot.inactive", Severity.STOP),
    ("contention", "robot.contention", Severity.STOP),
    ("", "estop.unknown", Severity.ESTOP),
    ("OK", "estop.unknown", Severity.ESTOP),
    ("fine", "estop.unknown", Severity.ESTOP),
    ("ok: but", "estop.unknown", Severity.ESTOP),
    (None, "estop.unknown", Severity.ESTOP),
]


OTHER_INPUTS = [
    ("lapsed", "robot.inactive", Severity.HOLD),
    ("unclear", "robot.contention", Severity.HOLD),
    ("restarted", "robot.restarted", Severity.STOP),
    ("silent", "gripper.silent", Severity.STOP),
]


@pytest.mark.parametrize(("state", "code", "severity"), [*INPUTS, *OTHER_INPUTS])
def test_each_state_of_a_safety_input_has_its_code(state, code, severity):
    (finding,) = safety_input_findings(states_of({"door": state}))
    assert (finding.gate, finding.code, finding.severity) == ("estop", code, severity)
    assert "door" in finding.detail


@pytest.mark.parametrize(("mode", "severity"), [("enforce", Severity.HOLD), ("monitor", Severity.LIMIT)])
def test_lapsed_input_holds_without_latching(mode, severity):
    gate = SafetyGate(contract_with(mode=mode))
    approved = gate.judge([0.0, 0.0], REST, PERIOD_S, context(estops={"driver": "lapsed: /arm is deactivating"}))
    assert codes_of(approved.report.findings) == [("robot.inactive", severity)]
    assert gate.latched is None


def test_state_has_its_reason_after_a_colon():
    (finding,) = safety_input_findings(states_of({"driver": "inactive: /arm is finalized: overcurrent"}))
    assert (finding.code, finding.severity) == ("robot.inactive", Severity.STOP)
    assert finding.detail == "driver is inactive: /arm is finalized: overcurrent"


def test_every_safety_input_is_named():
    found = safety_input_findings(states_of({"door": "active", "lamp": "ok", "button": "expired"}))
    assert [finding.detail for finding in found] == ["door is active", "button is expired"]


@pytest.mark.parametrize("mode", ["enforce", "monitor"])
@pytest.mark.parametrize(("state", "code", "severity"), INPUTS)
def test_safety_input_brakes_and_latches_beyond_its_end_also_while_monitoring(mode, state, code, severity):
    """The gate does not override the robot's own inputs."""
    gate = SafetyGate(contract_with(mode=mode))
    for door in (state, "ok"):
        approved = gate.judge([1.0, 1.0], MOVING, PERIOD_S, context(estops={"door": door}))
        assert (code in codes(approved)) == (door != "ok")
        assert approved.report.disposition is severity
        assert approved.report.intervened
        assert gate.latched.code == code
        assert approved.report.velocity_si.tolist() == pytest.approx([0.1, 0.0])


def test_more_severe_input_raises_the_latch():
    gate = SafetyGate(scripted_tasks.contract())
    gate.judge([0.0, 0.0], REST, PERIOD_S, context(estops={"driver": "inactive"}))
    approved = gate.judge([0.0, 0.0], REST, PERIOD_S, context(estops={"driver": "inactive", "door": "active"}))
    assert approved.report.disposition is gate.latched.severity is Severity.ESTOP


def test_clearing_an_asserted_estop_latches_it_again():
    gate = SafetyGate(scripted_tasks.contract())
    asserted = context(estops={"door": "active"})
    gate.judge([0.0, 0.0], REST, PERIOD_S, asserted)
    gate.clear_estop()
    gate.reset()
    assert gate.latched is None
    assert gate.judge([0.0, 0.0], REST, PERIOD_S, asserted).report.disposition is Severity.ESTOP


# -------------------------------------------------------------------------------------------------------- observation


@pytest.mark.parametrize("quality", JUDGED_BY_AGE)
def test_reading_is_valid_up_to_its_maximum_age(quality):
    gate = gate_of(ObservationGate)
    assert gate.judge(context(quality, MAX_AGE_S), ZERO) == []
    assert codes_of(gate.judge(context(quality, math.nextafter(MAX_AGE_S, 1.0)), ZERO)) == [
        ("obs.stale", Severity.HOLD)
    ]


def test_reading_may_be_in_the_future_by_the_tolerance():
    gate = gate_of(ObservationGate, observation={"future_tolerance_s": 0.004})
    assert gate.judge(context(age_s=-0.004), ZERO) == []
    assert codes_of(gate.judge(context(age_s=math.nextafter(-0.004, -1.0)), ZERO)) == [("obs.future", Severity.HOLD)]


@pytest.mark.parametrize("quality", sorted(set(Quality) - {*JUDGED_BY_AGE}))
def test_reading_of_other_quality_is_invalid_at_any_age(quality):
    code = "obs.future" if quality is Quality.FUTURE else "obs.invalid"
    assert codes_of(gate_of(ObservationGate).judge(context(quality, 0.0), ZERO)) == [(code, Severity.HOLD)]


@pytest.mark.parametrize("age_s", [math.nan, math.inf, -math.inf])
def test_non_finite_age_is_invalid(age_s):
    assert codes_of(gate_of(ObservationGate).judge(context(age_s=age_s), ZERO)) == [("obs.invalid", Severity.HOLD)]


def test_missing_sensor_is_invalid():
    found = gate_of(ObservationGate).judge(dataclasses.replace(FAULTLESS, sensors={}), ZERO)
    assert codes_of(found) == [("obs.invalid", Severity.HOLD)]
    assert "joints" in found[0].detail


def test_each_failing_required_sensor_is_named():
    gate = gate_of(ObservationGate, observation={"required": ["joints", "goal"]})
    found = gate.judge(context(age_s=1.0), ZERO)
    assert codes_of(found) == [("obs.stale", Severity.HOLD), ("obs.invalid", Severity.HOLD)]
    assert "joints" in found[0].detail
    assert "goal" in found[1].detail


def test_optional_sensor_may_fail():
    sensors = {**FAULTLESS.sensors, "goal": SensorStatus(quality=Quality.LOST, age_s=math.nan)}
    assert gate_of(ObservationGate).judge(dataclasses.replace(FAULTLESS, sensors=sensors), ZERO) == []


def test_force_limited_sensor_is_required():
    """Otherwise the last force of a silent sensor would count without a time limit."""
    found = gate_of(ObservationGate, forces=FORCES).judge(FAULTLESS, ZERO)
    assert codes_of(found) == [("obs.invalid", Severity.HOLD)]


def test_stop_after_stop_steps_failures_in_a_row():
    gate = gate_of(ObservationGate, observation={"stop_steps": 3})
    found = [gate.judge(context(age_s=1.0), ZERO)[0].severity for _ in range(4)]
    assert found == [Severity.HOLD, Severity.HOLD, Severity.STOP, Severity.STOP]


def test_valid_step_clears_the_failure_count():
    gate = gate_of(ObservationGate, observation={"stop_steps": 2})
    for _ in range(2):
        assert gate.judge(context(age_s=1.0), ZERO)[0].severity is Severity.HOLD
        gate.judge(FAULTLESS, ZERO)


def test_observation_stop_is_latched():
    gate = SafetyGate(contract_with(observation={"stop_steps": 2}))
    for _ in range(2):
        gate.judge([0.0, 0.0], REST, PERIOD_S, context(age_s=1.0))
    assert gate.latched.code == "obs.stale"
    assert gate.judge([0.0, 0.0], REST, PERIOD_S, FAULTLESS).report.disposition is Severity.STOP


# --------------------------------------------------------------------------------------------------------- action age


@pytest.mark.parametrize(("steps", "most_s"), [(1, 0.05), (2, 0.1)])
def test_action_is_valid_up_to_its_maximum_age(steps, most_s):
    gate = gate_of(ObservationGate, action={"max_age_steps": steps})
    assert gate.judge(context(action_age_s=most_s), ZERO) == []
    late = gate.judge(context(action_age_s=math.nextafter(most_s, 1.0)), ZERO)
    assert codes_of(late) == [("act.late", Severity.HOLD)]


@pytest.mark.parametrize("age_s", [math.nan, math.inf])
def test_action_of_unknown_age_is_late(age_s):
    assert codes_of(gate_of(ObservationGate).judge(context(action_age_s=age_s), ZERO)) == [("act.late", Severity.HOLD)]


def test_late_actions_never_stop():
    gate = SafetyGate(scripted_tasks.contract())
    for _ in range(100):
        gate.judge([0.0, 0.0], REST, PERIOD_S, context(action_age_s=9.0))
    assert gate.latched is None


# ----------------------------------------------------------------------------------------------------------- tracking

RANGE, SHARE = 4.0, 0.0625  # radians; binary, so that the bound is exact
TOLERANCE = RANGE * SHARE
STRICT_TRACKING = {"tolerance": SHARE, "delay_steps": 0, "debounce_steps": 1, "stop_steps": 3}


def tracking(**changes):
    return gate_of(TrackingGate, tracking={**STRICT_TRACKING, **changes})


def test_joint_error_may_equal_the_tolerance():
    gate = tracking()
    assert gate.judge(context(measured=(TOLERANCE, -TOLERANCE)), ZERO) == []
    found = gate.judge(context(measured=(math.nextafter(TOLERANCE, 9.0), 0.0)), ZERO)
    assert codes_of(found) == [("track.error", Severity.HOLD)]


def test_tracking_finding_names_joints_and_errors():
    (finding,) = tracking().judge(context(measured=(0.0, 1.0)), np.array([0.0, 0.5]))
    assert finding.joints == (JOINTS[1],)
    assert (finding.before, finding.after, finding.limit) == ([0.5], [1.0], [TOLERANCE])
    assert finding.margin == [TOLERANCE - 0.5]


@pytest.mark.parametrize("measured", [(math.nan, 0.0), (0.0, math.inf)])
def test_joint_of_unknown_position_has_a_tracking_error(measured):
    (finding,) = tracking().judge(context(measured=measured), ZERO)
    assert (finding.code, finding.joints) == ("track.error", (JOINTS[measured.index(0.0) ^ 1],))


def test_tracking_holds_after_debounce_and_stops_after_stop_steps():
    gate = tracking(debounce_steps=3, stop_steps=5)
    found = [codes_of(gate.judge(context(measured=(1.0, 0.0)), ZERO)) for _ in range(6)]
    hold, stop = [("track.error", Severity.HOLD)], [("track.error", Severity.STOP)]
    assert found == [[], [], hold, hold, stop, stop]


def test_good_step_clears_the_tracking_count():
    gate = tracking(debounce_steps=2)
    for _ in range(2):
        assert gate.judge(context(measured=(1.0, 0.0)), ZERO) == []
        gate.judge(FAULTLESS, ZERO)


def test_joint_may_match_any_of_the_last_commands():
    gate = tracking(delay_steps=2)
    for command in (0.0, 0.5, 1.0):
        last = gate.judge(context(measured=(0.0, 0.0)), np.array([command, 0.0]))
    assert last == []
    beyond = gate.judge(context(measured=(0.0, 0.0)), np.array([1.5, 0.0]))  # the command at zero has been dropped
    assert codes_of(beyond) == [("track.error", Severity.HOLD)]


def test_no_tracking_error_between_two_commands():
    gate = tracking(delay_steps=1)
    gate.judge(FAULTLESS, np.array([-1.0, 0.0]))
    assert gate.judge(FAULTLESS, np.array([1.0, 0.0])) == []


@pytest.mark.parametrize(("unit", "turn"), [("rad", 2.0 * math.pi), ("m", 1.0)])
def test_unlimited_joint_has_a_tolerance_of_a_turn_or_a_metre(unit, turn):
    plain = scripted_tasks.document()
    joint = {**plain["actuators"]["arm"]["joints"]["shoulder"], "position": None, "unit": unit}
    contract = scripted_tasks.contract(
        actuators__arm__joints=dict.fromkeys(JOINTS, joint),
        sensors__joints__fields={"position": {"joints": list(JOINTS), "unit": unit, "low": -9.0, "high": 9.0}},
        safety__tracking=STRICT_TRACKING,
    )
    gate = SafetyGate(contract)
    most = SHARE * turn
    assert gate.judge([0.0, 0.0], REST, PERIOD_S, context(measured=(most, 0.0))).report.findings == ()
    off = context(measured=(math.nextafter(most, 99.0), 0.0))
    assert codes(gate.judge([0.0, 0.0], REST, PERIOD_S, off)) == ["track.error"]


def test_velocity_joint_has_no_tracking_error():
    contract = scripted_tasks.contract(
        actuators__arm__type="std_msgs/msg/Float64MultiArray",
        actuators__arm__command="velocity",
        safety__tracking=STRICT_TRACKING,
    )
    approved = SafetyGate(contract).judge([0.0, 0.0], REST, PERIOD_S, context(measured=(math.nan, 1.0)))
    assert codes(approved) == []


def test_blocked_robot_is_held_and_then_stopped():
    gate = SafetyGate(contract_with(tracking={**STRICT_TRACKING, "debounce_steps": 2}))
    found = [gate.judge([0.0, 0.0], REST, PERIOD_S, context(measured=(1.0, 0.0))).report for _ in range(3)]
    assert [report.disposition for report in found] == [Severity.PASS, Severity.HOLD, Severity.STOP]


# -------------------------------------------------------------------------------------------------------------- force


def test_force_may_equal_its_limit():
    gate = gate_of(ForceGate, forces=FORCES)
    assert gate.judge(context(forces={"beacon": 5.0}), ZERO) == []
    found = gate.judge(context(forces={"beacon": math.nextafter(5.0, 9.0)}), ZERO)
    assert codes_of(found) == [("force.limit", Severity.STOP)]
    assert "beacon" in found[0].detail


@pytest.mark.parametrize("forces", [{}, {"beacon": math.nan}, {"beacon": math.inf}, {"other": 1.0}], ids=str)
def test_unknown_force_is_excessive(forces):
    assert codes_of(gate_of(ForceGate, forces=FORCES).judge(context(forces=forces), ZERO)) == [
        ("force.limit", Severity.STOP)
    ]


def test_excessive_force_is_latched_until_the_reset():
    gate = SafetyGate(contract_with(forces=FORCES))
    sensors = {**FAULTLESS.sensors, "beacon": SensorStatus(quality=Quality.OK, age_s=0.0)}
    fine = dataclasses.replace(FAULTLESS, sensors=sensors, forces={"beacon": 0.0})
    gate.judge([0.0, 0.0], REST, PERIOD_S, dataclasses.replace(fine, forces={"beacon": 6.0}))
    assert gate.judge([0.0, 0.0], REST, PERIOD_S, fine).report.disposition is Severity.STOP
    gate.reset()
    assert gate.judge([0.0, 0.0], REST, PERIOD_S, fine).report.disposition is Severity.PASS


# ------------------------------------------------------------------------------------------------------------ latency

BUDGET = {"budget_s": 0.02, "misses": 2, "window_steps": 3}


@pytest.mark.parametrize(("action", "severity"), [("warn", Severity.PASS), ("hold", Severity.HOLD)])
def test_latency_misses_in_the_window_warn_or_hold(action, severity):
    gate = gate_of(LatencyGate, latency={**BUDGET, "action": action})
    found = [codes_of(gate.judge(context(latency_s=s), ZERO)) for s in (0.03, 0.0, 0.03, 0.0, 0.0)]
    assert found == [[], [], [("lat.budget", severity)], [], []]


def test_latency_equal_to_the_budget_is_not_a_miss():
    gate = gate_of(LatencyGate, latency={**BUDGET, "misses": 1})
    assert gate.judge(context(latency_s=0.02), ZERO) == []
    assert codes_of(gate.judge(context(latency_s=math.nextafter(0.02, 1.0)), ZERO)) == [("lat.budget", Severity.PASS)]


@pytest.mark.parametrize("latency_s", [math.nan, math.inf])
def test_unknown_latency_is_a_miss(latency_s):
    gate = gate_of(LatencyGate, latency={**BUDGET, "misses": 1})
    assert codes_of(gate.judge(context(latency_s=latency_s), ZERO)) == [("lat.budget", Severity.PASS)]


def test_warning_leaves_the_action_unchanged():
    gate = SafetyGate(contract_with(latency={**BUDGET, "misses": 1}))
    report = gate.judge([0.1, 0.1], REST, PERIOD_S, context(latency_s=1.0)).report
    assert (report.disposition, report.intervened) == (Severity.PASS, False)
    assert report.applied.tolist() == [0.1, 0.1]
    assert [finding.code for finding in report.findings] == ["lat.budget"]


# --------------------------------------------------------------------------------------------------------- monitoring


def test_monitoring_reports_refusals_and_passes_the_action():
    gate = SafetyGate(contract_with(mode="monitor", **STRICT))
    approved = gate.judge([0.1, 0.1], REST, PERIOD_S, all_wrong())
    assert codes(approved) == ["obs.stale", "act.late", "track.error", "force.limit", "lat.budget"]
    assert {finding.severity for finding in approved.report.findings} == {Severity.LIMIT}
    assert approved.report.applied.tolist() == [0.1, 0.1]
    assert not approved.report.intervened
    assert gate.latched is None


# --------------------------------------------------------------------------------------------- of other packages

PARTY = """
from embodied_env.core.code_types import Severity

class Charged:
    codes = {"charge.low": Severity.HOLD, "charge.empty": Severity.STOP}
    def __init__(self, contract, *, found="", fails=""):
        self.found, self.fails = found, fails
    def reset(self):
        self.fails != "reset" or exit()
    def judge(self, context, commanded):
        commanded[:] = context.measured[:] = 9.0
        self.fails != "judge" or exit()
        return {self.found: "17 %"} if self.found else {}

class Mute(Charged):
    codes = {"charge.low": Severity.LIMIT}
"""


@pytest.fixture
def charged(monkeypatch, tmp_path):
    points = {"charged": "an_interlock_party:Charged", "mute": "an_interlock_party:Mute"}
    install(monkeypatch, tmp_path, {"interlocks": points}, an_interlock_party=PARTY)


@pytest.mark.usefixtures("charged")
@pytest.mark.parametrize(
    ("parameters", "severity", "detail"),
    [
        ({}, None, ""),
        ({"found": "charge.low"}, Severity.HOLD, "charged: charge.low: 17 %"),
        ({"found": "charge.empty"}, Severity.STOP, "charged: charge.empty: 17 %"),
        ({"found": "charge.unknown"}, Severity.STOP, "charged: interlock raised KeyError"),
        ({"fails": "judge"}, Severity.STOP, "charged: interlock raised SystemExit"),
        ({"fails": "reset"}, Severity.STOP, "charged: interlock raised SystemExit from reset"),
    ],
)
def test_interlock_of_another_package_refuses_by_its_own_code(parameters, severity, detail):
    gate = SafetyGate(contract_with(interlocks={"charged": parameters}))
    gate.reset()
    report = gate.judge([0.0, 0.0], REST, PERIOD_S, FAULTLESS).report
    found = [(each.severity, each.detail) for each in report.findings if each.code == "gate.plugin"]
    assert found == ([] if severity is None else [(severity, detail)])
    assert (gate.latched is not None) == (severity is Severity.STOP)
    assert 9.0 not in FAULTLESS.measured


@pytest.mark.usefixtures("charged")
@pytest.mark.parametrize(
    ("name", "parameters", "problem"),
    [
        ("tracking", {}, "reserved name"),
        ("chraged", {}, r"group embodied_env.interlocks.*'charged'"),
        ("mute", {}, "expected codes with severities"),
        ("charged", {"volts": 3}, "'charged' could not be created"),
    ],
)
def test_interlock_of_another_package_that_cannot_be_made_is_a_contract_error(name, parameters, problem):
    with pytest.raises(ContractError, match=problem) as caught:
        SafetyGate(contract_with(interlocks={name: parameters}))
    assert caught.value.path == f"safety.interlocks.{name}"
