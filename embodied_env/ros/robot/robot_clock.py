"""The clock of a robot: pairs of our clocks, simulated time on a topic, and a translator of stamps for each sensor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.utilities import get_rmw_implementation_identifier

from embodied_env.contract import Contract
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.time_sync import SimTimeTracker, SystemClockMonitor, WorldClock
from embodied_env.core.types import ClockStatus
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.receiver import POLL_S, ReceivedMessage

if TYPE_CHECKING:
    from rclpy.node import Node

    from embodied_env.ros.receiver import ReceivedMessage
from embodied_env.ros.robot.clock_sync import EVERY_SENSOR, ClockSpec, StampTranslator, is_on_our_host

CLOCK_TOPIC = "/clock"
_CLOCK_QOS = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)


class RobotClock:
    """Keeps the world's time; all of it is used while the listener's `changed` is held, but for the waits.

    Attributes:
        timeline: the world's clock.
        stampings: by sensor.
    """

    def __init__(
        self, contract: Contract, clock: Clock, *, clocks: Mapping[str, ClockSpec], use_sim_time: bool = False
    ) -> None:
        """Begin: UTC is paired with the steady clock now; simulated time is waited for."""
        self._contract = contract
        self._clock = clock
        self._watch = SystemClockMonitor(clock)
        self._simulated = SimTimeTracker(self._watch, period_ns=contract.control_period_ns) if use_sim_time else None
        self.timeline: WorldClock = self._simulated or self._watch
        observation = contract.safety.observation
        self.stampings = {
            name: StampTranslator(
                name,
                clocks.get(name) or clocks.get(EVERY_SENSOR) or ClockSpec(),
                timeline=self.timeline,
                watch=self._watch,
                require_stamp=observation.require_stamp,
                future_tolerance_s=observation.future_tolerance_s,
            )
            for name in contract.sensors
        }

    def listen(self, listener: ReceiveThread, on_set: Callable[[], None]) -> None:
        """Listen to simulated time, where it counts. `on_set`: what is buffered is of a time that is no more."""
        simulated = self._simulated
        if simulated is None:
            return

        def take(arrival: ReceivedMessage) -> None:
            clock = arrival.message.clock
            if simulated.on_clock(int(clock.sec) * NS_PER_S + int(clock.nanosec), arrival.arrival_ns):
                on_set()

        listener.subscribe(CLOCK_TOPIC, "rosgraph_msgs/msg/Clock", CLOCK_TOPIC, _CLOCK_QOS, take)

    def locate_publishers(self, node: Node, listener: ReceiveThread) -> None:
        """Look at who publishes the sensors: on our host the clock is ours."""
        rmw = get_rmw_implementation_identifier()
        for name, sensor in self._contract.sensors.items():
            is_ours = is_on_our_host(node, sensor.topic, rmw)
            with listener.condition:
                self.stampings[name].set_publisher_locality(is_ours)

    def on_message(self, arrival: ReceivedMessage) -> None:
        """Look at the clocks as a message arrives."""
        self._watch.check_pair(arrival.arrival_ns, arrival.arrival_system_ns)

    def status(self) -> ClockStatus:
        """Return what is known of the clocks, and what happened to them since the last account."""
        self._watch.check_pair(self._clock.now_ns(), self._clock.system_ns())
        return replace(self.timeline.status(), rmw=get_rmw_implementation_identifier())

    def await_clock(self, listener: ReceiveThread, end: float) -> None:
        """Wait until simulated time is heard to go on, `end` by `time.monotonic`; raises BackendNotReadyError."""
        simulated, asked_ns = self._simulated, self._clock.now_ns()
        if simulated is None:
            return
        with listener.condition:
            while (simulated.advanced_ns or 0) < asked_ns:
                listener.raise_if_failed()
                if (left_s := end - time.monotonic()) <= 0:
                    was = "no message came" if simulated.advanced_ns is None else "it stands still"
                    raise BackendNotReadyError(f"no {CLOCK_TOPIC}: {was} (backends.real.use_sim_time is true)")
                listener.condition.wait(min(POLL_S, left_s))

    def check(self, timeout_s: float) -> None:
        """Raise BackendLostError when simulated time has stood still for longer."""
        if self._simulated is None:
            return
        stood_s = (self._clock.now_ns() - (self._simulated.advanced_ns or 0)) / NS_PER_S
        if stood_s > timeout_s:
            raise BackendLostError("clock_stopped", f"{CLOCK_TOPIC} stood still for {stood_s:.3f} s")
