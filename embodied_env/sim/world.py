"""A MuJoCo world built from a contract alone: it draws, takes joint positions, steps control periods, and senses.

Its time only grows: a reset takes one control period of it too, so the readings after a reset are newer than it.
Equal seeds and commands give equal bytes, whatever ran in the same world before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.rules import one_of
from embodied_env.errors import BackendLostError, ResetNeededError, UsageError
from embodied_env.sim.model import Model, actuated_joints
from embodied_env.sim.profile import WorldProfile, load_profile
from embodied_env.sim.sensing import Senses, Values

__all__ = ["World", "WorldProfile", "load_profile"]

_UNSTABLE = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC", "mjWARN_BADCTRL")


class World:
    """One simulated robot and its surroundings.

    Attributes:
        joints: the names of the commanded joints, in the order of the flat action.
        now_ns: the world's time; it never goes back.
        stamps: by sensor, when its newest sample was taken.
    """

    def __init__(self, contract: Contract, profile: WorldProfile, *, path: str = "backends.mujoco") -> None:
        """Compile the model and resolve every name.

        Args:
            contract: what the world must offer.
            profile: which model, and what its names mean to the contract.
            path: where `profile` stands in the contract, for the messages.

        Raises:
            ContractError: for a name, a shape or a period that model, profile and contract do not agree on.
            MissingDependencyError: when MuJoCo is not installed.
        """
        self._contract = contract
        self._model = model = Model(contract, profile, path)
        self._data = model.new_data()
        self._senses = Senses(contract, profile, model, self._data)
        self._mocaps = self._resolve_draws(profile)
        joints = actuated_joints(contract)
        self.joints = tuple(name for name, _ in joints)
        self._qpos = model.joint_addresses(joints).qpos
        self._servos = np.array([model.servo(name, joint_path) for name, joint_path in joints], dtype=np.intp)
        self._substeps = self._whole_substeps()
        self._fractions = np.arange(1, self._substeps + 1)[:, np.newaxis] / self._substeps
        self._warnings = [int(getattr(model.mujoco.mjtWarning, name)) for name in _UNSTABLE]
        self.now_ns = 0
        self.stamps: dict[str, int] = {}
        self._held: dict[str, Values] = {}
        self._origin_ns = 0
        self._sent = self._target = np.zeros(len(joints))

    def reset(self, seed: int, options: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Start an episode at the keyframe, with the servos holding it. Every sensor is sampled.

        Args:
            seed: what is drawn depends on it alone. Every option is drawn, so setting one does not shift another.
            options: values to take instead of the drawn ones, by reset option.

        Returns:
            What was drawn or set, by reset option.

        Raises:
            UsageError: for an option that the contract does not have, or a value of the wrong shape.
            BackendLostError: when the simulation is unstable.
        """
        drawn = self._draw(seed, options)
        self._model.reset(self._data)
        for name, mocap in self._mocaps.items():
            self._data.mocap_pos[mocap] = drawn[name]
        self._sent = self._target = self._data.qpos[self._qpos]
        self._data.ctrl[self._servos] = self._target
        self._model.mujoco.mj_forward(self._model.mj, self._data)
        self._check_stable()
        self.now_ns += self._contract.control_period_ns
        self._origin_ns = self.now_ns
        for name in self._contract.sensors:
            self._sample(name)
        return drawn

    def command(self, positions: FloatArray) -> None:
        """Set the joint positions to be reached at the end of the next step, shape (n_joints,), in joint units.

        Raises:
            UsageError: for another shape.
        """
        target = np.array(positions, dtype=np.float64)
        if target.shape != self._sent.shape:
            raise UsageError(
                f"a command of shape {target.shape} is not allowed; allowed: {self._sent.shape}, "
                f"the joints {', '.join(self.joints)}"
            )
        self._target = target

    def step(self) -> None:
        """Move by exactly one control period; the servo targets go linearly from the last command to the new one.

        Raises:
            ResetNeededError: before the first reset.
            BackendLostError: when the simulation is unstable.
        """
        if not self.stamps:
            raise ResetNeededError("step() of a world that was never reset: call reset() first")
        model, data, mj_step = self._model.mj, self._data, self._model.mujoco.mj_step
        for target in self._sent + self._fractions * (self._target - self._sent):
            data.ctrl[self._servos] = target
            mj_step(model, data)
        self._sent = self._target
        self._check_stable()
        self.now_ns += self._contract.control_period_ns
        for name, sensor in self._contract.sensors.items():
            if sensor.due_ns(self.now_ns, self._origin_ns) > self.stamps[name]:
                self._sample(name)

    def due(self, name: str) -> bool:
        """Return whether the sensor `name` has a new sample at this instant."""
        return self.stamps.get(name) == self.now_ns

    def sense(self, name: str) -> Values:
        """Return the fields of the sensor `name` as they are now, whether it is due or not. Fresh arrays."""
        return self._senses.read(name)

    def read(self) -> dict[str, tuple[int, Values]]:
        """Return stamp and fields of the newest sample of every sensor, held ones included. Fresh arrays."""
        return {
            name: (self.stamps[name], {field: value.copy() for field, value in values.items()})
            for name, values in self._held.items()
        }

    def _sample(self, name: str) -> None:
        self._held[name] = self.sense(name)
        self.stamps[name] = self.now_ns

    def _draw(self, seed: int, options: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        known = self._contract.reset_options
        rng = np.random.default_rng(seed)
        drawn = {name: np.array(rng.uniform(known[name].low_array, known[name].high_array)) for name in sorted(known)}
        for name, value in options.items():
            if name not in known:
                raise UsageError(f"no such reset option: {one_of(name, known)}")
            if np.shape(value) != drawn[name].shape:
                raise UsageError(f"reset option {name} has shape {np.shape(value)}; allowed: {drawn[name].shape}")
            drawn[name] = np.array(value, dtype=np.float64)
        return drawn

    def _check_stable(self) -> None:
        """Raise when MuJoCo warned of a bad state since the reset: it has then silently reset parts of it."""
        counts = self._data.warning.number[self._warnings]
        if counts.any() or not np.isfinite(self._data.qpos).all():
            bad = ", ".join(name for name, count in zip(_UNSTABLE, counts, strict=True) if count)
            raise BackendLostError(
                "sim_unstable", f"MuJoCo reported {bad or 'a position that is not finite'} at {self.now_ns} ns"
            )

    def _resolve_draws(self, profile: WorldProfile) -> dict[str, int]:
        """Return the index of the mocap body that each reset option moves."""
        model, options = self._model, self._contract.reset_options
        path = f"{model.path}.draws"
        for name, option in options.items():
            if name not in profile.draws:
                raise model.error(path, f"nothing uses the reset option {name!r}; allowed: {name}: {{mocap: <body>}}")
            if option.low_array.shape != (3,):
                raise model.error(f"{path}.{name}", f"{name!r} has shape {option.low_array.shape}; allowed: (3,), in m")
        mocaps = {}
        for name, draw in profile.draws.items():
            if name not in options:
                raise model.error(f"{path}.{name}", f"no such reset option: {one_of(name, options)}")
            mocaps[name] = model.mocap(draw.mocap, f"{path}.{name}.mocap")
        return mocaps

    def _whole_substeps(self) -> int:
        period_s, timestep_s = self._contract.control_period_s, float(self._model.mj.opt.timestep)
        substeps = round(period_s / timestep_s)
        if substeps < 1 or not math.isclose(substeps * timestep_s, period_s):
            raise self._model.error(
                "control_period_s", f"{period_s} s is not a whole number of timesteps of the model, {timestep_s} s"
            )
        return substeps
