"""A service is called once, or again while its response is lost."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.transport.receive_thread import ServiceCaller
from embodied_env.timing.clock import NS_PER_S, ManualClock

pytestmark = pytest.mark.ros


class LossyClient:
    """Stands in for a client whose first responses do not arrive."""

    def __init__(self, lost: int):
        self.lost, self.sent, self.removed = lost, 0, 0
        self.srv_type = SimpleNamespace(Request=SimpleNamespace)

    def service_is_ready(self):
        return True

    def call_async(self, request):
        self.sent += 1
        future = Future()
        if self.sent > self.lost:
            future.set_result(f"response to {request.text}")
        return future

    def remove_pending_request(self, _):
        self.removed += 1


class FastClock(ManualClock):
    """Advances by 0.3 s at each reading."""

    def now_ns(self):
        self.advance_ns(3 * NS_PER_S // 10)
        return super().now_ns()


def caller_of(client):
    node = SimpleNamespace(resolve_service_name=lambda name: f"/{name}", create_client=lambda *_: client)
    listener: Any = SimpleNamespace(node=node, raise_if_failed=lambda: None)
    return ServiceCaller(listener, "reset", FastClock())


def test_a_call_without_a_response_is_not_repeated():
    client = LossyClient(lost=1)
    with pytest.raises(BackendNotReadyError, match="/reset did not respond"):
        caller_of(client).call(3 * NS_PER_S, text="x")
    assert (client.sent, client.removed) == (1, 1)


def test_a_request_is_sent_again_if_that_changes_nothing():
    client = LossyClient(lost=2)
    assert caller_of(client).call(9 * NS_PER_S, repeat_ns=NS_PER_S, text="x") == "response to x"
    assert (client.sent, client.removed) == (3, 2)
