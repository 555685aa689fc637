"""The fault injection relay over real ROS 2, as a node in a thread."""

import threading
import time

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Int64

from embodied_env.errors import BackendNotReadyError, MissingDependencyError, UsageError
from embodied_env.ros.transport.node import RosNode
from embodied_env.testing import ChaosNode
from embodied_env.testing.fault_injection import Corrupt, Delay, Drop, Duplicate, Edit, Freeze, Reorder, Restamp
from embodied_env.testing.fault_injection.fault_node import chaos_qos
from embodied_env.testing.fault_injection.faults import rng_of
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

GENEROUS_S = 20.0


class Endpoints:
    """Publishes at one end of the relay and reads at the other."""

    def __init__(self, message_type, qos):
        self.ros = RosNode("ends", namespace="/", clock=SteadyClock())
        self.publisher = self.ros.node.create_publisher(message_type, "clean", qos)
        self.ros.receiver.subscribe("spoilt", message_type, "spoilt", chaos_qos())
        self.type = message_type
        self.received = []

    def send(self, *values):
        for value in values:
            self.publisher.publish(value if isinstance(value, self.type) else self.type(data=value))
            self.take(0.0)

    def take(self, timeout_s):
        self.received += [arrival.message for arrival in self.ros.receiver.receive(timeout_s)]

    def receive(self, count):
        """Return the next messages, or fewer when no more arrive in time."""
        end = time.monotonic() + GENEROUS_S
        while len(self.received) < count and time.monotonic() < end:
            self.take(0.05)
        taken, self.received = self.received[:count], self.received[count:]
        return taken

    def connected(self):
        return self.publisher.get_subscription_count() > 0 and self.ros.node.count_publishers("spoilt") > 0


@pytest.fixture
def endpoints(domain_id):
    made = []

    def make(message_type=Int64, qos=chaos_qos()):  # noqa: B008 - deep queues lose nothing on a busy machine
        made.append(Endpoints(message_type, qos))
        return made[-1]

    yield make
    for each in made:
        each.ros.close()


def wait(endpoints, chaos=None):
    assert endpoints.ros.wait_until(endpoints.connected, GENEROUS_S)
    if chaos is not None:
        chaos.wait_connected(GENEROUS_S)


def settled(chaos, received):
    """Return the counts once `count` messages have arrived and none is pending."""
    end = time.monotonic() + GENEROUS_S
    while True:
        counts = chaos.counts()
        if (counts["received"], counts["pending"]) == (received, 0) or time.monotonic() > end:
            return counts
        time.sleep(0.01)


def is_running(name):
    return any(thread.name == name for thread in threading.enumerate())


def test_the_seed_determines_which_messages_are_dropped(endpoints):
    both = endpoints()
    fault = Drop(share=0.3)
    with ChaosNode("clean", "spoilt", "std_msgs/msg/Int64", faults=[fault], seed=7) as chaos:
        wait(both, chaos)
        both.send(*range(100))
        kept = [number for number in range(100) if not fault.hits(0.0, rng_of(7, 0, number))]
        assert [message.data for message in both.receive(len(kept))] == kept
        assert settled(chaos, 100)["dropped"] == 100 - len(kept)


def test_duplicates_and_reordering_are_counted(endpoints):
    both = endpoints()
    chain = [Duplicate(share=0.2), Reorder(share=0.2)]
    with ChaosNode("clean", "spoilt", "std_msgs/msg/Int64", faults=chain, seed=1) as chaos:
        wait(both, chaos)
        both.send(*range(50))
        copies = sum(chain[0].hits(0.0, rng_of(1, 0, number)) for number in range(50))
        received = [message.data for message in both.receive(50 + copies)]
        counts = settled(chaos, 50)
    assert counts["published"] == 50 + counts["duplicated"] == len(received)
    assert set(received) == set(range(50))
    assert received != sorted(received)
    assert counts["reordered"] > 0


