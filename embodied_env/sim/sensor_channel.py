"""Carry readings from a sensor to its topic, with due times, noise, delay and loss.

Worlds without a middleware get the values that a reader of the ROS message returns (`ValueReceiver`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray, SensorSpec
from embodied_env.contract.spaces import field_layouts, message_field
from embodied_env.core.code_types import Quality
from embodied_env.core.reading_conversion import ReadingRules
from embodied_env.core.types import Sample
from embodied_env.messages.declaration import NO_WINDOW, InvalidReadingError, fitted
from embodied_env.messages.images import as_pixels
from embodied_env.messages.ranges import window_of
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.messages.vectors import position_confidence
from embodied_env.sim.sensor_reader import SensorOutput, Values
from embodied_env.sim.world_model import WorldModel
from embodied_env.sim.world_profile import Driver, Source

_NS_PER_S = 1e9
_MAX_TICKS_NS = 1e9 * (1.0 + 1e-9)  # maximum of a rate, Hz, times a tick, ns


class ValueReceiver:
    """Checks and converts the values of a sensor as a reader of its messages does.

    Attributes:
        fields: the declarations of the fields that it checks or converts.
    """

    def __init__(self, name: str, sensor: SensorSpec) -> None:
        """Prepare for readings of `sensor`."""
        self._rules = ReadingRules(name, sensor)
        self.fields = {field: self._rules.fields[field][0] for field in self._rules.acceptors}
        self._is_image = sensor.encoding is not None

    def receive(
        self, sent: Mapping[str, NDArray[Any]], extras: Mapping[str, Any]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the values of a reading that was sent, and what its `Sample` has besides them.

        That is `raw_sha256`, the hashes of the pixels before `resize`, and `driver`, the values in the driver's units,
        by field. Without values, it is `quality` and `reason`: the contract does not allow those that were sent.
        """
        values, rules = dict(sent), self._rules
        window = window_of(extras, sent) if extras else NO_WINDOW
        try:
            for name, accept in rules.acceptors.items():
                if name in rules.conversions:
                    raw = rules.sent(name, sent[name])
                else:
                    raw = as_pixels(rules.fields[name][1], sent[name]) if self._is_image else sent[name].copy()
                values[name] = accept(raw, window)
        except InvalidReadingError as error:
            return {}, {"quality": Quality.INVALID, "reason": str(error)}
        return values, {"raw_sha256": dict(rules.raw_sha256), "driver": dict(rules.driver)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """State of a channel between two world steps, with `others` for `SensorChannel.load`."""

    newest: Sample | None
    available_ns: int
    others: tuple[Any, ...]


class SensorChannel:
    """Channel of one sensor's readings, random only by its name and the reset seed.

    Readings are due at multiples of 1 / rate since the reset, and taken at the first physics step not before that. A
    contact covers the time since the last delivered reading, including lost and superseded ones.

    Attributes:
        name: of its sensor.
        delay_ns: from the acquisition of a reading to its delivery.
        due_ns: the due time of the next reading, on the clock of the world.
        newest: the newest delivered reading. It is stamped with its acquisition or, with the timeline ``receive``, its
            delivery; `seq` counts the delivered readings of an episode.
        extras: the other content of its message.
        available_ns: the time from which that reading could be delivered.
        receiver: gives its samples the values that a reader of the message returns; None: those sent, unchecked.
    """

    def __init__(self, name: str, spec: SensorSpec, source: Source, step_ns: int, *, as_received: bool = False) -> None:
        """Prepare the channel, `as_received` with samples of a reader of its messages."""
        self.name, self._spec, self._source = name, spec, source
        self._as_received = as_received
        receiver = ValueReceiver(name, spec)
        self.receiver = receiver if as_received and receiver.fields else None
        self._is_converted = any(each.conversion is not None for each in spec.fields.values())
        self._layouts = {layout.field: layout for layout in field_layouts(name, spec)}
        self._noisy_fields = {field: message_field(spec, field, spec.fields[field]) for field in source.noise}
        known = SENSOR_MESSAGES.get(spec.type)
        self._covariance: FloatArray | None = None  # covariance of the pose, shape (36,), in m^2 and rad^2
        if known is not None and known.covariance:
            variances = [source.noise.get(field, 0.0) ** 2 for field in ("position", "orientation")]
            self._covariance = np.diag(np.repeat(variances, 3)).ravel()
        self._is_random = bool(source.noise) or source.dropout > 0.0
        self._rng = np.random.default_rng(0)
        self.delay_ns = round(source.delay_s * _NS_PER_S)
        self._interval_ns = _NS_PER_S / spec.rate_hz if spec.rate_hz else float(step_ns)
        self._origin_ns = self._count = self.due_ns = 0
        self._pending: deque[tuple[int, int, SensorOutput]] = deque()  # due, taken, output
        self._is_contact = source.contact is not None
        self._lost_contacts: Values = {}
        self.newest: Sample | None = None
        self.extras: Mapping[str, Any] = {}
        self.available_ns = -1

    def is_due_between(self, step_ns: int) -> bool:
        """Return whether readings are only due at ends of steps of the world."""
        return self._interval_ns % step_ns == 0

    def is_ideal(self, step_ns: int) -> bool:
        """Return whether each step ends with one reading, delivered at once without errors."""
        is_exact = not self._is_random and self._covariance is None and not self._is_contact and not self._is_converted
        return is_exact and not self.delay_ns and self._interval_ns == step_ns

    def begin(self, seed: int, now_ns: int, measured: SensorOutput) -> None:
        """Begin an episode with a reading that is noisy, but neither delayed nor lost."""
        if self._is_random:
            self._rng = np.random.default_rng([seed, *self.name.encode()])
        self._pending.clear()
        self._lost_contacts = {}
        self.newest = None
        self._origin_ns, self._count = now_ns, 0
        self.reserve(now_ns)
        self._pending.append((now_ns, now_ns, self._with_errors(measured)))
        self.deliver(now_ns)

    def save(self) -> ChannelState:
        """Return the state after `begin`, which later readings do not change."""
        readings = self.extras, tuple(self._pending), self._lost_contacts
        times = self._origin_ns, self._count, self.due_ns, self.delay_ns
        random = self._rng.bit_generator.state if self._is_random else None
        return ChannelState(newest=self.newest, available_ns=self.available_ns, others=(readings, times, random))

    def load(self, state: ChannelState) -> None:
        """Continue from a saved state."""
        self.newest, self.available_ns = state.newest, state.available_ns
        (self.extras, pending, self._lost_contacts), times, random = state.others
        self._origin_ns, self._count, self.due_ns, self.delay_ns = times
        self._pending = deque(pending)
        if random is not None:
            self._rng.bit_generator.state = random

    def capture(self, now_ns: int, measured: SensorOutput) -> None:
        """Send a reading taken now, and schedule the next one."""
        self.reserve(now_ns)
        self.send(now_ns, measured)

    def send(self, taken_ns: int, measured: SensorOutput) -> None:
        """Send a reading taken at `taken_ns`, when `reserve` was called for it."""
        is_lost = self._is_random and self._rng.random() < self._source.dropout
        output = self._with_errors(measured)
        if self._is_contact:
            output = _with_contacts(output, self._lost_contacts)
            self._lost_contacts = output.values if is_lost else {}
        if not is_lost:
            self._pending.append((taken_ns + self.delay_ns, taken_ns, output))

    def schedule(self, taken_ns: int, available_ns: int, measured: SensorOutput) -> None:
        """Deliver a reading of `taken_ns` at `available_ns`, without the channel's delay or loss."""
        self._pending.append((available_ns, taken_ns, self._with_errors(measured)))

    def deliver(self, now_ns: int) -> None:
        """Deliver the newest reading that has arrived by now, with the contacts of all that have."""
        arrived = None
        while self._pending and self._pending[0][0] <= now_ns:
            due_ns, taken_ns, measured = self._pending.popleft()
            if self._is_contact and arrived is not None:
                measured = _with_contacts(measured, arrived[2].values)
            arrived = due_ns, taken_ns, measured
        if arrived is None:
            return
        available_ns, taken_ns, measured = arrived
        stamp_ns = now_ns if self._spec.timeline == "receive" else taken_ns
        values, extras = measured.values, measured.extras
        account: dict[str, Any] = {}  # what most samples do not have
        if measured.problem:
            account = {"quality": Quality.INVALID, "reason": measured.problem}
        elif self.receiver is not None and values:
            values, account = self.receiver.receive(values, extras)
        if self._as_received and "covariance" in extras:
            account["confidence"] = position_confidence(extras["covariance"], self._spec.confidence_radius_m)
        self.extras, self.available_ns = extras, available_ns
        self.newest = Sample(
            sensor=self.name,
            values=values,
            stamp_ns=stamp_ns,
            arrival_ns=0,
            seq=0 if self.newest is None else self.newest.seq + 1,
            **account,
        )

    def reserve(self, now_ns: int) -> None:
        """Set the next due time to the first multiple of the interval that is not served or past."""
        self._count = max(self._count + 1, int((now_ns - self._origin_ns) / self._interval_ns) + 1)
        # Times of physics steps are truncated to ns, so half a ns is subtracted for a step at exactly this time.
        self.due_ns = self._origin_ns + int(self._count * self._interval_ns - 0.5)

    def _with_errors(self, measured: SensorOutput) -> SensorOutput:
        if not self._source.noise and self._covariance is None:
            return measured
        values = dict(measured.values)
        for field in sorted(self._source.noise if values else ()):
            values[field] = self._noisy(values[field], field, measured.extras)
        extras = dict(measured.extras)
        if self._covariance is not None:
            extras["covariance"] = extras.get("covariance", 0.0) + self._covariance
            if "covariance" in self._layouts and values:
                values["covariance"] = extras["covariance"].astype(self._layouts["covariance"].dtype)
        return measured._replace(values=values, extras=extras)

    def _noisy(self, values: NDArray[Any], field: str, extras: Mapping[str, Any]) -> NDArray[Any]:
        deviation = self._source.noise[field]
        if field == "orientation" and values.shape == (4,):
            noisy = _rotated(values, deviation * self._rng.standard_normal(3))
        else:
            noisy = values + deviation * self._rng.standard_normal(values.shape)
        if self._noisy_fields[field].saturates:
            noisy = np.clip(noisy, self._layouts[field].low, self._layouts[field].high)
        if self._noisy_fields[field].ranging:  # noise neither moves values into the range nor out of it
            low_m, high_m = window_of(extras, {})[:2]
            is_inside = (values >= low_m) & (values <= high_m)
            noisy = np.where(is_inside, np.clip(noisy, low_m, high_m), values)
        return fitted(field, noisy, values.dtype)


def _with_contacts(measured: SensorOutput, earlier: Values) -> SensorOutput:
    values = {field: np.maximum(value, earlier.get(field, value)) for field, value in measured.values.items()}
    return measured._replace(values=values)


def _rotated(quaternion: NDArray[np.float64], rotation_rad: FloatArray) -> FloatArray:
    """Rotate a quaternion x, y, z, w by a rotation vector in its own frame."""
    angle = float(np.linalg.norm(rotation_rad))
    scale = 0.5 if angle == 0.0 else math.sin(angle / 2.0) / angle
    bx, by, bz = (rotation_rad * scale).tolist()
    bw = math.cos(angle / 2.0)
    ax, ay, az, aw = quaternion.tolist()
    return np.array(
        [
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
            aw * bw - ax * bx - ay * by - az * bz,
        ]
    )


def at_arrival(sample: Sample, arrival_ns: int) -> Sample:
    """Return `sample` with another time of arrival."""
    return Sample(  # `replace` takes four times as long
        sensor=sample.sensor,
        values=sample.values,
        stamp_ns=sample.stamp_ns,
        arrival_ns=arrival_ns,
        seq=sample.seq,
        quality=sample.quality,
        reason=sample.reason,
        raw_sha256=sample.raw_sha256,
        driver=sample.driver,
        confidence=sample.confidence,
    )


def make_channels(
    model: WorldModel, drivers: Mapping[str, Driver], tick_ns: int, *, late: tuple[str, ...], as_received: bool
) -> dict[str, SensorChannel]:
    """Return a channel for each sensor, with those of `late` on the schedule of delays."""
    channels = {}
    for name in model.contract.sensors:
        spec, source = _with_driver_rate(model, name, drivers, tick_ns), model.profile.sources.get(name, Source())
        if name in late:
            spec = replace(spec, timeline="header")  # stamps are those of the schedule
        channels[name] = SensorChannel(name, spec, source, tick_ns, as_received=as_received)
    return channels


def _with_driver_rate(model: WorldModel, sensor: str, drivers: Mapping[str, Driver], tick_ns: int) -> SensorSpec:
    spec, rate_hz = model.contract.sensors[sensor], drivers.get(sensor, Driver()).rate_hz
    if rate_hz is None:
        return spec
    if rate_hz * tick_ns > _MAX_TICKS_NS:
        path = f"{model.path}.emulator.sensors.{sensor}.rate_hz"
        expected = f"at most one reading per tick of {tick_ns / 1e9} s"
        raise model.error(path, f"{rate_hz} (expected {expected}); set emulator.tick_s")
    return replace(spec, rate_hz=rate_hz)
