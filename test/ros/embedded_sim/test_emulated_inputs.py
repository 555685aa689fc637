from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy", reason="needs message packages")

from embodied_env.core.safety_input_state import texts_of
from embodied_env.errors import ContractError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.embedded_sim.emulated_inputs import (
    EmulatedService,
    EmulatedTopic,
    EstopSpec,
    message_of,
    services_of,
    topics_of,
)
from embodied_env.ros.robot.estops import EstopInputs, estop_specs
from embodied_env.ros.robot.robot_profile import ActiveSpec
from embodied_env.timing.clock import NS_PER_S, ManualClock


def spec_of(**keys):
    (spec,) = estop_specs({"the button": {"topic": "button", **keys}}, "backends.real.estop").values()
    return EstopSpec(name="estop/the button", **vars(spec))


class FakeNode:
    """Stores published messages."""

    def __init__(self):
        self.published, self.services, self.publishers = [], {}, 1

    def create_publisher(self, _kind, topic, qos):
        self.qos = qos
        return SimpleNamespace(topic_name=topic, publish=self.published.append)

    def create_service(self, _kind, name, callback):
        self.services[name] = callback

    def count_publishers(self, _topic):
        return self.publishers

    def press(self, *, pressed):
        (callback,) = self.services.values()
        return callback(SimpleNamespace(data=pressed), SimpleNamespace(success=None, message=None))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"type": "std_msgs/msg/UInt8", "safe": (255,)},
        {"type": "std_msgs/msg/String", "safe": ("RUN", "IDLE")},
        {"type": "sensor_msgs/msg/JointState", "path": "position[2]", "safe": (0.5,)},
        {"type": "sensor_msgs/msg/Imu", "path": "orientation_covariance[1]", "safe": (0.0,)},
        {"type": "diagnostic_msgs/msg/DiagnosticArray", "path": "status[1].message", "safe": ("ok",)},
    ],
)
def test_a_released_estop_is_ok_and_a_pressed_one_is_not(keys):
    spec = spec_of(**keys)
    inputs = EstopInputs({spec.name: spec}, ManualClock())
    for pressed, state in ((False, "ok"), (True, "active")):
        inputs.put(spec.name, message_of([spec], {spec.name} if pressed else set()))
        assert texts_of(inputs.states()) == {spec.name: state}


def test_a_value_that_does_not_fit_the_message_type_raises_with_its_path():
    with pytest.raises(ContractError) as caught:
        message_of([spec_of(safe=("closed",), type="std_msgs/msg/UInt8")], set())
    assert caught.value.path == "backends.real.estop.the button.safe"


def test_publishes_within_the_timeout_and_at_once_when_pressed():
    node, spec = FakeNode(), spec_of(timeout_s=0.5)
    estop = EmulatedTopic([spec], node, "latched", "repeated")
    for now_ns in range(0, 2 * NS_PER_S, NS_PER_S // 100):
        estop.serve(now_ns)
    assert 8 <= len(node.published) <= 40
    assert node.qos == "repeated"
    assert list(node.services) == ["~/estop/the_button"]
    assert node.press(pressed=True).success
    estop.serve(2 * NS_PER_S)
    assert node.published[-1].data is True
    node.press(pressed=False)
    estop.serve(2 * NS_PER_S)
    assert node.published[-1].data is False


def test_a_latched_estop_is_published_once_and_on_each_change():
    node = FakeNode()
    estop = EmulatedTopic([spec_of(latched=True)], node, "latched", "repeated")
    for now_ns in range(0, 2 * NS_PER_S, NS_PER_S // 100):
        estop.serve(now_ns)
    node.press(pressed=True)
    estop.serve(2 * NS_PER_S)
    assert [message.data for message in node.published] == [False, True]
    assert (node.qos, estop.next_ns) == ("latched", None)


def test_does_not_publish_beside_a_real_button():
    node = FakeNode()
    estop = EmulatedTopic([spec_of()], node, "latched", "repeated")
    node.publishers = 2
    estop.serve(0)
    assert node.published == []
    node.publishers = 1
    estop.serve(NS_PER_S)
    assert len(node.published) == 1


def test_false_deactivates_a_required_state():
    node = FakeNode()
    topic = EmulatedTopic([replace(spec_of(latched=True, safe=(True,)), name="active/program")], node, "latched", "")
    assert list(node.services) == ["~/active/program"]
    for is_active in (False, True):
        assert node.press(pressed=is_active).message == ("active" if is_active else "inactive")
        topic.serve(0)
        assert node.published[-1].data is is_active


def test_controllers_of_one_manager_share_its_service(message_package):
    message_package("controller_manager_msgs")
    specs = {f"active/{name}": ActiveSpec(controller=name, manager="/manager") for name in ("arm", "hand")}
    ((service, found),) = services_of({**specs, "estop/button": spec_of()}).items()
    node = FakeNode()
    EmulatedService(service, found, node)
    assert list(node.services) == ["/manager/list_controllers", "~/active/arm", "~/active/hand"]

    def states():
        response = node.services[service](None, message_class("controller_manager_msgs/srv/ListControllers").Response())
        return {each.name: each.state for each in response.controller}

    assert states() == {"arm": "active", "hand": "active"}
    assert node.services["~/active/hand"](SimpleNamespace(data=False), SimpleNamespace()).message == "inactive"
    assert states() == {"arm": "active", "hand": "inactive"}


def test_inputs_of_one_topic_share_its_messages():
    keys = {"topic": "state", "type": "std_msgs/msg/UInt8MultiArray"}
    error = replace(spec_of(**keys, path="data[1]", safe=(0,)), name="estop/error")
    mode = replace(spec_of(**keys, path="data[0]", safe=(7,)), name="active/mode")
    ((*found,),) = topics_of({"estop/error": error, "active/mode": mode})
    assert list(message_of(found, set()).data) == [7, 0]
    assert list(message_of(found, {"estop/error"}).data) == [7, 1]
    assert list(message_of(found, {"active/mode"}).data) == [0, 0]
    shared = [error, replace(error, name="estop/other")]
    assert [list(message_of(shared, {spec.name}).data) for spec in shared] == [[0, 1], [0, 1]]
    with pytest.raises(ContractError, match="expected std_msgs/msg/Bool"):
        list(topics_of({"estop/a": spec_of(), "estop/b": spec_of(type="std_msgs/msg/UInt8", safe=(0,))}))
