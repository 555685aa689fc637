"""The in-process simulator in lockstep: the MuJoCo world of `embodied_env.sim`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.backends.base import Capabilities
from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.field_paths import check_message
from embodied_env.contract.message_types import ENCODINGS, MessageField, message_field
from embodied_env.contract.reading_values import (
    InvalidReadingError,
    check_rotation,
    position_confidence,
    resample,
    settle,
    settle_ranges,
    to_units,
)
from embodied_env.contract.schema import SensorSpec
from embodied_env.core.arguments import checked_seconds
from embodied_env.core.clock import Clock, Stamp
from embodied_env.core.codes import Quality
from embodied_env.core.image_processing import pixels_sha256, read_image
from embodied_env.core.latency.delay_model import DelayModel
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
from embodied_env.errors import BackendError, BackendLostError, MissingDependencyError
from embodied_env.sim.backend_profile import load_profile
from embodied_env.sim.gl_libraries import display_available
from embodied_env.sim.physics import SharedData
from embodied_env.sim.sensor_channel import Reading
from embodied_env.sim.sensor_models import range_limits_m, scan_angles_rad
from embodied_env.sim.world import World


class MujocoBackend:
    """An exact, seedable lockstep simulator without a middleware.

    Attributes:
        delays: the injected delays, or None.
        build_world: builds the world in `open`.
    """

    name = "mujoco"
    capabilities = Capabilities(
        simulated=True,
        exact_step=True,
        pausable=True,
        seedable=True,
        reopens=True,
        state_query=True,
        reset_levels=("world",),
        render_modes=("rgb_array",),
    )

    def __init__(
        self, contract: Contract, *, clock: Clock, step_timeout_s: float | None = None, delays: DelayModel | None = None
    ) -> None:
        """Read the profile ``backends.mujoco`` of `contract`; `open` builds the world, with `delays` injected."""
        if display_available():
            self.capabilities = replace(self.capabilities, render_modes=("rgb_array", "human"))
        self._contract, self._sensors = contract, dict(contract.sensors)
        self._clock = clock
        self.delays = delays
        self._profile = load_profile(contract, "mujoco")
        self._checked: dict[str, dict[str, MessageField]] = {}  # sensor -> fields to validate or convert
        for name, sensor in contract.sensors.items():
            fields = {field: message_field(sensor, field, spec) for field, spec in sensor.fields.items()}
            derived = {field for field, spec in sensor.fields.items() if spec.resample or spec.resize}
            self._checked[name] = {
                field: known for field, known in fields.items() if known.rotation or known.ranging or field in derived
            }
        self.step_timeout_s = checked_seconds(
            "step_timeout_s", self._profile.step_timeout_s if step_timeout_s is None else step_timeout_s
        )
        self.reset_timeout_s = self._profile.reset_timeout_s
        self._world: World | None = None
        self._usable = False
        self._executor: Executor | None = None
        self._shared: SharedData | None = None
        self.build_world: Callable[[], World] = self._build
        self._moving: Future[None] | None = None  # a step computed in the executor
        self._taken: tuple[FloatArray, BackendLostError | None] | None = None  # command and error of a step

    def compute_in(self, executor: Executor) -> bool:
        """Let `executor` compute the steps: `advance` returns at once, and `read` waits. Return False with cameras."""
        self._executor = None if self.has_cameras else executor
        return not self.has_cameras

    @property
    def has_cameras(self) -> bool:
        """Whether steps render images, so that one thread must compute them: a renderer belongs to its first thread."""
        return any(source.camera for source in self._profile.sources.values())

    def share(self, data: SharedData) -> None:
        """Let the world use this data, which others use too, so that only the caller's thread computes its steps.

        Call it before `open`.
        """
        self._shared = data

    def open(self) -> None:
        """Build the world, and check fields with a path against the ROS message, if it is installed."""
        for name, sensor in self._contract.sensors.items():
            if any(spec.path is not None for spec in sensor.fields.values()):
                with suppress(MissingDependencyError):
                    check_message(name, sensor)
        self._world = self.build_world()
        self._profile = self._world.profile

    def _build(self) -> World:
        return World(
            self._contract,
            self._profile,
            path="backends.mujoco",
            free_running=self.capabilities.free_running,
            delays=self.delays,
            whole_messages=False,
            shared=self._shared,
        )

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - it is instant
        """Reset the world by its seed."""
        world = self._opened()
        self._usable, self._taken = False, None
        sampled = world.reset(request.seed, request.options)
        self._usable = True
        details = {"renderer": world.renderer_library} if world.renderer_library else {}
        report = ResetReport(level="world", seed_applied=request.seed, sampled=sampled, details=details)
        return self._snapshot(world, report)

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Set the command of the next period."""
        check_approved(command)
        world = self._running()
        if self._taken is None:
            world.command(command.values)
        elif self._taken[0].tobytes() != command.values.tobytes():
            taken = self._taken[0].tolist()
            raise BackendError(f"wrong command: {command.values.tolist()} (expected {taken}, that of the step taken)")
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target: Stamp, deadline: Stamp) -> None:  # noqa: ARG002 - it is exact, and returns when done
        """Step the world by one control period."""
        world = self._running()
        if self._taken is not None:
            (_, error), self._taken = self._taken, None
            if error is not None:
                raise error
        elif self._executor is None:
            world.step()
        else:
            self._moving = self._executor.submit(world.step)

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - the world is already there
        """Read every sensor that has delivered."""
        if self._moving is not None and self._moving.cancel():  # no thread has begun it; after a fork none is left
            self._moving = None
            self._running().step()
        elif self._moving is not None:
            self._moving.result()
        return self._snapshot(self._running(), None)

    def halt(self, reason: str) -> None:  # noqa: ARG002 - there is no transport
        """Refuse commands until the next reset."""
        self._usable, self._taken = False, None

    def render(self) -> NDArray[np.uint8]:
        """Return an image of the world, shape (height, width, 3)."""
        return self._opened().render()

    def show(self) -> None:
        """Show the world in a window."""
        self._opened().show()

    def close(self) -> None:
        """Free the world."""
        self._usable = False
        self._finish_step()
        world, self._world = self._world, None
        if world is not None:
            world.close()

    def processes(self) -> list[dict[str, Any]]:
        """Return no process."""
        return []

    def _opened(self) -> World:
        if self._world is None:
            raise BackendLostError("closed", "the simulator is not open")
        if self._moving is not None:
            self._finish_step()
        self._world.catch_up()
        return self._world

    def _finish_step(self) -> None:
        """Complete a step that the executor computes; only `read` raises its error."""
        moving, world = self._moving, self._world
        if moving is not None and world is not None and moving.cancel():
            with suppress(BackendLostError):
                world.step()
        elif moving is not None:
            wait([moving])
        self._moving = None

    @property
    def world(self) -> World:
        """The running world, for steps along with those of other backends; raises BackendLostError."""
        return self._running()

    def checked_fields(self, sensor: str) -> Mapping[str, MessageField]:
        """Return the fields of a sensor whose values `sample` checks or converts."""
        return self._checked[sensor]

    def accept_step(self, command: FloatArray, error: BackendLostError | None) -> None:
        """Accept a step that the world has taken already: `send` and `advance` check its command and move nothing."""
        self._taken = command, error

    def _running(self) -> World:
        if not self._usable:
            raise BackendLostError("halted", "the backend was halted, closed or never reset")
        return self._opened()

    def _snapshot(self, world: World, report: ResetReport | None) -> Snapshot:
        arrival_ns = self._clock.now_ns()
        samples = {name: self.sample(name, reading, arrival_ns) for name, reading in world.read().items()}
        return Snapshot(now_ns=world.now_ns, samples=samples, reset=report, clock=self._clock_account())

    def _clock_account(self) -> ClockStatus | None:
        return None  # lockstep

    def sample(self, name: str, reading: Reading, arrival_ns: int) -> Sample:
        """Return the sample that a reader of the sensor's message would return."""
        spec = self._sensors[name]
        values, problem = reading.values, reading.problem
        raw_sha256: dict[str, str] = {}
        if values and (checked := self._checked[name]):
            try:
                validated = {
                    field: self._validated(spec, field, known, reading, raw_sha256) for field, known in checked.items()
                }
                values = {**values, **validated}
            except InvalidReadingError as error:
                values, raw_sha256, problem = {}, {}, str(error)
        covariance = reading.extras.get("covariance")
        return Sample(
            sensor=name,
            values=values,
            stamp_ns=reading.stamp_ns,
            arrival_ns=arrival_ns,
            seq=reading.seq,
            quality=Quality.INVALID if problem else Quality.OK,
            reason=problem,
            raw_sha256=raw_sha256,
            confidence=None if covariance is None else position_confidence(covariance, spec.confidence_radius_m),
        )

    @staticmethod
    def _validated(
        sensor: SensorSpec, field: str, known: MessageField, reading: Reading, raw_sha256: dict[str, str]
    ) -> NDArray[Any]:
        """Return one field as a reader of the message would; raises InvalidReadingError."""
        spec, value, extras = sensor.fields[field], reading.values[field], reading.extras
        if known.rotation:
            check_rotation(field, value)
        if sensor.encoding is not None:
            encoding = ENCODINGS[sensor.encoding]
            pixels = to_units(value, encoding.metres_per_unit or 1.0) if encoding.dtype == "uint16" else value
            if spec.resize is not None:
                raw_sha256[field] = pixels_sha256(pixels)
            return read_image(field, pixels, sensor)
        value = value.copy()  # values are settled in place
        if sensor.type == "sensor_msgs/msg/LaserScan":
            angles_rad = scan_angles_rad(extras, reading.values)
            if field != "ranges":
                return settle(field, resample(field, value, spec, angles_rad), spec)
            return settle_ranges(field, value, spec, *range_limits_m(extras), angles_rad)
        if not known.ranging:
            return value
        if sensor.type == "sensor_msgs/msg/PointCloud2":
            return settle(field, value, spec)
        return settle_ranges(field, value, spec, *range_limits_m(extras))
