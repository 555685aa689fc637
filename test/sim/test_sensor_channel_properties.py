"""Each due time is served once, in time and in order."""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from safety_strategies import examples

from embodied_env.contract.sensor_schema import FieldSpec, SensorSpec
from embodied_env.core.types import Sample
from embodied_env.sim.sensor_channel import SensorChannel
from embodied_env.sim.sensor_reader import SensorOutput
from embodied_env.sim.world_profile import Contact, Source

many = examples(60)

S_NS = 1_000_000_000
PERIODS = 20
RATES = st.fractions(min_value=Fraction(1, 3), max_value=2000, max_denominator=7)
CONTROL_PERIODS_NS = st.sampled_from([10_000_000, 20_000_000, 33_333_333, 50_000_000, 100_000_000, 1_000_000_000])
SUBSTEPS = st.integers(1, 40)
ORIGINS_NS = st.integers(0, 10**13)
SEEDS = st.integers(0, 2**63 - 1)


def pose(**changes: Any) -> SensorSpec:
    fields = {
        "position": FieldSpec(unit="m", low=-9.0, high=9.0),
        "orientation": FieldSpec(unit="1", low=-1.0, high=1.0),
    }
    return SensorSpec(topic="pose", type="geometry_msgs/msg/PoseStamped", fields=fields, max_age_s=1.0, **changes)


def measured(mark: float = 0.0, orientation: np.ndarray | None = None) -> SensorOutput:
    turned = np.array([0.0, 0.0, 0.0, 1.0]) if orientation is None else orientation
    return SensorOutput(values={"position": np.full(3, mark), "orientation": turned}, extras={})


class Run:
    """The readings taken and delivered in an episode, in ns since the reset. A reading's value is its acquisition time."""

    def __init__(
        self, channel: SensorChannel, period_ns: int, *, substeps: int = 10, origin_ns: int = 0, seed: int = 0
    ) -> None:
        self.steps_ns = [
            k * period_ns + period_ns * substep // substeps
            for k in range(PERIODS)
            for substep in range(1, substeps + 1)
        ]
        self.taken_ns: list[int] = []
        self.seen: list[tuple[int, Sample]] = []
        channel.begin(seed, origin_ns, measured(0.0))
        for i, step_ns in enumerate(self.steps_ns, start=1):
            if origin_ns + step_ns >= channel.due_ns:
                self.taken_ns.append(step_ns)
                channel.capture(origin_ns + step_ns, measured(float(step_ns)))
            if i % substeps == 0:
                channel.deliver(origin_ns + step_ns)
                assert channel.newest is not None
                self.seen.append((step_ns, channel.newest))


@many
@given(rate=RATES, period_ns=CONTROL_PERIODS_NS, substeps=SUBSTEPS, origin_ns=ORIGINS_NS)
def test_each_due_time_is_served_once_by_the_next_physics_step(rate, period_ns, substeps, origin_ns):
    channel = SensorChannel("pose", pose(rate_hz=float(rate)), Source(), period_ns)
    run = Run(channel, period_ns, substeps=substeps, origin_ns=origin_ns)
    passed = due_times_passed(rate, period_ns, substeps)
    assume(
        passed == due_times_passed(rate, period_ns, substeps, later_ns=2)
    )  # truncated to ns, with half a ns of tolerance
    steps = zip(run.steps_ns, pairwise(passed), strict=True)
    assert run.taken_ns == [step_ns for step_ns, (before, now) in steps if now > before]


def due_times_passed(rate: Fraction, period_ns: int, substeps: int, *, later_ns: int = 0) -> list[int]:
    """Return the number of due times passed at the reset, and `later_ns` after each physics step, exactly."""
    per_ns = rate / S_NS
    return [
        int((Fraction(i * period_ns, substeps) + later_ns * (i > 0)) * per_ns) for i in range(PERIODS * substeps + 1)
    ]


@many
@given(period_ns=CONTROL_PERIODS_NS, substeps=SUBSTEPS, origin_ns=ORIGINS_NS)
def test_a_sensor_without_a_rate_is_served_at_the_end_of_each_period(period_ns, substeps, origin_ns):
    run = Run(SensorChannel("pose", pose(), Source(), period_ns), period_ns, substeps=substeps, origin_ns=origin_ns)
    assert run.taken_ns == [k * period_ns for k in range(1, PERIODS + 1)]


