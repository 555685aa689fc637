"""Call the services of a robot."""

from __future__ import annotations

import threading
from typing import Any

from embodied_env.errors import BackendNotReadyError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.ros.transport.receiver import POLL_S
from embodied_env.timing.clock import NS_PER_S, Clock

TRIGGER = "std_srvs/srv/Trigger"

_DISCOVERY_POLL_NS = NS_PER_S // 100


class ServiceCaller:
    """A client of one service, whose responses `listener` receives."""

    def __init__(self, listener: ReceiveThread, service: str, clock: Clock, kind: str = TRIGGER) -> None:
        """Create the client of `service`, of the type `kind`, with a relative name in the node's namespace."""
        self.name = listener.node.resolve_service_name(service)
        self._listener = listener
        self._clock = clock
        self._client = listener.node.create_client(message_class(kind), service)

    def call(self, deadline_ns: int, repeat_ns: int | None = None, **fields: Any) -> Any:  # noqa: ANN401 - generated types
        """Call the service with a request of these `fields`, and return the response.

        With `repeat_ns`, a request without a response is sent again after this time, for services where that changes
        nothing: the middleware drops a response if the server has not yet discovered the client's reader. Raises
        BackendNotReadyError without a response at `deadline_ns` (steady clock).
        """
        client, answered = self._client, threading.Event()
        while not client.service_is_ready():
            self._listener.raise_if_failed()
            if (now_ns := self._clock.now_ns()) > deadline_ns:
                raise BackendNotReadyError(f"service {self.name} is not available")
            self._clock.sleep_until_ns(now_ns + _DISCOVERY_POLL_NS)
        futures: list[Any] = []

        def send() -> int:
            futures.append(client.call_async(client.srv_type.Request(**fields)))
            futures[-1].add_done_callback(lambda _: answered.set())
            return self._clock.now_ns()

        sent_ns = send()
        try:
            while not answered.wait(POLL_S):
                self._listener.raise_if_failed()
                now_ns = self._clock.now_ns()
                if now_ns > deadline_ns:
                    raise BackendNotReadyError(f"service {self.name} did not respond in time")
                if repeat_ns is not None and now_ns - sent_ns > repeat_ns:
                    sent_ns = send()
            return next(future for future in futures if future.done()).result()
        finally:
            for future in futures:
                if not future.done():
                    client.remove_pending_request(future)
