"""Values of a reading as a reader of its ROS message returns them, for worlds without a middleware."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from embodied_env.contract.contract_schema import FieldSpec, SensorSpec
from embodied_env.contract.reading_values import (
    InvalidReadingError,
    check_rotation,
    resample,
    settle,
    settle_ranges,
    to_units,
)
from embodied_env.contract.spaces import message_field
from embodied_env.core.codes import Quality
from embodied_env.core.image_processing import pixels_sha256, read_image
from embodied_env.messages.message_types import ENCODINGS, MessageField
from embodied_env.sim.sensor_models import scan_angles_rad
from embodied_env.sim.world_profile import Rays


class ValueReceiver:
    """Checks and converts the values of a sensor as a reader of its messages does.

    Attributes:
        fields: the fields that it checks or converts.
    """

    def __init__(self, sensor: SensorSpec, rays: Rays | None) -> None:
        """Prepare for readings of `sensor`; `rays` are those of a simulated scanner, whose limits they have."""
        self._sensor = sensor
        self.fields: dict[str, tuple[FieldSpec, MessageField]] = {}
        for field, spec in sensor.fields.items():
            known = message_field(sensor, field, spec)
            if known.rotation or known.ranging or spec.resample or spec.resize:
                self.fields[field] = spec, known
        self._limits_m = (0.0, math.inf) if rays is None else (rays.range_min_m, rays.range_max_m)

    def receive(
        self, sent: Mapping[str, NDArray[Any]], extras: Mapping[str, Any]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the values of a reading that was sent, and what its `Sample` has besides them.

        That is `raw_sha256`, the hashes of the pixels before `resize`, by field. Without values, it is `quality` and
        `reason`: the contract does not allow those that were sent.
        """
        values, raw_sha256, sensor = dict(sent), {}, self._sensor
        try:
            for field, (spec, known) in self.fields.items():
                value = sent[field]
                if known.rotation:
                    check_rotation(field, value)
                elif sensor.encoding is not None:
                    encoding = ENCODINGS[sensor.encoding]
                    pixels = to_units(value, encoding.metres_per_unit or 1.0) if encoding.dtype == "uint16" else value
                    if spec.resize is not None:
                        raw_sha256[field] = pixels_sha256(pixels)
                    values[field] = read_image(field, pixels, sensor)
                elif sensor.type == "sensor_msgs/msg/LaserScan":
                    angles_rad = scan_angles_rad(extras, sent)
                    if field == "ranges":
                        values[field] = settle_ranges(field, value.copy(), spec, *self._limits_m, angles_rad)
                    else:
                        values[field] = settle(field, resample(field, value.copy(), spec, angles_rad), spec)
                elif sensor.type == "sensor_msgs/msg/PointCloud2":
                    values[field] = settle(field, value.copy(), spec)
                else:
                    values[field] = settle_ranges(field, value.copy(), spec, *self._limits_m)
        except InvalidReadingError as error:
            return {}, {"quality": Quality.INVALID, "reason": str(error)}
        return values, {"raw_sha256": raw_sha256}
