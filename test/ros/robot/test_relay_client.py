"""Each report of a relay, and its silence, has its result in a client over a channel in one process."""

import json
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import examples

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Severity
from embodied_env.core.types import Finding
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.ros.robot.relay_client import RelayClient
from embodied_env.safety.relay.relay_protocol import (
    Armed,
    CommandId,
    JointFields,
    RelayReport,
    RelayState,
    limits_fingerprint,
)
from embodied_env.testing import approve
from embodied_env.timing.clock import NS_PER_S, ManualClock

ARM = embodied_env.load_contract("arm_reach")
LAYOUT = ActionLayout(ARM)
LIMITED = Finding(gate="joint_limits", severity=Severity.LIMIT, code="acc.limit", joints=("j1",))
START = np.full(6, 0.2)  # where the relay starts
MOST_SILENT = ARM.safety.watchdog.stop_steps


class Channel:
    """The node and the listener of a client, whose relay answers a command while the client waits for its report."""

    def __init__(self, relay):
        self.relay, self.node = relay, self
        self.condition = threading.Condition()
        self.clock = ManualClock(start_ns=1_000 * NS_PER_S)
        self.publishers = ["client"]
        self._take, self._pending = {}, []

    def subscribe(self, key, kind, topic, qos, take):
        self._take[topic] = take

    def deliver(self, topic, text):
        self._take[topic](SimpleNamespace(message=SimpleNamespace(data=text), arrival_ns=self.clock.now_ns()))

    def raise_if_failed(self):
        """Nothing fails here."""

    def wait_until(self, is_done, deadline_ns):
        self.clock.advance_ns(1)
        for message in self._pending:
            if (text := self.relay.take(JointFields.of(message))) is not None:
                self.deliver("relay/report", text)
        self._pending.clear()
        if not is_done():
            self.clock.sleep_until_ns(deadline_ns)
        return bool(is_done())

    # the node

    def create_publisher(self, kind, topic, qos):
        return SimpleNamespace(publish=self._pending.append, topic_name=f"/{topic}")

    def create_client(self, kind, name):
        def answer(_request):
            answer = self.relay.arm(self.clock.now_ns())
            return SimpleNamespace(add_done_callback=lambda call: call(None), done=lambda: True, result=lambda: answer)

        return SimpleNamespace(service_is_ready=lambda: True, call_async=answer, srv_type=kind)

    def resolve_service_name(self, name):
        return f"/{name}"

    def get_fully_qualified_name(self):
        return "/client"

    def get_publishers_info_by_topic(self, topic):
        return [SimpleNamespace(node_namespace="/", node_name=name) for name in self.publishers]

    def get_logger(self):
        return SimpleNamespace(info=lambda *_, **__: None)


class FakeRelay:
    """A relay that arms, and responds to commands as configured, where None is no response."""

    def __init__(self):
        self.armed: dict = dict(fingerprint=ARM.fingerprint, limits=limits_fingerprint(LAYOUT), outside=())
        self.refusal_of_arming, self.arms_from_ns, self.message = "", 0, ""
        self.begins, self.commands, self.armings = START, [], 0
        self.answer = self.report
        channel: Any = Channel(self)
        self.channel, self.client = channel, RelayClient(ARM, channel, channel.clock)

    def arm(self, now_ns):
        self.armings += 1
        if self.refusal_of_arming and now_ns < self.arms_from_ns:
            return SimpleNamespace(success=False, message=self.refusal_of_arming)
        text = self.message or Armed(epoch=self.armings, **self.armed).to_text()
        return SimpleNamespace(success=True, message=text)

    def take(self, fields):
        if CommandId.from_text(fields.frame_id).seq == 0:
            return self.refusal(fields, "act.dup").to_text()
        self.commands.append(fields)
        found = self.answer(fields)
        return found if found is None or isinstance(found, str) else found.to_text()

    def report(self, fields, **changes):
        """Return the report of a command published unchanged, or of a brake request at rest."""
        values = np.array(fields.positions) if fields.names else self.begins
        plain = dict(
            tag=CommandId.from_text(fields.frame_id),
            cause="command" if fields.names else "brake",
            published=True,
            disposition=Severity.PASS,
            findings=(),
            dt_s=ARM.control_period_s,
            guaranteed={"position": True},
            joints=LAYOUT.joints,
            applied=np.zeros(6),
            applied_si=values,
            velocity_si=np.zeros(6),
            number=1,
            published_ns=0,
            setpoints=None,
            grippers={},
        )
        return RelayReport(**{**plain, **changes})

    def refusal(self, fields, code, severity=Severity.HOLD):
        findings = (Finding(gate="action_age", severity=severity, code=code, detail="no"),)
        report = self.report(fields, findings=findings, disposition=severity, published=False)
        return replace(report, applied_si=self.begins, guaranteed={}, dt_s=0.0, number=0)

    def arm_client(self, within_s=30.0, measured=START):
        self.client.arm(self.channel.clock.now_ns() + round(within_s * NS_PER_S), lambda: measured)


