from dataclasses import replace

import pytest

import embodied_env
from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.ros.transport import fastdds as large_messages
from embodied_env.ros.transport.fastdds import (
    PROFILE,
    VARIABLES,
    enable_large_segments,
    segment_bytes,
    topics_above_limit,
    warn_if_segment_too_small,
)

ARM = embodied_env.load_contract("arm_reach")


def image(topic, shape=(480, 640, 3), encoding="rgb8", unit="1"):
    field = FieldSpec(unit=unit, low=0.0, high=255.0, shape=shape)
    return SensorSpec(
        topic=topic, type="sensor_msgs/msg/Image", fields={"image": field}, max_age_s=1.0, encoding=encoding
    )


def cloud(topic, points):
    field = FieldSpec(unit="m", low=0.0, high=9.0, shape=(points, 3))
    return SensorSpec(topic=topic, type="sensor_msgs/msg/PointCloud2", fields={"points": field}, max_age_s=1.0)


def with_sensors(**sensors):
    return replace(ARM, sensors={**ARM.sensors, **sensors})


LARGE = with_sensors(camera=image("camera/image_raw"))


@pytest.fixture(autouse=True)
def no_warning(monkeypatch):
    monkeypatch.setattr(large_messages, "_warned", set())


def test_large_topics_are_images_and_clouds_above_the_default_segment():
    found = topics_above_limit(
        with_sensors(
            big=image("big"),
            small=image("small", shape=(84, 84, 3)),
            depth=image("depth", shape=(480, 640, 1), encoding="16UC1", unit="m"),
            dense=cloud("dense", 100_000),
            sparse=cloud("sparse", 1_000),
        )
    )
    assert found == {"big": 480 * 640 * 3, "depth": 480 * 640 * 2, "dense": 1_200_000}


def test_shipped_contracts_have_no_large_topics():
    for name in ("arm_reach", "cart_goal", "door_open"):
        assert topics_above_limit(embodied_env.load_contract(name)) == {}


WITH_PROFILE = dict.fromkeys(VARIABLES, str(PROFILE))


@pytest.mark.parametrize(
    ("contract", "found", "expected"),
    [
        (LARGE, {"HOME": "/"}, {"HOME": "/", **WITH_PROFILE}),
        (ARM, {"HOME": "/"}, {"HOME": "/"}),
        *[(LARGE, {name: "/etc/mine.xml"}, {name: "/etc/mine.xml"}) for name in VARIABLES],
    ],
    ids=["large", "small", *VARIABLES],
)
def test_a_process_with_large_topics_gets_the_profile_unless_the_user_has_one(contract, found, expected):
    enable_large_segments(contract, found)
    assert found == expected


def test_the_shipped_profile_fits_a_large_message():
    assert segment_bytes(WITH_PROFILE) == 32 * 2**20


@pytest.mark.parametrize("text", [None, "", "<dds>", "<dds/>", "<dds><segment_size>much</segment_size></dds>"])
def test_a_profile_without_a_segment_size_has_the_default(tmp_path, text):
    path = tmp_path / "profile.xml"
    if text is not None:
        path.write_text(text)
    assert segment_bytes({VARIABLES[0]: str(path)}) == 512 * 1024


def test_each_large_topic_in_a_small_segment_warns_once_with_the_remedy():
    two = with_sensors(left=image("left"), right=image("right"))
    with pytest.warns(UserWarning, match="messages of 0.9 MB do not fit") as warned:
        warn_if_segment_too_small(two, {})
    for warning, topic in zip(warned, ("left", "right"), strict=True):
        assert all(text in str(warning.message) for text in (topic, str(PROFILE), VARIABLES[0]))
    warn_if_segment_too_small(two, {})  # a second warning would raise here


def test_a_message_larger_than_the_enlarged_segment_warns():
    huge = with_sensors(camera=image("huge", shape=(4000, 4000, 3)))
    with pytest.warns(UserWarning, match="huge: messages of 48.0 MB"):
        warn_if_segment_too_small(huge, WITH_PROFILE)


@pytest.mark.parametrize(
    ("contract", "environment"),
    [(LARGE, WITH_PROFILE), (LARGE, {"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"}), (ARM, {})],
    ids=["with the profile", "another middleware", "small topics"],
)
def test_a_sufficient_segment_does_not_warn(contract, environment):
    warn_if_segment_too_small(contract, environment)
    assert large_messages._warned == set()
