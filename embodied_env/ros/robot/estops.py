"""Safety inputs of the robot on topics, such as e-stop buttons, never ok without messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from embodied_env.contract.key_types import Positive, Topic
from embodied_env.contract.typed_values import parse_as
from embodied_env.contract.value_checks import require
from embodied_env.core.code_table import CODE_TABLE
from embodied_env.core.safety_input_state import INPUT_OK, INPUT_UNKNOWN, InputState, InputStatus
from embodied_env.errors import ContractError, MissingDependencyError
from embodied_env.messages.any_message import follow
from embodied_env.messages.declaration import Message
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.setup_checks import apt_package
from embodied_env.safety.findings import safety_input_findings
from embodied_env.timing.clock import NS_PER_S, Clock

Kind = Literal["estop", "robot_mode"]

GRAPH_DELAY_NS = NS_PER_S
"""Time after which a publisher whose message has arrived is in the graph."""

_UNSAFE: Mapping[str, InputStatus] = {"estop": InputStatus.ACTIVE, "robot_mode": InputStatus.PROTECTIVE_STOP}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Message that the emulator publishes if the package of the input's type is not installed."""

    type: str  # message type that is installed everywhere, such as `std_msgs/msg/UInt8`
    path: str = "data"  # field to compare with `safe`


@dataclass(frozen=True, kw_only=True)
class SafetyInputSpec:
    """Safety input that is ok while `path` holds a `safe` value younger than `timeout_s`."""

    topic: Topic  # topic of the input
    type: str = "std_msgs/msg/Bool"  # message type
    path: str = "data"  # field to compare with `safe`
    safe: Annotated[tuple[bool | int | float | str, ...], MinLen(1)] = (False,)  # values that permit motion
    timeout_s: Positive = 0.5  # without a message for this time the input has expired
    kind: Kind = "estop"  # e-stop button, or mode of the robot
    latched: bool = False  # published on a change only, with transient-local durability; does not expire
    release: str | None = None  # how an operator ends the stop, as an instruction without a full stop
    variant: Variant | None = None  # type and path in use where the message package of `type` is not installed


def estop_specs(
    estop: Mapping[str, Mapping[str, Any]] | None, path: str, *, ignored: Collection[str] = ()
) -> dict[str, SafetyInputSpec]:
    """Parse and check the safety inputs ``estop``, with variants in use, without `ignored`.

    Raises ContractError, or MissingDependencyError for an input that cannot be read.
    """
    require(estop is None or isinstance(estop, Mapping), path, f"invalid value {estop!r} (expected a mapping or null)")
    specs = {}
    for name, values in (estop or {}).items():
        spec = spec_in_use(parse_as(SafetyInputSpec, values, path=f"{path}.{name}"))
        if name not in ignored or is_installed(spec.type):
            check_input(spec, f"{path}.{name}")
            specs[name] = spec
    return specs


def spec_in_use(spec: SafetyInputSpec) -> SafetyInputSpec:
    """Return `spec`, read as its variant if the package of its own type is not installed."""
    if spec.variant is None or is_installed(spec.type):
        return spec
    return replace(spec, type=spec.variant.type, path=spec.variant.path)


def is_installed(type_name: str) -> bool:
    """Return whether the package of a message or service type is installed."""
    try:
        message_class(type_name)
    except MissingDependencyError:
        return False
    except ContractError:  # a wrong name, or a type that the package lacks: check_input reports it
        return True
    return True


def check_input(spec: SafetyInputSpec, path: str) -> None:
    """Check the type and field of a safety input at `path`.

    Raises ContractError, or MissingDependencyError for an input that cannot be read.
    """
    if not is_installed(spec.type):
        package, name = spec.type.split("/")[0], path.rpartition(".")[2]
        remedy = f"apt install {apt_package(package)} and source it, or if the robot is safe without: {ignoring(name)}"
        raise MissingDependencyError(package, needed_for=f"the safety input {path} ({spec.type})", remedy=remedy)
    for where, declared in ((path, spec), (f"{path}.variant", spec.variant)):
        if declared is not None:
            check_message_type(f"{where}.type", declared.type)
            check_field_path(f"{where}.path", declared.type, declared.path)


def ignoring(name: str) -> str:
    """Return how a user lets a robot move without the safety input `name`."""
    return f'ignore_inputs=["{name}"] or --ignore-input {name}'


def check_message_type(path: str, type_name: str) -> None:
    """Raise ContractError at `path` unless this message type exists."""
    try:
        message_class(type_name)
    except ContractError as error:
        raise ContractError(path, error.problem) from None


def check_field_path(path: str, type_name: str, field_path: str) -> Any:  # noqa: ANN401 - part of a message
    """Return a field's default, None for a sequence element, or raise ContractError at `path`."""
    try:
        return follow(message_class(type_name)(), field_path)
    except AttributeError as error:
        raise ContractError(path, f"no field {field_path!r} in {type_name}: {error}") from None
    except IndexError:
        return None


class EstopInputs:
    """State of each safety input, from messages passed in with their steady arrival times."""

    def __init__(self, specs: Mapping[str, SafetyInputSpec], clock: Clock) -> None:
        self.specs = specs
        self._clock = clock
        self._received: dict[str, tuple[bool, int]] = {}  # whether it was safe, and when it arrived

    def put(self, name: str, message: Message) -> None:
        """Store a new message of the input `name`, where an unreadable message is not safe."""
        spec = self.specs[name]
        try:
            is_safe = is_one_of(follow(message, spec.path), spec.safe)
        except (AttributeError, IndexError, TypeError, ValueError):
            is_safe = False
        self._received[name] = (is_safe, self._clock.now_ns())

    def forget_unpublished(self, count_publishers: Callable[[str], int]) -> None:
        """Drop the value of each latched input that lost its publisher, as changes go unreported."""
        now_ns = self._clock.now_ns()
        for name, spec in self.specs.items():
            _, arrived_ns = self._received.get(name, (False, now_ns))
            is_settled = now_ns - arrived_ns > GRAPH_DELAY_NS
            if spec.latched and is_settled and not count_publishers(spec.topic):
                del self._received[name]

    def states(self) -> dict[str, InputState]:
        """Return the state of each input, unknown before its first message."""
        now_ns = self._clock.now_ns()
        return {name: self._state(name, spec, now_ns) for name, spec in self.specs.items()}

    def _state(self, name: str, spec: SafetyInputSpec, now_ns: int) -> InputState:
        if name not in self._received:
            return INPUT_UNKNOWN
        is_safe, arrived_ns = self._received[name]
        if not is_safe:
            return InputState(_UNSAFE[spec.kind])
        if not spec.latched and now_ns - arrived_ns > spec.timeout_s * NS_PER_S:
            return InputState(InputStatus.EXPIRED)
        return INPUT_OK

    def described(self) -> dict[str, InputState]:
        """Return the states, with the topic and the remedy of each problem.

        A problem reads like "active: topic /x; release it".
        """
        return {name: _describe(self.specs[name], state) for name, state in self.states().items()}


def _describe(spec: SafetyInputSpec, state: InputState) -> InputState:
    if state.is_ok:
        return state
    (finding,) = safety_input_findings({spec.topic: state})
    release = spec.release if state.status in _UNSAFE.values() else None
    return InputState(state.status, f"topic {spec.topic}; {release or CODE_TABLE[finding.code].remedy}")


def is_one_of(value: object, safe: tuple[Any, ...]) -> bool:
    """Return whether `value` is one of `safe`, where booleans and numbers are not equal."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in safe)
