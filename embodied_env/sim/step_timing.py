"""Timing of a world, with the steps of a contract in physics steps and the sensors that are due in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from embodied_env.contract import SensorSpec
from embodied_env.sim.sensor_channel import SensorChannel
from embodied_env.sim.world_model import WorldModel
from embodied_env.sim.world_profile import Driver, EmulatorSpec, Source

_TICKS_PER_PERIOD = 5  # ticks of a free-running world, approximately
_MAX_TICKS_NS = 1e9 * (1.0 + 1e-9)  # maximum of a rate, Hz, times a tick, ns


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """A step is a control period in lockstep, and a tick of a free-running world."""

    tick_ns: int  # the duration of a step
    substeps: int  # number of physics steps in it
    period_substeps: int  # number of physics steps in a control period


def resolve_timing(model: WorldModel, emulator: EmulatorSpec | None) -> StepTiming:
    """Return the timing of a world, where `emulator` is that of a free-running one.

    Raises ContractError unless a control period and a tick are whole numbers of physics steps.
    """
    contract = model.contract
    substeps = period_substeps = _whole_substeps(model, contract.control_period_s, "control_period_s")
    if emulator is not None:
        substeps = max(1, round(period_substeps / _TICKS_PER_PERIOD))
        if emulator.tick_s is not None:
            substeps = _whole_substeps(model, emulator.tick_s, f"{model.path}.emulator.tick_s")
    tick_ns = contract.control_period_ns * substeps // period_substeps
    return StepTiming(tick_ns=tick_ns, substeps=substeps, period_substeps=period_substeps)


def make_channels(
    model: WorldModel, drivers: Mapping[str, Driver], tick_ns: int, *, late: tuple[str, ...], as_received: bool
) -> dict[str, SensorChannel]:
    """Return a channel for each sensor of the contract, where those of `late` sensors follow the schedule of delays."""
    channels = {}
    for name in model.contract.sensors:
        spec, source = _with_driver_rate(model, name, drivers, tick_ns), model.profile.sources.get(name, Source())
        if name in late:
            spec = replace(spec, timeline="header")  # stamps are those of the schedule
        channels[name] = SensorChannel(name, spec, source, tick_ns, as_received=as_received)
    return channels


def _whole_substeps(model: WorldModel, duration_s: float, path: str) -> int:
    """Return the number of physics steps in a duration, or raise ContractError at `path` unless it is whole."""
    timestep_s = float(model.mj.opt.timestep)
    substeps = round(duration_s / timestep_s)
    if substeps < 1 or not math.isclose(substeps * timestep_s, duration_s):
        problem = f"{duration_s} s (expected a whole number of timesteps of the model, {timestep_s} s)"
        raise model.error(path, problem)
    return substeps


def _with_driver_rate(model: WorldModel, sensor: str, drivers: Mapping[str, Driver], tick_ns: int) -> SensorSpec:
    """Return a sensor of the contract with the rate of its driver."""
    spec, rate_hz = model.contract.sensors[sensor], drivers.get(sensor, Driver()).rate_hz
    if rate_hz is None:
        return spec
    if rate_hz * tick_ns > _MAX_TICKS_NS:
        path = f"{model.path}.emulator.sensors.{sensor}.rate_hz"
        expected = f"at most one reading per tick of {tick_ns / 1e9} s"
        raise model.error(path, f"{rate_hz} (expected {expected}); set emulator.tick_s")
    return replace(spec, rate_hz=rate_hz)
