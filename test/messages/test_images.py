import array
import io
import math
import sys

import numpy as np
import pytest
from message_samples import changed_message, check_invalid, new_message, read, sensor

pytest.importorskip("rclpy", reason="needs rclpy")

from embodied_env.errors import MissingDependencyError
from embodied_env.ros.embedded_sim.message_encoder import to_message

pytestmark = pytest.mark.ros

INF, NAN = math.inf, math.nan

RGB = sensor("sensor_msgs/msg/Image", {"image": {"shape": (2, 3, 3)}}, encoding="rgb8")
PIXELS = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)


def image(**changes):
    return changed_message(to_message(RGB, {"image": PIXELS}, 1), **changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"encoding": "bgr8"}, "encoding is 'bgr8'"),
        ({"width": 2, "height": 3}, "the image is 2 x 3"),
        ({"step": 8}, "step is 8 "),
        ({"step": 10}, "data has 18 bytes"),
        ({"data": array.array("B", bytes(17))}, "data has 17 bytes"),
        ({"data": array.array("B", bytes(19))}, "data has 19 bytes"),
    ],
)
def test_a_malformed_image_is_rejected_with_its_reason(changes, problem):
    check_invalid(RGB, image(**changes), problem)


def test_row_padding_is_skipped():
    rows = [bytes(PIXELS[row]) + b"\xff\xff\xff" for row in range(2)]
    values = read(RGB, image(step=12, data=array.array("B", b"".join(rows))))
    assert np.array_equal(values["image"], PIXELS)


def depth_spec(encoding, **declared):
    return sensor("sensor_msgs/msg/Image", {"image": {"shape": (1, 3, 1), **declared}}, encoding=encoding)


def depth(encoding, metres):
    return to_message(depth_spec(encoding), {"image": np.float32(metres).reshape(1, 3, 1)}, 1)


def test_depth_row_padding_may_be_any_number_of_bytes():
    spec = sensor("sensor_msgs/msg/Image", {"image": {"shape": (2, 1, 1)}}, encoding="16UC1")
    message = new_message(spec.type, encoding="16UC1", width=1, height=2, step=3)
    message.data = array.array("B", b"\xe8\x03\xff\xd0\x07\xff")
    assert read(spec, message)["image"].ravel().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("encoding", "metres", "problem"),
    [
        ("32FC1", [1.0, NAN, NAN], r"2 of 3 values of image are NaN \(no measurement\)"),
        ("32FC1", [1.0, INF, 1.0], r"1 of 3 values of image are \+inf"),
        ("32FC1", [1.0, -INF, 1.0], r"1 of 3 values of image are -inf \(too close\)"),
        ("16UC1", [1.0, 0.0, 1.0], r"1 of 3 values of image are 0 \(no measurement\)"),
        ("32FC1", [1.0, -2.0, NAN], "1 of 3 values of image are negative"),
    ],
)
def test_unmeasured_depth_is_counted_and_rejected(encoding, metres, problem):
    check_invalid(depth_spec(encoding), depth(encoding, metres), problem)


def test_unmeasured_depth_is_replaced_as_declared():
    spec = depth_spec("32FC1", no_return=10.0, nan=0.0)
    assert read(spec, depth("32FC1", [NAN, INF, 1.5]))["image"].ravel().tolist() == [0.0, 10.0, 1.5]


def test_millimetre_depth_is_read_as_metres_with_zero_as_nan():
    values = read(depth_spec("16UC1", nan=9.0), depth("16UC1", [0.0, 1.5, 65.535]))["image"]
    assert values.dtype == np.float32
    assert values.ravel().tolist() == pytest.approx([9.0, 1.5, 65.535])


@pytest.mark.parametrize("metres", [INF, NAN, -1.0, 66.0])
def test_depth_outside_the_millimetre_range_is_published_as_unmeasured(metres):
    assert bytes(depth("16UC1", [1.0, metres, 1.0]).data) == b"\xe8\x03\x00\x00\xe8\x03"


@pytest.mark.parametrize("encoding", ["32FC1", "16UC1"])
def test_big_endian_depth_is_rejected(encoding):
    message = depth(encoding, [1.0, 1.0, 1.0])
    message.is_bigendian = 1
    check_invalid(depth_spec(encoding), message, "is_bigendian is set")


PNG = sensor("sensor_msgs/msg/CompressedImage", {"image": {"shape": (2, 3, 3)}}, encoding="rgb8")


def compressed(text="png", pixels=PIXELS, codec="PNG"):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, codec)
    return new_message(PNG.type, format=text, data=file.getvalue())


@pytest.mark.parametrize("text", ["png", "rgb8; png compressed", "bgr8; png compressed bgr8"])
def test_a_png_is_read_with_any_format_string(text):
    assert np.array_equal(read(PNG, compressed(text))["image"], PIXELS)


@pytest.mark.parametrize("text", ["jpeg", "jpg", "rgb8; jpeg compressed bgr8"])
def test_a_jpeg_is_read_approximately(text):
    grey = np.full((2, 3, 3), 120, np.uint8)
    values = read(PNG, compressed(text, grey, "JPEG"))["image"]
    assert np.abs(values.astype(int) - 120).max() <= 2


@pytest.mark.parametrize("text", ["16UC1; compressedDepth png", "32FC1; compressedDepth", "tiff", "", "rgb8; "])
def test_another_format_is_rejected(text):
    check_invalid(PNG, compressed(text), "format is '.*'")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (lambda: compressed(pixels=np.zeros((3, 2, 3), np.uint8)), "the image is 2 x 3"),
        (lambda: compressed(pixels=np.zeros((2, 3), np.uint8)), "mode L"),
        (lambda: compressed(pixels=np.zeros((2, 3, 4), np.uint8)), "mode RGBA"),
        (lambda: compressed(codec="JPEG"), "the PNG cannot be decoded"),
        (lambda: new_message(PNG.type, format="png", data=b""), "the PNG cannot be decoded"),
    ],
)
def test_a_malformed_compressed_image_is_rejected_with_its_reason(message, problem):
    check_invalid(PNG, message(), problem)


@pytest.mark.parametrize(("text", "codec"), [("png", "PNG"), ("jpeg", "JPEG")])
def test_a_truncated_compressed_image_is_rejected(text, codec):
    noise = np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)
    spec = sensor(PNG.type, {"image": {"shape": (64, 64, 3)}}, encoding="rgb8")
    message = compressed(text, noise, codec)
    message.data = message.data[: len(message.data) // 2]
    check_invalid(spec, message, f"the {codec} cannot be decoded")


def test_missing_pillow_is_reported_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match=r"sensors.thing needs pillow.*embodied_env\[images\]"):
        read(PNG, new_message(PNG.type))
