"""The fake world: in process, deterministic, with scripted faults. It ships, so that users test on it too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.base import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.message_types import JOINT_SENSOR
from embodied_env.contract.spaces import ActionLayout, FieldLayout, field_layouts
from embodied_env.core.arguments import checked_seconds
from embodied_env.core.clock import NS_PER_S, Clock, Stamp
from embodied_env.core.pacing import Pacer
from embodied_env.core.reset_spec import ResetRoutine
from embodied_env.core.types import (
    ActuationEvidence,
    ApprovedCommand,
    ClockStatus,
    ResetReport,
    ResetRequest,
    Sample,
    SentCommand,
    Snapshot,
)
from embodied_env.errors import BackendLostError, UsageError

KEPT = 2000
"""How many commands, and how many reasons to halt, the fake world remembers at least; twice as many at most."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that goes wrong at one step of each episode (the first step is 1).

    ``delay``: the world takes `delay_s` longer. ``drop``: no message of `sensor`. ``nan``: its values are not finite.
    ``stale``: its stamp is ten seconds old. ``future``: its stamp is one second ahead. ``refuse``: the command is not
    taken. `sensor` None means every sensor.
    """

    kind: Literal["delay", "drop", "nan", "stale", "future", "refuse"]
    step: int
    sensor: str | None = None
    delay_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FakeDelays:
    """How long each stage of the way in and out takes in a fake world that moves by itself, s.

    `driver_s`, `transport_s`, `queue_s`: from the acquisition of every reading to its publication, receipt, and taking.
    `publish_s`: what `send` takes. `actuation_s`: until a command that has left acts, which the world then tells.
    """

    driver_s: float = 0.0
    transport_s: float = 0.0
    queue_s: float = 0.0
    publish_s: float = 0.0
    actuation_s: float = 0.0


class FakeBackend:
    """Joints reach their command at the end of each period. Every other sensor shows a constant drawn by the seed.

    Rates, delays and noise are not played: every sensor has a new reading at every step.

    A sensor that is called like a reset option, with one field of its shape, shows that option's value.

    Attributes:
        pacer: the deadlines of a world that moves by itself; None in lockstep.
        sent: the commands that were published, in order; of more than `KEPT` the newest.
        halted: the reasons given to `halt`; the same.
    """

    name = "fake"

    def __init__(
        self,
        contract: Contract,
        *,
        clock: Clock,
        faults: Sequence[Fault] = (),
        free_running: bool = False,
        delays: FakeDelays | None = None,
        step_timeout_s: float = 1.0,
        reset_timeout_s: float = 1.0,
    ) -> None:
        """Prepare a world for `contract` whose `faults` happen in every episode.

        Raises:
            UsageError: for a wrong timeout or fault, or `delays` of a world that does not move by itself.
        """
        if delays is not None and not free_running:
            raise UsageError("delays are of a world that moves by itself; allowed with free_running=True")
        self.capabilities = Capabilities(
            exact_step=not free_running,
            free_running=free_running,
            seedable=True,
            state_query=True,
            estop_inputs=True,
            transport=delays is not None,
            actuation=delays is not None,
        )
        self.routine: ResetRoutine | None = None  # how its resets go on; to be written by a test
        self._delays = delays
        self.pacer = Pacer(clock, contract.control_period_ns) if free_running else None
        self._left: tuple[int, int] | None = None  # the newest command, and when it left
        self.step_timeout_s = checked_seconds("step_timeout_s", step_timeout_s)
        self.reset_timeout_s = checked_seconds("reset_timeout_s", reset_timeout_s)
        self.sent: list[ApprovedCommand] = []
        self.halted: list[str] = []
        self.estop_states: dict[str, str] = {}  # what `estops` reports; to be written by a test
        self._contract = contract
        self._clock = clock
        if not isinstance(faults, Sequence) or not all(isinstance(fault, Fault) for fault in faults):
            raise UsageError(f"faults={faults!r} is not allowed; allowed: a list of Fault")
        self._faults = tuple(faults)
        layout = ActionLayout(contract)
        self._joints, self._is_velocity = layout.joints, layout.is_velocity
        self._positions = np.zeros(len(self._joints))
        self._velocities = np.zeros(len(self._joints))
        self._command: NDArray[np.float64] | None = None  # the newest since the reset
        self._constants: dict[str, NDArray[Any]] = {}
        self._now_ns = 0
        self._step = 0
        self._usable = False

    def open(self) -> None:
        """Nothing to connect to."""

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - it is instant
        """Draw the constants by the seed; joints go to the middle of their range, or to zero where they have none."""
        rng = np.random.default_rng(request.seed)
        sampled = {}
        for name, option in sorted(self._contract.reset_options.items()):
            drawn = np.asarray(rng.uniform(option.low_array, option.high_array))
            sampled[name] = request.options.get(name, drawn)
        self._constants = {
            layout.key: self._constant(layout, rng, sampled)
            for name, sensor in self._contract.sensors.items()
            for layout in field_layouts(name, sensor)
        }
        limits = ActionLayout(self._contract).limits
        limited = np.isfinite(limits.position_low)
        self._positions = np.zeros(len(self._joints))
        self._positions[limited] = (limits.position_low[limited] + limits.position_high[limited]) / 2
        self._velocities = np.zeros(len(self._joints))
        self._move(self._now_ns + self._contract.control_period_ns)
        self._step = 0
        self._command = None
        self._usable = True
        if self.pacer is not None:
            self.pacer.begin()
        self._left = None
        report = ResetReport(level="task", seed_applied=request.seed, sampled=sampled)
        return replace(self._snapshot(), reset=report)

    def confirm(self, question: str, deadline: Stamp) -> None:
        """Everything is agreed to; a test that wants to be asked overrides it."""

    def verify(self, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - it is instant
        """Read anew, a control period later."""
        self._check_usable()
        self._move(self._now_ns + self._contract.control_period_ns)
        if self.pacer is not None:
            self.pacer.begin()
        return self._snapshot()

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Take the command; it acts at the next `advance`."""
        if not isinstance(command, ApprovedCommand):
            raise TypeError(f"send() takes only Approved, not {type(command).__name__}")
        self._check_usable()
        if self._fault("refuse", None, self._step + 1):
            raise BackendLostError("refused", "the fake world was scripted to refuse this command")
        _remember(self.sent, command)
        self._command = command.values
        if self._delays is not None:
            self._clock.sleep_until_ns(self._clock.now_ns() + round(self._delays.publish_s * NS_PER_S))
        self._left = command.seq, self._clock.now_ns()
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Move to `target`; a scripted delay passes on the clock first."""
        self._check_usable()
        self._step += 1
        if fault := self._fault("delay", None, self._step):
            self._clock.sleep_until_ns(min(deadline.ns, self._clock.now_ns() + round(fault.delay_s * NS_PER_S)))
        if (command := self._command) is not None:
            period_s = self._contract.control_period_s
            reached = np.where(self._is_velocity, self._positions + command * period_s, command)
            self._velocities = np.where(self._is_velocity, command, (reached - self._positions) / period_s)
            self._positions = reached
        if self.pacer is not None:
            self.pacer.wait()
        self._move(target.ns)

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:
        """Return the samples of `after`, with the faults of this step."""
        self._check_usable()
        if self._clock.now_ns() >= deadline.ns:
            raise BackendLostError("timeout", f"no sensor stamped {after.ns} ns or later by the deadline")
        snapshot = self._snapshot()
        samples = {}
        for name, sample in snapshot.samples.items():
            faulty = self._with_faults(sample)
            if faulty is not None:
                samples[name] = faulty
        return replace(snapshot, samples=samples)

    def halt(self, reason: str) -> None:
        """Stop taking commands until the next reset."""
        _remember(self.halted, reason)
        self._usable = False

    def close(self) -> None:
        """Stop for good."""
        self._usable = False

    def estops(self) -> dict[str, str]:
        """Return the scripted safety inputs."""
        return dict(self.estop_states)

    def processes(self) -> list[dict[str, Any]]:
        """There is none."""
        return []

    def _check_usable(self) -> None:
        if not self._usable:
            raise BackendLostError("halted", "the fake world was halted, closed, or never reset")

    def _move(self, now_ns: int) -> None:
        self._now_ns = max(now_ns, self._clock.now_ns()) if self.capabilities.free_running else now_ns

    def _fault(self, kind: str, sensor: str | None, step: int) -> Fault | None:
        matches = (f for f in self._faults if f.kind == kind and f.step == step)
        return next((f for f in matches if sensor is None or f.sensor in (None, sensor)), None)

    def _with_faults(self, sample: Sample) -> Sample | None:
        name, step = sample.sensor, self._step
        if self._fault("drop", name, step):
            return None
        if self._fault("nan", name, step):
            spoilt = {field: np.full_like(values, np.nan) for field, values in sample.values.items()}
            sample = replace(sample, values=spoilt)
        if self._fault("stale", name, step):
            sample = replace(sample, stamp_ns=sample.stamp_ns - 10 * NS_PER_S)
        if self._fault("future", name, step):
            sample = replace(sample, stamp_ns=sample.stamp_ns + NS_PER_S)
        return sample

    def _snapshot(self) -> Snapshot:
        arrival_ns = self._clock.now_ns()
        samples = {
            name: self._as_delayed(
                Sample(
                    sensor=name, values=self._values(name), stamp_ns=self._now_ns, arrival_ns=arrival_ns, seq=self._step
                )
            )
            for name in self._contract.sensors
        }
        clock = ClockStatus(mode="wall") if self.capabilities.free_running else None
        return Snapshot(now_ns=self._now_ns, samples=samples, clock=clock, actuation=self._acted())

    def _as_delayed(self, sample: Sample) -> Sample:
        """Return a reading that arrives now, after all that it went through; all clocks are one."""
        if self._delays is None:
            return sample
        received_ns = sample.arrival_ns - round(self._delays.queue_s * NS_PER_S)
        source_ns = received_ns - round(self._delays.transport_s * NS_PER_S)
        acquired_ns = source_ns - round(self._delays.driver_s * NS_PER_S)
        return replace(
            sample,
            stamp_ns=acquired_ns,
            header_ns=acquired_ns,
            source_ns=source_ns,
            received_ns=received_ns,
            arrival_system_ns=sample.arrival_ns,
            transport_excess_s=0.0,  # none takes longer than another
        )

    def _acted(self) -> ActuationEvidence | None:
        if self._delays is None or self._left is None:
            return None
        seq, left_ns = self._left
        return ActuationEvidence(
            seq=seq, acted_ns=left_ns + round(self._delays.actuation_s * NS_PER_S), method="controller"
        )

    def _values(self, name: str) -> dict[str, NDArray[Any]]:
        sensor = self._contract.sensors[name]
        values = {layout.field: self._constants[layout.key].copy() for layout in field_layouts(name, sensor)}
        if sensor.type == JOINT_SENSOR:
            for field, state in (("position", self._positions), ("velocity", self._velocities)):
                for i, joint in enumerate(sensor.fields[field].joints or () if field in values else ()):
                    if joint in self._joints:
                        values[field][i] = state[self._joints.index(joint)]
        return values

    def _constant(
        self, layout: FieldLayout, rng: np.random.Generator, sampled: dict[str, NDArray[np.float64]]
    ) -> NDArray[Any]:
        drawn = rng.uniform(layout.low, layout.high).astype(layout.dtype)
        option = sampled.get(layout.sensor)
        return option.astype(layout.dtype) if option is not None and option.shape == layout.shape else drawn


def _remember(told: list[Any], new: object) -> None:
    """Append, and forget the oldest: a world may be stepped millions of times."""
    told.append(new)
    if len(told) >= 2 * KEPT:
        del told[:KEPT]
