"""The embedded simulator in its own process, on wall time: a robot that can be seeded, set and started again.

It is driven as a robot is (`RealBackend`); a second node of ours conducts its resets.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.base import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.loader import profile_of
from embodied_env.contract.message_types import message_class
from embodied_env.core.clock import Clock, Stamp, deadline_to_monotonic_s
from embodied_env.core.message_tap import MessageTap
from embodied_env.core.pacing import Pacer
from embodied_env.core.process.child import simulator
from embodied_env.core.types import ApprovedCommand, ResetReport, ResetRequest, SentCommand, Snapshot
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.ros.embedded_sim.process import SimulatorProcess
from embodied_env.ros.embedded_sim.protocol import PICTURE_TOPIC, ResetReply
from embodied_env.ros.embedded_sim.services import SimulatorServices, picture_of
from embodied_env.ros.fastdds import profile_environment
from embodied_env.ros.node import RosNode
from embodied_env.ros.receiver import POLL_S
from embodied_env.ros.robot.backend import RealBackend
from embodied_env.ros.setup_checks import timeout_s, unique_namespace

NAME = "mujoco_ros"
_PICTURE = "picture"


class RealtimeMujocoRosBackend:
    """The world of `MujocoRosBackend`, which waits for nobody; it has the same profile, and the same options.

    Like a robot it takes only contracts whose safety mode is ``enforce``.

    Attributes:
        pacer: the deadlines of the steps of an episode, and what was missed of them.
        feed: gets the messages that our nodes publish and receive.
    """

    name = NAME
    capabilities = Capabilities(
        free_running=True,
        seedable=True,
        state_query=True,
        estop_inputs=True,
        transport=True,
        reset_levels=("world",),
        render_modes=("rgb_array",),
    )

    def __init__(
        self,
        contract: Contract,
        *,
        clock: Clock,
        spawn: bool = True,
        namespace: str | None = None,
        domain_id: int | None = None,
        step_timeout_s: float | None = None,
        reset_timeout_s: float | None = None,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            contract: what both sides run; its fingerprint is compared at every reset.
            clock: paces the steps and stamps arrivals; a steady one.
            spawn: start a simulator process of our own; False: attach to one that runs free.
            namespace: absolute ROS namespace; None: one of our own when we spawn, else the root.
            domain_id: None: ``ROS_DOMAIN_ID``, or 0.
            step_timeout_s: without any reading for so long the simulator counts as lost; None: the profile's.
            reset_timeout_s: how long a reset may take, the start of the process included; None: the profile's.

        Raises:
            ContractError: when the contract has no profile for this backend.
            UsageError: for a virtual clock, a wrong timeout, namespace or domain.
        """
        profile = profile_of(contract, NAME)
        self._contract = contract
        self._clock = clock
        self._spawn = spawn
        self._namespace = namespace
        self._domain_id = domain_id
        self.step_timeout_s = timeout_s("step_timeout_s", step_timeout_s, profile.get("step_timeout_s", 5.0))
        self.reset_timeout_s = timeout_s("reset_timeout_s", reset_timeout_s, profile.get("reset_timeout_s", 30.0))
        self.downstream_timeout_s = profile.get("command_timeout_s")
        self.pacer = Pacer(clock, contract.control_period_ns)
        self.feed = MessageTap()
        self._robot = self._make_robot(namespace or "/")
        self._epoch_base = secrets.randbits(62)
        self._simulator = SimulatorProcess(contract, domain_id=domain_id)
        self._conductor: RosNode | None = None
        self._is_heard = False  # the robot was connected to once
        self._usable = False

    def _make_robot(self, namespace: str) -> RealBackend:
        """Return what drives the simulator: nobody else is where it is, and what it does alone harms nobody."""
        profile = {"discovery_s": 0.0, "allow_no_downstream_timeout": True}
        contract = replace(self._contract, backends={**self._contract.backends, "real": profile})
        robot = RealBackend(
            contract,
            clock=self._clock,
            namespace=namespace,
            domain_id=self._domain_id,
            step_timeout_s=self.step_timeout_s,
            reset_timeout_s=self.reset_timeout_s,
        )
        robot.pacer, robot.feed = self.pacer, self.feed  # they outlive the connection
        if self._spawn:  # `embodied-env sim` makes room by itself
            robot.publisher_environment = {**os.environ, **profile_environment(contract)}
        return robot

    # ------------------------------------------------------------------------------------------ connecting

    def open(self) -> None:
        """Start the simulator when it is ours to start, and create our nodes."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        namespace = self._namespace or (unique_namespace() if self._spawn else "/")
        if self._spawn:
            source = self._contract.source
            self._simulator.start(simulator("-", namespace=namespace, profile=NAME, source=source, free_running=True))
        self._conductor = RosNode(
            "conductor", namespace=namespace, clock=self._clock, domain_id=self._domain_id, feed=self.feed
        )
        self._conductor.receiver.subscribe(_PICTURE, message_class("sensor_msgs/msg/Image"), PICTURE_TOPIC)
        self._robot, self._is_heard = self._make_robot(namespace), False
        self._robot.open()

    # ---------------------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Reset the world by seed and options; every sensor is newer than the reset. A world that has died is anew."""
        self._usable = False
        if self._conductor is None or self._simulator.has_ended:
            self.close()
            self.open()
        try:
            reply, snapshot = self._reset(request, deadline)
        except (TimeoutError, BackendLostError) as error:
            raise BackendNotReadyError(f"reset: {error}") from None
        self._simulator.record_shm_segments()
        self._usable = True
        report = ResetReport(level="world", seed_applied=request.seed, sampled=reply.sampled, details=reply.details)
        return replace(snapshot, reset=report)

    def _reset(self, request: ResetRequest, deadline: Stamp) -> tuple[ResetReply, Snapshot]:
        """Reset the world, then wait for readings that are newer; the first time only when it is heard."""
        end = deadline_to_monotonic_s(deadline, self._clock)
        epoch, quiet = self._epoch_base + request.epoch, replace(request, options={})
        services = self._services()
        services.set_reset_parameters(epoch, request, end)
        if not self._is_heard:  # the world would move on while its sensors are found
            self._robot.reset(quiet, deadline)
            self._is_heard = True
        reply = services.reset(epoch, self._contract.fingerprint, end)
        return reply, self._robot.reset(quiet, deadline)

    def _services(self) -> SimulatorServices:
        if self._conductor is None:
            raise BackendLostError("closed", "the connection is closed")
        return SimulatorServices(receiver=self._conductor.receiver, patrol=self._simulator.raise_if_exited)

    # ----------------------------------------------------------------------------------------------- step

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish one message per actuator."""
        self._check_usable()
        return self._robot.send(command)

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Wait for the end of the control period."""
        self._check_usable()
        self._robot.advance(target, deadline)

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Return the newest readings; raises BackendLostError when the simulator has ended, or is silent."""
        self._check_usable()
        return self._robot.read(after, deadline)

    def newest(self, sensors: Iterable[str]) -> Snapshot:
        """Return the newest reading of each of these sensors; raises BackendLostError without a connection."""
        return self._robot.newest(sensors)

    def estops(self) -> Mapping[str, str]:
        """Return whether somebody else publishes commands. Any thread may ask."""
        return self._robot.estops()

    def _check_usable(self) -> None:
        if not self._usable:
            raise BackendLostError("halted", "the connection was halted, closed, or never reset")
        self._simulator.raise_if_exited()

    # --------------------------------------------------------------------------------------------- picture

    def render(self) -> NDArray[np.uint8]:
        """Return a picture of the simulator's world as it is now, shape (height, width, 3).

        Raises:
            BackendLostError: when none comes within the time of a step.
            MissingDependencyError: when the simulator cannot render.
        """
        end = time.monotonic() + self.step_timeout_s
        services = self._services()
        taken_ns = services.render(end)
        while time.monotonic() < end:
            for arrival in services.receiver.receive(POLL_S):
                if (picture := picture_of(arrival.message, taken_ns)) is not None:
                    return picture
            self._simulator.raise_if_exited()
        raise BackendLostError("timeout", "the picture did not come")

    # ------------------------------------------------------------------------------------------------ end

    def halt(self, reason: str) -> None:
        """Publish nothing more until the next reset. A simulator of ours is ended; reset starts another."""
        self._robot.halt(reason)
        if self._usable:
            self._simulator.kill()
        self._usable = False

    def close(self) -> None:
        """Destroy our nodes and end our simulator."""
        self._usable = False
        conductor, self._conductor = self._conductor, None
        try:
            self._robot.close()
        finally:
            if conductor is not None:
                conductor.close()
            self._simulator.stop()

    def processes(self) -> list[dict[str, Any]]:
        """Return the simulator that we started."""
        return self._simulator.describe()
