"""The robot's own safety inputs on topics: e-stop buttons and safety modes. An input without messages is never "ok".

A profile declares them as ``estop: {name: {topic, type, path, safe, timeout_s, kind, latched}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from embodied_env.contract.message_types import message_class
from embodied_env.contract.value_checks import check_positive, check_topic, one_of, require
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.errors import ContractError
from embodied_env.ros.message_fields import Message, follow

Kind = Literal["estop", "robot_mode"]

_UNSAFE: Mapping[str, str] = {"estop": "active", "robot_mode": "protective_stop"}


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """A safety input as a profile declares it. It is "ok" while `path` holds a `safe` value younger than `timeout_s`.

    `latched`: published only on a change, with transient-local durability; its last value does not expire.
    """

    topic: str
    type: str = "std_msgs/msg/Bool"
    path: str = "data"
    safe: tuple[bool | int | float | str, ...] = (False,)
    timeout_s: float = 0.5
    kind: Kind = "estop"
    latched: bool = False


@dataclass(frozen=True, kw_only=True)
class EstopSpec(InputSpec):
    """A safety input with its name."""

    name: str


def estop_specs(estop: Mapping[str, Mapping[str, Any]] | None, path: str) -> tuple[EstopSpec, ...]:
    """Read the inputs of a profile.

    Args:
        estop: the profile's ``estop``; None: no inputs.
        path: of ``estop``, for errors.

    Raises:
        ContractError: for an unknown key, or a value that is not allowed.
    """
    return tuple(_spec(name, values, f"{path}.{name}") for name, values in (estop or {}).items())


def _spec(name: str, values: Mapping[str, Any], path: str) -> EstopSpec:
    known = set(InputSpec.__dataclass_fields__)
    for key in values:
        require(key in known, f"{path}.{key}", one_of(key, known))
    require("topic" in values, f"{path}.topic", "it is missing; allowed: the name of a topic")
    safe = values.get("safe", (False,))
    spec = EstopSpec(name=name, **{**values, "safe": safe if isinstance(safe, tuple) else (safe,)})
    check_topic(f"{path}.topic", spec.topic)
    check_positive(f"{path}.timeout_s", spec.timeout_s, "seconds")
    require(spec.kind in get_args(Kind), f"{path}.kind", one_of(spec.kind, get_args(Kind)))
    require(isinstance(spec.latched, bool), f"{path}.latched", f"{spec.latched!r} is not allowed; allowed: true, false")
    require(len(spec.safe) > 0, f"{path}.safe", "there is no safe value: it could never move")
    try:
        message_class(spec.type)
    except ContractError as error:
        raise ContractError(f"{path}.type", error.problem) from None
    check_field_path(f"{path}.path", spec.type, spec.path)
    return spec


def check_field_path(path: str, type_name: str, field_path: str) -> Any:  # noqa: ANN401 - part of a message
    """Return the value at `field_path` of a new message; None: an element of a sequence, which is still empty.

    Raises:
        ContractError: at `path`, when messages of this type have no such field.
    """
    try:
        return follow(message_class(type_name)(), field_path)
    except AttributeError as error:
        raise ContractError(path, f"{field_path!r} leads nowhere in a {type_name}: {error}") from None
    except IndexError:
        return None


class EstopInputs:
    """The state of each input; messages are passed in by the caller."""

    def __init__(self, specs: tuple[EstopSpec, ...], clock: Clock) -> None:
        """Start with every input unknown. `clock` is the steady clock of arrivals."""
        self.specs = specs
        self._clock = clock
        self._by_name = {spec.name: spec for spec in specs}
        self._received: dict[str, tuple[bool, int]] = {}  # whether it was safe, and when it arrived

    def put(self, name: str, message: Message) -> None:
        """Store a message of the input `name`, arrived now. A message that cannot be read is not safe."""
        spec = self._by_name[name]
        try:
            is_safe = is_one_of(follow(message, spec.path), spec.safe)
        except (AttributeError, IndexError, TypeError, ValueError):
            is_safe = False
        self._received[name] = (is_safe, self._clock.now_ns())

    def forget(self, name: str) -> None:
        """Drop the last value of an input that has lost its publisher: it is unknown again."""
        self._received.pop(name, None)

    def states(self) -> dict[str, str]:
        """Return name -> "ok", "active", "protective_stop", "expired", or "unknown" before the first message."""
        now_ns = self._clock.now_ns()
        return {spec.name: self._state(spec, now_ns) for spec in self.specs}

    def _state(self, spec: EstopSpec, now_ns: int) -> str:
        if spec.name not in self._received:
            return "unknown"
        is_safe, arrived_ns = self._received[spec.name]
        if not is_safe:
            return _UNSAFE[spec.kind]
        if not spec.latched and now_ns - arrived_ns > spec.timeout_s * NS_PER_S:
            return "expired"
        return "ok"


def is_one_of(value: object, safe: tuple[Any, ...]) -> bool:
    """Return whether `value` is one of `safe`; a boolean is no number."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in safe)
