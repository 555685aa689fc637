"""Sensors computed from several values of MuJoCo, such as scanner, odometer and bumper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray
from embodied_env.sim.world_model import MjData, WorldModel
from embodied_env.sim.world_profile import Contact, Rays, WheelOdometry

_SEEN_GROUPS = np.array([1, 1, 1, 0, 0, 0], dtype=np.uint8)
"""The geom groups that are rendered by default, so that scanners and cameras see the same."""


class Scanner:
    """A laser scanner that casts rays from a site."""

    def __init__(self, model: WorldModel, data: MjData, rays: Rays, beams: int, path: str) -> None:
        """Resolve the site, or raise ContractError when the model does not have it."""
        self._model, self._data, self._rays = model, data, rays
        self._site = model.find("site", rays.site, f"{path}.rays.site")
        self._body = int(model.mj.site_bodyid[self._site])
        angles = np.linspace(rays.angle_min_rad, rays.angle_max_rad, beams)
        self._directions = np.stack([np.cos(angles), np.sin(angles), np.zeros(beams)], axis=1)
        self._hit = np.empty(beams, dtype=np.int32)

    def ranges(self) -> FloatArray:
        """Return the distances, m, shape (beams,), +inf out of range and -inf below the minimum."""
        data = self._data
        world = self._directions @ data.site_xmat[self._site].reshape(3, 3).T
        distances = np.empty(len(world))
        self._model.mujoco.mj_multiRay(
            self._model.mj,
            data,
            data.site_xpos[self._site],
            world.ravel(),
            _SEEN_GROUPS,
            True,  # static geoms are seen
            self._body,
            self._hit,
            distances,
            None,
            len(world),
            self._rays.range_max_m,
        )
        distances[(distances < 0) | (distances > self._rays.range_max_m)] = math.inf
        distances[distances < self._rays.range_min_m] = -math.inf
        return distances

    def extras(self) -> dict[str, Any]:
        """Return the angles and range limits of the message."""
        names = ("angle_min_rad", "angle_max_rad", "range_min_m", "range_max_m")
        return {name: getattr(self._rays, name) for name in names}


class Odometer:
    """Integrates the motion of a site in its own plane, with errors, from zero at each reset.

    The errors are random walks: after d metres and r radians, their standard deviations are noise_per_m * sqrt(d)
    along the path and noise_per_rad * sqrt(r) in heading. The covariance is propagated to first order:
    P' = F P F^T + G Q G^T with the Jacobians of x' = x + R(theta) (dx, dy), theta' = theta + dtheta.
    """

    def __init__(self, model: WorldModel, data: MjData, odometry: WheelOdometry, path: str) -> None:
        """Resolve the site, or raise ContractError when the model does not have it."""
        self._model, self._data, self._odometry = model, data, odometry
        self._site = model.find("site", odometry.site, f"{path}.odometry.site")
        self.begin([0])

    def begin(self, seed: Sequence[int]) -> None:
        """Restart at zero, with errors that depend only on `seed` and the motion."""
        self._rng = np.random.default_rng(seed)
        self._pose, self._covariance = np.zeros(3), np.zeros((3, 3))
        self._last = self._true_pose()

    def save(self) -> Any:  # noqa: ANN401 - for `load` alone
        """Return the state, which later readings do not change."""
        return self._pose.copy(), self._covariance, self._last, self._rng.bit_generator.state

    def load(self, state: Any) -> None:  # noqa: ANN401 - of `save`
        """Continue from a saved state."""
        pose, self._covariance, self._last, random = state
        self._pose = pose.copy()
        self._rng.bit_generator.state = random

    def advance(self) -> None:
        """Add the motion since the last call, assumed to be straight."""
        now = self._true_pose()
        motion = now - self._last
        turned = math.remainder(motion[2], math.tau)
        moved = _rotated(motion[:2], -self._last[2])
        self._last = now
        distance = float(np.hypot(*moved))
        along, heading = self._rng.standard_normal(2)
        variances = self._odometry.noise_per_m**2 * distance, self._odometry.noise_per_rad**2 * abs(turned)
        if distance > 0:
            moved = moved * (1.0 + along * math.sqrt(variances[0]) / distance)
        step = _rotated(moved, self._pose[2])
        toward = step / distance if distance > 0 else np.zeros(2)
        jacobian = np.eye(3)
        jacobian[:2, 2] = -step[1], step[0]
        spread = np.zeros((3, 3))
        spread[:2, :2] = variances[0] * np.outer(toward, toward)
        spread[2, 2] = variances[1]
        self._covariance = jacobian @ self._covariance @ jacobian.T + spread
        self._pose[:2] += step
        self._pose[2] = math.remainder(self._pose[2] + turned + heading * math.sqrt(variances[1]), math.tau)

    def position(self) -> FloatArray:
        """Return x, y, 0 in the odometry's frame, m."""
        return np.array([self._pose[0], self._pose[1], 0.0])

    def orientation(self) -> FloatArray:
        """Return the heading as a quaternion x, y, z, w."""
        half = self._pose[2] / 2.0
        return np.array([0.0, 0.0, math.sin(half), math.cos(half)])

    def linear(self) -> FloatArray:
        """Return the velocity in the frame of the site, m/s, shape (3,)."""
        return self._velocity()[3:]

    def angular(self) -> FloatArray:
        """Return the angular velocity in the frame of the site, rad/s, shape (3,)."""
        return self._velocity()[:3]

    def extras(self) -> dict[str, Any]:
        """Return the covariance of the pose x, y, z, roll, pitch, yaw, shape (36,)."""
        whole = np.zeros((6, 6))
        place = np.ix_((0, 1, 5), (0, 1, 5))
        whole[place] = self._covariance
        return {"covariance": whole.ravel()}

    def _true_pose(self) -> FloatArray:
        x, y, _ = self._data.site_xpos[self._site]
        matrix = self._data.site_xmat[self._site]
        return np.array([x, y, math.atan2(matrix[3], matrix[0])])

    def _velocity(self) -> FloatArray:
        velocity = np.empty(6)
        mujoco = self._model.mujoco
        site = int(mujoco.mjtObj.mjOBJ_SITE)
        mujoco.mj_objectVelocity(self._model.mj, self._data, site, self._site, velocity, 1)
        return velocity


