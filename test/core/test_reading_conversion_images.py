"""Resized images equal those of Pillow bit for bit, in every encoding."""

import numpy as np
import pytest
from PIL import Image, ImageOps
from strategies import changed, document, parse

from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.contract.sensor_schema import ResizeSpec
from embodied_env.core.reading_conversion import ReadingRules, resize_image
from embodied_env.errors import ContractError
from embodied_env.messages.declaration import NO_WINDOW, InvalidReadingError

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "area": Image.Resampling.BOX,
}


def picture(height, width, channels, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def by_pillow(image, size, method, resampling):
    source = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    height, width = size
    size = (width, height)
    made = {
        "stretch": lambda: source.resize(size, resampling),
        "letterbox": lambda: ImageOps.pad(source, size, resampling, color=0),
        "crop": lambda: ImageOps.fit(source, size, resampling),
    }[method]()
    return np.asarray(made).reshape(height, width, -1)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("resample", FILTERS)
@pytest.mark.parametrize("method", ["letterbox", "stretch", "crop"])
@pytest.mark.parametrize("size", [(24, 24), (24, 37), (96, 100)])
def test_a_resized_image_is_that_of_pillow(channels, resample, method, size):
    image = picture(48, 64, channels)
    found = resize_image(image, ResizeSpec(size=size, method=method, resample=resample))
    assert found.dtype == np.uint8
    assert found.flags.owndata or found.base.flags.writeable
    assert np.array_equal(found, by_pillow(image, size, method, FILTERS[resample]))


def test_rows_with_padding_are_resized_like_rows_without():
    image = picture(8, 12, 3)
    padded = np.zeros((8, 16, 3), np.uint8)
    padded[:, :12] = image
    spec = ResizeSpec(size=(4, 6))
    assert np.array_equal(resize_image(padded[:, :12], spec), resize_image(image, spec))


def camera(encoding, shape, resize, **field):
    spec = FieldSpec(unit="1", low=0.0, high=255.0, shape=shape, resize=resize, **field)
    return SensorSpec(
        topic="image", type="sensor_msgs/msg/Image", encoding=encoding, fields={"image": spec}, max_age_s=1.0
    )


def read_image(pixels, sensor):
    return ReadingRules("camera", sensor).acceptors["image"](pixels, NO_WINDOW)


def test_padding_of_a_depth_image_is_not_measured():
    resize = ResizeSpec(size=(2, 2), resample="nearest")
    metres = np.array([[[1.0], [2.0], [3.0], [4.0]]] * 2, np.float32)
    found = read_image(metres, camera("32FC1", (2, 4, 1), resize, nan=9.0))
    assert found[..., 0].tolist() == [[2.0, 4.0], [9.0, 9.0]]
    with pytest.raises(InvalidReadingError, match="2 of 4 values of image are NaN"):
        read_image(metres, camera("32FC1", (2, 4, 1), resize))


def test_millimetres_are_resized_as_metres():
    spec = camera("16UC1", (1, 2, 1), ResizeSpec(size=(2, 4), method="stretch", resample="nearest"), nan=9.0)
    found = read_image(np.array([[[1500], [0]]], np.uint16), spec)
    assert found[..., 0] == pytest.approx(np.array([[1.5, 1.5, 9.0, 9.0]] * 2))


CAMERA = {
    "topic": "image",
    "type": "sensor_msgs/msg/Image",
    "encoding": "rgb8",
    "max_age_s": 0.5,
    "fields": {"image": {"unit": "1", "low": 0, "high": 255, "shape": [48, 64, 3]}},
}


def with_camera(resize, **keys):
    source = changed("sensors.camera", {**CAMERA, **keys})
    return changed("sensors.camera.fields.image.resize", resize, source)


def test_the_observation_has_the_size_and_the_fingerprint_the_method():
    contracts = [
        parse(with_camera(resize))
        for resize in (None, {"size": [24, 32]}, {"size": [24, 32], "method": "crop"}, {"size": [24, 32], "resample": "area"})
    ]  # fmt: skip
    assert [contract.observation_space["camera_image"].shape for contract in contracts] == [(48, 64, 3)] + [
        (24, 32, 3)
    ] * 3
    assert len({contract.fingerprint for contract in contracts}) == 4


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (lambda: with_camera({"size": [0, 32]}), "resize.size[0]: 0 (expected at least 1"),
        (lambda: with_camera({"size": [24, 32], "method": "fit"}), "resize.method: \"fit\" (expected 'letterbox'"),
        (
            lambda: changed(
                "sensors.camera.fields.image",
                {"unit": "m", "low": 0, "high": 9, "shape": [48, 64, 1], "resize": {"size": [24, 32]}},
                with_camera(None, encoding="32FC1"),
            ),
            "resize.resample: 'bilinear' (expected nearest: other filters mix depths",
        ),
        (
            lambda: changed("sensors.tcp.fields.position.resize", {"size": [2, 2]}, document()),
            "resize: position (expected the field image of a camera)",
        ),
    ],
)
def test_an_invalid_size_is_refused(source, problem):
    with pytest.raises(ContractError) as caught:
        parse(source())
    assert problem in str(caught.value)
