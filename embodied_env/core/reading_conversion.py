"""Convert values in messages of a sensor to its reading, over ROS and in a simulator."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import SensorSpec
from embodied_env.contract.driver_units import Conversion
from embodied_env.contract.fixed_sizes import resample_scan, select_points
from embodied_env.contract.sensor_schema import ResizeSpec
from embodied_env.contract.spaces import field_layouts, message_field
from embodied_env.core.plugin_loading import import_optional
from embodied_env.messages.declaration import Field, MessageField, Window

Accept = Callable[[NDArray[Any], Window], NDArray[Any]]

_FILTERS = {"area": "BOX"}  # where the name is not Pillow's


class ReadingRules:
    """The declarations of a sensor's fields, in its contract and in its message type.

    Attributes:
        fields: field -> its declaration in the message type, and in the contract.
        acceptors: field -> function that returns its reading from its values in the message and the window of the
            message, and raises InvalidReadingError; only for fields that are checked or converted.
        raw_sha256: field -> hash of the pixels of its last accepted image, before the resize.
        driver: field -> its last values in the driver's units, of those that are converted.
        conversions: field -> its conversion from the driver's units, and the precision of its readings.
    """

    def __init__(self, name: str, sensor: SensorSpec) -> None:
        self.raw_sha256: dict[str, str] = {}
        self.driver: dict[str, NDArray[Any]] = {}
        self.conversions: dict[str, tuple[Conversion, np.dtype[Any]]] = {}
        self.fields: dict[str, tuple[MessageField, Field]] = {}
        for layout in field_layouts(name, sensor):
            spec = sensor.fields[layout.field]
            known = message_field(sensor, layout.field, spec)
            if spec.conversion is not None:
                self.conversions[layout.field] = spec.conversion, layout.dtype
            field = Field(
                sensor=name,
                name=layout.field,
                shape=layout.raw_shape,
                dtype=np.dtype(known.dtype),
                joints=spec.joints or (),
                encoding=sensor.encoding or "",
                no_return=spec.no_return,
                nan=spec.nan,
                resample=None if spec.resample is None else partial(resample_scan, spec=spec.resample),
                resize=None if spec.resize is None else partial(resize_image, spec=spec.resize),
                select=None if spec.points is None else partial(select_points, spec=spec.points),
            )
            self.fields[layout.field] = known, field
        self.acceptors: dict[str, Accept] = {
            name: partial(known.accept, field) if field.resize is None else partial(self._accept_image, name)
            for name, (known, field) in self.fields.items()
            if known.is_checked(field)
        }
        self.acceptors |= {name: partial(self._accept_driver, name) for name in self.conversions}

    def sent(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of a converted field in its message, for a simulated reading."""
        conversion, dtype = self.conversions[name][0], self.fields[name][1].dtype
        converted = conversion.to_driver(values.ravel()).reshape(values.shape)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            converted = np.clip(np.rint(converted), limits.min, limits.max)
        return converted.astype(dtype)

    def _accept_driver(self, name: str, values: NDArray[Any], window: Window) -> NDArray[Any]:  # noqa: ARG002
        self.driver[name] = values.ravel()
        conversion, dtype = self.conversions[name]
        return conversion.to_si(values.ravel()).reshape(values.shape).astype(dtype)

    def _accept_image(self, name: str, raw: NDArray[Any], window: Window) -> NDArray[Any]:
        known, field = self.fields[name]
        self.raw_sha256[name] = pixels_sha256(raw)
        return known.accept(field, raw, window)


def import_pillow(needed_for: str) -> Any:  # noqa: ANN401 - a module
    """Return PIL with Image and ImageOps, or raise MissingDependencyError."""
    import_optional("PIL.ImageOps", needed_for=needed_for)  # imports Image
    return import_optional("PIL", needed_for=needed_for)


def resize_image(image: NDArray[Any], spec: ResizeSpec, padding: float = 0) -> NDArray[Any]:
    """Return `image`, uint8 or float32, (height, width, channels), in the size of `spec`.

    `stretch` ignores the aspect ratio (Pillow's `Image.resize`), `letterbox` pads (`ImageOps.pad`) and `crop` cuts off
    what exceeds it (`ImageOps.fit`).
    """
    pil = import_pillow("the key resize of an image")
    picture = pil.Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else np.ascontiguousarray(image))
    size = (spec.size[1], spec.size[0])
    resampling = pil.Image.Resampling[_FILTERS.get(spec.resample, spec.resample.upper())]
    if spec.method == "stretch":
        resized = picture.resize(size, resampling)
    elif spec.method == "crop":
        resized = pil.ImageOps.fit(picture, size, resampling)
    else:
        resized = pil.ImageOps.pad(picture, size, resampling, padding)
    return np.array(resized).reshape(*spec.size, image.shape[2])


def pixels_sha256(pixels: NDArray[Any]) -> str:
    """Return the SHA-256 (hex) of the pixels of a message, by rows, little-endian."""
    return hashlib.sha256(pixels.astype(pixels.dtype.newbyteorder("<"), copy=False).tobytes()).hexdigest()
