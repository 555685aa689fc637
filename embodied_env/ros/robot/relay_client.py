"""The outlet to a relay (`safety.relay`): commands go there, and what it says of each is what was applied."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.message_types import message_class
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.codes import Severity
from embodied_env.core.json_messages import INVALID_MESSAGE
from embodied_env.core.types import ActuationEvidence, ApprovedCommand, Finding, GateReport, SentCommand, check_approved
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.ros.qos import RELIABLE
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.receiver import ReceivedMessage
from embodied_env.ros.robot.command_publishers import Trigger
from embodied_env.ros.robot.graph_checks import UNNAMED, publishers_of
from embodied_env.safety.relay.protocol import (
    ARM_SERVICE,
    CLEAR_ESTOP_SERVICE,
    COMMAND_TOPIC,
    REPORT_TOPIC,
    STATE_TOPIC,
    Armed,
    CommandId,
    RelayReport,
    RelayState,
    limits_fingerprint,
    write_command,
)

RELAY_STATE = "relay state"
"""The name of the safety input that says whether an ESTOP is latched in the relay."""

_STRING = "std_msgs/msg/String"
_REPORTS = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
_LATCHED = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)

_ARMING_NS = 5 * NS_PER_S  # what hinders it may pass for so long: a robot in motion, an input not heard yet
_AGAIN_NS = NS_PER_S // 10  # between two attempts, and two probes
_FOREIGN = "act.epoch"
_CONTENDED = frozenset({"act.dup", "robot.contention"})  # a number of ours was used; there are several publishers
_NAMING_NS = NS_PER_S // 2
_GLANCE_NS = NS_PER_S // 100


class RelayClient:
    """Sends to a relay, and waits for its answer. `send` is called by one thread at a time: the arbiter's turn.

    An answer that does not come within a control period is silence. The command is then withdrawn by a request to
    brake, and the account says HOLD (relay.silent) with what was last known to act. Silence at as many commands in a
    row as the watchdog's ``stop_steps`` is a lost robot, and so is a report that is invalid.
    """

    def __init__(self, contract: Contract, node: Node, listener: ReceiveThread, clock: Clock) -> None:
        """Create the publisher and the subscriptions; `listener` has not started yet."""
        self._clock = clock
        self._node = node
        self._listener = listener
        self._layout = ActionLayout(contract)
        self._period_s, self._period_ns = contract.control_period_s, contract.control_period_ns
        self._patience = contract.safety.watchdog.stop_steps
        self._fingerprint = contract.fingerprint
        self._limits = limits_fingerprint(self._layout)
        self._message = message_class("sensor_msgs/msg/JointState")
        self._publisher = node.create_publisher(self._message, COMMAND_TOPIC, RELIABLE)
        self._arming = Trigger(node, ARM_SERVICE, clock)
        self._clearing = node.resolve_service_name(CLEAR_ESTOP_SERVICE)
        self._tag = CommandId(epoch=0, seq=0)  # of our last command
        self._answer: RelayReport | None = None  # to it
        self._published_ns = self._answered_ns = 0  # our last command, and the answer to it, on our steady clock
        self._acted: ActuationEvidence | None = None  # what the relay's last echo is evidence of
        self._last: RelayReport | None = None  # of any command or tick: what acts
        self._state: RelayState | None = None
        self._no_state = ""  # why the newest message on the state topic is none
        self._invalid = ""  # what is wrong with the first invalid report since the relay was armed
        self._silent = 0
        listener.subscribe("relay/report", _STRING, REPORT_TOPIC, _REPORTS, self._take_report)
        listener.subscribe("relay/state", _STRING, STATE_TOPIC, _LATCHED, self._take_state)

    # ------------------------------------------------------------------------- in the listener's thread, under its lock

    def _take_report(self, arrival: ReceivedMessage) -> None:
        try:
            report = RelayReport.from_text(arrival.message.data)
        except ValueError as error:
            self._invalid = self._invalid or str(error)
            return
        if report.joints != self._layout.joints:
            joints = reprlib.repr(list(report.joints))
            self._invalid = f"{REPORT_TOPIC}: field joints: {joints} (expected {list(self._layout.joints)})"
            return
        self._last = report
        if report.tag == self._tag:
            self._answer, self._answered_ns = report, arrival.arrival_ns

    def _take_state(self, arrival: ReceivedMessage) -> None:
        try:
            self._state, self._no_state = RelayState.from_text(arrival.message.data), ""
        except ValueError as error:
            self._state, self._no_state = None, f": {error}"

    def estop(self) -> str:
        """Return the relay as a safety input, under the listener's lock: "active" is an ESTOP latched there."""
        if self._state is None:
            return f"unknown{self._no_state}"
        return "active" if self._state.state == "estop" else "ok"

    # ----------------------------------------------------------------------------------------------- arming

    def arm(self, deadline_ns: int, measure: Callable[[], FloatArray] | None = None) -> None:
        """Begin an epoch of the relay, and make sure that we hear each other. Nothing moves.

        Args:
            deadline_ns: of the wait, on the steady clock.
            measure: tells where the joints are, shape (n_joints,), in contract order, NaN where unknown: the relay must
                begin there. None: it does not matter yet.

        Raises:
            BackendNotReadyError: for a relay that refuses, keeps another contract or other limits, or is not heard.
            BackendLostError: for a report that is invalid.
        """
        self._invalid = ""
        last_ns = min(deadline_ns, self._clock.now_ns() + _ARMING_NS)
        while problem := self._arming_problem(deadline_ns, measure):
            again_ns = self._clock.now_ns() + _AGAIN_NS
            if again_ns > last_ns:
                raise BackendNotReadyError(f"the relay could not be armed: {problem}")
            self._clock.sleep_until_ns(again_ns)
        self._silent = 0

    def _arming_problem(self, deadline_ns: int, measure: Callable[[], FloatArray] | None) -> str:
        """Arm once. Return what may pass, or ""; raise for what will not."""
        response = self._arming.call(deadline_ns, self._listener.raise_if_failed)
        if not response.success:
            with self._listener.condition:
                latched = self.estop() == "active"
            if latched:
                remedy = f"see why, then call {self._clearing} by hand, and clear_estop() of the environment"
                raise BackendNotReadyError(f"the relay could not be armed: {response.message} ({remedy})")
            return str(response.message)
        try:
            armed = Armed.from_text(response.message)
        except ValueError as error:
            raise BackendNotReadyError(f"{self._arming.name} was answered by something else: {error}") from None
        for what, theirs, ours in (
            ("a contract", armed.fingerprint, self._fingerprint),
            ("limits", armed.limits, self._limits),
        ):
            if theirs != ours:
                problem = f"the relay keeps {what} of fingerprint {theirs[:12]}, not {ours[:12]}"
                raise BackendNotReadyError(f"{problem}; start it with this contract")
        begin = self._probe(armed.epoch, deadline_ns)
        return "" if measure is None else self._displaced(begin, measure())

    def _probe(self, epoch: int, deadline_ns: int) -> RelayReport:
        """Ask with the number 0, which a relay always refuses: nothing moves, and the report says where it begins."""
        while True:
            answer = self._ask(CommandId(epoch=epoch, seq=0), None, _AGAIN_NS)
            if answer is not None:
                if answer.published or [finding.code for finding in answer.findings] != ["act.dup"]:
                    said = "; ".join(f"{finding.code}: {finding.detail}" for finding in answer.findings)
                    raise BackendNotReadyError(f"the relay was armed, and then said: {said}")
                return answer
            if self._clock.now_ns() > deadline_ns:
                raise BackendNotReadyError(f"the relay was armed, but says nothing on {REPORT_TOPIC}")

    def _displaced(self, begin: RelayReport, measured: FloatArray) -> str:
        """Return how far from the measured positions the relay begins, or "": it may not have heard of a reset yet."""
        layout = self._layout
        near = layout.limits.velocity * self._period_s
        off = np.abs(begin.applied_si - measured)
        far = ~layout.is_velocity & np.isfinite(measured) & ~(off <= near)
        if not far.any():
            return ""
        i = int(np.argmax(far))
        begins = f"{layout.joints[i]} at {begin.applied_si[i]:.6g}"
        return f"it begins with {begins}, measured {measured[i]:.6g}; allowed: a difference of {near[i]:.6g}"

    # ---------------------------------------------------------------------------------------------- sending

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Send a command, or the wish to brake; return what the relay made of it.

        Raises:
            BackendLostError: when it has been silent for too long, or obeys somebody else, or for an invalid report.
        """
        check_approved(command)
        is_braking = command.report.disposition >= Severity.HOLD
        report = self._ask(self._next(), None if is_braking else command.values, self._period_ns)
        if report is None:
            self._silent += 1
            if not is_braking:
                self._publish(self._next(), None)
            if self._silent >= self._patience:
                raise BackendLostError("relay_silent", f"no answer from the relay to {self._silent} commands in a row")
            return self._unknown(command)
        self._silent = 0
        if report.published:
            self._acted = ActuationEvidence(seq=command.seq, acted_ns=self._answered_ns, method="echo")
        codes = {finding.code for finding in report.findings}
        if _FOREIGN in codes:
            raise BackendLostError("relay_taken", "somebody else has armed the relay since")
        if codes & _CONTENDED:
            report = replace(report, findings=(self._contention(report), *report.findings))
        return self._answered(command, report)

    def _contention(self, report: RelayReport) -> Finding:
        """Return the finding for commands that are not ours, with who sends them: nodes are named after their topics.

        It waits for the names: the relay brakes meanwhile.
        """
        ours = self._node.get_fully_qualified_name()
        last_ns = self._clock.now_ns() + _NAMING_NS
        while True:
            found = [publisher.node for publisher in publishers_of(self._node, COMMAND_TOPIC)]
            others = [name for i, name in enumerate(found) if name != ours or ours in found[:i]]
            again_ns = self._clock.now_ns() + _GLANCE_NS
            if (others and not any(UNNAMED in name for name in others)) or again_ns > last_ns:
                break
            self._clock.sleep_until_ns(again_ns)
        said = "; ".join(finding.detail for finding in report.findings)
        who = ", ".join(others) or "a publisher that has gone"
        detail = f"{who} also publishes {self._publisher.topic_name} (expected this node alone): {said}"
        return Finding(gate="relay", severity=Severity.STOP, code="robot.contention", detail=detail)

    def _next(self) -> CommandId:
        return CommandId(epoch=self._tag.epoch, seq=self._tag.seq + 1)

    def _ask(self, tag: CommandId, values: FloatArray | None, timeout_ns: int) -> RelayReport | None:
        """Send, and return the report of that tag; None: it did not come in time."""
        listener, end_ns = self._listener, self._clock.now_ns() + timeout_ns
        with listener.condition:
            self._check_reports()
            self._publish(tag, values)
            while self._answer is None:
                listener.raise_if_failed()
                self._check_reports()
                if (left_ns := end_ns - self._clock.now_ns()) <= 0:
                    return None
                listener.condition.wait(left_ns / NS_PER_S)
            return self._answer

    def _check_reports(self) -> None:
        """Withdraw the command and raise BackendLostError for an invalid report: what acts is not known any more."""
        if self._invalid:
            self._publish(self._next(), None)
            raise BackendLostError(INVALID_MESSAGE, self._invalid)

    def _publish(self, tag: CommandId, values: FloatArray | None) -> None:
        """Publish a command; None: brake. A report of an earlier one is no answer any more."""
        fields = write_command(tag, values, self._layout, stamp_ns=self._clock.system_ns())
        with self._listener.condition:
            self._tag, self._answer = tag, None
            self._publisher.publish(fields.fill(self._message()))
            self._published_ns = self._clock.now_ns()

    def take_evidence(self) -> ActuationEvidence | None:
        """Return what the newest echo since the last call is evidence of: its arrival is an upper bound."""
        acted, self._acted = self._acted, None
        return acted

    # --------------------------------------------------------------------------------------------- accounts

    def _answered(self, command: ApprovedCommand, report: RelayReport) -> SentCommand:
        """Return what the relay says. A finding without a code only repeats that we asked for braking."""
        findings = tuple(finding for finding in report.findings if finding.code)
        as_sent = report.applied_si == command.values  # then it is bit for bit what was asked for
        applied = np.where(as_sent, command.report.applied, report.applied)
        return self._sent(command, report, findings, applied, dt_s=report.dt_s, guaranteed=report.guaranteed)

    def _unknown(self, command: ApprovedCommand) -> SentCommand:
        """Return what is known when the relay is silent: what acted when it was last heard."""
        last = self._last
        if last is None:
            raise BackendLostError("relay_silent", "the relay was never heard")
        layout = self._layout
        detail = (
            f"no answer to {self._tag.epoch}/{self._tag.seq} within {self._period_s} s: what acted when the relay was "
            "last heard stands for what was applied"
        )
        finding = Finding(gate="relay", severity=Severity.HOLD, code="relay.silent", detail=detail)
        applied = layout.scale.from_si(np.where(layout.is_delta, 0.0, last.applied_si))
        return self._sent(command, last, (finding,), applied, dt_s=command.report.dt_s, guaranteed={})

    def _sent(
        self,
        command: ApprovedCommand,
        report: RelayReport,
        findings: tuple[Finding, ...],
        applied: FloatArray,
        *,
        dt_s: float,
        guaranteed: Mapping[str, bool],
    ) -> SentCommand:
        disposition = max((finding.severity for finding in findings), default=Severity.PASS)
        applied.flags.writeable = False
        account = GateReport(
            disposition=disposition,
            findings=findings,
            intervened=disposition >= Severity.LIMIT,
            requested=command.report.requested,
            applied=applied,
            applied_si=report.applied_si,
            velocity_si=report.velocity_si,
            dt_s=dt_s,
            guaranteed={name: guaranteed.get(name, False) for name in command.report.guaranteed},
        )
        return SentCommand(
            seq=command.seq, values=report.applied_si, report=account, published_ns=self._published_ns or None
        )
