"""A robot, or what looks like one, over its own topics: it moves by itself, and nobody owns its time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rclpy.node import Node

from embodied_env.backends.base import Capabilities
from embodied_env.backends.ros.activity_watch import ActivityWatch
from embodied_env.backends.ros.confirmation import Confirmation, make_confirmation
from embodied_env.backends.ros.diagnostics import Diagnostics
from embodied_env.backends.ros.estops import EstopInputs
from embodied_env.backends.ros.evidence import ControllerState
from embodied_env.backends.ros.frames import Frames
from embodied_env.backends.ros.graph import contention
from embodied_env.backends.ros.intake import Intake, make_readers
from embodied_env.backends.ros.listener import Listener
from embodied_env.backends.ros.node import PATROL_S, Arrival, RosNode
from embodied_env.backends.ros.outlets import ActuatorTopics, Outlet
from embodied_env.backends.ros.preflight import (
    check_positions,
    contract_checks,
    measured_positions,
    preflight,
    raise_unless_passed,
)
from embodied_env.backends.ros.qos import ANY, input_qos, sensor_qos
from embodied_env.backends.ros.real_profile import load_real_profile, node_parameters, profile_in_force
from embodied_env.backends.ros.relay_outlet import RELAY_STATE, RelayOutlet
from embodied_env.backends.ros.reset_profile import RESET_LEVELS
from embodied_env.backends.ros.reset_service import ResetService
from embodied_env.backends.ros.sensors import SensorBuffer
from embodied_env.backends.ros.tf import Tf2Frames
from embodied_env.backends.ros.timekeeping import Timekeeper
from embodied_env.clock import NS_PER_S, Clock, Stamp
from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.qos import is_latched
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import BackendLostError, BackendNotReadyError, UsageError
from embodied_env.interrupts import held_interrupts
from embodied_env.pacing import Pacer
from embodied_env.ros_environment import check_domain_id, check_namespace, check_node_name, ros_arguments, timeout_s
from embodied_env.transition import Actuation, Approved, Observer, ResetReport, ResetRequest, Sample, Sent, Snapshot
from embodied_env.wire import Feed

CONTENTION = "actuator topics"
"""The name of the safety input that says whether somebody else publishes commands."""

_SETTLED_NS = NS_PER_S
_LOOK_NS = NS_PER_S // 2  # between two looks at who else publishes


class RealBackend:
    """Commands out to the actuators' topics or to a relay; the newest readings, taken by a thread of our own, back in.

    Attributes:
        capabilities: with a relay it acknowledges commands: the joint limits are the relay's.
        pacer: the deadlines of the steps of an episode, and what was missed of them.
        observers: who is told of each transition: what publishes the diagnostics.
        feed: gets the messages that our node publishes and receives.
    """

    name = "real"
    capabilities = Capabilities(free_running=True, transport=True, estop_inputs=True, reset_levels=RESET_LEVELS)

    def __init__(  # noqa: PLR0913 - the public options
        self,
        contract: Contract,
        *,
        clock: Clock,
        namespace: str | None = None,
        domain_id: int | None = None,
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
        relay: bool | None = None,
        node_name: str = "environment",
        ros_args: Sequence[str] = (),
        frames: Frames | None = None,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            contract: what the robot offers.
            clock: paces the steps and stamps arrivals; a steady one.
            namespace: absolute ROS namespace of the robot; None: the root.
            domain_id: None: ``ROS_DOMAIN_ID``, or 0.
            step_timeout_s: without any reading for so long the robot counts as lost; None: the profile's.
            reset_timeout_s: how long a reset may take; None: the profile's.
            relay: whether commands go through a relay, which runs already; None: the profile's.
            node_name: of our node; no other in the namespace may have it.
            ros_args: what would stand after ``--ros-args``, for our node alone: ``["-r", "joint_states:=arm/states"]``.
                What stands in the command line of this process holds too.
            frames: who knows the transforms where the profile asks for some; None: tf2.
            on_sample: told of every reading as it arrives, in the thread that listens; it must be quick.

        Raises:
            ContractError: for a profile ``backends.real`` that is missing or wrong, or for a relay that cannot
                keep all of the contract.
            UsageError: for a virtual clock, a wrong timeout, namespace, domain, name or relay.
        """
        if clock.virtual:
            raise UsageError(f"a {type(clock).__name__} is not allowed with a robot; allowed: clock='steady'")
        if namespace is not None:
            check_namespace(namespace)
        if domain_id is not None:
            check_domain_id(domain_id, "domain_id")
        check_node_name(node_name)
        self._node_name, self._ros_args = node_name, tuple(ros_arguments(ros_args))
        self._contract = contract
        self._clock = clock
        self._namespace = namespace or "/"
        self._domain_id = domain_id
        self._profile = load_real_profile(contract)
        self.step_timeout_s = timeout_s("step_timeout_s", step_timeout_s, self._profile.step_timeout_s)
        self.reset_timeout_s = timeout_s("reset_timeout_s", reset_timeout_s, self._profile.reset_timeout_s)
        if relay not in (None, True, False):
            raise UsageError(f"relay={relay!r} is not allowed; allowed: True, False, None")
        self._on_sample = on_sample
        self._is_relayed = self._profile.relay if relay is None else bool(relay)
        if self._is_relayed and self._profile.use_sim_time:
            raise UsageError("relay=True is not allowed with backends.real.use_sim_time: a relay goes by the wall")
        self._written = profile_in_force(contract, is_relayed=self._is_relayed)
        tells = self._profile.controller_state is not None or self._profile.actuation_s is not None
        self.capabilities = replace(
            self.capabilities,
            acknowledges_commands=self._is_relayed,
            actuation=self._is_relayed or tells,
            seedable=self._profile.reset_spec.parameters,
        )
        self.routine = self._profile.reset_spec.routine()
        self.pacer = Pacer(clock, contract.control_period_ns)
        self.feed = Feed()
        self._ros: RosNode | None = None
        self._listener: Listener | None = None
        self._outlet: Outlet | None = None
        self._relay: RelayOutlet | None = None  # the outlet, where it is one
        self._reset_service: ResetService | None = None
        self._confirmation: Confirmation | None = None
        self._controller: ControllerState | None = None
        self._left: tuple[int, int] | None = None  # the number of the last command, and when it left
        self._buffers: dict[str, SensorBuffer] = {}
        self._time = self._keep_time()
        self._frames = frames
        self._intakes: dict[str, Intake] = {}
        self._activity: ActivityWatch | None = None
        self._diagnostics = Diagnostics(contract, clock)
        self.observers: tuple[Observer, ...] = (self._diagnostics,)
        self._inputs = EstopInputs(self._profile.inputs(), clock)
        self._input_ns: dict[str, int] = {}  # when each safety input was heard
        self._heard_ns = 0  # any sensor, on the steady clock
        self._is_watched = False  # the graph was right once, and has been watched since
        self._looked_ns = 0  # at who else publishes commands, on the steady clock
        self._is_contended = False
        self._usable = False

    # ------------------------------------------------------------------------------------------ connecting

    def open(self) -> None:
        """Create our node, and begin to listen."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        contract, profile = self._contract, self._profile
        self._is_watched = self._is_contended = False
        raise_unless_passed(contract_checks(contract, self._written))  # before a node is: SROS2
        self._ros = RosNode(
            self._node_name,
            namespace=self._namespace,
            clock=self._clock,
            domain_id=self._domain_id,
            ros_args=self._ros_args,
            parameters=node_parameters(contract, profile, is_relayed=self._is_relayed),
            feed=self.feed,
        )
        node = self._ros.node
        listener = self._listener = Listener(node, self._clock)
        timekeeper = self._time = self._keep_time()
        readers = make_readers(contract, profile.tf, self._frames or (Tf2Frames(node) if profile.tf else None))
        self._buffers = {
            name: SensorBuffer(name, sensor, timekeeper.stampings[name], readers[name])
            for name, sensor in contract.sensors.items()
        }
        self._inputs = EstopInputs(profile.inputs(), self._clock)
        for name, sensor in contract.sensors.items():
            intake = self._intakes[name] = Intake(sensor, readers[name], self._sensor_taker(name))
            listener.subscribe(name, sensor.type, sensor.topic, sensor_qos(sensor), intake.put)
        timekeeper.listen(listener, self._flush)
        for spec in self._inputs.specs:
            qos = input_qos(latched=spec.latched)
            listener.subscribe(spec.name, spec.type, spec.topic, qos, self._take_input)
        if (state := profile.controller_state) is not None:
            controller = self._controller = ControllerState(state, ActionLayout(contract))
            listener.subscribe("controller state", state.type, state.topic, ANY, controller.put)
        bound_ns = contract.safety.observation.stop_steps * contract.control_period_ns
        self._activity = ActivityWatch(profile.active, node, listener, self._clock, bound_ns=bound_ns)
        if self._is_relayed:
            self._outlet = self._relay = RelayOutlet(contract, node, listener, self._clock)
        else:
            self._outlet = ActuatorTopics(contract, node, self._clock)
        self._reset_service = ResetService(profile.reset_spec, node, self._clock, contract.fingerprint)
        self._confirmation = make_confirmation(profile.reset_spec, node, listener, self._clock)
        self._diagnostics.connect(node)
        listener.start()

    def _keep_time(self) -> Timekeeper:
        profile = self._profile
        return Timekeeper(self._contract, self._clock, clocks=profile.clocks, use_sim_time=profile.use_sim_time)

    def _flush(self) -> None:
        for buffer in self._buffers.values():
            buffer.flush()

    def _sensor_taker(self, name: str) -> Callable[[Arrival], None]:
        buffer = self._buffers[name]

        def take(arrival: Arrival) -> None:
            self._time.notice(arrival)
            buffer.put(arrival)
            self._heard_ns = arrival.arrival_ns
            if self._on_sample is not None and (newest := buffer.newest()) is not None:
                self._on_sample(newest)

        return take

    def _take_input(self, arrival: Arrival) -> None:
        self._inputs.put(arrival.key, arrival.message)
        self._input_ns[arrival.key] = arrival.arrival_ns

    def _connect(self, deadline: Stamp) -> Listener:
        """Return the listener once the robot hears and is heard."""
        if self._listener is not None and self._listener.failure is not None:
            self.close()
        if self._listener is None:
            self.open()
        ros, listener = self._ros, self._listener
        if ros is None or listener is None:
            raise BackendNotReadyError("the node is not open")
        settle_s = 0.0 if self._is_watched else self._profile.discovery_s
        raise_unless_passed(
            preflight(
                self._contract,
                self._written,
                ros,
                deadline,
                clock=self._clock,
                settle_s=settle_s,
                patrol=listener.check,
            )
        )
        self._is_watched, self._is_contended = True, False
        self._time.find_hosts(ros.node, listener)
        with listener.changed:
            for buffer in self._buffers.values():
                buffer.judge_again()
        return listener

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Call the reset service, if there is one, then wait for a reading of every sensor that is newer.

        A relay is armed before, so that it rests while the robot is reset, and again where the robot is then. What of
        the routine follows is ordered by the stepper (`RoutineBackend`).
        """
        self._usable = False
        listener = self._connect(deadline)
        self._time.await_clock(listener, self._end(deadline))
        self._check_active(deadline)
        if self._relay is not None:
            self._relay.arm(deadline.ns)  # whatever moves the robot by it rests from now on
        service = self._reset_service
        if service is None:
            raise BackendNotReadyError("the node is not open")
        return self._verified(listener, deadline, service.call(request, deadline.ns, listener.check))

    def confirm(self, question: str, deadline: Stamp) -> None:
        """Ask a person, as the profile says. A relay is armed before, so that it rests while they take their time."""
        listener, confirmation = self._running(), self._confirmation
        if confirmation is None:
            raise BackendNotReadyError("nobody is there to be asked: the profile says confirm: none")
        if self._relay is not None:
            self._relay.arm(deadline.ns)
        confirmation.ask(question, deadline.ns, listener.check)

    def verify(self, deadline: Stamp) -> Snapshot:
        """Wait for a reading of every sensor that is newer than this call. A relay begins where the robot is then."""
        listener = self._running()
        if self._relay is not None:
            self._relay.arm(deadline.ns)
        return self._verified(listener, deadline, None)

    def _end(self, deadline: Stamp) -> float:
        """Return the deadline on the monotonic clock of the middleware's waits, s."""
        return time.monotonic() + max(0.0, (deadline.ns - self._clock.now_ns()) / NS_PER_S)

    def _verified(self, listener: Listener, deadline: Stamp, report: ResetReport | None) -> Snapshot:
        """Read what is newer than now, check where the robot is, and be ready for commands from there."""
        end = self._end(deadline)
        self._await_newer(listener, end)
        self._await_inputs(listener, end)
        self._check_active(deadline)  # the reset may have changed it
        raise_unless_passed(
            [check_positions(self._contract, self._measured(listener), outside=self._profile.start_outside)]
        )
        if self._relay is not None:
            self._relay.arm(deadline.ns, lambda: self._measured(listener))
        self._usable = True
        self._left = None
        with listener.changed:
            if self._controller is not None:
                self._controller.begin()
        self.pacer.begin()
        with listener.changed:
            self._time.timeline.begin()
        return self._snapshot(listener, report)

    def _check_active(self, deadline: Stamp) -> None:
        """Ask anew what must be active; raises BackendNotReadyError unless all of it is."""
        if self._activity is not None:
            self._activity.begin(deadline.ns)

    def _measured(self, listener: Listener) -> FloatArray:
        """Return the newest positions of the joints, shape (n_joints,), in contract order; NaN where unknown."""
        with listener.changed:
            samples = self._samples(listener)
        return measured_positions(self._contract, {name: sample.values for name, sample in samples.items()})

    def _await_newer(self, listener: Listener, end: float) -> None:
        """Wait until every sensor has a reading stamped after now.

        What is latched is said once and holds until the next: of it any reading counts, as long as its age allows.
        """
        sensors = self._contract.sensors
        with listener.changed:
            reset_ns = self._time.timeline.now_ns()
            since_ns = {name: -1 if is_latched(sensors[name].qos) else reset_ns for name in self._buffers}
            for name, buffer in self._buffers.items():
                if since_ns[name] >= 0:
                    buffer.clear()
            while missing := [name for name, buffer in self._buffers.items() if buffer.stamp_ns <= since_ns[name]]:
                listener.check()
                self._look_at_waiting()
                if (left_s := end - time.monotonic()) <= 0:
                    raise BackendNotReadyError(
                        "no reading newer than the reset from "
                        + ", ".join(f"{name} ({self._newest(name, reset_ns)})" for name in missing)
                    )
                listener.changed.wait(min(PATROL_S, left_s))

    def _await_inputs(self, listener: Listener, end: float) -> None:
        """Wait until every safety input has said something: one that is only late is no emergency."""
        with listener.changed:
            while unheard := [name for name, state in self._inputs.states().items() if state == "unknown"]:
                listener.check()
                if (left_s := end - time.monotonic()) <= 0:
                    names = ", ".join(f"{name} (no message on {self._profile.estop[name].topic})" for name in unheard)
                    raise BackendNotReadyError(f"nothing was heard of these safety inputs: {names}")
                listener.changed.wait(min(PATROL_S, left_s))

    def _newest(self, name: str, reset_ns: int) -> str:
        placed = self._buffers[name].placed
        if placed is None:
            return f"no message on {self._contract.sensors[name].topic}"
        if placed.header_ns == 0:
            return "its messages carry no stamp: see safety.observation.require_stamp, or timeline: receive"
        by = f"; by {placed.suspect_clock}?" if placed.suspect_clock else ""
        return f"stamped {(reset_ns - placed.stamp_ns) / NS_PER_S:.3f} s before it: is its clock that of this host{by}?"

    # ----------------------------------------------------------------------------------------------- step

    @held_interrupts()
    def send(self, command: Approved) -> Sent:
        """Hand an approved command to the outlet."""
        if not isinstance(command, Approved):
            raise TypeError(f"send() takes only Approved, not {type(command).__name__}")
        listener, outlet = self._running(), self._outlet
        if outlet is None:
            raise BackendLostError("closed", "the connection is closed")
        with listener.changed:
            if self._controller is not None:
                self._controller.sent(command)
        sent = outlet.send(command)
        self._left = sent.seq, sent.published_ns or self._clock.now_ns()
        return sent

    def advance(self, target: Stamp, deadline: Stamp) -> None:  # noqa: ARG002 - the robot moves by itself
        """Wait for the end of the control period."""
        self._running()
        self.pacer.wait()

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - what there is, is there
        """Return the newest readings; raises BackendLostError when no sensor says anything any more."""
        listener = self._running()
        return replace(self._snapshot(listener, None), actuation=self._acted(listener))

    def _acted(self, listener: Listener) -> Actuation | None:
        """Return the best evidence there is that a command acts: an echo, a controller's word, a declared figure."""
        if self._relay is not None:
            return self._relay.take_evidence()
        if self._controller is not None:
            with listener.changed:
                return self._controller.take()
        if self._profile.actuation_s is None or self._left is None:
            return None
        seq, left_ns = self._left
        return Actuation(seq=seq, acted_ns=left_ns + round(self._profile.actuation_s * NS_PER_S), method="declared")

    def _snapshot(self, listener: Listener, report: ResetReport | None) -> Snapshot:
        with listener.changed:
            samples = self._samples(listener)
            account = self._time.account()
            return Snapshot(now_ns=self._time.timeline.now_ns(), samples=samples, reset=report, clock=account)

    def _samples(self, listener: Listener) -> dict[str, Sample]:
        """Return the newest reading of each sensor that has one. `listener.changed` is held."""
        listener.check()
        self._time.check(self.step_timeout_s)
        silent_s = (self._clock.now_ns() - self._heard_ns) / NS_PER_S
        if silent_s > self.step_timeout_s:
            raise BackendLostError("silent", f"no reading of any sensor for {silent_s:.3f} s")
        self._look_at_waiting()
        found = {name: buffer.sample() for name, buffer in self._buffers.items()}
        return {name: sample for name, sample in found.items() if sample is not None}

    def _look_at_waiting(self) -> None:
        """Hand on the messages whose transform has come, under the listener's lock."""
        now_ns = self._clock.now_ns()
        for intake in self._intakes.values():
            intake.look(now_ns)

    def estops(self) -> Mapping[str, str]:
        """Return the state of each safety input (`EstopInputs.states`). Any thread may ask."""
        names = (*self._profile.estop, *self._profile.active, CONTENTION, *([RELAY_STATE] if self._is_relayed else []))
        listener, unknown = self._listener, dict.fromkeys(names, "unknown")
        if listener is None:
            return unknown
        with listener.changed:  # `close` takes the node away under it
            if self._ros is None or listener.failure is not None:
                return unknown
            self._forget_orphans(self._ros.node)
            active = {} if self._activity is None else self._activity.states()
            states = {
                **self._inputs.states(),
                **active,
                CONTENTION: "contention" if self._look(self._ros.node) else "ok",
            }
            return states if self._relay is None else {**states, RELAY_STATE: self._relay.estop()}

    def _look(self, node: Node) -> bool:
        """Return whether somebody else publishes commands, as seen within the last half second."""
        now_ns = self._clock.now_ns()
        if self._usable and now_ns - self._looked_ns >= _LOOK_NS:  # some hundred microseconds
            found = contention(self._contract, self._written, node)
            self._is_contended = any(each.role == "actuator" for each in found)
            self._looked_ns = now_ns
        return self._is_contended

    def _forget_orphans(self, node: Node) -> None:
        """A latched input whose publisher has gone is unknown. One that has just come may not be in the graph yet."""
        now_ns = self._clock.now_ns()
        for spec in self._inputs.specs:
            is_settled = now_ns - self._input_ns.get(spec.name, now_ns) > _SETTLED_NS
            if spec.latched and is_settled and not node.count_publishers(node.resolve_topic_name(spec.topic)):
                self._inputs.forget(spec.name)

    # ------------------------------------------------------------------------------------------------ end

    def halt(self, reason: str) -> None:  # noqa: ARG002 - nobody is told: the robot's own timeout acts
        """Publish nothing more until the next reset."""
        self._usable = False

    def close(self) -> None:
        """End our thread, and destroy our node."""
        self._usable = False
        listener, ros = self._listener, self._ros
        self._diagnostics.disconnect()
        with contextlib.nullcontext() if listener is None else listener.changed:
            self._listener = self._ros = self._outlet = self._relay = None
            self._reset_service = self._confirmation = self._activity = None
            self._intakes = {}
        try:
            if listener is not None:
                listener.stop()
        finally:
            if ros is not None:
                ros.close()

    def processes(self) -> list[dict[str, Any]]:
        """There is none of ours."""
        return []

    def _running(self) -> Listener:
        listener = self._listener
        if not self._usable or listener is None:
            raise BackendLostError("halted", "the connection was halted, closed, or never reset")
        return listener
