"""Features of a run are a uniform sample in bounded memory, means of episodes, and responses of joints."""

import math

import numpy as np
import pytest
import scipy

from embodied_env.core.latency_statistics import KEPT, Reservoir
from embodied_env.extensions.comparison.joint_response import Motion, fit_joint_response
from embodied_env.extensions.comparison.run_features import Event, Stream, as_on_the_robot
from embodied_env.record.step_values import CommandedJoint


def filled(values, **options):
    reservoir = Reservoir(**options)
    for value in values:
        reservoir.add(value)
    return reservoir


def stream_of(*episodes):
    stream = Stream()
    for index, values in enumerate(episodes):
        for value in values:
            stream.add_step([value], index)
    return stream


def test_sample_is_bounded_and_reproducible():
    first, same, other = (filled(range(5000), capacity=50, seed=seed).values() for seed in "aab")
    assert len(first) == 50
    assert first.tolist() == same.tolist() != other.tolist()


def test_sample_is_uniform_over_time():
    """Each of 400 numbers is in one of 10 samples of 40, and so about 40 times in 400 samples."""
    counts = np.zeros(400)
    for seed in range(400):
        counts[filled(range(400), capacity=40, seed=str(seed)).values().astype(int)] += 1
    spread = math.sqrt(400 * 0.1 * 0.9)
    assert abs(counts[:40].mean() - 40) < 5 * spread / math.sqrt(40)
    assert abs(counts[-40:].mean() - 40) < 5 * spread / math.sqrt(40)
    assert abs(counts - 40).max() < 6 * spread


def test_sample_of_a_long_stream_has_its_distribution():
    values = np.random.default_rng(3).normal(size=100_000)
    assert scipy.stats.ks_2samp(filled(values).values(), values).statistic < 1.63 / math.sqrt(KEPT)


def test_stream_has_the_mean_of_each_episode():
    found = stream_of([1.0, 3.0], [], [5.0]).means(4)
    assert found.tolist() == pytest.approx([2.0, math.nan, 5.0, math.nan], nan_ok=True)


def test_event_counts_a_step_once():
    event = Event()
    for step in (1, 1, 2, 7):
        event.add(step, step // 5)
    assert event.steps == {0: 2, 1: 1}


JOINT = CommandedJoint("j1", "position", "rad", (-1.0, 1.0), 0.1, wraps=False)


def motion_of(commands, *, delay_s, gain=1.0, offset=0.0, noise=0.0, period_s=0.05):
    """Return the motion of a joint that follows `commands`, joined by lines, with these errors."""
    times = period_s * np.arange(len(commands))
    read = times[1:] + 0.3 * period_s
    readings = offset + gain * np.interp(read - delay_s, times, commands)
    return Motion(times, np.array(commands), read, readings + noise * np.random.default_rng(1).normal(size=len(read)))


def moves(kind, steps=60):
    t = 0.05 * np.arange(steps)
    u = np.minimum(t / 1.5, 1.0)
    return {"reach": u**3 * (10 - 15 * u + 6 * u**2), "turns": np.sin(2.5 * t), "ramp": np.minimum(t, 1.5)}[kind]


@pytest.mark.parametrize("kind", ["reach", "turns", "ramp"])
@pytest.mark.parametrize(("delay_s", "gain"), [(0.0, 1.0), (0.06, 1.0), (0.143, 0.8), (0.31, 1.1)])
def test_response_is_recovered(kind, delay_s, gain):
    found = fit_joint_response(motion_of(moves(kind), delay_s=delay_s, gain=gain, noise=1e-4), JOINT, 0.05)
    assert found.delay_s == pytest.approx(delay_s, abs=0.012)
    assert found.gain == pytest.approx(gain, abs=0.02)


def test_offset_is_the_distance_from_the_delayed_commands():
    found = fit_joint_response(motion_of(moves("turns"), delay_s=0.06, offset=0.02), JOINT, 0.05)
    assert found.offset == pytest.approx(0.02, abs=1e-3)


@pytest.mark.parametrize(
    "motion",
    [
        motion_of([0.0] * 30, delay_s=0.0),
        motion_of(0.001 * moves("turns"), delay_s=0.0),
        motion_of(moves("turns"), delay_s=0.0, noise=5.0),
        motion_of(moves("turns"), delay_s=0.0, gain=-1.0)._replace(commands=np.linspace(0.0, 1.0, 60)),
        motion_of(moves("turns")[:4], delay_s=0.0),
        Motion(*np.zeros((4, 0))),
    ],
)
def test_no_response_without_motion_that_commands_explain(motion):
    assert fit_joint_response(motion, JOINT, 0.05) is None


def test_injected_delays_replace_the_stages_of_the_simulator():
    values = {"capture_age_s": {"joints": 0.0}, "obs_to_command_s": 0.001, "gate_s": 0.0002, "policy_s": 0.1}
    injected = {
        "age_s": {"joints": 0.02},
        "inference_s": 0.01,
        "data_age_s": {"joints": 0.03},
        "end_to_end_s": 0.07,
        "actuation_s": None,
    }
    quality = {**dict.fromkeys(values, 0), "capture_age_s": {"joints": 0}, "policy_s": 9}
    quality["injected"] = {**dict.fromkeys(injected, 0), "age_s": {"joints": 0}, "data_age_s": {"joints": 0}}
    assert as_on_the_robot({**values, "injected": injected, "quality": quality}) == {
        ("capture_age_s", "joints"): 0.02,
        ("obs_to_command_s", ""): 0.01,
        ("gate_s", ""): 0.0002,
        ("data_age_s", "joints"): 0.03,
        ("end_to_end_s", ""): 0.07,
    }
