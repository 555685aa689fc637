"""How a reading gets from a sensor to its topic: when it is due, its noise, how late it is, whether it is lost."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray, SensorSpec
from embodied_env.contract.message_types import SENSOR_MESSAGES, message_field
from embodied_env.contract.reading_values import fitted
from embodied_env.contract.spaces import field_layouts
from embodied_env.sim.instruments import range_limits_m
from embodied_env.sim.profile import Source
from embodied_env.sim.sensors import SensorOutput, Values

_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading as it is delivered.

    `stamp_ns` is when it was taken, or, with the timeline ``receive``, when it was delivered. `seq` counts the readings
    of an episode of which the world was asked. `there_ns` is when it was there to be delivered. `extras` is what its
    message says beside the fields. `problem`: why it has no values.
    """

    values: Values
    extras: Mapping[str, Any]
    stamp_ns: int
    seq: int
    there_ns: int = -1
    problem: str = ""

    def copy(self) -> Reading:
        """Return it with values of its own."""
        return replace(self, values={field: value.copy() for field, value in self.values.items()})


class SensorChannel:
    """The way of one sensor's readings. All that is random in it depends on its name and the seed of the reset alone.

    Readings are due at multiples of 1 / rate since the reset, and taken at the first physics step that is there. A
    contact tells of the time since the last reading that was seen: with those that were lost, or came together with it.

    Attributes:
        due_ns: when the next reading is due, on the clock of the world.
    """

    def __init__(
        self, name: str, spec: SensorSpec, source: Source, step_ns: int, *, stamps_receipt: bool | None = None
    ) -> None:
        """Prepare the way of the sensor `name`; without a rate it is due at the end of each step of the world.

        `stamps_receipt`: a reading is stamped when it is delivered; None: as the contract's timeline says.
        """
        self._stamps_receipt = spec.timeline == "receive" if stamps_receipt is None else stamps_receipt
        self._name, self._spec, self._source = name, spec, source
        self._layouts = {layout.field: layout for layout in field_layouts(name, spec)}
        self._is_ranging = {field: message_field(spec, field, spec.fields[field]).ranging for field in source.noise}
        known = SENSOR_MESSAGES.get(spec.type)
        self._covariance = _covariance(source.noise) if known is not None and known.covariance else None
        self._is_random = bool(source.noise) or source.dropout > 0.0
        self._delay_ns = round(source.delay_s * _NS_PER_S)
        self._rng = np.random.default_rng(0)
        self._interval_ns = _NS_PER_S / spec.rate_hz if spec.rate_hz else float(step_ns)
        self._origin_ns = self._count = self.due_ns = 0
        self._under_way: deque[tuple[int, int, SensorOutput]] = deque()  # due, taken, what
        self._is_contact = source.contact is not None
        self._untold: Values = {}  # by the readings that were lost
        self._newest: Reading | None = None

    @property
    def newest(self) -> Reading | None:
        """The newest reading that was delivered."""
        return self._newest

    def begin(self, seed: int, now_ns: int, measured: SensorOutput) -> None:
        """Begin an episode with a reading that is there at once: noisy, but neither late nor lost."""
        self._rng = np.random.default_rng([seed, *self._name.encode()])
        self._under_way.clear()
        self._untold = {}
        self._newest = None
        self._origin_ns, self._count = now_ns, 0
        self.reserve(now_ns)
        self._under_way.append((now_ns, now_ns, self._with_errors(measured)))
        self.deliver(now_ns)

    def capture(self, now_ns: int, measured: SensorOutput) -> None:
        """Send a reading, taken now, on its way."""
        self.reserve(now_ns)
        self.send(now_ns, measured)

    def send(self, taken_ns: int, measured: SensorOutput) -> None:
        """Send a reading, taken then, on its way: it was due, and planned for, then."""
        is_lost = self._is_random and self._rng.random() < self._source.dropout
        spoilt = self._with_errors(measured)
        if self._is_contact:
            spoilt = _with_touches(spoilt, self._untold)
            self._untold = spoilt.values if is_lost else {}
        if not is_lost:
            self._under_way.append((taken_ns + self._delay_ns, taken_ns, spoilt))

    def schedule(self, taken_ns: int, there_ns: int, measured: SensorOutput) -> None:
        """Send a reading, taken at `taken_ns`, that is there at `there_ns`: neither late by itself nor lost."""
        self._under_way.append((there_ns, taken_ns, self._with_errors(measured)))

    def deliver(self, now_ns: int) -> None:
        """Hand over what has arrived by now; of several only the newest is seen, with the touches of all."""
        arrived = None
        while self._under_way and self._under_way[0][0] <= now_ns:
            due_ns, taken_ns, measured = self._under_way.popleft()
            if self._is_contact and arrived is not None:
                measured = _with_touches(measured, arrived[2].values)
            arrived = due_ns, taken_ns, measured
        if arrived is None:
            return
        there_ns, taken_ns, measured = arrived
        seq = 0 if self._newest is None else self._newest.seq + 1
        stamp_ns = now_ns if self._stamps_receipt else taken_ns
        self._newest = Reading(
            values=measured.values,
            extras=measured.extras,
            problem=measured.problem,
            stamp_ns=stamp_ns,
            seq=seq,
            there_ns=there_ns,
        )

    def reserve(self, now_ns: int) -> None:
        """Set when the next reading is due: the first multiple of the interval that is neither served nor past."""
        self._count = max(self._count + 1, int((now_ns - self._origin_ns) / self._interval_ns) + 1)
        # The times of physics steps are cut to whole ns: so half a ns of grace, for a step that is there exactly.
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
        return replace(measured, values=values, extras=extras)

    def _noisy(self, values: NDArray[Any], field: str, extras: Mapping[str, Any]) -> NDArray[Any]:
        deviation = self._source.noise[field]
        if field == "orientation" and values.shape == (4,):
            noisy = _turned(values, deviation * self._rng.standard_normal(3))
        else:
            noisy = values + deviation * self._rng.standard_normal(values.shape)
        if self._is_ranging[field]:  # what is out of range does not come into it by noise, nor out of it
            low_m, high_m = range_limits_m(extras)
            is_inside = (values >= low_m) & (values <= high_m)
            noisy = np.where(is_inside, np.clip(noisy, low_m, high_m), values)
        return fitted(field, noisy, values.dtype)


def _with_touches(measured: SensorOutput, earlier: Values) -> SensorOutput:
    """Return a reading of a contact with the touches of earlier readings, which nobody was told."""
    values = {field: np.maximum(value, earlier.get(field, value)) for field, value in measured.values.items()}
    return replace(measured, values=values)


def _covariance(noise: Mapping[str, float]) -> FloatArray:
    """Return the covariance of a pose with this noise, shape (36,): m^2, rad^2."""
    variances = [noise.get("position", 0.0) ** 2] * 3 + [noise.get("orientation", 0.0) ** 2] * 3
    return np.diag(variances).ravel()


def _turned(quaternion: NDArray[np.float64], rotation_rad: FloatArray) -> FloatArray:
    """Return a quaternion x, y, z, w, turned by a rotation vector (in its own frame)."""
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
