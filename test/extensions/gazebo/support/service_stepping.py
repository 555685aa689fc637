"""A stand-in for an external simulator that moves only on request, with MuJoCo behind three services, and their API.

A step and a reset take one control period each, so time never goes back.
"""

import array
import contextlib
import functools
import threading

import numpy as np
from mujoco_placement import place_body, placeable
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterValue, SetParametersResult
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from embodied_env.errors import BackendLostError, BackendNotReadyError, ResetNeededError, UsageError
from embodied_env.extensions.gazebo.control.simulator_api import (
    ControlCapabilities,
    Request,
    SimulatorApi,
    SimulatorRefusedError,
)
from embodied_env.ros.embedded_sim.base_node import RESET_ERRORS, SPIN_TIMEOUT_S, node_with_executor
from embodied_env.ros.embedded_sim.lockstep_node import SimulatorNode
from embodied_env.ros.wire.simulator_protocol import ANY_EPOCH
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile

STEP = "/simulator/step_once"
RESTART = "/simulator/restart"
PLACE = "/simulator/set_parameters"
ENTITY = "entity."  # + body: a parameter with its new position x, y, z, m, and quaternion x, y, z, w


class ServiceStepping(SimulatorApi):
    """Build requests of `SteppedNode` and of `small_simulator`, with `prefix` before the names of its services."""

    name = "service_stepping"
    capabilities = ControlCapabilities(reset=True, set_state=True)

    def __init__(self, *, world, prefix):
        self._prefix = prefix or ""

    def probe(self, offered):
        if self._prefix + STEP not in offered:
            raise BackendNotReadyError(f"no service {self._prefix}{STEP}")
        return ()

    def pause(self):
        raise UsageError(f"{self.name} cannot pause: the simulator moves only on request")

    def step(self, steps):
        assert steps == 1, "a request is one control period"
        return self._request(STEP, Trigger, _check_trigger)

    def reset(self):
        return self._request(RESTART, Trigger, _check_trigger)

    def set_state(self, entity, position, orientation):
        pose = array.array("d", [*position.tolist(), *orientation.tolist()])
        value = ParameterValue(type=Parameter.Type.DOUBLE_ARRAY.value, double_array_value=pose)
        parameters = [ParameterMessage(name=ENTITY + entity, value=value)]
        return self._request(PLACE, SetParameters, _check_parameters, parameters=parameters)

    def _request(self, service, kind, read, **fields):
        message = kind.Request(**fields)
        return Request(service=self._prefix + service, type=kind, message=message, read=read, is_done_at_reply=True)


def _check_trigger(reply):
    if not reply.success:
        raise SimulatorRefusedError(reply.message)


def _check_parameters(reply):
    if refused := [result.reason for result in reply.results if not result.successful]:
        raise SimulatorRefusedError("; ".join(refused))


class SteppedNode(SimulatorNode):
    """The node of the embedded simulator, stepped by a service, with the newest command of each actuator."""

    def __init__(self, contract, world, *, context):
        super().__init__(contract, world, namespace=None, context=context)
        self._create_trigger("~/step_once", self._step_once, (BackendLostError, ResetNeededError))
        self._create_trigger("~/restart", self._restart, RESET_ERRORS)
        for body in placeable(world):
            self.node.declare_parameter(ENTITY + body, Parameter.Type.DOUBLE_ARRAY)
        self.node.add_on_set_parameters_callback(self._on_parameters)

    def _step_once(self):
        ends = np.cumsum([len(actuator.joints) for actuator in self._contract.actuators.values()])[:-1]
        previous = np.split(self._world.target, ends)
        newest = [new[-1][1] if new else old for new, old in zip(self._commands, previous, strict=True)]
        for commands in self._commands:
            commands.clear()
        self._world.command(np.concatenate(newest))
        self._world.step()
        self._publish(self._valid_samples(), again=False)
        return ""

    def _restart(self):
        self._reset_world(ANY_EPOCH, 0, "{}")
        for commands in self._commands:
            commands.clear()
        self._publish(self._world.read(), again=True)
        return ""

    def _on_parameters(self, parameters):
        try:
            for each in parameters:
                pose = np.array(each.value)
                place_body(self._world, each.name.removeprefix(ENTITY), pose[:3], pose[3:])
        except UsageError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)


@contextlib.contextmanager
def stepped_world(contract):
    """Host a world with the physics of `backends.mujoco_ros` in a thread."""
    stop, ready = threading.Event(), threading.Event()
    world = World(contract, load_profile(contract, "mujoco_ros"))

    def host():
        with node_with_executor(contract, functools.partial(SteppedNode, contract, world)) as (_, executor):
            ready.set()
            while not stop.is_set():
                executor.spin_once(timeout_sec=SPIN_TIMEOUT_S)

    thread = threading.Thread(target=host)
    thread.start()
    try:
        assert ready.wait(20)
        yield world
    finally:
        stop.set()
        thread.join()
        world.close()
