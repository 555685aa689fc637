"""Lockstep with an external simulator over ROS 2, Gazebo or any with standard interfaces.

The backend connects to a running simulator; `control` steps it. A step returns the readings of the sensors that are
due, stamped at its end or later: older ones count as missing; the backend waits for late ones (rendering).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from embodied_env.backends.backend import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.reset_draws import ResetRoutine
from embodied_env.core.types import ApprovedCommand, ResetReport, ResetRequest, SentCommand, Snapshot, check_approved
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.extensions.gazebo.control import APIS
from embodied_env.extensions.gazebo.control.lockstep_control import LockstepControl
from embodied_env.extensions.gazebo.control.service_session import ServiceSession
from embodied_env.extensions.gazebo.control.simulator_api import EntityState, SimulatorNotReadyError
from embodied_env.extensions.gazebo.derived_sensors import CommandEchoes, DerivedSensors, EntityTopics, JointZeros
from embodied_env.extensions.gazebo.external_sim_profile import (
    EntityPose,
    check_offered,
    load_simulator_profile,
    sample_poses,
)
from embodied_env.messages.message_types import message_class
from embodied_env.processes.signals import deferred_signals
from embodied_env.ros.transport.fastdds import warn_if_segment_too_small
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import command_qos
from embodied_env.ros.transport.receiver import POLL_S, ReceivedMessage
from embodied_env.ros.transport.setup_checks import check_namespace_and_domain, timeout_s
from embodied_env.ros.wire.command_messages import to_command
from embodied_env.ros.wire.step_arrivals import StepArrivals
from embodied_env.timing.clock import NS_PER_S, Clock, deadline_to_monotonic_s

_log = logging.getLogger(__name__)
_DISCOVERY_S = 3.0  # between the discoveries of two services of one bridge
_FIRST_READING_S = 0.02  # how long to wait, before stepping on, for a first reading that may not be due yet
_MORE_PERIODS = 2  # for a sensor that is due, since connecting to a restarted publisher takes a while


class SimulatorBackend:
    """Publishes commands, steps the simulator by its clock, and returns the readings.

    The clock confirms each step, and the readings are those of its end.

    Attributes:
        feed: receives the messages that our node publishes and receives.
        routine: homing, if the profile declares a home.
    """

    name: ClassVar[str]

    def __init__(
        self,
        contract: Contract,
        *,
        clock: Clock,
        namespace: str | None = None,
        domain_id: int | None = None,
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
    ) -> None:
        """Prepare the backend without a connection.

        Args:
            contract: contract of the sensors and actuators that the simulator must offer.
            clock: stamps arrivals and bounds waits.
            namespace: absolute ROS namespace of relative topics; None: the root. It does not apply to the services of a
                simulator and ``/clock``.
            domain_id: None: ``ROS_DOMAIN_ID``, or 0.
            step_timeout_s: time for a step until the simulator counts as lost; None: that of the profile.
            reset_timeout_s: time for a reset; None: that of the profile.

        Raises:
            ContractError: if the contract has no valid profile for this backend.
            UsageError: for an invalid timeout, namespace or domain ID.
            MissingDependencyError: if the messages of its API are not installed.
        """
        self._profile, control = load_simulator_profile(contract, self.name)
        self._contract, self._clock = contract, clock
        self._actuators = {name: actuator.as_topic().in_si() for name, actuator in contract.actuators.items()}
        check_namespace_and_domain(namespace, domain_id)
        self._namespace, self._domain_id = namespace or "/", domain_id
        self.step_timeout_s = timeout_s("step_timeout_s", step_timeout_s, self._profile.step_timeout_s)
        self.reset_timeout_s = timeout_s("reset_timeout_s", reset_timeout_s, self._profile.reset_timeout_s)
        self._api = APIS[control](world=self._profile.world, prefix=self._profile.prefix)
        self._gazebo_world = self._profile.world if self.name == "gazebo" else None
        self.capabilities = Capabilities(
            simulated=True,
            exact_step=True,
            pausable=True,
            rewinds_time=self._profile.reset == "world",
            transport=True,
            reset_levels=(self._profile.reset,),
        )
        home, tolerance = self._profile.home, self._profile.home_tolerance
        self.routine = ResetRoutine(home=home, tolerance=tolerance) if home else None
        self.feed = MessageTap()
        self._layout = ActionLayout(contract)
        self._zeros = JointZeros(contract, self._layout, self._profile.joint_zeros)
        published = {
            name: replace(sensor, fields={field: replace(spec, driver=None) for field, spec in sensor.fields.items()})
            for name, sensor in contract.sensors.items()
            if name not in self._profile.sources
        }
        self._arrivals = StepArrivals(published, slack_ns=self._profile.step_ns)
        self._derived = DerivedSensors(contract, self._profile.sources, clock)
        self._entities = EntityTopics(self._profile)
        self._echoes = CommandEchoes(contract, self._profile.echo)
        self._ros: RosNode | None = None
        self._control: LockstepControl | None = None
        self._publishers: dict[str, Any] = {}
        self._places: dict[str, EntityPose] = {}  # poses of entities since the last reset
        self._is_connected = self._usable = self._is_halted = self._is_paced = False

    # ------------------------------------------------------------------------------------------ connecting

    def open(self) -> None:
        """Create our node, or raise BackendNotReadyError or MissingDependencyError."""
        try:
            warn_if_segment_too_small(self._contract)
            ros = self._ros = RosNode(
                "environment", namespace=self._namespace, clock=self._clock, domain_id=self._domain_id, feed=self.feed
            )
            for topics in (self._arrivals, self._entities, self._echoes):
                topics.subscribe(ros.receiver)
            self._publishers = {
                name: ros.node.create_publisher(message_class(actuator.type), actuator.topic, command_qos(actuator))
                for name, actuator in self._actuators.items()
            }
            session = ServiceSession(
                ros.receiver,
                reply_timeout_s=self._profile.reply_timeout_s,
                on_message=self._store,
                check_liveness=self._check_liveness,
            )
            self._control = LockstepControl(self._api, session, step_ns=self._profile.step_ns)
        except BaseException:
            self.close()
            raise

    def _check_liveness(self) -> None:
        if self._is_halted:
            raise BackendLostError("halted", "the connection was halted")

    def _store(self, arrival: ReceivedMessage) -> None:
        if not self._echoes.add(arrival) and not self._entities.add(arrival):
            self._arrivals.add(arrival)

    def _connect(self, end: float) -> LockstepControl:
        if self._ros is None or self._control is None:
            raise BackendNotReadyError("the node is not open")
        if self._is_connected:
            self._control.confirm_paused(end)
        else:
            self._control.connect(end)
            self._check_offered(self._control, end)
            self._is_connected = True
        topics = [sensor.topic for sensor in (*self._arrivals.sensors.values(), *self._entities.topics.values())]
        publishers = list(self._publishers.values())
        unmatched = self._ros.wait_for_peers(
            publishers, topics, end - time.monotonic(), check_liveness=self._check_liveness
        )
        if unmatched is not None:
            problems = [
                ("no subscriber on", unmatched.unread),
                ("no publisher on", unmatched.unpublished),
                ("more than one publisher on", unmatched.shared),
            ]
            raise BackendNotReadyError("; ".join(f"{what} {', '.join(names)}" for what, names in problems if names))
        return self._control

    def _check_offered(self, control: LockstepControl, end: float) -> None:
        """Check the abilities, which a bridge that has just started offers one after the other."""
        end = min(end, time.monotonic() + _DISCOVERY_S)
        while True:
            try:
                return check_offered(self._profile, self._api.name, control.capabilities)
            except BackendNotReadyError:
                if time.monotonic() > end:
                    raise
            control.session.receive(POLL_S)
            control.probe(end)

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:
        """Restore the world, place the entities, let physics settle, and return newer readings."""
        end = deadline_to_monotonic_s(deadline_ns, self._clock)
        profile = self._profile
        self._usable = self._is_halted = False
        try:
            control = self._connect(end)
            self._echoes.clear()
            self._derived.clear()
            self._places, sampled = sample_poses(self._contract, profile, request)
            if profile.reset == "world":
                control.reset(end)
            else:
                control.settle(end)
                control.wake_clock(end)
            snapshot = self._settle(control, end)
        except BackendLostError as error:
            self._is_connected = False
            raise SimulatorNotReadyError(error) from None
        self._usable = True
        self._warn_if_throttled(control)
        details = {"control": self._api.name, "settle_steps": str(profile.settle_steps)}
        if profile.command_settle_s:
            details["command_settle_s"] = str(profile.command_settle_s)
        details["step_ns"] = str(control.step_ns)
        report = ResetReport(
            level=profile.reset,
            seed_applied=None,
            sampled=sampled,
            details=details,
            ignored=tuple(name for name in request.options if name not in profile.draws),
        )
        return replace(snapshot, reset=report)

    def _warn_if_throttled(self, control: LockstepControl) -> None:
        if not self._is_paced and control.last_step is not None:
            self._is_paced = True
            if problem := control.last_step.describe_throttle(self._gazebo_world):
                _log.warning(problem)

    def _settle(self, control: LockstepControl, end: float) -> Snapshot:
        """Place the entities, let physics settle, and return a snapshot of newer readings.

        After a reset of the world physics settles first: its joints may start where the entities will be. It settles
        to the end of a control period on the simulator's clock, since sensors may publish only once per period.
        """
        since_ns, is_soft = control.now_ns(), self._profile.reset == "soft"
        if is_soft:
            self._place_entities(control, end)
        control.session.receive(0.0)
        self._entities.clear()
        self._arrivals.clear()
        control.step_to_period(self._profile.settle_steps, self._contract.control_period_ns, end)
        if self._places and not is_soft:
            return self._step_and_read(control, end)
        self._await_first_readings(control, since_ns, end)
        return self._snapshot(control, end)

    def _place_entities(self, control: LockstepControl, end: float) -> None:
        for name, place in self._places.items():
            control.set_state(name, np.array(place.position), np.array(place.orientation), end)

    def _await_first_readings(self, control: LockstepControl, since_ns: int, end: float) -> None:
        """Wait for a reading of each sensor since `since_ns`, stepping for those not due yet."""
        for periods_left in itertools.count(_MORE_PERIODS, -1):
            now_ns, begun_s = control.now_ns(), time.monotonic()
            while missing := self._missing_since(since_ns, now_ns):
                certain = [name for name in missing if self._arrivals.is_due_since(name, since_ns, now_ns)]
                limit_s = self._profile.sensor_grace_s if certain else _FIRST_READING_S
                if (now_s := time.monotonic()) > end or now_s - begun_s > limit_s:
                    break
                control.session.receive(_FIRST_READING_S)
            if not missing:
                return
            if (certain and periods_left <= 0) or time.monotonic() > end:
                raise BackendLostError("sensor_late", f"no reading since the reset from {', '.join(missing)}")
            control.step(self._contract.control_period_ns, end)

    def _missing_since(self, since_ns: int, now_ns: int) -> list[str]:
        self._arrivals.drop_after(now_ns)
        return self._missing(now_ns, now_ns, since_ns=max(since_ns, 1))

    def confirm(self, question: str, deadline_ns: int) -> None:  # noqa: ARG002 - never called
        """Raise BackendNotReadyError, since a simulator has no operator."""
        raise BackendNotReadyError(f"no operator of {self.name} to confirm: {question}")

    def verify(self, deadline_ns: int) -> Snapshot:
        """Place the entities again after homing, and return readings one period later."""
        control = self._running()
        try:
            return self._step_and_read(control, deadline_to_monotonic_s(deadline_ns, self._clock))
        except BackendLostError as error:
            raise BackendNotReadyError(f"verify: {error}") from None

    def _step_and_read(self, control: LockstepControl, end: float) -> Snapshot:
        self._place_entities(control, end)
        since_ns = control.now_ns() + 1
        self._arrivals.begin_step()
        self._entities.clear()
        control.step(self._contract.control_period_ns, end)
        self._await_first_readings(control, since_ns, end)
        return self._snapshot(control, end)

    # ----------------------------------------------------------------------------------------------- step

    @deferred_signals()
    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish one message per actuator, unless another client has moved the world."""
        check_approved(command)
        control = self._running()
        control.check_unmoved()
        parts = self._layout.split(self._zeros.to_simulator(command.values))
        period_s = self._contract.control_period_ns / NS_PER_S
        for name, publisher in self._publishers.items():
            message = to_command(self._actuators[name], parts[name], stamp_ns=control.now_ns(), period_s=period_s)
            self._echoes.expect(name, message)
            publisher.publish(message)
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target_ns: int, deadline_ns: int) -> None:
        """Await the echoes, let the commands settle, and request the step."""
        control = self._running()
        end = deadline_to_monotonic_s(deadline_ns, self._clock)
        if missing := self._await(control, self._echoes.missing, end):
            raise BackendLostError("command_unheard", f"no command echo received on {', '.join(missing)}")
        settled = time.monotonic() + self._profile.command_settle_s
        while (left_s := settled - time.monotonic()) > 0:
            control.session.receive(left_s)
        duration_ns = target_ns - control.now_ns()
        if duration_ns != self._contract.control_period_ns:
            raise BackendLostError("out_of_step", f"a step from {control.now_ns()} ns does not end at {target_ns} ns")
        self._arrivals.begin_step()
        control.begin_step(duration_ns, end)

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:
        """Wait until the world is at rest and every due reading has arrived."""
        control = self._running()
        end = deadline_to_monotonic_s(deadline_ns, self._clock)
        control.finish_step(end)
        if missing := self._await(control, lambda: self._missing(after_ns, control.now_ns()), end):
            raise BackendLostError("sensor_late", f"no reading at {after_ns} ns from {', '.join(missing)}")
        return self._snapshot(control, end)

    def _await(self, control: LockstepControl, missing: Callable[[], list[str]], end: float) -> list[str]:
        """Receive until nothing is `missing`, at most `sensor_grace_s`, and return what still is."""
        end = min(end, time.monotonic() + self._profile.sensor_grace_s)
        while (names := missing()) and (left_s := end - time.monotonic()) >= 0.0:
            control.session.receive(min(POLL_S, left_s))
        return names

    def _missing(self, target_ns: int, now_ns: int, *, since_ns: int = 0) -> list[str]:
        expected = self._arrivals.expected(target_ns, now_ns, since_ns=since_ns)
        return self._arrivals.missing(expected) + self._entities.missing(target_ns, now_ns)

    def _snapshot(self, control: LockstepControl, end: float) -> Snapshot:
        """Return the newest readings of a world that no other client has moved."""
        now_ns = control.now_ns()
        published = self._entities.states()
        states = {
            name: published[name] if name in published else self._entity_state(control, name, end)
            for name in self._derived.entities(now_ns)
        }
        control.check_unmoved()
        if self._arrivals.has_future(now_ns):
            control.session.receive(POLL_S)
            control.check_unmoved()  # the clock shows steps of another client
            self._arrivals.raise_if_future(now_ns)
        samples = {  # a paused simulator repeats its messages, so gaps are not losses
            name: self._zeros.to_contract(replace(sample, lost=0) if sample.lost else sample)
            for name, sample in self._arrivals.samples().items()
        }
        samples = self._derived.complete(samples, states, now_ns, self._entities.contacts())
        return Snapshot(now_ns=now_ns, samples=samples)

    def _entity_state(self, control: LockstepControl, entity: str, end: float) -> EntityState:
        """Return the pose of an entity, or where it was placed if the simulator cannot report it."""
        if control.capabilities.state_query:
            return control.state(entity, end)
        if entity not in self._places:
            raise BackendLostError("refused", f"{self._api.name} cannot query the pose of {entity}")
        place = self._places[entity]
        return EntityState(position=np.array(place.position), orientation=np.array(place.orientation))

    # ------------------------------------------------------------------------------------------------ end

    def halt(self, reason: str) -> None:  # noqa: ARG002 - without steps the world is at rest
        """Publish nothing more until the next reset, which connects again."""
        self._usable, self._is_connected, self._is_halted = False, False, True

    def close(self) -> None:
        """Destroy our node, while the simulator keeps its state."""
        self._usable = self._is_connected = False
        ros, self._ros, self._control = self._ros, None, None
        self._publishers.clear()
        if ros is not None:
            ros.close()

    def processes(self) -> list[dict[str, Any]]:
        """Return none, since the backend starts no process."""
        return []

    def _running(self) -> LockstepControl:
        if not self._usable or self._control is None:
            raise BackendLostError("halted", "the connection was halted, closed, or never reset")
        return self._control


class SimulationInterfacesBackend(SimulatorBackend):
    """Any simulator with the standard services of simulation_interfaces."""

    name = "simulation_interfaces"
