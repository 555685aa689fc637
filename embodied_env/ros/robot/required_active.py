"""Monitor what must be active while the robot moves: lifecycle nodes, controllers, or a value on a topic.

`RequiredActiveMonitor` subscribes and calls the services; `RequiredActiveState` holds the result of each, without ROS.
A source that reports nothing counts as inactive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rclpy.clock import Clock as RosClock
from rclpy.clock import ClockType
from rclpy.node import Node

from embodied_env.contract.message_types import message_class
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.errors import BackendNotReadyError, MissingDependencyError
from embodied_env.ros.message_fields import Message, follow
from embodied_env.ros.qos import RELIABLE, input_qos
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.receiver import POLL_S, ReceivedMessage
from embodied_env.ros.robot.estops import is_one_of
from embodied_env.ros.robot.profile import TRANSITION_EVENT, ActiveSpec
from embodied_env.ros.setup_checks import apt_package

ACTIVE_POLL_S = 0.5
"""Between two questions. A lifecycle node also says so by itself, at once."""

Client = Any
"""What rclpy's is: `srv_type`, `service_is_ready`, `call_async`, `remove_pending_request`."""

ActiveStatus = tuple[bool, str]
"""Whether it is active, and why not."""

_ACTIVE_ID = 3  # lifecycle_msgs/msg/State.PRIMARY_STATE_ACTIVE
_ACTIVE = "active"  # controller_manager_msgs/msg/ControllerState.state
_UNHEARD = "nothing was heard of it"
_SETTLED_NS = NS_PER_S


def create_client(node: Node, type_name: str, service: str) -> Client:
    """Create a client; raises MissingDependencyError, which names the package of the system."""
    try:
        kind = message_class(type_name)
    except MissingDependencyError:
        package = type_name.split("/", maxsplit=1)[0]
        raise MissingDependencyError(
            package,
            needed_for=f"backends.real.active, the service {service},",
            remedy=f"apt install {apt_package(package)}, or describe it by a topic: {{topic, type, path, safe}}",
        ) from None
    return node.create_client(kind, service)


