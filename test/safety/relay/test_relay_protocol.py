"""Messages between environment and relay round-trip, and anything else is rejected."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from safety_strategies import contract_of, joint_limits, plain_contract

import embodied_env
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Severity
from embodied_env.core.types import Finding
from embodied_env.safety.relay.relay_protocol import (
    STOP,
    Armed,
    CommandId,
    JointFields,
    MalformedCommandError,
    RelayReport,
    RelayState,
    check_relayed,
    limits_fingerprint,
    read_command,
    write_command,
)

BY_POSITION = ActionLayout(plain_contract())
BY_VELOCITY = ActionLayout(contract_of(joint_limits(), joint_limits(), command="velocity"))
TAG = CommandId(epoch=1_700_000_000_000_000, seq=12)
NAN = math.nan


def fields(names=("j0", "j1"), positions=(0.5, -0.25), velocities=(), frame_id="7/1"):
    return JointFields(frame_id=frame_id, names=names, positions=positions, velocities=velocities)


@pytest.mark.parametrize("tag", [TAG, CommandId(epoch=0, seq=0), CommandId(epoch=2**63 - 1, seq=3, tick=9)])
def test_tag_round_trips(tag):
    assert CommandId.from_text(tag.to_text()) == tag


@pytest.mark.parametrize(
    "text", ["", "1", "1/", "/1", "1/2/3", "-1/2", "1/2+", " 1/2", "1/2\n", "1e3/2", "٣/1", "1/" + "9" * 20]
)
def test_invalid_tag_is_rejected(text):
    with pytest.raises(ValueError, match="invalid tag"):
        CommandId.from_text(text)


def test_tags_are_ordered_by_epoch_then_number_then_tick():
    assert (
        CommandId(epoch=1, seq=9, tick=9)
        < CommandId(epoch=2, seq=1)
        < CommandId(epoch=2, seq=1, tick=1)
        < CommandId(epoch=2, seq=2)
    )


@pytest.mark.parametrize("layout", [BY_POSITION, BY_VELOCITY], ids=["position", "velocity"])
def test_command_round_trips_bit_for_bit(layout):
    values = np.array([0.1 + 0.2, -5e-324])
    command = read_command(write_command(TAG, values, layout, stamp_ns=5), layout)
    assert (command.tag, command.target.tobytes(), command.stamp_ns) == (TAG, values.tobytes(), 5)


def test_position_command_has_no_velocities_and_vice_versa():
    assert write_command(TAG, np.zeros(2), BY_POSITION).velocities == ()
    assert write_command(TAG, np.zeros(2), BY_VELOCITY).positions == ()


@pytest.mark.parametrize(
    ("severity", "names", "read"),
    [
        (Severity.HOLD, (), Severity.HOLD),
        (Severity.STOP, (STOP,), Severity.STOP),
        (Severity.ESTOP, (STOP,), Severity.STOP),
    ],
)
def test_command_without_values_requests_braking(severity, names, read):
    found = write_command(TAG, severity, BY_POSITION)
    assert found.names == names
    assert read_command(found, BY_POSITION).target is read


def test_joints_are_read_by_name_in_any_order():
    command = read_command(fields(names=("j1", "j0"), positions=(1.0, 2.0)), BY_POSITION)
    assert command.target.tolist() == [2.0, 1.0]


def test_nan_marks_a_missing_value():
    command = read_command(fields(velocities=(NAN, NAN)), BY_POSITION)
    assert command.target.tolist() == [0.5, -0.25]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (fields(frame_id=""), "form.type"),
        (fields(frame_id="7/1+1"), "form.type"),
        (fields(names=("j0",), positions=(0.0,)), "form.shape"),
        (fields(names=("j0", "j0")), "form.shape"),
        (fields(names=("j0", "j2")), "form.shape"),
        (fields(names=("j0", "j1", "j2"), positions=(0.0, 0.0, 0.0)), "form.shape"),
        (fields(positions=(0.0,)), "form.shape"),
        (fields(names=()), "form.shape"),
        (fields(velocities=(0.0, NAN)), "form.shape"),
        (fields(velocities=(math.inf, NAN)), "form.shape"),
        (fields(positions=()), "form.nan"),
        (fields(positions=(0.0, NAN)), "form.nan"),
        (fields(positions=(0.0, math.inf)), "form.nan"),
        (fields(positions=(-math.inf, 0.0)), "form.nan"),
    ],
)
def test_command_needs_one_finite_value_per_joint(found, code):
    with pytest.raises(MalformedCommandError) as caught:
        read_command(found, BY_POSITION)
    assert caught.value.finding_code == code


def test_positions_for_joints_commanded_by_velocity_are_malformed():
    with pytest.raises(MalformedCommandError, match="j0 has the position"):
        read_command(fields(), BY_VELOCITY)


def test_message_fields_round_trip():
    message = SimpleNamespace(header=SimpleNamespace(stamp=SimpleNamespace(sec=0, nanosec=0), frame_id=""))
    found = dataclasses.replace(fields(velocities=(1.0, 2.0)), stamp_ns=1_700_000_000_123_456_789)
    assert JointFields.of(found.fill(message)) == found


def report(**changes):
    finding = Finding(
        gate="joint_limits",
        severity=Severity.LIMIT,
        code="vel.limit",
        joints=("j0",),
        before=np.array([math.inf]),
        after=np.array([0.1 + 0.2]),
        limit=np.array([NAN]),
        detail="why",
    )
    known = {
        "tag": TAG,
        "cause": "command",
        "published": True,
        "disposition": Severity.LIMIT,
        "findings": (finding,),
        "dt_s": 0.05,
        "guaranteed": {"position": True, "jerk": False},
        "joints": ("j0", "j1"),
        "applied": np.array([0.5, -1.0]),
        "applied_si": np.array([0.1, 1 / 3]),
        "velocity_si": np.array([-0.0, 5e-324]),
        "number": 4,
        "published_ns": 17,
        "setpoints": {"rate_hz": 200.0, "sent": 10, "worst_gap_s": 1 / 3},
        "grippers": {"gripper": {"goal": 0.5, "state": "sent", "goals_sent": 1}},
    }
    return RelayReport(**{**known, **changes})


def test_report_round_trips_bit_for_bit_in_strict_json():
    found = report()
    json.loads(found.to_text(), parse_constant=pytest.fail)
    back = RelayReport.from_text(found.to_text())
    assert back.to_text() == found.to_text()
    assert back.velocity_si.tobytes() == found.velocity_si.tobytes()
    for name in ("tag", "disposition", "guaranteed", "joints"):
        assert getattr(back, name) == getattr(found, name)
    (finding,) = back.findings
    assert (finding.before.tolist(), finding.margin, finding.severity) == ([math.inf], None, Severity.LIMIT)
    assert RelayReport.from_text(report(tag=None).to_text()).tag is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "3", '{"tag": 5}', '{"tag": "x"}'])
@pytest.mark.parametrize("kind", [Armed, RelayReport, RelayState])
def test_foreign_text_is_a_value_error(kind, text):
    with pytest.raises(ValueError):
        kind.from_text(text)


def test_report_with_an_unknown_key_is_rejected():
    plain = {**json.loads(report().to_text()), "more": 1}
    with pytest.raises(ValueError, match="relay/report: more: unknown key 'more'"):
        RelayReport.from_text(json.dumps(plain))


@pytest.mark.parametrize(
    ("name", "account"),
    [
        ("setpoints", {"rate_hz": 200.0, "sent": 10}),
        ("setpoints", {"rate_hz": 200.0, "sent": -1, "worst_gap_s": 0.0}),
        ("setpoints", []),
        ("grippers", {"gripper": {"goal": 0.5, "state": "open", "goals_sent": 1}}),
    ],
)
def test_a_report_with_another_account_is_rejected(name, account):
    with pytest.raises(ValueError, match=f"relay/report: {name}"):
        RelayReport.from_text(json.dumps({**json.loads(report().to_text()), name: account}))


def test_any_change_of_the_limits_changes_their_fingerprint():
    prints = {
        limits_fingerprint(ActionLayout(contract_of(limits, command=command)))
        for command in ("position", "velocity")
        for limits in (
            joint_limits(),
            dataclasses.replace(joint_limits(), velocity=0.5),
            dataclasses.replace(joint_limits(), position=(-2.0, 2.5)),
        )
    }
    assert len(prints) == 6


@pytest.mark.parametrize("name", ["arm_reach", "cart_goal", "door_open"])
def test_every_shipped_contract_can_be_relayed_and_commanded(name):
    contract = embodied_env.load_contract(name)
    check_relayed(contract)
    layout = ActionLayout(contract)
    values = np.linspace(-0.1, 0.1, layout.size)
    assert read_command(write_command(TAG, values, layout), layout).target.tolist() == values.tolist()
