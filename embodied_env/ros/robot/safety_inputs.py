"""Monitor a robot's e-stops, inactive controllers and foreign publishers.

`ActivationMonitor` follows the lifecycle nodes, controllers or values that a profile requires as active. A source
without messages or responses counts as inactive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rclpy.clock import Clock as RosClock
from rclpy.clock import ClockType
from rclpy.node import Node

from embodied_env.contract import Contract
from embodied_env.core.safety_input_state import INPUT_OK, INPUT_UNKNOWN, InputState, InputStatus
from embodied_env.errors import BackendNotReadyError, MissingDependencyError
from embodied_env.messages.any_message import follow
from embodied_env.messages.declaration import Message
from embodied_env.messages.message_types import message_class
from embodied_env.ros.robot.estops import GRAPH_DELAY_NS, EstopInputs, ignoring, is_one_of
from embodied_env.ros.robot.graph_checks import contention
from embodied_env.ros.robot.robot_profile import TRANSITION_EVENT, ActiveSpec, RealProfile
from embodied_env.ros.robot.sensor_publishers import SENSOR_TOPICS, SensorPublishers
from embodied_env.ros.transport.qos import RELIABLE, input_qos
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.ros.transport.setup_checks import apt_package
from embodied_env.timing.clock import NS_PER_S, Clock

CONTENTION = "actuator topics"
"""The name of the safety input that reports other publishers of commands."""

_CONTENTION_PERIOD_NS = NS_PER_S // 2  # a check takes some hundred microseconds

POLL_PERIOD_S = 0.5
"""Period of the calls to each service. Lifecycle nodes also publish their transitions."""

Client = Any
"""Client of rclpy with `srv_type`, `service_is_ready`, `call_async` and `remove_pending_request`."""

ActiveStatus = tuple[bool, str]
"""Whether it is active, and if not, the reason."""

_ACTIVE_ID = 3  # lifecycle_msgs/msg/State.PRIMARY_STATE_ACTIVE
_ACTIVE = "active"  # controller_manager_msgs/msg/ControllerState.state
_NO_STATUS = "no status received"


class SafetyInputs:
    """The safety inputs of one connection, under the listener's lock.

    Attributes:
        publishers: those of the readings and of these inputs; the owner of the sensors adds their messages.
    """

    def __init__(self, contract: Contract, profile: RealProfile, listener: ReceiveThread, clock: Clock) -> None:
        """Subscribe, before `listener` starts."""
        self._contract = contract
        self._profile = profile
        self._node = listener.node
        self._listener = listener
        self._clock = clock
        self._estops = EstopInputs(profile.estop, clock)
        self._checked_ns = 0  # the graph, on the steady clock
        self._contention = INPUT_OK
        self.publishers = SensorPublishers(
            contract, self._node, clock, shared=profile.shared, inputs=[spec.topic for spec in profile.estop.values()]
        )
        for name, spec in profile.estop.items():
            listener.subscribe(name, spec.type, spec.topic, input_qos(latched=spec.latched), self._store)
        bound_ns = contract.safety.observation.stop_steps * contract.control_period_ns
        self._activation = ActivationMonitor(profile.active, self._node, listener, clock, bound_ns=bound_ns)

    def _store(self, arrival: ReceivedMessage) -> None:
        self.publishers.add(self._estops.specs[arrival.key].topic, arrival)
        self._estops.put(arrival.key, arrival.message)

    def clear_contention(self) -> None:
        """Report no contention until the next check, since preflight has just found none."""
        self._contention = INPUT_OK

    def missing(self) -> list[str]:
        """Return the names of the inputs without a message or response, under the lock."""
        return self._unknown() + self._activation.missing()

    def _unknown(self) -> list[str]:
        return [name for name, state in self._estops.states().items() if state == INPUT_UNKNOWN]

    def wait_for_inputs(self, deadline_ns: int) -> None:
        """Wait for messages of all inputs, or raise BackendNotReadyError at `deadline_ns` (steady)."""
        if not self._listener.wait_until(lambda: not self._unknown(), deadline_ns):
            topics = ", ".join(self._estops.specs[name].topic for name in self._unknown())
            raise BackendNotReadyError(f"no message from safety inputs on {topics}")

    def check_stops(self, deadline_ns: int) -> None:
        """Wait as `wait_for_inputs`, and raise BackendNotReadyError unless all stops are ok."""
        self.wait_for_inputs(deadline_ns)
        with self._listener.condition:
            stops = [f"{name} is {state}" for name, state in self._estops.described().items() if not state.is_ok]
        if stops:
            raise BackendNotReadyError(f"reset service not called: {'; '.join(stops)} (backends.real.estop)")

    def check_active(self, deadline_ns: int) -> None:
        """Raise BackendNotReadyError unless everything in ``backends.real.active`` is active."""
        self._activation.begin(deadline_ns)

    def states(self, *, is_moving: bool) -> dict[str, InputState]:
        """Return each input's state under the lock, with foreign command sources if `is_moving`."""
        now_ns, node = self._clock.now_ns(), self._node
        self._estops.forget_unpublished(lambda topic: node.count_publishers(node.resolve_topic_name(topic)))
        if is_moving and now_ns - self._checked_ns >= _CONTENTION_PERIOD_NS:
            found = [
                f"{', '.join(publishers)} on {node.resolve_topic_name(topic)}"
                for topic, publishers in contention(self._contract, self._profile, node).items()
            ]
            self._contention = InputState(InputStatus.CONTENTION, "; ".join(found)) if found else INPUT_OK
            self._checked_ns = now_ns
        topics = {CONTENTION: self._contention, SENSOR_TOPICS: self.publishers.state()}
        return {**self._estops.described(), **self._activation.states(), **topics}