class RequiredActiveMonitor:
    """Subscribes to the transitions of lifecycle nodes and to topics, and asks the services twice a second."""

    def __init__(
        self,
        specs: Mapping[str, ActiveSpec],
        node: Node,
        listener: ReceiveThread,
        clock: Clock,
        *,
        bound_ns: int,
        make_client: Callable[[Node, str, str], Client] = create_client,
    ) -> None:
        """Subscribe and prepare to ask; `listener` has not started yet.

        Args:
            specs: what must be active.
            node: asks and hears.
            listener: whose thread turns the node, and whose lock guards what was heard.
            clock: the steady clock.
            bound_ns: how long after something was noticed it is a STOP (`RequiredActiveState`).
            make_client: makes the clients; a test has its own.

        Raises:
            MissingDependencyError: for messages that are not installed.
        """
        self._node = node
        self._listener = listener
        self._clock = clock
        self._activities = RequiredActiveState(specs, clock, bound_ns=bound_ns)
        self._questions: list[_Question] = []
        for name, spec in specs.items():
            if spec.service is not None:
                client = make_client(node, spec.types[0], spec.service)
                self._questions.append(_Question(name, spec, client, clock, self._answered))
            if spec.node is not None:
                topic = f"{spec.node}/transition_event"
                listener.subscribe(f"active/{name}", TRANSITION_EVENT, topic, RELIABLE, self._taker(name, spec))
            elif spec.topic is not None:
                qos = input_qos(latched=spec.latched)
                listener.subscribe(f"active/{name}", spec.type, spec.topic, qos, self._taker(name, spec))
        if specs:
            node.create_timer(ACTIVE_POLL_S, self._poll, clock=RosClock(clock_type=ClockType.STEADY_TIME))

    def _taker(self, name: str, spec: ActiveSpec) -> Callable[[ReceivedMessage], None]:
        def take(arrival: ReceivedMessage) -> None:
            if spec.node is not None:
                said = lifecycle_state(arrival.message.goal_state, spec.node)
            else:
                said = topic_state(arrival.message, spec)
            self._activities.say(name, said)

        return take

    def _answered(self, question: _Question, future: Any) -> None:  # noqa: ANN401 - rclpy's
        with self._listener.condition:
            if (said := question.answer(future)) is not None:
                self._activities.say(question.name, said)
                self._listener.condition.notify_all()

    def _poll(self) -> None:
        with self._listener.condition:
            for question in self._questions:
                question.ask()
            self._find_orphans()

    def _find_orphans(self) -> None:
        """What a topic said holds as long as somebody offers it. One that has just come may not be in the graph yet."""
        now_ns = self._clock.now_ns()
        for name, spec in self._activities.specs.items():
            heard_ns = self._activities.heard_ns(name)
            if not spec.latched or spec.topic is None or heard_ns is None or now_ns - heard_ns < _SETTLED_NS:
                continue
            if not self._node.count_publishers(self._node.resolve_topic_name(spec.topic)):
                self._activities.say(name, (False, f"nobody publishes {spec.topic} any more"))

    def states(self) -> dict[str, str]:
        """Return the states (`RequiredActiveState.states`), under the listener's lock."""
        return self._activities.states()

    def begin(self, deadline_ns: int) -> None:
        """Ask anew, and wait until all have said that they are active.

        Args:
            deadline_ns: of the wait, on the steady clock.

        Raises:
            BackendNotReadyError: for what is not active, or says nothing.
            BackendLostError: when nobody listens any more.
        """
        listener, activities = self._listener, self._activities
        with listener.condition:
            activities.begin()
            for question in self._questions:
                question.forget()
                question.ask()
            while unheard := activities.unheard():
                listener.raise_if_failed()
                if (left_ns := deadline_ns - self._clock.now_ns()) <= 0:
                    raise BackendNotReadyError(f"nothing was heard of what must be active: {self._named(unheard)}")
                listener.condition.wait(min(POLL_S, left_ns / NS_PER_S))
            problems = [f"{name} is {state}" for name, state in activities.states().items() if state != "ok"]
        if problems:
            raise BackendNotReadyError(f"what must be active is not: {'; '.join(problems)} (backends.real.active)")

    def _named(self, names: list[str]) -> str:
        specs = self._activities.specs
        return ", ".join(f"{name} (no answer from {specs[name].service or specs[name].topic})" for name in names)


class RequiredActiveState:
    """The states of what must be active. Once one was not, it stays so until `begin`: its controller has let go.

    A state is "ok", "lapsed: <why>" (HOLD) or, `bound_ns` after it was noticed, "inactive: <why>" (STOP).
    """

    def __init__(self, specs: Mapping[str, ActiveSpec], clock: Clock, *, bound_ns: int) -> None:
        """Know nothing of any of `specs` yet. `clock` is the steady clock."""
        self.specs = specs
        self._clock = clock
        self._bound_ns = bound_ns
        self._heard: dict[str, _Heard] = {}
        self._lapsed: dict[str, tuple[int, str]] = {}  # since when, and why

    def begin(self) -> None:
        """Forget what has lapsed. Who can be asked must be asked anew; what a topic said last still holds."""
        self._lapsed.clear()
        self._heard = {name: heard for name, heard in self._heard.items() if self.specs[name].topic is not None}

    def say(self, name: str, said: ActiveStatus) -> None:
        """Take what was heard of `name` just now."""
        is_active, why = said
        now_ns = self._clock.now_ns()
        self._heard[name] = _Heard(is_active=is_active, why=why, at_ns=now_ns)
        if not is_active:
            self._lapsed.setdefault(name, (now_ns, why))

    def heard_ns(self, name: str) -> int | None:
        """Return when `name` was heard last; None: never."""
        heard = self._heard.get(name)
        return None if heard is None else heard.at_ns

    def unheard(self) -> list[str]:
        """Return the names of which nothing was heard since `begin`."""
        return [name for name in self.specs if name not in self._heard]

    def states(self) -> dict[str, str]:
        """Return name -> "ok", "lapsed: <why>" or "inactive: <why>"."""
        now_ns = self._clock.now_ns()
        return {name: self._state(name, spec, now_ns) for name, spec in self.specs.items()}

    def _state(self, name: str, spec: ActiveSpec, now_ns: int) -> str:
        if why := self._problem(name, spec, now_ns):
            self._lapsed.setdefault(name, (now_ns, why))
        if name not in self._lapsed:
            return "ok"
        since_ns, why = self._lapsed[name]
        return f"{'inactive' if now_ns - since_ns >= self._bound_ns else 'lapsed'}: {why}"

    def _problem(self, name: str, spec: ActiveSpec, now_ns: int) -> str:
        heard = self._heard.get(name)
        if heard is None:
            return _UNHEARD
        if not heard.is_active:
            return heard.why
        silent_s = (now_ns - heard.at_ns) / NS_PER_S
        is_late = silent_s > spec.timeout_s and not spec.latched
        return f"{spec.service or spec.topic} is silent for {silent_s:.1f} s" if is_late else ""


