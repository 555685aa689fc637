"""What a reset draws, and where in the world it puts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import UsageError
from embodied_env.sim.model import MjData, Model
from embodied_env.sim.moving_bodies import MovingBody, put, put_pose
from embodied_env.sim.profile import Draw, WorldProfile

Put = Callable[[FloatArray], None]


class ResetRandomizer:
    """The reset options of a contract, and what each of them sets in a world."""

    def __init__(
        self,
        contract: Contract,
        profile: WorldProfile,
        model: Model,
        data: MjData,
        movers: dict[str, MovingBody],
    ) -> None:
        """Resolve the ``draws`` of `profile`; raises ContractError where they, model and contract do not agree."""
        self._options = contract.reset_options
        self._model, self._data, self._movers = model, data, movers
        self._puts = self._resolved(profile)

    def sample(self, seed: int, options: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Return the value of every reset option: the one in `options`, else one drawn by `seed` alone.

        Every option is drawn, so setting one does not shift another.

        Raises:
            UsageError: for an option that the contract does not have, a value that is not finite or of another shape.
        """
        known = self._options
        rng = np.random.default_rng(seed)
        drawn = {name: np.array(rng.uniform(known[name].low_array, known[name].high_array)) for name in sorted(known)}
        for name, value in options.items():
            if name not in known:
                raise UsageError(f"no such reset option: {one_of(name, known)}")
            if np.shape(value) != drawn[name].shape:
                raise UsageError(f"reset option {name} has shape {np.shape(value)}; allowed: {drawn[name].shape}")
            if not np.isfinite(value).all():
                raise UsageError(f"reset option {name} is {value}; allowed: finite numbers")
            drawn[name] = np.array(value, dtype=np.float64)
        return drawn

    def apply(self, drawn: Mapping[str, FloatArray]) -> None:
        """Set in the world what `draw` has returned."""
        for name, put_value in self._puts.items():
            put_value(drawn[name])

    def _resolved(self, profile: WorldProfile) -> dict[str, Put]:
        """Return what each reset option does with its value."""
        model, options = self._model, self._options
        path = f"{model.path}.draws"
        for name in profile.draws:
            if name not in options:
                raise model.error(f"{path}.{name}", f"no such reset option: {one_of(name, options)}")
        found: dict[str, Put] = {}
        for name, option in options.items():
            if name not in profile.draws:
                allowed = f"{name}: {{mocap: <body>}}, {{pose: <free joint>}} or {{mover: <mover>}}"
                raise model.error(path, f"nothing uses the reset option {name!r}; allowed: {allowed}")
            shapes, found[name] = self._put_into(profile.draws[name], f"{path}.{name}")
            shape = option.low_array.shape
            if shape not in shapes:
                allowed = " or ".join(str(s) for s in shapes)
                raise model.error(f"{path}.{name}", f"{name!r} has shape {shape}; allowed: {allowed}")
        return found

    def _put_into(self, draw: Draw, path: str) -> tuple[tuple[tuple[int, ...], ...], Put]:
        """Return the shapes that a draw may have, and what it sets."""
        given = [key for key in ("mocap", "pose", "mover") if getattr(draw, key) is not None]
        if len(given) != 1:
            raise self._model.error(path, f"{' and '.join(given) or 'nothing'} is given; allowed: one of the keys")
        data = self._data
        if draw.mocap is not None:
            mocap = self._model.mocap(draw.mocap, f"{path}.mocap")
            return ((2,), (3,)), lambda value: put(data.mocap_pos[mocap], value)
        if draw.pose is not None:
            adr = self._model.free_joint(draw.pose, f"{path}.pose")
            return ((3,),), lambda value: put_pose(data, adr, value)
        if draw.mover not in self._movers:
            raise self._model.error(f"{path}.mover", f"no such mover: {one_of(draw.mover, self._movers)}")
        return ((),), self._movers[draw.mover].set_phase
