"""Everything that may forbid a robot to move: e-stops, inactive controllers and foreign command publishers."""

from __future__ import annotations

import time

from embodied_env.contract import Contract
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.qos import input_qos
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.receiver import POLL_S, ReceivedMessage
from embodied_env.ros.robot.activation_monitor import ActivationMonitor
from embodied_env.ros.robot.backend_profile import RealProfile
from embodied_env.ros.robot.estops import EstopInputs
from embodied_env.ros.robot.graph_checks import contention

CONTENTION = "actuator topics"
"""The name of the safety input that reports other publishers of commands."""

_CONTENTION_PERIOD_NS = NS_PER_S // 2  # a look at the graph takes some hundred microseconds


class SafetyInputs:
    """The safety inputs of one connection, under the listener's lock."""

    def __init__(
        self,
        contract: Contract,
        profile: RealProfile,
        listener: ReceiveThread,
        clock: Clock,
    ) -> None:
        """Subscribe; `listener` has not started yet."""
        self._contract = contract
        self._profile = profile
        self._node = listener.node
        self._listener = listener
        self._clock = clock
        self._estops = EstopInputs(profile.inputs(), clock)
        self._looked_ns = 0  # for other publishers, on the steady clock
        self._contention = "ok"
        for spec in self._estops.specs:
            listener.subscribe(spec.name, spec.type, spec.topic, input_qos(latched=spec.latched), self._store)
        bound_ns = contract.safety.observation.stop_steps * contract.control_period_ns
        self._activation = ActivationMonitor(profile.active, self._node, listener, clock, bound_ns=bound_ns)

    def _store(self, arrival: ReceivedMessage) -> None:
        self._estops.put(arrival.key, arrival.message)

    def clear_contention(self) -> None:
        """Report no other publisher of commands until the next look: preflight has just found none."""
        self._contention = "ok"

    def wait_for_inputs(self, end: float) -> None:
        """Wait until every input has sent a message: a late one is no emergency. `end` is by `time.monotonic`.

        Raises:
            BackendNotReadyError: naming the inputs without a message.
        """
        listener = self._listener
        with listener.condition:
            while missing := [name for name, state in self._estops.states().items() if state == "unknown"]:
                listener.raise_if_failed()
                if (left_s := end - time.monotonic()) <= 0:
                    names = ", ".join(f"{name} (no message on {self._profile.estop[name].topic})" for name in missing)
                    raise BackendNotReadyError(f"nothing was heard of these safety inputs: {names}")
                listener.condition.wait(min(POLL_S, left_s))

    def check_active(self, deadline_ns: int) -> None:
        """Poll what must be active; raises BackendNotReadyError unless all of it is."""
        self._activation.begin(deadline_ns)

    def states(self, *, is_moving: bool) -> dict[str, str]:
        """Return the state of each input, under the lock. `is_moving`: look for other publishers of commands."""
        now_ns, node = self._clock.now_ns(), self._node
        self._estops.forget_unpublished(lambda topic: node.count_publishers(node.resolve_topic_name(topic)))
        if is_moving and now_ns - self._looked_ns >= _CONTENTION_PERIOD_NS:
            found = [
                f"{', '.join(publishers)} on {node.resolve_topic_name(topic)}"
                for topic, publishers in contention(self._contract, self._profile, node).items()
            ]
            self._contention = f"contention: {'; '.join(found)}" if found else "ok"
            self._looked_ns = now_ns
        return {**self._estops.states(), **self._activation.states(), CONTENTION: self._contention}
