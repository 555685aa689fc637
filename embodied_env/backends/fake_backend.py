"""Deterministic in-process backend with scripted faults, also a test double for users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.backend import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.argument_checks import checked_seconds
from embodied_env.contract.sensor_schema import SensorSpec
from embodied_env.contract.spaces import ActionLayout, field_layouts
from embodied_env.contract.value_checks import one_of
from embodied_env.core.reset_draws import ResetRoutine, draw_options
from embodied_env.core.safety_input_state import InputState, parse_states
from embodied_env.core.types import (
    ApprovedCommand,
    ClockStatus,
    ResetReport,
    ResetRequest,
    Sample,
    SentCommand,
    Snapshot,
    check_approved,
)
from embodied_env.errors import BackendLostError, UsageError
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.timing.clock import NS_PER_S, Clock, Pacer

KEPT = 2000  # number of commands, and of halt reasons, that the backend keeps at least, or up to twice as many

FaultKind = Literal["delay", "drop", "nan", "stale", "future", "refuse"]


@dataclass(frozen=True, kw_only=True)
class ScriptedFault:
    """A fault at one step of each episode, counted from 1, of one or every `sensor`.

    A `sensor` of None is every sensor. ``delay``: the step takes `delay_s` longer. ``drop``: no message. ``nan``:
    floats are NaN. ``stale``: the stamp is ten seconds old. ``future``: it is one second ahead. ``refuse``: the command
    is refused.
    """

    kind: FaultKind
    step: int
    sensor: str | None = None
    delay_s: float = 0.0


class FakeBackend:
    """Backend whose joints reach their command at the end of each period.

    Every other sensor reads a constant drawn by the seed, or, if it has the name of a reset option and a field of its
    shape, the value of that option. Every sensor has a new reading at every step, since rates, delays and noise of the
    contract are ignored.

    Attributes:
        pacer: deadlines of a free-running world; None in lockstep.
        sent: published commands, oldest first, at least the newest `KEPT`.
        halted: reasons passed to `halt`, likewise.
        routine: reset routine, set by tests.
        estop_states: the texts of the safety inputs that `estops` returns, set by tests.
    """

    name = "fake"

    def __init__(
        self,
        contract: Contract,
        *,
        clock: Clock,
        faults: Sequence[ScriptedFault] = (),
        free_running: bool = False,
        step_timeout_s: float = 1.0,
        reset_timeout_s: float = 1.0,
    ) -> None:
        """Prepare a world with `faults` in every episode, or raise UsageError for invalid ones."""
        self.capabilities = Capabilities(
            simulated=True,
            exact_step=not free_running,
            free_running=free_running,
            seedable=True,
            reopens=not free_running,
            state_query=True,
            estop_inputs=True,
        )
        self.routine: ResetRoutine | None = None
        self.pacer = Pacer(clock, contract.control_period_ns) if free_running else None
        self.step_timeout_s = checked_seconds("step_timeout_s", step_timeout_s)
        self.reset_timeout_s = checked_seconds("reset_timeout_s", reset_timeout_s)
        self.sent: list[ApprovedCommand] = []
        self.halted: list[str] = []
        self.estop_states: dict[str, str] = {}
        self._contract = contract
        self._clock = clock
        if not isinstance(faults, Sequence) or not all(isinstance(fault, ScriptedFault) for fault in faults):
            raise UsageError(f"invalid faults: {faults!r} (expected a list of Fault)")
        for fault in faults:
            if fault.kind not in get_args(FaultKind):
                raise UsageError(f"unknown kind of fault: {one_of(fault.kind, get_args(FaultKind))}")
        self._faults = tuple(faults)
        layout = ActionLayout(contract)
        self._joints, self._is_velocity = layout.joints, layout.is_velocity
        self._positions = np.zeros(len(self._joints))
        self._velocities = np.zeros(len(self._joints))
        self._command: NDArray[np.float64] | None = None  # the newest since the reset
        self._constants: dict[str, dict[str, NDArray[Any]]] = {}  # by sensor and field
        self._shown = {name: list(self._joints_of(sensor)) for name, sensor in contract.sensors.items()}
        self._clock_status = ClockStatus(mode="wall") if free_running else None
        self._now_ns = 0
        self._step = 0
        self._usable = False

    def open(self) -> None:
        """Do nothing."""

    def reset(self, request: ResetRequest, deadline_ns: int) -> Snapshot:  # noqa: ARG002 - it is instant
        """Draw the constants by the seed and place each joint at mid-range, or at zero."""
        rng = np.random.default_rng(request.seed)
        sampled = draw_options(self._contract.reset_options, request.seed, request.options, rng)
        for name, sensor in self._contract.sensors.items():
            self._constants[name] = {}
            for layout in field_layouts(name, sensor):
                low = np.where(np.isfinite(layout.low), layout.low, np.minimum(layout.high, 0.0) - 1.0)
                high = np.where(np.isfinite(layout.high), layout.high, np.maximum(low, 0.0) + 1.0)
                drawn, chosen = rng.uniform(low, high), sampled.get(name)
                value = drawn if chosen is None or chosen.shape != layout.shape else chosen
                self._constants[name][layout.field] = np.asarray(value).astype(layout.dtype)
        limits = ActionLayout(self._contract).limits
        limited = np.isfinite(limits.position_low)
        self._positions = np.zeros(len(self._joints))
        self._positions[limited] = (limits.position_low[limited] + limits.position_high[limited]) / 2
        self._velocities = np.zeros(len(self._joints))
        self._step = 0
        self._command = None
        self._usable = True
        report = ResetReport(level="task", seed_applied=request.seed, sampled=sampled)
        return replace(self._read_after_pause(), reset=report)

    def confirm(self, question: str, deadline_ns: int) -> None:
        """Confirm everything, unless a test overrides it."""

    def verify(self, deadline_ns: int) -> Snapshot:  # noqa: ARG002 - it is instant
        """Read again, a control period later."""
        self._check_usable()
        return self._read_after_pause()

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Store the command, which acts at the next `advance`."""
        check_approved(command)
        self._check_usable()
        if self._fault("refuse", None, self._step + 1):
            raise BackendLostError("refused", "scripted fault: the command was refused")
        _remember(self.sent, command)
        self._command = command.values
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target_ns: int, deadline_ns: int) -> None:
        """Move to `target_ns`, after a scripted delay."""
        self._check_usable()
        self._step += 1
        if fault := self._fault("delay", None, self._step):
            self._clock.sleep_until_ns(min(deadline_ns, self._clock.now_ns() + round(fault.delay_s * NS_PER_S)))
        if (command := self._command) is not None:
            period_s = self._contract.control_period_s
            reached = np.where(self._is_velocity, self._positions + command * period_s, command)
            self._velocities = np.where(self._is_velocity, command, (reached - self._positions) / period_s)
            self._positions = reached
        if self.pacer is not None:
            self.pacer.wait()
        self._move(target_ns)

    def read(self, after_ns: int, deadline_ns: int) -> Snapshot:
        """Return the samples at `after_ns`, with the faults of this step."""
        self._check_usable()
        if self._clock.now_ns() >= deadline_ns:
            raise BackendLostError("timeout", f"no reading stamped {after_ns} ns or later by the deadline")
        snapshot = self._snapshot()
        if not self._faults:
            return snapshot
        samples = {name: self._with_faults(sample) for name, sample in snapshot.samples.items()}
        return replace(snapshot, samples={name: sample for name, sample in samples.items() if sample is not None})

    def halt(self, reason: str) -> None:
        """Refuse commands until the next reset."""
        _remember(self.halted, reason)
        self._usable = False

    def close(self) -> None:
        """Refuse everything but a reset."""
        self._usable = False

    def estops(self) -> dict[str, InputState]:
        """Return the scripted safety inputs."""
        return parse_states(self.estop_states)

    def processes(self) -> list[dict[str, Any]]:
        """Return no process."""
        return []

    def _check_usable(self) -> None:
        if not self._usable:
            raise BackendLostError("halted", "the backend was halted, closed or never reset")

    def _move(self, now_ns: int) -> None:
        self._now_ns = max(now_ns, self._clock.now_ns()) if self.capabilities.free_running else now_ns

    def _read_after_pause(self) -> Snapshot:
        """Read a control period later, with the deadlines counted from now."""
        self._move(self._now_ns + self._contract.control_period_ns)
        if self.pacer is not None:
            self.pacer.begin()
        return self._snapshot()

    def _fault(self, kind: str, sensor: str | None, step: int) -> ScriptedFault | None:
        matches = (f for f in self._faults if f.kind == kind and f.step == step)
        return next((f for f in matches if sensor is None or f.sensor in (None, sensor)), None)

    def _with_faults(self, sample: Sample) -> Sample | None:
        name, step = sample.sensor, self._step
        if self._fault("drop", name, step):
            return None
        if self._fault("nan", name, step):
            not_finite = {
                field: np.full_like(values, np.nan) if values.dtype.kind == "f" else values
                for field, values in sample.values.items()
            }
            sample = replace(sample, values=not_finite)
        if self._fault("stale", name, step):
            sample = replace(sample, stamp_ns=sample.stamp_ns - 10 * NS_PER_S)
        if self._fault("future", name, step):
            sample = replace(sample, stamp_ns=sample.stamp_ns + NS_PER_S)
        return sample

    def _snapshot(self) -> Snapshot:
        now_ns, arrival_ns, seq = self._now_ns, self._clock.now_ns(), self._step
        samples = {
            name: Sample(sensor=name, values=self._values(name), stamp_ns=now_ns, arrival_ns=arrival_ns, seq=seq)
            for name in self._contract.sensors
        }
        return Snapshot(now_ns=now_ns, samples=samples, clock=self._clock_status)

    def _values(self, name: str) -> dict[str, NDArray[Any]]:
        values = {field: value.copy() for field, value in self._constants[name].items()}
        states = {"position": self._positions, "velocity": self._velocities}
        for field, places, joints in self._shown[name]:
            values[field][places] = states[field][joints]
        return values

    def _joints_of(self, sensor: SensorSpec) -> Iterator[tuple[str, list[int], list[int]]]:
        """Yield each field that shows commanded joints, with their places and the joints."""
        for field in {"position", "velocity"}.intersection(sensor.fields) if sensor.type == JOINT_SENSOR else ():
            shown = sensor.fields[field].joints or ()
            places = [place for place, joint in enumerate(shown) if joint in self._joints]
            yield field, places, [self._joints.index(shown[place]) for place in places]


realtime_fake = partial(FakeBackend, free_running=True)


def _remember(kept: list[Any], new: object) -> None:
    kept.append(new)
    if len(kept) >= 2 * KEPT:
        del kept[:KEPT]
