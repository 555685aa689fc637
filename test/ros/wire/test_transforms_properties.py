"""Lengths, angles and variances are preserved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safety_strategies import examples

from embodied_env.messages.vectors import position_confidence
from embodied_env.ros.wire.transforms import Transform, matrix, product, rotated_covariance, transformed, unit

many = examples(60)

NUMBERS = st.floats(-10.0, 10.0)
VECTORS = st.lists(NUMBERS, min_size=3, max_size=3).map(np.array)
ROTATIONS = (
    st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4)
    .map(np.array)
    .filter(lambda q: np.linalg.norm(q) > 0.1)
    .map(lambda q: q / np.linalg.norm(q))
)
COVARIANCES = st.lists(st.floats(-1.0, 1.0), min_size=36, max_size=36).map(
    lambda values: (np.reshape(values, (6, 6)) @ np.reshape(values, (6, 6)).T + 1e-3 * np.eye(6)).reshape(36)
)
TRANSFORMS = st.builds(lambda t, r: Transform(translation=t, rotation=r), VECTORS, ROTATIONS)


@many
@given(ROTATIONS, VECTORS, VECTORS)
def test_a_rotation_preserves_lengths_and_angles(rotation, first, second):
    turned = matrix(rotation) @ first, matrix(rotation) @ second
    assert turned[0] @ turned[1] == pytest.approx(first @ second, abs=1e-9)


@many
@given(ROTATIONS, ROTATIONS, VECTORS)
def test_a_product_composes_rotations(first, second, vector):
    np.testing.assert_allclose(
        matrix(unit(product(first, second))) @ vector, matrix(first) @ matrix(second) @ vector, atol=1e-9
    )


@many
@given(ROTATIONS, COVARIANCES)
def test_a_rotated_covariance_keeps_its_eigenvalues_and_confidence(rotation, covariance):
    turned = rotated_covariance(rotation, covariance)
    before, after = (np.linalg.eigvalsh(one.reshape(6, 6)) for one in (covariance, turned))
    np.testing.assert_allclose(after, before, atol=1e-8)
    symmetric = (turned.reshape(6, 6) + turned.reshape(6, 6).T).reshape(36) / 2
    assert position_confidence(symmetric, 0.5) == pytest.approx(position_confidence(covariance, 0.5), abs=1e-6)


@many
@given(TRANSFORMS, VECTORS, ROTATIONS)
def test_a_transform_and_its_inverse_cancel(transform, position, orientation):
    back = transform.rotation * np.array([-1.0, -1.0, -1.0, 1.0])
    inverse = Transform(translation=-matrix(back) @ transform.translation, rotation=back)
    values = {"position": position, "orientation": orientation}
    found = transformed(transformed(values, transform), inverse)
    np.testing.assert_allclose(found["position"], position, atol=1e-8)
    np.testing.assert_allclose(found["orientation"], orientation, atol=1e-8)


@many
@given(TRANSFORMS, COVARIANCES, VECTORS)
def test_a_rotated_covariance_is_that_of_the_rotated_errors(transform, covariance, position):
    """By its definition, J C J^T, with the Jacobian of the reading by finite differences."""
    values = {"position": position, "covariance": covariance}
    block = transformed(values, transform)["covariance"].reshape(6, 6)[:3, :3]
    origin = transformed({"position": position}, transform)["position"]
    jacobian = np.column_stack(
        [transformed({"position": position + axis}, transform)["position"] - origin for axis in np.eye(3)]
    )
    np.testing.assert_allclose(block, jacobian @ covariance.reshape(6, 6)[:3, :3] @ jacobian.T, atol=1e-8)


@pytest.mark.parametrize("rotation", [[0.0, 0.0, 0.0, 0.0], [np.nan, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 3.0]])
def test_an_invalid_quaternion_is_rejected(rotation):
    with pytest.raises(ValueError, match="is not a rotation"):
        transformed({"position": np.zeros(3)}, Transform(translation=np.zeros(3), rotation=np.array(rotation)))