def lifecycle_state(state: Message, node: str) -> ActiveStatus:
    """Read a lifecycle_msgs/msg/State: of a response, or the goal of a transition."""
    return int(state.id) == _ACTIVE_ID, f"{node} is {state.label or f'in the state {state.id}'}"


def controller_state(response: Message, controller: str, manager: str) -> ActiveStatus:
    """Find a controller in the response of ListControllers."""
    for found in response.controller:
        if found.name == controller:
            return found.state == _ACTIVE, f"{controller} is {found.state or 'in no state'}"
    return False, f"{manager} has no controller {controller}"


def topic_state(message: Message, spec: ActiveSpec) -> ActiveStatus:
    """Read a message of the topic of `spec`; one that cannot be read is not active."""
    try:
        value = follow(message, spec.path)
        reason = "" if spec.reason is None else str(follow(message, spec.reason))
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        return False, f"{spec.topic} cannot be read: {error}"
    return is_one_of(value, spec.safe), f"{spec.topic} says {value!r}" + (f": {reason}" if reason else "")


@dataclass(frozen=True, kw_only=True)
class _Heard:
    is_active: bool
    why: str
    at_ns: int


class _Question:
    """One service that is asked again and again, under the listener's lock; at most one request is under way."""

    def __init__(
        self,
        name: str,
        spec: ActiveSpec,
        client: Client,
        clock: Clock,
        answered: Callable[[_Question, Any], None],
    ) -> None:
        self.name = name
        self._spec = spec
        self._client = client
        self._clock = clock
        self._answered = answered
        self._pending: Any = None
        self._asked_ns = 0

    def forget(self) -> None:
        """An answer that is under way is of the past."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._client.remove_pending_request(pending)

    def ask(self) -> None:
        """Ask, unless an answer is under way or nobody offers the service."""
        now_ns = self._clock.now_ns()
        if self._pending is not None and now_ns - self._asked_ns > self._spec.timeout_s * NS_PER_S:
            self.forget()
        if self._pending is not None or not self._client.service_is_ready():
            return
        self._asked_ns = now_ns
        future = self._pending = self._client.call_async(self._client.srv_type.Request())
        future.add_done_callback(lambda done: self._answered(self, done))

    def answer(self, future: Any) -> ActiveStatus | None:  # noqa: ANN401 - rclpy's
        """Return what the response says; None: it is one of the past."""
        if future is not self._pending:
            return None
        self._pending = None
        spec, response = self._spec, future.result()
        if spec.node is not None:
            return lifecycle_state(response.current_state, spec.node)
        return controller_state(response, spec.controller or "", spec.manager)