def test_a_delay_follows_the_steady_clock(endpoints):
    both = endpoints()
    with ChaosNode("clean", "spoilt", "std_msgs/msg/Int64", faults=[Delay(delay_s=0.5)], seed=0) as chaos:
        wait(both, chaos)
        began = time.monotonic()
        both.send(1)
        assert len(both.receive(1)) == 1
        assert time.monotonic() - began >= 0.5


def joint_state(number):
    message = JointState(name=["j1"], position=[float(number)])
    message.header.stamp.sec = 100 + number
    return message


def renamed(message):
    message.name = ["other"]
    return message


def test_faults_can_be_changed_while_running(endpoints):
    both = endpoints(JointState)
    with ChaosNode("clean", "spoilt", "sensor_msgs/msg/JointState", seed=0) as chaos:
        wait(both, chaos)
        both.send(joint_state(0))
        assert both.receive(1)[0].position[0] == 0.0
        chaos.set_faults(Freeze())
        both.send(joint_state(1), joint_state(2))
        assert [message.header.stamp.sec for message in both.receive(2)] == [101, 101]
        chaos.set_faults(Restamp(kind="zero"), Corrupt())
        both.send(joint_state(3))
        (message,) = both.receive(1)
        assert (message.header.stamp.sec, str(message.position[0])) == (0, "nan")
        chaos.set_faults(Edit(edit=renamed))
        both.send(joint_state(4))
        (message,) = both.receive(1)
        assert (message.position[0], message.name) == (4.0, ["other"])


def test_an_exception_in_the_thread_is_raised_on_exit(endpoints):
    both = endpoints()

    def fail(_message):
        raise ZeroDivisionError("on purpose")

    def relay_until_it_fails():
        with ChaosNode("clean", "spoilt", "std_msgs/msg/Int64", faults=[Edit(edit=fail)], seed=0) as chaos:
            wait(both, chaos)
            both.send(1)
            end = time.monotonic() + GENEROUS_S
            while is_running("chaos_spoilt") and time.monotonic() < end:
                time.sleep(0.01)

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        relay_until_it_fails()


def test_a_latched_topic_stays_latched(endpoints):
    latched = chaos_qos(transient_local=True)
    both = endpoints(Bool, latched)
    both.send(True)
    with ChaosNode("clean", "spoilt", "std_msgs/msg/Bool", seed=0, qos=latched) as chaos:
        assert settled(chaos, 1)["published"] == 1
        late = RosNode("late", namespace="/", clock=SteadyClock())
        received = []
        qos = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        late.node.create_subscription(Bool, "spoilt", received.append, qos)
        from rclpy.executors import SingleThreadedExecutor

        executor = SingleThreadedExecutor(context=late.node.context)
        executor.add_node(late.node)
        end = time.monotonic() + GENEROUS_S
        while not received and time.monotonic() < end:
            executor.spin_once(timeout_sec=0.1)
        executor.shutdown()
        late.close()
    assert [message.data for message in received] == [True]


def test_missing_endpoints_are_reported(domain_id):
    with (
        ChaosNode("clean", "spoilt", "std_msgs/msg/Int64", seed=0) as chaos,
        pytest.raises(BackendNotReadyError, match="0 publishers of clean, 0 subscribers of spoilt"),
    ):
        chaos.wait_connected(0.2)


def test_exit_is_immediate_and_joins_the_thread(domain_id):
    faults = [Delay(delay_s=1000.0)]
    with ChaosNode("clean", "spoilt", "std_msgs/msg/Int64", faults=faults, seed=0):
        assert is_running("chaos_spoilt")
    assert not is_running("chaos_spoilt")


@pytest.mark.parametrize(
    ("end", "kind", "faults", "error", "problem"),
    [
        ("spoilt", "std_msgs/msg/Int64", [Restamp()], UsageError, "Restamp"),
        ("clean", "std_msgs/msg/Int64", [], UsageError, "same topic"),
        ("spoilt", "no_such_msgs/msg/Thing", [], MissingDependencyError, "no_such_msgs"),
    ],
)
def test_a_node_that_cannot_spoil_its_topic_is_rejected(end, kind, faults, error, problem):
    with pytest.raises(error, match=problem):
        ChaosNode("clean", end, kind, faults=faults, seed=0)
