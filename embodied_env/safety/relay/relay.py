"""The state machine of the relay, without ROS.

It validates commands and publishes through a `RelayPublisher`.

Disarmed, it publishes only braking. `arm` begins an epoch at the measured positions. Commands of that epoch, with
increasing numbers, pass the joint limits and filters. ``hold_steps`` periods after the last one, each `tick` brakes;
after ``stop_steps`` a STOP is latched, which only `arm` clears. `clear_estop` reduces an ESTOP to a STOP.

With `setpoint_rate_hz` a command is reached in several setpoints (`safety.publishing.setpoints`), sent by the caller.

At rest, a robot commanded only by position receives nothing but the goals of its grippers at a STOP. Joints commanded
by velocity receive zero at every tick while armed: their controller may have a timeout, or have lost a message. Nothing
is published before the first command of an epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.code_types import Severity
from embodied_env.core.measured_joints import TURN, MeasuredPositions, MeasuredVelocities, Reading
from embodied_env.core.safety_input_state import InputStates, texts_of
from embodied_env.core.types import ApprovedCommand, Finding, SentCommand
from embodied_env.errors import InternalFaultError
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.findings import latched_finding, safety_input_findings
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.publishing import make_publishing
from embodied_env.safety.relay.relay_protocol import (
    Armed,
    Command,
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
from embodied_env.timing.clock import NS_PER_S, Clock

NS_PER_US = 1_000
_MAX_LOST = 1_000  # commands in a row; accepting a larger number would lock out the client that sends the next one


class RelayPublisher(Protocol):
    """The publishers of a relay."""

    def publish(self, command: ApprovedCommand) -> None:
        """Publish to the actuator topics."""
        ...

    def applied(self, fields: JointFields) -> None:
        """Publish the applied command to `APPLIED_TOPIC`."""
        ...

    def report(self, report: RelayReport) -> None:
        """Publish the report of a command or a tick."""
        ...

    def state(self, state: RelayState) -> None:
        """Publish the state of the relay."""
        ...


class Relay:
    """Relay of one robot, which is not thread-safe.

    Attributes:
        sensors: the sensors of `on_joint_positions`.
        velocity_sensors: the sensors of `on_joint_velocities`.
        arbiter: owns the last published command; the caller sends its setpoints (`Arbiter.send_setpoint`).
        tag: the tag of the last accepted command or braking tick.
        accepted: number of accepted commands.
        refused: number of refused commands by code.
        trips: number of command timeouts.
        last_dt_s: dt of the last published command.
    """

    def __init__(
        self,
        contract: Contract,
        outlet: RelayPublisher,
        *,
        clock: Clock,
        gate: SafetyGate | None = None,
        downstream_timeout_s: float | None = None,
        gripper_accounts: Callable[[], Mapping[str, Mapping[str, Any]]] = dict,
    ) -> None:
        """Create a disarmed relay.

        `clock` is the steady clock of every deadline. `gate` defaults to that of `contract` without filters. See
        `SingleCommands` for `downstream_timeout_s`. Raises ContractError if a relay cannot enforce `contract`.
        """
        check_relayed(contract)
        self._outlet, self._gripper_accounts = outlet, gripper_accounts
        self._clock = clock
        self._gate = SafetyGate(contract, fixed_rate=False) if gate is None else gate
        self._layout = self._gate.layout
        self._velocities = MeasuredVelocities(contract)
        self._moving: dict[str, tuple[Mapping[str, NDArray[Any]], int]] = {}  # the newest readings of velocities
        self.arbiter = Arbiter(
            self._send,
            self._gate,
            make_publishing(
                self._gate,
                setpoints_per_step=contract.setpoints_per_step,
                downstream_timeout_s=downstream_timeout_s,
                measured_velocities=self._measured_velocities if self._velocities.sensors else None,
            ),
            clock=clock,
            free_running=True,
        )
        self._period_ns = contract.control_period_ns
        self._hold_ns = contract.safety.watchdog.hold_steps * contract.control_period_ns
        self._stop_ns = contract.safety.watchdog.stop_steps * contract.control_period_ns
        self._fingerprint = contract.fingerprint
        self._limits = limits_fingerprint(self._layout)
        self._measured = MeasuredPositions(contract, self._layout.joints)
        self.sensors = self._measured.sensors
        self.velocity_sensors = self._velocities.sensors
        self.tag = CommandId(epoch=0, seq=0)
        self._armed = self._ending = self._asked_to_brake = False
        self._start: FloatArray | None = None  # as measured, until the first target of the epoch
        self._fed_ns: int | None = None
        self._published_ns = clock.now_ns()
        self._inputs: InputStates = {}
        grippers = [actuator.gripper for actuator in contract.actuators.values() if actuator.gripper is not None]
        self._has_stop_goals = any(gripper.on_stop != "hold" for gripper in grippers)
        self._owes_goals = False  # owes goals of a STOP, also to grippers at rest
        self._state: RelayState | None = None
        self.refused: Counter[str] = Counter()
        self.accepted = self.trips = 0
        self.last_dt_s = 0.0

    @property
    def at_rest(self) -> bool:
        """Whether the last published velocities are zero."""
        return not self.arbiter.reference.velocities.any()

    @property
    def current_state(self) -> RelayState:
        """The state as published."""
        latched = self._gate.latched
        if latched is not None:
            state = "estop" if latched.severity is Severity.ESTOP else "stopped"
        else:
            state = "armed" if self._armed else "disarmed"
        return RelayState(
            state=state,
            epoch=self.tag.epoch,
            braking=not self.at_rest and self._braking_reason() is not None,
            latched="" if latched is None else latched.code,
            detail="" if latched is None else latched.detail,
            fingerprint=self._fingerprint,
            limits=self._limits,
            inputs=texts_of(self._inputs),
        )

    def announce(self) -> None:
        """Publish the state if it changed."""
        state = self.current_state
        if state != self._state:
            self._state = state
            self._outlet.state(state)

    def on_joint_positions(self, sensor: str, positions: FloatArray, acquired_ns: int) -> bool:
        """Store joint positions acquired at `acquired_ns` (steady), or return False if refused."""
        return self._measured.put(sensor, positions, acquired_ns, self._clock.now_ns())

    def on_joint_velocities(self, sensor: str, values: Mapping[str, NDArray[Any]], acquired_ns: int) -> None:
        """Store a velocity sensor's reading, field -> values, acquired at `acquired_ns` (steady)."""
        self._moving[sensor] = values, acquired_ns

    def inputs(self, inputs: InputStates) -> None:
        """Store the states of the robot's safety inputs.

        While armed or in motion, those not ok are latched and the robot brakes. Disarmed and at rest, nothing is
        latched, but `arm` is refused until all are ok.
        """
        self._inputs, latched = inputs, self._gate.latched
        for finding in safety_input_findings(inputs) if self._armed or not self.at_rest else []:
            self._latch(finding)
        if self._gate.latched != latched:
            self.tick()
        self.announce()

    def arm(self) -> tuple[bool, str]:
        """Begin an epoch at rest as measured, and return success with `Armed` as text or a reason."""
        if problem := self._arming_problem():
            return False, problem
        positions = self._measured.positions.copy()
        self.tag = CommandId(epoch=max(self.tag.epoch + 1, self._clock.system_ns() // NS_PER_US), seq=0)
        self._gate.reset()
        self.arbiter.reset(positions, self.tag.epoch, continues=True)
        self._start = positions
        self._armed, self._asked_to_brake, self._fed_ns, self._owes_goals = True, False, None, False
        self.announce()
        limits = self._layout.limits
        outside = (positions < limits.position_low) | (positions > limits.position_high)
        names = tuple(joint for joint, is_out in zip(self._layout.joints, outside, strict=True) if is_out)
        armed = Armed(epoch=self.tag.epoch, fingerprint=self._fingerprint, limits=self._limits, outside=names)
        return True, armed.to_text()

    def command(self, fields: JointFields) -> None:
        """Limit and publish a command, or refuse it, and report the result."""
        received_ns = self._clock.now_ns()
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
        self.tag, self._fed_ns = command.tag, self._clock.now_ns()
        target = command.target
        self._asked_to_brake = isinstance(target, Severity)
        self.accepted += 1
        if isinstance(target, Severity):
            self._publish(lambda: self.arbiter.brake(replace(_REQUESTED, severity=target)), "brake")
        else:
            self._publish(lambda: self._send_limited(target, received_ns), "command")
        self.announce()

    def tick(self) -> None:
        """Brake if there is a reason to, once per control period."""
        self._check_command_timeout()
        reason = self._braking_reason()
        repeats = self._armed and self._gate.has_velocity
        if reason is not None and (repeats or self._owes_goals or not self.at_rest):
            self.tag = CommandId(epoch=self.tag.epoch, seq=self.tag.seq, tick=self.tag.tick + 1)
            self._publish(lambda: self.arbiter.brake(reason), "tick")
            self._owes_goals &= not self.last_dt_s > 0.0  # no time: it repeated the last command
        self.announce()

    def estop(self, why: str) -> None:
        """Latch an ESTOP and brake."""
        self._latch(Finding(gate="estop", severity=Severity.ESTOP, code="estop.active", detail=why))
        self.tick()

    def clear_estop(self) -> tuple[bool, str]:
        """Reduce an ESTOP to a STOP unless an input requires it, and return success and message."""
        if active := [f.detail for f in safety_input_findings(self._inputs) if f.severity is Severity.ESTOP]:
            return False, f"ESTOP not cleared: {'; '.join(active)}"
        if self._gate.latched is None or self._gate.latched.severity < Severity.ESTOP:
            return True, "no ESTOP was latched"
        self._gate.clear_estop()
        self.announce()
        return True, "ESTOP cleared; arm the relay before the next motion"

    def end(self) -> None:
        """Disarm and brake before the process ends, while the caller ticks until `at_rest`."""
        self._ending, self._armed = True, False
        self.tick()

    def fault(self, detail: str) -> None:
        """Latch a STOP after an internal error, so that the next tick brakes."""
        self._latch(Finding(gate="post_condition", severity=Severity.STOP, code="fault.internal", detail=detail))
        self.announce()

    def _arming_problem(self) -> str:
        latched = self._gate.latched
        if self._ending:
            return "the relay is shutting down"
        if latched is not None and latched.severity is Severity.ESTOP:
            return f"an ESTOP is latched ({latched.code}: {latched.detail}); call ~/clear_estop first"
        if findings := safety_input_findings(self._inputs):
            return "; ".join(f"{finding.code}: {finding.detail}" for finding in findings)
        if not self.at_rest:
            return "the robot is moving; stop sending commands and retry when it is at rest"
        return self._measured.problem(self._clock.now_ns())

    def _refusal(self, command: Command) -> Finding | None:
        latched = self._gate.latched
        if latched is not None:
            return latched_finding(latched)
        if not self._armed:
            return Finding(gate="latch", severity=Severity.STOP, code="latch.stop", detail="the relay is not armed")
        if command.tag.epoch != self.tag.epoch:
            return _untimely("act.epoch", f"epoch is {command.tag.epoch} (expected {self.tag.epoch})")
        low, high = self.tag.seq + 1, self.tag.seq + _MAX_LOST
        if not low <= command.tag.seq <= high:
            code = "act.dup" if command.tag.seq < low else "act.jump"
            return _untimely(code, f"sequence number is {command.tag.seq} (expected {low} to {high})")
        age_ns = self._clock.system_ns() - command.stamp_ns
        if command.stamp_ns and abs(age_ns) > self._hold_ns:
            detail = f"command is stamped {age_ns / NS_PER_S:.3f} s ago (maximum {self._hold_ns / NS_PER_S} s)"
            return _untimely("act.late", detail)
        return None if isinstance(command.target, Severity) else self._settle_turns(command.target)

    def _settle_turns(self, target: FloatArray) -> Finding | None:
        """Start a turning joint where last commanded or where measured, whichever `target` is near.

        Return why the first target of an epoch is refused: it is more than half a turn from both.
        """
        if self._start is None:
            return None
        at = self.arbiter.reference.positions
        start = np.where(self._layout.turns & (np.abs(target - at) > 0.5 * TURN), self._start, at)
        if (far := self._layout.turns & ~(np.abs(target - start) <= 0.5 * TURN)).any():
            joint = self._layout.joints[int(np.argmax(far))]
            return _untimely("act.jump", f"first target of {joint} is more than half a turn from where it is")
        self.arbiter.set_position_reference(start)
        self._start = None
        return None

    def _refuse(self, tag: CommandId | None, finding: Finding, *causes: Finding) -> None:
        """Report a command that is not published and feeds no watchdog, with `causes` that latched."""
        self.refused[finding.code] += 1
        reference = self.arbiter.reference
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
                setpoints=None,
                grippers=self._gripper_accounts(),
            )
        )
        self.announce()

    def _check_command_timeout(self) -> None:
        if self._armed and self._fed_ns is not None:
            age_ns = self._clock.now_ns() - self._fed_ns
            if age_ns >= self._stop_ns:
                self.trips += 1
                self._latch(_overdue(Severity.STOP, "wd.stop", age_ns))

    def _latch(self, finding: Finding) -> None:
        """Latch `finding` and disarm.

        Silence after a request to brake is the end of an episode, at which grippers keep their goals.
        """
        is_end = finding.code == "wd.stop" and self._asked_to_brake
        self._owes_goals |= self._has_stop_goals and self._armed and self._fed_ns is not None and not is_end
        self._gate.latch(finding)
        self._armed = False

    def _braking_reason(self) -> Finding | None:
        if self._gate.latched is not None:
            return latched_finding(self._gate.latched)
        if self._ending:
            return Finding(gate="latch", severity=Severity.HOLD, code="latch.stop", detail="the relay is shutting down")
        if not self._armed or self._fed_ns is None:
            return None
        age_ns = self._clock.now_ns() - self._fed_ns
        if age_ns >= self._hold_ns:
            return _overdue(Severity.HOLD, "wd.hold", age_ns)
        return _REQUESTED if self._asked_to_brake else None

    def _send_limited(self, target: FloatArray, received_ns: int) -> ApprovedCommand:
        """Limit and publish `target`, or brake if it waited here, and disarm after a latched STOP."""
        with self.arbiter.exclusive as (reference, dt_s):
            waited_ns = self._clock.now_ns() - received_ns
            if 2 * waited_ns > self._period_ns:
                detail = f"command was received {waited_ns / NS_PER_S:.3f} s ago"
                return self.arbiter.brake(_untimely("act.late", detail))
            approved = self._gate.limit(target, reference, dt_s)
            approved = self.arbiter.send(approved).command or approved
        if approved.report.disposition >= Severity.STOP:
            self._gate.latch_stops(approved.report.findings)
            self._armed = False
        return approved

    def _measured_velocities(self) -> tuple[FloatArray, FloatArray]:
        now_ns = self._clock.now_ns()
        readings: dict[str, Reading] = {
            name: (values, (now_ns - acquired_ns) / NS_PER_S) for name, (values, acquired_ns) in self._moving.items()
        }
        return self._velocities.read(readings.get)

    def _send(self, command: ApprovedCommand) -> SentCommand:
        self._outlet.publish(command)
        self._published_ns = self._clock.now_ns()
        return SentCommand(seq=command.seq, values=command.values)

    def _publish(self, send: Callable[[], ApprovedCommand], cause: str) -> None:
        """Publish by `send` and report it, or latch a STOP after an internal error."""
        self.arbiter.update_measured(self._measured.positions, self._measured.ages_s(self._clock.now_ns()))
        setpoints = None if cause == "tick" else self.arbiter.take_setpoint_account()
        try:
            approved = send()
        except InternalFaultError as error:
            self.fault(str(error))
            return
        report = approved.report
        self.last_dt_s = report.dt_s
        stamp_ns = self._clock.system_ns()
        self._outlet.applied(write_command(self.tag, approved.values, self._layout, stamp_ns=stamp_ns))
        self._outlet.report(
            RelayReport(
                tag=self.tag,
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
                setpoints=setpoints,
                grippers=self._gripper_accounts(),
            )
        )


_REQUESTED = Finding(gate="relay", severity=Severity.HOLD, code="", detail="braking requested by the client")


def _untimely(code: str, detail: str) -> Finding:
    return Finding(gate="action_age", severity=Severity.HOLD, code=code, detail=detail)


def _overdue(severity: Severity, code: str, age_ns: int) -> Finding:
    return Finding(gate="watchdog", severity=severity, code=code, detail=f"no command for {age_ns / NS_PER_S:.3f} s")
