"""What must be active while the robot moves: lifecycle nodes, controllers, or what a topic says. Silence is inactive.

They stand in a profile as ``active: {name: {node} | {controller, manager} | {topic, type, path, safe, reason}}``. Here
is what they say and what follows from it; who asks them is `embodied_env.ros.robot.required_active`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from embodied_env.contract.message_types import message_class
from embodied_env.contract.value_checks import check_positive, check_topic, require
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.errors import ContractError
from embodied_env.ros.message_fields import Message, follow
from embodied_env.ros.robot.estops import estop_specs, is_one_of

GET_STATE = "lifecycle_msgs/srv/GetState"
TRANSITION_EVENT = "lifecycle_msgs/msg/TransitionEvent"
LIST_CONTROLLERS = "controller_manager_msgs/srv/ListControllers"

_ACTIVE_ID = 3  # lifecycle_msgs/msg/State.PRIMARY_STATE_ACTIVE
_ACTIVE = "active"  # controller_manager_msgs/msg/ControllerState.state
_KINDS = ("node", "controller", "topic")
_OF_TOPICS = ("type", "path", "safe", "reason", "latched")
_UNHEARD = "nothing was heard of it"


@dataclass(frozen=True, kw_only=True)
class ActiveSpec:
    """One thing that must be active: a lifecycle `node`, a `controller` of a `manager`, or a value of a `topic`.

    `safe`: the values at `path` that mean active. `reason`: the path of a text in the same message that says why it is
    not. `latched`: published when it changes only, and kept for late comers; then its last value stays. Anything else
    that says nothing for `timeout_s` is inactive.
    """

    node: str | None = None
    controller: str | None = None
    manager: str = "/controller_manager"
    topic: str | None = None
    type: str = "std_msgs/msg/Bool"
    path: str = "data"
    safe: tuple[bool | int | float | str, ...] = (True,)
    reason: str | None = None
    latched: bool = False
    timeout_s: float = 2.0

    @property
    def service(self) -> str | None:
        """The service that is asked; None: it is heard by a topic."""
        if self.node is not None:
            return f"{self.node}/get_state"
        return f"{self.manager}/list_controllers" if self.controller is not None else None

    @property
    def types(self) -> tuple[str, ...]:
        """The messages and services that are needed."""
        if self.node is not None:
            return (GET_STATE, TRANSITION_EVENT)
        return (LIST_CONTROLLERS,) if self.controller is not None else (self.type,)


def check_active(active: Mapping[str, ActiveSpec], path: str) -> None:
    """Check what stands in a profile under ``active``, at `path`.

    Raises:
        ContractError: for a value that is not allowed.
        MissingDependencyError: for the messages of a topic that are not installed.
    """
    for name, spec in active.items():
        where = f"{path}.{name}"
        given = [key for key in _KINDS if getattr(spec, key) is not None]
        problem = f"{', '.join(given) or 'nothing'} is not allowed; allowed: exactly one of {', '.join(_KINDS)}"
        require(len(given) == 1, where, problem)
        check_positive(f"{where}.timeout_s", spec.timeout_s, "seconds")
        if spec.topic is not None:
            _check_topic(name, spec, path)
            continue
        for key in _OF_TOPICS:
            is_default = getattr(spec, key) == getattr(ActiveSpec(), key)
            require(is_default, f"{where}.{key}", f"a {given[0]} has none; allowed: only with a topic")
        check_topic(f"{where}.{given[0]}", spec.node or spec.controller or "")
        check_topic(f"{where}.manager", spec.manager)


def _check_topic(name: str, spec: ActiveSpec, path: str) -> None:
    keys = ("topic", "type", "path", "safe", "timeout_s", "latched")
    estop_specs({name: {key: getattr(spec, key) for key in keys}}, path)
    if spec.reason is None:
        return
    try:
        text = follow(message_class(spec.type)(), spec.reason)
    except (AttributeError, IndexError) as error:
        problem = f"{spec.reason!r} leads nowhere in a {spec.type}: {error}"
        raise ContractError(f"{path}.{name}.reason", problem) from None
    require(isinstance(text, str), f"{path}.{name}.reason", f"{spec.reason!r} is no text in a {spec.type}")


# ----------------------------------------------------------------------------------------------- what they say

ActiveStatus = tuple[bool, str]
"""Whether it is active, and why not."""


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


# -------------------------------------------------------------------------------------------- what follows from it


@dataclass(frozen=True, kw_only=True)
class _Heard:
    is_active: bool
    why: str
    at_ns: int


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