@many
@given(
    rate=st.one_of(st.just(0.0), RATES.map(float)),
    delay_s=st.floats(0.0, 1.0),
    dropout=st.floats(0.0, 0.9),
    origin_ns=ORIGINS_NS,
    seed=SEEDS,
)
def test_delivered_readings_are_in_order_on_time_and_unchanged(rate, delay_s, dropout, origin_ns, seed):
    source = Source(delay_s=delay_s, dropout=dropout)
    run = Run(SensorChannel("pose", pose(rate_hz=rate), source, 50_000_000), 50_000_000, origin_ns=origin_ns, seed=seed)
    for (_, before), (_, after) in pairwise(run.seen):
        assert after.stamp_ns >= before.stamp_ns
        assert (after.seq > before.seq) == (after.stamp_ns > before.stamp_ns)
    for now_ns, reading in run.seen:
        taken_ns = reading.stamp_ns - origin_ns
        assert taken_ns == 0 or taken_ns + round(delay_s * 1e9) <= now_ns
        assert reading.values["position"][0] == taken_ns


@many
@given(rate=RATES.map(float), delay_s=st.floats(0.0, 1.0))
def test_no_reading_is_later_than_its_delay_without_dropout(rate, delay_s):
    run = Run(SensorChannel("pose", pose(rate_hz=rate), Source(delay_s=delay_s), 50_000_000), 50_000_000)
    delay_ns = round(delay_s * 1e9)
    for now_ns, reading in run.seen:
        assert reading.stamp_ns == max((t for t in run.taken_ns if t + delay_ns <= now_ns), default=0)


@many
@given(rate=RATES.map(float), delay_s=st.floats(0.0, 1.0), dropout=st.floats(0.0, 0.9), seed=SEEDS)
def test_a_receive_stamp_is_the_end_of_the_period_of_delivery(rate, delay_s, dropout, seed):
    source = Source(delay_s=delay_s, dropout=dropout)
    run = Run(SensorChannel("pose", pose(rate_hz=rate, timeline="receive"), source, 50_000_000), 50_000_000, seed=seed)
    seq = 0
    for now_ns, reading in run.seen:
        assert (reading.stamp_ns == now_ns) == (reading.seq > seq)
        seq = reading.seq


@many
@given(seed=SEEDS, deviation=st.floats(0.0, 100.0), raw=st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4))
def test_a_noisy_orientation_is_a_unit_quaternion(seed, deviation, raw):
    norm = float(np.linalg.norm(raw))
    orientation = np.array(raw) / norm if norm > 1e-6 else np.array([0.0, 0.0, 0.0, 1.0])
    channel = SensorChannel("pose", pose(), Source(noise={"orientation": deviation}), S_NS)
    channel.begin(seed, 0, measured(orientation=orientation))
    assert channel.newest is not None
    assert math.isclose(np.linalg.norm(channel.newest.values["orientation"]), 1.0, rel_tol=1e-12)


@many
@given(seed=SEEDS, rate=RATES.map(float))
def test_equal_seeds_give_equal_bytes(seed, rate):
    source = Source(noise={"position": 1.0, "orientation": 0.1}, dropout=0.3, delay_s=0.07)
    runs = [
        Run(SensorChannel("pose", pose(rate_hz=rate), source, 50_000_000), 50_000_000, seed=seed, origin_ns=origin_ns)
        for origin_ns in (0, 123_000_000_000)
    ]
    first, second = (
        [b"".join(value.tobytes() for value in reading.values.values()) for _, reading in run.seen] for run in runs
    )
    assert first == second


@many
@given(
    touches=st.lists(st.booleans(), max_size=60),
    delay_s=st.floats(0.0, 0.3),
    dropout=st.floats(0.0, 0.9),
    periods=st.integers(1, 7),
    seed=SEEDS,
)
def test_each_contact_since_the_last_delivered_reading_is_reported(touches, delay_s, dropout, periods, seed):
    flag = FieldSpec(unit="1", low=0, high=1)
    spec = SensorSpec(topic="bump", type="std_msgs/msg/Bool", fields={"data": flag}, max_age_s=1.0, timeline="receive")
    source = Source(contact=Contact(body="base"), delay_s=delay_s, dropout=dropout)
    channel = SensorChannel("bump", spec, source, S_NS)
    channel.begin(seed, 0, contact(False, 0))
    reported = 0  # number of the last reported reading
    for i, is_touched in enumerate(touches, start=1):
        channel.capture(i * 10_000_000, contact(is_touched, i))
        if i % periods:
            continue
        before = channel.newest
        channel.deliver(i * 10_000_000)
        if (reading := channel.newest) is not None and reading is not before:
            assert bool(reading.values["data"][0]) == any(touches[reported : channel.extras["number"]])
            reported = channel.extras["number"]


def contact(is_touched: bool, number: int) -> SensorOutput:
    return SensorOutput(values={"data": np.array([is_touched], dtype=np.int8)}, extras={"number": number})
