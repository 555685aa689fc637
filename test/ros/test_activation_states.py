"""What must be active: anything else, silence among it, holds at once, and stops when it has lasted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from embodied_env.core.clock import NS_PER_S, ManualClock
from embodied_env.errors import ContractError
from embodied_env.ros.robot.activation_monitor import ActivationStates, controller_state, lifecycle_state, topic_state
from embodied_env.ros.robot.backend_profile import ActiveSpec, check_active

BOUND_NS = NS_PER_S // 2
DRIVER = ActiveSpec(node="/arm_driver")
ACTIVE, OFF = (True, ""), (False, "/arm_driver is deactivating")


def activities(spec=DRIVER):
    clock = ManualClock(start_ns=NS_PER_S)
    return ActivationStates({"driver": spec}, clock, bound_ns=BOUND_NS), clock


def test_what_was_never_heard_of_is_not_active():
    found, _ = activities()
    assert found.states() == {"driver": "lapsed: nothing was heard of it"}
    assert found.missing() == ["driver"]


def test_what_says_so_is_active():
    found, _ = activities()
    found.put("driver", ACTIVE)
    assert found.states() == {"driver": "ok"}


def test_what_was_deactivated_holds_first_and_stops_at_the_bound():
    found, clock = activities()
    found.put("driver", ACTIVE)
    found.put("driver", OFF)
    assert found.states() == {"driver": "lapsed: /arm_driver is deactivating"}
    clock.advance_ns(BOUND_NS - 1)
    assert found.states()["driver"].startswith("lapsed")
    clock.advance_ns(1)
    assert found.states() == {"driver": "inactive: /arm_driver is deactivating"}


def test_what_became_active_again_stays_lapsed_until_it_is_asked_anew():
    found, clock = activities()
    found.put("driver", OFF)
    found.put("driver", ACTIVE)
    assert found.states()["driver"].startswith("lapsed")
    clock.advance_ns(BOUND_NS)
    assert found.states()["driver"].startswith("inactive")
    found.begin()
    assert found.missing() == ["driver"]
    found.put("driver", ACTIVE)
    assert found.states() == {"driver": "ok"}


def test_a_node_that_falls_silent_has_lapsed():
    found, clock = activities()
    found.put("driver", ACTIVE)
    clock.advance_ns(2 * NS_PER_S)
    assert found.states() == {"driver": "ok"}
    clock.advance_ns(NS_PER_S // 10)
    assert found.states() == {"driver": "lapsed: /arm_driver/get_state is silent for 2.1 s"}


def test_what_a_latched_topic_said_last_holds_over_a_reset_and_never_expires():
    found, clock = activities(ActiveSpec(topic="state", latched=True))
    found.put("driver", ACTIVE)
    clock.advance_ns(100 * NS_PER_S)
    found.begin()
    assert (found.missing(), found.states()) == ([], {"driver": "ok"})


# ---------------------------------------------------------------------------------------------- what they say


@pytest.mark.parametrize(
    ("number", "label", "is_active"),
    [(3, "active", True), (2, "inactive", False), (1, "unconfigured", False), (14, "deactivating", False)],
)
def test_a_lifecycle_node_is_active_in_one_state_alone(number, label, is_active):
    said = lifecycle_state(SimpleNamespace(id=number, label=label), "/arm_driver")
    assert said == (is_active, f"/arm_driver is {label}")


def test_a_state_of_no_name_is_told_by_its_number():
    assert lifecycle_state(SimpleNamespace(id=99, label=""), "/arm") == (False, "/arm is in the state 99")


def response(**states):
    return SimpleNamespace(controller=[SimpleNamespace(name=name, state=state) for name, state in states.items()])


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({"other": "inactive", "arm": "active"}, (True, "arm is active")),
        ({"other": "active", "arm": "inactive"}, (False, "arm is inactive")),
        ({"other": "active"}, (False, "/cm has no controller arm")),
    ],
)
def test_a_controller_is_found_by_its_name(states, said):
    assert controller_state(response(**states), "arm", "/cm") == said


def test_a_topic_says_why():
    spec = ActiveSpec(topic="hardware", path="mode", safe=(7,), reason="error")
    message = SimpleNamespace(mode=3, error="overcurrent on joint 2")
    assert topic_state(message, spec) == (False, "hardware says 3: overcurrent on joint 2")
    assert topic_state(SimpleNamespace(mode=7, error=""), spec)[0]


@pytest.mark.parametrize("message", [SimpleNamespace(), SimpleNamespace(data=1), SimpleNamespace(data=None)])
def test_a_message_that_is_not_the_safe_value_itself_is_not_active(message):
    assert not topic_state(message, ActiveSpec(topic="hardware"))[0]


# ------------------------------------------------------------------------------------------------- the profile


@pytest.mark.parametrize(
    ("spec", "path", "problem"),
    [
        (ActiveSpec(), "driver", "exactly one of node, controller, topic"),
        (ActiveSpec(node="/arm", topic="state"), "driver", "node, topic .expected"),
        (ActiveSpec(node="no good"), "driver.node", "not a ROS 2"),
        (ActiveSpec(controller="arm", manager="no good"), "driver.manager", "not a ROS 2"),
        (ActiveSpec(node="/arm", timeout_s=0.0), "driver.timeout_s", "seconds > 0"),
        (ActiveSpec(node="/arm", latched=True), "driver.latched", "only with a topic"),
        (ActiveSpec(controller="arm", reason="text"), "driver.reason", "only with a topic"),
    ],
)
def test_a_wrong_entry_is_refused_by_its_path(spec, path, problem):
    with pytest.raises(ContractError, match=problem) as caught:
        check_active({"driver": spec}, "backends.real.active")
    assert caught.value.path == f"backends.real.active.{path}"
