"""The newest reading of each sensor of a robot, and the clock of the robot's world: UTC or simulated time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.utilities import get_rmw_implementation_identifier

from embodied_env.contract import Contract, FloatArray, SensorSpec
from embodied_env.contract.schema import is_latched
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.types import ResetReport, Sample, Snapshot
from embodied_env.core.world_clock import SimTimeTracker, SystemClockMonitor, WorldClock
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.ros.qos import sensor_qos
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.receiver import POLL_S, ReceivedMessage
from embodied_env.ros.robot.backend_profile import RealProfile
from embodied_env.ros.robot.contract_checks import measured_positions
from embodied_env.ros.robot.stamp_translation import is_on_our_host, make_translators
from embodied_env.ros.sensor_buffer import SensorBuffer
from embodied_env.ros.sensor_readers import SensorReader
from embodied_env.ros.transforms import Frames, Tf2Frames, TransformedReader

CLOCK_TOPIC = "/clock"

_CLOCK_QOS = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
_MAX_WAITING = 64  # messages


class SensorSet:
    """The sensors of one connection. Its methods take the listener's lock."""

    def __init__(
        self,
        contract: Contract,
        profile: RealProfile,
        listener: ReceiveThread,
        clock: Clock,
        *,
        silence_s: float,
        frames: Frames | None = None,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        """Subscribe; `listener` has not started yet. `frames` and `on_sample` are those of `RealBackend`.

        Without any reading for `silence_s` the robot counts as lost.
        """
        self._contract = contract
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
        self._translators = make_translators(contract, profile.clocks, timeline=self._timeline, utc=self._utc)
        if frames is None and profile.tf:
            frames = Tf2Frames(listener.node)
        readers = {
            name: SensorReader(name, sensor)
            if frames is None or name not in profile.tf
            else TransformedReader(name, sensor, profile.tf[name], frames)
            for name, sensor in contract.sensors.items()
        }
        self.buffers = {
            name: SensorBuffer(name, sensor, self._translators[name], readers[name])
            for name, sensor in contract.sensors.items()
        }
        self._filters = {
            name: MessageFilter(sensor, readers[name], self._store) for name, sensor in contract.sensors.items()
        }
        for name, sensor in contract.sensors.items():
            listener.subscribe(name, sensor.type, sensor.topic, sensor_qos(sensor), self._filters[name].on_message)

    def _store(self, arrival: ReceivedMessage) -> None:
        self._utc.check_pair(arrival.arrival_ns, arrival.arrival_system_ns)
        buffer = self.buffers[arrival.key]
        buffer.add(arrival)
        self._received_ns = arrival.arrival_ns
        if self._on_sample is not None and (newest := buffer.newest()) is not None:
            self._on_sample(newest)

    def _on_clock(self, arrival: ReceivedMessage) -> None:
        """Store simulated time, and drop all readings when it went back."""
        stamp = arrival.message.clock
        stamp_ns = int(stamp.sec) * NS_PER_S + int(stamp.nanosec)
        if self._sim_time is not None and self._sim_time.on_clock(stamp_ns, arrival.arrival_ns):
            for buffer in self.buffers.values():
                buffer.clear_readings()

    # ------------------------------------------------------------------------------------------------ a reset

    def locate_publishers(self) -> None:
        """Find out which sensors are published on our host, and judge the newest stamps again accordingly."""
        rmw = get_rmw_implementation_identifier()
        for name, sensor in self._contract.sensors.items():
            is_ours = is_on_our_host(self._listener.node, sensor.topic, rmw)
            with self._listener.condition:
                self._translators[name].set_publisher_locality(is_ours)
                self.buffers[name].reevaluate()

    def await_clock(self, end: float) -> None:
        """Wait until simulated time, if it is used, advances; `end` is by `time.monotonic`.

        Raises:
            BackendNotReadyError: when it does not.
        """
        sim_time, begun_ns = self._sim_time, self._clock.now_ns()
        if sim_time is None:
            return
        with self._listener.condition:
            while (sim_time.advanced_ns or 0) < begun_ns:
                self._listener.raise_if_failed()
                if (left_s := end - time.monotonic()) <= 0:
                    was = "no message came" if sim_time.advanced_ns is None else "it stands still"
                    raise BackendNotReadyError(f"no {CLOCK_TOPIC}: {was} (backends.real.use_sim_time is true)")
                self._listener.condition.wait(min(POLL_S, left_s))

    def wait_for_newer(self, end: float) -> None:
        """Wait until every sensor has a reading stamped after now. `end` is by `time.monotonic`.

        A latched message holds until the next one: of such a sensor any reading counts that is not too old.

        Raises:
            BackendNotReadyError: naming the sensors without such a reading.
            BackendLostError: when receiving has failed.
        """
        sensors, listener = self._contract.sensors, self._listener
        with listener.condition:
            reset_ns = self._timeline.now_ns()
            since_ns = {name: -1 if is_latched(sensors[name].qos) else reset_ns for name in self.buffers}
            for name, buffer in self.buffers.items():
                if since_ns[name] >= 0:
                    buffer.clear()
            while missing := [name for name, buffer in self.buffers.items() if buffer.stamp_ns <= since_ns[name]]:
                listener.raise_if_failed()
                self._flush_filters()
                if (left_s := end - time.monotonic()) <= 0:
                    raise BackendNotReadyError(
                        "no reading newer than the reset from "
                        + ", ".join(f"{name} ({self._describe_newest(name, reset_ns)})" for name in missing)
                    )
                listener.condition.wait(min(POLL_S, left_s))

    def _describe_newest(self, name: str, reset_ns: int) -> str:
        placed = self.buffers[name].placed
        if placed is None:
            return f"no message on {self._contract.sensors[name].topic}"
        if placed.header_ns == 0:
            return "its messages carry no stamp: see safety.observation.require_stamp, or timeline: receive"
        by = f"; by {placed.suspect_clock}?" if placed.suspect_clock else ""
        return f"stamped {(reset_ns - placed.stamp_ns) / NS_PER_S:.3f} s before it: is its clock that of this host{by}?"

    def wait_for_fresh(self, end: float) -> None:
        """Wait until no reading is older than its `max_age_s`, or until `end`: the observation then shows its age."""
        sensors, listener = self._contract.sensors, self._listener
        with listener.condition:
            while (left_s := end - time.monotonic()) > 0:
                listener.raise_if_failed()
                self._flush_filters()
                now_ns = self._timeline.now_ns()
                ages_s = {name: (now_ns - buffer.stamp_ns) / NS_PER_S for name, buffer in self.buffers.items()}
                if all(age_s <= sensors[name].max_age_s for name, age_s in ages_s.items()):
                    return
                listener.condition.wait(min(POLL_S, left_s))

    def begin(self) -> None:
        """Start an episode: clock jumps are counted from here."""
        with self._listener.condition:
            self._timeline.begin()

    # --------------------------------------------------------------------------------------------- the newest

    def measured(self) -> FloatArray:
        """Return the newest positions of the joints, shape (n_joints,), in contract order; NaN where unknown."""
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
        """Return the newest readings; raises BackendLostError when all sensors are silent."""
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
            stood_s = (now_ns - (self._sim_time.advanced_ns or 0)) / NS_PER_S
            if stood_s > self._silence_s:
                raise BackendLostError("clock_stopped", f"{CLOCK_TOPIC} stood still for {stood_s:.3f} s")
        silent_s = (now_ns - self._received_ns) / NS_PER_S
        if silent_s > self._silence_s:
            raise BackendLostError("silent", f"no reading of any sensor for {silent_s:.3f} s")
        self._flush_filters()
        found = {name: buffer.sample() for name, buffer in self.buffers.items()}
        return {name: sample for name, sample in found.items() if sample is not None}

    def _flush_filters(self) -> None:
        now_ns = self._clock.now_ns()
        for message_filter in self._filters.values():
            message_filter.flush(now_ns)


class MessageFilter:
    """Forwards the messages that a reader can read, in order and with the stamps of their arrival.

    As in tf2's message filter, a message without a known transform waits, at most as long as a reading may be old. Then
    it is forwarded anyway, and its reading reports the missing transform.
    """

    def __init__(self, sensor: SensorSpec, reader: SensorReader, forward: Callable[[ReceivedMessage], None]) -> None:
        """Forward to `forward` what `reader` can read of `sensor`."""
        self._reader = reader
        self._forward = forward
        self._patience_ns = round(sensor.max_age_s * NS_PER_S)
        self._waiting: deque[ReceivedMessage] = deque(maxlen=_MAX_WAITING)

    def on_message(self, arrival: ReceivedMessage) -> None:
        """Forward a message, or let it wait for its transform."""
        if not self._reader.concerns(arrival.message):
            return
        if not isinstance(self._reader, TransformedReader):
            self._forward(arrival)
            return
        self._waiting.append(arrival)
        self.flush(arrival.arrival_ns)

    def flush(self, now_ns: int) -> None:
        """Forward the messages that need not wait any longer at `now_ns` of the steady clock."""
        if not isinstance(self._reader, TransformedReader):
            return
        for arrival in list(self._waiting):
            is_late = now_ns - arrival.arrival_ns > self._patience_ns
            if is_late or self._reader.is_ready(arrival.message):
                self._waiting.remove(arrival)
                self._forward(arrival)
