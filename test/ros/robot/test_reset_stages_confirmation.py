"""Operator confirmation at a terminal, on a topic and by a service is given, declined or missing."""

import contextlib
import io
import os
import pty
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_for

pytest.importorskip("rclpy", reason="needs rclpy")

from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger

from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.robot.reset_stages import REQUEST_TOPIC, Prompt, RosConfirmation, make_confirmation
from embodied_env.ros.robot.robot_profile import ResetSpec
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import LATCHED as LATCHED_QOS
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.timing.clock import NS_PER_S, SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

PATIENCE_S = 20.0
CLOCK = SteadyClock()


def in_s(seconds):
    return time.monotonic_ns() + round(seconds * NS_PER_S)


def no_abort():
    """Never abort the wait."""


@pytest.fixture
def terminal():
    """Return the operator's end of a terminal, ours, and the printed text."""
    operator, ours = pty.openpty()
    with os.fdopen(ours, "r", buffering=1) as source:
        out = io.StringIO()
        yield SimpleNamespace(
            operator=operator, source=source, out=out, prompt=Prompt(CLOCK, no_abort, source=source, out=out)
        )
    os.close(operator)


def typed(terminal, text, *, seconds=PATIENCE_S):
    """Ask, and type `text` once the question is pending."""

    def answer():
        wait_for(lambda: "Enter: confirm" in terminal.out.getvalue())
        os.write(terminal.operator, text)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        terminal.prompt.ask("is the goal at [1.0]?", in_s(seconds))
    finally:
        thread.join()


@pytest.mark.parametrize("text", [b"\n", b"yes\n", b" Go \n", b"what?\n\n"])
def test_enter_confirms(terminal, text):
    typed(terminal, text)
    assert "is the goal at [1.0]?" in terminal.out.getvalue()


@pytest.mark.parametrize("text", [b"n\n", b"No, wait\n", b"q\n", b"what?\nn\n", b"\x04"])
def test_n_or_q_declines(terminal, text):
    with pytest.raises(BackendNotReadyError, match="declined at the prompt"):
        typed(terminal, text)


def test_input_from_before_the_question_is_discarded(terminal):
    os.write(terminal.operator, b"\n")
    with pytest.raises(BackendNotReadyError, match="no confirmation at the prompt in time; the robot does not move"):
        terminal.prompt.ask("now?", in_s(0.15))


def test_an_error_of_check_liveness_ends_the_prompt(terminal):
    def check_liveness():
        raise BackendNotReadyError("the robot has gone")

    with pytest.raises(BackendNotReadyError, match="the robot has gone"):
        Prompt(CLOCK, check_liveness, source=terminal.source, out=terminal.out).ask("now?", in_s(PATIENCE_S))


def test_a_pipe_cannot_confirm():
    reading, writing = os.pipe()
    os.write(writing, b"\n")
    os.close(writing)
    with os.fdopen(reading) as source, pytest.raises(BackendNotReadyError, match="prompt needs a terminal"):
        Prompt(CLOCK, no_abort, source=source)


@pytest.fixture
def nodes(domain_id):
    """Yield our node with its listener, and the operator's node."""
    ours = RosNode("environment", namespace="/robot", clock=CLOCK, domain_id=domain_id)
    listener = ReceiveThread(ours.node, CLOCK)
    operator = RosNode("operator", namespace="/robot", clock=CLOCK, domain_id=domain_id)
    yield SimpleNamespace(ours=ours, listener=listener, operator=operator)
    listener.stop()
    operator.close()
    ours.close()


@pytest.fixture
def by_topic(nodes):
    asking = make_confirmation(ResetSpec(confirm="topic"), nodes.listener, CLOCK)
    publisher = nodes.operator.node.create_publisher(Bool, "environment/confirm", RELIABLE)
    nodes.listener.start()
    assert isinstance(asking, RosConfirmation)
    wait_for(lambda: publisher.get_subscription_count() == 1)
    return asking, publisher


def later(action, seconds=0.1):
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


