"""Commands of a world in which they may act at any time, delayed or interpolated between its steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from typing import TypeAlias

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.sim.actuators import Actuation, SetpointInterpolator
from embodied_env.sim.simulated_delays import DelayedWorld, TimedQueue
from embodied_env.sim.step_timing import StepTiming
from embodied_env.sim.world_model import WorldModel
from embodied_env.sim.world_profile import EmulatorSpec

PathState: TypeAlias = tuple[tuple[FloatArray, FloatArray, FloatArray, float], TimedQueue[FloatArray]]


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
        """Prepare for the commands and controls of `actuation`.

        Without an emulator a command is reached in one control period, without lag; `delayed` has injected delays.
        """
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
        return self._interpolator.save(), copy(self._late_commands)

    def load(self, state: PathState) -> None:
        """Continue from a saved state."""
        interpolation, late_commands = state
        self._interpolator.load(interpolation)
        self._late_commands = copy(late_commands)

    def command(self, values: FloatArray, now_ns: int, delay_ns: int | None) -> None:
        """Accept a command, which acts after the injected delay or `delay_ns`, or at once if that is None."""
        if self._delayed is not None:
            self._delayed.command(self._actuation.checked(values))
        elif delay_ns is not None:
            self._late_commands.put(now_ns + delay_ns, self._actuation.checked(values))
        else:
            self._actuation.command(values)
            self._interpolator.command(self._actuation.target)

    def controls(self, commands: Sequence[tuple[int, FloatArray]], now_ns: int, *, is_delayed: bool) -> FloatArray:
        """Apply the commands of a step and return the controls of its physics steps, shape (n_substeps, n_controls)."""
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
