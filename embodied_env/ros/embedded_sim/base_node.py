"""What every ROS 2 node over one world has: its sensors, its pictures, and what a reset is to be.

The world that waits for tokens is hosted by `ros.embedded_sim.lockstep_node`, the one that does not by `free_running`.
"""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from embodied_env.contract import ActuatorSpec, Contract, FloatArray, SensorSpec
from embodied_env.contract.field_paths import check_message
from embodied_env.contract.message_types import message_class
from embodied_env.contract.schema import COMMAND_QOS, is_latched, resolved
from embodied_env.core.bounded_json import parse_json
from embodied_env.core.json_messages import ARRAY, MAX_BYTES, MAX_DEPTH, object_of
from embodied_env.errors import (
    BackendLostError,
    BackendNotReadyError,
    ContractError,
    MissingDependencyError,
    UsageError,
)
from embodied_env.ros.command_messages import from_command
from embodied_env.ros.embedded_sim.protocol import (
    ANY_EPOCH,
    EPOCH_PARAMETER,
    NODE,
    OPTIONS_PARAMETER,
    SEED_PARAMETER,
    ResetReply,
)
from embodied_env.ros.embedded_sim.sensor_messages import Message, SensorEncoder, to_message
from embodied_env.ros.serialization.layout_cache import LayoutDecoder
from embodied_env.ros.setup_checks import LOG_HINT, rclpy_import_errors
from embodied_env.sim.sensor_channel import Reading
from embodied_env.sim.world import World

with rclpy_import_errors("the embedded simulator over ROS 2"):
    import rclpy
    from rclpy.context import Context
    from rclpy.executors import Executor, SingleThreadedExecutor
    from rclpy.node import Node
    from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
    from rclpy.signals import SignalHandlerOptions

N = TypeVar("N", bound="WorldNode")

RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
LATCHED = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)
_BEST_EFFORT = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)

TURN_S = 0.05  # an executor is never turned without a timeout
NOT_RESET = (ValueError, AttributeError, KeyError, BackendLostError, MissingDependencyError)
"""What a world raises that could not be reset as it was told."""

_OPTIONS = object_of(ARRAY)

_PICTURE = SensorSpec(
    topic="~/picture", type="sensor_msgs/msg/Image", encoding="rgb8", fields={}, max_age_s=1.0, frame="view"
)


def _offered(sensor: SensorSpec) -> QoSProfile:
    """Return what a sensor is published with: enough for every reader that the contract may have."""
    return LATCHED if is_latched(sensor.qos) else RELIABLE


def _requested(actuator: ActuatorSpec) -> QoSProfile:
    """Return what commands are read with: no more than the contract offers."""
    spec = resolved(actuator.qos, COMMAND_QOS)
    return RELIABLE if spec.reliability == "reliable" else _BEST_EFFORT