class ActivationStates:
    """State of each source, ok, lapsed (HOLD) or, `bound_ns` later, inactive (STOP).

    A lapse lasts until `clear`, even if the source becomes active again, since its controller released the robot
    meanwhile.
    """

    def __init__(self, specs: Mapping[str, ActiveSpec], clock: Clock, *, bound_ns: int) -> None:
        self.specs = specs
        self._clock = clock
        self._bound_ns = bound_ns
        self._received: dict[str, tuple[bool, str, int]] = {}  # the status, and when it was received
        self._lapsed: dict[str, tuple[int, str]] = {}  # since when, and why

    def clear(self) -> None:
        """Clear all lapses so that services must respond again, but keep the values of topics."""
        self._lapsed.clear()
        self._received = {name: last for name, last in self._received.items() if self.specs[name].topic is not None}

    def put(self, name: str, status: ActiveStatus) -> None:
        """Store a status of `name` that was received now."""
        is_active, why = status
        now_ns = self._clock.now_ns()
        self._received[name] = (is_active, why, now_ns)
        if not is_active:
            self._lapsed.setdefault(name, (now_ns, why))

    def mark_unpublished(self, count_publishers: Callable[[str], int]) -> None:
        """Mark latched topics without a publisher as inactive, as their values may be outdated."""
        now_ns = self._clock.now_ns()
        for name, (_, _, received_ns) in tuple(self._received.items()):
            spec = self.specs[name]
            if not spec.latched or spec.topic is None or now_ns - received_ns < GRAPH_DELAY_NS:
                continue
            if not count_publishers(spec.topic):
                self.put(name, (False, f"no publisher on {spec.topic}"))

    def missing(self) -> list[str]:
        """Return the names without a status since `clear`."""
        return [name for name in self.specs if name not in self._received]

    def states(self) -> dict[str, InputState]:
        """Return the state of each source."""
        now_ns = self._clock.now_ns()
        return {name: self._state(name, spec, now_ns) for name, spec in self.specs.items()}

    def _state(self, name: str, spec: ActiveSpec, now_ns: int) -> InputState:
        if why := self._problem(name, spec, now_ns):
            self._lapsed.setdefault(name, (now_ns, why))
        if name not in self._lapsed:
            return INPUT_OK
        since_ns, why = self._lapsed[name]
        return InputState(InputStatus.INACTIVE if now_ns - since_ns >= self._bound_ns else InputStatus.LAPSED, why)

    def _problem(self, name: str, spec: ActiveSpec, now_ns: int) -> str:
        if name not in self._received:
            return _NO_STATUS
        is_active, why, received_ns = self._received[name]
        if not is_active:
            return why
        silent_s = (now_ns - received_ns) / NS_PER_S
        is_late = silent_s > spec.timeout_s and not spec.latched
        return f"no message from {spec.service or spec.topic} for {silent_s:.1f} s" if is_late else ""


