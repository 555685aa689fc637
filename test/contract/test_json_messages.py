"""Each parser of JSON returns a valid value, or a one-line error with topic, field and value."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Literal, TypedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_env.contract.json_messages import MAX_BYTES, MAX_DEPTH, RegularArray, read_message
from embodied_env.contract.typed_values import check_value
from embodied_env.core.code_types import Severity
from embodied_env.core.types import Finding
from embodied_env.ros.wire.simulator_protocol import ResetReply, SimulatorFault
from embodied_env.safety.findings import gate_arrays
from embodied_env.safety.relay.relay_protocol import Armed, CommandId, RelayReport, RelayState

REPORT = RelayReport(
    tag=CommandId(epoch=1, seq=2),
    cause="command",
    published=True,
    disposition=Severity.LIMIT,
    findings=(Finding(gate="joint_limits", severity=Severity.LIMIT, code="acc.limit", joints=("j1",)),),
    dt_s=0.05,
    guaranteed={"position": True},
    joints=("j1",),
    applied=np.zeros(1),
    applied_si=np.zeros(1),
    velocity_si=np.zeros(1),
    number=1,
    published_ns=1,
    setpoints=None,
    grippers={},
)
STATE = RelayState(state="armed", epoch=1, braking=False, latched="", detail="", fingerprint="", limits="", inputs={})
MESSAGES = {
    "relay/report": REPORT,
    "relay/state": STATE,
    "relay/arm": Armed(epoch=1, fingerprint="f", limits="l", outside=("j1",)),
    "simulator/fault": SimulatorFault(epoch=1, why="sim_unstable", detail=""),
    "simulator/reset": ResetReply(epoch=1, stamp_ns=2, sampled={"a": [1.0]}, fingerprint="f", details={"a": "b"}),
}
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["nan", "inf", "x" * 100, 2**63, -1, 10**30, "\x1b[2J"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def check_entry(topic, text):
    """Parse the text, and check that a value can be used and written, and that an error is one line with the topic."""
    kind, problem = type(MESSAGES[topic]), ""
    try:
        message: Any = kind.from_text(text)
    except ValueError as error:
        problem = str(error)
    if problem:
        assert problem.startswith(topic)
        assert "\n" not in problem
        assert len(problem) < 600
        return
    if kind is RelayReport:
        gate_arrays(message.findings)
        assert message.applied.shape == (len(message.joints),)
    json.loads(message.to_text())


@pytest.mark.parametrize("topic", MESSAGES)
@given(data=st.data())
def test_mutated_message_gives_value_or_one_line_error(topic, data):
    plain = json.loads(MESSAGES[topic].to_text())
    if topic == "relay/report":
        finding = plain["findings"][0]
        finding |= data.draw(st.dictionaries(st.sampled_from([*finding, "more"]), values, max_size=2))
    plain |= data.draw(st.dictionaries(st.sampled_from([*plain, "more"]), values, max_size=3))
    for name in data.draw(st.sets(st.sampled_from(sorted(plain)), max_size=1)):
        del plain[name]
    check_entry(topic, json.dumps(plain))


@pytest.mark.parametrize("topic", MESSAGES)
@given(text=st.text(max_size=40) | values.map(json.dumps))
def test_arbitrary_text_gives_value_or_one_line_error(topic, text):
    check_entry(topic, text)


@pytest.mark.parametrize("topic", MESSAGES)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, f"deeper than {MAX_DEPTH}"),
        ('{"detail": "' + "x" * MAX_BYTES + '"}', f"at most {MAX_BYTES}"),
        ("[]", r"\[\] \(expected a mapping"),
    ],
    ids=["deep", "large", "list"],
)
def test_out_of_bounds_text_is_rejected_at_every_entry_point(topic, text, reason):
    with pytest.raises(ValueError, match=f"^{topic}: .*{reason}"):
        type(MESSAGES[topic]).from_text(text)


@pytest.mark.parametrize(
    ("topic", "changes", "named"),
    [
        ("relay/report", {"guaranteed": []}, r"guaranteed: \[\]"),
        ("relay/report", {"findings": [{**json.loads(REPORT.to_text())["findings"][0], "gate": "x"}]}, 'gate: "x"'),
        ("relay/report", {"findings": [{**json.loads(REPORT.to_text())["findings"][0], "code": "x"}]}, 'code: "x"'),
        ("relay/report", {"disposition": 9}, "disposition: 9"),
        ("relay/report", {"applied_si": ["nan"]}, "applied_si"),
        ("relay/report", {"applied_si": [1e300]}, "applied_si"),
        ("relay/report", {"applied": [0.0, 0.0]}, "applied: 2 values"),
        ("relay/report", {"tag": "1/2/3"}, "tag: .*'1/2/3'"),
        ("relay/state", {"state": "asleep"}, 'state: "asleep"'),
        ("relay/state", {"inputs": {"button": 1}}, "inputs"),
        ("relay/state", {"epoch": 1.5}, "epoch: 1.5"),
        ("relay/arm", {"outside": "j1"}, 'outside: "j1"'),
        ("simulator/fault", {"why": "a b\n"}, "why"),
        ("simulator/fault", {"epoch": True}, "epoch: true"),
        ("simulator/reset", {"sampled": {"a": [[1.0], 2.0]}}, "sampled"),
        ("simulator/reset", {"stamp_ns": 2**63}, "stamp_ns"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(topic, changes, named):
    with pytest.raises(ValueError, match=f"^{topic}: .*{named}.*expected"):
        type(MESSAGES[topic]).from_text(json.dumps({**json.loads(MESSAGES[topic].to_text()), **changes}))


@pytest.mark.parametrize("topic", MESSAGES)
def test_a_message_without_one_of_its_keys_is_rejected(topic):
    plain = json.loads(MESSAGES[topic].to_text())
    for name in plain:
        with pytest.raises(ValueError, match=f"^{topic}: {name}: missing key"):
            type(MESSAGES[topic]).from_text(json.dumps({key: plain[key] for key in plain if key != name}))


@pytest.mark.parametrize("name", ["[key]", "\0", "\x000", "", "a.b"])
def test_a_key_of_any_text_is_unknown(name):
    with pytest.raises(ValueError, match=r"^relay/state: .*unknown key"):
        RelayState.from_text(json.dumps({**json.loads(STATE.to_text()), name: 1}))


class OneArray(TypedDict):
    b: RegularArray


@given(values)
def test_only_regular_arrays_are_arrays(value):
    with contextlib.suppress(ValueError):
        assert check_value({"b": value}, "a", OneArray)["b"].dtype == np.float64


@pytest.mark.parametrize("value", [0, 0.0, True])
def test_no_number_equal_to_false_is_the_literal_false(value):
    assert check_value(False, "a", Literal[False]) is False
    with pytest.raises(ValueError, match=f"a: {json.dumps(value)} "):
        check_value(value, "a", Literal[False])


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match="a: b: missing key"):
        read_message("{}", "a", OneArray)
    with pytest.raises(ValueError, match=r"a: 3 \(expected a mapping\)"):
        check_value(3, "a", OneArray)
