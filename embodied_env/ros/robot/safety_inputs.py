"""All that may forbid a robot to move: e-stops, what must be active, strangers on its topics, a latched relay."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from embodied_env.contract import Contract
from embodied_env.core.clock import NS_PER_S, Clock
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.qos import input_qos
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.receiver import POLL_S, ReceivedMessage
from embodied_env.ros.robot.estops import EstopInputs
from embodied_env.ros.robot.graph_checks import contention
from embodied_env.ros.robot.profile import RealProfile
from embodied_env.ros.robot.required_active import RequiredActiveMonitor

CONTENTION = "actuator topics"
"""The name of the safety input that says whether somebody else publishes commands."""

_SETTLED_NS = NS_PER_S
_LOOK_NS = NS_PER_S // 2  # between two looks at who else publishes


class SafetyInputs:
    """What one connection hears of them, under the listener's lock."""

    def __init__(
        self,
        contract: Contract,
        profile: RealProfile,
        written: Mapping[str, Any],
        listener: ReceiveThread,
        clock: Clock,
    ) -> None:
        """Subscribe, and prepare to ask; `listener` has not started yet. `written`: the profile as it is written."""
        self._contract = contract
        self._profile = profile
        self._written = written
        self._node = node = listener.node
        self._listener = listener
        self._clock = clock
        self._inputs = EstopInputs(profile.inputs(), clock)
        self._input_ns: dict[str, int] = {}  # when each was heard
        self._looked_ns = 0  # at who else publishes commands, on the steady clock
        self._contention = "ok"
        for spec in self._inputs.specs:
            listener.subscribe(spec.name, spec.type, spec.topic, input_qos(latched=spec.latched), self._take)
        bound_ns = contract.safety.observation.stop_steps * contract.control_period_ns
        self._activity = RequiredActiveMonitor(profile.active, node, listener, clock, bound_ns=bound_ns)

    def _take(self, arrival: ReceivedMessage) -> None:
        self._inputs.put(arrival.key, arrival.message)
        self._input_ns[arrival.key] = arrival.arrival_ns

    def watch_publishers(self) -> None:
        """Preflight has just seen that nobody else publishes commands."""
        self._contention = "ok"

    def wait_for_inputs(self, end: float) -> None:
        """Wait until every input has said something: one that is only late is no emergency.

        Args:
            end: of the wait, by `time.monotonic`.

        Raises:
            BackendNotReadyError: naming those of which nothing was heard.
        """
        listener = self._listener
        with listener.condition:
            while unheard := [name for name, state in self._inputs.states().items() if state == "unknown"]:
                listener.raise_if_failed()
                if (left_s := end - time.monotonic()) <= 0:
                    names = ", ".join(f"{name} (no message on {self._profile.estop[name].topic})" for name in unheard)
                    raise BackendNotReadyError(f"nothing was heard of these safety inputs: {names}")
                listener.condition.wait(min(POLL_S, left_s))

    def check_active(self, deadline_ns: int) -> None:
        """Ask anew what must be active; raises BackendNotReadyError unless all of it is."""
        self._activity.begin(deadline_ns)

    def states(self, *, is_moving: bool) -> dict[str, str]:
        """Return the state of each, under the lock. Who else publishes is looked at while the robot may move."""
        self._forget_orphans()
        return {
            **self._inputs.states(),
            **self._activity.states(),
            CONTENTION: self._look(is_moving=is_moving),
        }

    def _look(self, *, is_moving: bool) -> str:
        """Return "ok", or who else publishes commands or as the relay, as seen within the last half second."""
        now_ns = self._clock.now_ns()
        if is_moving and now_ns - self._looked_ns >= _LOOK_NS:  # some hundred microseconds
            found = [
                f"{', '.join(each.publishers)} on {self._node.resolve_topic_name(each.topic)}"
                for each in contention(self._contract, self._written, self._node)
                if each.role == "actuator"
            ]
            self._contention = f"contention: {'; '.join(found)}" if found else "ok"
            self._looked_ns = now_ns
        return self._contention

    def _forget_orphans(self) -> None:
        """A latched input whose publisher has gone is unknown. One that has just come may not be in the graph yet."""
        now_ns, node = self._clock.now_ns(), self._node
        for spec in self._inputs.specs:
            is_settled = now_ns - self._input_ns.get(spec.name, now_ns) > _SETTLED_NS
            if spec.latched and is_settled and not node.count_publishers(node.resolve_topic_name(spec.topic)):
                self._inputs.forget(spec.name)
