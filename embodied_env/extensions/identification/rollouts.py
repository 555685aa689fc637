"""Roll out recorded commands in the model with given parameters, all segments at once."""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.actuator_response import CommandTrajectory, Move, command_trajectory
from embodied_env.extensions.identification.recorded_motion import MotionSegment
from embodied_env.record.step_values import commanded_joints
from embodied_env.sim.actuators import Actuation, resolve_timing
from embodied_env.sim.identified_parameters import CONSTANT_FIELDS, FIELDS, Kind, parameter_name
from embodied_env.sim.world_model import WorldModel
from embodied_env.sim.world_profile import WorldProfile

_DEFLECTION = 0.01  # rad, m, rad/s or m/s


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter to fit, of joints of the contract or bodies of the model that share it.

    The value is from `low` to `high`; before the runs are known its standard deviation about the value of the model is
    `prior`. None: wide ones, by the scale of the parameter.
    """

    kind: Kind
    of: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    prior: float | None = None

    @property
    def name(self) -> str:
        """The name in messages and tables."""
        return parameter_name(self.kind, self.of)


class Rollouts:
    """Simulates segments of runs, each from its measured start.

    Commands act as in `World`: after the delay, along a line of one control period, through the servos of the model.

    Each reading of the segments has its joint (`joints`), its segment (`owners`) and its time after the first command.
    """

    def __init__(
        self,
        contract: Contract,
        profile: WorldProfile,
        path: str,
        segments: Sequence[MotionSegment],
        parameters: Sequence[Parameter],
    ) -> None:
        """Prepare the model, or raise ContractError like `WorldModel` and for names that it lacks."""
        self._model = model = WorldModel(contract, profile, path)
        self._own = copy.copy(model)
        self._own.mj = copy.copy(model.mj)
        self._segments, self._joints = segments, commanded_joints(contract)
        self._actuation, self._timing, self._data = Actuation(model), resolve_timing(model, None), model.new_data()
        self.period_s = contract.control_period_s
        of_model = [each for each in parameters if each.kind in FIELDS]
        self._setters = [self._own.parameter(each.kind, each.of, path) for each in of_model]
        self._in_model = np.array([each.kind in FIELDS for each in parameters], dtype=np.bool_)
        self._has_constants = any(not CONSTANT_FIELDS.isdisjoint(FIELDS[each.kind]) for each in of_model)
        self.values = np.zeros(len(parameters))  # of the model
        self.values[self._in_model] = [setter.value for setter in self._setters]
        self.scales = np.array([self._scale(*each, path) for each in zip(parameters, self.values, strict=True)])
        names = [(joint.name, path) for joint in self._joints if joint.sensor]
        qpos, qvel = model.joint_addresses(names)
        measured = [index for index, joint in enumerate(self._joints) if joint.sensor]
        self._places = {index: (int(qpos[i]), int(qvel[i])) for i, index in enumerate(measured)}
        module = importlib.import_module("mujoco.batch")
        self._batch, self._error = module.Batch(model.mj, len(segments), os.cpu_count() or 1), module.SimulationError
        self._start_states = np.array([self._start(segment) for segment in segments])
        tick_ns, count = self._timing.tick_ns, len(segments[0].commands)
        self._is_even = all(at == k * tick_ns for each in segments for k, (at, _) in enumerate(each.commands))
        self._trajectories = [self._trajectories_of(segment) for segment in segments]
        self._timestep_s, self._ctrl = float(model.mj.opt.timestep), self._data.ctrl.copy()
        self._n_steps = count * self._timing.substeps
        self.owners = np.repeat(np.arange(len(segments)), [len(segment.values) for segment in segments])
        self.joints = np.array([joint for segment in segments for joint in segment.joints], dtype=np.intp)
        self.readings = np.array([value for segment in segments for value in segment.values])
        self.times_s = np.array([at_ns for segment in segments for at_ns in segment.read_ns]) / 1e9
        at = np.clip(self.times_s / self._timestep_s, 0.0, self._n_steps)
        self._step = np.minimum(at.astype(np.intp), self._n_steps - 1)
        self._part = at - self._step

    def commands_of(self, segment: int, joint: int) -> tuple[FloatArray, FloatArray]:
        """Return the times, s, and the commands of a joint in a segment."""
        commands = self._segments[segment].commands
        return np.array([at_ns for at_ns, _ in commands]) / 1e9, np.array([values[joint] for _, values in commands])

    def _scale(self, parameter: Parameter, value: float, path: str) -> float:
        """Return the joint's inertia, the force at `_DEFLECTION`, or half the critical damping."""
        if parameter.kind == "command_delay":
            return self._model.contract.control_period_s
        if parameter.kind in ("gain", "mass"):
            return value
        servo = self._model.parameter("gain", parameter.of, path)
        inertia = float(self._model.mj.dof_M0[self._own.parameter("damping", parameter.of, path).rows].mean())
        scales = {"friction_loss": servo.value * _DEFLECTION, "damping": float(np.sqrt(servo.value * inertia))}
        return scales.get(parameter.kind, inertia)

    def _start(self, segment: MotionSegment) -> FloatArray:
        mujoco, data, kinds = self._model.mujoco, self._data, int(self._model.mujoco.mjtState.mjSTATE_INTEGRATION)
        self._model.reset(data)
        for index, (qpos, qvel) in self._places.items():
            value, velocity = segment.start[:, index].tolist()
            is_position = self._joints[index].quantity == "position"
            if is_position and np.isfinite(value):
                data.qpos[qpos] = value
            data.qvel[qvel] = np.nan_to_num(velocity if is_position else value)
        self._actuation.begin(data)
        state = np.empty(mujoco.mj_stateSize(self._model.mj, kinds))
        mujoco.mj_getState(self._model.mj, data, state, kinds)
        return state

    def _trajectories_of(self, segment: MotionSegment) -> list[CommandTrajectory]:
        """Return the setpoints of each joint as lines, or as steps for velocities."""
        is_velocity = self._actuation.is_velocity
        start = np.where(is_velocity, 0.0, np.nan_to_num(segment.start[0]))
        rows = [np.where(np.isnan(segment.before), start, segment.before)]
        for _, values in segment.commands:
            rows.append(self._actuation.limited(values, rows[-1]))
        times_s = np.array([-1e9 * self.period_s, *(at_ns for at_ns, _ in segment.commands)]) / 1e9
        nothing, commands = np.empty(0), np.array(rows)
        return [
            command_trajectory(
                Move(joint=joint.name, commanded_s=times_s, commands=values, read_s=nothing, readings=nothing),
                self.period_s,
                "step" if by_velocity else "line",
            )
            for joint, values, by_velocity in zip(self._joints, commands.T, is_velocity.tolist(), strict=True)
        ]

    def _controls(self, delay_s: float | None) -> FloatArray:
        """Return the controls of all segments, shape (n_segments, n_steps, nu).

        As in `SetpointInterpolator`, a physics step has the position at its start, and the mean velocity over it. In a
        world without a delay (None) it has the position at its end.
        """
        begins_s: FloatArray = self._timestep_s * np.arange(self._n_steps, dtype=np.float64) - (delay_s or 0.0)
        setpoints = np.empty((len(self._segments), self._n_steps, len(self._joints)))
        for row, trajectories in zip(setpoints, self._trajectories, strict=True):
            for joint, each in enumerate(trajectories):
                if self._actuation.is_velocity[joint]:
                    own = each.averaged(begins_s + 0.5 * self._timestep_s)
                else:
                    own = each.at(begins_s + (self._timestep_s if delay_s is None else 0.0))
                row[:, joint] = each.first + own
        controls = np.broadcast_to(self._ctrl, (*setpoints.shape[:2], len(self._ctrl))).copy()
        controls[..., self._actuation.places] = self._actuation.controls(setpoints)
        return controls

    def simulate(self, values: FloatArray) -> FloatArray:
        """Return what the readings would be with these parameters, shape (n_readings,)."""
        for setter, value in zip(self._setters, values[self._in_model].tolist(), strict=True):
            setter.set(value)
        if self._has_constants:
            self._own.update_constants(self._data)
        delays = values[~self._in_model].tolist()
        delay_s = delays[0] if delays else None if self._is_even else 0.0
        batch = self._batch
        batch.set_models(self._own.mj)
        batch.state[:] = self._start_states
        starts = {name: batch.bind(name).copy() for name in ("qpos", "qvel")}
        controls, kinds = self._controls(delay_s), int(self._model.mujoco.mjtState.mjSTATE_CTRL)
        shape = len(self._segments), self._n_steps
        out = {"qpos": np.zeros((*shape, self._model.mj.nq)), "qvel": np.zeros((*shape, self._model.mj.nv))}
        with suppress(self._error):  # values far from the true ones may be unstable
            batch.rollout(self._n_steps, controls, kinds, record=tuple(out), out=out)
        simulated = np.zeros(len(self.readings))
        for index, (qpos, qvel) in self._places.items():
            field, place = ("qpos", qpos) if self._joints[index].quantity == "position" else ("qvel", qvel)
            own = self.joints == index
            ways = np.concatenate([starts[field][:, place, np.newaxis], out[field][..., place]], axis=1)
            rows, step, part = self.owners[own], self._step[own], self._part[own]
            simulated[own] = (1.0 - part) * ways[rows, step] + part * ways[rows, step + 1]
        return np.nan_to_num(simulated)
