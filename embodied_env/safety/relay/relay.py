"""The state machine of a relay, without ROS: it validates commands and publishes through a `RelayPublisher`.

Disarmed, it publishes only braking. `arm` begins an epoch at the measured positions. Commands of that epoch, numbered
upwards, pass the gates from the joint limits on. ``hold_steps`` periods after the last one each `tick` brakes; after
``stop_steps`` a STOP is latched, which only `arm` clears. An ESTOP is latched until `clear_estop`, and is a STOP then.

At rest, a robot commanded by position alone receives nothing more. Joints commanded by velocity receive zero at every
tick while armed: their controller may have a timeout, or have lost a message. Before the first command of an epoch
nothing is published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.message_types import JOINT_SENSOR
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.codes import Severity
from embodied_env.core.measured_joints import MeasuredVelocities, Reading
from embodied_env.core.types import ApprovedCommand, Finding, SentCommand
from embodied_env.errors import ContractError, InternalFaultError
from embodied_env.safety import Arbiter, SafetyGate
from embodied_env.safety.findings import latched_finding
from embodied_env.safety.interlocks import safety_input_findings
from embodied_env.safety.relay.protocol import (
    Armed,
    Command,
    CommandId,
    JointFields,
    MalformedCommandError,
    RelayReport,
    RelayState,
    limits_fingerprint,
    read_command,
    write_command,
)


class MeasuredPositions:
    """The newest measured position of each joint, and when it was acquired, on the steady clock."""

    def __init__(self, contract: Contract, joints: tuple[str, ...]) -> None:
        """Find `joints` in the sensors of the agent."""
        found = {
            joint: (name, index, sensor.max_age_s)
            for name, sensor in contract.sensors.items()
            if sensor.type == JOINT_SENSOR and sensor.visibility == "agent" and "position" in sensor.fields
            for index, joint in enumerate(sensor.fields["position"].joints or ())
        }
        self._places = [(i, joint, *found[joint]) for i, joint in enumerate(joints) if joint in found]
        self._future_ns = round(contract.safety.observation.future_tolerance_s * NS_PER_S)
        self.sensors = tuple(dict.fromkeys(sensor for _, _, sensor, _, _ in self._places))
        self.positions = np.zeros(len(joints))  # what no sensor reports is at 0: its position does not count
        self._acquired_ns: dict[str, int] = {}

    def put(self, sensor: str, positions: FloatArray, acquired_ns: int, now_ns: int) -> bool:
        """Take a reading of `sensor`: in the order of its joints. False: it is not finite, or of the future."""
        if not np.isfinite(positions).all() or acquired_ns > now_ns + self._future_ns:
            return False
        if acquired_ns >= self._acquired_ns.get(sensor, acquired_ns):  # never a step back
            self._acquired_ns[sensor] = acquired_ns
            for i, _, name, index, _ in self._places:
                if name == sensor:
                    self.positions[i] = positions[index]
        return True

    def ages_s(self, now_ns: int) -> FloatArray:
        """Return how old each position is, shape (n_joints,): infinite before the first, 0 where none is needed."""
        ages = np.zeros(len(self.positions))
        for i, _, sensor, _, _ in self._places:
            acquired_ns = self._acquired_ns.get(sensor)
            ages[i] = np.inf if acquired_ns is None else max(0, now_ns - acquired_ns) / NS_PER_S
        return ages

    def problem(self, now_ns: int) -> str:
        """Return which joint is not known well enough to begin, or ""."""
        ages = self.ages_s(now_ns)
        for i, joint, sensor, _, max_age_s in self._places:
            if not ages[i] <= max_age_s:
                return f"the position of {joint} ({sensor}) is {ages[i]:.3f} s old; allowed: {max_age_s} s"
        return ""


def check_relayed(contract: Contract) -> None:
    """Check that a relay can answer for what it sends; raises ContractError."""
    if contract.safety.mode != "enforce":
        raise ContractError(
            "safety.mode",
            f"{contract.safety.mode!r} is not allowed: a relay answers for the limits; allowed: enforce",
            source=contract.source,
        )
    for name, actuator in contract.actuators.items():
        limits = actuator.limits(contract.safety.margins)
        for kind in ("velocity", "acceleration", "deceleration"):
            for joint, value in zip(limits.joints, getattr(limits, kind).tolist(), strict=True):
                if not 0.0 < value < np.inf:
                    path = f"actuators.{name}.joints.{joint}.{kind}"
                    problem = f"the limit after margins is {value}; a relay needs a finite one above 0"
                    raise ContractError(path, problem, source=contract.source)


def stopping_time_s(contract: Contract) -> float:
    """Return how long braking to rest takes at most: the slowest joint, from its limit, and one period to begin."""
    longest = 0.0
    for actuator in contract.actuators.values():
        limits = actuator.limits(contract.safety.margins)
        longest = max(longest, *(limits.velocity / limits.deceleration).tolist())
    return longest + contract.control_period_s


NS_PER_US = 1_000
_MAX_LOST = 1_000  # commands in a row: a greater number would lock out the client whose numbers follow each other


class RelayPublisher(Protocol):
    """Where a relay publishes."""

    def publish(self, command: ApprovedCommand) -> None:
        """To the actuator topics."""
        ...

    def applied(self, fields: JointFields) -> None:
        """Say what was published."""
        ...

    def report(self, report: RelayReport) -> None:
        """Say what became of a command, or a tick."""
        ...

    def state(self, state: RelayState) -> None:
        """Say how the relay is."""
        ...


class Relay:
    """One robot's relay. Called from one thread."""

    def __init__(
        self,
        contract: Contract,
        outlet: RelayPublisher,
        *,
        clock: Clock,
        gate: SafetyGate | None = None,
        downstream_timeout_s: float | None = None,
    ) -> None:
        """Relay for `contract`.

        Args:
            contract: says what is allowed.
            outlet: publishes.
            clock: the steady clock under every deadline.
            gate: limits; None: the gate of `contract`, with nothing that weakens.
            downstream_timeout_s: after which the controller ends a velocity that is not commanded again; None: it has
                no timeout, or none that is known.

        Raises:
            ContractError: for a contract that a relay cannot answer for (`check_relayed`).
        """
        check_relayed(contract)
        self._outlet = outlet
        self._clock = clock
        self._gate = SafetyGate(contract, fixed_rate=False) if gate is None else gate
        self._layout = self._gate.layout
        self._velocities = MeasuredVelocities(contract)
        self._moving: dict[str, tuple[Mapping[str, NDArray[Any]], int]] = {}  # the newest readings of velocities
        self._arbiter = Arbiter(
            self._send,
            self._gate,
            clock=clock,
            control_period_s=contract.control_period_s,
            free_running=True,
            downstream_timeout_s=downstream_timeout_s,
            measured_velocities=self._measured_velocities if self._velocities.sensors else None,
        )
        self._hold_ns = contract.safety.watchdog.hold_steps * contract.control_period_ns
        self._stop_ns = contract.safety.watchdog.stop_steps * contract.control_period_ns
        self._fingerprint = contract.fingerprint
        self._limits = limits_fingerprint(self._layout)
        self._measured = MeasuredPositions(contract, self._layout.joints)
        self._tag = CommandId(epoch=0, seq=0)  # of the last accepted command, and of the braking ticks since
        self._armed = self._ending = self._asked_to_brake = False
        self._fed_ns: int | None = None
        self._published_ns = clock.now_ns()
        self._inputs: Mapping[str, str] = {}
        self._state: RelayState | None = None
        self.refused: Counter[str] = Counter()
        self.accepted = self.trips = 0
        self.last_dt_s = 0.0

    # ---------------------------------------------------------------------------------------------- what can be seen

    @property
    def sensors(self) -> tuple[str, ...]:
        """The sensors whose positions it needs."""
        return self._measured.sensors

    @property
    def velocity_sensors(self) -> tuple[str, ...]:
        """The sensors whose velocities it needs."""
        return self._velocities.sensors

    @property
    def at_rest(self) -> bool:
        """Whether the last published command was one of rest."""
        return not self._arbiter.reference.velocities.any()

    @property
    def tag(self) -> CommandId:
        """The tag of the last accepted command, or of the last tick after it."""
        return self._tag

    @property
    def current_state(self) -> RelayState:
        """How the relay is."""
        latched = self._gate.latched
        if latched is not None:
            state = "estop" if latched.severity is Severity.ESTOP else "stopped"
        else:
            state = "armed" if self._armed else "disarmed"
        return RelayState(
            state=state,
            epoch=self._tag.epoch,
            braking=not self.at_rest and self._braking_reason() is not None,
            latched="" if latched is None else latched.code,
            detail="" if latched is None else latched.detail,
            fingerprint=self._fingerprint,
            limits=self._limits,
            inputs=dict(self._inputs),
        )

    def announce(self) -> None:
        """Publish the state if it has changed."""
        state = self.current_state
        if state != self._state:
            self._state = state
            self._outlet.state(state)

    # ---------------------------------------------------------------------------------------------- what may happen

    def on_joint_positions(self, sensor: str, positions: FloatArray, acquired_ns: int) -> bool:
        """Take a reading of joint positions, acquired at `acquired_ns` of the steady clock; False: it is refused."""
        return self._measured.put(sensor, positions, acquired_ns, self._clock.now_ns())

    def moving(self, sensor: str, values: Mapping[str, NDArray[Any]], acquired_ns: int) -> None:
        """Take a reading of `velocity_sensors`, field -> values, acquired at `acquired_ns` of the steady clock."""
        self._moving[sensor] = values, acquired_ns

    def inputs(self, inputs: Mapping[str, str]) -> None:
        """Take the state of the robot's own safety inputs. Armed or in motion, what is not "ok" is latched, and brakes.

        Disarmed and at rest nothing is latched: but `arm` is refused until all are "ok".
        """
        self._inputs, latched = inputs, self._gate.latched
        for finding in safety_input_findings(inputs) if self._armed or not self.at_rest else []:
            self._latch(finding)
        if self._gate.latched is not latched:
            self.tick()
        self.announce()

    def arm(self) -> tuple[bool, str]:
        """Begin an epoch at rest at the measured positions. Returns success, and `Armed` as text or why not."""
        if problem := self._arming_problem():
            return False, problem
        positions = self._measured.positions.copy()
        self._tag = CommandId(epoch=max(self._tag.epoch + 1, self._clock.system_ns() // NS_PER_US), seq=0)
        self._gate.reset()
        self._arbiter.reset(positions, self._tag.epoch)
        self._armed, self._asked_to_brake, self._fed_ns = True, False, None
        self.announce()
        limits = self._layout.limits
        outside = (positions < limits.position_low) | (positions > limits.position_high)
        names = tuple(joint for joint, is_out in zip(self._layout.joints, outside, strict=True) if is_out)
        armed = Armed(epoch=self._tag.epoch, fingerprint=self._fingerprint, limits=self._limits, outside=names)
        return True, armed.to_text()

    def command(self, fields: JointFields) -> None:
        """Take a command: it is published as the gates let it, or refused; a report says which."""
        self._check_command_timeout()
        try:
            command = read_command(fields, self._layout)
        except MalformedCommandError as error:
            finding = Finding(gate="form", severity=Severity.HOLD, code=error.finding_code, detail=str(error))
            self._refuse(error.tag, finding)
            return
        if (refusal := self._refusal(command)) is not None:
            latched = self._gate.latched
            self._refuse(command.tag, refusal, *([] if latched is None else [latched]))
            return
        self._tag, self._fed_ns = command.tag, self._clock.now_ns()
        self._asked_to_brake = command.target is None
        self.accepted += 1
        if command.target is None:
            self._brake(_ASKED, cause="brake")
        else:
            self._limit(command.target)
        self.announce()

    def tick(self) -> None:
        """A control period has passed: brake, if there is a reason to."""
        self._check_command_timeout()
        reason = self._braking_reason()
        repeats = self._armed and bool(self._layout.is_velocity.any())
        if reason is not None and (repeats or not self.at_rest):
            self._tag = CommandId(epoch=self._tag.epoch, seq=self._tag.seq, tick=self._tag.tick + 1)
            self._brake(reason, cause="tick")
        self.announce()

    def estop(self, why: str) -> None:
        """Latch an ESTOP, and brake at once."""
        self._latch(Finding(gate="estop", severity=Severity.ESTOP, code="estop.active", detail=why))
        self.tick()

    def clear_estop(self) -> tuple[bool, str]:
        """Make of an ESTOP a STOP, unless an input still asks for it. Returns success, and what was done."""
        if active := [f.detail for f in safety_input_findings(self._inputs) if f.severity is Severity.ESTOP]:
            return False, f"not cleared: {'; '.join(active)}"
        if self._gate.latched is None or self._gate.latched.severity < Severity.ESTOP:
            return True, "no ESTOP was latched"
        self._gate.clear_estop()
        self.announce()
        return True, "the ESTOP is cleared; arm before the next motion"

    def end(self) -> None:
        """The process is to end: brake. Tick on until `at_rest`."""
        self._ending, self._armed = True, False
        self.tick()

    def fault(self, detail: str) -> None:
        """Something failed that must not: latch a STOP, and brake."""
        self._latch(Finding(gate="post_condition", severity=Severity.STOP, code="fault.internal", detail=detail))
        self.announce()

    # ---------------------------------------------------------------------------------------------- in detail

    def _arming_problem(self) -> str:
        latched = self._gate.latched
        if self._ending:
            return "the relay is ending"
        if latched is not None and latched.severity is Severity.ESTOP:
            return f"an ESTOP is latched ({latched.code}: {latched.detail}); clear it by ~/clear_estop"
        if findings := safety_input_findings(self._inputs):
            return "; ".join(f"{finding.code}: {finding.detail}" for finding in findings)
        if not self.at_rest:
            return "the robot is in motion; stop sending commands, and ask again when it rests"
        return self._measured.problem(self._clock.now_ns())

    def _refusal(self, command: Command) -> Finding | None:
        """Return why a command that could be read is refused, or None."""
        latched = self._gate.latched
        if latched is not None:
            return latched_finding(latched)
        if not self._armed:
            return Finding(gate="latch", severity=Severity.STOP, code="latch.stop", detail="the relay is not armed")
        if command.tag.epoch != self._tag.epoch:
            return _untimely("act.epoch", f"epoch {command.tag.epoch}; allowed: {self._tag.epoch}")
        low, high = self._tag.seq + 1, self._tag.seq + _MAX_LOST
        if not low <= command.tag.seq <= high:
            code = "act.dup" if command.tag.seq < low else "act.jump"
            return _untimely(code, f"number {command.tag.seq}; allowed: {low} to {high}")
        age_ns = self._clock.system_ns() - command.stamp_ns
        if command.stamp_ns and abs(age_ns) > self._hold_ns:
            detail = f"sent {age_ns / NS_PER_S:.3f} s ago, by its stamp; allowed: {self._hold_ns / NS_PER_S} s"
            return _untimely("act.late", detail)
        return None

    def _refuse(self, tag: CommandId | None, finding: Finding, *causes: Finding) -> None:
        """Report a command that is not published, and why; `causes`: what latched. It does not feed the watchdog."""
        self.refused[finding.code] += 1
        reference = self._arbiter.reference
        acting = np.where(self._layout.is_velocity, reference.velocities, reference.positions)
        self._outlet.report(
            RelayReport(
                tag=tag,
                cause="command",
                published=False,
                disposition=finding.severity,
                findings=(finding, *causes),
                dt_s=0.0,
                guaranteed={},
                joints=self._layout.joints,
                applied=self._layout.scale.from_si(np.where(self._layout.is_delta, 0.0, acting)),
                applied_si=acting,
                velocity_si=reference.velocities,
                number=0,
                published_ns=self._published_ns,
            )
        )
        self.announce()

    def _check_command_timeout(self) -> None:
        """Latch a STOP when commands have been missing for too long."""
        if self._armed and self._fed_ns is not None:
            age_ns = self._clock.now_ns() - self._fed_ns
            if age_ns >= self._stop_ns:
                self.trips += 1
                self._latch(_overdue(Severity.STOP, "wd.stop", age_ns))

    def _latch(self, finding: Finding) -> None:
        """Latch, and disarm."""
        self._gate.latch(finding)
        self._armed = False

    def _braking_reason(self) -> Finding | None:
        """Return why a tick brakes now, or None."""
        if self._gate.latched is not None:
            return latched_finding(self._gate.latched)
        if self._ending:
            return Finding(gate="latch", severity=Severity.STOP, code="latch.stop", detail="the relay is ending")
        if not self._armed or self._fed_ns is None:
            return None
        age_ns = self._clock.now_ns() - self._fed_ns
        if age_ns >= self._hold_ns:
            return _overdue(Severity.HOLD, "wd.hold", age_ns)
        return _ASKED if self._asked_to_brake else None

    def _limit(self, target: FloatArray) -> None:
        """Publish what the gates make of `target`."""
        self._update_measured()
        try:
            with self._arbiter.exclusive() as (reference, dt_s):
                approved = self._gate.limit(target, reference, dt_s)
                self._arbiter.send(approved)
        except InternalFaultError as error:
            self.fault(str(error))
            return
        for finding in approved.report.findings:
            if finding.severity >= Severity.STOP:
                self._latch(finding)
        self._report_published(approved, "command")

    def _brake(self, reason: Finding, *, cause: str) -> None:
        """Publish one tick of braking."""
        self._update_measured()
        try:
            approved = self._arbiter.brake(reason)
        except InternalFaultError as error:
            self.fault(str(error))
            return
        self._report_published(approved, cause)

    def _update_measured(self) -> None:
        """Take the measured positions of what is commanded by velocity."""
        self._arbiter.update_measured(self._measured.positions, self._measured.ages_s(self._clock.now_ns()))

    def _measured_velocities(self) -> tuple[FloatArray, FloatArray]:
        now_ns = self._clock.now_ns()

        def newest(name: str) -> Reading | None:
            values, acquired_ns = self._moving.get(name, (None, 0))
            return None if values is None else (values, (now_ns - acquired_ns) / NS_PER_S)

        return self._velocities.read(newest)

    def _send(self, command: ApprovedCommand) -> SentCommand:
        self._outlet.publish(command)
        self._published_ns = self._clock.now_ns()
        return SentCommand(seq=command.seq, values=command.values)

    def _report_published(self, approved: ApprovedCommand, cause: str) -> None:
        """Say what was published."""
        report = approved.report
        self.last_dt_s = report.dt_s
        stamp_ns = self._clock.system_ns()
        self._outlet.applied(write_command(self._tag, approved.values, self._layout, stamp_ns=stamp_ns))
        self._outlet.report(
            RelayReport(
                tag=self._tag,
                cause=cause,
                published=True,
                disposition=report.disposition,
                findings=report.findings,
                dt_s=report.dt_s,
                guaranteed=report.guaranteed,
                joints=self._layout.joints,
                applied=report.applied,
                applied_si=approved.values,
                velocity_si=report.velocity_si,
                number=approved.seq,
                published_ns=self._published_ns,
            )
        )


_ASKED = Finding(gate="relay", severity=Severity.HOLD, code="", detail="the client asks for braking")


def _untimely(code: str, detail: str) -> Finding:
    return Finding(gate="action_age", severity=Severity.HOLD, code=code, detail=detail)


def _overdue(severity: Severity, code: str, age_ns: int) -> Finding:
    detail = f"no command for {age_ns / NS_PER_S:.3f} s"
    return Finding(gate="watchdog", severity=severity, code=code, detail=detail)
