"""A MuJoCo world built from a contract alone: it draws, takes commands, steps control periods, and senses.

Its time only grows: a reset takes one control period of it too, so the readings after a reset are newer than it.
Equal seeds and commands give equal bytes, whatever ran in the same world before.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray, SensorSpec
from embodied_env.core.latency.delay_model import DelayModel
from embodied_env.errors import BackendLostError, ResetNeededError
from embodied_env.sim.actuators import Actuation
from embodied_env.sim.async_rendering import AsyncCameras
from embodied_env.sim.delayed_world import delayed_world
from embodied_env.sim.model import Model
from embodied_env.sim.moving_bodies import MovingBody, place_body, placeable
from embodied_env.sim.profile import Driver, Source, StandIn, WorldProfile, load_profile
from embodied_env.sim.randomization import ResetRandomizer
from embodied_env.sim.rendering import Renderer, Viewer
from embodied_env.sim.sensor_channel import Reading, SensorChannel
from embodied_env.sim.sensors import SensorModels, SensorOutput, Values
from embodied_env.sim.setpoint_interpolation import SetpointInterpolator

__all__ = ["World", "WorldProfile", "load_profile"]

_TICKS_PER_PERIOD = 5  # about as often does a free-running world show itself

_MAX_TICKS_NS = 1e9 * (1.0 + 1e-9)  # of a rate times a tick

_NEVER_NS = 2**63

_UNSTABLE = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC", "mjWARN_BADCTRL")


class World:
    """One simulated robot and its surroundings.

    Attributes:
        joints: the names of what is commanded, in the order of the flat action.
        now_ns: the world's time; it never goes back.
        tick_ns: how far a step goes.
    """

    def __init__(
        self,
        contract: Contract,
        profile: WorldProfile,
        *,
        path: str = "backends.mujoco",
        free_running: bool = False,
        delays: DelayModel | None = None,
    ) -> None:
        """Compile the model and resolve every name.

        Args:
            contract: what the world must offer.
            profile: which model, and what its names mean to the contract.
            path: where `profile` stands in the contract, for the messages.
            free_running: a step is not a control period but a tick: about a fifth of it, or the profile's
                ``stand_in.tick_s``, a whole number of physics steps. A sensor without a rate is due at every tick.
                Pictures are not waited for but at a reset: they are as late as rendering them takes.
            delays: are put in (`sim.delayed_world`), in lockstep alone. A sensor that they name has neither
                delay nor drop-outs of its own.

        Raises:
            UsageError: for delays in a world that does not wait, or of other sensors.
            ContractError: for a name, a shape or a period that model, profile and contract do not agree on.
            MissingDependencyError: when MuJoCo is not installed.
        """
        self._contract = contract
        self._profile = profile
        self._model = model = Model(contract, profile, path)
        self._data = model.new_data()
        self._renderer = Renderer(model.mujoco, model.mj)
        self._viewer: Viewer | None = None
        self._senses = SensorModels(contract, profile, model, self._data, self._renderer)
        self._period_substeps = self._substeps = self._whole_substeps()
        self.tick_ns = contract.control_period_ns
        stand_in = profile.stand_in if free_running else StandIn()
        if free_running:
            self._substeps = self._tick_substeps(stand_in)
            self.tick_ns = contract.control_period_ns * self._substeps // self._period_substeps
        self._film: AsyncCameras | None = None
        if free_running and any(source.camera for source in profile.sources.values()):
            self._film = AsyncCameras(contract, profile, model)
        self._delayed = None if delays is None else delayed_world(contract, delays, free_running=free_running)
        late = () if self._delayed is None else self._delayed.sensors
        self._channels = {
            name: SensorChannel(
                name,
                self._rated(name, stand_in),
                profile.sources.get(name, Source()),
                self.tick_ns,
                stamps_receipt=False if name in late else None,
            )
            for name in contract.sensors
        }
        self._timed = {name: channel for name, channel in self._channels.items() if name not in late}
        self._actuation = Actuation(contract, profile, model)
        self._set_points: SetpointInterpolator | None = None
        if free_running or self._delayed is not None:
            lag_steps = stand_in.servo_lag_s / float(model.mj.opt.timestep)
            is_velocity, period_steps = self._actuation.is_velocity, self._period_substeps
            self._set_points = SetpointInterpolator(is_velocity, period_steps=period_steps, lag_steps=lag_steps)
        self.joints = self._actuation.joints
        self._movers = {
            name: MovingBody(mover, model.mocap(mover.mocap, f"{path}.movers.{name}.mocap"))
            for name, mover in profile.movers.items()
        }
        self._draws = ResetRandomizer(contract, profile, model, self._data, self._movers)
        self._camera = 0
        if profile.render.camera is not None:
            self._camera = model.find("camera", profile.render.camera, f"{path}.render.camera")
        self._is_undisturbed = self._delayed is None and not self._movers and not self._senses.watches
        self._warned = self._data.warning.number  # how often, by warning: a view, and dear to ask for
        self._warnings = [int(getattr(model.mujoco.mjtWarning, name)) for name in _UNSTABLE]
        self.now_ns = 0
        self._origin_ns = 0
        self._is_reset = False

    def reset(self, seed: int, options: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Start an episode at the keyframe, at rest. Every sensor has a reading at once.

        Args:
            seed: what is drawn depends on it alone. Every option is drawn, so setting one does not shift another.
            options: values to take instead of the drawn ones, by reset option.

        Returns:
            What was drawn or set, by reset option.

        Raises:
            UsageError: for an option that the contract does not have, a value that is not finite or of another shape.
            BackendLostError: when the simulation is unstable.
            MissingDependencyError: when a camera needs a renderer and there is none.
        """
        drawn = self._draws.sample(seed, options)
        self._is_reset = False
        self._model.reset(self._data)
        self._draws.apply(drawn)
        self._move_bodies(0.0)
        self._actuation.begin(self._data)
        if self._set_points is not None:
            self._set_points.begin(self._actuation.target)
        self._forward()
        self._check_stable()
        self.now_ns += self._contract.control_period_ns
        self._origin_ns = self.now_ns
        self._senses.begin(seed)
        if self._film is not None:
            self._film.begin()
        for name, channel in self._channels.items():
            channel.begin(seed, self.now_ns, self._first(name))
        if self._delayed is not None:
            self._delayed.begin(seed, self.now_ns)
        self._is_reset = True
        return drawn

    def command(self, values: FloatArray) -> None:
        """Set the positions to be reached one control period from now, or velocities that act from now on.

        In steps, as in lockstep: the next physics step leads to where the way is at its end. With delays it is so much
        later. Shape (n_joints,), in joint units. Raises UsageError for another shape.
        """
        if self._delayed is not None:
            self._delayed.command(self._actuation.checked(values))
            return
        self._actuation.command(values)
        if self._set_points is not None:
            self._set_points.command(self._actuation.target)

    @property
    def target(self) -> FloatArray:
        """The command in force, shape (n_joints,): after a reset the positions of the joints, and no velocity."""
        return self._actuation.target

    @property
    def is_velocity(self) -> NDArray[np.bool_]:
        """Which parts of a command are velocities, shape (n_joints,)."""
        return self._actuation.is_velocity

    def step(self, commands: Sequence[tuple[int, FloatArray]] = ()) -> None:
        """Move by exactly one control period, or one tick.

        Args:
            commands: those that come into force within a tick: ns after its begin, in order, and the values. Each
                acts from then on, to the ns.

        Raises:
            ResetNeededError: before the first reset, or after one that failed.
            BackendLostError: when the simulation is unstable.
        """
        if not self._is_reset:
            raise ResetNeededError("step() of a world that is not reset: call reset() first")
        if self._delayed is not None:
            commands = self._delayed.next_step(self.now_ns, self.now_ns + self.tick_ns)
        self.now_ns = now_ns = self._physics(commands)
        for name, taken_ns, measured in () if self._film is None else self._film.finished():
            self._channels[name].send(taken_ns, measured)
        for channel in self._channels.values():
            channel.deliver(now_ns)

    def _physics(self, commands: Sequence[tuple[int, FloatArray]]) -> int:
        """Take the physics steps of a step, and the readings that are due on the way; return when it is then, ns."""
        start_ns = now_ns = checked_ns = self.now_ns
        due_ns = self._next_due_ns()
        if self._is_undisturbed and due_ns >= start_ns + self.tick_ns:
            return self._step_without_events(commands, due_ns)
        mj_step, mj, data, apply = self._model.mujoco.mj_step, self._model.mj, self._data, self._actuation.apply
        tick_ns, substeps, watches = self.tick_ns, self._substeps, self._senses.watches
        for substep, controls in enumerate(self._controls(commands), start=1):
            next_ns = start_ns + tick_ns * substep // substeps
            if self._delayed is not None:
                self._take_delayed(next_ns)
            now_ns = next_ns
            apply(data, controls)
            if self._movers:
                self._move_bodies((now_ns - self._origin_ns) / 1e9)
            mj_step(mj, data)
            if watches:
                self._senses.update_contacts()
            if now_ns >= due_ns:
                self._capture(now_ns)
                due_ns, checked_ns = self._next_due_ns(), now_ns
        if checked_ns < now_ns:
            self._check_stable()
        if self._delayed is not None:
            self._take_delayed(now_ns + 1)
        return now_ns

    def _step_without_events(self, commands: Sequence[tuple[int, FloatArray]], due_ns: int) -> int:
        """Do what `_physics` does where nothing can happen between two physics steps: nothing is looked for then."""
        mj_step, mj, data = self._model.mujoco.mj_step, self._model.mj, self._data
        driven, places = data.ctrl, self._actuation.places
        for controls in self._controls(commands):
            driven[places] = controls
            mj_step(mj, data)
        now_ns = self.now_ns + self.tick_ns
        if now_ns >= due_ns:
            self._capture(now_ns)
        else:
            self._check_stable()
        return now_ns

    @property
    def placeable(self) -> tuple[str, ...]:
        """The bodies that `place` knows."""
        return placeable(self._model)

    def place(self, name: str, position: FloatArray, orientation: FloatArray) -> None:
        """Put a body somewhere, at rest (`place_body`); sensors show it after the next step."""
        place_body(self._model, self._data, name, position, orientation)

    def sense(self, name: str) -> Values:
        """Return the fields of the sensor `name` as they are now: without delay or noise, due or not. Fresh arrays.

        A pose of odometry is that of its last reading; a contact is one since the last reading.
        """
        self._forward()
        return self._senses.read(name).values

    def read(self) -> dict[str, Reading]:
        """Return the newest reading of every sensor that was delivered. Fresh arrays."""
        newest = ((name, channel.newest) for name, channel in self._channels.items())
        return {name: reading.copy() for name, reading in newest if reading is not None}

    @property
    def renderer_library(self) -> str:
        """Which library renders the cameras: "egl" or "osmesa"; "" where no sensor is a camera."""
        if self._film is not None:
            return self._film.library
        cameras = (source.camera for source in self._profile.sources.values())
        return self._renderer.library if any(cameras) else ""

    def render(self) -> NDArray[np.uint8]:
        """Return a picture of the world as it is now, shape (height, width, 3), by the profile's ``render``."""
        self._forward()
        render = self._profile.render
        return self._renderer.rgb(self._data, self._camera, render.height, render.width)

    def show(self) -> None:
        """Show the world as it is now in a window, which opens at the first call."""
        if self._viewer is None:
            self._viewer = Viewer(self._model.mujoco, self._model.mj)
        self._viewer.show(self._data)

    def close(self) -> None:
        """Free the renderers and the window. Idempotent."""
        self._renderer.close()
        if self._film is not None:
            self._film.close()
        if self._viewer is not None:
            self._viewer.close()

    def _controls(self, commands: Sequence[tuple[int, FloatArray]]) -> Iterable[FloatArray]:
        """Return the controls of each physics step of a step, and take its commands on the way."""
        if self._set_points is None:
            return self._actuation.path(self._substeps)
        return self._setpoints_per_substep(self._set_points, commands)

    def _setpoints_per_substep(
        self, set_points: SetpointInterpolator, commands: Sequence[tuple[int, FloatArray]]
    ) -> Iterator[FloatArray]:
        """Yield the controls of each physics step of a world in which commands may come at any time."""
        waiting = deque((after_ns * self._substeps / self.tick_ns, values) for after_ns, values in commands)
        for substep in range(self._substeps):
            within = []
            while waiting and (waiting[0][0] < substep + 1 or substep + 1 == self._substeps):
                after, values = waiting.popleft()
                self._actuation.command(values)
                within.append((min(1.0, after - substep), self._actuation.target))
            yield self._actuation.controls(set_points.advance(within))

    def _first(self, sensor: str) -> SensorOutput:
        """Return what a sensor measures at a reset: a picture is waited for."""
        if self._film is not None and sensor in self._film.sensors:
            return self._film.capture(sensor, self._data)
        return self._senses.sample(sensor)

    def _next_due_ns(self) -> int:
        return min((channel.due_ns for channel in self._timed.values()), default=_NEVER_NS)

    def _take_delayed(self, before_ns: int) -> None:
        """Take the delayed readings of the time before this that were not taken yet, as everything is now."""
        readings = () if self._delayed is None else list(self._delayed.taken(before_ns))
        if readings:
            self._check_stable()
            self._forward()
        for name, taken_ns, there_ns in readings:
            self._channels[name].schedule(taken_ns, there_ns, self._senses.sample(name))

    def _capture(self, now_ns: int) -> None:
        """Take the readings that are due."""
        self._check_stable()
        self._forward()
        for name, channel in self._timed.items():
            if now_ns < channel.due_ns:
                continue
            if self._film is not None and name in self._film.sensors:
                channel.reserve(now_ns)
                self._film.request(name, now_ns, self._data)
            else:
                channel.capture(now_ns, self._senses.sample(name))

    def _forward(self) -> None:
        """Compute what follows from the state now. This does not change how the world goes on."""
        warm_start = self._data.qacc_warmstart.copy()  # older versions of MuJoCo change it
        self._model.mujoco.mj_forward(self._model.mj, self._data)
        self._data.qacc_warmstart[:] = warm_start

    def _move_bodies(self, time_s: float) -> None:
        for body in self._movers.values():
            body.place(self._data, time_s)

    def _check_stable(self) -> None:
        """Raise when MuJoCo warned of a bad state since the reset: it has then silently reset parts of it."""
        numbers = self._warned.tolist()
        counts = [numbers[warning] for warning in self._warnings]
        if any(counts) or not math.isfinite(sum(self._data.qpos.tolist())):
            bad = ", ".join(name for name, count in zip(_UNSTABLE, counts, strict=True) if count)
            raise BackendLostError(
                "sim_unstable", f"MuJoCo reported {bad or 'a position that is not finite'} at {self.now_ns} ns"
            )

    def _tick_substeps(self, stand_in: StandIn) -> int:
        """Return how many physics steps a tick has."""
        if stand_in.tick_s is None:
            return max(1, round(self._period_substeps / _TICKS_PER_PERIOD))
        timestep_s = float(self._model.mj.opt.timestep)
        substeps = round(stand_in.tick_s / timestep_s)
        if substeps < 1 or not math.isclose(substeps * timestep_s, stand_in.tick_s):
            allowed = f"a whole number of timesteps of the model, {timestep_s} s"
            problem = f"{stand_in.tick_s} is not allowed; allowed: {allowed}"
            raise self._model.error(f"{self._model.path}.stand_in.tick_s", problem)
        return substeps

    def _rated(self, sensor: str, stand_in: StandIn) -> SensorSpec:
        """Return a sensor of the contract with the rate that its driver has."""
        spec, rate_hz = self._contract.sensors[sensor], stand_in.sensors.get(sensor, Driver()).rate_hz
        if rate_hz is None:
            return spec
        if rate_hz * self.tick_ns > _MAX_TICKS_NS:
            path = f"{self._model.path}.stand_in.sensors.{sensor}.rate_hz"
            allowed = f"at most one reading in a tick of {self.tick_ns / 1e9} s, see stand_in.tick_s"
            raise self._model.error(path, f"{rate_hz} is not allowed; allowed: {allowed}")
        return replace(spec, rate_hz=rate_hz)

    def _whole_substeps(self) -> int:
        period_s, timestep_s = self._contract.control_period_s, float(self._model.mj.opt.timestep)
        substeps = round(period_s / timestep_s)
        if substeps < 1 or not math.isclose(substeps * timestep_s, period_s):
            raise self._model.error(
                "control_period_s", f"{period_s} s is not a whole number of timesteps of the model, {timestep_s} s"
            )
        return substeps