@pytest.fixture
def fake():
    return FakeRelay()


def altered(fake, fields, **changes):
    return json.dumps({**json.loads(fake.report(fields).to_text()), **changes})


INVALID = [
    (lambda _fake, _fields: "no report", "Expecting value"),
    (lambda _fake, _fields: "[" * 100_000, "nested deeper"),
    (lambda _fake, _fields: '"' + "x" * 300_000 + '"', "at most 262144"),
    (lambda fake, fields: altered(fake, fields, guaranteed=[]), r"guaranteed: \[\]"),
    (lambda fake, fields: altered(fake, fields, findings=[{"gate": "nope"}]), r'findings\[0\].gate: "nope"'),
    (lambda fake, fields: fake.report(fields, joints=("another",) * 6), r"joints: \['another'"),
    (lambda fake, fields: fake.report(fields, applied_si=np.zeros(2)), "applied_si: 2 values"),
    (lambda fake, fields: fake.report(fields, applied_si=np.full(6, np.nan)), r'applied_si\[0\]: "nan"'),
]
ANSWERS = {
    "applied": lambda fake, fields: fake.report(fields),
    "limited": lambda fake, fields: fake.report(
        fields, findings=(LIMITED,), applied=np.full(6, 0.02), applied_si=np.full(6, 0.004)
    ),
    "stopped": lambda fake, fields: fake.refusal(fields, "latch.stop", Severity.STOP),
    "contended": lambda fake, fields: fake.refusal(fields, "act.dup"),
    "taken": lambda fake, fields: fake.refusal(fields, "act.epoch"),
    "silent": lambda _fake, _fields: None,
    "of another command": lambda fake, fields: fake.report(fields, tag=CommandId(epoch=1, seq=99)),
}
WITH_FINDINGS = {
    "limited": [("acc.limit", Severity.LIMIT)],
    "stopped": [("latch.stop", Severity.STOP)],
    "contended": [("robot.contention", Severity.STOP), ("act.dup", Severity.HOLD)],
}


@examples(80)
@given(
    answers=st.lists(st.sampled_from([*ANSWERS, *["silent"] * 4]), min_size=1, max_size=30), brakes=st.integers(0, 9)
)
def test_each_command_has_the_result_of_its_report_and_silence_is_a_hold_until_the_robot_is_lost(answers, brakes):
    fake = FakeRelay()
    fake.arm_client()
    client, silent, in_force = fake.client, 0, START
    for k, name in enumerate(answers):
        asked = approve(ARM, np.full(6, np.nan if k == brakes else 0.1 + 0.001 * k))
        is_braking = asked.report.disposition >= Severity.HOLD
        fake.answer, sent_before = partial(ANSWERS[name], fake), len(fake.commands)
        silent = silent + 1 if name in ("silent", "of another command") else 0
        if name == "taken" or silent == MOST_SILENT:
            with pytest.raises(BackendLostError, match="relay_silent" if silent else "relay_taken"):
                client.send(asked)
            return
        sent = client.send(asked)
        report = sent.report
        found = [(finding.code, finding.severity) for finding in report.findings]
        command = fake.commands[sent_before]
        assert command.frame_id.startswith("1/")
        assert (command.names == ()) == is_braking
        if name == "of another command":
            in_force = np.array(command.positions) if command.names else START
        if silent:
            assert found == [("relay.silent", Severity.HOLD)]
            fake.channel.wait_until(lambda: True, 0)  # the request to brake that withdraws it arrives
            withdrawn = [each.names == () for each in fake.commands[sent_before:]]
            assert withdrawn == [True] if is_braking else [False, True]
            assert client.take_evidence() is None
        else:
            is_applied = name in ("applied", "limited")
            in_force = {"applied": asked.values, "limited": np.full(6, 0.004)}.get(name, START)
            in_force = START if name == "applied" and is_braking else in_force
            assert found == WITH_FINDINGS.get(name, [])
            assert report.guaranteed == dict.fromkeys(asked.report.guaranteed, False) | (
                {"position": True} if is_applied else {}
            )
            evidence = client.take_evidence()
            assert (evidence is not None) == is_applied
            if evidence is not None:
                assert (evidence.seq, evidence.method) == (asked.seq, "echo")
                assert sent.published_ns <= evidence.acted_ns
                assert client.take_evidence() is None
        np.testing.assert_array_equal(sent.values, in_force)
        in_force = START if name == "of another command" else in_force  # as reported on its withdrawal
        if name == "applied" and not is_braking:  # bit-identical, although not reported as such
            np.testing.assert_array_equal(report.applied, asked.report.applied)
        elif name == "limited":
            np.testing.assert_array_equal(report.applied, np.full(6, 0.02))
        assert report.disposition == max((severity for _, severity in found), default=Severity.PASS)
        assert report.intervened == (report.disposition >= Severity.LIMIT)


