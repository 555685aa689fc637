"""Simulators with step services over real rclpy, with one toy world behind the services of two families.

They serve each request in one thread, so that a reply can come early, late or never. Faults are
switched by `Faults`; the world itself behaves like Gazebo, as measured (`/clock` is the start of an iteration,
and is repeated while paused; requests are queued until the end of an iteration).
"""

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import rclpy
from builtin_interfaces.msg import Time
from rclpy.context import Context
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

STEP_NS = 1_000_000
JOINTS = ("j1", "j2", "j3", "j4", "j5", "j6")
FEATURES = [10, 11, 20, 25, 26, 31, 32]  # states of entities, reset, pause, single and multiple steps

_IDLE_S = 0.0005
_REPEAT_S = 0.002  # period of the repeated stamps of a paused clock


@dataclass(kw_only=True)
class Faults:
    """Active faults of the stand-in, or of one request, where None, False and 0 are none."""

    replies: str = "as usual"  # "early": before anything happens; "never"
    acts: bool = True  # False: a request that moves time is answered and ignored
    stops_after: int | None = None  # further iterations until time stops
    silent: bool = False  # the clock is not published, neither paused nor running
    extra_steps: int = 0  # by another client, with each step request
    rewinds_in: int | None = None  # number of iterations after which another client resets the world
    refuses: bool = False
    sensors: str = "on time"  # or "late": after the step; "old": stamped 10 steps before; "repeated"; "slow"; "never"
    clock_repeats: int = 1
    drops_echo: bool = False  # commands are not repeated on their echo topic


@dataclass(kw_only=True)
class ToyWorld:
    """Joints that follow their commands step by step, and poses of models."""

    now_ns: int = 0
    iterations: int = 0
    paused: bool = True
    pending: int = 0  # requested steps
    command: tuple[float, ...] = (0.0,) * len(JOINTS)
    position: tuple[float, ...] = (0.0,) * len(JOINTS)
    poses: dict[str, tuple[float, ...]] = field(default_factory=lambda: {"cart": (0.0,) * 6 + (1.0,)})

    def step(self) -> None:
        """Move by one step, which is a tenth of the remaining distance of each joint."""
        self.now_ns += STEP_NS
        self.iterations += 1
        pairs = zip(self.position, self.command, strict=True)
        self.position = tuple(there + 0.1 * (wanted - there) for there, wanted in pairs)

    def reset(self, *, time_too: bool = True) -> None:
        """Return to the initial state."""
        fresh = ToyWorld()
        self.position, self.command, self.poses = fresh.position, fresh.command, fresh.poses
        if time_too:
            self.now_ns = self.iterations = 0


