"""The robot's own safety inputs: e-stop buttons and safety modes, as topics. Silence is never safe.

They stand in a profile as ``estop: {name: {topic, type, path, safe, timeout_s, kind, latched}}``.
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
class EstopSpec:
    """One safety input. It is "ok" while the value at `path` is one of `safe`, and younger than `timeout_s`.

    `latched`: it is published when it changes only, and kept for late comers; then its last value stays.
    """

    name: str
    topic: str
    type: str = "std_msgs/msg/Bool"
    path: str = "data"
    safe: tuple[Any, ...] = (False,)
    timeout_s: float = 0.5
    kind: Kind = "estop"
    latched: bool = False


def estop_specs(estop: Mapping[str, Mapping[str, Any]] | None, path: str) -> tuple[EstopSpec, ...]:
    """Read the inputs of a profile.

    Args:
        estop: what stands in the profile under ``estop``; None: nothing.
        path: where that is, for errors.

    Raises:
        ContractError: for an unknown key, or a value that is not allowed.
    """
    return tuple(_spec(name, values, f"{path}.{name}") for name, values in (estop or {}).items())


def _spec(name: str, values: Mapping[str, Any], path: str) -> EstopSpec:
    known = set(EstopSpec.__dataclass_fields__) - {"name"}
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
        follow(message_class(spec.type)(), spec.path)
    except ContractError as error:
        raise ContractError(f"{path}.type", error.problem) from None
    except AttributeError as error:
        raise ContractError(f"{path}.path", f"{spec.path!r} leads nowhere in a {spec.type}: {error}") from None
    except IndexError:
        pass  # an element of a sequence that is empty in a new message
    return spec


class EstopInputs:
    """What each input says now. Messages are handed in by whoever receives them; nothing here knows of an executor."""

    def __init__(self, specs: tuple[EstopSpec, ...], clock: Clock) -> None:
        """Know nothing of any of `specs` yet. `clock` is the steady clock of arrivals."""
        self.specs = specs
        self._clock = clock
        self._by_name = {spec.name: spec for spec in specs}
        self._seen: dict[str, tuple[bool, int]] = {}

    def put(self, name: str, message: Message) -> None:
        """Take a message of the input `name`, arrived now. One that cannot be read is not safe."""
        spec = self._by_name[name]
        try:
            is_safe = is_one_of(follow(message, spec.path), spec.safe)
        except (AttributeError, IndexError, TypeError, ValueError):
            is_safe = False
        self._seen[name] = (is_safe, self._clock.now_ns())

    def forget(self, name: str) -> None:
        """Nobody publishes the input `name` any more: a value that was kept is unknown again."""
        self._seen.pop(name, None)

    def states(self) -> dict[str, str]:
        """Return name -> "ok", "active", "protective_stop", "expired", or "unknown" before the first message."""
        now_ns = self._clock.now_ns()
        return {spec.name: self._state(spec, now_ns) for spec in self.specs}

    def _state(self, spec: EstopSpec, now_ns: int) -> str:
        if spec.name not in self._seen:
            return "unknown"
        is_safe, arrived_ns = self._seen[spec.name]
        if not is_safe:
            return _UNSAFE[spec.kind]
        if not spec.latched and now_ns - arrived_ns > spec.timeout_s * NS_PER_S:
            return "expired"
        return "ok"


def is_one_of(value: object, safe: tuple[Any, ...]) -> bool:
    """Return whether `value` is one of `safe`; a boolean is no number."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in safe)