class WorldNode:
    """A node over one world: its sensors, pictures, and what a reset is to be. All callbacks run in one thread.

    Attributes:
        node: the rclpy node, for an executor.
        obeys_qos: whether topics have the contract's QoS; in lockstep nothing may be lost.
    """

    obeys_qos = False

    def __init__(
        self, contract: Contract, world: World, *, namespace: str | None, context: Context, default_seed: int
    ) -> None:
        """Create the node, its topics and its services; `default_seed` is that of a reset that is told none."""
        self._contract = contract
        self._world = world
        self.node = node = Node(NODE, context=context, namespace=namespace)
        for name, default in ((EPOCH_PARAMETER, ANY_EPOCH), (SEED_PARAMETER, default_seed), (OPTIONS_PARAMETER, "{}")):
            node.declare_parameter(name, default)
        self._sensors = {
            name: node.create_publisher(
                message_class(sensor.type), sensor.topic, _offered(sensor) if self.obeys_qos else RELIABLE
            )
            for name, sensor in contract.sensors.items()
        }
        self._encoders = {name: SensorEncoder(sensor) for name, sensor in contract.sensors.items()}
        self.command_subscriptions = [
            node.create_subscription(
                message_class(actuator.type),
                actuator.topic,
                self._command_callback(index, actuator),
                _requested(actuator) if self.obeys_qos else RELIABLE,
                raw=True,
            )
            for index, actuator in enumerate(contract.actuators.values())
        ]
        node.create_service(message_class("std_srvs/srv/Trigger"), "~/reset", self._on_reset)
        self._picture = node.create_publisher(message_class(_PICTURE.type), _PICTURE.topic, RELIABLE)
        node.create_service(message_class("std_srvs/srv/Trigger"), "~/render", self._on_render)

    def _command_callback(self, index: int, actuator: ActuatorSpec) -> Any:  # noqa: ANN401 - a callback
        decoder = LayoutDecoder(message_class(actuator.type))

        def on_command(data: bytes) -> None:
            message = decoder.decode(data)
            self._take_command(index, None if message is None else from_command(actuator, message.decoded()))

        return on_command

    def _on_reset(self, request: Any, response: Any) -> Any:  # noqa: ANN401, ARG002 - generated types
        """Reset as the parameters say; an epoch that is asked for again is answered again."""
        epoch, seed, options = (
            self.node.get_parameter(name).value for name in (EPOCH_PARAMETER, SEED_PARAMETER, OPTIONS_PARAMETER)
        )
        try:
            response.message, response.success = self._reset(int(epoch), int(seed), options), True
        except NOT_RESET as error:
            response.success, response.message = False, f"{type(error).__name__}: {error}"
        return response

    def _reset_world(self, epoch: int, seed: int, options: str) -> ResetReply:
        """Reset the world by a seed and options (JSON), and say what came of it; raises one of `NOT_RESET`."""
        plain = parse_json(options, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH)
        if not _OPTIONS.is_valid(plain):
            raise ValueError(f"{OPTIONS_PARAMETER}: {reprlib.repr(plain)} (expected {_OPTIONS.expected})")
        values = {name: np.array(value, dtype=np.float64) for name, value in plain.items()}
        sampled = self._world.reset(seed, values)
        self._sound_readings()
        library = self._world.renderer_library
        return ResetReply(
            epoch=epoch,
            stamp_ns=self._stamp_ns(self._world.now_ns),
            sampled=sampled,
            fingerprint=self._contract.fingerprint,
            details={"renderer": library} if library else {},
        )

    def _on_render(self, request: Any, response: Any) -> Any:  # noqa: ANN401, ARG002 - generated types
        """Publish a picture of the world as it is now."""
        try:
            picture = self._world.render()
        except (ContractError, MissingDependencyError, UsageError) as error:
            response.success, response.message = False, str(error)
            return response
        stamp_ns = self._stamp_ns(self._world.now_ns)
        self._picture.publish(to_message(_PICTURE, {"image": picture}, stamp_ns))
        response.success, response.message = True, str(stamp_ns)
        return response

    def _sound_readings(self) -> dict[str, Reading]:
        """Return the newest readings; raises BackendLostError for one that no message of its type can say."""
        readings = self._world.read()
        for name, reading in readings.items():
            if reading.problem:
                raise BackendLostError("unfit_reading", f"{name}: {reading.problem}")
        return readings

    def _message(self, name: str, reading: Reading) -> Message | bytes:
        """Return what says a reading of the sensor `name`, to be published."""
        return self._encoders[name].encode(reading.values, self._stamp_ns(reading.stamp_ns), reading.extras)

    def _reset(self, epoch: int, seed: int, options: str) -> str:
        """Reset, publish, and return the reply's text."""
        raise NotImplementedError

    def _take_command(self, index: int, command: FloatArray | None) -> None:
        """Take a command of the actuator at `index`; None: a message that is none."""
        raise NotImplementedError

    def _stamp_ns(self, world_ns: int) -> int:
        """Return what stands in messages for a time of the world."""
        raise NotImplementedError


def make_executor(context: Context) -> Executor:
    """Return the fastest executor there is for callbacks without message info, always to be turned with a timeout."""
    try:
        from rclpy.experimental import EventsExecutor  # noqa: PLC0415 - absent before Jazzy

        return EventsExecutor(context=context)
    except (ImportError, TypeError):
        return SingleThreadedExecutor(context=context)


@contextlib.contextmanager
def turning(
    contract: Contract, make: Callable[[Context], N], executor_for: Callable[[Context], Executor] = make_executor
) -> Iterator[tuple[N, Executor]]:
    """Make a node in a context of its own, and an executor to turn it by; both end with the block.

    Raises:
        BackendNotReadyError: when ROS 2 cannot be initialised.
        ContractError: for a sensor that its message type cannot be.
    """
    for name, sensor in contract.sensors.items():
        check_message(name, sensor)
    context = Context()
    try:
        try:
            rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
            simulator = make(context)
        except ContractError:
            raise
        except Exception as error:  # rclpy raises its own RCLError and many others here
            raise BackendNotReadyError(f"ROS 2 cannot be initialised: {error} ({LOG_HINT})") from error
        executor = executor_for(context)
        executor.add_node(simulator.node)
        try:
            yield simulator, executor
        finally:
            executor.shutdown()
            simulator.node.destroy_node()
    finally:
        context.try_shutdown()
