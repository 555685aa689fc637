"""A robot in the process of the test, which publishes sensors and stores commands."""

import threading
import time
from dataclasses import replace

import numpy as np
from rclpy.node import Node
from shipped_contracts import unhurried
from waiting import wait_for_error

import embodied_env
from embodied_env.core.types import ResetRequest
from embodied_env.errors import BackendNotReadyError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.embedded_sim.message_encoder import to_message
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.timing.clock import NS_PER_S, SteadyClock

ARM = embodied_env.load_contract("arm_reach")
NAMESPACE = "/robot"
PATIENCE_S = 30.0
PUBLISH_S = ARM.control_period_s / 2


def with_profile(contract=ARM, **keys):
    """Return the contract with these profile keys, and patience for discovery and readings."""
    patient = {"discovery_s": 0.0, "connect_timeout_s": PATIENCE_S, "step_timeout_s": PATIENCE_S}
    return replace(contract, backends={**contract.backends, "real": {**patient, **keys}})


SIMPLE = with_profile(
    unhurried(replace(ARM, sensors={name: ARM.sensors[name] for name in ("joints", "tcp", "target")}))
)


class SteppedClock(SteadyClock):
    """UTC after a step of the system clock of this process, or a suspend of the host."""

    offset_ns = slept_ns = 0

    def system_ns(self):
        return super().system_ns() + self.offset_ns

    def boot_ns(self):
        return super().boot_ns() + self.slept_ns


class InProcessRobot:
    """A robot in this process that stores its commands and publishes its sensors from a thread."""

    def __init__(self, contract=ARM):
        self.contract = contract
        self.ros = RosNode("in_process", namespace=NAMESPACE, clock=SteadyClock())
        self.node: Node = self.ros.node
        self.publishers = {
            name: self.node.create_publisher(message_class(sensor.type), sensor.topic, RELIABLE)
            for name, sensor in contract.sensors.items()
        }
        for name, actuator in contract.actuators.items():
            self.ros.receiver.subscribe(name, message_class(actuator.type), actuator.topic)
        self.offset_s = dict.fromkeys(contract.sensors, 0.0)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._done.wait(PUBLISH_S):
            for name, publisher in self.publishers.items():
                if (offset_s := self.offset_s[name]) is not None:
                    publisher.publish(self._message(name, time.time_ns() + round(offset_s * 1e9)))

    def _message(self, name, now_ns):
        sensor = self.contract.sensors[name]
        value = -0.5 if name == "target" else 0.5  # never reached
        values = {
            field: np.full(len(spec.joints) if spec.joints else 3, value) for field, spec in sensor.fields.items()
        }
        return to_message(sensor, values, now_ns)

    def close(self):
        self._done.set()
        self._thread.join()
        self.ros.close()


def in_s(seconds):
    return time.monotonic_ns() + round(seconds * NS_PER_S)


def reset(backend, timeout_s=PATIENCE_S):
    return backend.reset(ResetRequest(epoch=0, seed=1), in_s(timeout_s))


def check_reset_fails(backend, why, timeout_s=0.5):
    """Reset until discovery is complete, and assert that the last reset fails for this reason."""
    wait_for_error(lambda: reset(backend, timeout_s), BackendNotReadyError, why)
