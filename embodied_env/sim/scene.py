"""Bodies around the robot: movers, the draws of a reset, and placement on request."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.value_checks import naming_file, one_of
from embodied_env.errors import UsageError
from embodied_env.sim.backend_profile import Draw, Mover, only_key
from embodied_env.sim.model import MjData, Model

Setter = Callable[[FloatArray], None]


class MovingBody:
    """A mocap body that moves between the two points of a mover."""

    def __init__(self, mover: Mover, mocap: int) -> None:
        """Move the mocap body at this index."""
        self._mocap = mocap
        self._from = np.array(mover.from_m)
        self._way = np.array(mover.to_m) - self._from
        self._turns_per_s = mover.speed_m_per_s / (2.0 * float(np.linalg.norm(self._way)))
        self._phase = 0.0

    def set_phase(self, phase: FloatArray) -> None:
        """Set the initial phase: 0 at the first point, 0.5 at the second, 1 at the first again."""
        self._phase = float(phase)

    def place(self, data: MjData, time_s: float) -> None:
        """Set the position of the body at this time of the episode."""
        turn = (self._phase + self._turns_per_s * time_s) % 1.0
        data.mocap_pos[self._mocap] = self._from + self._way * (1.0 - abs(2.0 * turn - 1.0))


class ResetRandomizer:
    """The reset options of a contract and their effects in a world."""

    def __init__(self, model: Model, data: MjData, movers: dict[str, MovingBody]) -> None:
        """Resolve the ``draws`` of the profile; raises ContractError where they, model and contract disagree."""
        self._options = options = model.contract.reset_options
        self._model, self._data, self._movers = model, data, movers
        self._setters: dict[str, Setter] = {}
        path, draws = f"{model.path}.draws", model.profile.draws
        for name in draws:
            model.require(name in options, f"{path}.{name}", f"no such reset option: {one_of(name, options)}")
        for name, option in options.items():
            expected = f"{name}: {{mocap: <body>}}, {{pose: <free joint>}} or {{mover: <mover>}}"
            model.require(name in draws, path, f"no effect of the reset option {name!r} (expected {expected})")
            shapes, self._setters[name] = self._setter_of(draws[name], f"{path}.{name}")
            shape, expected = option.low_array.shape, " or ".join(map(str, shapes))
            problem = f"wrong shape of the reset option {name!r}: {shape} (expected {expected})"
            model.require(shape in shapes, f"{path}.{name}", problem)

    def sample(self, seed: int, options: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Return the value of every reset option: the one in `options`, otherwise one sampled with `seed`.

        Every option is sampled, so setting one does not shift another. Raises UsageError for an unknown option, or a
        value that is not finite or has another shape.
        """
        known = self._options
        rng = np.random.default_rng(seed)
        drawn = {name: np.array(rng.uniform(known[name].low_array, known[name].high_array)) for name in sorted(known)}
        for name, value in options.items():
            if name not in known:
                raise UsageError(f"no such reset option: {one_of(name, known)}")
            found, expected = np.shape(value), drawn[name].shape
            if found != expected:
                raise UsageError(f"wrong shape of the reset option {name}: {found} (expected {expected})")
            if not np.isfinite(value).all():
                raise UsageError(f"invalid value of the reset option {name}: {value} (expected finite numbers)")
            drawn[name] = np.array(value, dtype=np.float64)
        return drawn

    def apply(self, drawn: Mapping[str, FloatArray]) -> None:
        """Set the values returned by `sample` in the world."""
        for name, setter in self._setters.items():
            setter(drawn[name])

    def _setter_of(self, draw: Draw, path: str) -> tuple[tuple[tuple[int, ...], ...], Setter]:
        """Return the allowed shapes of a draw, and the function that sets it."""
        with naming_file(self._model.contract.source):
            only_key(draw, ("mocap", "pose", "mover"), path)
        data = self._data
        if draw.mocap is not None:
            position = data.mocap_pos[self._model.mocap(draw.mocap, f"{path}.mocap")]

            def set_position(value: FloatArray) -> None:
                position[: len(value)] = value

            return ((2,), (3,)), set_position
        if draw.pose is not None:
            adr = self._model.free_joint(draw.pose, f"{path}.pose")

            def set_pose(value: FloatArray) -> None:  # upright, at an unchanged height
                x, y, heading_rad = value.tolist()
                data.qpos[adr : adr + 2] = x, y
                data.qpos[adr + 3 : adr + 7] = math.cos(heading_rad / 2.0), 0.0, 0.0, math.sin(heading_rad / 2.0)

            return ((3,),), set_pose
        if draw.mover not in self._movers:
            raise self._model.error(f"{path}.mover", f"no such mover: {one_of(draw.mover, self._movers)}")
        return ((),), self._movers[draw.mover].set_phase


def placeable(model: Model) -> tuple[str, ...]:
    """Return the bodies that can be placed: mocap bodies, and those with a free joint."""
    mj, free = model.mj, int(model.mujoco.mjtJoint.mjJNT_FREE)
    bodies = [i for i in range(mj.nbody) if mj.body_mocapid[i] >= 0]
    bodies += [int(mj.jnt_bodyid[i]) for i in range(mj.njnt) if mj.jnt_type[i] == free]
    return tuple(mj.body(i).name for i in sorted(bodies))


def place_body(model: Model, data: MjData, name: str, position: FloatArray, orientation: FloatArray) -> None:
    """Place a body at rest: position (3,), m, and unit quaternion x, y, z, w (4,); raises UsageError."""
    if name not in (known := placeable(model)):
        raise UsageError(f"no such body that can be placed: {one_of(name, known)}")
    pose = np.array([*position, *np.roll(orientation, 1)], dtype=np.float64)  # MuJoCo has w first
    if pose.shape != (7,) or not np.isfinite(pose).all() or not math.isclose(np.linalg.norm(pose[3:]), 1, abs_tol=1e-6):
        raise UsageError(f"invalid pose: {pose.tolist()} (expected x, y, z, and a quaternion of length 1)")
    body = model.mj.body(name)
    if (mocap := int(model.mj.body_mocapid[body.id])) >= 0:
        data.mocap_pos[mocap], data.mocap_quat[mocap] = pose[:3], pose[3:]
        return
    joint = int(body.jntadr[0])
    qpos, dof = int(model.mj.jnt_qposadr[joint]), int(model.mj.jnt_dofadr[joint])
    data.qpos[qpos : qpos + 7], data.qvel[dof : dof + 6] = pose, 0.0
