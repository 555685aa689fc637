"""Newest reading of each sensor of a robot, and the clock of its world."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.utilities import get_rmw_implementation_identifier

from embodied_env.contract import Contract, FloatArray, SensorSpec
from embodied_env.contract.qos_schema import is_latched
from embodied_env.core.types import ResetReport, Sample, Snapshot
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.ros.robot.contract_checks import measured_positions
from embodied_env.ros.robot.graph_checks import CLOCK_TOPIC, latched_remedy
from embodied_env.ros.robot.robot_profile import RealProfile
from embodied_env.ros.robot.sensor_publishers import SensorPublishers
from embodied_env.ros.transport.qos import sensor_qos
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.ros.wire.sensor_buffer import SensorBuffer, SensorReader
from embodied_env.ros.wire.stamp_translation import StampTranslator, is_on_our_host
from embodied_env.ros.wire.transforms import Frames, Tf2Frames, TransformedReader
from embodied_env.ros.wire.world_clock import SimTimeTracker, SystemClockMonitor, WorldClock
from embodied_env.timing.clock import NS_PER_S, Clock

_CLOCK_QOS = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
_MAX_WAITING = 64  # messages


class SensorSet:
    """Sensors of one connection, whose methods take the listener's lock."""

    def __init__(  # noqa: PLR0913 - parts of one connection
        self,
        contract: Contract,
        profile: RealProfile,
        listener: ReceiveThread,
        clock: Clock,
        *,
        silence_s: float,
        publishers: SensorPublishers,
        frames: Frames | None = None,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        """Subscribe before `listener` starts.

        `frames` and `on_sample` are those of `RealBackend`. Without any reading for `silence_s` the robot counts as
        lost. `publishers` gets every message.
        """
        self._contract = contract
        self._publishers = publishers
        self._listener = listener
        self._clock = clock
        self._silence_s = silence_s
        self._on_sample = on_sample
        self._received_ns = clock.now_ns()  # any sensor, on the steady clock
        self._utc = SystemClockMonitor(clock)
        self._sim_time: SimTimeTracker | None = None
        if profile.use_sim_time:
            self._sim_time = SimTimeTracker(self._utc, period_ns=contract.control_period_ns)
            listener.subscribe(CLOCK_TOPIC, "rosgraph_msgs/msg/Clock", CLOCK_TOPIC, _CLOCK_QOS, self._on_clock)
        self._timeline: WorldClock = self._sim_time or self._utc
        if frames is None and profile.tf:
            frames = Tf2Frames(listener.node)
        self.buffers: dict[str, SensorBuffer] = {}
        self._translators: dict[str, StampTranslator] = {}
        self._filters: dict[str, MessageFilter] = {}
        for name, sensor in contract.sensors.items():
            translator = StampTranslator(
                name, profile.clock_of(name), contract.safety.observation, timeline=self._timeline, utc=self._utc
            )
            if frames is None or name not in profile.tf:
                reader = SensorReader(name, sensor)
            else:
                reader = TransformedReader(name, sensor, profile.tf[name], frames)
            self._filters[name] = MessageFilter(sensor, reader, self._store)
            self.buffers[name] = SensorBuffer(name, sensor, translator, reader)
            self._translators[name] = translator
            listener.subscribe(name, sensor.type, sensor.topic, sensor_qos(sensor), self._on_message)

    def _on_message(self, arrival: ReceivedMessage) -> None:
        self._publishers.add(self._contract.sensors[arrival.key].topic, arrival)
        self._filters[arrival.key].on_message(arrival)

    def _store(self, arrival: ReceivedMessage) -> None:
        self._utc.check_pair(arrival.arrival_ns, arrival.arrival_system_ns)
        buffer = self.buffers[arrival.key]
        buffer.add(arrival)
        self._received_ns = arrival.arrival_ns
        if self._on_sample is not None and (newest := buffer.newest()) is not None:
            self._on_sample(newest)

    def _on_clock(self, arrival: ReceivedMessage) -> None:
        stamp = arrival.message.clock
        stamp_ns = int(stamp.sec) * NS_PER_S + int(stamp.nanosec)
        if self._sim_time is not None and self._sim_time.on_clock(stamp_ns, arrival.arrival_ns):
            for buffer in self.buffers.values():
                buffer.clear_readings()

    # ------------------------------------------------------------------------------------------------ a reset

    def locate_publishers(self) -> None:
        """Determine which sensors are published on this host, and judge their stamps again."""
        rmw = get_rmw_implementation_identifier()
        for name, sensor in self._contract.sensors.items():
            is_ours = is_on_our_host(self._listener.node, sensor.topic, rmw)
            with self._listener.condition:
                self._translators[name].set_publisher_locality(is_ours)
                self.buffers[name].reevaluate()

    def await_clock(self, deadline_ns: int) -> None:
        """Wait for simulated time, if used, or raise BackendNotReadyError at `deadline_ns`."""
        sim_time, begun_ns = self._sim_time, self._clock.now_ns()
        if sim_time is None:
            return
        if not self._listener.wait_until(lambda: (sim_time.advanced_ns or 0) >= begun_ns, deadline_ns):
            problem = "no message on" if sim_time.advanced_ns is None else "time does not advance on"
            raise BackendNotReadyError(f"{problem} {CLOCK_TOPIC} (required by backends.real.use_sim_time)")

    def wait_for_newer(self, deadline_ns: int) -> None:
        """Wait until each sensor has a reading stamped after now, or any if it is latched.

        Raises BackendNotReadyError at `deadline_ns` (steady clock), with the sensors that have none.
        """
        with self._listener.condition:
            reset_ns, since_ns = self._timeline.now_ns(), dict.fromkeys(self.buffers, -1)
            for name, buffer in self.buffers.items():
                if not is_latched(self._contract.sensors[name].qos):
                    since_ns[name] = reset_ns
                    buffer.clear()

            def missing() -> list[str]:
                self._flush_filters()
                return [name for name, buffer in self.buffers.items() if buffer.stamp_ns <= since_ns[name]]

            if not self._listener.wait_until(lambda: not missing(), deadline_ns):
                problems = ", ".join(f"{name} ({self._describe_newest(name, reset_ns)})" for name in missing())
                raise BackendNotReadyError(f"no reading newer than the reset from {problems}")

    def _describe_newest(self, name: str, reset_ns: int) -> str:
        placed, sensor = self.buffers[name].placed, self._contract.sensors[name]
        remedy = latched_remedy(name, sensor, self._listener.node)
        if placed is None:
            return f"no message on {sensor.topic}{remedy and f'; {remedy}'}"
        if placed.header_ns == 0:
            return "zero stamp; set safety.observation.require_stamp: false, or timeline: receive"
        suspect = f", possibly the {placed.suspect_clock} clock" if placed.suspect_clock else ""
        age_s = (reset_ns - placed.stamp_ns) / NS_PER_S
        remedy = remedy or "synchronise the publisher's clock with this host"
        return f"stamped {age_s:.3f} s before it{suspect}; {remedy}"

    def wait_for_fresh(self, deadline_ns: int) -> None:
        """Wait until no reading exceeds its `max_age_s`, at most to `deadline_ns` (steady clock)."""

        def are_fresh() -> bool:
            self._flush_filters()
            now_ns = self._timeline.now_ns()
            return all(
                (now_ns - self.buffers[name].stamp_ns) / NS_PER_S <= sensor.max_age_s
                for name, sensor in self._contract.sensors.items()
            )

        self._listener.wait_until(are_fresh, deadline_ns)

    def begin(self) -> None:
        """Start an episode, from which clock jumps are counted."""
        with self._listener.condition:
            self._timeline.begin()

    # --------------------------------------------------------------------------------------------- the newest

    def measured(self) -> FloatArray:
        """Return the newest joint positions, shape (n_joints,), in contract order, NaN if unknown."""
        with self._listener.condition:
            samples = self._samples()
        return measured_positions(self._contract, {name: sample.values for name, sample in samples.items()})

    def newest(self, sensors: Iterable[str]) -> Snapshot:
        """Return the newest reading of each of these sensors, without counting losses."""
        with self._listener.condition:
            found = {name: self.buffers[name].newest() for name in sensors}
            samples = {name: sample for name, sample in found.items() if sample is not None}
            return Snapshot(now_ns=self._timeline.now_ns(), samples=samples)

    def snapshot(self, report: ResetReport | None = None) -> Snapshot:
        """Return the newest readings, or raise BackendLostError when all sensors are silent."""
        with self._listener.condition:
            samples = self._samples()
            self._utc.check_pair(self._clock.now_ns(), self._clock.system_ns())
            status = replace(self._timeline.status(), rmw=get_rmw_implementation_identifier())
            return Snapshot(now_ns=self._timeline.now_ns(), samples=samples, reset=report, clock=status)

    def _samples(self) -> dict[str, Sample]:
        """Return the newest reading of each sensor that has one, under the lock."""
        self._listener.raise_if_failed()
        now_ns = self._clock.now_ns()
        if self._sim_time is not None:
            stopped_s = (now_ns - (self._sim_time.advanced_ns or 0)) / NS_PER_S
            if stopped_s > self._silence_s:
                raise BackendLostError("clock_stopped", f"{CLOCK_TOPIC} has not advanced for {stopped_s:.3f} s")
        silent_s = (now_ns - self._received_ns) / NS_PER_S
        if silent_s > self._silence_s:
            raise BackendLostError("silent", f"no reading from any sensor for {silent_s:.3f} s")
        self._flush_filters()
        found = {name: buffer.sample() for name, buffer in self.buffers.items()}
        return {name: sample for name, sample in found.items() if sample is not None}

    def _flush_filters(self) -> None:
        now_ns = self._clock.now_ns()
        for message_filter in self._filters.values():
            message_filter.flush(now_ns)


class MessageFilter:
    """Forwards readable messages in order and with the stamps of their arrival.

    Like tf2's message filter, it queues a message whose transform is not available yet, for at most the sensor's
    `max_age_s`. Then it is forwarded anyway, and its reading reports the missing transform.
    """

    def __init__(self, sensor: SensorSpec, reader: SensorReader, forward: Callable[[ReceivedMessage], None]) -> None:
        self._reader = reader
        self._forward = forward
        self._max_wait_ns = round(sensor.max_age_s * NS_PER_S)
        self._waiting: deque[ReceivedMessage] = deque(maxlen=_MAX_WAITING)

    def on_message(self, arrival: ReceivedMessage) -> None:
        """Forward a message, or queue it until its transform is available."""
        if self._reader.concerns(arrival.message):
            self._waiting.append(arrival)
            self.flush(arrival.arrival_ns)

    def flush(self, now_ns: int) -> None:
        """Forward messages that are ready or have waited too long at `now_ns` (steady clock)."""
        for arrival in list(self._waiting):
            is_late = now_ns - arrival.arrival_ns > self._max_wait_ns
            if is_late or self._reader.is_ready(arrival.message):
                self._waiting.remove(arrival)
                self._forward(arrival)
