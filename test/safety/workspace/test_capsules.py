"""Signed distances of capsules, against cases computed by hand and brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import examples

from embodied_env.safety.workspace.capsules import box_distance, capsule_distance, inside_distance

LOW, HIGH = np.array([-1.0, -2.0, -0.5]), np.array([1.0, 2.0, 0.5])
RADIUS = np.array(0.1)
STEPS = np.linspace(0.0, 1.0, 2001)

coordinates = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0, 1e-9]), st.floats(-3.0, 3.0))
points = st.tuples(coordinates, coordinates, coordinates).map(np.array)
segments = st.one_of(st.tuples(points, points), points.map(lambda p: (p, p))).map(np.array)


def along(ends: np.ndarray) -> np.ndarray:
    return ends[0] + STEPS[:, None] * (ends[1] - ends[0])


def point_to_box(p: np.ndarray) -> np.ndarray:
    """Return the signed distance of points (k, 3), by the textbook formula."""
    q = np.abs(p - (LOW + HIGH) / 2) - (HIGH - LOW) / 2
    return np.linalg.norm(np.maximum(q, 0.0), axis=-1) + np.minimum(q.max(axis=-1), 0.0)


def point_to_segment(p: np.ndarray, ends: np.ndarray) -> np.ndarray:
    d = ends[1] - ends[0]
    t = np.clip((p - ends[0]) @ d / max(d @ d, 1e-300), 0.0, 1.0)
    return np.linalg.norm(p - ends[0] - t[:, None] * d, axis=-1)


def resolution(ends: np.ndarray) -> float:
    """Return the sample spacing of `along`, and rounding."""
    return float(np.linalg.norm(ends[1] - ends[0])) / (len(STEPS) - 1) + 1e-9


@examples(100)
@given(segments)
def test_box_distance_is_that_of_the_nearest_point(ends):
    brute = point_to_box(along(ends)).min()
    exact = box_distance(ends, RADIUS, LOW, HIGH) + RADIUS
    assert brute - resolution(ends) <= exact <= brute + 1e-9


@examples(100)
@given(segments, segments)
def test_capsule_distance_is_that_of_the_nearest_points(ends, other):
    brute = point_to_segment(along(ends), other).min()
    exact = capsule_distance(ends, RADIUS, other, np.array(0.2)) + 0.3
    assert brute - resolution(ends) <= exact <= brute + 1e-7


@examples(100)
@given(segments)
def test_inside_distance_is_that_of_the_outermost_point(ends):
    p = along(ends)
    brute = np.minimum(p - LOW, HIGH - p).min() - RADIUS
    assert inside_distance(ends, RADIUS, LOW, HIGH) == pytest.approx(brute, abs=1e-12)


@examples(100)
@given(segments, segments, st.integers(0, 2))
def test_distance_changes_by_at_most_the_motion_of_the_ends(ends, moves, kind):
    far = float(np.linalg.norm(moves, axis=-1).max())
    functions = [
        lambda e: box_distance(e, RADIUS, LOW, HIGH),
        lambda e: inside_distance(e, RADIUS, LOW, HIGH),
        lambda e: capsule_distance(e, RADIUS, np.stack([LOW, HIGH]), RADIUS),
    ]
    assert abs(functions[kind](ends + moves) - functions[kind](ends)) <= far + 1e-9


def test_many_capsules_and_boxes_are_measured_at_once():
    rng = np.random.default_rng(3)
    ends, radii = rng.uniform(-3, 3, (7, 4, 2, 3)), rng.uniform(0, 1, 4)
    low = rng.uniform(-2, 0, (4, 3))
    high = low + rng.uniform(0.1, 2, (4, 3))
    at_once = box_distance(ends, radii, low, high)
    one_by_one = [[box_distance(ends[k, i], radii[i], low[i], high[i]) for i in range(4)] for k in range(7)]
    np.testing.assert_allclose(at_once, one_by_one, atol=1e-12)
