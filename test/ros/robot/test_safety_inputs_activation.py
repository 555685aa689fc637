"""Activation checks through fake clients and a fake node, because controller_manager is on no registry."""

import importlib.util
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from embodied_env.core.safety_input_state import texts_of
from embodied_env.errors import BackendLostError, BackendNotReadyError, MissingDependencyError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.robot import safety_inputs
from embodied_env.ros.robot.robot_profile import ActiveSpec
from embodied_env.ros.robot.safety_inputs import ActivationMonitor
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.ros.wire.transforms import Tf2Frames
from embodied_env.timing.clock import NS_PER_S, ManualClock

ARM = ActiveSpec(controller="arm", manager="/cm")
BOUND_NS = NS_PER_S


class FakeClient:
    """A service that responds with `states` at once, or on request while that is None."""

    srv_type = SimpleNamespace(Request=SimpleNamespace)

    def __init__(self, states):
        self.states = states
        self.is_offered = True
        self.futures = []
        self.removed = []

    def service_is_ready(self):
        return self.is_offered

    def call_async(self, _request):
        self.futures.append(Future())
        if self.states is not None:
            threading.Thread(target=self.futures[-1].set_result, args=[self.response()]).start()
        return self.futures[-1]

    def response(self, states=None):
        states = self.states if states is None else states
        return SimpleNamespace(controller=[SimpleNamespace(name=n, state=s) for n, s in states.items()])

    def remove_pending_request(self, future):
        self.removed.append(future)


class FakeListener(ReceiveThread):
    def __init__(self, clock):
        self.condition = threading.Condition()
        self.failure = None
        self._clock = clock


class Bench:
    """A monitor of one controller, where `poll` is what the node's timer calls."""

    def __init__(self, states):
        self.client = FakeClient(states)
        self.clock = ManualClock(start_ns=NS_PER_S)
        self.listener = FakeListener(self.clock)
        node = SimpleNamespace(create_timer=self._keep)
        with mock.patch.object(safety_inputs, "_create_client", return_value=self.client):
            self.watch = ActivationMonitor({"arm": ARM}, node, self.listener, self.clock, bound_ns=BOUND_NS)

    def _keep(self, _period_s, poll, clock):
        self.poll = poll

    def poll_and_wait(self):
        with self.listener.condition:
            self.poll()
            self.listener.condition.wait(5.0)


def test_an_active_controller_lets_the_episode_begin():
    bench = Bench({"arm": "active"})
    bench.watch.begin(bench.clock.now_ns() + NS_PER_S)
    assert texts_of(bench.watch.states()) == {"arm": "ok"}


def test_an_inactive_controller_is_reported_by_name():
    bench = Bench({"arm": "inactive"})
    with pytest.raises(BackendNotReadyError, match="arm is lapsed: arm is inactive"):
        bench.watch.begin(bench.clock.now_ns() + NS_PER_S)


def test_a_deactivated_controller_is_detected_at_the_next_poll_and_latched():
    bench = Bench({"arm": "active"})
    bench.watch.begin(bench.clock.now_ns() + NS_PER_S)
    bench.client.states = {"arm": "inactive"}
    bench.poll_and_wait()
    assert texts_of(bench.watch.states()) == {"arm": "lapsed: arm is inactive"}
    bench.client.states = {"arm": "active"}
    bench.poll_and_wait()
    bench.clock.advance_ns(BOUND_NS)
    assert texts_of(bench.watch.states()) == {"arm": "inactive: arm is inactive"}
    bench.watch.begin(bench.clock.now_ns() + NS_PER_S)
    assert texts_of(bench.watch.states()) == {"arm": "ok"}


def test_a_missing_controller_manager_is_reported_by_name():
    bench = Bench({"arm": "active"})
    bench.client.is_offered = False
    with pytest.raises(BackendNotReadyError, match=r"arm \(from /cm/list_controllers\)"):
        bench.watch.begin(bench.clock.now_ns())


def test_a_response_to_a_request_from_before_the_reset_is_ignored():
    bench = Bench(None)
    bench.poll()
    with pytest.raises(BackendNotReadyError):
        bench.watch.begin(bench.clock.now_ns())
    old, new = bench.client.futures
    assert bench.client.removed == [old]
    old.set_result(bench.client.response({"arm": "active"}))
    assert texts_of(bench.watch.states())["arm"].startswith("lapsed: no status received")
    new.set_result(bench.client.response({"arm": "active"}))
    assert texts_of(bench.watch.states())["arm"].startswith("lapsed")  # the interlock holds until the next reset


def test_a_request_without_a_response_is_cancelled_and_repeated():
    bench = Bench(None)
    bench.poll()
    bench.poll()
    assert len(bench.client.futures) == 1
    bench.clock.advance_ns(2 * NS_PER_S + 1)
    bench.poll()
    assert (len(bench.client.futures), bench.client.removed) == (2, bench.client.futures[:1])


def test_a_wait_ends_when_receiving_has_failed():
    bench = Bench(None)
    bench.listener.failure = RuntimeError("it ended")
    with pytest.raises(BackendLostError):
        bench.watch.begin(bench.clock.now_ns() + NS_PER_S)


def test_missing_controller_messages_are_reported_with_their_package(monkeypatch):
    package = "controller_manager_msgs"  # may be installed, or generated for another test
    message_class.cache_clear()
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not (Path(folder) / package).is_dir()])
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    listener = FakeListener(ManualClock())
    with pytest.raises(MissingDependencyError, match=r"apt install ros-[a-z]+-controller-manager-msgs"):
        ActivationMonitor({"arm": ARM}, SimpleNamespace(), listener, ManualClock(), bound_ns=BOUND_NS)


@pytest.mark.skipif(importlib.util.find_spec("tf2_ros") is not None, reason="it is installed")
def test_missing_tf2_is_reported_with_its_package():
    with pytest.raises(
        MissingDependencyError, match=r"backends.real.tf needs tf2_ros .*apt install ros-[a-z]+-tf2-ros"
    ):
        Tf2Frames(SimpleNamespace())
