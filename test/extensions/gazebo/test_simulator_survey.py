"""`embodied-env doctor` names each fault of server, bridge and world of a simulator with its remedy."""

import contextlib
import dataclasses

import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from sensor_msgs.msg import JointState
from simulator_stand_ins import Faults, hosted

import embodied_env
from embodied_env.cli.doctor_cli import examine
from embodied_env.extensions.gazebo import simulator_survey as versions
from embodied_env.ros.transport.node import RosNode
from embodied_env.timing.clock import SteadyClock

pytestmark = pytest.mark.ros

ARM = embodied_env.load_contract("arm_reach")
PROFILE = {
    "world": "toy",
    "step_s": 0.001,
    "reset": "world",
    "draws": {"target": {"pose": "target"}},
    "entities": {"tool": {"position": [0.1, 0.2, 0.3]}},
    "sources": {
        "tcp": {"entity": "tool"},
        "target": {"entity": "tool"},
        "true_distance": {"distance": ["tcp", "target"]},
    },
    "sensor_grace_s": 0.2,
}


@pytest.fixture(scope="module")
def lasting_stand_in(lasting_domain, message_package):
    message_package("ros_gz_interfaces")
    with contextlib.ExitStack() as alive:
        with lasting_domain() as number:
            stand_in = alive.enter_context(hosted("ros_gz"))
        yield stand_in, number


@pytest.fixture
def stand_in(lasting_stand_in, monkeypatch):
    stand_in, number = lasting_stand_in
    monkeypatch.setenv("ROS_DOMAIN_ID", str(number))
    stand_in.run_between_iterations(stand_in.restore)
    yield stand_in
    stand_in.run_between_iterations(stand_in.restore)


def surveyed(timeout_s=0.8, arm=ARM, **profile):
    """Return the checks of the section "simulator" by name."""
    contract = dataclasses.replace(arm, backends={"gazebo": {**PROFILE, **profile}})
    section = examine(contract, "gazebo", namespace="/", timeout_s=timeout_s)["simulator"]
    return {check.name: check for check in section}


def surveyed_until(expected, **profile):
    """Return the checks of the first survey with these failures, on a busy machine a longer one."""
    for timeout_s in (0.8, 3.0, 20.0):
        checks = surveyed(timeout_s=timeout_s, **profile)
        if failures(checks) == expected:
            return checks
    assert failures(checks) == expected
    return checks


def failures(checks):
    return {name: check.code for name, check in checks.items() if check.passed is False}


def test_a_running_simulator_passes_and_is_stepped(stand_in):
    before_ns = stand_in.world.now_ns
    checks = surveyed(timeout_s=20.0)
    assert failures(checks) == {}
    assert "control periods of 0.05 s are exact" in checks["step"].detail
    assert stand_in.world.now_ns > before_ns
    busy = checks["readings.sensors.joints"]
    assert (busy.passed, busy.detail) == (True, "50 messages per control period")
    assert "update_frequency of its publisher to 20" in busy.remedy


def test_without_server_and_bridge_both_are_named_with_the_way_to_start_them(domain_id, message_package):
    message_package("ros_gz_interfaces")
    checks = surveyed(timeout_s=0.1)
    assert failures(checks) == {"services": "service.none", "clock": "clock.silent", "topics": "topics.none"}
    assert "gz sim -s" in checks["clock"].remedy
    assert "parameter_bridge" in checks["topics"].remedy
    assert checks["step"].detail == "not checked because of: services, clock"


def test_another_world_is_named(stand_in):
    checks = surveyed_until({"services": "service.none"}, world="other")
    assert "available: /world/toy/control" in checks["services"].detail


def test_a_world_that_runs_is_not_stepped(stand_in):
    stand_in.pace_s, stand_in.world.paused = 0.005, False
    checks = surveyed_until({"clock": "clock.moves"})
    stand_in.pace_s = 0.0
    assert "without -r" in checks["clock"].remedy
    assert not [name for name in stand_in.requests if name.endswith("control")]


def test_a_bridge_without_a_server_has_a_silent_clock(stand_in):
    stand_in.faults = Faults(silent=True)
    checks = surveyed_until({"clock": "clock.silent"})
    assert "GZ_PARTITION" in checks["clock"].remedy