@pytest.mark.parametrize("answer", [True, False])
def test_true_on_the_topic_confirms_and_false_declines(by_topic, nodes, answer):
    asking, publisher = by_topic
    timer = later(lambda: publisher.publish(Bool(data=answer)))
    declined = pytest.raises(BackendNotReadyError, match="declined on /robot/environment/confirm")
    with contextlib.nullcontext() if answer else declined:
        asking.ask("now?", in_s(PATIENCE_S))
    timer.join()


def test_a_message_from_before_the_question_is_ignored(by_topic, nodes):
    asking, publisher = by_topic
    publisher.publish(Bool(data=True))  # may arrive before or after the question
    with pytest.raises(BackendNotReadyError, match="no confirmation on /robot/environment/confirm in time"):
        asking.ask("now?", in_s(0.15))


class LateListener:
    """Deliver, while the question is pending, a message that was sent one second before it."""

    def __init__(self, node):
        self.node, self.condition = node, threading.Condition()

    def subscribe(self, key, message_type, topic, qos, take):
        self.take = take

    def wait_until(self, condition, deadline_ns):
        now_ns = CLOCK.system_ns()
        stamps = {"source_timestamp": now_ns - NS_PER_S, "received_timestamp": now_ns}
        self.take(
            ReceivedMessage(
                key="confirm", message=Bool(data=True), info=stamps, arrival_ns=CLOCK.now_ns(), arrival_system_ns=now_ns
            )
        )
        return condition()


def test_a_message_from_before_the_question_that_arrives_after_it_is_ignored(nodes):
    listener: Any = LateListener(nodes.ours.node)
    asking = RosConfirmation(ResetSpec(confirm="topic"), listener, CLOCK)
    with pytest.raises(BackendNotReadyError, match=r"in time; .* sent [01]\.\d{3} s before the question"):
        asking.ask("now?", in_s(PATIENCE_S))


def test_the_question_is_published_while_it_is_pending(by_topic, nodes):
    asking, publisher = by_topic
    received = []
    topic = REQUEST_TOPIC.replace("~", "environment")
    nodes.operator.node.create_subscription(String, topic, lambda message: received.append(message.data), LATCHED_QOS)
    hearing = ReceiveThread(nodes.operator.node, CLOCK)
    hearing.start()

    def answer():
        wait_for(lambda: received)
        publisher.publish(Bool(data=True))

    timer = later(answer)
    asking.ask("is the goal at [1.0]?", in_s(PATIENCE_S))
    timer.join()
    wait_for(lambda: received[-1] == "")
    hearing.stop()
    assert "is the goal at [1.0]?" in received


@pytest.fixture
def by_service(nodes):
    asking = make_confirmation(ResetSpec(confirm="service"), nodes.listener, CLOCK)
    nodes.listener.start()
    assert isinstance(asking, RosConfirmation)

    def call():
        return nodes.operator.receiver.call(Trigger, "environment/confirm", Trigger.Request(), PATIENCE_S, no_abort)

    return asking, call


def test_a_service_call_confirms_only_while_the_question_is_pending(by_service, nodes):
    asking, call = by_service
    before = call()
    assert (before.success, before.message) == (False, "no question is pending")
    answers = []
    timer = later(lambda: answers.append(call()))
    asking.ask("now?", in_s(PATIENCE_S))
    timer.join()
    assert answers[0].success
    assert not call().success


def test_a_question_that_could_not_be_published_is_not_pending(by_service, monkeypatch):
    asking, call = by_service

    def publish(_):
        raise RuntimeError("the context is shut down")

    monkeypatch.setattr(asking._publisher, "publish", publish)
    with pytest.raises(RuntimeError, match="shut down"):
        asking.ask("now?", in_s(PATIENCE_S))
    assert not call().success


def test_the_service_confirmation_times_out(by_service, nodes):
    asking, _ = by_service
    with pytest.raises(BackendNotReadyError, match="no confirmation by /robot/environment/confirm in time"):
        asking.ask("now?", in_s(0.15))


def test_confirm_none_needs_no_confirmation(nodes):
    assert make_confirmation(ResetSpec(), nodes.listener, CLOCK) is None