class ActivationMonitor(ActivationStates):
    """Subscribes to lifecycle transitions and to topics, and polls services twice a second."""

    def __init__(
        self, specs: Mapping[str, ActiveSpec], node: Node, listener: ReceiveThread, clock: Clock, *, bound_ns: int
    ) -> None:
        """Subscribe and create the clients before `listener`, whose lock guards the states, starts."""
        super().__init__(specs, clock, bound_ns=bound_ns)
        self._node = node
        self._listener = listener
        self._clients: dict[str, Client] = {}
        self._pending: dict[str, tuple[Any, int]] = {}  # the request in flight to each service, and when it was sent
        for name, spec in specs.items():
            if spec.service is not None:
                self._clients[name] = _create_client(node, spec.types[0], spec.service, name)
            if spec.node is not None:
                listener.subscribe(name, TRANSITION_EVENT, f"{spec.node}/transition_event", RELIABLE, self._on_message)
            elif spec.topic is not None:
                listener.subscribe(name, spec.type, spec.topic, input_qos(latched=spec.latched), self._on_message)
        if specs:
            node.create_timer(POLL_PERIOD_S, self._poll, clock=RosClock(clock_type=ClockType.STEADY_TIME))

    def _on_message(self, arrival: ReceivedMessage) -> None:
        spec = self.specs[arrival.key]
        if spec.node is not None:
            status = lifecycle_state(arrival.message.goal_state, spec.node)
        else:
            status = topic_state(arrival.message, spec)
        self.put(arrival.key, status)

    def _poll(self) -> None:
        with self._listener.condition:
            for name in self._clients:
                self._call(name)
            self.mark_unpublished(lambda topic: self._node.count_publishers(self._node.resolve_topic_name(topic)))

    def _call(self, name: str) -> None:
        client, now_ns = self._clients[name], self._clock.now_ns()
        if name in self._pending and now_ns - self._pending[name][1] > self.specs[name].timeout_s * NS_PER_S:
            self._cancel(name)
        if name not in self._pending and client.service_is_ready():
            future = client.call_async(client.srv_type.Request())
            self._pending[name] = future, now_ns
            future.add_done_callback(partial(self._on_response, name))

    def _cancel(self, name: str) -> None:
        if name in self._pending:
            future, _ = self._pending.pop(name)
            self._clients[name].remove_pending_request(future)

    def _on_response(self, name: str, future: Any) -> None:  # noqa: ANN401 - rclpy's
        with self._listener.condition:
            if name not in self._pending or self._pending[name][0] is not future:
                return  # it was cancelled
            del self._pending[name]
            spec, response = self.specs[name], future.result()
            if spec.node is not None:
                status = lifecycle_state(response.current_state, spec.node)
            else:
                status = controller_state(response, spec.controller or "", spec.manager)
            self.put(name, status)
            self._listener.condition.notify_all()

    def begin(self, deadline_ns: int) -> None:
        """Poll again, and raise BackendNotReadyError unless active by `deadline_ns` (steady clock)."""
        with self._listener.condition:
            self.clear()
            for name in self._clients:
                self._cancel(name)
                self._call(name)
            if not self._listener.wait_until(lambda: not self.missing(), deadline_ns):
                missing = {name: self.specs[name] for name in self.missing()}
                sources = [f"{name} (from {spec.service or spec.topic})" for name, spec in missing.items()]
                raise BackendNotReadyError(f"no status received of {', '.join(sources)} (backends.real.active)")
            problems = [f"{name} is {state}" for name, state in self.states().items() if not state.is_ok]
        if problems:
            raise BackendNotReadyError(f"required to be active: {'; '.join(problems)} (backends.real.active)")


def lifecycle_state(state: Message, node: str) -> ActiveStatus:
    """Read a lifecycle_msgs/msg/State of a response or of the goal of a transition."""
    return int(state.id) == _ACTIVE_ID, f"{node} is {state.label or f'in the state {state.id}'}"


def controller_state(response: Message, controller: str, manager: str) -> ActiveStatus:
    """Find a controller in the response of ListControllers."""
    for found in response.controller:
        if found.name == controller:
            return found.state == _ACTIVE, f"{controller} is {found.state or 'in no state'}"
    return False, f"{manager} has no controller {controller}"


def topic_state(message: Message, spec: ActiveSpec) -> ActiveStatus:
    """Read a message of the topic of `spec`, where an unreadable one counts as not active."""
    try:
        value = follow(message, spec.path)
        reason = "" if spec.reason is None else str(follow(message, spec.reason))
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        return False, f"{spec.topic} cannot be read: {error}"
    return is_one_of(value, spec.safe), f"{spec.topic} is {value!r}" + (f": {reason}" if reason else "")


def _create_client(node: Node, type_name: str, service: str, name: str) -> Client:
    try:
        kind = message_class(type_name)
    except MissingDependencyError:
        package = type_name.split("/", maxsplit=1)[0]
        raise MissingDependencyError(
            package,
            needed_for=f"backends.real.active, the service {service},",
            remedy=f"apt install {apt_package(package)}, or declare a topic instead: {{topic, type, path, safe}}, "
            f"or if the robot is safe without: {ignoring(name)}",
        ) from None
    return node.create_client(kind, service)
