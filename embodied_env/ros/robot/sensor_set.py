"""The newest reading of each sensor of a robot: received, placed on the world's clock, and waited for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from embodied_env.contract import Contract, FloatArray, SensorSpec
from embodied_env.contract.schema import is_latched
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.core.types import ResetReport, Sample, Snapshot
from embodied_env.errors import BackendLostError, BackendNotReadyError
from embodied_env.ros.qos import sensor_qos
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.receiver import POLL_S, ReceivedMessage
from embodied_env.ros.robot.clock_sync import RobotClock
from embodied_env.ros.robot.contract_checks import measured_positions
from embodied_env.ros.robot.profile import RealProfile
from embodied_env.ros.sensor_buffer import SensorBuffer
from embodied_env.ros.sensor_readers import SensorReader
from embodied_env.ros.transforms import Frames, Tf2Frames, TransformedReader

_KEPT = 64  # messages that wait


class SensorSet:
    """What one connection hears of its sensors. All of it is read under the listener's lock."""

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
        """Subscribe; `listener` has not started yet.

        Args:
            contract: the sensors.
            profile: whose clocks stamp them, and in which frames their values are wanted.
            listener: whose thread takes the messages.
            clock: the steady clock of arrivals.
            silence_s: without any reading for so long the robot counts as lost.
            frames: who knows the transforms; None: tf2, where any is asked for.
            on_sample: told of every reading as it arrives, in that thread.
        """
        self._contract = contract
        self._listener = listener
        self._clock = clock
        self._silence_s = silence_s
        self._on_sample = on_sample
        self._heard_ns = clock.now_ns()  # any sensor, on the steady clock
        self._time = RobotClock(contract, clock, clocks=profile.clocks, use_sim_time=profile.use_sim_time)
        readers = make_readers(contract, profile.tf, frames or (Tf2Frames(listener.node) if profile.tf else None))
        self.buffers = {
            name: SensorBuffer(name, sensor, self._time.stampings[name], readers[name])
            for name, sensor in contract.sensors.items()
        }
        self._intakes = {
            name: MessageFilter(sensor, readers[name], self._taker(name)) for name, sensor in contract.sensors.items()
        }
        for name, sensor in contract.sensors.items():
            listener.subscribe(name, sensor.type, sensor.topic, sensor_qos(sensor), self._intakes[name].on_message)
        self._time.listen(listener, self._flush)

    def _taker(self, name: str) -> Callable[[ReceivedMessage], None]:
        buffer = self.buffers[name]

        def take(arrival: ReceivedMessage) -> None:
            self._time.on_message(arrival)
            buffer.add(arrival)
            self._heard_ns = arrival.arrival_ns
            if self._on_sample is not None and (newest := buffer.newest()) is not None:
                self._on_sample(newest)

        return take

    def _flush(self) -> None:
        for buffer in self.buffers.values():
            buffer.clear_readings()

    # ------------------------------------------------------------------------------------------------ a reset

    def inspect_publishers(self) -> None:
        """Look at who publishes, and judge what has come by whose clock it is stamped."""
        self._time.locate_publishers(self._listener.node, self._listener)
        with self._listener.condition:
            for buffer in self.buffers.values():
                buffer.reevaluate()

    def await_clock(self, end: float) -> None:
        """Wait for simulated time, where it counts, until `end` of `time.monotonic`; raises BackendNotReadyError."""
        self._time.await_clock(self._listener, end)

    def wait_for_newer(self, end: float) -> None:
        """Wait until every sensor has a reading stamped after now.

        What is latched is said once and holds until the next: of it any reading counts, as long as its age allows.

        Args:
            end: of the wait, by `time.monotonic`.

        Raises:
            BackendNotReadyError: naming the sensors that have none by then.
            BackendLostError: when nobody listens any more.
        """
        sensors, listener = self._contract.sensors, self._listener
        with listener.condition:
            reset_ns = self._time.timeline.now_ns()
            since_ns = {name: -1 if is_latched(sensors[name].qos) else reset_ns for name in self.buffers}
            for name, buffer in self.buffers.items():
                if since_ns[name] >= 0:
                    buffer.clear()
            while missing := [name for name, buffer in self.buffers.items() if buffer.stamp_ns <= since_ns[name]]:
                listener.raise_if_failed()
                self._look_at_waiting()
                if (left_s := end - time.monotonic()) <= 0:
                    raise BackendNotReadyError(
                        "no reading newer than the reset from "
                        + ", ".join(f"{name} ({self._newest(name, reset_ns)})" for name in missing)
                    )
                listener.condition.wait(min(POLL_S, left_s))

    def _newest(self, name: str, reset_ns: int) -> str:
        placed = self.buffers[name].placed
        if placed is None:
            return f"no message on {self._contract.sensors[name].topic}"
        if placed.header_ns == 0:
            return "its messages carry no stamp: see safety.observation.require_stamp, or timeline: receive"
        by = f"; by {placed.suspect_clock}?" if placed.suspect_clock else ""
        return f"stamped {(reset_ns - placed.stamp_ns) / NS_PER_S:.3f} s before it: is its clock that of this host{by}?"

    def wait_for_fresh(self, end: float) -> None:
        """Wait until no reading is older than it may be, but not beyond `end`: what is old then is told by its age."""
        sensors, listener = self._contract.sensors, self._listener
        with listener.condition:
            while (left_s := end - time.monotonic()) > 0:
                listener.raise_if_failed()
                self._look_at_waiting()
                now_ns = self._time.timeline.now_ns()
                ages_s = {name: (now_ns - buffer.stamp_ns) / NS_PER_S for name, buffer in self.buffers.items()}
                if all(age_s <= sensors[name].max_age_s for name, age_s in ages_s.items()):
                    return
                listener.condition.wait(min(POLL_S, left_s))

    def begin(self) -> None:
        """Begin an episode: jumps of the clocks are counted from here."""
        with self._listener.condition:
            self._time.timeline.begin()

    # --------------------------------------------------------------------------------------------- the newest

    def measured(self) -> FloatArray:
        """Return the newest positions of the joints, shape (n_joints,), in contract order; NaN where unknown."""
        with self._listener.condition:
            samples = self._samples()
        return measured_positions(self._contract, {name: sample.values for name, sample in samples.items()})

    def newest(self, sensors: Iterable[str]) -> Snapshot:
        """Return the newest reading of each of these sensors; nothing is counted."""
        with self._listener.condition:
            found = {name: self.buffers[name].newest() for name in sensors}
            samples = {name: sample for name, sample in found.items() if sample is not None}
            return Snapshot(now_ns=self._time.timeline.now_ns(), samples=samples)

    def snapshot(self, report: ResetReport | None = None) -> Snapshot:
        """Return the newest readings; raises BackendLostError when no sensor says anything any more."""
        with self._listener.condition:
            samples, account = self._samples(), self._time.status()
            return Snapshot(now_ns=self._time.timeline.now_ns(), samples=samples, reset=report, clock=account)

    def _samples(self) -> dict[str, Sample]:
        """Return the newest reading of each sensor that has one, under the lock."""
        self._listener.raise_if_failed()
        self._time.check(self._silence_s)
        silent_s = (self._clock.now_ns() - self._heard_ns) / NS_PER_S
        if silent_s > self._silence_s:
            raise BackendLostError("silent", f"no reading of any sensor for {silent_s:.3f} s")
        self._look_at_waiting()
        found = {name: buffer.sample() for name, buffer in self.buffers.items()}
        return {name: sample for name, sample in found.items() if sample is not None}

    def _look_at_waiting(self) -> None:
        """Hand on the messages whose transform has come, under the lock."""
        now_ns = self._clock.now_ns()
        for intake in self._intakes.values():
            intake.flush_ready(now_ns)


