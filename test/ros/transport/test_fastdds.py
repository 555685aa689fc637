from dataclasses import replace

import pytest

import embodied_env
from embodied_env.contract import FieldSpec, SensorSpec
from embodied_env.ros.transport import fastdds as large_messages
from embodied_env.ros.transport.fastdds import (
    PROFILE,
    VARIABLES,
    enable_large_segments,
    profile_environment,
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


def test_a_process_with_large_topics_gets_the_profile():
    assert profile_environment(LARGE, {}) == dict.fromkeys(VARIABLES, str(PROFILE))


def test_a_process_without_large_topics_is_unchanged():
    assert profile_environment(ARM, {}) == {}


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_user_profile_is_kept(variable):
    environment = {variable: "/etc/mine.xml"}
    enable_large_segments(LARGE, environment)
    assert environment == {variable: "/etc/mine.xml"}


def test_the_profile_is_set_in_the_given_environment():
    environment = {"HOME": "/"}
    enable_large_segments(LARGE, environment)
    assert environment == {"HOME": "/", **dict.fromkeys(VARIABLES, str(PROFILE))}


def test_the_shipped_profile_fits_a_large_message():
    assert segment_bytes(dict.fromkeys(VARIABLES, str(PROFILE))) == 32 * 2**20


@pytest.mark.parametrize("text", [None, "", "<dds>", "<dds/>", "<dds><segment_size>much</segment_size></dds>"])
def test_a_profile_without_a_segment_size_has_the_default(tmp_path, text):
    path = tmp_path / "profile.xml"
    if text is not None:
        path.write_text(text)
    assert segment_bytes({VARIABLES[0]: str(path)}) == 512 * 1024


def test_a_large_topic_in_a_small_segment_warns_once_with_the_remedy():
    with pytest.warns(UserWarning, match=r"camera/image_raw: messages of 0.9 MB do not fit") as warned:
        warn_if_segment_too_small(LARGE, {})
    assert str(PROFILE) in str(warned[0].message)
    assert VARIABLES[0] in str(warned[0].message)
    warn_if_segment_too_small(LARGE, {})  # a second warning would raise here


def test_each_large_topic_warns():
    two = with_sensors(left=image("left"), right=image("right"))
    with pytest.warns(UserWarning, match="do not fit") as warned:
        warn_if_segment_too_small(two, {})
    assert ["left" in str(warned[0].message), "right" in str(warned[1].message), len(warned)] == [True, True, 2]


def test_a_message_larger_than_the_enlarged_segment_warns():
    huge = with_sensors(camera=image("huge", shape=(4000, 4000, 3)))
    with pytest.warns(UserWarning, match="huge: messages of 48.0 MB"):
        warn_if_segment_too_small(huge, dict.fromkeys(VARIABLES, str(PROFILE)))


@pytest.mark.parametrize(
    "environment",
    [dict.fromkeys(VARIABLES, str(PROFILE)), {"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"}],
    ids=["with the profile", "another middleware"],
)
def test_a_sufficient_segment_does_not_warn(environment):
    warn_if_segment_too_small(LARGE, environment)
    assert large_messages._warned == set()


def test_small_topics_do_not_warn():
    warn_if_segment_too_small(ARM, {})
    assert large_messages._warned == set()
