"""Send commands to a relay (`safety.relay`), which reports what it applied."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from rclpy.qos import QoSProfile, ReliabilityPolicy

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.json_messages import INVALID_MESSAGE
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Severity
from embodied_env.core.measured_joints import nearest_turn
from embodied_env.core.safety_input_state import INPUT_OK, InputState, InputStatus
from embodied_env.core.types import ActuationEvidence, ApprovedCommand, Finding, GateReport, SentCommand, check_approved
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.robot.graph_checks import UNNAMED
from embodied_env.ros.transport.node import LEASE_NS, log_wait_for_lease, publisher_names
from embodied_env.ros.transport.qos import LATCHED, RELIABLE
from embodied_env.ros.transport.receive_thread import ReceiveThread, ServiceCaller
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.safety.relay.relay_protocol import (
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
from embodied_env.timing.clock import NS_PER_S, Clock

RELAY_STATE = "relay state"
"""The name of the safety input that reports an ESTOP latched in the relay."""

_STRING = "std_msgs/msg/String"
_REPORTS = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)

_ARMING_NS = 5 * NS_PER_S  # for temporary obstacles: a moving robot, an input without a message
_RETRY_NS = NS_PER_S // 10  # between two attempts to arm, and two probes
_FOREIGN = "act.epoch"
_CONTENDED = frozenset({"act.dup", "robot.contention"})  # another publisher used our number, or there are several
_NAMING_NS = NS_PER_S // 2  # limit for the graph to report the names of other publishers
_NAMING_POLL_NS = NS_PER_S // 100


class RelayClient:
    """Client that sends each command to the relay and waits for its report.

    Only one thread at a time may call `send`. If no report arrives within a control period, the command is withdrawn by
    a request to brake, and the result is a HOLD (relay.silent) with the last known applied values. After
    ``watchdog.stop_steps`` commands in a row without a report, or an invalid report, the robot counts as lost.
    """

    def __init__(self, contract: Contract, listener: ReceiveThread, clock: Clock) -> None:
        """Create the publisher and the subscriptions while `listener` has not started yet."""
        self._clock = clock
        node = self._node = listener.node
        self._listener = listener
        self._layout = ActionLayout(contract)
        self._period_s, self._period_ns = contract.control_period_s, contract.control_period_ns
        self._max_silent = contract.safety.watchdog.stop_steps
        self._fingerprint = contract.fingerprint
        self._limits = limits_fingerprint(self._layout)
        self._message = message_class("sensor_msgs/msg/JointState")
        self._publisher = node.create_publisher(self._message, COMMAND_TOPIC, RELIABLE)
        self._arm_service = ServiceCaller(listener, ARM_SERVICE, clock)
        self._clear_estop_service = node.resolve_service_name(CLEAR_ESTOP_SERVICE)
        self._tag = CommandId(epoch=0, seq=0)  # id of our last command
        self._answer: RelayReport | None = None  # on that command
        self._published_ns = self._answered_ns = 0  # times of our last command and its answer, on our steady clock
        self._evidence: ActuationEvidence | None = None
        self._last: RelayReport | None = None  # on any command or tick: what is in force
        self._state: RelayState | None = None
        self._state_problem = ""  # problem of the newest message on the state topic
        self._invalid = ""  # problem of the first invalid report since the relay was armed
        self._silent = 0  # commands in a row without a report
        listener.subscribe("relay/report", _STRING, REPORT_TOPIC, _REPORTS, self._on_report)
        listener.subscribe("relay/state", _STRING, STATE_TOPIC, LATCHED, self._on_state)

    # ------------------------------------------------------------------------- in the listener's thread, under its lock

    def _on_report(self, arrival: ReceivedMessage) -> None:
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

    def _on_state(self, arrival: ReceivedMessage) -> None:
        try:
            self._state, self._state_problem = RelayState.from_text(arrival.message.data), ""
        except ValueError as error:
            self._state, self._state_problem = None, str(error)

    def estop(self) -> InputState:
        """Return the relay as a safety input, active for an ESTOP, under the listener's lock."""
        if self._state is not None and self._state.state != "estop":
            return INPUT_OK
        status, detail = InputStatus.UNKNOWN, self._state_problem
        if self._state is not None:
            status, detail = InputStatus.ACTIVE, f"{self._state.detail}; call {self._clear_estop_service} by hand"
        if len(publishers := publisher_names(self._node, STATE_TOPIC)) > 1:
            detail = f"{detail}; {STATE_TOPIC} is published by {', '.join(publishers)}".removeprefix("; ")
        return InputState(status, detail)

    # ----------------------------------------------------------------------------------------------- arming

    def arm(self, deadline_ns: int, measure: Callable[[], FloatArray] | None = None) -> None:
        """Start an epoch of the relay and verify the connection both ways without motion.

        `measure` returns the joint positions, shape (n_joints,), in contract order, NaN where unknown, at which the
        relay must start; None: its start is not checked. Raises BackendNotReadyError when the relay refuses, has
        another contract or other limits, or does not answer by `deadline_ns` (steady clock), and BackendLostError for
        an invalid report.
        """
        self._invalid = ""
        begun_ns = self._clock.now_ns()
        while problem := self._try_to_arm(deadline_ns, measure):
            retry_ns = self._clock.now_ns() + _RETRY_NS
            most_ns = LEASE_NS if self._counts_the_dead(problem) else _ARMING_NS
            if retry_ns > min(deadline_ns, begun_ns + most_ns):
                raise BackendNotReadyError(f"the relay could not be armed: {problem}")
            self._clock.sleep_until_ns(retry_ns)
        self._silent = 0

    def _counts_the_dead(self, problem: str) -> bool:
        """Return whether the relay still counts killed publishers, which are not found here."""
        if "robot.contention" not in problem or len(publisher_names(self._node, COMMAND_TOPIC)) > 1:
            return False
        log_wait_for_lease(self._node, "the relay")
        return True

    def _try_to_arm(self, deadline_ns: int, measure: Callable[[], FloatArray] | None) -> str:
        """Arm once and return a temporary problem or "", or raise an error for any other problem."""
        response = self._arm_service.call(deadline_ns)
        if not response.success:
            with self._listener.condition:
                is_estop = self._state is not None and self._state.state == "estop"
            if is_estop:
                remedy = f"resolve its cause, call {self._clear_estop_service} by hand, then env.clear_estop()"
                raise BackendNotReadyError(f"the relay could not be armed: {response.message} ({remedy})")
            return str(response.message)
        try:
            armed = Armed.from_text(response.message)
        except ValueError as error:
            problem = f"invalid response of {self._arm_service.name} (expected that of a relay): {error}"
            raise BackendNotReadyError(problem) from None
        for name, theirs, ours in (
            ("contract", armed.fingerprint, self._fingerprint),
            ("limits", armed.limits, self._limits),
        ):
            if theirs != ours:
                problem = f"the relay's {name} has fingerprint {theirs[:12]} (expected {ours[:12]})"
                raise BackendNotReadyError(f"{problem}; start it with this contract")
        start = self._probe(armed.epoch, deadline_ns)
        return "" if measure is None else self._start_problem(start, measure())

    def _probe(self, epoch: int, deadline_ns: int) -> RelayReport:
        """Send number 0, which a relay refuses without motion, and return the start it reports."""
        while True:
            answer = self._exchange(CommandId(epoch=epoch, seq=0), Severity.HOLD, _RETRY_NS)
            if answer is not None:
                if answer.published or [finding.code for finding in answer.findings] != ["act.dup"]:
                    findings = "; ".join(f"{finding.code}: {finding.detail}" for finding in answer.findings)
                    raise BackendNotReadyError(f"unexpected report of the armed relay: {findings}")
                return answer
            if self._clock.now_ns() > deadline_ns:
                raise BackendNotReadyError(f"the relay was armed, but no report was received on {REPORT_TOPIC}")

    def _start_problem(self, start: RelayReport, measured: FloatArray) -> str:
        """Return how far the relay's start is from the measured positions, "" within one step."""
        layout = self._layout
        tolerance = layout.limits.fastest * self._period_s
        off = np.abs(start.applied_si - nearest_turn(measured, start.applied_si, layout.turns))
        far = ~layout.is_velocity & np.isfinite(measured) & ~(off <= tolerance)
        if not far.any():
            return ""
        i = int(np.argmax(far))
        position = f"{layout.joints[i]} at {start.applied_si[i]:.6g}"
        return f"it starts with {position} (expected the measured {measured[i]:.6g}, within {tolerance[i]:.6g})"

    # ---------------------------------------------------------------------------------------------- sending

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Send a command, or a request to brake, and return what the relay applied.

        Raises BackendLostError for too many missing reports, an invalid one, or if another client has armed the relay.
        """
        check_approved(command)
        severity = command.report.disposition
        is_braking = severity >= Severity.HOLD
        report = self._exchange(self._next(), severity if is_braking else command.values, self._period_ns)
        if report is None:
            self._silent += 1
            if not is_braking:
                self._publish(self._next(), Severity.HOLD)
            if self._silent >= self._max_silent:
                raise BackendLostError("relay_silent", f"no report of the relay on {self._silent} commands in a row")
            return self._unanswered(command)
        self._silent = 0
        if report.published:
            self._evidence = ActuationEvidence(seq=command.seq, acted_ns=self._answered_ns, method="echo")
        codes = {finding.code for finding in report.findings}
        if _FOREIGN in codes:
            raise BackendLostError("relay_taken", "another client has armed the relay")
        if codes & _CONTENDED:
            report = replace(report, findings=(self._contention(report), *report.findings))
        findings = tuple(finding for finding in report.findings if finding.code)  # others confirm our request to brake
        as_sent = report.applied_si == command.values  # these stay bit-identical
        applied = np.where(as_sent, command.report.applied, report.applied)
        sent = self._sent(command, report, findings, applied, dt_s=report.dt_s, guaranteed=report.guaranteed)
        accounts = {"setpoints": report.setpoints, "grippers": report.grippers}
        return replace(sent, annotations={name: account for name, account in accounts.items() if account})

    def _contention(self, report: RelayReport) -> Finding:
        """Return the finding for foreign commands, with publishers' names found while braking."""
        ours = self._node.get_fully_qualified_name()
        last_ns = self._clock.now_ns() + _NAMING_NS
        while True:
            found = publisher_names(self._node, COMMAND_TOPIC)
            others = [name for i, name in enumerate(found) if name != ours or ours in found[:i]]
            retry_ns = self._clock.now_ns() + _NAMING_POLL_NS
            if (others and not any(UNNAMED in name for name in others)) or retry_ns > last_ns:
                break
            self._clock.sleep_until_ns(retry_ns)
        publishers = ", ".join(others) or "a publisher that no longer exists"
        details = "; ".join(finding.detail for finding in report.findings)
        detail = f"{self._publisher.topic_name} is also published by {publishers} (expected this node only): {details}"
        return Finding(gate="relay", severity=Severity.STOP, code="robot.contention", detail=detail)

    def _next(self) -> CommandId:
        return CommandId(epoch=self._tag.epoch, seq=self._tag.seq + 1)

    def _exchange(self, tag: CommandId, values: FloatArray | Severity, timeout_ns: int) -> RelayReport | None:
        listener, end_ns = self._listener, self._clock.now_ns() + timeout_ns
        with listener.condition:
            self._check_reports()
            self._publish(tag, values)
            listener.wait_until(lambda: self._answer is not None or self._invalid, end_ns)
            if self._answer is None:
                self._check_reports()
            return self._answer

    def _check_reports(self) -> None:
        """Brake and raise BackendLostError for an invalid report, as it hides the command in force."""
        if self._invalid:
            self._publish(self._next(), Severity.HOLD)
            raise BackendLostError(INVALID_MESSAGE, self._invalid)

    def _publish(self, tag: CommandId, values: FloatArray | Severity) -> None:
        """Publish a command, or a request to brake if `values` is a severity.

        Reports on earlier commands no longer count.
        """
        fields = write_command(tag, values, self._layout, stamp_ns=self._clock.system_ns())
        with self._listener.condition:
            self._tag, self._answer = tag, None
            self._publisher.publish(fields.fill(self._message()))
            self._published_ns = self._clock.now_ns()

    def take_evidence(self) -> ActuationEvidence | None:
        """Return the newest evidence since the last call, with a report's arrival as upper bound."""
        evidence, self._evidence = self._evidence, None
        return evidence

    # --------------------------------------------------------------------------------------------- accounts

    def _unanswered(self, command: ApprovedCommand) -> SentCommand:
        """Return the result for a missing report, with the last known applied values."""
        last = self._last
        if last is None:
            raise BackendLostError("relay_silent", "no report was ever received from the relay")
        layout = self._layout
        detail = f"no report on {self._tag.epoch}/{self._tag.seq} within {self._period_s} s; applied: as last reported"
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
        gate_report = GateReport(
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
            seq=command.seq, values=report.applied_si, report=gate_report, published_ns=self._published_ns or None
        )
