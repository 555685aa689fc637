import math

import numpy as np
import pytest
import scripted_tasks
from arbiter_bench import HOLD
from scripted_tasks import PERIOD_S, VELOCITY
from stable_ids import stable_repr

from embodied_env.core.code_table import CODES, GATES
from embodied_env.core.code_types import Severity
from embodied_env.core.types import CommandState, Finding
from embodied_env.errors import InternalFaultError
from embodied_env.safety import command_limiter as limiter
from embodied_env.safety.findings import gate_arrays
from embodied_env.safety.gate import SafetyGate

STOP = Finding(gate="latch", severity=Severity.STOP, code="latch.stop")
ESTOP = Finding(gate="latch", severity=Severity.ESTOP, code="latch.estop")


@pytest.fixture
def gate():
    return SafetyGate(scripted_tasks.contract())


def reference_at(*states, seq=0, epoch=0):
    positions, velocities = zip(*states, strict=True)
    return CommandState(
        positions=np.array(positions, float), velocities=np.array(velocities, float), seq=seq, epoch=epoch
    )


REST = reference_at((0.0, 0.0), (0.0, 0.0))
MOVING = reference_at((0.0, 0.5), (0.0, -0.3))


def codes(approved):
    return [finding.code for finding in approved.report.findings]


class Tensor:
    """A stand-in for a torch tensor with a device and a gradient."""

    def __init__(self, values, *, attached=True):
        self._values, self._attached = values, attached

    def detach(self):
        return Tensor(self._values, attached=False)

    def cpu(self):
        return np.asarray(self._values)

    def __array__(self, *args, **kwargs):
        raise RuntimeError("can't convert a tensor that requires grad: call detach() first")


class RaisesOnConversion:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "action",
    [
        np.array([0.1, 0.0]),
        [0.1, 0.0],
        (0.1, 0.0),
        np.array([0.1, 0.0], np.float32),
        np.array([0.1, 0.0], np.float16),
        Tensor([0.1, 0.0]),
        np.array([[0.1, 0.0]])[0],
        np.array([0, 0], np.int32),
    ],
    ids=["array", "list", "tuple", "float32", "float16", "tensor", "view", "integers"],
)
def test_every_container_of_two_real_numbers_is_accepted(gate, action):
    approved = gate.judge(action, REST, PERIOD_S)
    assert approved.report.disposition is Severity.PASS
    assert approved.values == pytest.approx([0.05 * float(approved.report.requested[0]), 0.0], rel=1e-3)


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ([math.nan, 0.0], "form.nan"),
        (np.array([0.0, math.inf]), "form.nan"),
        ([-math.inf, 0.0], "form.nan"),
        (np.array([np.longdouble("1e400"), 0]), "form.nan"),
        ([0.0], "form.shape"),
        ([0.0, 0.0, 0.0], "form.shape"),
        ([[0.0, 0.0]], "form.shape"),
        (0.0, "form.shape"),
        ([], "form.shape"),
        (np.zeros((2, 1)), "form.shape"),
        ([[0.0], [0.0, 1.0]], "form.type"),
        ("right", "form.type"),
        (None, "form.type"),
        ([True, False], "form.type"),
        ([1j, 0j], "form.type"),
        (["0.1", "0.2"], "form.type"),
        ({"arm": [0.0, 0.0]}, "form.type"),
        (RaisesOnConversion(), "form.type"),
        (np.array([0.0, 0.0], object), "form.type"),
        (object(), "form.type"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("form.") else stable_repr(value)[:30],
)
def test_malformed_action_is_held_with_its_code(gate, action, code):
    approved = gate.judge(action, MOVING, PERIOD_S)
    assert codes(approved) == [code]
    assert approved.report.disposition is Severity.HOLD
    assert approved.report.velocity_si.tolist() == pytest.approx([0.1, 0.0])


@pytest.mark.parametrize(("action", "requested"), [([math.nan, 0.25], [math.nan, 0.25]), ([0.0], [math.nan] * 2)])
def test_malformed_action_is_reported_or_nan_if_it_has_another_shape(gate, action, requested):
    np.testing.assert_array_equal(gate.judge(action, REST, PERIOD_S).report.requested, requested)


def test_three_malformed_actions_in_a_row_latch_a_stop(gate):
    found = [codes(gate.judge(None, REST, PERIOD_S)) for _ in range(3)]
    assert found == [["form.type"], ["form.type"], ["form.type", "form.repeated"]]
    assert gate.latched.code == "form.repeated"


def test_valid_action_resets_the_count_of_malformed_actions(gate):
    for action in (None, None, [0.0, 0.0], None, None):
        gate.judge(action, REST, PERIOD_S)
    assert gate.latched is None


def test_unprintable_error_is_a_malformed_action(gate):
    class MuteError(Exception):
        def __str__(self):
            raise ValueError

    class Silent:
        def __array__(self, *args, **kwargs):
            raise MuteError

    assert codes(gate.judge(Silent(), REST, PERIOD_S)) == ["form.type"]