def test_a_second_publisher_may_be_a_dead_bridge(stand_in, lasting_stand_in):
    node = RosNode("bridge", namespace="/", clock=SteadyClock(), domain_id=lasting_stand_in[1])
    try:
        node.node.create_publisher(JointState, "joint_states", 1)
        checks = surveyed_until({"sensors.joints": "pub.multiple"})
    finally:
        node.close()
    assert "killed stays in the graph" in checks["sensors.joints"].remedy


@pytest.mark.parametrize(("sensors", "code"), [("never", "obs.silent"), ("old", "obs.stale")])
def test_a_sensor_that_is_not_published_at_the_end_of_a_step_fails(stand_in, sensors, code):
    stand_in.faults = Faults(sensors=sensors)
    assert failures(surveyed(timeout_s=20.0)) == {"readings.sensors.joints": code}


def test_a_slow_sensor_is_awaited_and_its_rate_is_named(stand_in):
    stand_in.faults = Faults(sensors="slow")
    found = surveyed(timeout_s=20.0)["readings.sensors.joints"]
    assert (found.code, "about 1 Hz" in found.detail, "rate_hz, about 1" in found.remedy) == ("obs.stale", True, True)


def test_a_slow_sensor_of_a_declared_rate_passes(stand_in):
    stand_in.faults = Faults(sensors="slow")
    joints = dataclasses.replace(ARM.sensors["joints"], rate_hz=1.0)
    arm = dataclasses.replace(ARM, sensors={**ARM.sensors, "joints": joints})
    assert failures(surveyed(timeout_s=20.0, arm=arm)) == {}


def test_repeats_of_a_stamp_are_no_messages(stand_in):
    stand_in.faults = Faults(sensors="repeated")
    assert surveyed(timeout_s=20.0)["readings.sensors.joints"].detail == "50 messages per control period"


def test_an_inactive_controller_is_named(stand_in, message_package):
    message_package("controller_manager_msgs")
    from controller_manager_msgs.msg import ControllerState
    from controller_manager_msgs.srv import ListControllers

    states = {"arm_controller": "inactive"}

    def serve(request, response):
        response.controller = [ControllerState(name=name, state=state) for name, state in states.items()]
        return False

    stand_in.run_between_iterations(lambda: stand_in.offer(ListControllers, "/manager/list_controllers", serve))
    checks = surveyed(timeout_s=20.0)
    assert failures(checks) == {"controllers": "controllers"}
    assert checks["controllers"].detail == "arm_controller inactive (expected active)"
    states["arm_controller"] = "active"
    assert failures(surveyed(timeout_s=20.0)) == {}


def test_a_world_with_another_physics_step_fails(stand_in):
    checks = surveyed_until({"step": "step"}, step_s=0.005)
    assert "max_step_size" in checks["step"].remedy


@pytest.mark.parametrize(
    ("printed", "distribution", "passed", "detail"),
    [
        ("8.14.0", "jazzy", True, "version 8.14.0"),
        ("6.16.0", "humble", False, "version 6.16.0 (expected 8 or newer)"),
        ("9.5.0\\n8.14.0", "jazzy", None, "version 9.5.0 (the packages of jazzy use 8)"),
        ("nothing", "jazzy", False, "`gz sim --versions` printed no version"),
    ],
)
def test_versions_are_compared_with_the_distribution(tmp_path, monkeypatch, printed, distribution, passed, detail):
    program = tmp_path / "gz"
    program.write_text(f"#!/bin/sh\nprintf '{printed}\\n'\n")
    program.chmod(0o755)
    share = tmp_path / "share" / "ros_gz_bridge"
    share.mkdir(parents=True)
    (share / "package.xml").write_text("<package><version>1.0.18</version></package>")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    monkeypatch.setenv("ROS_DISTRO", distribution)
    gazebo, bridge = versions.version_checks()
    assert (gazebo.passed, gazebo.detail) == (passed, detail)
    assert (bridge.passed, bridge.detail) == (True, "1.0.18")
    assert ("install gz-sim" in gazebo.remedy) == (printed == "nothing")
