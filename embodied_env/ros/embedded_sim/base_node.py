"""Base of the ROS 2 nodes that host a world, with its topics and services.

`ros.embedded_sim.lockstep_node` hosts a world in lockstep, `realtime_node` a free-running one.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from embodied_env.contract import ActuatorSpec, Contract, FieldSpec, FloatArray, SensorSpec
from embodied_env.contract.field_paths import check_messages
from embodied_env.contract.json_messages import RegularArray, read_message
from embodied_env.contract.qos_schema import COMMAND_QOS, is_latched, resolved
from embodied_env.core.types import Sample
from embodied_env.errors import BackendLostError, ContractError, MissingDependencyError, UsageError
from embodied_env.messages.declaration import Message
from embodied_env.messages.message_types import message_class
from embodied_env.ros.embedded_sim.message_encoder import SensorEncoder, to_message
from embodied_env.ros.transport.byte_layout import LayoutDecoder
from embodied_env.ros.transport.setup_checks import rclpy_import_errors, ros_init_errors
from embodied_env.ros.wire.command_messages import from_command
from embodied_env.ros.wire.simulator_protocol import (
    ANY_EPOCH,
    EPOCH_PARAMETER,
    NODE,
    OPTIONS_PARAMETER,
    SEED_PARAMETER,
    ResetReply,
)
from embodied_env.sim.world import World

with rclpy_import_errors("the embedded simulator over ROS 2"):
    import rclpy
    from rclpy.context import Context
    from rclpy.executors import Executor, SingleThreadedExecutor
    from rclpy.node import Node
    from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
    from rclpy.signals import SignalHandlerOptions

    from embodied_env.ros.transport.qos import ANY, RELIABLE

N = TypeVar("N", bound="WorldNode")

LATCHED = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)

SPIN_TIMEOUT_S = 0.05
RESET_ERRORS = (ValueError, AttributeError, KeyError, BackendLostError, MissingDependencyError)
"""Errors of a world that cannot be reset with the given parameters."""


_PIXELS = FieldSpec(unit="1", low=0.0, high=255.0, shape=(1, 1, 3))  # an image of any size, as the world renders it
_IMAGE = SensorSpec(
    topic="~/picture",
    type="sensor_msgs/msg/Image",
    encoding="rgb8",
    fields={"image": _PIXELS},
    max_age_s=1.0,
    frame="view",
)


class WorldNode(ABC):
    """Host of one world, whose callbacks all run in one thread.

    Attributes:
        node: the rclpy node, for an executor.
        obeys_qos: whether topics have the contract's QoS; in lockstep no message may be lost.
        serves_actions: whether grippers have their action servers; in lockstep a topic replaces them.
    """

    obeys_qos = False
    serves_actions = False

    def __init__(
        self, contract: Contract, world: World, *, namespace: str | None, context: Context, default_seed: int
    ) -> None:
        """Create the node, its topics and services, with `default_seed` for resets without one."""
        self._contract = contract
        self._world = world
        self.node = node = Node(NODE, context=context, namespace=namespace)
        for name, default in ((EPOCH_PARAMETER, ANY_EPOCH), (SEED_PARAMETER, default_seed), (OPTIONS_PARAMETER, "{}")):
            node.declare_parameter(name, default)
        self._sensors = {
            name: node.create_publisher(
                message_class(sensor.type),
                sensor.topic,
                LATCHED if self.obeys_qos and is_latched(sensor.qos) else RELIABLE,  # matches every subscription
            )
            for name, sensor in contract.sensors.items()
        }
        self._encoders = {name: SensorEncoder(sensor) for name, sensor in contract.sensors.items()}
        self.command_subscriptions = [
            self._subscribe_commands(index, actuator.as_topic())
            for index, actuator in enumerate(contract.actuators.values())
            if not (self.serves_actions and actuator.is_action)
        ]
        self._image = node.create_publisher(message_class(_IMAGE.type), _IMAGE.topic, RELIABLE)
        self._create_trigger("~/reset", self._on_reset, RESET_ERRORS, with_type=True)
        self._create_trigger("~/render", self._on_render, (ContractError, MissingDependencyError, UsageError))

    @abstractmethod
    def _reset(self, epoch: int, seed: int, options: str) -> str:
        """Reset, publish, and return the text of the reply."""

    @abstractmethod
    def _take_command(self, index: int, command: FloatArray | None) -> None:
        """Handle a command of the actuator at `index`, which is None for an invalid message."""

    def _take_trajectory(self, index: int, actuator: ActuatorSpec, message: Message) -> None:  # noqa: ARG002
        """Handle a trajectory of several points, which is invalid in lockstep."""
        self._take_command(index, None)

    @abstractmethod
    def _stamp_ns(self, world_ns: int) -> int: ...

    def _subscribe_commands(self, index: int, actuator: ActuatorSpec) -> Any:  # noqa: ANN401 - rclpy's
        kind = message_class(actuator.type)
        decoder = LayoutDecoder(kind)

        def on_command(data: bytes) -> None:
            message = decoder.decode(data)
            decoded = None if message is None else message.decoded()
            if len(getattr(decoded, "points", ())) > 1:
                self._take_trajectory(index, actuator, decoded)
            else:
                self._take_command(index, None if decoded is None else from_command(actuator, decoded))

        best_effort = self.obeys_qos and resolved(actuator.qos, COMMAND_QOS).reliability != "reliable"
        qos = ANY if best_effort else RELIABLE
        return self.node.create_subscription(kind, actuator.topic, on_command, qos, raw=True)

    def _create_trigger(
        self, name: str, act: Callable[[], str], errors: tuple[type[Exception], ...], *, with_type: bool = False
    ) -> None:
        """Create a Trigger service that responds with the text of `act`, or an error and its type."""

        def on_request(_request: Any, response: Any) -> Any:  # noqa: ANN401 - generated types
            try:
                response.message, response.success = act(), True
            except errors as error:
                response.success = False
                response.message = f"{type(error).__name__}: {error}" if with_type else str(error)
            return response

        self.node.create_service(message_class("std_srvs/srv/Trigger"), name, on_request)

    def _on_reset(self) -> str:
        epoch, seed, options = (
            self.node.get_parameter(name).value for name in (EPOCH_PARAMETER, SEED_PARAMETER, OPTIONS_PARAMETER)
        )
        return self._reset(int(epoch), int(seed), options)

    def _on_render(self) -> str:
        """Publish an image of the current world, and return its stamp."""
        image = self._world.render()
        stamp_ns = self._stamp_ns(self._world.now_ns)
        self._image.publish(to_message(_IMAGE, {"image": image}, stamp_ns))
        return str(stamp_ns)

    def _reset_world(self, epoch: int, seed: int, options: str) -> ResetReply:
        """Reset the world by a seed and options (JSON), or raise one of `RESET_ERRORS`."""
        sampled = self._world.reset(seed, read_message(options, OPTIONS_PARAMETER, dict[str, RegularArray]))
        self._valid_samples()
        library = self._world.renderer_library
        return ResetReply(
            epoch=epoch,
            stamp_ns=self._stamp_ns(self._world.now_ns),
            sampled=sampled,
            fingerprint=self._contract.fingerprint,
            details={"renderer": library} if library else {},
        )

    def _valid_samples(self) -> dict[str, Sample]:
        """Return the newest samples, or raise BackendLostError for one that no message can hold."""
        samples = self._world.read()
        for name, sample in samples.items():
            if sample.reason:
                raise BackendLostError("unfit_reading", f"{name}: {sample.reason}")
        return samples

    def _message(self, name: str, sample: Sample) -> Message | bytes:
        return self._encoders[name].encode(
            sample.values, self._stamp_ns(sample.stamp_ns), self._world.channels[name].extras
        )


@contextlib.contextmanager
def node_with_executor(
    contract: Contract, make: Callable[..., N], *, fast: bool = True
) -> Iterator[tuple[N, Executor]]:
    """Create a node and its executor in a context of their own, and destroy all at the end.

    The executor must always be spun with a timeout. A `fast` one has no actions and no message info, and takes the
    messages of other wait sets.

    Raises:
        BackendNotReadyError: if ROS 2 cannot be initialised.
        ContractError: for a sensor that does not match its message type.
    """
    check_messages(contract.sensors, contract.source)
    context = Context()
    try:
        with ros_init_errors(ContractError, MissingDependencyError):
            rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
            simulator = make(context=context)
        executor: Executor = SingleThreadedExecutor(context=context)
        with contextlib.suppress(ImportError, TypeError):
            if fast:
                from rclpy.experimental import EventsExecutor  # noqa: PLC0415 - absent before Jazzy

                executor = EventsExecutor(context=context)
        executor.add_node(simulator.node)
        try:
            yield simulator, executor
        finally:
            executor.shutdown()
            simulator.node.destroy_node()
    finally:
        context.try_shutdown()
