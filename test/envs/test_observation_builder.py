"""Missing, invalid or late readings are held and marked, and never filled with zero."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scripted_tasks
from gymnasium.vector import AutoresetMode
from scripted_tasks import PERIOD_NS
from shipped_contracts import changed_contract
from strategies import ABSENT, changed, parse

import embodied_env
from embodied_env.contract.spaces import FieldLayout
from embodied_env.core.code_types import Quality
from embodied_env.core.types import Sample, Snapshot
from embodied_env.envs.observation_builder import GapPolicy, ObservationBuilder, SampleCheck, begin_history, find_faulty
from embodied_env.envs.transition_builder import copy_observation
from embodied_env.errors import BackendNotReadyError, ContractError

NOW_NS = 1_000_000_000


def sample(name, values, *, stamp_ns=NOW_NS, **more):
    return Sample(sensor=name, values=values, stamp_ns=stamp_ns, arrival_ns=stamp_ns + 5, **more)


def snapshot(now_ns=NOW_NS, **changes):
    """Return a valid snapshot with `changes` to its samples, of which None drops one."""
    samples = {
        "joints": sample("joints", {"position": np.array([0.5, -0.5])}, stamp_ns=now_ns),
        "beacon": sample("beacon", {"position": np.array([0.1, 0.2, 0.3])}, stamp_ns=now_ns),
        "goal": sample("goal", {"position": np.array([0.4, 0.4, 0.4])}, stamp_ns=now_ns),
        "truth": sample("truth", {"range": np.array([2.0], np.float32)}, stamp_ns=now_ns),
        **changes,
    }
    return Snapshot(now_ns=now_ns, samples={name: s for name, s in samples.items() if s is not None})


@pytest.fixture
def contract():
    return scripted_tasks.contract()


@pytest.fixture
def policy(contract):
    made = GapPolicy(contract)
    made.begin(snapshot())
    return made


@pytest.fixture
def builder(contract):
    return ObservationBuilder(contract)


LATER_NS = NOW_NS + PERIOD_NS


def beacon(values=(0.9, 0.9, 0.9), *, stamp_ns=LATER_NS, dtype=float, **more):
    return sample("beacon", {"position": np.array(values, dtype)}, stamp_ns=stamp_ns, **more)


FAULTS = {
    "no message": (None, Quality.MISSING),
    "stale": (beacon(stamp_ns=LATER_NS - 150_000_001), Quality.STALE),
    "future": (beacon(stamp_ns=LATER_NS + 1), Quality.FUTURE),
    "nan": (beacon((np.nan, 0.0, 0.0)), Quality.INVALID),
    "infinite": (beacon((0.0, np.inf, 0.0)), Quality.INVALID),
    "another shape": (beacon((0.0, 0.0)), Quality.INVALID),
    "another precision": (beacon(dtype=np.float32), Quality.INVALID),
    "field missing": (sample("beacon", {}, stamp_ns=LATER_NS), Quality.INVALID),
    "refused by the backend": (beacon(quality=Quality.INVALID, reason="malformed"), Quality.INVALID),
    "no stamp": (beacon(quality=Quality.ZERO_STAMP), Quality.ZERO_STAMP),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_holds_the_last_valid_reading_with_its_quality_and_mask(policy, builder, contract, fault):
    faulty, quality = FAULTS[fault]
    settled, gaps = policy.apply(snapshot(LATER_NS, beacon=faulty))
    observation = builder.observe([settled], 1)
    assert observation["beacon_position"].tolist() == [0.1, 0.2, 0.3]
    assert observation["beacon_valid"].tolist() == [0]
    held = settled.samples["beacon"]
    assert (held.quality, held.stamp_ns, held.arrival_ns) == (quality, NOW_NS, NOW_NS + 5)
    assert contract.observation_space.contains(observation)
    assert gaps == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_gap_of_a_sensor_with_on_gap_stop_and_starts_no_episode(fault):
    faulty = snapshot(LATER_NS, beacon=FAULTS[fault][0])
    strict = GapPolicy(scripted_tasks.contract(sensors__beacon__on_gap="stop"))
    strict.begin(snapshot())
    assert strict.apply(faulty)[1] == ["beacon"]
    with pytest.raises(BackendNotReadyError, match="beacon"):
        strict.begin(faulty)


def test_a_valid_snapshot_is_returned_as_it_is_with_read_only_values(policy):
    given = snapshot(LATER_NS)
    assert policy.apply(given) == (given, [])
    assert policy.apply(given)[0] is given
    assert not any(v.flags.writeable for s in given.samples.values() for v in s.values.values())


def test_a_sensor_that_the_contract_does_not_have_is_left_out_of_the_snapshot_but_not_of_its_own(policy):
    given = snapshot(LATER_NS, other=beacon(), beacon=(faulty := beacon((np.nan,) * 3)))
    settled, gaps = policy.apply(given)
    assert list(settled.samples) == ["joints", "beacon", "goal", "truth"]
    assert gaps == []
    assert given.samples["beacon"] is faulty
    assert "other" in given.samples


@pytest.mark.parametrize("position", [(0.7, 0.7, 0.7), (1.5, 0.0, 0.0)])
def test_the_held_reading_is_the_last_valid_one_also_outside_its_range(policy, position):
    policy.apply(snapshot(LATER_NS, beacon=beacon(position)))
    settled, _ = policy.apply(snapshot(LATER_NS + PERIOD_NS, beacon=None))
    assert settled.samples["beacon"].values["position"].tolist() == list(position)


@pytest.mark.parametrize(
    ("values", "quality"), [((0.9, 0.9, 0.9), Quality.OK), ((1.5, 0.0, 0.0), Quality.OUT_OF_RANGE)]
)
def test_a_gap_ends_with_the_next_reading_also_outside_its_declared_range(policy, builder, values, quality):
    policy.apply(snapshot(LATER_NS, beacon=None))
    settled, gaps = policy.apply(snapshot(LATER_NS, beacon=beacon(values)))
    observation = builder.observe([settled], 2)
    assert observation["beacon_position"].tolist() == list(values)
    assert observation["beacon_valid"].tolist() == [1]
    assert settled.samples["beacon"].quality is quality
    assert gaps == []


def test_a_reading_at_its_maximum_age_is_fresh(policy):
    settled, _ = policy.apply(snapshot(LATER_NS, beacon=beacon(stamp_ns=LATER_NS - 150_000_000)))
    assert settled.samples["beacon"].quality is Quality.OK


def test_the_error_of_a_failed_start_names_every_missing_sensor(contract):
    with pytest.raises(BackendNotReadyError, match=r"beacon \(no message\), goal \(no message\)"):
        GapPolicy(contract).begin(snapshot(beacon=None, goal=None))


def test_a_new_episode_drops_the_readings_of_the_previous_one(policy):
    policy.apply(snapshot(LATER_NS, beacon=beacon((0.7, 0.7, 0.7))))
    policy.begin(snapshot(LATER_NS))
    settled, _ = policy.apply(snapshot(LATER_NS, beacon=None))
    assert settled.samples["beacon"].values["position"].tolist() == [0.1, 0.2, 0.3]


def test_a_lost_world_returns_the_last_valid_readings_marked_as_lost(policy, builder, contract):
    lost = policy.lost(NOW_NS, "timeout")
    observation = builder.observe([lost], 1)
    assert contract.observation_space.contains(observation)
    assert observation["beacon_valid"].tolist() == [0]
    assert {s.quality for s in lost.samples.values()} == {Quality.LOST}


def test_a_copied_observation_shares_no_array(policy, builder):
    settled, _ = policy.apply(snapshot(LATER_NS))
    copy_observation(builder.observe([settled], 1))["joints_position"][:] = 99.0
    assert builder.observe([settled], 1)["joints_position"].tolist() == [0.5, -0.5]


def test_the_evaluators_sensors_are_not_in_the_observation_and_its_readings_are_fresh_arrays(policy, builder):
    settled, _ = policy.apply(snapshot(LATER_NS))
    assert not [key for key in builder.observe([settled], 1) if key.startswith("truth")]
    for _ in range(2):
        readings = builder.evaluator_readings(settled)["truth"]["range"]
        assert readings.tolist() == [2.0]
        readings[:] = 99.0


def test_a_finite_horizon_alone_includes_the_remaining_time(builder):
    contract = scripted_tasks.contract(episode={"horizon_steps": 4, "kind": "finite_horizon"})
    finite, settled = ObservationBuilder(contract), GapPolicy(contract).begin(snapshot())
    left = [finite.observe([settled], step)["time_remaining"].tolist() for step in range(5)]
    assert left == [[1.0], [0.75], [0.5], [0.25], [0.0]]
    assert "time_remaining" not in builder.observe([settled], 1)


def layout(low, high, shape, dtype):
    low, high = (np.broadcast_to(np.asarray(bound, dtype), shape).copy() for bound in (low, high))
    return FieldLayout(
        sensor="any",
        field="x",
        key="any_x",
        shape=shape,
        raw_shape=shape,
        history=None,
        dtype=np.dtype(dtype),
        low=low,
        high=high,
    )


LARGEST = float(np.finfo(np.float64).max)
LAYOUTS = {
    "few": layout((-1.0, -np.inf, 0.0), (1.0, np.inf, LARGEST), (3,), "float64"),
    "few of single precision": layout(-0.1, 0.3, (2,), "float32"),
    "many": layout(-2.0, 4.0, (20,), "float32"),
    "many without bounds": layout(-np.inf, np.inf, (20,), "float64"),
    "rows": layout(-1.0, 1.0, (2, 2), "float64"),
    "whole numbers": layout(3, 250, (1,), "uint8"),
    "pixels": layout(0, 255, (5, 5, 3), "uint8"),
    "dark pixels": layout(0, 254, (5, 5, 3), "uint8"),
    "bright pixels": layout(1, 255, (5, 5, 3), "uint8"),
    "many whole numbers": layout(-128, 127, (20,), "int8"),
}
EDGES = [
    0.0,
    5e-324,
    0.1,
    np.float32(0.1),
    0.3,
    np.float32(0.3),
    1.0,
    np.nextafter(1.0, 2.0),
    2.0,
    4.0,
    LARGEST,
    np.inf,
]


def quality_of(known, values):
    given = Snapshot(now_ns=NOW_NS, samples={"s": sample("s", values, stamp_ns=NOW_NS)})
    faulty = find_faulty(given, {"s": SampleCheck.of([known], 1e9, 0)})
    return faulty["s"].quality if faulty else Quality.OK


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_field_is_valid_if_each_of_its_values_is_finite_and_in_range(name):
    known = LAYOUTS[name]
    is_float = known.dtype.kind == "f"
    bounds = [] if is_float else [np.iinfo(known.dtype).min, np.iinfo(known.dtype).max]
    with np.errstate(over="ignore"):
        edges = np.array([*EDGES, *np.negative(EDGES), np.nan] if is_float else range(bounds[0], bounds[1] + 1))
        edges = edges.astype(known.dtype)
    valid = np.clip(np.zeros(known.shape, known.dtype), known.low, known.high)
    assert quality_of(known, {"x": valid}) is Quality.OK
    for place, edge in itertools.product({0, 1 % valid.size, valid.size - 1}, edges):
        values = valid.copy()
        values.flat[place] = edge
        is_inside = known.low.flat[place] <= edge <= known.high.flat[place]
        wrong = Quality.OUT_OF_RANGE if np.isfinite(edge) else Quality.INVALID
        assert quality_of(known, {"x": values}) is (Quality.OK if np.isfinite(edge) and is_inside else wrong), edge


def test_a_field_of_another_shape_or_dtype_or_without_values_is_invalid():
    for wrong in (
        np.zeros(3, np.float32),
        np.zeros(3, np.int64),
        np.zeros(3, np.float16),
        np.zeros(4),
        np.zeros((3, 1)),
    ):
        assert quality_of(LAYOUTS["few"], {"x": wrong}) is Quality.INVALID
    assert quality_of(LAYOUTS["few"], {}) is Quality.INVALID


def with_history(contract, length):
    beacon_spec = contract.sensors["beacon"]
    field = replace(beacon_spec.fields["position"], history=length)
    return replace(contract, sensors={**contract.sensors, "beacon": replace(beacon_spec, fields={"position": field})})


@pytest.mark.parametrize("length", [1, 3, 6])
def test_a_history_begins_with_the_reset_and_holds_readings_at_their_true_age(contract, length):
    contract = with_history(contract, length)
    policy, builder = GapPolicy(contract), ObservationBuilder(contract)
    history = begin_history(policy.begin(snapshot(beacon=beacon((0, 0, 0), stamp_ns=NOW_NS))), length)
    given = [(0, NOW_NS)] * length  # value and stamp
    for step in range(1, 6):
        now_ns = NOW_NS + step * PERIOD_NS
        is_lost = step in (2, 3)
        reading = None if is_lost else beacon((step, step, step), stamp_ns=now_ns - 7)
        history.append(policy.apply(snapshot(now_ns, beacon=reading))[0])
        given.append(given[-1] if is_lost else (step, now_ns - 7))
        observation = builder.observe(history, step)
        assert observation["beacon_position"][:, 0].tolist() == [value for value, _ in given[-length:]]
        assert observation["beacon_position"].shape == (length, 3)
        ages_s = [(now_ns - stamp_ns) / 1e9 for _, stamp_ns in given[-length:]]
        assert observation["beacon_position_age_s"].tolist() == ages_s
        assert observation["beacon_position_age_s"].dtype == np.float64


def test_the_space_has_the_history_and_its_ages(contract):
    space = with_history(contract, 4).observation_space
    assert space["beacon_position"].shape == (4, 3)
    assert (space["beacon_position_age_s"].shape, space["beacon_position_age_s"].dtype) == ((4,), np.float64)
    assert "goal_position_age_s" not in space.spaces


@pytest.mark.parametrize(
    ("sensor", "length", "problem"),
    [
        ("beacon", 0, r"history: 0 \(expected at least 1\)"),
        ("beacon", 1001, "history: 1001 "),
        ("truth", 3, r"history: 3 \(expected none: evaluator sensors are not observed\)"),
    ],
)
def test_an_invalid_history_is_refused(contract, sensor, length, problem):
    spec = contract.sensors[sensor]
    fields = {name: replace(field, history=length) for name, field in spec.fields.items()}
    with pytest.raises(ContractError, match=problem):
        replace(contract, sensors={**contract.sensors, sensor: replace(spec, fields=fields)})


# --------------------------------------------------------------------------------------------------------------- ranges


CAMERAS = ("camera", "depth")
BLIND = {
    **{f"sensors.{name}": ABSENT for name in CAMERAS},
    **{f"backends.mujoco.sources.{name}": ABSENT for name in CAMERAS},
    **{f"backends.{name}": ABSENT for name in ("mujoco_ros", "gazebo", "simulation_interfaces")},
}
"""Changes of door_open that remove its cameras, which take most of the time."""


def leave_space(contract, *, num_envs, steps):
    """Return the keys of observations that leave their space in random steps of several slots."""
    left = set()
    env: Any = embodied_env.make_vec(contract, num_envs=num_envs)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(steps):
        observation = env.step(env.action_space.sample())[0]
        left |= {key for key, space in env.observation_space.items() if not space.contains(observation[key])}
    env.close()
    return left


@pytest.mark.needs("vector")
@pytest.mark.parametrize(
    "contract", ["arm_reach", "cart_goal", changed_contract("door_open", BLIND)], ids=["arm", "cart", "door"]
)
def test_random_steps_stay_within_the_space(contract):
    assert leave_space(contract, num_envs=10, steps=20) == set()


def test_a_force_sensor_saturates_at_its_range_with_noise():
    fields = "sensors.wrench.fields"
    tight = {f"{fields}.force.low": -2.0, f"{fields}.force.high": 2.0, f"{fields}.torque.high": 0.01}
    env = embodied_env.make(changed_contract("door_open", {**BLIND, **tight}))
    env.reset(seed=0)
    env.action_space.seed(0)
    forces = []
    for _ in range(20):
        observation, *_, info = env.step(env.action_space.sample())
        forces.append(observation["wrench_force"])
        assert env.observation_space.contains(observation)
        assert info["sensors"]["wrench"]["quality"] == Quality.OK
    env.close()
    assert np.abs(forces).max() == 2.0


def test_a_confidence_without_covariance_is_absent():
    with embodied_env.make("cart_goal") as env:
        odometry = env.reset(seed=1)[1]["sensors"]["odom"]  # its covariance is 0
        assert "confidence" not in odometry
        odometry = env.step(env.action_space.sample())[-1]["sensors"]["odom"]
        assert 0.0 < odometry["confidence"] <= 1.0


@pytest.mark.needs("vector")
def test_slots_without_covariance_have_no_confidence_in_batched_steps(monkeypatch):
    from batches import Pair

    monkeypatch.setattr("embodied_env.extensions.vector.vector_env.FEWEST_SLOTS", 1)
    pair = Pair.of("cart_goal", AutoresetMode.NEXT_STEP)
    pair.reset(seed=1)
    infos = pair.step(np.array([[0.0, 0.5], [1.0, 0.0], [0.0, 0.0]], dtype=np.float32))  # the first turns in place
    assert infos["sensors"]["odom"]["_confidence"].tolist() == [False, True, True]
    assert pair.ours.batched_share == 1.0
    pair.close()


def test_missing_points_of_a_cloud_are_counted_in_info(close_later):
    spec = {"count": 4, "pad": 5.0}
    sensor = {"topic": "cloud", "type": "sensor_msgs/msg/PointCloud2", "max_age_s": 1.0}
    sensor["fields"] = {"points": {"unit": "m", "low": -5.0, "high": 5.0, "points": spec}}
    env = close_later(embodied_env.make(parse(changed("sensors.cloud", sensor)), backend="fake", clock="virtual"))
    for observation, info in (env.reset(seed=0), env.step(env.action_space.sample() * 0)[::4]):
        missing = (observation["cloud_points"] == 5.0).all(axis=1).sum()
        assert (info["sensors"]["cloud"]["padded"], "padded" in info["sensors"]["tcp"]) == (missing, False)
