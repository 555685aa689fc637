"""Effects of reset options in a world on places, movers, starts, physics and delays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.contract_schema import ResetOption
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import naming_file, one_of
from embodied_env.core.reset_draws import draw_options
from embodied_env.sim.identified_parameters import (
    CONSTANT_FIELDS,
    FIELDS,
    IDENTIFIED,
    draw_identified,
    parameter_name,
)
from embodied_env.sim.sensor_channel import SensorChannel
from embodied_env.sim.servos import actuators_of
from embodied_env.sim.world_model import MjData, WorldModel
from embodied_env.sim.world_profile import DRAWS, Draw, Mover, only_key

Setter = Callable[[FloatArray], None]

_NS_PER_S = 1e9
_SHAPES = {"mocap": ((2,), (3,)), "pose": ((3,),), "mover": ((),), "command_delay": ((),)}  # of one object
_SCALED = {  # key of a draw -> the fields of the model that it scales
    "mass": ("body_mass", "body_inertia"),
    "friction": ("geom_friction",),
    "gain": ("actuator_gainprm", "actuator_biasprm"),
    "damping": ("dof_damping",),
}


def drawn_fields(model: WorldModel) -> tuple[str, ...]:
    """Return the fields of the model that resets draw."""
    draws, identified = model.profile.draws.values(), model.profile.identified
    fields = [_SCALED[key] for key in _SCALED if any(getattr(draw, key) is not None for draw in draws)]
    if identified is not None and identified.draw is not None:
        fields += [FIELDS.get(each.kind, ()) for each in model.identified]
    return tuple(dict.fromkeys(field for group in fields for field in group))


class MovingBody:
    """The mocap body with the index `mocap`, which moves between the two points of a mover."""

    def __init__(self, mover: Mover, mocap: int) -> None:
        self.mocap = mocap
        self._from = np.array(mover.from_m)
        self._way = np.array(mover.to_m) - self._from
        self._turns_per_s = mover.speed_m_per_s / (2.0 * float(np.linalg.norm(self._way)))
        self.phase = 0.0

    def set_phase(self, phase: FloatArray) -> None:
        """Set the initial phase, 0 and 1 at the first point, 0.5 at the second."""
        self.phase = float(phase)

    def positions(self, times_s: FloatArray, phase: float | FloatArray) -> FloatArray:
        """Return the body's positions at these times from an initial phase, shape (..., 3)."""
        turns = (phase + self._turns_per_s * times_s)[..., np.newaxis] % 1.0
        positions: FloatArray = self._from + self._way * (1.0 - abs(2.0 * turns - 1.0))
        return positions


