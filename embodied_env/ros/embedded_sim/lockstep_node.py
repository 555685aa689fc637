"""The ROS 2 node that hosts the world: one step per token, resets by a service (`ros.embedded_sim.protocol`)."""

from __future__ import annotations

import array
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.message_types import message_class
from embodied_env.errors import BackendLostError, ResetNeededError, UsageError
from embodied_env.ros.embedded_sim.protocol import (
    ANY_EPOCH,
    CLOCK_TOPIC,
    ENTITY_PARAMETER,
    EPOCH_PARAMETER,
    OPTIONS_PARAMETER,
    SEED_PARAMETER,
    SimulatorFault,
    StepAck,
    StepRequest,
    command_crc32,
)
from embodied_env.ros.embedded_sim.sensor_messages import set_stamp
from embodied_env.ros.serialization.layout_cache import LayoutDecoder
from embodied_env.ros.serialization.template import MessageTemplate, Numbers
from embodied_env.ros.setup_checks import rclpy_import_errors
from embodied_env.sim.sensor_channel import Reading
from embodied_env.sim.world import World

with rclpy_import_errors("the embedded simulator over ROS 2"):
    from rclpy.context import Context
    from rclpy.parameter import Parameter

    from embodied_env.ros.embedded_sim.base_node import NOT_RESET, RELIABLE, WorldNode, turning
    from embodied_env.ros.embedded_sim.spin import NodeSpinner, lockstep_executor

_Command = tuple[int, FloatArray]  # its digest, what it says
_KEPT_COMMANDS = 64  # per actuator: those of the next step, and foreign ones among them


class SimulatorNode(WorldNode):
    """Hosts one world in lockstep."""

    def __init__(self, contract: Contract, world: World, *, namespace: str | None, context: Context) -> None:
        """Create the node, its topics and its services."""
        self._epoch = ANY_EPOCH
        self._step = 0
        self._token: StepRequest | None = None
        self._reply = ""
        self._commands: list[deque[_Command]] = [deque(maxlen=_KEPT_COMMANDS) for _ in contract.actuators]
        super().__init__(contract, world, namespace=namespace, context=context, default_seed=0)
        node = self.node
        self._published_ns = dict.fromkeys(self._sensors, -1)
        self._numbers = dict.fromkeys(self._sensors, 0)
        self._clock = node.create_publisher(message_class("rosgraph_msgs/msg/Clock"), CLOCK_TOPIC, RELIABLE)
        self._tick = MessageTemplate(_clock_message, {})
        self._acknowledgement = MessageTemplate(
            _integers_message, {"data": np.zeros(2 + 2 * len(self._sensors), dtype=np.int64)}
        )
        self._fault = node.create_publisher(message_class("std_msgs/msg/String"), "~/fault", RELIABLE)
        integers = message_class("std_msgs/msg/Int64MultiArray")
        self._stepped = node.create_publisher(integers, "~/stepped", RELIABLE)
        self._token_decoder = LayoutDecoder(integers)
        self.token_subscription = node.create_subscription(integers, "~/step", self._on_token, RELIABLE, raw=True)
        node.create_service(message_class("std_srvs/srv/Trigger"), "~/step_once", self._on_step_once)
        node.create_service(message_class("std_srvs/srv/Trigger"), "~/restart", self._on_restart)
        for body in world.placeable:
            node.declare_parameter(ENTITY_PARAMETER + body, Parameter.Type.DOUBLE_ARRAY)
        node.add_on_set_parameters_callback(self._on_parameters)

    def _stamp_ns(self, world_ns: int) -> int:
        return world_ns

    def _take_command(self, index: int, command: FloatArray | None) -> None:
        if command is not None:
            self._commands[index].append((command_crc32(command), command))
            self._try_step()

    def _reset(self, epoch: int, seed: int, options: str) -> str:
        """Reset once per epoch; a repeated request is answered with the same reply and the same samples."""
        if epoch == ANY_EPOCH:
            raise UsageError(f"set the parameter {EPOCH_PARAMETER} first")
        if epoch != self._epoch:
            reply = self._reset_world(epoch, seed, options)
            self._publish_fault("reset_by_other", "the simulator was reset for another epoch")
            self._begin_epoch(epoch)
            self._reply = reply.to_text()
        self._publish(self._world.read(), again=True)
        return self._reply

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch, self._step, self._token = epoch, 0, None
        for commands in self._commands:
            commands.clear()

    def _on_restart(self, request: Any, response: Any) -> Any:  # noqa: ANN401, ARG002 - generated types
        """Reset as the parameters say, for nobody's epoch."""
        seed, options = (self.node.get_parameter(name).value for name in (SEED_PARAMETER, OPTIONS_PARAMETER))
        try:
            response.message, response.success = self._reset_world(ANY_EPOCH, int(seed), options).to_text(), True
        except NOT_RESET as error:
            response.success, response.message = False, f"{type(error).__name__}: {error}"
            return response
        self._publish_fault("reset_by_other", "the simulator was reset by a service, for no epoch")
        self._begin_epoch(ANY_EPOCH)
        self._publish(self._world.read(), again=True)
        return response

    def _on_step_once(self, request: Any, response: Any) -> Any:  # noqa: ANN401, ARG002 - generated types
        """Run one control period with the newest command of each actuator; where there is none, the last one acts."""
        if self._epoch != ANY_EPOCH:
            self._publish_fault("stepped_by_other", "the simulator was stepped by a service, without a token")
            self._begin_epoch(ANY_EPOCH)
        ends = np.cumsum([len(actuator.joints) for actuator in self._contract.actuators.values()])[:-1]
        try:
            held = np.split(self._world.target, ends)
            newest = [heard[-1][1] if heard else old for heard, old in zip(self._commands, held, strict=True)]
            for heard in self._commands:
                heard.clear()
            self._world.command(np.concatenate(newest))
            self._world.step()
            readings = self._sound_readings()
        except (BackendLostError, ResetNeededError) as error:
            response.success, response.message = False, str(error)
            return response
        self._publish(readings, again=False)
        response.success, response.message = True, str(self._world.now_ns)
        return response

    def _on_parameters(self, parameters: list[Any]) -> Any:  # noqa: ANN401 - rclpy's
        """Put the bodies that are set where they are set."""
        result = message_class("rcl_interfaces/msg/SetParametersResult")
        try:
            for each in parameters:
                if each.name.startswith(ENTITY_PARAMETER):
                    pose = np.array(each.value, dtype=np.float64)
                    self._world.place(each.name.removeprefix(ENTITY_PARAMETER), pose[:3], pose[3:])
        except UsageError as error:
            return result(successful=False, reason=str(error))
        return result(successful=True)

    def _on_token(self, data: bytes) -> None:
        message = self._token_decoder.decode(data)
        token = None if message is None else StepRequest.from_data(message.decoded().data.tolist())
        if token is None or token.epoch != self._epoch or len(token.digests) != len(self._commands):
            return
        if token.step == self._step:
            self._publish(self._world.read(), again=True)  # asked again: our answer may have been lost
        elif token.step == self._step + 1:
            self._token = token
            self._try_step()

    def _try_step(self) -> None:
        """Run the step of the token once every command that it names is in."""
        token = self._token
        if token is None:
            return
        chosen = [_find(commands, wanted) for commands, wanted in zip(self._commands, token.digests, strict=True)]
        if any(command is None for command in chosen):
            return
        for commands, wanted in zip(self._commands, token.digests, strict=True):
            if foreign := _drop_through(commands, wanted):
                self.node.get_logger().warning(f"ignored {foreign} commands that no step token names")
        self._token = None
        self._step = token.step
        self._world.command(np.concatenate([command for command in chosen if command is not None]))
        try:
            self._world.step()
            readings = self._sound_readings()
        except BackendLostError as error:
            self._publish_fault(error.why, str(error))
            return
        self._publish(readings, again=False)

    def _publish_fault(self, why: str, detail: str) -> None:
        fault = SimulatorFault(epoch=self._epoch, why=why, detail=detail)
        self._fault.publish(message_class("std_msgs/msg/String")(data=fault.to_text()))

    def _publish(self, readings: Mapping[str, Reading], *, again: bool) -> None:
        """Publish the clock, the readings that are new (`again`: all of them), and which step they belong to."""
        messages = [(self._clock, self._tick.encode({}, self._world.now_ns))]
        for name, reading in readings.items():
            if again or reading.stamp_ns > self._published_ns[name]:
                self._published_ns[name] = reading.stamp_ns
                self._numbers[name] += 1
                messages.append((self._sensors[name], self._message(name, reading)))
        newest = tuple(zip(self._published_ns.values(), self._numbers.values(), strict=True))
        stepped = StepAck(epoch=self._epoch, step=self._step, newest=newest).to_data()
        messages.append((self._stepped, self._acknowledgement.encode({"data": np.array(stepped, dtype=np.int64)})))
        for publisher, message in messages:  # close together: who waits for all of them wakes less often
            publisher.publish(message)


