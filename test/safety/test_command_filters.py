"""Command filters, workspace and plugins grant a share of the command, and faulty ones are handled."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scripted_tasks
from distributions import install
from scripted_tasks import JOINTS, PERIOD_S

from embodied_env.core.code_types import Severity
from embodied_env.core.types import CommandState
from embodied_env.errors import ContractError
from embodied_env.processes.signals import Terminated
from embodied_env.safety.command_filters import FilterDecision, make_command_filters, scale_of
from embodied_env.safety.gate import SafetyGate

HALF = FilterDecision(severity=Severity.LIMIT, share=0.5, detail="near the table")
STATE = {"positions": (0.25, 0.0), "velocities": (0.5, -0.25)}
BRAKED = (0.1, 0.0)  # one step of full braking from there
REQUESTED = (0.7, -0.45)  # the result of full acceleration


def reference() -> CommandState:
    return CommandState(**{key: np.array(values) for key, values in STATE.items()}, seq=0, epoch=0)


class ScriptedFilter:
    """A filter that returns the given decisions and records its proposals."""

    def __init__(self, *decisions):
        self.decisions, self.proposals, self.resets = list(decisions), [], 0

    def reset(self):
        self.resets += 1

    def filter(self, proposal):
        self.proposals.append(proposal)
        decision = self.decisions[(len(self.proposals) - 1) % len(self.decisions)]
        if isinstance(decision, BaseException):
            raise decision
        return decision(proposal) if callable(decision) else decision


def gate_with(*, mode="enforce", **filters) -> SafetyGate:
    plain = scripted_tasks.document()["safety"]
    return SafetyGate(scripted_tasks.contract(safety={**plain, "mode": mode}), filters=filters)


def judge(*, action=(1.0, -1.0), mode="enforce", **filters):
    return gate_with(mode=mode, **filters).judge(list(action), reference(), PERIOD_S)


def findings_of(approved, gate):
    return [finding for finding in approved.report.findings if finding.gate == gate]


def test_a_decision_of_none_passes_the_proposal():
    assert judge(fence=ScriptedFilter(None)).values.tolist() == judge().values.tolist()


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.9])
def test_share_interpolates_between_braking_and_proposal(share):
    approved = judge(fence=ScriptedFilter(FilterDecision(severity=Severity.LIMIT, share=share)))
    part = np.array(BRAKED) + share * (np.array(REQUESTED) - np.array(BRAKED))
    assert approved.report.velocity_si.tolist() == pytest.approx(part.tolist())
    assert approved.values.tolist() == pytest.approx((reference().positions + part * PERIOD_S).tolist())
    assert approved.report.disposition is Severity.LIMIT


def test_finding_names_the_filter_reason_and_share():
    (finding,) = findings_of(judge(fence=ScriptedFilter(HALF)), "plugins")
    assert (finding.code, finding.severity, finding.joints) == ("gate.plugin", Severity.LIMIT, JOINTS)
    assert "fence" in finding.detail
    assert "near the table" in finding.detail
    assert finding.before.tolist() == judge().values.tolist()
    assert finding.after.tolist() == judge(fence=ScriptedFilter(HALF)).values.tolist()


def test_workspace_filter_has_its_own_gate_and_code():
    (finding,) = findings_of(judge(workspace=ScriptedFilter(HALF)), "workspace")
    assert finding.code == "ws.keepout"
    assert findings_of(judge(workspace=ScriptedFilter(HALF)), "plugins") == []


class KeepsWorkspace(ScriptedFilter):
    is_kept = True


def test_workspace_is_guaranteed_only_by_a_workspace_filter_that_keeps_it():
    assert judge(workspace=KeepsWorkspace(None)).report.guaranteed["workspace"]
    assert not judge(workspace=ScriptedFilter(None)).report.guaranteed["workspace"]
    assert not judge(fence=KeepsWorkspace(None)).report.guaranteed["workspace"]


def test_each_filter_receives_the_result_of_the_previous_one():
    first, second = ScriptedFilter(HALF), ScriptedFilter(HALF)
    approved = judge(first=first, second=second)
    quarter = np.array(BRAKED) + 0.25 * (np.array(REQUESTED) - np.array(BRAKED))
    assert approved.report.velocity_si.tolist() == pytest.approx(quarter.tolist())
    assert first.proposals[0].velocities.tolist() == pytest.approx(list(REQUESTED))
    assert second.proposals[0].velocities.tolist() == pytest.approx(((np.array(BRAKED) + REQUESTED) / 2).tolist())


def test_filter_receives_the_command_after_the_joint_limits():
    fence = ScriptedFilter(None)
    judge(fence=fence)
    (proposal,) = fence.proposals
    assert proposal.joints == JOINTS
    assert proposal.velocities.tolist() == pytest.approx(list(REQUESTED))
    assert proposal.braking.tolist() == pytest.approx(list(BRAKED))
    assert (proposal.positions.tolist(), proposal.previous.tolist()) == ([0.25, 0.0], [0.5, -0.25])
    assert proposal.dt_s == PERIOD_S


def test_scaled_velocity_is_published_as_a_velocity():
    contract = scripted_tasks.contract(actuators__arm__command="velocity")
    gate = SafetyGate(contract, filters={"fence": ScriptedFilter(HALF)})
    approved = gate.judge([1.0, -1.0], reference(), PERIOD_S)
    assert approved.values.tolist() == pytest.approx(((np.array(BRAKED) + REQUESTED) / 2).tolist())


def test_passing_decision_changes_and_reports_nothing():
    approved = judge(action=(0.3, -0.1), fence=ScriptedFilter(FilterDecision(severity=Severity.PASS, share=0.3)))
    assert approved.values.tobytes() == judge(action=(0.3, -0.1)).values.tobytes()
    assert findings_of(approved, "plugins") == []


NONSENSE = [0.0, -0.0, -1e-9, -1.0, 1.0, math.nextafter(1.0, 2.0), 2.0, math.nan, math.inf, -math.inf, "all", None]


@pytest.mark.parametrize("share", NONSENSE, ids=repr)
def test_limit_with_any_other_share_brakes(share):
    decision = FilterDecision(severity=Severity.LIMIT, share=share)
    assert scale_of(decision) == 0.0
    approved = judge(fence=ScriptedFilter(decision))
    assert approved.report.velocity_si.tolist() == pytest.approx(list(BRAKED))
    assert approved.report.disposition is Severity.HOLD


@pytest.mark.parametrize("severity", [Severity.HOLD, Severity.STOP, Severity.ESTOP])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_refusing_filter_brakes_at_any_share(severity, share):
    approved = judge(fence=ScriptedFilter(FilterDecision(severity=severity, share=share)))
    assert approved.report.velocity_si.tolist() == pytest.approx(list(BRAKED))
    assert approved.report.disposition is severity


@pytest.mark.parametrize("severity", [Severity.STOP, Severity.ESTOP])
def test_plugin_stop_is_latched(severity):
    gate = gate_with(fence=ScriptedFilter(FilterDecision(severity=severity), None))
    gate.judge([1.0, 1.0], reference(), PERIOD_S)
    assert (gate.latched.severity, gate.latched.code) == (severity, "gate.plugin")
    assert gate.judge([1.0, 1.0], reference(), PERIOD_S).report.disposition is severity


def test_plugin_hold_ends_when_the_plugin_passes():
    gate = gate_with(fence=ScriptedFilter(FilterDecision(severity=Severity.HOLD), None))
    gate.judge([0.0, 0.0], reference(), PERIOD_S)
    assert gate.latched is None
    assert gate.judge([1.0, 1.0], reference(), PERIOD_S).report.disposition is Severity.LIMIT  # of acceleration


def test_most_severe_decision_wins():
    stop, half = ScriptedFilter(FilterDecision(severity=Severity.STOP)), ScriptedFilter(HALF)
    for filters in ({"a": stop, "b": half}, {"a": half, "b": stop}):
        approved = judge(**filters)
        assert approved.report.disposition is Severity.STOP
        assert approved.report.velocity_si.tolist() == pytest.approx(list(BRAKED))


class MuteError(Exception):
    def __str__(self):
        raise ValueError("not even this")


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), ZeroDivisionError(), MuteError()], ids=lambda e: type(e).__name__
)
def test_raising_filter_stops_the_robot_but_not_the_program(error):
    gate = gate_with(fence=ScriptedFilter(error))
    approved = gate.judge([1.0, -1.0], reference(), PERIOD_S)
    assert approved.report.velocity_si.tolist() == pytest.approx(list(BRAKED))
    assert approved.report.disposition is gate.latched.severity is Severity.STOP
    assert type(error).__name__ in findings_of(approved, "plugins")[0].detail


class MuteText(str):
    __slots__ = ()

    def __str__(self):
        raise ValueError("not even this")

    __format__ = __str__


class Mute:
    __str__ = __repr__ = __format__ = MuteText.__str__


class Bare(FilterDecision):
    def __init__(self):
        pass


class Broken(FilterDecision):
    severity = property(MuteText.__str__)

    def __init__(self):
        pass


def limit(severity=Severity.LIMIT, **fields):
    return FilterDecision(severity=severity, share=0.5, **fields)


@pytest.mark.parametrize(
    "decision",
    [
        *(1.0, True, "stop", (Severity.LIMIT, 0.5), SimpleNamespace(), object(), Bare(), Broken()),
        *(limit(severity) for severity in (1, 9, -1, None, "LIMIT", math.nan)),
        *(limit(detail=detail) for detail in (Mute(), None, 7, b"text", ["text"])),
        limit(Severity.HOLD, detail=7),
    ],
    ids=itertools.count(),
)
def test_invalid_decision_brakes_and_latches_a_stop(decision):
    gate = gate_with(fence=ScriptedFilter(lambda _: decision))
    approved = gate.judge([1.0, -1.0], reference(), PERIOD_S)
    assert approved.report.velocity_si.tolist() == pytest.approx(list(BRAKED))
    assert (approved.report.disposition, gate.latched.code) == (Severity.STOP, "gate.plugin")
    assert "fence" in findings_of(approved, "plugins")[0].detail


@pytest.mark.parametrize("text", [MuteText("near"), "\ud800", "x" * 10**6], ids=["mute", "surrogate", "long"])
def test_filter_detail_is_printable_and_truncated(text):
    (finding,) = findings_of(
        judge(fence=ScriptedFilter(FilterDecision(severity=Severity.LIMIT, share=0.5, detail=text))), "plugins"
    )
    assert finding.severity is Severity.LIMIT
    assert len(finding.detail.encode()) < 1000


class Unresettable(ScriptedFilter):
    def reset(self):
        raise MuteError


def test_filter_raising_in_reset_stops_the_episode():
    gate = gate_with(fence=Unresettable(None))
    gate.reset()
    assert (gate.latched.severity, gate.latched.code) == (Severity.STOP, "gate.plugin")
    approved = gate.judge([1.0, -1.0], reference(), PERIOD_S)
    assert approved.report.velocity_si.tolist() == pytest.approx(list(BRAKED))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Terminated(143)], ids=lambda e: type(e).__name__)
def test_interrupt_in_a_filter_propagates(error):
    with pytest.raises(type(error)):
        judge(fence=ScriptedFilter(error))


@pytest.mark.parametrize("name", ["positions", "previous", "velocities", "braking"])
def test_filter_that_writes_into_the_proposal_stops(name):
    """The arrays are the arbiter's reference and the values about to be published."""

    def overwrite(proposal):
        getattr(proposal, name)[:] = 99.0

    state = reference()
    gate = gate_with(fence=ScriptedFilter(overwrite))
    approved = gate.judge([1.0, -1.0], state, PERIOD_S)
    assert approved.report.disposition is Severity.STOP
    assert approved.report.velocity_si.tolist() == pytest.approx(list(BRAKED))
    assert (state.positions.tolist(), state.velocities.tolist()) == ([0.25, 0.0], [0.5, -0.25])