class ResetRandomizer:
    """Effects of a contract's reset options in a world, all of which each reset sets.

    Attributes:
        delays: the paths of the draws of delays.
        late_sensors: the sensors whose delay is drawn.
        command_delay_ns: the time from a command to its effect in this episode; None: neither drawn nor identified.
    """

    def __init__(
        self, model: WorldModel, data: MjData, movers: Mapping[str, MovingBody], channels: Mapping[str, SensorChannel]
    ) -> None:
        """Resolve the ``draws`` for `data`, or raise ContractError for conflicts."""
        options = model.contract.reset_options
        self._model, self._data, self._movers, self._channels = model, data, movers, channels
        self._start = data.qpos.copy()
        self._claimed: dict[tuple[str, object], str] = {}  # kind and object that an option sets -> its path
        self._scalers: dict[str, Setter] = {}  # scalers of the model
        self._setters: dict[str, Setter] = {}
        self.delays: list[str] = []
        self.late_sensors: set[str] = set()
        self.command_delay_ns: int | None = None
        path, draws = f"{model.path}.draws", model.profile.draws
        for name in draws:
            model.require(name in options, f"{path}.{name}", f"no such reset option: {one_of(name, options)}")
        for name, option in options.items():
            if name in draws:
                setters = self._scalers if draws[name].changes_model else self._setters
                setters[name] = self._setter_of(draws[name], option, f"{path}.{name}")
            else:
                expected = f"{name}: with one of the keys {', '.join(DRAWS)}"
                problem = f"no effect of the reset option {name!r} (expected {expected}); or set its observed: true"
                model.require(option.observed, path, problem)
        self._add_identified(f"{model.path}.identified")
        self._changes_constants = not CONSTANT_FIELDS.isdisjoint(drawn_fields(model))

    def apply(self, drawn: Mapping[str, FloatArray]) -> None:
        """Set the values of `draw_options` in the world, which is at the start of an episode."""
        for name, scale in self._scalers.items():
            scale(drawn[name])
        if self._changes_constants:
            self._model.update_constants(self._data)
            self._model.reset(self._data)
        for name, setter in self._setters.items():
            setter(drawn[name])

    def draw(self, seed: int, given: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Return the value of each reset option, drawn or `given`, and drawn parameters."""
        drawn = draw_options(self._model.contract.reset_options, seed, given)
        if IDENTIFIED in self._scalers:
            drawn[IDENTIFIED] = draw_identified(self._model.identified, seed)
        return drawn

    def _add_identified(self, path: str) -> None:
        """Delay commands as identified, and set the identified parameters at resets if drawn."""
        model, options, named = self._model, self._model.contract.reset_options, self._model.profile.identified
        delays = [each.value for each in model.identified if each.kind == "command_delay"]
        if delays:
            self._claim("command_delay", None, "the delay of commands", path)
            self._set_command_delay(delays[0])
        if named is None or named.draw is None:
            return
        model.require(IDENTIFIED not in options, f"reset_options.{IDENTIFIED}", f"the name is that of {path}")
        setters: list[Callable[[float], None]] = []
        for each in model.identified:
            if each.kind == "command_delay":
                setters.append(self._set_command_delay)
                continue
            parameter = model.parameter(each.kind, each.of, f"{path}.file")
            for row in parameter.rows:
                self._claim(each.kind, row, parameter_name(each.kind, each.of), path)
            setters.append(parameter.set)

        def set_all(values: FloatArray) -> None:
            for set_value, value in zip(setters, values.tolist(), strict=True):
                set_value(value)

        self._scalers[IDENTIFIED] = set_all

    def _set_command_delay(self, value: FloatArray | float) -> None:
        self.command_delay_ns = round(float(value) * _NS_PER_S)

    def _setter_of(self, draw: Draw, option: ResetOption, path: str) -> Setter:
        model = self._model
        with naming_file(model.contract.source):
            key = only_key(draw, DRAWS, path)
        where, target = f"{path}.{key}", getattr(draw, key)
        model.require(draw.joints is not None or not draw.absolute, f"{path}.absolute", "true (expected with joints)")
        model.require(target != (), where, "[] (expected at least one name)")
        shapes = _SHAPES[key] if key in _SHAPES else ((), (len(target),))
        shape, expected = option.low_array.shape, " or ".join(map(str, shapes))
        model.require(shape in shapes, path, f"wrong shape of the reset option: {shape} (expected {expected})")
        if key == "mocap":
            return self._position_setter(model.mocap(target, where))
        if key == "pose":
            return self._pose_setter(model.free_joint(target, where))
        if key == "mover":
            model.require(target in self._movers, where, f"no such mover: {one_of(target, self._movers)}")
            return self._movers[target].set_phase
        if key == "joints":
            return self._start_setter(draw, option, where)
        low, is_factor = option.low_array, key in ("mass", "gain")
        is_valid = bool((low > 0 if is_factor else low >= 0).all())
        model.require(is_valid, where, f"draws {low.tolist()} (expected values {'>' if is_factor else '>='} 0)")
        if key in _SCALED:
            return self._scale_setter(key, target, where)
        self.delays.append(path)
        return self._delay_setter(target, where) if key == "delay" else self._command_delay_setter(draw, where)

    def _claim(self, kind: str, one: object, name: str, path: str) -> None:
        first = self._claimed.get((kind, one))
        self._model.require(first is None, path, f"{name!r} is set by {first} already (expected once)")
        self._claimed[kind, one] = path

    def _position_setter(self, mocap: int) -> Setter:
        position = self._data.mocap_pos[mocap]

        def set_position(value: FloatArray) -> None:
            position[: len(value)] = value

        return set_position

    def _pose_setter(self, adr: int) -> Setter:
        qpos = self._data.qpos

        def set_pose(value: FloatArray) -> None:  # upright, at an unchanged height
            x, y, heading_rad = value.tolist()
            qpos[adr : adr + 2] = x, y
            qpos[adr + 3 : adr + 7] = math.cos(heading_rad / 2.0), 0.0, 0.0, math.sin(heading_rad / 2.0)

        return set_pose

    def _command_delay_setter(self, draw: Draw, path: str) -> Setter:
        self._model.require(draw.command_delay is True, path, "false (expected true)")
        self._claim("command_delay", None, "the delay of commands", path)
        self.command_delay_ns = 0
        return self._set_command_delay

    def _delay_setter(self, names: Sequence[str], path: str) -> Setter:
        for name in names:
            known = name in self._channels
            self._model.require(known, path, f"no such sensor: {one_of(name, self._channels)}")
            self._claim("delay", name, name, path)
            self.late_sensors.add(name)

        def set_delays(value: FloatArray) -> None:
            for name, delay_s in zip(names, np.broadcast_to(value, len(names)).tolist(), strict=True):
                self._channels[name].delay_ns = round(delay_s * _NS_PER_S)

        return set_delays

    def _start_setter(self, draw: Draw, option: ResetOption, path: str) -> Setter:
        """Return the setter of start positions, which must be within all limits."""
        model, qpos, names = self._model, self._data.qpos, draw.joints or ()
        places, _ = model.joint_addresses((name, path) for name in names)
        base = np.zeros(len(names)) if draw.absolute else self._start[places]
        limits = ActionLayout(model.contract).limits
        commanded = zip(limits.joints, limits.position_low.tolist(), limits.position_high.tolist(), strict=True)
        ranges = {joint: [(low, high)] for joint, low, high in commanded}
        starts = zip(names, (base + option.low_array).tolist(), (base + option.high_array).tolist(), strict=True)
        for name, least, most in starts:
            joint = model.mj.joint(name)
            self._claim("joints", joint.id, name, path)
            own = [tuple(joint.range.tolist())] if model.mj.jnt_limited[joint.id] else []
            for low, high in [*ranges.get(name, []), *own]:
                problem = f"{name} starts from {least:g} to {most:g} (expected within its limits, {low:g} to {high:g})"
                model.require(low <= least and most <= high, path, problem)

        def set_start(value: FloatArray) -> None:
            qpos[places] = base + value

        return set_start

    def _scale_setter(self, key: str, names: Sequence[str], path: str) -> Setter:
        """Return the setter that scales fields of the model, from their compiled values."""
        mj = self._model.mj
        rows_of = [self._rows_of(key, name, path) for name in names]
        rows, owner = np.concatenate(rows_of), np.repeat(np.arange(len(names)), [len(each) for each in rows_of])
        arrays = [getattr(mj, field) for field in _SCALED[key]]
        compiled = [array[rows].copy() for array in arrays]
        for name, each in zip(names, rows_of, strict=True):
            problem = f"the {key} of {name!r} is 0 in the model (expected a value to scale); remove it"
            self._model.require(bool(arrays[0][each].any()), path, problem)
            for row in each:
                self._claim(key, row, name, path)

        def scale(value: FloatArray) -> None:
            factors = np.broadcast_to(value, len(names))[owner]
            for array, nominal in zip(arrays, compiled, strict=True):
                array[rows] = (nominal.T * factors).T

        return scale

    def _rows_of(self, key: str, name: str, path: str) -> list[int]:
        model, mj, mujoco = self._model, self._model.mj, self._model.mujoco
        if key == "mass":
            return [model.find("body", name, path)]
        if key == "friction":
            body = mujoco.mj_name2id(mj, mujoco.mjtObj.mjOBJ_BODY, name)
            if body < 0 or mujoco.mj_name2id(mj, mujoco.mjtObj.mjOBJ_GEOM, name) >= 0:
                return [model.find("geom", name, path)]
            return list(range(mj.body_geomadr[body], mj.body_geomadr[body] + mj.body_geomnum[body]))
        joint = model.find("joint", name, path)
        if key == "damping":
            return [dof for dof in range(mj.nv) if mj.dof_jntid[dof] == joint]
        rows = actuators_of(mujoco, mj, joint)
        model.require(len(rows) > 0, path, f"no actuator of the joint {name!r} (expected a driven joint)")
        linear = (int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtGain.mjGAIN_AFFINE))
        problem = f"wrong actuator of the joint {name!r} (expected gaintype fixed or affine)"
        model.require(all(mj.actuator_gaintype[i] in linear for i in rows), path, problem)
        return rows