def _find(commands: deque[_Command], wanted: int) -> FloatArray | None:
    return next((command for number, command in commands if number == wanted), None)


def _drop_through(commands: deque[_Command], wanted: int) -> int:
    """Drop the commands up to the wanted one; return how many others were among them."""
    others = 0
    while commands.popleft()[0] != wanted:
        others += 1
    return others


def _clock_message(numbers: Numbers, stamp_ns: int) -> Any:  # noqa: ANN401, ARG001 - a generated type; it has no others
    clock = message_class("rosgraph_msgs/msg/Clock")()
    set_stamp(clock.clock, stamp_ns)
    return clock


def _integers_message(numbers: Numbers, stamp_ns: int) -> Any:  # noqa: ANN401, ARG001 - a generated type; it has no stamp
    return message_class("std_msgs/msg/Int64MultiArray")(data=array.array("q", numbers["data"].tobytes()))


def run_simulator(
    contract: Contract,
    world: World,
    *,
    namespace: str | None,
    stop: threading.Event,
    on_ready: Callable[[str], None] = lambda _namespace: None,
) -> None:
    """Host `world` in lockstep until `stop` is set.

    Args:
        contract: what the world was built from.
        world: the world.
        namespace: absolute ROS namespace; None: the root, or what ``--ros-args`` says.
        stop: set it from a signal handler or another thread.
        on_ready: told the namespace once the node is there.

    Raises:
        BackendNotReadyError: when ROS 2 cannot be initialised.
        ContractError: for a sensor that its message type cannot be.
    """

    def make(context: Context) -> SimulatorNode:
        return SimulatorNode(contract, world, namespace=namespace, context=context)

    with turning(contract, make, lockstep_executor) as (simulator, executor):
        turns = NodeSpinner(simulator.node, executor, [*simulator.command_subscriptions, simulator.token_subscription])
        on_ready(simulator.node.get_namespace())
        while not stop.is_set():
            turns.spin_once()
