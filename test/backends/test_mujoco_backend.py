"""The samples of the in-process simulator equal those read from its messages."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_env.backends.mujoco_backend import MujocoBackend
from embodied_env.contract import Contract, parse_contract
from embodied_env.core.code_types import Quality
from embodied_env.core.types import ResetRequest, Sample
from embodied_env.errors import BackendLostError, ClosedError, ContractError, UsageError
from embodied_env.sim.sensor_channel import SensorChannel
from embodied_env.sim.sensor_reader import SensorOutput
from embodied_env.sim.world_profile import Source
from embodied_env.timing.clock import ManualClock

CONTRACT = """
contract: embodied_env/1
name: room
version: 1
control_period_s: 0.05
episode: {horizon_steps: 10}
sensors:
  scan:
    topic: scan
    type: sensor_msgs/msg/LaserScan
    fields: {ranges: {shape: [3], unit: m, low: 0, high: 10, no_return: 10.0, nan: 9.0}}
    max_age_s: 1.0
  bare:
    topic: bare
    type: sensor_msgs/msg/LaserScan
    fields: {ranges: {shape: [3], unit: m, low: 0, high: 10}}
    max_age_s: 1.0
  seen:
    topic: seen
    type: geometry_msgs/msg/PoseWithCovarianceStamped
    fields: {position: {unit: m, low: -9, high: 9}}
    confidence_radius_m: 0.1
    max_age_s: 1.0
  sure:
    topic: sure
    type: geometry_msgs/msg/PoseWithCovarianceStamped
    fields: {position: {unit: m, low: -9, high: 9}}
    max_age_s: 1.0
  depth:
    topic: depth
    type: sensor_msgs/msg/Image
    encoding: 32FC1
    fields: {image: {shape: [1, 2, 1], unit: m, low: 0, high: 10, no_return: 10.0, nan: 9.0}}
    max_age_s: 1.0
  depth_mm:
    topic: depth_mm
    type: sensor_msgs/msg/Image
    encoding: 16UC1
    fields: {image: {shape: [1, 2, 1], unit: m, low: 0, high: 10, no_return: 10.0, nan: 9.0}}
    max_age_s: 1.0
  turned:
    topic: turned
    type: geometry_msgs/msg/PoseStamped
    fields: {orientation: {unit: "1", low: -2, high: 2}}
    max_age_s: 1.0
  plain:
    topic: plain
    type: geometry_msgs/msg/PointStamped
    fields: {position: {unit: m, low: -9, high: 9}}
    max_age_s: 1.0
actuators:
  arm:
    topic: commands
    type: std_msgs/msg/Float64MultiArray
    command: velocity
    joints: {turn: {position: null, velocity: 1.0, acceleration: 1.0}}
task: {type: nowhere:Nothing}
backends:
  mujoco:
    model: room.xml
    sources:
      scan: &scan {rays: {site: laser, angle_min_rad: -1.57, angle_max_rad: 1.57, range_min_m: 0.5, range_max_m: 4.0}}
      bare: *scan
      seen: {site: laser, noise: {position: 0.05}}
      sure: {site: laser}
      turned: {site: laser}
      depth: {sensors: {image: two}}
      depth_mm: {sensors: {image: two}}
      plain: {site: laser, noise: {position: 0.05}}
    render: {width: 12, height: 8}
"""
# To the right a wall that is too near, ahead nothing, to the left a wall at 2 m.
MODEL = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <light pos="0 0 5"/><camera name="eye" pos="0 0 5"/>
    <geom type="box" size="1 0.1 1" pos="0 -0.4 0"/>
    <geom type="box" size="1 0.1 1" pos="0 2.1 0"/>
    <body><joint name="turn" axis="1 0 0"/><geom size="0.1"/><site name="laser"/></body>
  </worldbody>
  <actuator><velocity name="turn" joint="turn" kv="1"/></actuator>
  <sensor><user name="two" dim="2"/></sensor>
</mujoco>
"""
DEADLINE_NS = 10**12
REQUEST = ResetRequest(epoch=1, seed=3)


def contract_of(folder: Path) -> Contract:
    (folder / "room.xml").write_text(MODEL)
    return parse_contract(CONTRACT, source=str(folder / "room.yaml"))


def backend(folder: Path, **options: Any) -> MujocoBackend:
    return MujocoBackend(contract_of(folder), clock=ManualClock(), **options)


def opened(folder: Path) -> MujocoBackend:
    room = backend(folder)
    room.open()
    return room


def samples(folder: Path) -> dict[str, Sample]:
    return dict(opened(folder).reset(REQUEST, DEADLINE_NS).samples)


def test_a_distance_is_within_its_range_or_the_no_return_value_of_the_contract(tmp_path: Path) -> None:
    ranges = samples(tmp_path)["scan"].values["ranges"]
    assert ranges.dtype == np.float32
    np.testing.assert_allclose(ranges, [0.5, 10.0, 2.0], atol=0.005)


def test_a_ray_without_return_is_invalid_without_a_no_return_value(tmp_path: Path) -> None:
    sample = samples(tmp_path)["bare"]
    assert (sample.quality, dict(sample.values)) == (Quality.INVALID, {})
    assert (
        sample.reason
        == "1 of 3 values of ranges are +inf (no return); declare no_return in the contract to replace them"
    )


