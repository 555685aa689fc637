"""The clocks of one connection to a robot: the world's clock, and for each sensor what its stamps are worth on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.utilities import get_rmw_implementation_identifier

from embodied_env.backends.ros.listener import Listener
from embodied_env.backends.ros.receiver import PATROL_S, Arrival
from embodied_env.backends.ros.stamping import EVERY_SENSOR, ClockSpec, Stamping, is_on_our_host
from embodied_env.clock import NS_PER_S, Clock
from embodied_env.contract import Contract
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.timeline import ClockWatch, SimulatedTime, Timeline
from embodied_env.transition import ClockAccount

CLOCK_TOPIC = "/clock"
_CLOCK_QOS = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)


class Timekeeper:
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
        self._watch = ClockWatch(clock)
        self._simulated = SimulatedTime(self._watch, period_ns=contract.control_period_ns) if use_sim_time else None
        self.timeline: Timeline = self._simulated or self._watch
        observation = contract.safety.observation
        self.stampings = {
            name: Stamping(
                name,
                clocks.get(name) or clocks.get(EVERY_SENSOR) or ClockSpec(),
                timeline=self.timeline,
                watch=self._watch,
                require_stamp=observation.require_stamp,
                future_tolerance_s=observation.future_tolerance_s,
            )
            for name in contract.sensors
        }

    def listen(self, listener: Listener, on_set: Callable[[], None]) -> None:
        """Listen to simulated time, where it counts. `on_set`: what is buffered is of a time that is no more."""
        simulated = self._simulated
        if simulated is None:
            return

        def take(arrival: Arrival) -> None:
            clock = arrival.message.clock
            if simulated.hear(int(clock.sec) * NS_PER_S + int(clock.nanosec), arrival.arrival_ns):
                on_set()

        listener.subscribe(CLOCK_TOPIC, "rosgraph_msgs/msg/Clock", CLOCK_TOPIC, _CLOCK_QOS, take)

    def find_hosts(self, node: Node, listener: Listener) -> None:
        """Look at who publishes the sensors: on our host the clock is ours."""
        rmw = get_rmw_implementation_identifier()
        for name, sensor in self._contract.sensors.items():
            is_ours = is_on_our_host(node, sensor.topic, rmw)
            with listener.changed:
                self.stampings[name].found(is_ours)

    def notice(self, arrival: Arrival) -> None:
        """Look at the clocks as a message arrives."""
        self._watch.notice(arrival.arrival_ns, arrival.arrival_system_ns)

    def account(self) -> ClockAccount:
        """Return what is known of the clocks, and what happened to them since the last account."""
        self._watch.notice(self._clock.now_ns(), self._clock.system_ns())
        return replace(self.timeline.account(), rmw=get_rmw_implementation_identifier())

    def await_clock(self, listener: Listener, end: float) -> None:
        """Wait until simulated time is heard to go on, `end` by `time.monotonic`; raises BackendNotReadyError."""
        simulated, asked_ns = self._simulated, self._clock.now_ns()
        if simulated is None:
            return
        with listener.changed:
            while (simulated.advanced_ns or 0) < asked_ns:
                listener.check()
                if (left_s := end - time.monotonic()) <= 0:
                    was = "no message came" if simulated.advanced_ns is None else "it stands still"
                    raise BackendNotReadyError(f"no {CLOCK_TOPIC}: {was} (backends.real.use_sim_time is true)")
                listener.changed.wait(min(PATROL_S, left_s))

    def check(self, timeout_s: float) -> None:
        """Raise BackendLostError when simulated time has stood still for longer."""
        if self._simulated is None:
            return
        stood_s = (self._clock.now_ns() - (self._simulated.advanced_ns or 0)) / NS_PER_S
        if stood_s > timeout_s:
            raise BackendLostError("clock_stopped", f"{CLOCK_TOPIC} stood still for {stood_s:.3f} s")
