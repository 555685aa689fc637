"""A robot, or what looks like one, over its own topics: it moves by itself, and time is the system clock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from embodied_env.backends.base import Capabilities
from embodied_env.backends.ros.estops import EstopInputs
from embodied_env.backends.ros.graph import contention
from embodied_env.backends.ros.listener import Listener
from embodied_env.backends.ros.node import PATROL_S, Arrival, RosNode
from embodied_env.backends.ros.outlets import ActuatorTopics, Outlet, Trigger
from embodied_env.backends.ros.preflight import (
    check_positions,
    contract_checks,
    measured_positions,
    preflight,
    raise_unless_passed,
)
from embodied_env.backends.ros.real_profile import load_real_profile, profile_in_force
from embodied_env.backends.ros.relay_outlet import RELAY_STATE, RelayOutlet
from embodied_env.backends.ros.sensors import SensorBuffer
from embodied_env.clock import NS_PER_S, Clock, Stamp
from embodied_env.contract import Contract, FloatArray
from embodied_env.errors import BackendLostError, BackendNotReadyError, UsageError
from embodied_env.interrupts import held_interrupts
from embodied_env.lockstep import ResetReply
from embodied_env.pacing import Pacer
from embodied_env.ros_environment import check_domain_id, check_namespace, timeout_s
from embodied_env.transition import Approved, ResetReport, ResetRequest, Sample, Sent, Snapshot

SENSOR_QOS = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)  # matches every publisher
LATCHED_QOS = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)

CONTENTION = "actuator topics"
"""The name of the safety input that says whether somebody else publishes commands."""

_SETTLED_NS = NS_PER_S
_LOOK_NS = NS_PER_S // 2  # between two looks at who else publishes


class RealBackend:
    """Commands out to the actuators' topics or to a relay; the newest readings, taken by a thread of our own, back in.

    Attributes:
        capabilities: with a relay it acknowledges commands: the joint limits are the relay's.
        pacer: the deadlines of the steps of an episode, and what was missed of them.
    """

    name = "real"
    capabilities = Capabilities(free_running=True, transport=True, estop_inputs=True, reset_levels=("none", "world"))

    def __init__(  # noqa: PLR0913 - its options
        self,
        contract: Contract,
        *,
        clock: Clock,
        namespace: str | None = None,
        domain_id: int | None = None,
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
        relay: bool | None = None,
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
            on_sample: told of every reading as it arrives, in the thread that listens; it must be quick.

        Raises:
            ContractError: for a profile ``backends.real`` that is missing or wrong, or for a relay that cannot
                keep all of the contract.
            UsageError: for a virtual clock, a wrong timeout, namespace, domain or relay.
        """
        if clock.virtual:
            raise UsageError(f"a {type(clock).__name__} is not allowed with a robot; allowed: clock='steady'")
        if namespace is not None:
            check_namespace(namespace)
        if domain_id is not None:
            check_domain_id(domain_id, "domain_id")
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
        self._written = profile_in_force(contract, is_relayed=self._is_relayed)
        if self._is_relayed:
            self.capabilities = replace(self.capabilities, acknowledges_commands=True)
        self.pacer = Pacer(clock, contract.control_period_ns)
        self._ros: RosNode | None = None
        self._listener: Listener | None = None
        self._outlet: Outlet | None = None
        self._relay: RelayOutlet | None = None  # the outlet, where it is one
        self._reset_service: Trigger | None = None
        self._buffers: dict[str, SensorBuffer] = {}
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
        self._ros = RosNode("environment", namespace=self._namespace, clock=self._clock, domain_id=self._domain_id)
        node = self._ros.node
        listener = self._listener = Listener(node, self._clock)
        self._buffers = {name: SensorBuffer(name, sensor) for name, sensor in contract.sensors.items()}
        self._inputs = EstopInputs(profile.inputs(), self._clock)
        for name, sensor in contract.sensors.items():
            listener.subscribe(name, sensor.type, sensor.topic, SENSOR_QOS, self._sensor_taker(name))
        for spec in self._inputs.specs:
            qos = LATCHED_QOS if spec.latched else SENSOR_QOS
            listener.subscribe(spec.name, spec.type, spec.topic, qos, self._take_input)
        if self._is_relayed:
            self._outlet = self._relay = RelayOutlet(contract, node, listener, self._clock)
        else:
            self._outlet = ActuatorTopics(contract, node, self._clock)
        self._reset_service = None if profile.reset is None else Trigger(node, profile.reset.service, self._clock)
        listener.start()

    def _sensor_taker(self, name: str) -> Callable[[Arrival], None]:
        """Return what takes the messages of a sensor; one by receipt is stamped as it arrives."""
        buffer = self._buffers[name]
        by_receipt = self._contract.sensors[name].timeline == "receive"
        received = 0

        def take(arrival: Arrival) -> None:
            nonlocal received
            received += 1
            if by_receipt and arrival.info["publication_sequence_number"] is None:
                arrival.info["publication_sequence_number"] = received
            buffer.put(arrival)
            if by_receipt:
                buffer.accept(arrival.arrival_system_ns, arrival.info["publication_sequence_number"] or 0)
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
        return listener

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Call the reset service, if there is one, then wait for a reading of every sensor that is newer.

        A relay is armed before, so that it rests while the robot is reset, and again where the robot is then.
        """
        self._usable = False
        if request.options:
            raise UsageError(f"reset options are not available with a robot: {', '.join(request.options)}")
        end = time.monotonic() + max(0.0, (deadline.ns - self._clock.now_ns()) / NS_PER_S)
        listener = self._connect(deadline)
        if self._relay is not None:
            self._relay.arm(deadline.ns)  # whatever moves the robot by it rests from now on
        reply = self._call_reset(listener, deadline)
        self._await_newer(listener, self._clock.system_ns(), end)
        self._await_inputs(listener, end)
        report = ResetReport(
            level="none" if self._profile.reset is None else "world",
            seed_applied=None,
            sampled={} if reply is None else reply.sampled,
            details={} if reply is None else reply.details,
        )
        raise_unless_passed(
            [check_positions(self._contract, self._measured(listener), outside=self._profile.start_outside)]
        )
        if self._relay is not None:
            self._relay.arm(deadline.ns, lambda: self._measured(listener))
        self._usable = True
        self.pacer.begin()
        return self._snapshot(listener, report)

    def _measured(self, listener: Listener) -> FloatArray:
        """Return the newest positions of the joints, shape (n_joints,), in contract order; NaN where unknown."""
        samples = self._snapshot(listener, None).samples
        return measured_positions(self._contract, {name: sample.values for name, sample in samples.items()})

    def _call_reset(self, listener: Listener, deadline: Stamp) -> ResetReply | None:
        """Call the service once: who knows what a second call would do. Return the reply of an embedded simulator."""
        if self._profile.reset is None or self._reset_service is None:
            return None
        try:
            response = self._reset_service.call(deadline.ns, listener.check)
        except BackendNotReadyError as error:
            raise BackendNotReadyError(f"{error} (backends.real.reset.service)") from None
        if not response.success:
            raise BackendNotReadyError(f"the robot could not be reset: {response.message}")
        try:
            reply = ResetReply.from_text(response.message)
        except ValueError:
            return None  # a robot's own words
        if reply.fingerprint != self._contract.fingerprint:
            raise BackendNotReadyError(
                f"the simulator runs a contract of fingerprint {reply.fingerprint[:12]}, "
                f"not {self._contract.fingerprint[:12]}"
            )
        return reply

    def _await_newer(self, listener: Listener, reset_ns: int, end: float) -> None:
        """Wait until every sensor has a reading stamped after `reset_ns` of the system clock."""
        with listener.changed:
            for buffer in self._buffers.values():
                buffer.clear()
            while missing := [name for name, buffer in self._buffers.items() if buffer.stamp_ns <= reset_ns]:
                listener.check()
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
        stamp_ns = self._buffers[name].stamp_ns
        if stamp_ns < 0:
            return f"no message on {self._contract.sensors[name].topic}"
        return f"stamped {(reset_ns - stamp_ns) / NS_PER_S:.3f} s before it: is its clock that of this host?"

    # ----------------------------------------------------------------------------------------------- step

    @held_interrupts()
    def send(self, command: Approved) -> Sent:
        """Hand an approved command to the outlet."""
        if not isinstance(command, Approved):
            raise TypeError(f"send() takes only Approved, not {type(command).__name__}")
        self._running()
        outlet = self._outlet
        if outlet is None:
            raise BackendLostError("closed", "the connection is closed")
        return outlet.send(command)

    def advance(self, target: Stamp, deadline: Stamp) -> None:  # noqa: ARG002 - the robot moves by itself
        """Wait for the end of the control period."""
        self._running()
        self.pacer.wait()

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - what there is, is there
        """Return the newest readings; raises BackendLostError when no sensor says anything any more."""
        return self._snapshot(self._running(), None)

    def _snapshot(self, listener: Listener, report: ResetReport | None) -> Snapshot:
        with listener.changed:
            listener.check()
            silent_s = (self._clock.now_ns() - self._heard_ns) / NS_PER_S
            if silent_s > self.step_timeout_s:
                raise BackendLostError("silent", f"no reading of any sensor for {silent_s:.3f} s")
            found = {name: buffer.sample() for name, buffer in self._buffers.items()}
        samples = {name: sample for name, sample in found.items() if sample is not None}
        return Snapshot(now_ns=self._clock.system_ns(), samples=samples, reset=report)

    def estops(self) -> Mapping[str, str]:
        """Return the state of each safety input (`EstopInputs.states`). Any thread may ask."""
        names = (*self._profile.estop, CONTENTION, *([RELAY_STATE] if self._is_relayed else []))
        listener, unknown = self._listener, dict.fromkeys(names, "unknown")
        if listener is None:
            return unknown
        with listener.changed:  # `close` takes the node away under it
            if self._ros is None or listener.failure is not None:
                return unknown
            self._forget_orphans(self._ros.node)
            states = {**self._inputs.states(), CONTENTION: "contention" if self._look(self._ros.node) else "ok"}
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
            if spec.latched and is_settled and not node.count_publishers(spec.topic):
                self._inputs.forget(spec.name)

    # ------------------------------------------------------------------------------------------------ end

    def halt(self, reason: str) -> None:  # noqa: ARG002 - nobody is told: the robot's own timeout acts
        """Publish nothing more until the next reset."""
        self._usable = False

    def close(self) -> None:
        """End our thread, and destroy our node."""
        self._usable = False
        listener, ros = self._listener, self._ros
        with contextlib.nullcontext() if listener is None else listener.changed:
            self._listener = self._ros = self._outlet = self._relay = self._reset_service = None
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
