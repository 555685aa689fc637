"""Any state but active, and no state at all, holds at once and stops after a delay."""

from types import SimpleNamespace

import pytest
from shipped_contracts import changed_contract

from embodied_env.core.safety_input_state import texts_of
from embodied_env.errors import ContractError
from embodied_env.ros.robot.robot_profile import ActiveSpec, load_real_profile
from embodied_env.ros.robot.safety_inputs import ActivationStates, controller_state, lifecycle_state, topic_state
from embodied_env.timing.clock import NS_PER_S, ManualClock

BOUND_NS = NS_PER_S // 2
DRIVER = ActiveSpec(node="/arm_driver")
ACTIVE, OFF = (True, ""), (False, "/arm_driver is deactivating")


def activities(spec=DRIVER):
    clock = ManualClock(start_ns=NS_PER_S)
    return ActivationStates({"driver": spec}, clock, bound_ns=BOUND_NS), clock


def test_a_source_without_a_status_is_not_active():
    found, _ = activities()
    assert texts_of(found.states()) == {"driver": "lapsed: no status received"}
    assert found.missing() == ["driver"]


def test_a_source_that_reports_active_is_active():
    found, _ = activities()
    found.put("driver", ACTIVE)
    assert texts_of(found.states()) == {"driver": "ok"}


def test_a_deactivated_source_holds_then_stops_after_the_delay():
    found, clock = activities()
    found.put("driver", ACTIVE)
    found.put("driver", OFF)
    assert texts_of(found.states()) == {"driver": "lapsed: /arm_driver is deactivating"}
    clock.advance_ns(BOUND_NS - 1)
    assert texts_of(found.states())["driver"].startswith("lapsed")
    clock.advance_ns(1)
    assert texts_of(found.states()) == {"driver": "inactive: /arm_driver is deactivating"}


def test_a_reactivated_source_stays_lapsed_until_the_next_reset():
    found, clock = activities()
    found.put("driver", OFF)
    found.put("driver", ACTIVE)
    assert texts_of(found.states())["driver"].startswith("lapsed")
    clock.advance_ns(BOUND_NS)
    assert texts_of(found.states())["driver"].startswith("inactive")
    found.clear()
    assert found.missing() == ["driver"]
    found.put("driver", ACTIVE)
    assert texts_of(found.states()) == {"driver": "ok"}


def test_a_silent_node_lapses():
    found, clock = activities()
    found.put("driver", ACTIVE)
    clock.advance_ns(2 * NS_PER_S)
    assert texts_of(found.states()) == {"driver": "ok"}
    clock.advance_ns(NS_PER_S // 10)
    assert texts_of(found.states()) == {"driver": "lapsed: no message from /arm_driver/get_state for 2.1 s"}


def test_the_last_value_of_a_latched_topic_survives_a_reset_and_never_expires():
    found, clock = activities(ActiveSpec(topic="state", latched=True))
    found.put("driver", ACTIVE)
    clock.advance_ns(100 * NS_PER_S)
    found.clear()
    assert (found.missing(), texts_of(found.states())) == ([], {"driver": "ok"})


@pytest.mark.parametrize(
    ("number", "label", "is_active"),
    [(3, "active", True), (2, "inactive", False), (1, "unconfigured", False), (14, "deactivating", False)],
)
def test_a_lifecycle_node_is_active_only_in_state_active(number, label, is_active):
    status = lifecycle_state(SimpleNamespace(id=number, label=label), "/arm_driver")
    assert status == (is_active, f"/arm_driver is {label}")


def test_an_unnamed_state_is_reported_by_number():
    assert lifecycle_state(SimpleNamespace(id=99, label=""), "/arm") == (False, "/arm is in the state 99")


def response(**states):
    return SimpleNamespace(controller=[SimpleNamespace(name=name, state=state) for name, state in states.items()])


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ({"other": "inactive", "arm": "active"}, (True, "arm is active")),
        ({"other": "active", "arm": "inactive"}, (False, "arm is inactive")),
        ({"other": "active"}, (False, "/cm has no controller arm")),
    ],
)
def test_a_controller_is_found_by_its_name(states, status):
    assert controller_state(response(**states), "arm", "/cm") == status


def test_a_topic_can_report_a_reason():
    spec = ActiveSpec(topic="hardware", path="mode", safe=(7,), reason="error")
    message = SimpleNamespace(mode=3, error="overcurrent on joint 2")
    assert topic_state(message, spec) == (False, "hardware is 3: overcurrent on joint 2")
    assert topic_state(SimpleNamespace(mode=7, error=""), spec)[0]


@pytest.mark.parametrize("message", [SimpleNamespace(), SimpleNamespace(data=1), SimpleNamespace(data=None)])
def test_a_message_with_another_value_is_not_active(message):
    assert not topic_state(message, ActiveSpec(topic="hardware"))[0]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({}, "driver"),
        ({"node": "/arm", "topic": "state"}, "driver"),
        ({"node": "no good"}, "driver.node"),
        ({"controller": "arm", "manager": "no good"}, "driver.manager"),
        ({"node": "/arm", "timeout_s": 0.0}, "driver.timeout_s"),
        ({"node": "/arm", "latched": True}, "driver.latched"),
        ({"controller": "arm", "reason": "text"}, "driver.reason"),
    ],
)
def test_an_invalid_entry_is_rejected_with_its_path(spec, path):
    contract = changed_contract("arm_reach", {"backends.real.active": {"driver": spec}})
    with pytest.raises(ContractError, match="expected") as caught:
        load_real_profile(contract)
    assert caught.value.path == f"backends.real.active.{path}"