def test_action_at_its_bound_is_not_clipped_at_full_speed(gate):
    fast = reference_at((0.0, VELOCITY), (0.0, -VELOCITY))
    approved = gate.judge([1.0, -1.0], fast, PERIOD_S)
    assert approved.report.findings == ()
    assert approved.values.tolist() == [VELOCITY * PERIOD_S, -VELOCITY * PERIOD_S]


@pytest.fixture
def gate_of_two():
    arm = scripted_tasks.document()["actuators"]["arm"]
    joints = {"upper": "shoulder", "lower": "elbow"}
    actuators = {name: {**arm, "topic": name, "joints": {j: arm["joints"][j]}} for name, j in joints.items()}
    return SafetyGate(scripted_tasks.contract(actuators=actuators))


@pytest.mark.parametrize(
    "action", [[0.0, 0.0], {"upper": [0.0]}, {"upper": [0.0], "lower": [0.0], "legs": [0.0]}, None]
)
def test_two_actuators_reject_anything_but_a_dict_of_both(gate_of_two, action):
    assert codes(gate_of_two.judge(action, REST, PERIOD_S)) == ["form.shape"]


def test_each_binding_limit_has_its_own_finding(gate):
    approved = gate.judge([1.0, 1.0], reference_at((2.0, 0.0), (0.0, 0.0)), PERIOD_S)
    assert {finding.code: finding.joints for finding in approved.report.findings} == {
        "pos.limit": ("shoulder",),
        "acc.limit": ("elbow",),
    }


def test_infeasible_state_is_a_stop_that_brakes_every_joint(gate):
    approved = gate.judge([0.0, 1.0], reference_at((1.99, 1.0), (0.0, 0.3)), PERIOD_S)
    assert codes(approved) == ["limits.infeasible"]
    assert approved.report.disposition is Severity.STOP
    assert approved.report.velocity_si[1] == 0.0
    assert approved.values[0] <= 2.0
    assert gate.latched.severity is Severity.STOP
    assert not approved.report.guaranteed["position"]


def test_braking_from_an_infeasible_state_does_not_raise(gate):
    gate.latch(ESTOP)
    approved = gate.judge([0.0, 0.0], reference_at((1.99, 1.0), (0.0, 0.0)), PERIOD_S)
    assert approved.values[0] == 2.0
    assert not approved.report.guaranteed["position"]


def test_writing_to_a_recorded_finding_does_not_clear_the_latch(gate):
    finding = Finding(gate="estop", severity=Severity.ESTOP, code="estop.active")
    gate.latch(finding)
    both: list = [finding, gate.latched]
    for recorded in both:
        recorded.severity = Severity.PASS
    gate.reset()
    assert gate.latched.severity is Severity.ESTOP
    assert gate.judge(np.zeros(2), REST, PERIOD_S).report.disposition is Severity.ESTOP


def test_latched_gate_also_reports_a_malformed_action(gate):
    gate.latch(STOP)
    assert codes(gate.judge(None, REST, PERIOD_S)) == ["latch.stop", "form.type"]


def test_limiter_bug_is_caught_before_publication(gate, monkeypatch):
    """Replace a part of the gate to simulate a bug in it."""
    monkeypatch.setattr(limiter, "limit_joints", lambda *_: ([1.0, 1.0], [20.0, 20.0], {}))
    approved = gate.judge([0.1, 0.1], REST, PERIOD_S)
    assert codes(approved) == ["fault.internal"]
    assert approved.report.disposition is Severity.STOP
    assert approved.values.tolist() == [0.0, 0.0]
    assert gate.latched.code == "fault.internal"


def test_nothing_is_approved_when_braking_fails(gate, monkeypatch):
    monkeypatch.setattr(limiter, "brake_velocity", lambda *_: 50.0)
    with pytest.raises(InternalFaultError, match="nothing is published"):
        gate.brake(REST, PERIOD_S, HOLD)


def test_passing_action_is_unchanged_without_findings(gate):
    report = gate.judge([0.1, -0.1], REST, PERIOD_S).report
    assert report.findings == ()
    assert not report.intervened
    assert report.applied.tolist() == report.requested.tolist() == [0.1, -0.1]
    assert report.guaranteed == {
        "position": True,
        "velocity": True,
        "acceleration": True,
        "jerk": False,
        "workspace": False,
    }


def test_severity_and_code_are_of_the_most_severe_finding_per_gate(gate):
    for _ in range(3):
        report = gate.judge(None, REST, PERIOD_S).report
    severity, code = gate_arrays(report.findings)
    form = GATES.index("form")
    assert (severity[form], code[form]) == (Severity.STOP, CODES["form.repeated"])
    assert severity.sum() == Severity.STOP
    assert (severity.dtype, code.dtype) == (np.int8, np.int16)


def test_every_gate_and_code_has_a_place_in_the_report():
    assert len(set(GATES)) == len(GATES)
    assert len(set(CODES.values())) == len(CODES)
    assert max(CODES.values()) <= np.iinfo(np.int16).max
