"""A small simulator of `arm_reach` with services that step and reset it, and the faults of real ones.

It takes requests itself, so that a reply can be early or missing.
"""

import contextlib
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import rclpy
from rclpy.context import Context
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger

from embodied_env.messages.declaration import set_stamp
from embodied_env.ros.embedded_sim.message_encoder import to_message

TICK_NS = 5_000_000  # of physics
SERVICES = ("/simulator/step_once", "/simulator/restart")


@dataclass
class Faults:
    """Faults of the next step or reset, or permanent ones."""

    early_reply_s: float = 0.0  # it replies this long before it starts
    drops_reply: bool = False
    stops_at: int | None = None  # ticks of a step after which it stops
    extra_ticks: int = 0
    rewinds: bool = False  # to 0, during a step
    late: dict[str, float] = field(default_factory=dict)  # sensor -> s after the step
    drops: set[str] = field(default_factory=set)  # silent sensors
    old_after: set[str] = field(default_factory=set)  # sensors that repeat an old stamp after the new one
    is_silent_until_step: bool = False  # sensors, after a reset
    drops_echo: bool = False  # no command is repeated
    refuses: str = ""


class SmallSimulator:
    """One small world, advanced by a separate thread."""

    def __init__(self, contract, domain_id=None):
        self.contract, self.faults = contract, Faults()
        self.now_ns, self.is_running, self.requests = 0, False, []
        self.commands = []
        self._context = Context()
        rclpy.init(context=self._context, domain_id=domain_id)
        self._node = node = Node("small", context=self._context, start_parameter_services=False, enable_rosout=False)
        self._clock = node.create_publisher(Clock, "/clock", 10)
        self._echo = node.create_publisher(Float64MultiArray, "/arm_controller/echo", 10)
        self._position = np.zeros(6)
        types = {n: to_message(s, self._values(n), 1) for n, s in contract.sensors.items()}
        self._sensors = {n: node.create_publisher(type(m), contract.sensors[n].topic, 10) for n, m in types.items()}
        topic = contract.actuators["arm"].topic
        self._subscription = node.create_subscription(Float64MultiArray, topic, lambda _: None, 10)
        self._services = {name: node.create_service(Trigger, name, lambda _, r: r) for name in SERVICES}
        self._late = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _values(self, name):
        if name == "joints":
            return {"position": self._position.copy(), "velocity": np.zeros(6)}
        return (
            {"range": np.ones(1, dtype=np.float32)}
            if name == "true_distance"
            else {"position": np.full(3, 0.5 if name == "tcp" else 0.2)}
        )

    def _run(self):
        repeat_at_s = 0.0
        while not self._stop.is_set():
            for name, service in self._services.items():
                taken = service.handle.service_take_request(service.srv_type.Request)
                if taken is not None and taken[0] is not None:
                    self._serve(name, service, *taken)
            while (taken := self._subscription.handle.take_message(Float64MultiArray, False)) is not None:
                self.commands.append(np.array(taken[0].data))
                self._position = self.commands[-1]
                if not self.faults.drops_echo:
                    self._echo.publish(taken[0])
            if self.is_running and self.faults.stops_at is None:
                self.tick(1)
            elif time.monotonic() > repeat_at_s:
                repeat_at_s = time.monotonic() + 0.004
                self._publish_clock()
            for due in [each for each in self._late if each[0] <= time.monotonic()]:
                self._late.remove(due)
                self._publish_sensor(due[1], due[2])
            time.sleep(0.001)

    def _serve(self, name, service, request, header):
        del request
        faults, kind = self.faults, name.rpartition("/")[2]
        self.requests.append(kind)
        response = service.srv_type.Response()
        response.success, response.message = not faults.refuses, faults.refuses

        def reply():
            if not faults.drops_reply:
                service.send_response(response, header)

        if faults.early_reply_s:
            reply()
            time.sleep(faults.early_reply_s)
        if not faults.refuses:
            self._do(kind)
        if not faults.early_reply_s:
            reply()

    def _do(self, kind):
        faults = self.faults
        if kind == "step_once":
            ticks = self.contract.control_period_ns // TICK_NS
            self.tick(ticks if faults.stops_at is None else faults.stops_at)
            if faults.rewinds:
                self.now_ns = 0
                self.tick(1)
            self.tick(faults.extra_ticks)
        else:
            self.tick(1, publishes=not faults.is_silent_until_step)

    def tick(self, ticks, *, publishes=True):
        for _ in range(ticks):
            self.now_ns += TICK_NS
            self._publish_clock()
        for name in self._sensors if ticks and publishes else ():
            if name in self.faults.late:
                self._late.append((time.monotonic() + self.faults.late[name], name, self.now_ns))
            elif name not in self.faults.drops:
                self._publish_sensor(name, self.now_ns)
            if name in self.faults.old_after:
                self._publish_sensor(name, self.now_ns - self.contract.control_period_ns)

    def _publish_clock(self):
        message = Clock()
        set_stamp(message.clock, self.now_ns)
        self._clock.publish(message)

    def _publish_sensor(self, name, stamp_ns):
        self._sensors[name].publish(to_message(self.contract.sensors[name], self._values(name), stamp_ns))

    def close(self):
        self._stop.set()
        self._thread.join()
        self._node.destroy_node()
        rclpy.shutdown(context=self._context)


@contextlib.contextmanager
def small_simulator(contract, domain_id=None):
    """Yield a running simulator, and close it at the end."""
    simulator = SmallSimulator(contract, domain_id)
    try:
        yield simulator
    finally:
        simulator.close()