class StandIn:
    """The world, its clock and its sensors, to which a family adds services.

    `spin_once` processes everything once.
    """

    repeats_clock = True  # while paused
    pace_s = 0.0  # of each step

    def __init__(self, faults: Faults) -> None:
        self.world, self.faults = ToyWorld(), faults
        self.requests: list[str] = []  # names, in order
        self.interrupted = 0  # steps that a pause interrupted: kept, and added to the next request
        self._context = Context()
        rclpy.init(context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = rclpy.create_node(
            "stand_in", context=self._context, enable_rosout=False, start_parameter_services=False
        )
        self._clock = self.node.create_publisher(Clock, "/clock", 10)
        self._joints = self.node.create_publisher(JointState, "/joint_states", 10)
        self._commands = self.node.create_subscription(Float64MultiArray, "/arm_controller/commands", print, 10)
        self._echo = self.node.create_publisher(Float64MultiArray, "/arm_controller/echo", 10)
        self._services: list[tuple[Any, Callable[[Any, Any], bool]]] = []
        self._when_paused: list[Callable[[], None]] = []
        self._late: list[tuple[float, JointState]] = []
        self._repeat_at = 0.0
        self._between: queue.SimpleQueue[tuple[Callable[[], object], threading.Event]] = queue.SimpleQueue()

    def run_between_iterations(self, action: Callable[[], object]) -> None:
        """Run a function between two iterations, as an unknown client would, and return when it is done."""
        done = threading.Event()
        self._between.put((action, done))
        assert done.wait(30.0)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Do nothing meanwhile, as after SIGSTOP, while requests wait."""
        resumed, waits = threading.Event(), threading.Event()

        def wait() -> None:
            waits.set()
            resumed.wait(30.0)

        self._between.put((wait, threading.Event()))
        assert waits.wait(30.0)
        try:
            yield
        finally:
            resumed.set()

    def restore(self) -> None:
        """Pause, and clear pending requests and faults."""
        self.faults = Faults()
        self.interrupted = 0
        self.world.pending, self.world.paused = 0, True
        self._when_paused.clear()
        self._late.clear()
        self.requests.clear()
        self._publish_clock()

    def offer(self, service_type: Any, name: str, serve: Callable[[Any, Any], bool]) -> None:
        """Offer a service whose `serve` fills in the response.

        It returns whether the response waits until the world is paused.
        """
        self._services.append((self.node.create_service(service_type, name, print), serve))

    def spin_once(self) -> bool:
        """Process everything once, and return whether anything happened."""
        while not self._between.empty():
            action, done = self._between.get()
            action()
            done.set()
        happened = self._take_commands() | self._take_requests() | self._iterate()
        now_s = time.monotonic()
        if self._late and self._late[0][0] < now_s:
            self._joints.publish(self._late.pop(0)[1])
        if not happened and self.repeats_clock and now_s > self._repeat_at:
            self._repeat_at = now_s + _REPEAT_S
            self._publish_clock()
        return happened

    def _take_commands(self) -> bool:
        taken = False
        while (found := self._commands.handle.take_message(Float64MultiArray, False)) is not None:
            self.world.command, taken = tuple(found[0].data), True
            if not self.faults.drops_echo:
                self._echo.publish(found[0])
        return taken

    def _take_requests(self) -> bool:
        taken = False
        for service, serve in self._services:
            request, header = service.handle.service_take_request(service.srv_type.Request)
            if request is None:
                continue
            taken = True
            response = service.srv_type.Response()
            self.requests.append(service.srv_name)
            waits = serve(request, response)
            self._answer(partial(service.send_response, response, header.request_id), waits=waits)
        return taken

    def _answer(self, send: Callable[[], None], *, waits: bool) -> None:
        if self.faults.replies == "never":
            return
        if waits and self.faults.replies != "early":
            self._when_paused.append(send)
        else:
            send()

    def _iterate(self) -> bool:
        """Run one iteration, if one is due, and return whether the world moved."""
        world, faults = self.world, self.faults
        if faults.rewinds_in is not None and (world.pending or not world.paused):
            faults.rewinds_in -= 1
            if faults.rewinds_in < 0:
                faults.rewinds_in = None
                world.reset()
                self._publish_clock()
        stuck = faults.stops_after is not None and faults.stops_after <= 0
        moves = not stuck and (world.pending > 0 or not world.paused)
        if moves:
            if faults.stops_after is not None:
                faults.stops_after -= 1
            self._publish_step()
        elif not world.pending:
            for send in self._when_paused:
                send()
            self._when_paused.clear()
        return moves

    def _publish_step(self) -> None:
        world = self.world
        world.step()
        self._publish_clock(self.faults.clock_repeats)
        self._publish_joints()
        if world.pending:
            world.pending -= 1
        time.sleep(self.pace_s)

    def _publish_clock(self, times: int = 1) -> None:
        if not self.faults.silent:
            for _ in range(times):
                self._clock.publish(Clock(clock=stamp_of(self.world.now_ns)))

    def _publish_joints(self) -> None:
        kind, world = self.faults.sensors, self.world
        if kind == "never" or (kind == "slow" and world.now_ns % 1_000_000_000):
            return
        message = JointState(name=list(JOINTS), position=list(world.position), velocity=[0.0] * len(JOINTS))
        message.header.stamp = stamp_of(world.now_ns - (10 * STEP_NS if kind == "old" else 0))
        if kind == "late":
            self._late.append((time.monotonic() + 0.1, message))
        else:
            for _ in range(3 if kind == "repeated" else 1):
                self._joints.publish(message)

    def request_steps(self, steps: int) -> None:
        """Run `steps` iterations, what a pause has interrupted, and those of other clients."""
        if self.faults.acts:
            self.world.pending += steps + self.faults.extra_steps + self.interrupted
            self.interrupted = 0

    def request_reset(self, *, time_too: bool = True) -> None:
        if self.faults.acts:
            self.world.reset(time_too=time_too)
            self._publish_clock()

    def close(self) -> None:
        """Destroy the node and its context."""
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)


class RosGzStandIn(StandIn):
    """A Gazebo world behind ros_gz_bridge, which replies once a request is queued."""

    def __init__(self, faults: Faults, *, name: str = "toy", sets_pose: bool = True) -> None:
        from ros_gz_interfaces.srv import ControlWorld, SetEntityPose

        super().__init__(faults)
        self._queue: list[Any] = []
        self.offer(ControlWorld, f"/world/{name}/control", self._control)
        if sets_pose:
            self.offer(SetEntityPose, f"/world/{name}/set_pose", self._set_pose)

    def _control(self, request: Any, response: Any) -> bool:
        response.success = not self.faults.refuses
        if response.success:
            self._queue.append(request.world_control)
        return False

    def _set_pose(self, request: Any, response: Any) -> bool:
        self.world.poses[request.entity.name] = pose_of(request.pose)
        response.success = True
        return False

    def spin_once(self) -> bool:
        """Apply the queue at the end of an iteration.

        The last request decides about a reset, and steps add up.
        """
        happened = super().spin_once()
        rewind = False
        for control in self._queue:
            self.world.paused, rewind = control.pause, control.reset.all or control.reset.time_only
            if control.pause and (control.multi_step or control.step):
                self.request_steps(control.multi_step or 1)
            elif control.pause:
                self.interrupted, self.world.pending = self.interrupted + self.world.pending, 0
        if rewind:
            self.request_reset()
        happened = happened or bool(self._queue)
        self._queue.clear()
        return happened


class SimulationInterfacesStandIn(StandIn):
    """The standard services, which reply at the end of a step, and a clock that is not repeated while paused."""

    repeats_clock = False

    def __init__(self, faults: Faults, *, prefix: str = "", features: tuple[int, ...] = tuple(FEATURES)) -> None:
        from simulation_interfaces import srv

        super().__init__(faults)
        self._features = features
        self.offer(srv.GetSimulatorFeatures, f"{prefix}/get_simulator_features", self._get_features)
        self.offer(srv.SetSimulationState, f"{prefix}/set_simulation_state", self._set_state)
        self.offer(srv.ResetSimulation, f"{prefix}/reset_simulation", self._reset)
        self.offer(srv.GetEntityState, f"{prefix}/get_entity_state", self._get_entity)
        self.offer(srv.SetEntityState, f"{prefix}/set_entity_state", self._set_entity)
        if 33 in features:
            from simulation_interfaces.action import SimulateSteps

            send_goal = SimulateSteps.Impl.SendGoalService
            self.offer(send_goal, f"{prefix}/simulate_steps/_action/send_goal", self._send_goal)
        else:
            self.offer(srv.StepSimulation, f"{prefix}/step_simulation", self._step)

    def _get_features(self, request: Any, response: Any) -> bool:
        response.features.features = list(self._features)
        return False

    def _set_state(self, request: Any, response: Any) -> bool:
        pauses = request.state.state == 2
        response.result.result = 101 if pauses == self.world.paused else 1
        self.world.paused = pauses
        return False

    def _step(self, request: Any, response: Any) -> bool:
        if self._is_refused(response):
            return False
        self.request_steps(request.steps)
        return True

    def _send_goal(self, request: Any, response: Any) -> bool:
        response.accepted = self.world.paused and not self.faults.refuses
        if response.accepted:
            self.request_steps(request.goal.steps)
        return False

    def _reset(self, request: Any, response: Any) -> bool:
        if not self._is_refused(response):
            self.request_reset(time_too=request.scope in (0, 1, 255))
        return True

    def _get_entity(self, request: Any, response: Any) -> bool:
        known = self.world.poses.get(request.entity)
        response.result.result = 2 if known is None else 1
        if known is not None:
            fill_pose(response.state.pose, known)
            response.state.header.stamp = stamp_of(self.world.now_ns)
        return False

    def _set_entity(self, request: Any, response: Any) -> bool:
        response.result.result = 1
        if request.set_pose:
            self.world.poses[request.entity] = pose_of(request.state.pose)
        return False

    def _is_refused(self, response: Any) -> bool:
        response.result.result = 4 if self.faults.refuses else 1
        response.result.error_message = "not in the mood" if self.faults.refuses else ""
        return self.faults.refuses


STAND_INS = {"ros_gz": RosGzStandIn, "simulation_interfaces": SimulationInterfacesStandIn}


@contextlib.contextmanager
def hosted(name: str, **options: Any):
    """Host the stand-in of a family in a thread, and remove all of it at the end."""
    stand_in = STAND_INS[name](options.pop("faults", Faults()), **options)
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            if not stand_in.spin_once():
                time.sleep(_IDLE_S)

    thread = threading.Thread(target=run, name=f"stand-in {name}")
    thread.start()
    try:
        yield stand_in
    finally:
        stop.set()
        thread.join()
        stand_in.close()


def host_until_signal(name: str, **options: Any) -> None:
    """Host the stand-in of a family until SIGTERM or SIGINT."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with hosted(name, **options):
        stopped.wait()


def stamp_of(time_ns: int) -> Time:
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return Time(sec=seconds, nanosec=rest)


def pose_of(pose: Any) -> tuple[float, ...]:
    """Return x, y, z and the quaternion of a message."""
    place, turn = pose.position, pose.orientation
    return place.x, place.y, place.z, turn.x, turn.y, turn.z, turn.w


def fill_pose(pose: Any, values: tuple[float, ...]) -> None:
    """Write x, y, z and the quaternion into a message."""
    place, turn = pose.position, pose.orientation
    place.x, place.y, place.z, turn.x, turn.y, turn.z, turn.w = values
