"""Safety inputs of the robot emulator, published or reported as safe, switched by services."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.errors import ContractError, MissingDependencyError
from embodied_env.messages.any_message import write_path
from embodied_env.messages.declaration import Message
from embodied_env.messages.message_types import message_class
from embodied_env.ros.robot.estops import SafetyInputSpec, check_input, is_installed, spec_in_use
from embodied_env.ros.robot.robot_profile import PATH, ActiveSpec, parse_real_profile
from embodied_env.timing.clock import NS_PER_S

_REPEATS = 5  # messages per timeout, since one may be late
_LIFECYCLE_IDS = {"inactive": 2, "active": 3}  # ids of lifecycle_msgs/msg/State
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EstopSpec(SafetyInputSpec):
    """A safety input with its name."""

    name: str


Inputs = Mapping[str, EstopSpec | ActiveSpec]
"""Safety inputs by the key of the profile and their name, as in ``estop/button`` or ``active/program``.

An `ActiveSpec` is a lifecycle node or a controller, whose state a service reports.
"""


def emulated_inputs(contract: Contract) -> Inputs:
    """Return the e-stops of ``backends.real`` and what must be active, or raise ContractError.

    A topic whose message package is not installed has its variant. Without a variant, it is not emulated, and neither
    is a service whose package is not installed.
    """
    if "real" not in contract.backends:
        return {}
    profile = parse_real_profile(contract)
    declared = {f"estop/{name}": spec for name, spec in profile.estop.items()}
    declared |= {f"active/{name}": spec.as_input() for name, spec in profile.active.items() if spec.topic is not None}
    inputs: dict[str, EstopSpec | ActiveSpec] = {}
    for name, active in profile.active.items():
        if active.service is not None and is_installed(active.types[0]):
            inputs[f"active/{name}"] = active
    for name, declaration in declared.items():
        spec = spec_in_use(declaration)
        try:
            check_input(spec, f"{PATH}.{name.replace('/', '.')}")
        except MissingDependencyError as error:
            _log.warning("not emulated: %s", error)
            continue
        inputs[name] = EstopSpec(name=name, **vars(spec))
    return inputs


class EmulatedTopic:
    """Topic of safety inputs, which is not published while another node publishes it."""

    def __init__(self, inputs: Sequence[EstopSpec], node: Any, latched_qos: Any, repeated_qos: Any) -> None:  # noqa: ANN401 - rclpy's
        """Create the publisher, and per input a service ``~/<key>/<name>`` that switches it."""
        self._inputs, self._node = inputs, node
        self._unsafe: set[str] = set()
        for spec in inputs:
            message_of(inputs, {spec.name})
        repeated_ns = [round(spec.timeout_s * NS_PER_S / _REPEATS) for spec in inputs if not spec.latched]
        self._period_ns = min(repeated_ns, default=None)
        is_latched = any(spec.latched for spec in inputs)
        kind = message_class(inputs[0].type)
        self._publisher = node.create_publisher(kind, inputs[0].topic, latched_qos if is_latched else repeated_qos)
        for spec in inputs:
            _create_switch(node, spec.name, self._unsafe, self._publish_soon)
        self.next_ns: int | None = 0

    def serve(self, now_ns: int) -> None:
        """Publish the state if it is due at this time of the steady clock."""
        if self.next_ns is None or now_ns < self.next_ns:
            return
        self.next_ns = None if self._period_ns is None else now_ns + self._period_ns
        if self._node.count_publishers(self._publisher.topic_name) < 2:
            self._publisher.publish(message_of(self._inputs, self._unsafe))

    def _publish_soon(self) -> None:
        self.next_ns = 0


class EmulatedService:
    """Service that reports the state of a lifecycle node, or of a manager's controllers."""

    def __init__(self, service: str, specs: Mapping[str, ActiveSpec], node: Any) -> None:  # noqa: ANN401 - rclpy's
        """Offer `service`, and for each of `specs` a SetBool service ``~/active/<name>``."""
        self._specs, self._inactive = specs, set[str]()
        node.create_service(message_class(next(iter(specs.values())).types[0]), service, self._respond)
        for name in specs:
            _create_switch(node, name, self._inactive, lambda: None)

    def _respond(self, _request: Any, response: Any) -> Any:  # noqa: ANN401 - generated types
        for name, spec in self._specs.items():
            state = "inactive" if name in self._inactive else "active"
            if spec.node is not None:
                response.current_state.id, response.current_state.label = _LIFECYCLE_IDS[state], state
            else:
                controller = message_class("controller_manager_msgs/msg/ControllerState")
                response.controller.append(controller(name=spec.controller, state=state))
        return response


def _create_switch(node: Any, name: str, unsafe: set[str], on_change: Callable[[], None]) -> None:  # noqa: ANN401
    words, adds = (("released", "pressed"), True) if name.startswith("estop/") else (("inactive", "active"), False)

    def on_request(request: Any, response: Any) -> Any:  # noqa: ANN401 - generated types
        (unsafe.add if bool(request.data) is adds else unsafe.discard)(name)
        on_change()
        response.success, response.message = True, words[bool(request.data)]
        return response

    node.create_service(message_class("std_srvs/srv/SetBool"), f"~/{re.sub(r'[^A-Za-z0-9_/]', '_', name)}", on_request)


def services_of(inputs: Inputs) -> dict[str, dict[str, ActiveSpec]]:
    """Return a mapping of each service to the names and inputs that it reports."""
    found: dict[str, dict[str, ActiveSpec]] = {}
    for name, spec in inputs.items():
        if isinstance(spec, ActiveSpec) and spec.service is not None:
            found.setdefault(spec.service, {})[name] = spec
    return found


def topics_of(inputs: Inputs) -> Iterator[list[EstopSpec]]:
    """Yield the inputs of each topic, or raise ContractError for a topic with several types."""
    by_topic: dict[str, list[EstopSpec]] = {}
    for name, spec in inputs.items():
        if isinstance(spec, ActiveSpec):
            continue
        first = by_topic.setdefault(spec.topic, [spec])[0]
        if first.type != spec.type:
            problem = f"{spec.type} (expected {first.type}, as {first.name} on the same topic {spec.topic})"
            raise ContractError(f"{PATH}.{name.replace('/', '.')}.type", problem)
        if first is not spec:
            by_topic[spec.topic].append(spec)
    yield from by_topic.values()


def message_of(inputs: Sequence[EstopSpec], unsafe: set[str]) -> Message:
    """Return the message of a topic's inputs, or raise ContractError if a value does not fit."""
    message = message_class(inputs[0].type)()
    for spec in sorted(inputs, key=lambda spec: spec.name in unsafe):  # the unsafe ones last, should two share a field
        value = _unsafe(spec.safe) if spec.name in unsafe else spec.safe[0]
        try:
            write_path(message, spec.path, np.array([value]))
        except (AssertionError, AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
            problem = f"{value!r} does not fit the field {spec.path} of a {spec.type}: {error}"
            raise ContractError(f"{PATH}.{spec.name.replace('/', '.')}.safe", problem) from None
    return message


def _unsafe(safe: Sequence[Any]) -> Any:  # noqa: ANN401 - a value of a message
    """Return a value of the type of the safe ones that is none of them."""
    if isinstance(safe[0], bool):
        return not safe[0]
    if isinstance(safe[0], str):
        return "pressed" + "".join(map(str, safe))
    return next(type(safe[0])(number) for number in range(len(safe) + 1) if number not in safe)