@pytest.mark.parametrize(
    ("answer", "named"),
    INVALID,
    ids=["text", "deep", "large", "type", "finding", "of another robot", "of another size", "not finite"],
)
def test_an_invalid_report_loses_the_robot_until_it_is_armed_again(fake, answer, named):
    fake.arm_client()
    fake.answer = lambda fields: answer(fake, fields)
    with pytest.raises(BackendLostError, match=f"invalid_message: relay/report: .*{named}"):
        fake.client.send(approve(ARM, START))
    fake.answer = fake.report
    with pytest.raises(BackendLostError, match="invalid_message"):
        fake.client.send(approve(ARM, START))
    fake.channel.wait_until(lambda: True, 0)
    assert [fields.names == () for fields in fake.commands] == [False, True, True]  # only braking is requested
    fake.arm_client()
    assert fake.client.send(approve(ARM, START)).report.disposition == Severity.PASS


def test_a_sequence_number_used_by_another_publisher_is_contention_with_its_name(fake):
    fake.arm_client()
    fake.channel.publishers.append("other")
    fake.answer = lambda fields: fake.refusal(fields, "act.dup")
    detail = fake.client.send(approve(ARM, START)).report.findings[0].detail
    assert detail.startswith("/relay/command is also published by /other (")


def test_an_unapproved_command_is_not_sent(fake):
    with pytest.raises(TypeError, match="Approved"):
        fake.client.send(np.zeros(6))


@pytest.mark.parametrize("key", ["fingerprint", "limits"])
def test_a_relay_with_another_fingerprint_is_rejected(fake, key):
    fake.armed[key] = "0" * 64
    with pytest.raises(BackendNotReadyError, match=r"has fingerprint 000000000000 \(expected"):
        fake.arm_client()


def test_a_relay_that_starts_at_another_position_is_rejected(fake):
    with pytest.raises(BackendNotReadyError, match=r"it starts with j1 at 0\.2 \(expected the measured 1, within"):
        fake.arm_client(within_s=0.5, measured=np.ones(6))
    assert fake.armings > 1


@pytest.mark.parametrize(
    ("refusal", "publishers", "until_s", "is_armed"),
    [
        ("the robot is in motion", 1, 4.0, True),
        ("the robot is in motion", 1, 8.0, False),
        ("robot.contention: 2 publishers", 1, 8.0, True),
        ("robot.contention: 2 publishers", 2, 8.0, False),
    ],
)
def test_arming_waits_for_a_robot_in_motion_and_longer_for_the_lease_of_a_killed_client(
    fake, refusal, publishers, until_s, is_armed
):
    fake.refusal_of_arming = refusal
    fake.arms_from_ns = fake.channel.clock.now_ns() + round(until_s * NS_PER_S)
    fake.channel.publishers = ["client", "other"][:publishers]
    if is_armed:
        fake.arm_client(within_s=100.0)
    else:
        with pytest.raises(BackendNotReadyError, match=f"could not be armed: {refusal}"):
            fake.arm_client(within_s=100.0)


def test_an_invalid_arm_response_is_rejected(fake):
    fake.message = "armed and ready"
    with pytest.raises(BackendNotReadyError, match=r"invalid response of /.*relay/arm"):
        fake.arm_client()


@pytest.mark.parametrize(
    ("state", "expected"), [(None, "unknown"), ("armed", "ok"), ("stopped", "ok"), ("estop", "active")]
)
def test_the_state_of_the_relay_is_a_safety_input(fake, state, expected):
    if state is not None:
        message = RelayState(
            state=state, epoch=1, braking=False, latched="", detail="", fingerprint="", limits="", inputs={}
        )
        fake.channel.deliver("relay/state", message.to_text())
    assert fake.client.estop().status == expected