def make_readers(contract: Contract, wanted: Mapping[str, str], frames: Frames | None) -> dict[str, SensorReader]:
    """Return the reader of each sensor.

    `wanted`: in which frame its values are wanted, if not as they come. Without `frames` there may be none.
    """
    readers = {name: SensorReader(name, sensor) for name, sensor in contract.sensors.items() if name not in wanted}
    for name, target in wanted.items():
        if frames is None:
            raise BackendNotReadyError(f"nobody knows how to transform {name} to {target}")
        readers[name] = TransformedReader(name, contract.sensors[name], target, frames)
    return {name: readers[name] for name in contract.sensors}


class MessageFilter:
    """Hands the messages that concern a sensor on, in order.

    One whose transform is not known yet waits, as in tf2's message filter, for no longer than a reading may be old.
    Then it is handed on all the same, and its reading says what was missing. Who waits keeps the stamps of his arrival.
    """

    def __init__(self, sensor: SensorSpec, reader: SensorReader, hand_on: Callable[[ReceivedMessage], None]) -> None:
        """Hand on to `hand_on` what `reader` can read of `sensor`."""
        self._reader = reader
        self._hand_on = hand_on
        self._patience_ns = round(sensor.max_age_s * NS_PER_S)
        self._waiting: deque[ReceivedMessage] = deque(maxlen=_KEPT)

    def on_message(self, arrival: ReceivedMessage) -> None:
        """Take a message that has arrived."""
        if not self._reader.concerns(arrival.message):
            return
        if not isinstance(self._reader, TransformedReader):
            self._hand_on(arrival)
            return
        self._waiting.append(arrival)
        self.flush_ready(arrival.arrival_ns)

    def flush_ready(self, now_ns: int) -> None:
        """Hand on those that need not wait any longer at `now_ns` of the steady clock."""
        if not isinstance(self._reader, TransformedReader):
            return
        for arrival in list(self._waiting):
            is_late = now_ns - arrival.arrival_ns > self._patience_ns
            if is_late or self._reader.is_ready(arrival.message):
                self._waiting.remove(arrival)
                self._hand_on(arrival)
