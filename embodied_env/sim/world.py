"""Simulate a contract's robot and world in MuJoCo, with resets, commands and readings.

Its time never decreases. A reset takes one control period, so that the readings after it are newer. Equal seeds and
commands give equal bytes, independent of earlier episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.runtime_values import checked_options
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.types import Sample
from embodied_env.errors import ResetNeededError, UsageError
from embodied_env.sim.actuators import Actuation, CommandPath, PathState, resolve_timing
from embodied_env.sim.physics import Physics
from embodied_env.sim.randomization import MovingBody, ResetRandomizer
from embodied_env.sim.rendering import Renderer, ViewerWindow, render_camera
from embodied_env.sim.sensor_channel import ChannelState, SensorChannel, at_arrival, make_channels
from embodied_env.sim.sensor_reader import AsyncCameras, SimulatedSensorReader
from embodied_env.sim.simulated_delays import DelayedWorld
from embodied_env.sim.world_model import shared_model
from embodied_env.sim.world_profile import WorldProfile
from embodied_env.timing.clock import Clock
from embodied_env.timing.delay_model import DelayModel


@dataclass(frozen=True, kw_only=True)
class WorldState:
    """State of a lockstep world between two steps (`physics` is an ``mjSTATE_INTEGRATION``)."""

    now_ns: int
    origin_ns: int
    drawn: dict[str, FloatArray]
    physics: FloatArray
    target: FloatArray
    channels: Mapping[str, ChannelState]
    sensors: Mapping[str, Any]
    commands: PathState | None


class World:
    """Simulates one robot and its surroundings.

    Attributes:
        model, profile, physics: what the world is made of.
        now_ns: the world's time, which never decreases.
        tick_ns: the duration of a step.
        substeps: the number of physics steps in it.
        substeps_ns: their ends, ns after its start.
        joints: the names of the commanded joints and axes, in the order of the flat action.
        is_velocity: the mask of velocities in a command, shape (n_joints,).
        is_reset: whether an episode has begun.
        can_be_saved: whether `save` returns the whole state: not in real time, with injected delays, sleep or plugins.
        channels: the channels of its sensors. Their `newest` may be older than what `read` returns.
        movers: its moving bodies.
        reads_at_end: whether all readings are taken at the end of a step, of which the rest is physics alone.
        is_ideal: whether each of its sensors is read once, at the end of each step, without delay and errors.
    """

    def __init__(
        self,
        contract: Contract,
        profile: WorldProfile,
        *,
        path: str = "backends.mujoco",
        free_running: bool = False,
        delays: DelayModel | None = None,
        as_messages: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """Compile the model and resolve every name.

        Args:
            contract: the contract of sensors, actuators and reset options.
            profile: the model, and the mapping of its names to the contract.
            path: the path of `profile` in the contract, for errors.
            free_running: a step is a tick, not a control period: about a fifth of it, or the profile's
                ``emulator.tick_s``, a whole number of physics steps. A sensor without a rate is due at every tick.
                Images are rendered in the background, except at a reset, and arrive when they are ready.
            delays: injected delays (`DelayedWorld`), in lockstep only. They replace delay and drop-outs of the
                profile for their sensors.
            as_messages: the readings are published as messages. Samples have the values that are sent, and channels
                the other content of the messages. If False, samples are those that a reader of the messages returns.
            clock: measures `render_ns` (default: the steady clock).

        Raises:
            UsageError: for delays of a free-running world, of other sensors, or that a reset draws too.
            ContractError: for a name, a shape or a period on which model, profile and contract disagree.
            MissingDependencyError: when MuJoCo is not installed.
        """
        self.model = self._model = model = shared_model(contract, profile, path)
        self.profile = profile = model.profile  # shared too
        self._data = model.new_data()
        self._renderer = Renderer(model.mujoco, model.mj, clock)
        self._viewer = ViewerWindow(model.mujoco, model.mj)
        self._sensors = SimulatedSensorReader(model, self._data, self._renderer, whole_messages=as_messages)
        emulator = profile.emulator if free_running else None
        timing = resolve_timing(model, emulator)
        self.tick_ns, self.substeps = timing.tick_ns, timing.substeps
        self.substeps_ns = self.tick_ns * np.arange(1, self.substeps + 1) // self.substeps
        self._cameras = AsyncCameras(model) if free_running and profile.has_cameras else None
        self._delayed = None if delays is None else DelayedWorld(contract, delays, free_running=free_running)
        late = () if self._delayed is None else self._delayed.sensors
        drivers = {} if emulator is None else emulator.sensors
        self.channels = make_channels(model, drivers, self.tick_ns, late=late, as_received=not as_messages)
        self._actuation = Actuation(model)
        self.joints, self.is_velocity = self._actuation.joints, self._actuation.is_velocity
        self._conversion = None if as_messages else ActionLayout(contract).conversion
        self.physics = Physics(model, self._data, self._actuation.places)
        self.movers = {
            name: MovingBody(mover, model.mocap(mover.mocap, f"{path}.movers.{name}.mocap"))
            for name, mover in profile.movers.items()
        }
        self._randomizer = ResetRandomizer(model, self._data, self.movers, self.channels)
        if delays is not None and (drawn := self._randomizer.delays):
            raise UsageError(f"cannot inject delays: {drawn[0]} draws one at each reset; remove one of the two")
        if delays is not None and profile.identified is not None:
            raise UsageError(f"cannot inject delays: {path}.identified contains the robot's; remove one of the two")
        self._path: CommandPath | None = None
        if emulator is not None or self._delayed is not None or self.command_delay_ns is not None:
            self._path = CommandPath(model, self._actuation, timing, emulator, self._delayed)
        self._sort_channels(late)
        self._camera = render_camera(model, f"{path}.render.camera")
        self.now_ns = self._origin_ns = 0
        self._unread = 0  # readings of each ideal sensor
        self.can_be_saved = self._cameras is None and self._delayed is None and model.has_whole_states
        self.is_reset, self._drawn = False, dict[str, FloatArray]()

    def _sort_channels(self, late: tuple[str, ...]) -> None:
        """Sort channels into ideal ones, those by rate, and those `late` by injected delays."""
        ideal = []  # the sensors that have one reading per step, at its end, without delay and errors
        for name, channel in self.channels.items() if self._path is None else ():
            is_ideal = channel.is_ideal(self.tick_ns) and name not in self._randomizer.late_sensors
            if is_ideal and self._sensors.array_readers(name):
                ideal.append(name)
        self._ideal = [(self.channels[name], self._sensors.fields[name], self._sensors.extras[name]) for name in ideal]
        others = {name: channel for name, channel in self.channels.items() if name not in ideal}
        self._delivering = tuple(others.values())  # at the end of each step what has arrived by then
        self._scheduled = {name: channel for name, channel in others.items() if name not in late}
        self.is_ideal = len(ideal) == len(self.channels) > 0
        self.reads_at_end = self._path is None and all(o.is_due_between(self.tick_ns) for o in others.values())

    def reset(self, seed: int, options: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Start an episode at the keyframe, at rest, with a reading of every sensor.

        Args:
            seed: the seed of all samples. Every option is sampled, so setting one does not shift another.
            options: values that replace the sampled ones, by reset option.

        Returns:
            The sampled or set values, by reset option; those of drawn identified parameters as `IDENTIFIED`.

        Raises:
            UsageError: for an unknown option, or a value that cannot be drawn.
            BackendLostError: when the simulation is unstable.
            MissingDependencyError: when a camera needs a renderer and there is none.
        """
        given = checked_options(self._model.contract, options)
        drawn = self._randomizer.draw(seed, given)
        self.is_reset, self._unread, self._drawn = False, 0, {}
        self.physics.edit()
        self._model.reset(self._data)
        self._randomizer.apply(drawn)
        for body in self.movers.values():
            self._data.mocap_pos[body.mocap] = body.positions(np.zeros(1), body.phase)
        self._actuation.begin(self._data)
        if self._path is not None:
            self._path.begin()
        self.physics.begin()
        self.physics.forward()
        self.physics.check_stable()
        self.now_ns += self._model.contract.control_period_ns
        self._origin_ns = self.now_ns
        self._sensors.begin(seed)
        if self._cameras is not None:
            self._cameras.begin()
        for name, channel in self.channels.items():
            if self._cameras is not None and name in self._cameras.sensors:
                first = self._cameras.capture(name, self._data)
            else:
                first = self._sensors.measure(name)
            channel.begin(seed, self.now_ns, first)
        if self._delayed is not None:
            self._delayed.begin(seed, self.now_ns)
        self.is_reset, self._drawn = True, drawn
        return drawn

    def save(self) -> WorldState:
        """Return the state between two steps.

        Raises ResetNeededError, or UsageError unless it `can_be_saved`.
        """
        if not self.is_reset:
            raise ResetNeededError("save() before reset(); call reset() first")
        if not self.can_be_saved:
            raise UsageError(
                "save() not supported in real time, with injected delays, sleeping bodies or MuJoCo plugins"
            )
        self.read()
        return WorldState(
            now_ns=self.now_ns,
            origin_ns=self._origin_ns,
            drawn=self._drawn,
            physics=self.physics.get_state(),
            target=self._actuation.target,
            channels={name: channel.save() for name, channel in self.channels.items()},
            sensors=self._sensors.save(),
            commands=None if self._path is None else self._path.save(),
        )

    def load(self, state: WorldState) -> None:
        """Continue from a saved state of this world, or of another one of its contract."""
        self.read()
        if state.drawn is not self._drawn:
            self._drawn = {}  # until all of it is applied
            self._randomizer.apply(state.drawn)
        self.physics.set_state(state.physics)
        self._actuation.follow(state.target)
        self.now_ns, self._origin_ns, self._drawn = state.now_ns, state.origin_ns, state.drawn
        for name, channel in self.channels.items():
            channel.load(state.channels[name])
        self._sensors.load(state.sensors)
        if self._path is not None and state.commands is not None:
            self._path.load(state.commands)
        self.is_reset = True

    def command(self, values: FloatArray) -> None:
        """Set positions to be reached one control period from now, or velocities from now on.

        Positions lead through intermediate setpoints, starting with the next physics step. Injected and drawn delays
        postpone the command. Shape (n_joints,), in joint units. Raises UsageError for another shape.
        """
        if self._conversion is not None:
            values = self.driven(values)
        if self._path is None:
            self._actuation.command(values)
        else:
            self._path.command(values, self.now_ns, self.command_delay_ns)

    def driven(self, values: FloatArray) -> FloatArray:
        """Return commands, shape (..., n_joints), as read by a driver, unchanged if from messages."""
        return values if self._conversion is None else self._conversion.to_si(self._conversion.to_driver(values))

    @property
    def render_ns(self) -> int:
        """Time that `step`, `read` and `render` spent on images, not in the background."""
        return self._renderer.render_ns

    @property
    def command_delay_ns(self) -> int | None:
        """Drawn or identified time from a command to its effect, or None without one."""
        return self._randomizer.command_delay_ns

    @property
    def target(self) -> FloatArray:
        """Active command, shape (n_joints,), after a reset the positions and zero velocity."""
        return self._actuation.target

    @property
    def positions(self) -> FloatArray:
        """Current positions, shape (n_joints,), 0 for joints and axes commanded by velocity."""
        return self._actuation.positions(self._data)

    def step(self, commands: Sequence[tuple[int, FloatArray]] = ()) -> None:
        """Advance by exactly one control period, or one tick.

        Args:
            commands: those that act during a tick, in order, each as the time in ns after its start and the values.

        Raises:
            ResetNeededError: before the first reset, or after a failed one.
            BackendLostError: when the simulation is unstable.
        """
        if not self.is_reset:
            raise ResetNeededError("step() before reset(); call reset() first")
        if self._path is None:
            controls = self._actuation.path(self.substeps)
        else:
            controls = self._path.controls(commands, self.now_ns, is_delayed=self.command_delay_ns is not None)
        if self.reads_at_end:
            self.physics.step(controls, self._motion() if self.movers else {})
            self.finish_step(self.physics.sensed)
        else:
            self._run_physics(controls)
            for name, taken_ns, output in () if self._cameras is None else self._cameras.finished():
                self.channels[name].send(taken_ns, output)
            for channel in self._delivering:
                channel.deliver(self.now_ns)
            self._unread += 1

    def finish_step(self, sensed: FloatArray) -> None:
        """Take the readings at the end of a step (`reads_at_end`), with `sensed` of `Physics`."""
        self.physics.forward()
        self.now_ns += self.tick_ns
        if self._scheduled:
            self._sensors.update_contacts(sensed)
            self._take_due(self.now_ns)
            for channel in self._delivering:
                channel.deliver(self.now_ns)
        self._unread += 1

    def read(self, arrival_ns: int = 0) -> dict[str, Sample]:
        """Return the newest sample of each sensor, arrived at `arrival_ns` of the steady clock.

        It must be called before anything but a step changes the state, since it reads the ideal sensors.
        """
        readings, now_ns, self._unread = self._unread, self.now_ns, 0
        if readings:
            for channel, fields, read_extras in self._ideal:
                extras, values = read_extras(), {}
                for field, read_field in fields:
                    values[field] = read_field()
                account: dict[str, Any] = {}  # what most samples do not have
                if channel.receiver is not None:
                    values, account = channel.receiver.receive(values, extras)
                channel.extras, channel.available_ns = extras, now_ns
                channel.newest = Sample(
                    sensor=channel.name,
                    values=values,
                    stamp_ns=now_ns,
                    arrival_ns=arrival_ns,
                    seq=readings - 1 if channel.newest is None else channel.newest.seq + readings,
                    **account,
                )
        samples = {}
        for name, channel in self.channels.items():
            if (sample := channel.newest) is not None:
                samples[name] = sample if sample.arrival_ns == arrival_ns else at_arrival(sample, arrival_ns)
        return samples

    def _run_physics(self, controls: FloatArray) -> None:
        """Take the physics steps of a step and the readings due during it."""
        start_ns = now_ns = taken_ns = self.now_ns
        due_ns = _next_due_ns(self._scheduled)
        moved = self._motion()
        done = 0
        while done < self.substeps:
            until = done + 1
            if self._delayed is None:  # up to the first physics step that does not end before the next reading
                until = min(max(until, -((start_ns - due_ns) * self.substeps // self.tick_ns)), self.substeps)
            now_ns = start_ns + self.tick_ns * until // self.substeps
            if self._delayed is not None:
                self._take_delayed(now_ns)
            part = slice(done, until)
            self.physics.step(controls[part], {body: way[part] for body, way in moved.items()})
            if self._sensors.has_contacts:
                self._sensors.update_contacts(self.physics.sensed)
            done = until
            if now_ns >= due_ns:
                self.physics.forward()
                self._take_due(now_ns)
                due_ns, taken_ns = _next_due_ns(self._scheduled), now_ns
        if taken_ns < now_ns and self._ideal:
            self.physics.forward()
        if self._delayed is not None:
            self._take_delayed(now_ns + 1)
        self.now_ns = now_ns

    def _motion(self) -> dict[int, FloatArray]:
        if not self.movers:
            return {}
        times_s = (self.now_ns - self._origin_ns + self.substeps_ns) / 1e9
        return {body.mocap: body.positions(times_s, body.phase) for body in self.movers.values()}

    @property
    def renderer_library(self) -> str:
        """Library that renders the cameras, "egl", "osmesa" or "glfw", or "" without cameras."""
        renders = self._cameras or self._renderer
        return renders.library if self.profile.has_cameras else ""

    def render(self) -> NDArray[np.uint8]:
        """Return an image of the world, shape (height, width, 3), by the profile's ``render``."""
        self.physics.forward()
        render = self.profile.render
        return self._renderer.rgb(self._data, self._camera, render.height, render.width)

    def show(self) -> None:
        """Show the current world in a window, which opens at the first call."""
        self._viewer.show(self._data)

    def close(self) -> None:
        """Free the renderers and the window (idempotent)."""
        self._renderer.close()
        if self._cameras is not None:
            self._cameras.close()
        self._viewer.close()

    def _take_delayed(self, before_ns: int) -> None:
        readings = () if self._delayed is None else list(self._delayed.taken(before_ns))
        if readings:
            self.physics.forward()
        for name, taken_ns, available_ns in readings:
            self.channels[name].schedule(taken_ns, available_ns, self._sensors.measure(name))

    def _take_due(self, now_ns: int) -> None:
        for name, channel in self._scheduled.items():
            if now_ns < channel.due_ns:
                continue
            if self._cameras is not None and name in self._cameras.sensors:
                channel.reserve(now_ns)
                self._cameras.request(name, now_ns, self._data)
            else:
                channel.capture(now_ns, self._sensors.measure(name))


def _next_due_ns(channels: Mapping[str, SensorChannel]) -> int:
    return min([channel.due_ns for channel in channels.values()], default=2**63)