def test_filters_are_not_called_for_a_refused_action():
    fence = ScriptedFilter(None)
    judge(action=(math.nan, 0.0), fence=fence)
    assert fence.proposals == []


def test_filters_are_not_called_for_braking():
    """Braking must always be possible, and a filter could only scale towards it."""
    fence, gate = ScriptedFilter(FilterDecision(severity=Severity.STOP)), None
    gate = gate_with(fence=fence)
    gate.latch(judge(fence=ScriptedFilter(FilterDecision(severity=Severity.STOP))).report.findings[-1])
    gate.judge([1.0, 1.0], reference(), PERIOD_S)
    assert fence.proposals == []


def test_reset_is_passed_on_to_filters():
    fence = ScriptedFilter(None)
    gate_with(fence=fence).reset()
    assert fence.resets == 1


def test_filters_apply_to_relayed_commands():
    approved = gate_with(fence=ScriptedFilter(HALF)).limit(np.array([2.0, -2.0]), reference(), PERIOD_S)
    assert approved.report.velocity_si.tolist() == pytest.approx(((np.array(BRAKED) + REQUESTED) / 2).tolist())


def test_stop_of_a_relayed_command_is_latched():
    gate = gate_with(fence=ScriptedFilter(FilterDecision(severity=Severity.STOP)))
    gate.limit(np.array([0.25, 0.0]), reference(), PERIOD_S)
    assert gate.latched.code == "gate.plugin"