class Bumper:
    """Records whether a body had contact up to a reading and since the last one."""

    def __init__(self, model: WorldModel, data: MjData, contact: Contact, path: str) -> None:
        """Resolve body and geoms, or raise ContractError if missing or if sensors are disabled."""
        model.find("body", contact.body, f"{path}.contact.body")
        for i, name in enumerate(contact.ignore):
            model.find("geom", name, f"{path}.contact.ignore[{i}]")
        disabled = int(model.mujoco.mjtDisableBit.mjDSBL_SENSOR) & model.mj.opt.disableflags
        model.require(not disabled, f"{path}.contact", "the model disables sensors (expected <flag sensor='enable'/>)")
        self._place = model.contact_counts[contact]
        self._now = data.sensordata[self._place]
        self.begin()

    def begin(self) -> None:
        """Clear all contacts."""
        self._had_contact = self._was_read = False

    def save(self) -> Any:  # noqa: ANN401 - for `load` alone
        """Return the state."""
        return self._had_contact, self._was_read

    def load(self, state: Any) -> None:  # noqa: ANN401 - of `save`
        """Continue from a saved state."""
        self._had_contact, self._was_read = state

    def update(self, sensed: FloatArray) -> None:
        """Record the contacts of physics steps, ``sensordata`` by rows, but not those read before."""
        rows = sensed[int(self._was_read) :, self._place].tolist()
        self._was_read = False
        self._had_contact = self._had_contact or any(map(_has_contact, rows))

    def touched(self) -> bool:
        """Return whether there is a contact, or was one since the last reading."""
        return self._had_contact or _has_contact(self._now.tolist())

    def forget(self) -> None:
        """Clear the contacts up to now after a reading."""
        self._had_contact, self._was_read = False, True


def _has_contact(counts: list[float]) -> bool:
    every, *others = counts
    return every > sum(others)


def _rotated(vector: NDArray[np.float64], angle_rad: float) -> FloatArray:
    cos, sin = math.cos(angle_rad), math.sin(angle_rad)
    return np.array([cos * vector[0] - sin * vector[1], sin * vector[0] + cos * vector[1]])
