"""Free-running embedded simulator in its own process, as a robot that can be reset.

`RealBackend` drives it like a robot, while a second node resets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from embodied_env.backends.backend import Capabilities
from embodied_env.contract.contract_loader import backend_profile
from embodied_env.core.safety_input_state import InputStates
from embodied_env.core.types import ApprovedCommand, ResetRequest, SentCommand, Snapshot
from embodied_env.messages.message_types import message_class
from embodied_env.ros.embedded_sim.base_backend import EmbeddedSimBackend
from embodied_env.ros.robot.robot_backend import RealBackend, make_real_backend
from embodied_env.ros.transport.fastdds import profile_environment
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.receiver import POLL_S, Receiver
from embodied_env.ros.wire.simulator_protocol import IMAGE_TOPIC, ResetReply
from embodied_env.timing.clock import Pacer, deadline_to_monotonic_s

_IMAGE = "image"


class RealtimeMujocoRosBackend(EmbeddedSimBackend):
    """The free-running world of `MujocoRosBackend`, with the same backend profile.

    As on a robot, the safety mode of the contract must be ``enforce``.

    Attributes:
        pacer: the deadlines of the steps of an episode, and the missed ones.
    """

    node_name = "simulation_client"
    capabilities = Capabilities(
        simulated=True,
        free_running=True,
        seedable=True,
        state_query=True,
        estop_inputs=True,
        transport=True,
        trajectories=True,
        reset_levels=("world",),
        render_modes=("rgb_array", "rgb_array_list"),
    )

    def _prepare(self) -> None:
        self.downstream_timeout_s = backend_profile(self._contract, self.name).get("command_timeout_s")
        self.pacer = Pacer(self._clock, self._contract.control_period_ns)
        self._robot = self._make_robot(self._namespace or "/")
        self._was_connected = False

    def _make_robot(self, namespace: str) -> RealBackend:
        """Return the backend that drives the simulator, without the start-up checks of a robot."""
        sensors = self._contract.sensors
        topics = [sensor.topic for sensor in sensors.values()]
        shared = [name for name, sensor in sensors.items() if topics.count(sensor.topic) > 1]
        profile = {"discovery_s": 0.0, "allow_no_downstream_timeout": True, "shared": shared}
        contract = replace(self._contract, backends={**self._contract.backends, "real": profile})
        robot = make_real_backend(
            contract,
            clock=self._clock,
            namespace=namespace,
            domain_id=self._domain_id,
            ros_args=self._ros_args(namespace),
            step_timeout_s=self.step_timeout_s,
            reset_timeout_s=self.reset_timeout_s,
        )
        robot.pacer, robot.feed = self.pacer, self.feed  # kept across connections
        if self._spawn:  # `embodied-env sim` sets this environment itself
            robot.publisher_environment = {**os.environ, **profile_environment(contract)}
        return robot

    def _connect_topics(self, ros: RosNode, namespace: str) -> None:
        ros.receiver.subscribe(_IMAGE, message_class("sensor_msgs/msg/Image"), IMAGE_TOPIC)
        self._robot, self._was_connected = self._make_robot(namespace), False
        self._robot.open()

    def _reset(self, request: ResetRequest, deadline_ns: int) -> tuple[ResetReply, Snapshot]:
        self._reopen_if_ended()
        end = deadline_to_monotonic_s(deadline_ns, self._clock)
        epoch, without_options = self._epoch_base + request.epoch, replace(request, options={})
        self._set_reset_parameters(epoch, request, end)
        if not self._was_connected:
            self._robot.reset(without_options, deadline_ns)
            self._was_connected = True
        reply = self._reset_simulator(epoch, end)
        return reply, self._robot.reset(without_options, deadline_ns)

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish one message per actuator."""
        self._check_running()
        return self._robot.send(command)

    def advance(self, target_ns: int, deadline_ns: int) -> None:
        """Wait for the end of the control period."""
        self._check_running()
        self._robot.advance(target_ns, deadline_ns)

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:
        """Return the newest readings, or raise BackendLostError if the simulator exited or stalled."""
        self._check_running()
        return self._robot.read(after_ns, deadline_ns)

    def newest(self, sensors: Iterable[str]) -> Snapshot:
        """Return the newest reading of each sensor, or raise BackendLostError if not connected."""
        return self._robot.newest(sensors)

    def estops(self) -> InputStates:
        """Return whether another node publishes commands (thread-safe)."""
        return self._robot.estops()

    def _check_running(self) -> None:
        self._check_usable()
        self._raise_if_exited()

    def _receive_images(self, receiver: Receiver) -> Sequence[Any]:
        return [arrival.message for arrival in receiver.receive(POLL_S)]

    def halt(self, reason: str) -> None:
        """Kill a simulator that we started, and publish nothing until the next reset restarts it."""
        self._robot.halt(reason)
        super().halt(reason)

    def close(self) -> None:
        """Destroy our nodes and end the simulator that we started."""
        try:
            self._robot.close()
        finally:
            super().close()
