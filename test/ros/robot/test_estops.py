"""Only a recent safe value of a safety input is ok, and a missing, invalid or unpublished one is not."""

from types import SimpleNamespace

import pytest

from embodied_env.core.safety_input_state import texts_of
from embodied_env.errors import ContractError
from embodied_env.ros.robot.estops import EstopInputs, SafetyInputSpec, estop_specs
from embodied_env.timing.clock import NS_PER_S, ManualClock

BUTTON = SafetyInputSpec(topic="button")


def data_message(data):
    return SimpleNamespace(data=data)


def inputs(spec=BUTTON):
    clock = ManualClock(start_ns=NS_PER_S)
    return EstopInputs({spec.topic: spec}, clock), clock


def test_an_input_is_unknown_before_its_first_message():
    found, _ = inputs()
    assert texts_of(found.states()) == {"button": "unknown"}


def test_a_safe_value_is_ok_until_it_expires():
    found, clock = inputs()
    found.put("button", data_message(False))
    clock.advance_ns(NS_PER_S // 2)
    assert texts_of(found.states()) == {"button": "ok"}
    clock.advance_ns(1)
    assert texts_of(found.states()) == {"button": "expired"}


def test_any_other_value_is_active_and_does_not_expire():
    found, clock = inputs()
    found.put("button", data_message(True))
    clock.advance_ns(NS_PER_S)
    assert texts_of(found.states()) == {"button": "active"}


def test_an_unsafe_robot_mode_is_a_protective_stop():
    found, _ = inputs(SafetyInputSpec(topic="mode", safe=(7, 3), kind="robot_mode"))
    found.put("mode", data_message(3))
    assert texts_of(found.states()) == {"mode": "ok"}
    found.put("mode", data_message(4))
    assert texts_of(found.states()) == {"mode": "protective_stop"}


@pytest.mark.parametrize(
    "message",
    [SimpleNamespace(), data_message(0), data_message(None), data_message("False"), data_message(float("nan"))],
)
def test_a_value_of_another_type_is_not_safe(message):
    found, _ = inputs()
    found.put("button", message)
    assert texts_of(found.states()) == {"button": "active"}


def test_a_latched_value_does_not_expire_but_is_unknown_without_its_publisher():
    found, clock = inputs(SafetyInputSpec(topic="button", latched=True))
    found.put("button", data_message(False))
    clock.advance_ns(3600 * NS_PER_S)
    assert texts_of(found.states()) == {"button": "ok"}
    found.forget_unpublished(lambda _: 1)
    assert texts_of(found.states()) == {"button": "ok"}
    found.forget_unpublished(lambda _: 0)
    assert texts_of(found.states()) == {"button": "unknown"}


def test_an_element_of_a_sequence_can_be_the_input():
    found, _ = inputs(SafetyInputSpec(topic="io", path="states[1].on", safe=(True,)))
    found.put("io", SimpleNamespace(states=[SimpleNamespace(on=False), SimpleNamespace(on=True)]))
    assert texts_of(found.states()) == {"io": "ok"}
    found.put("io", SimpleNamespace(states=[]))
    assert texts_of(found.states()) == {"io": "active"}


def test_null_means_no_inputs():
    assert estop_specs(None, "estop") == {}


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({}, "estop.button.topic"),
        ({"topic": "no topic"}, "estop.button.topic"),
        ({"topic": "t", "tiemout_s": 1.0}, "estop.button.tiemout_s"),
        ({"topic": "t", "timeout_s": 0.0}, "estop.button.timeout_s"),
        ({"topic": "t", "kind": "stop"}, "estop.button.kind"),
        ({"topic": "t", "safe": ()}, "estop.button.safe"),
        ({"topic": "t", "path": "nowhere"}, "estop.button.path"),
        ({"topic": "t", "type": "std_msgs/msg/Bole"}, "estop.button.type"),
        ({"topic": "t", "type": "Bool"}, "estop.button.type"),
        ({"topic": "t", "type": ""}, "estop.button.type"),
        ("t", "estop.button"),
    ],
)
def test_an_invalid_profile_is_rejected_with_its_path(values, path):
    pytest.importorskip("std_msgs", reason="needs the messages of ROS 2")
    with pytest.raises(ContractError) as caught:
        estop_specs({"button": values}, "estop")
    assert caught.value.path == path


@pytest.mark.parametrize("estop", ["button", ("button",), 1])
def test_inputs_must_be_a_mapping(estop):
    with pytest.raises(ContractError) as caught:
        estop_specs(estop, "estop")
    assert caught.value.path == "estop"


def test_a_valid_profile_is_parsed():
    pytest.importorskip("std_msgs", reason="needs the messages of ROS 2")
    assert estop_specs({"button": {"topic": "button", "safe": (False,)}}, "estop") == {"button": BUTTON}
