"""Monitor a robot's e-stops, inactive controllers and foreign publishers."""

from __future__ import annotations

from embodied_env.contract import Contract
from embodied_env.core.safety_input_state import INPUT_OK, INPUT_UNKNOWN, InputState, InputStatus
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.robot.activation_monitor import ActivationMonitor
from embodied_env.ros.robot.estops import EstopInputs
from embodied_env.ros.robot.graph_checks import contention
from embodied_env.ros.robot.robot_profile import RealProfile
from embodied_env.ros.robot.sensor_publishers import SENSOR_TOPICS, SensorPublishers
from embodied_env.ros.transport.qos import input_qos
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.timing.clock import NS_PER_S, Clock

CONTENTION = "actuator topics"
"""The name of the safety input that reports other publishers of commands."""

_CONTENTION_PERIOD_NS = NS_PER_S // 2  # a check takes some hundred microseconds


class SafetyInputs:
    """The safety inputs of one connection, under the listener's lock.

    Attributes:
        publishers: those of the readings and of these inputs; the owner of the sensors adds their messages.
    """

    def __init__(self, contract: Contract, profile: RealProfile, listener: ReceiveThread, clock: Clock) -> None:
        """Subscribe, before `listener` starts."""
        self._contract = contract
        self._profile = profile
        self._node = listener.node
        self._listener = listener
        self._clock = clock
        self._estops = EstopInputs(profile.estop, clock)
        self._checked_ns = 0  # the graph, on the steady clock
        self._contention = INPUT_OK
        self.publishers = SensorPublishers(
            contract, self._node, clock, shared=profile.shared, inputs=[spec.topic for spec in profile.estop.values()]
        )
        for name, spec in profile.estop.items():
            listener.subscribe(name, spec.type, spec.topic, input_qos(latched=spec.latched), self._store)
        bound_ns = contract.safety.observation.stop_steps * contract.control_period_ns
        self._activation = ActivationMonitor(profile.active, self._node, listener, clock, bound_ns=bound_ns)

    def _store(self, arrival: ReceivedMessage) -> None:
        self.publishers.add(self._estops.specs[arrival.key].topic, arrival)
        self._estops.put(arrival.key, arrival.message)

    def clear_contention(self) -> None:
        """Report no contention until the next check, since preflight has just found none."""
        self._contention = INPUT_OK

    def missing(self) -> list[str]:
        """Return the names of the inputs without a message or response, under the lock."""
        return self._unknown() + self._activation.missing()

    def _unknown(self) -> list[str]:
        return [name for name, state in self._estops.states().items() if state == INPUT_UNKNOWN]

    def wait_for_inputs(self, deadline_ns: int) -> None:
        """Wait until every input has a message, or raise BackendNotReadyError at `deadline_ns` (steady clock)."""
        if not self._listener.wait_until(lambda: not self._unknown(), deadline_ns):
            topics = ", ".join(self._estops.specs[name].topic for name in self._unknown())
            raise BackendNotReadyError(f"no message from safety inputs on {topics}")

    def check_stops(self, deadline_ns: int) -> None:
        """Wait for the stops of the robot as `wait_for_inputs`, and raise BackendNotReadyError unless all are ok."""
        self.wait_for_inputs(deadline_ns)
        with self._listener.condition:
            stops = [f"{name} is {state}" for name, state in self._estops.described().items() if not state.is_ok]
        if stops:
            raise BackendNotReadyError(f"reset service not called: {'; '.join(stops)} (backends.real.estop)")

    def check_active(self, deadline_ns: int) -> None:
        """Raise BackendNotReadyError unless everything in ``backends.real.active`` is active."""
        self._activation.begin(deadline_ns)

    def states(self, *, is_moving: bool) -> dict[str, InputState]:
        """Return the state of each input, under the lock, with foreign command publishers if `is_moving`."""
        now_ns, node = self._clock.now_ns(), self._node
        self._estops.forget_unpublished(lambda topic: node.count_publishers(node.resolve_topic_name(topic)))
        if is_moving and now_ns - self._checked_ns >= _CONTENTION_PERIOD_NS:
            found = [
                f"{', '.join(publishers)} on {node.resolve_topic_name(topic)}"
                for topic, publishers in contention(self._contract, self._profile, node).items()
            ]
            self._contention = InputState(InputStatus.CONTENTION, "; ".join(found)) if found else INPUT_OK
            self._checked_ns = now_ns
        topics = {CONTENTION: self._contention, SENSOR_TOPICS: self.publishers.state()}
        return {**self._estops.described(), **self._activation.states(), **topics}
