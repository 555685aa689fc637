"""Commands between steps from the threads of watchdog and setpoints, and braking to rest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from embodied_env.backends.backend import Backend, CommandTimeout, NewestSource, Recorded, find_estop_source
from embodied_env.contract import Contract, FloatArray
from embodied_env.core.code_types import Severity
from embodied_env.core.measured_joints import MeasuredVelocities, Reading
from embodied_env.core.safety_input_state import INPUT_UNKNOWN, InputStates
from embodied_env.core.types import Finding
from embodied_env.envs.observation_builder import GOOD
from embodied_env.errors import BackendError
from embodied_env.processes.signals import deferred_signals
from embodied_env.safety.arbiter import Arbiter
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.publishing import make_publishing
from embodied_env.safety.watchdog import SetpointThread, Watchdog, WatchdogThread
from embodied_env.timing.clock import NS_PER_S, Clock


class MotionGuard:
    """Brakes and watches one robot, except in a replay, where nothing moves.

    Attributes:
        contract, backend, gate, clock: the parts that command the robot.
        arbiter: owns the last published command.
        watchdog: brakes when no step follows in time.
    """

    def __init__(self, contract: Contract, backend: Backend, gate: SafetyGate, *, clock: Clock) -> None:
        free_running, period_s = backend.capabilities.free_running, contract.control_period_s
        self.contract, self.backend, self.gate, self.clock = contract, backend, gate, clock
        self._estop_source = find_estop_source(backend)
        self.has_estops = self._estop_source is not None
        velocities, measure = MeasuredVelocities(contract), None
        if velocities.sensors and not backend.capabilities.acknowledges_commands and isinstance(backend, NewestSource):
            measure = partial(_measure_velocities, backend, velocities)
        self._brakes = not isinstance(backend, Recorded)
        self._watches = self._brakes and free_running
        capabilities = backend.capabilities  # a relay sends the setpoints itself; a dry run sends none
        streams = self._watches and capabilities.actuates and not capabilities.acknowledges_commands
        has_trajectories = streams and capabilities.trajectories and contract.trajectory_steps is not None
        per_step = contract.setpoints_per_step if streams else 1
        publishing = make_publishing(
            gate,
            setpoints_per_step=per_step,
            has_trajectories=has_trajectories,
            downstream_timeout_s=backend.downstream_timeout_s if isinstance(backend, CommandTimeout) else None,
            measured_velocities=measure,
        )
        self.arbiter = Arbiter(
            backend.send, gate, publishing, clock=clock, free_running=free_running, is_replay=not self._brakes
        )
        self.watchdog = Watchdog(
            self.arbiter, gate, contract.safety.watchdog, clock=clock, control_period_s=period_s, estops=self.estops
        )
        self._thread: WatchdogThread | None = None
        self._setpoints = SetpointThread(self.arbiter, gate, clock=clock) if per_step > 1 else None

    def estops(self) -> InputStates:
        """Return the robot's safety inputs, with an unknown one for a backend that cannot be read."""
        if self._estop_source is None:
            return {}
        try:
            return self._estop_source.estops()
        except BackendError:
            return {self.backend.name: INPUT_UNKNOWN}

    def start(self, close: Callable[[], bool]) -> None:
        """Start the threads once, and call `close` in one on request or after the main thread."""
        if not self._watches or self._thread is not None:
            return
        with deferred_signals():
            thread = WatchdogThread(self.watchdog, close, control_period_s=self.contract.control_period_s)
            thread.start()
            self._thread = thread
            if self._setpoints is not None:
                self._setpoints.start()

    def stop(self) -> None:
        """Stop the threads (idempotent)."""
        if self._setpoints is not None:
            self._setpoints.stop()
        if self._thread is not None:
            self._thread.stop()

    def request_close(self) -> None:
        """Let the thread close the environment, without a lock, as a finalizer in any thread needs."""
        if self._thread is not None:
            self._thread.request_close()

    def feed(self) -> None:
        """Restart the watchdog's timeout, which a lockstep world does not need."""
        if self._watches:
            self.watchdog.feed()

    def brake(self, why: str) -> None:
        """Brake to rest within the limits, with signals deferred until the robot is at rest."""
        if not self._brakes:
            return
        with deferred_signals():
            try:
                self.arbiter.brake_to_rest(Finding(gate="latch", severity=Severity.HOLD, code="latch.stop", detail=why))
            except BackendError as error:
                self.backend.halt(f"backend lost while braking: {error}")


def _measure_velocities(source: NewestSource, velocities: MeasuredVelocities) -> tuple[FloatArray, FloatArray]:
    """Return the measured velocities and their ages, s, NaN and infinite if not measured."""
    try:
        snapshot = source.newest(velocities.sensors)
    except BackendError:
        return velocities.read(lambda _: None)

    def newest(name: str) -> Reading | None:
        sample = snapshot.samples.get(name)
        if sample is None or sample.quality not in GOOD:
            return None
        return sample.values, (snapshot.now_ns - sample.stamp_ns) / NS_PER_S

    return velocities.read(newest)