def sample_of(folder: Path, sensor: str, values: Any, field: str = "ranges", problem: str = "") -> Sample:
    room = contract_of(folder)
    channel = SensorChannel(sensor, room.sensors[sensor], Source(), 1, as_received=True)
    content = {} if problem else {field: np.array(values, dtype=np.float32)}
    channel.begin(0, 4, SensorOutput(values=content, extras={}, problem=problem))
    assert channel.newest is not None
    return channel.newest


@pytest.mark.parametrize(
    ("sensor", "field", "values", "expected"),
    [
        ("scan", "ranges", [1.0, np.nan, 3.0], [1.0, 9.0, 3.0]),
        ("scan", "ranges", [1.0, -np.inf, 3.0], [1.0, 0.0, 3.0]),  # below an unknown range
        ("depth_mm", "image", [[[1.0004], [0.0001]]], [1.0, 9.0]),  # rounded like its message
    ],
)
def test_a_value_that_was_not_measured_is_that_of_the_contract(
    tmp_path: Path, sensor: str, field: str, values: Any, expected: list[float]
) -> None:
    sample = sample_of(tmp_path, sensor, values, field)
    np.testing.assert_array_equal(sample.values[field].ravel(), np.asarray(expected, np.float32))


@pytest.mark.parametrize(
    ("sensor", "field", "values", "reason"),
    [
        ("bare", "ranges", [1.0, np.nan, 3.0], "1 of 3 values of ranges are NaN"),
        ("bare", "ranges", [1.0, -0.1, 3.0], "outside of 0 m to inf m"),
        ("depth", "image", [[[1.0], [-2.0]]], "1 of 2 values of image are negative"),
        ("turned", "orientation", [0, 0, 0, 0], "orientation is not a rotation"),
        ("turned", "orientation", [0, 0, 0, 1.2], "orientation is not a rotation"),
        ("turned", "orientation", [0, 0, 0, np.nan], "orientation is not a rotation"),
    ],
)
def test_a_value_that_no_message_may_have_makes_the_reading_invalid(
    tmp_path: Path, sensor: str, field: str, values: Any, reason: str
) -> None:
    sample = sample_of(tmp_path, sensor, values, field)
    assert (sample.quality, dict(sample.values)) == (Quality.INVALID, {})
    assert reason in sample.reason


def test_values_that_do_not_fit_the_message_make_the_reading_invalid(tmp_path: Path) -> None:
    sample = sample_of(tmp_path, "scan", None, problem="ranges do not fit")
    assert (sample.quality, sample.reason, dict(sample.values)) == (Quality.INVALID, "ranges do not fit", {})


def test_the_confidence_follows_from_the_noise_where_the_message_has_a_covariance(tmp_path: Path) -> None:
    found = {name: samples(tmp_path)[name].confidence for name in ("seen", "sure", "plain")}
    # a deviation of 0.05 m, and 0.1 m are good enough: two sigma
    two_sigma = pytest.approx(math.erf(2.0 / math.sqrt(2.0)))
    assert found == {"seen": two_sigma, "sure": pytest.approx(math.nan, nan_ok=True), "plain": None}


def test_show_works_before_the_first_reset(tmp_path: Path) -> None:
    room = opened(tmp_path)
    before = room.render()
    room.reset(REQUEST, DEADLINE_NS)
    np.testing.assert_array_equal(room.render(), before)  # nothing was drawn, and nothing moved
    room.close()
    assert before.shape == (8, 12, 3)
    assert before.any()


def test_closing_frees_the_renderer_and_only_an_open_world_is_shown(tmp_path: Path) -> None:
    room = backend(tmp_path)
    with pytest.raises(BackendLostError, match="not open"):
        room.render()
    room.open()
    room.render()
    renderer = room._opened()._renderer
    room.close()
    with pytest.raises(ClosedError):
        renderer.rgb(None, 0, 1, 1)
    with pytest.raises(BackendLostError, match="not open"):
        room.render()


@pytest.mark.parametrize("end", ["halt", "close"])
def test_commands_after_halt_or_close_are_rejected_until_a_halted_world_is_reset(tmp_path: Path, end: str) -> None:
    room = opened(tmp_path)
    room.reset(REQUEST, DEADLINE_NS)
    room.halt("test") if end == "halt" else room.close()
    with pytest.raises(BackendLostError):
        room.advance(DEADLINE_NS, DEADLINE_NS)
    if end == "halt":
        room.reset(REQUEST, DEADLINE_NS)
        room.advance(DEADLINE_NS, DEADLINE_NS)


def test_commands_after_a_failed_reset_are_rejected(tmp_path: Path) -> None:
    room = opened(tmp_path)
    room.reset(REQUEST, DEADLINE_NS)
    with pytest.raises(UsageError):
        room.reset(ResetRequest(epoch=2, seed=3, options={"goal": np.zeros(2)}), DEADLINE_NS)
    with pytest.raises(BackendLostError):
        room.advance(DEADLINE_NS, DEADLINE_NS)


@pytest.mark.ros
def test_an_unknown_field_path_is_rejected_if_the_message_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("std_msgs")
    (tmp_path / "room.xml").write_text(MODEL)
    head, plain, tail = CONTRACT.partition("  plain:\n")
    text = head + plain + tail.replace("{position: {unit: m,", "{position: {path: pint.x, unit: m,", 1)
    room = MujocoBackend(parse_contract(text, source=str(tmp_path / "room.yaml")), clock=ManualClock())
    with pytest.raises(ContractError, match=r"unknown field of geometry_msgs/PointStamped: 'pint'"):
        room.open()
