import time

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

import rclpy
from rclpy.context import Context
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import ANY, RELIABLE
from embodied_env.ros.transport.receiver import RETRY_S, Receiver
from embodied_env.timing.clock import ManualClock, SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

PATIENCE_S = 30.0


@pytest.fixture
def nodes(domain_id):
    context = Context()
    rclpy.init(context=context)
    both = [Node(name, context=context, start_parameter_services=False) for name in ("ours", "theirs")]
    yield context, *both
    for node in both:
        node.destroy_node()
    rclpy.shutdown(context=context)


@pytest.fixture
def receiver(nodes):
    _, ours, _ = nodes
    return Receiver(ours, SteadyClock())


@pytest.fixture
def publish_to(nodes):
    """Return a function that makes a publisher and waits for its subscription."""
    _, _, theirs = nodes

    def make(topic, message_type=String, qos=RELIABLE):
        publisher, end = theirs.create_publisher(message_type, topic, qos), time.monotonic() + PATIENCE_S
        while not publisher.get_subscription_count() and time.monotonic() < end:
            time.sleep(0.01)
        return publisher

    return make


@pytest.fixture
def connected(receiver, publish_to):
    """A receiver and a matched publisher."""
    receiver.subscribe("words", String, "topic")
    return receiver, publish_to("topic")


def take_all(receiver, count):
    arrivals, end = [], time.monotonic() + PATIENCE_S
    while len(arrivals) < count and time.monotonic() < end:
        arrivals += receiver.receive(0.1)
    return arrivals


def test_messages_arrive_in_order_with_their_key(connected):
    receiver, publisher = connected
    for word in "abc":
        publisher.publish(String(data=word))
    assert [(a.key, a.message.data) for a in take_all(receiver, 3)] == [("words", w) for w in "abc"]


def test_the_middleware_numbers_and_stamps_each_message(connected):
    receiver, publisher = connected
    for word in "ab":
        publisher.publish(String(data=word))
    first, second = take_all(receiver, 2)
    assert second.info["publication_sequence_number"] == first.info["publication_sequence_number"] + 1
    assert first.info["source_timestamp"] <= first.info["received_timestamp"] <= first.arrival_system_ns


def test_arrivals_are_stamped_by_the_injected_clock(nodes, publish_to):
    receiver = Receiver(nodes[1], ManualClock(42))
    receiver.subscribe("words", String, "topic")
    publish_to("topic").publish(String(data="x"))
    (arrival,) = take_all(receiver, 1)
    assert (arrival.arrival_ns, arrival.arrival_system_ns) == (42, 42)


def test_an_unavailable_service_times_out(receiver):
    with pytest.raises(TimeoutError, match="service /nothing is not available"):
        receiver.call(Trigger, "/nothing", Trigger.Request(), 0.2, lambda: None)
    with pytest.raises(TimeoutError, match="not available"):
        receiver.call_async(Trigger, "/nothing", Trigger.Request(), 0.05)


def test_a_service_without_a_response_times_out(nodes, receiver):
    nodes[2].create_service(Trigger, "mute", lambda _request, response: response)  # no executor spins it
    with pytest.raises(TimeoutError, match="no response from service mute"):
        receiver.call(Trigger, "mute", Trigger.Request(), 0.5, lambda: None)


def test_an_error_of_check_liveness_ends_a_call(receiver):
    def alarm():
        raise RuntimeError("the simulator has died")

    with pytest.raises(RuntimeError, match="has died"):
        receiver.call(Trigger, "nothing", Trigger.Request(), PATIENCE_S, alarm)


def test_closing_a_node_is_idempotent(domain_id):
    ours = RosNode("ours", namespace="/test", clock=SteadyClock())
    ours.close()
    ours.close()


@pytest.fixture
def pair(receiver, publish_to):
    """A receiver of raw joint states and typed strings, and their publishers."""
    receiver.subscribe("joints", JointState, "joints", raw=True)
    receiver.subscribe("words", String, "words")
    return receiver, publish_to("joints", JointState, 10), publish_to("words", String, 10)