MODULE = """
class Slow:
    def __init__(self, contract, share=0.5):
        if not 0 < share < 1:
            raise ValueError(f"share {share}")
        self.contract, self.share = contract, share

    def reset(self):
        pass

    def filter(self, proposal):
        from embodied_env.safety.command_filters import FilterDecision
        from embodied_env.core.code_types import Severity
        return FilterDecision(severity=Severity.LIMIT, share=self.share, detail="slow")


class Still(Slow):
    pass


class Unfinished:
    def __init__(self, contract):
        pass

    def reset(self):
        pass
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    points = {name.lower(): f"a_partys_gates:{name}" for name in ("Slow", "Still", "Unfinished")}
    install(monkeypatch, tmp_path, {"gates": points}, a_partys_gates=MODULE)


def contract_naming(**gates):
    plain = scripted_tasks.document()["safety"]
    return scripted_tasks.contract(safety={**plain, "gates": gates})


@pytest.mark.usefixtures("installed")
def test_plugin_is_created_with_the_contract_and_its_parameters():
    contract = contract_naming(slow={"share": 0.25})
    made: Any = make_command_filters(contract)["slow"]
    assert (made.contract, made.share) == (contract, 0.25)


@pytest.mark.usefixtures("installed")
def test_plugins_are_in_the_order_of_the_contract():
    assert list(make_command_filters(contract_naming(still={}, slow={}))) == ["still", "slow"]
    assert list(make_command_filters(contract_naming(slow={}, still={}))) == ["slow", "still"]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("gates", "message"),
    [
        ({"swift": {}}, "unknown name .swift. .*group embodied_env.gates"),
        ({"slow": {"shape": 1}}, "could not be created"),
        ({"slow": {"share": 7}}, "could not be created.*share 7"),
        ({"unfinished": {}}, "expected an object with the methods reset and filter"),
    ],
)
def test_plugin_that_cannot_be_created_is_a_contract_error(gates, message):
    with pytest.raises(ContractError, match=message) as caught:
        make_command_filters(contract_naming(**gates))
    assert caught.value.path == f"safety.gates.{next(iter(gates))}"
