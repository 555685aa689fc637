"""Requests are built and features and replies interpreted without a node."""

import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from simulator_stand_ins import FEATURES

from embodied_env.errors import BackendNotReadyError, MissingDependencyError, UsageError
from embodied_env.extensions.gazebo.control import APIS
from embodied_env.extensions.gazebo.control.simulation_interfaces import set_state_flags
from embodied_env.extensions.gazebo.control.simulator_api import FAULTS, SimulatorRefusedError
from embodied_env.messages.message_types import message_class

pytestmark = pytest.mark.ros

PACKAGES = {"ros_gz": "ros_gz_interfaces", "simulation_interfaces": "simulation_interfaces"}


@pytest.fixture
def api(message_package):
    """Return a function that builds an API without a ROS node."""

    def build(name, prefix=None):
        message_package(PACKAGES[name])
        return APIS[name](world="toy", prefix=prefix)

    return build


def api_with(api, features, services=("set_simulation_state", "step_simulation", "reset_simulation")):
    kinds = {"set_simulation_state": "SetSimulationState", "step_simulation": "StepSimulation"}
    kinds |= {"reset_simulation": "ResetSimulation", "get_simulator_features": "GetSimulatorFeatures"}
    offered = {f"/sim/{each}": (f"simulation_interfaces/srv/{kinds[each]}",) for each in services}
    offered["/sim/get_simulator_features"] = ("simulation_interfaces/srv/GetSimulatorFeatures",)
    (request,) = api.probe(offered)
    request.read(SimpleNamespace(features=SimpleNamespace(features=features)))
    return api


def test_gazebo_never_accepts_a_seed(api):
    assert api("ros_gz").reset().message.world_control.seed == 0


@pytest.mark.parametrize("ask", [lambda d: d.step(3), lambda d: d.reset(), lambda d: d.pause()])
def test_gazebo_is_always_paused_on_connect(api, ask):
    assert ask(api("ros_gz")).message.world_control.pause is True


def test_a_step_count_beyond_the_message_field_is_rejected(api):
    with pytest.raises(UsageError, match="expected 1 to 4294967295"):
        api("ros_gz").step(2**32)


def test_an_unbridged_world_is_reported_with_the_bridged_ones(api):
    with pytest.raises(BackendNotReadyError, match=r"/world/toy/control .*/world/other/control"):
        api("ros_gz").probe({"/world/other/control": ("ros_gz_interfaces/srv/ControlWorld",)})


def test_the_simulator_is_found_in_its_namespace(api):
    built = api_with(api("simulation_interfaces"), FEATURES)
    assert built.pause().service == "/sim/set_simulation_state"
    assert built.capabilities.reset


def test_an_instance_name_is_required_with_two_simulators(api):
    offered = dict.fromkeys(
        ("/a/get_simulator_features", "/b/get_simulator_features"), ("simulation_interfaces/srv/GetSimulatorFeatures",)
    )
    with pytest.raises(BackendNotReadyError, match="/a, /b"):
        api("simulation_interfaces").probe(offered)
    assert api("simulation_interfaces", "/b").probe(offered)[0].service == "/b/get_simulator_features"


def test_a_feature_without_its_service_is_unavailable(api):
    assert not api_with(api("simulation_interfaces"), FEATURES).capabilities.state_query


@pytest.mark.parametrize("features", [[20], [25, 26]])
def test_a_simulator_without_steps_is_rejected_even_if_it_can_pause(api, features):
    with pytest.raises(BackendNotReadyError, match="feature 31 with step_simulation"):
        api_with(api("simulation_interfaces"), features)


def test_multiple_steps_need_their_own_feature(api):
    built = api_with(api("simulation_interfaces"), [31])
    assert built.step(1).message.steps == 1
    with pytest.raises(UsageError, match="feature 32"):
        built.step(2)


def test_a_gazebo_step_reply_does_not_end_the_step(api):
    built = api("simulation_interfaces")
    offered = {
        f"/gzserver/default/{name}": (f"simulation_interfaces/srv/{kind}",)
        for name, kind in (("get_simulator_features", "GetSimulatorFeatures"), ("step_simulation", "StepSimulation"))
    }
    (request,) = built.probe(offered)
    request.read(SimpleNamespace(features=SimpleNamespace(features=[31, 32])))
    assert not built.step(3).is_done_at_reply
    assert api_with(api("simulation_interfaces"), FEATURES).step(3).is_done_at_reply


def test_a_reply_of_zeros_is_an_error(api):
    built = api_with(api("simulation_interfaces"), FEATURES)
    with pytest.raises(SimulatorRefusedError, match=r"FEATURE_UNSUPPORTED \(0\)"):
        built.step(1).read(built.step(1).type.Response())


@pytest.mark.parametrize("flags", [{}, {"set_pose": False, "set_twist": False, "set_acceleration": True}])
def test_states_are_set_with_and_without_the_flags_of_newer_versions(flags):
    message = SimpleNamespace(entity="cart", **flags)
    set_state_flags(message)
    chosen = {key: value for key, value in vars(message).items() if key != "entity"}
    assert chosen == ({"set_pose": True, "set_twist": True, "set_acceleration": False} if flags else {})


@pytest.mark.parametrize("name", PACKAGES)
def test_missing_messages_are_named_with_their_package(monkeypatch, name):
    for module in [each for each in sys.modules if each.partition(".")[0] == PACKAGES[name]]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if each is not PathFinder])
    message_class.cache_clear()
    apt = rf"apt install ros-\$ROS_DISTRO-{PACKAGES[name].replace('_', '-')}\)"
    with pytest.raises(MissingDependencyError, match=apt):
        APIS[name](world="toy", prefix=None)


def test_every_reason_of_a_lost_simulator_is_documented():
    page = (Path(__file__).parents[4] / "docs" / "howto" / "gazebo.md").read_text()
    table = page.partition("## Faults")[2].partition("After a step")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(FAULTS)