def test_a_selective_wait_ends_with_its_key_and_takes_one_message_per_key(pair):
    receiver, joints, words = pair
    joints.publish(JointState(name=["a"], position=[1.0]))
    joints.publish(JointState(name=["a"], position=[2.0]))
    started = time.monotonic()
    assert [a.key for a in receiver.receive(0.2, until=["words"])] == ["joints"]
    assert time.monotonic() - started >= 0.2  # other messages do not end the wait
    words.publish(String(data="end"))
    assert [a.key for a in receiver.receive(PATIENCE_S, until=["words"])] == ["joints", "words"]


def test_a_raw_message_decodes_to_what_was_published(pair):
    receiver, joints, _ = pair
    for value in (1.0, 2.0):
        joints.publish(JointState(name=["a"], position=[value]))
    found = [(list(m.name), list(m.position)) for m in (a.message.decoded() for a in take_all(receiver, 2))]
    assert found[1] == (["a"], [2.0])


def test_invalid_bytes_are_dropped(pair):
    receiver, joints, _ = pair
    joints.publish(b"\0\1\0\0abcd")
    joints.publish(JointState(name=["a"]))
    assert [arrival.message.decoded().name for arrival in take_all(receiver, 1)] == [["a"]]


class TriggerServer:
    """Answers a Trigger on request, in `TriggerServer.serve`."""

    def __init__(self, context, node):
        from rclpy.executors import SingleThreadedExecutor

        self.requests = 0
        self._executor = SingleThreadedExecutor(context=context)
        node.create_service(Trigger, "work", self._on_request)
        self._executor.add_node(node)

    def _on_request(self, request, response):
        self.requests += 1
        response.message = f"answer {self.requests}"
        return response

    def serve(self, requests, within_s=PATIENCE_S):
        end = time.monotonic() + within_s
        while self.requests < requests and time.monotonic() < end:
            self._executor.spin_once(timeout_sec=0.01)


@pytest.fixture
def server(nodes):
    context, _, theirs = nodes
    return TriggerServer(context, theirs)


def take_until(receiver, condition):
    end = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < end:
        receiver.receive(0.1)


def test_an_async_request_is_sent_once_and_answered_in_a_later_receive(receiver, server):
    answer = receiver.call_async(Trigger, "work", Trigger.Request(), PATIENCE_S)
    first = answer.response
    assert first is None
    end = time.monotonic() + 1.2 * RETRY_S
    while time.monotonic() < end:
        receiver.receive(0.05)
    server.serve(1)
    take_until(receiver, lambda: answer.response is not None)
    server.serve(2, within_s=0.2)
    assert (server.requests, answer.response.message) == (1, "answer 1")


def test_a_response_to_an_abandoned_request_is_dropped(receiver, server):
    old = receiver.call_async(Trigger, "work", Trigger.Request(), PATIENCE_S)
    new = receiver.call_async(Trigger, "work", Trigger.Request(), PATIENCE_S)
    server.serve(2)
    take_until(receiver, lambda: new.response is not None)
    assert (old.response, new.response.message) == (None, "answer 2")


def test_messages_arrive_while_a_response_is_pending(connected, server):
    receiver, publisher = connected
    receiver.call_async(Trigger, "work", Trigger.Request(), PATIENCE_S)
    publisher.publish(String(data="meanwhile"))
    assert [a.message.data for a in take_all(receiver, 1)] == ["meanwhile"]


def test_services_returns_names_and_types(receiver, server):
    take_until(receiver, lambda: "/work" in receiver.services())
    assert receiver.services()["/work"] == ("std_srvs/srv/Trigger",)


def test_a_subscription_uses_the_given_qos(receiver, publish_to):
    receiver.subscribe("words", String, "topic", ANY)
    publish_to("topic", qos=ANY).publish(String(data="best effort"))
    assert [a.message.data for a in take_all(receiver, 1)] == ["best effort"]
