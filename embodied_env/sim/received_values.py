"""Values of a reading as a reader of its ROS message returns them, for worlds without a middleware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from embodied_env.contract.message_types import ENCODINGS, MessageField, message_field
from embodied_env.contract.reading_values import check_rotation, resample, settle, settle_ranges, to_units
from embodied_env.contract.schema import FieldSpec, SensorSpec
from embodied_env.core.image_processing import pixels_sha256, read_image
from embodied_env.sim.sensor_models import range_limits_m, scan_angles_rad


def changed_fields(sensor: SensorSpec) -> dict[str, tuple[FieldSpec, MessageField]]:
    """Return the fields of a sensor whose values a reader of its message checks or converts."""
    changed = {}
    for field, spec in sensor.fields.items():
        known = message_field(sensor, field, spec)
        if known.rotation or known.ranging or spec.resample or spec.resize:
            changed[field] = spec, known
    return changed


def receive_fields(
    sensor: SensorSpec,
    fields: Mapping[str, tuple[FieldSpec, MessageField]],
    sent: Mapping[str, NDArray[Any]],
    extras: Mapping[str, Any],
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the values of a reading that was sent, and the hashes of its pixels before `resize`, by field.

    `fields` are those of `changed_fields`. Raises InvalidReadingError for values that the contract does not allow.
    """
    values, raw_sha256 = dict(sent), {}
    for field, (spec, known) in fields.items():
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
                values[field] = settle_ranges(field, value.copy(), spec, *range_limits_m(extras), angles_rad)
            else:
                values[field] = settle(field, resample(field, value.copy(), spec, angles_rad), spec)
        elif sensor.type == "sensor_msgs/msg/PointCloud2":
            values[field] = settle(field, value.copy(), spec)
        else:
            values[field] = settle_ranges(field, value.copy(), spec, *range_limits_m(extras))
    return values, raw_sha256
