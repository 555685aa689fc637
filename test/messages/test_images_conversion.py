"""Pixels of cameras in RGB, as OpenCV 5.0.0 converts them."""

import numpy as np
import pytest
from message_samples import changed_message, check_invalid, new_message, read, sensor

from embodied_env.contract.sensor_schema import SensorSpec
from embodied_env.messages.images import ENCODINGS

ROWS = {
    "422": (4, 8, "8b4ae5f1a94106a0956a26afbccdafe562f90a945f5693c642276ad5ab2da739"),
    "nv12": (6, 4, "4551370e99b2d74c3427fa48d732a1df70aca1e926115901"),
    "bayer": (6, 6, "dd06f27f8f063cd25e19a621f9bd0ccc21397c1ec795ca7748dc03d17a88934d85527357"),
}
OPENCV = {  # names of the rows, and the image
    "uyvy": ("422", "e5005affafff008c8c00fbfa00aa9329fae3ff9effffbaff53ffd300ff5d704f0ff2d191004500c2ff686000796e0086"),
    "yuyv": ("422", "ff4822ffb18be5b133330000e67d6e650000ff58ffff49ff7f20ff2000f4cc3307ff7044c21800f0460043ff0d3eff08"),
    "nv12": ("nv12", "84201d922e2bd50070a80043e6827fff9f9cff85ffed008800a70000980046ffc200b80036ff3200a50000ff5a26ffa2"),
    "bayer_rggb8": ("bayer", "b557d2b557d27f5e766c941958a61d58a61db557d2b557d27f5e766c941958a61d58a61d83bd7883bd780cac6817cc57219d52219d5254b71e54b71e08c75a2bcc954eca864eca8626dc3626dc3603be553fd1747aa66d7aa66d26dc3626dc3603be553fd1747aa66d7aa66d"),
    "bayer_gbrg8": ("bayer", "4dd2624dd2625e7a848219a6a63b63a63b634dd2624dd2625e7a848219a6a63b63a63b63777dbd777dbd930cc5a537ccb82183b82183a21ecda21ecdc731cec995cfca6a98ca6a98972edc972edca603d7a259d19f7aad9f7aad972edc972edca603d7a259d19f7aad9f7aad"),
}  # fmt: skip
SAME = {"yuv422": "uyvy", "yuv422_yuy2": "yuyv"}
REVERSED = {"bayer_bggr8": "bayer_rggb8", "bayer_grbg8": "bayer_gbrg8"}  # red is blue
ALL = [*OPENCV, *SAME, *REVERSED]


def case(encoding):
    """Return the rows of a message and the image of OpenCV."""
    name, pixels = OPENCV[SAME.get(encoding) or REVERSED.get(encoding) or encoding]
    height, width, rows = ROWS[name]
    raw = np.frombuffer(bytes.fromhex(rows), np.uint8).reshape(height, width)
    size = (6, 6, 3) if name == "bayer" else (4, 4, 3)
    image = np.frombuffer(bytes.fromhex(pixels), np.uint8).reshape(size)
    return raw, image[..., ::-1] if encoding in REVERSED else image


@pytest.mark.parametrize("encoding", ALL)
def test_pixels_equal_those_of_opencv(encoding):
    raw, image = case(encoding)
    found = ENCODINGS[encoding].to_rgb(raw)
    inside = (slice(1, -1), slice(1, -1)) if encoding.startswith("bayer") else ()
    np.testing.assert_array_equal(found[inside], image[inside])
    assert (found.dtype, found.shape) == (np.uint8, image.shape)


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_the_border_of_a_uniform_bayer_image_has_its_colours(pattern):
    colours = {"r": 200, "g": 100, "b": 50}
    raw = np.tile(np.array([colours[each] for each in pattern], np.uint8).reshape(2, 2), (3, 4))
    found = ENCODINGS[f"bayer_{pattern}8"].to_rgb(raw)
    np.testing.assert_array_equal(found, np.broadcast_to([200, 100, 50], (6, 8, 3)))


@pytest.mark.ros
@pytest.mark.parametrize("encoding", ALL)
def test_a_message_is_read_as_rgb_across_padded_rows(encoding):
    raw, image = case(encoding)
    spec = sensor("sensor_msgs/msg/Image", {"image": {"shape": image.shape}}, encoding=encoding)
    padded = np.pad(raw, ((0, 0), (0, 3)), constant_values=255)
    size = {"height": image.shape[0], "width": image.shape[1]}
    message = new_message(spec.type, encoding=encoding, step=padded.shape[1], data=padded.tobytes(), **size)
    np.testing.assert_array_equal(read(spec, message)["image"], ENCODINGS[encoding].to_rgb(raw))
    check_invalid(spec, changed_message(message, data=padded.tobytes()[:-1]), "data has ")
    check_invalid(spec, changed_message(message, step=raw.shape[1] - 1), "step is ")


@pytest.mark.ros
def test_grey_of_16_bits_keeps_its_values():
    values = np.array([[0, 1, 65535], [256, 1000, 7]], np.uint16)
    spec = sensor("sensor_msgs/msg/Image", {"image": {"shape": (2, 3, 1)}}, encoding="mono16")
    message = new_message(spec.type, encoding="mono16", height=2, width=3, step=6, data=values.tobytes())
    found = read(spec, message)["image"]
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found[..., 0], values)
    check_invalid(spec, changed_message(message, is_bigendian=1), "is_bigendian is set")


@pytest.mark.parametrize(
    ("encoding", "observed"), [("nv12", "rgb8"), ("bayer_rggb8", "rgb8"), ("bgr8", "bgr8"), (None, None)]
)
def test_a_converted_image_is_observed_as_rgb(encoding, observed):
    spec = SensorSpec(topic="t", type="sensor_msgs/msg/Image", fields={}, max_age_s=1.0, encoding=encoding)
    assert spec.pixels == observed
