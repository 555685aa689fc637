"""Convert commands to a MuJoCo model's controls, also delayed or interpolated."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import ActuatorSpec, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import UsageError
from embodied_env.sim.servos import SITE_AXES
from embodied_env.sim.simulated_delays import DelayedWorld, TimedQueue
from embodied_env.sim.world_model import MjData, WorldModel
from embodied_env.sim.world_profile import EmulatorSpec

_TICKS_PER_PERIOD = 5  # ticks of a free-running world, approximately
_NOTHING = 1e-9  # of a physics step: less than a ns


class Actuation:
    """Applies the flat command of all actuators, in lockstep.

    Positions are reached along a straight line, one control period after the command, and then held. Velocities act
    at once, until the next command. Each command leads the gripper of an action server by one control period of its
    velocity towards the goal.

    Attributes:
        joints: the names of the commanded joints and axes, in the order of the flat command.
        is_velocity: the mask of velocities, shape (n_joints,).
        places: the indices of the controls in the model.
    """

    def __init__(self, model: WorldModel) -> None:
        """Resolve servos and drives, or raise ContractError for missing or unsuitable ones."""
        contract = model.contract
        layout = ActionLayout(contract)
        self.joints = layout.joints
        self.is_velocity = layout.is_velocity
        twists = [name for name, actuator in contract.actuators.items() if actuator.command == "twist"]
        for key in ("drives", "site_drives"):
            for name in getattr(model.profile, key):
                problem = f"no such actuator with twist commands: {one_of(name, twists)}"
                model.require(name in twists, f"{model.path}.{key}.{name}", problem)
        controls: list[int] = []
        rows: list[FloatArray] = []
        for name, actuator in contract.actuators.items():
            if name in twists:
                indices, block = _drive(name, actuator, model)
            else:
                path, is_velocity = f"actuators.{name}.joints", actuator.is_velocity
                indices = [model.servo(joint, f"{path}.{joint}", velocity=is_velocity) for joint in actuator.joints]
                block = np.eye(len(indices))
            servos = {finger: model.finger(finger) for finger in actuator.mimic}
            driven = [finger for finger, servo in servos.items() if servo >= 0]
            indices = [*indices, *(servos[finger] for finger in driven)]
            block = np.vstack([block, *([[actuator.mimic[finger]]] for finger in driven)])
            controls += indices
            is_once = len(set(controls)) == len(controls)
            model.require(is_once, f"actuators.{name}", "another actuator drives one of its joints already")
            whole = np.zeros((len(indices), layout.size))
            whole[:, layout.slices[name]] = block
            rows += list(whole)
        states = model.mj.actuator_actadr[controls]
        self._filtered = states >= 0
        self._states = states[self._filtered]
        places = model.mj.actuator_ctrladr[controls].tolist()
        self.places: slice | NDArray[np.intp] = np.array(places, dtype=np.intp)
        if places == list(range(places[0], places[0] + len(places))):
            self.places = slice(places[0], places[0] + len(places))  # faster to assign to
        mix = np.array(rows)
        self._mix = None if np.array_equal(mix, np.eye(layout.size)) else mix
        self._is_position = ~self.is_velocity
        self._all_by_position = bool(self._is_position.all())
        self._parts = np.empty((0, 1))
        positions = zip(self.joints, self._is_position, strict=True)
        self._qpos, _ = model.joint_addresses((joint, "actuators") for joint, is_position in positions if is_position)
        self._sent = self._target = np.zeros(layout.size)
        speeds = [limits.fastest for actuator in contract.actuators.values() for limits in actuator.joints.values()]
        self._stride = np.where(layout.is_goal, speeds, np.inf) * contract.control_period_s
        self._has_goals = bool(layout.is_goal.any())

    def begin(self, data: MjData) -> None:
        """Hold the current joint positions, at rest."""
        self._target = self._sent = self.positions(data)
        data.ctrl[self.places] = controls = self.controls(self._sent)
        data.act[self._states] = controls[self._filtered]  # of servos with a time constant

    def positions(self, data: MjData) -> FloatArray:
        """Return the joint positions, shape (n_joints,), 0 for joints commanded by velocity."""
        positions = np.zeros(len(self.joints))
        positions[self._is_position] = data.qpos[self._qpos]
        return positions

    def command(self, values: FloatArray) -> None:
        """Take the next command, or raise UsageError for another shape."""
        target = np.array(values, dtype=np.float64)
        if target.shape != self._sent.shape:
            self.checked(values)  # raises the error, and is not called otherwise
        self._target = self.limited(target, self._target) if self._has_goals else target

    def follow(self, target: FloatArray) -> None:
        """Set `target`, which is never written, as the active command that has been reached."""
        self._sent = self._target = target

    def limited(self, values: FloatArray, before: FloatArray) -> FloatArray:
        """Return commands after `before`, with grippers of action servers led to their goals."""
        return np.clip(values, before - self._stride, before + self._stride) if self._has_goals else values

    def checked(self, values: FloatArray) -> FloatArray:
        """Return a copy of a command, or raise UsageError for another shape."""
        target = np.array(values, dtype=np.float64)
        if target.shape != self._sent.shape:
            expected = f"{self._sent.shape}: {', '.join(self.joints)}"
            raise UsageError(f"wrong shape of a command: {target.shape} (expected {expected})")
        return target

    @property
    def target(self) -> FloatArray:
        """The active command, shape (n_joints,), as a new array."""
        return self._target.copy()

    def path(self, substeps: int) -> FloatArray:
        """Return the controls of each physics step of a period, shape (substeps, n_controls)."""
        start, self._sent = self._sent, self._target
        return self.between(start, self._target, substeps)

    def between(self, sent: FloatArray, target: FloatArray, substeps: int) -> FloatArray:
        """Return the controls from one command to the next, shape (..., substeps, n_controls)."""
        if len(self._parts) != substeps:
            self._parts = np.arange(1, substeps + 1)[:, np.newaxis] / substeps
        start = sent if self._all_by_position else np.where(self.is_velocity, target, sent)
        if target.ndim > 1:
            start, target = start[..., np.newaxis, :], target[..., np.newaxis, :]
        setpoints: FloatArray = start + self._parts * (target - start)
        return setpoints if self._mix is None else self.controls(setpoints)

    def controls(self, setpoints: FloatArray) -> FloatArray:
        """Return the controls for setpoints of the joints, shape (..., n_joints)."""
        if self._mix is None:
            return setpoints
        controls = setpoints[..., :1] * self._mix[:, 0]
        for joint in range(1, len(self.joints)):  # the same sum for any number of rows
            controls = controls + setpoints[..., joint : joint + 1] * self._mix[:, joint]
        return controls


class SetpointInterpolator:
    """Setpoints of a world in which commands may arrive at any time, not only at physics steps.

    Positions are reached along a straight line, `period_steps` after the command, or at once with 0; velocities act at
    once. Servos follow with an exact first-order lag. Times are in physics steps.

    MuJoCo integrates semi-implicitly, so a step gets the position at its start, and the mean velocity over it.
    """

    def __init__(self, is_velocity: NDArray[np.bool_], *, period_steps: float, lag_steps: float = 0.0) -> None:
        """Command joints by a velocity mask, shape (n_joints,), with a time constant `lag_steps`."""
        self._is_velocity, self._period, self._lag = is_velocity, float(period_steps), lag_steps
        self.begin(np.zeros(len(is_velocity)))

    def begin(self, values: FloatArray) -> None:
        """Rest at `values`, shape (n_joints,)."""
        self._start = self._target = self._lagging = values
        self._done = 0.0  # steps since the command

    def command(self, values: FloatArray, *, done: float = 1.0) -> None:
        """Accept a command issued `done` steps ago, which is 1 in lockstep."""
        self._done -= done
        position = self._position() if self._done < self._period else self._target
        self._start = np.where(self._is_velocity, values, position)
        self._target = values
        self._done = done

    def advance(self, commands: Sequence[tuple[float, FloatArray]] = ()) -> FloatArray:
        """Advance a step with commands at fractions of it, and return setpoints, shape (n_joints,)."""
        begin = self._lagging if self._lag else self._position()
        area, at = np.zeros_like(begin), 0.0
        for after, values in commands:
            area = area + self._integrate(after - at)
            self.command(values, done=0.0)
            at = after
        return np.where(self._is_velocity, area + self._integrate(1.0 - at), begin)

    def _position(self) -> FloatArray:
        if self._done > self._period or not self._period:
            return self._target
        return self._start + self._done / self._period * (self._target - self._start)

    def _integrate(self, steps: float) -> FloatArray:
        """Advance by `steps` without a command and return the integral of the setpoints."""
        to_corner = self._period - self._done
        if 0.0 < to_corner < steps:
            return self._integrate_line(to_corner) + self._integrate_line(steps - to_corner)
        return self._integrate_line(steps)

    def _integrate_line(self, steps: float) -> FloatArray:
        before = self._position()
        self._done += steps
        after = self._position()
        area = steps * (before + after) / 2.0
        if not self._lag or steps < _NOTHING:
            return area
        steady = self._lag / steps * (after - before)  # the steady-state error of the lag
        lagging = self._lagging
        self._lagging = after - steady + (lagging - before + steady) * math.exp(-steps / self._lag)
        return area - self._lag * (self._lagging - lagging)


def _drive(name: str, actuator: ActuatorSpec, model: WorldModel) -> tuple[list[int], FloatArray]:
    """Return the servos of a base, and the matrix from a twist to their controls.

    Wheels turn at (v -+ w separation / 2) / radius, rad/s. The servos of a site take the twist itself.
    """
    path, axes = f"{model.path}.drives", list(actuator.joints)
    drive, at_site = model.profile.drives.get(name), model.profile.site_drives.get(name)
    if (drive is None) == (at_site is None):
        found = "no drive" if drive is None else "two drives"
        expected = f"drives: {{{name}: {{left, right, radius_m, separation_m}}}}, or site_drives: {{{name}: {{site}}}}"
        raise model.error(path, f"{found} for the twist of {name!r} (expected one: {expected})")
    if drive is None:
        problem = f"wrong axes of a base: {axes} (expected some of: {', '.join(SITE_AXES)})"
        model.require(set(axes) <= SITE_AXES.keys(), f"actuators.{name}.joints", problem)
        return [model.find("actuator", f"{name}.{axis}", path) for axis in axes], np.eye(len(axes))
    problem = f"wrong axes of a differential drive: {axes} (expected linear.x and angular.z)"
    remedy = f"; for a base that moves sideways use {model.path}.site_drives"
    model.require(set(axes) == {"linear.x", "angular.z"}, f"actuators.{name}.joints", problem + remedy)
    wheels = [model.servo(getattr(drive, side), f"{path}.{name}.{side}", velocity=True) for side in ("left", "right")]
    by_axis = {
        "linear.x": np.array([1.0, 1.0]) / drive.radius_m,
        "angular.z": np.array([-0.5, 0.5]) * drive.separation_m / drive.radius_m,
    }
    return wheels, np.stack([by_axis[axis] for axis in axes], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """A step is a control period in lockstep, and a tick of a free-running world."""

    tick_ns: int  # the duration of a step
    substeps: int  # number of physics steps in it
    period_substeps: int  # number of physics steps in a control period


def resolve_timing(model: WorldModel, emulator: EmulatorSpec | None) -> StepTiming:
    """Return the timing of a world, free-running with `emulator`.

    Raises ContractError for times that are not whole physics steps.
    """
    contract = model.contract
    substeps = period_substeps = _whole_substeps(model, contract.control_period_s, "control_period_s")
    if emulator is not None:
        substeps = max(1, round(period_substeps / _TICKS_PER_PERIOD))
        if emulator.tick_s is not None:
            substeps = _whole_substeps(model, emulator.tick_s, f"{model.path}.emulator.tick_s")
    tick_ns = contract.control_period_ns * substeps // period_substeps
    return StepTiming(tick_ns=tick_ns, substeps=substeps, period_substeps=period_substeps)


def _whole_substeps(model: WorldModel, duration_s: float, path: str) -> int:
    timestep_s = float(model.mj.opt.timestep)
    substeps = round(duration_s / timestep_s)
    if substeps < 1 or not math.isclose(substeps * timestep_s, duration_s):
        problem = f"{duration_s} s (expected a whole number of timesteps of the model, {timestep_s} s)"
        raise model.error(path, problem)
    return substeps


PathState: TypeAlias = tuple[SetpointInterpolator, TimedQueue[FloatArray]]


class CommandPath:
    """Converts commands to the controls of each physics step."""

    def __init__(
        self,
        model: WorldModel,
        actuation: Actuation,
        timing: StepTiming,
        emulator: EmulatorSpec | None,
        delayed: DelayedWorld | None,
    ) -> None:
        """Prepare with `delayed`, by default commands reached in one control period."""
        self._actuation, self._timing, self._delayed = actuation, timing, delayed
        period_steps, lag_steps = float(timing.period_substeps), 0.0
        if emulator is not None:
            timestep_s, period_s = float(model.mj.opt.timestep), emulator.interpolation_s
            setpoint_steps = period_steps / model.contract.setpoints_per_step
            period_steps = setpoint_steps if period_s is None else period_s / timestep_s
            lag_steps = emulator.servo_lag_s / timestep_s
        self._interpolator = SetpointInterpolator(actuation.is_velocity, period_steps=period_steps, lag_steps=lag_steps)
        self._late_commands: TimedQueue[FloatArray] = TimedQueue()

    def begin(self) -> None:
        """Rest at the target of the actuation, without pending commands."""
        self._late_commands.clear()
        self._interpolator.begin(self._actuation.target)

    def save(self) -> PathState:
        """Return the state, which later steps do not change."""
        return copy(self._interpolator), copy(self._late_commands)

    def load(self, state: PathState) -> None:
        """Continue from a saved state."""
        self._interpolator, self._late_commands = copy(state[0]), copy(state[1])

    def command(self, values: FloatArray, now_ns: int, delay_ns: int | None) -> None:
        """Accept a command, which acts after the injected delay or `delay_ns`, at once if None."""
        if self._delayed is not None:
            self._delayed.command(self._actuation.checked(values))
        elif delay_ns is not None:
            self._late_commands.put(now_ns + delay_ns, self._actuation.checked(values))
        else:
            self._actuation.command(values)
            self._interpolator.command(self._actuation.target)

    def controls(self, commands: Sequence[tuple[int, FloatArray]], now_ns: int, *, is_delayed: bool) -> FloatArray:
        """Apply a step's commands and return its controls, shape (n_substeps, n_controls)."""
        tick_ns, substeps = self._timing.tick_ns, self._timing.substeps
        if self._delayed is not None:
            commands = self._delayed.next_step(now_ns, now_ns + tick_ns)
        elif is_delayed:
            commands = [*commands, *self._late_commands.take_within(now_ns, now_ns + tick_ns)]
        rows = []
        waiting = deque((after_ns * substeps / tick_ns, values) for after_ns, values in commands)
        for substep in range(substeps):
            within = []
            while waiting and (waiting[0][0] < substep + 1 or substep + 1 == substeps):
                after, values = waiting.popleft()
                self._actuation.command(values)
                within.append((min(1.0, after - substep), self._actuation.target))
            rows.append(self._actuation.controls(self._interpolator.advance(within)))
        return np.array(rows)
