"""A simulator that others wrote, over ROS 2, in lockstep: Gazebo, or any with the standard interfaces.

It is attached to, never started. How it is told to move is `ros.external_sim.control`. Of its sensors a step
delivers those that are due, stamped at its end or later: what is older is counted and never taken for fresh, what is
late (rendering) is waited for.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from embodied_env.backends.base import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.message_types import message_class
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.clock import NS_PER_S, Clock, Stamp, deadline_to_monotonic_s
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.process.signals import deferred_signals
from embodied_env.core.reset_spec import ResetRoutine
from embodied_env.core.types import ApprovedCommand, ResetReport, ResetRequest, SentCommand, Snapshot, check_approved
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.ros.command_messages import to_command
from embodied_env.ros.embedded_sim.protocol import CLOCK_TOPIC
from embodied_env.ros.external_sim.command_echo import CommandEchoes
from embodied_env.ros.external_sim.control import make_dialect
from embodied_env.ros.external_sim.control.base import EntityState
from embodied_env.ros.external_sim.control.service_session import CLOCK
from embodied_env.ros.external_sim.control.verified_control import VerifiedSimControl
from embodied_env.ros.external_sim.derived_sensors import DerivedSensors
from embodied_env.ros.external_sim.entity_topics import EntityTopics
from embodied_env.ros.external_sim.profile import check_offered, load_simulator_profile
from embodied_env.ros.external_sim.randomization import RandomizedPoses, placing
from embodied_env.ros.fastdds import warn_if_segment_too_small
from embodied_env.ros.node import RosNode
from embodied_env.ros.qos import command_qos
from embodied_env.ros.receiver import POLL_S, ReceivedMessage
from embodied_env.ros.setup_checks import check_namespace_and_domain, timeout_s
from embodied_env.ros.step_arrivals import StepArrivals

_NOT_DUE_S = 0.02  # how long a first reading is waited for that need not be there yet


class SimulatorBackend:
    """Commands out; a step, confirmed by the clock; the sensors of its end back in.

    Attributes:
        feed: gets the messages that our node publishes and receives.
        routine: the way home, where the profile says one.
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
        """Prepare; nothing is connected.

        Args:
            contract: what the simulator must offer.
            clock: stamps arrivals and bounds waits.
            namespace: absolute; relative topics resolve in it. None: the root. A simulator's services and ``/clock``
                do not move with it, but for those of the embedded one.
            domain_id: None: ``ROS_DOMAIN_ID``, or 0.
            step_timeout_s: how long a step may take before the simulator counts as lost; None: the profile's.
            reset_timeout_s: how long a reset may take; None: the profile's.

        Raises:
            ContractError: when the contract has no profile for this backend, or a wrong one.
            UsageError: for a wrong timeout, namespace or domain.
            MissingDependencyError: for messages of its control that are not installed.
        """
        self._profile, control = load_simulator_profile(contract, self.name)
        self._contract, self._clock = contract, clock
        check_namespace_and_domain(namespace, domain_id)
        self._namespace, self._domain_id = namespace or "/", domain_id
        self.step_timeout_s = timeout_s("step_timeout_s", step_timeout_s, self._profile.step_timeout_s)
        self.reset_timeout_s = timeout_s("reset_timeout_s", reset_timeout_s, self._profile.reset_timeout_s)
        self._dialect = make_dialect(control, world=self._profile.world, prefix=self._profile.prefix)
        self._clock_topic = CLOCK_TOPIC if control == "embedded" else CLOCK
        self.capabilities = Capabilities(
            exact_step=True,
            pausable=True,
            rewinds_time=self._profile.reset == "world" and control != "embedded",
            transport=True,
            reset_levels=(self._profile.reset,),
        )
        self.routine = ResetRoutine(home=self._profile.home) if self._profile.home else None
        self.feed = MessageTap()
        self._layout = ActionLayout(contract)
        published = {name: sensor for name, sensor in contract.sensors.items() if name not in self._profile.sources}
        self._arrivals = StepArrivals(published, slack_ns=self._profile.step_ns)
        self._derived = DerivedSensors(contract, self._profile.sources, clock)
        self._entities = EntityTopics(contract, self._profile)
        self._echoes = CommandEchoes(contract, self._profile.echo)
        self._ros: RosNode | None = None
        self._control: VerifiedSimControl | None = None
        self._publishers: dict[str, Any] = {}
        self._placement = RandomizedPoses(places={}, sampled={})
        self._is_connected = self._usable = False

    # ------------------------------------------------------------------------------------------ connecting

    def open(self) -> None:
        """Create our node. Raises BackendNotReadyError or MissingDependencyError."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        warn_if_segment_too_small(self._contract)
        ros = self._ros = RosNode(
            "environment", namespace=self._namespace, clock=self._clock, domain_id=self._domain_id, feed=self.feed
        )
        self._arrivals.subscribe(ros.receiver)
        self._entities.subscribe(ros.receiver)
        self._echoes.subscribe(ros.receiver)
        self._publishers = {
            name: ros.node.create_publisher(message_class(actuator.type), actuator.topic, command_qos(actuator))
            for name, actuator in self._contract.actuators.items()
        }
        self._control = VerifiedSimControl(
            self._dialect,
            ros.receiver,
            topic=self._clock_topic,
            step_ns=self._profile.step_ns,
            hand_on=self._hand_on,
        )

    def _connect(self, end: float) -> tuple[RosNode, VerifiedSimControl]:
        """Return our node and the control once the simulator hears and is heard, and stands still."""
        if self._ros is None or self._control is None:
            raise BackendNotReadyError("the node is not open")
        if not self._is_connected:
            self._control.connect(end)
            check_offered(self._profile, self._dialect.name, self._control.capabilities)
            self._is_connected = True
        topics = [sensor.topic for sensor in (*self._arrivals.sensors.values(), *self._entities.topics.values())]
        unmatched = self._ros.wait_for_peers(list(self._publishers.values()), topics, end - time.monotonic())
        if unmatched is not None:
            problems = [
                ("nobody reads", unmatched.unread),
                ("nobody publishes", unmatched.unpublished),
                ("more than one publishes", unmatched.shared),
            ]
            raise BackendNotReadyError("; ".join(f"{what} {', '.join(names)}" for what, names in problems if names))
        return self._ros, self._control

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Put the world back, and let it settle; every sensor is newer than the reset."""
        end = deadline_to_monotonic_s(deadline, self._clock)
        self._usable = False
        try:
            _, control = self._connect(end)
            self._echoes.clear()
            self._derived.begin()
            self._placement = placing(self._contract, self._profile, request)
            seed_used = None
            if self._profile.reset == "world":
                seed = request.seed if control.capabilities.seedable else None
                seed_used = control.reset("world", seed, end).seed_used
            else:
                control.check_still(end)
                control.hear(end)
            snapshot = self._settle(control, end)
        except BackendLostError as error:
            raise BackendNotReadyError(f"reset: {error}") from None
        self._usable = True
        report = ResetReport(
            level=self._profile.reset,
            seed_applied=seed_used,
            sampled=self._placement.sampled,
            details=self._details(control),
            ignored=tuple(name for name in request.options if name not in self._profile.draws),
        )
        return replace(snapshot, reset=report)

    def _settle(self, control: VerifiedSimControl, end: float) -> Snapshot:
        """Place the entities, let physics settle, and return a snapshot of readings that are all newer.

        A world that was reset settles first: its joints may begin where the entities are going to be.
        """
        since_ns, is_soft = control.now_ns(), self._profile.reset == "soft"
        if is_soft:
            self._place(control, end)
        control.take(0.0)
        self._entities.clear()
        self._arrivals.clear()
        control.step(self._profile.settle_steps * control.step_ns, end)
        if self._placement.places and not is_soft:
            return self._verified(control, end)
        self._await_first(control, since_ns, end)
        return self._snapshot(control, end)

    def _place(self, control: VerifiedSimControl, end: float) -> None:
        for name, place in self._placement.places.items():
            control.set_state(name, np.array(place.position), np.array(place.orientation), end)

    def _await_first(self, control: VerifiedSimControl, since_ns: int, end: float) -> None:
        """Wait for a reading of each sensor; step on for those whose rate has not made them due yet."""
        while True:
            now_ns = control.now_ns()
            late_by = time.monotonic() + self._profile.sensor_grace_s
            while missing := self._without_first(since_ns, now_ns):
                certain = [name for name in missing if self._arrivals.is_due_since(name, since_ns, now_ns)]
                waited_s = time.monotonic() - (late_by - self._profile.sensor_grace_s)
                if time.monotonic() > min(late_by, end) or (not certain and waited_s > _NOT_DUE_S):
                    break
                control.take(max(0.0, min(POLL_S, _NOT_DUE_S)))
            if not missing:
                return
            if certain or time.monotonic() > end:
                raise BackendLostError("sensor_late", f"no reading since the reset from {', '.join(missing)}")
            control.step(self._contract.control_period_ns, end)

    def _without_first(self, since_ns: int, now_ns: int) -> list[str]:
        """Return the sensors and topics without a reading since the reset."""
        self._arrivals.drop_after(now_ns)
        expected = self._arrivals.expected(now_ns, now_ns, since_ns=max(since_ns, 1))
        return self._arrivals.missing(expected) + self._entities.missing(now_ns, now_ns)

    def _details(self, control: VerifiedSimControl) -> dict[str, str]:
        """Return what else the reset chose, in words."""
        details = {"control": self._dialect.name, "settle_steps": str(self._profile.settle_steps)}
        if self._profile.command_settle_s:
            details["command_settle_s"] = str(self._profile.command_settle_s)
        details["step_ns"] = str(control.step_ns)
        return details

    def confirm(self, question: str, deadline: Stamp) -> None:  # noqa: ARG002 - nobody is asked
        """A simulator has nobody who could be asked."""
        raise BackendNotReadyError(f"{self.name} asks nobody: {question}")

    def verify(self, deadline: Stamp) -> Snapshot:
        """Put what the way home may have touched back, and read anew, a control period later."""
        control = self._running()
        end = deadline_to_monotonic_s(deadline, self._clock)
        try:
            return self._verified(control, end)
        except BackendLostError as error:
            raise BackendNotReadyError(f"verify: {error}") from None

    def _verified(self, control: VerifiedSimControl, end: float) -> Snapshot:
        self._place(control, end)
        since_ns = control.now_ns() + 1
        self._arrivals.begin_step()
        self._entities.clear()
        control.step(self._contract.control_period_ns, end)
        self._await_first(control, since_ns, end)
        return self._snapshot(control, end)

    # ----------------------------------------------------------------------------------------------- step

    @deferred_signals()
    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish one message per actuator, when nobody else has moved the world since the last step."""
        check_approved(command)
        control = self._running()
        control.check()
        parts = self._layout.split(command.values)
        period_s = self._contract.control_period_ns / NS_PER_S
        for name, publisher in self._publishers.items():
            actuator = self._contract.actuators[name]
            message = to_command(actuator, parts[name], stamp_ns=control.now_ns(), period_s=period_s)
            self._echoes.expect(name, message)
            publisher.publish(message)
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Await the echoes, let commands settle, and step; return when the world stands still again."""
        control = self._running()
        end = deadline_to_monotonic_s(deadline, self._clock)
        self._await_echoes(control, end)
        settled = time.monotonic() + self._profile.command_settle_s
        while (left_s := settled - time.monotonic()) > 0:
            control.take(left_s)
        duration_ns = target.ns - control.now_ns()
        if duration_ns != self._contract.control_period_ns:
            raise BackendLostError("out_of_step", f"from {control.now_ns()} ns no step leads to {target.ns} ns")
        self._arrivals.begin_step()
        control.step(duration_ns, end)

    def _await_echoes(self, control: VerifiedSimControl, end: float) -> None:
        end = min(end, time.monotonic() + self._profile.sensor_grace_s)
        while silent := self._echoes.silent():
            if time.monotonic() > end:
                raise BackendLostError("command_unheard", f"nobody repeated the command on {', '.join(silent)}")
            control.take(max(0.0, min(POLL_S, end - time.monotonic())))

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Wait until every reading of the step that is due is here."""
        control = self._running()
        end = deadline_to_monotonic_s(deadline, self._clock)
        late_by = min(end, time.monotonic() + self._profile.sensor_grace_s)
        while missing := self._missing(after.ns, control.now_ns()):
            if time.monotonic() > late_by:
                raise BackendLostError("sensor_late", f"at {after.ns} ns these are missing: {', '.join(missing)}")
            control.take(max(0.0, min(POLL_S, late_by - time.monotonic())))
        return self._snapshot(control, end)

    def _missing(self, target_ns: int, now_ns: int) -> list[str]:
        """Return whose reading of the end of the step is not here yet."""
        expected = self._arrivals.expected(target_ns, now_ns)
        return self._arrivals.missing(expected) + self._entities.missing(target_ns, now_ns)

    def _snapshot(self, control: VerifiedSimControl, end: float) -> Snapshot:
        """Return the newest readings, of a world that nobody else has moved."""
        now_ns = control.now_ns()
        told = self._entities.states()
        wanted = self._derived.entities(now_ns)
        states = {name: told[name] if name in told else self._state(control, name, end) for name in wanted}
        control.check()
        if self._arrivals.has_future(now_ns):
            control.take(POLL_S)
            control.check()  # a world that another client has stepped shows it on its clock
            self._arrivals.raise_if_future(now_ns)
        samples = {  # a paused simulator repeats itself: what was not read between two steps is no loss
            name: replace(sample, lost=0) for name, sample in self._arrivals.samples().items()
        }
        samples = self._derived.complete(samples, states, now_ns, self._entities.events())
        return Snapshot(now_ns=now_ns, samples=samples)

    def _state(self, control: VerifiedSimControl, entity: str, end: float) -> EntityState:
        """Return where an entity is; where the simulator does not tell, as it was placed."""
        if control.capabilities.state_query:
            return control.state(entity, end)
        if entity not in self._placement.places:
            raise BackendLostError("refused", f"{self._dialect.name} does not tell where {entity} is")
        place = self._placement.places[entity]
        return EntityState(position=np.array(place.position), orientation=np.array(place.orientation))

    def _hand_on(self, arrival: ReceivedMessage) -> None:
        if not self._echoes.add(arrival) and not self._entities.add(arrival):
            self._arrivals.add(arrival)

    # ------------------------------------------------------------------------------------------------ end

    def halt(self, reason: str) -> None:  # noqa: ARG002 - without steps the world stands still
        """Publish nothing more until the next reset, which connects anew."""
        self._usable = self._is_connected = False

    def close(self) -> None:
        """Destroy our node. The simulator stays as it is."""
        self._usable = self._is_connected = False
        ros, self._ros = self._ros, None
        control, self._control = self._control, None
        self._publishers.clear()
        if control is not None:
            control.close()
        if ros is not None:
            ros.close()

    def processes(self) -> list[dict[str, Any]]:
        """Return none: nothing was started."""
        return []

    def _running(self) -> VerifiedSimControl:
        if not self._usable or self._control is None:
            raise BackendLostError("halted", "the connection was halted, closed, or never reset")
        return self._control


class GazeboBackend(SimulatorBackend):
    """Gazebo, by ros_gz_bridge unless its profile says otherwise."""

    name = "gazebo"


class SimulationInterfacesBackend(SimulatorBackend):
    """Any simulator with the standard interfaces."""

    name = "simulation_interfaces"
