"""Preflight against a robot of real ROS 2 nodes with one fault at a time."""

import dataclasses
import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from rclpy.duration import Duration
from rclpy.qos import (
    DurabilityPolicy,
    LivelinessPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)
from sideways_base import sideways_base
from std_msgs.msg import Bool, Float64, Float64MultiArray

import embodied_env
from embodied_env.core.odometry_check import OdometryCheck
from embodied_env.errors import BackendNotReadyError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.robot import graph_checks as graph_check_module
from embodied_env.ros.robot.contract_checks import check_positions, contract_checks, security_check
from embodied_env.ros.robot.estops import SafetyInputSpec
from embodied_env.ros.robot.graph_checks import (
    contention,
    graph_checks,
    incompatible_policies,
    latched_remedy,
    surroundings,
)
from embodied_env.ros.robot.preflight import _COMMANDS, _motion_checks, preflight, survey
from embodied_env.ros.robot.robot_profile import ActiveSpec, RealProfile
from embodied_env.ros.transport.checklist import raise_unless_passed
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE, sensor_qos
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.ros.wire.sensor_buffer import SensorReader
from embodied_env.timing.clock import NS_PER_S, SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

ARM = embodied_env.load_contract("arm_reach")
CART = embodied_env.load_contract("cart_goal")
GENEROUS_S = 20.0
PROFILE = RealProfile(estop={"button": SafetyInputSpec(topic="estop")}, connect_timeout_s=GENEROUS_S)
RELAYED = RealProfile(relay=True)
BEST_EFFORT = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
VOLATILE = QoSProfile(depth=1)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)

INSIDE = np.array([0.0, -1.0, 1.0, 0.0, 0.0, 0.0])


def moved(index, value):
    positions = INSIDE.copy()
    positions[index] = value
    return positions


def checks_of(ros, profile=PROFILE):
    """Return the checks of the graph by name, as a node sees it now."""
    return {check.name: check for check in graph_checks(ARM, profile, ros.node)}


class Nodes:
    """Foreign nodes, each in its own context, and our node."""

    def __init__(self):
        self._open = []
        self.ours = self.node("environment")
        self.ours.node.create_publisher(Float64MultiArray, "arm_controller/commands", RELIABLE)
        for sensor in ARM.sensors.values():
            self.ours.receiver.subscribe(sensor.topic, message_class(sensor.type), sensor.topic)

    def node(self, name, namespace="/robot_1"):
        self._open.append(RosNode(name, namespace=namespace, clock=SteadyClock()))
        return self._open[-1]

    def publish(self, name, topic, message_type, qos=RELIABLE, namespace="/robot_1"):
        return self.node(name, namespace).node.create_publisher(message_type, topic, qos)

    def robot(self, *, sensors=None, commands=RELIABLE, controller=Float64MultiArray, estop=True, namespace="/robot_1"):
        """Start the robot with `sensors` by name as (type, QoS) where they differ, and None for no publisher."""
        node = self.node("driver", namespace).node
        for name, sensor in ARM.sensors.items():
            found = (sensors or {}).get(name, (message_class(sensor.type), RELIABLE))
            if found is not None:
                node.create_publisher(found[0], sensor.topic, found[1])
        if commands is not None:
            node.create_subscription(controller, "arm_controller/commands", print, commands)
        if estop:
            node.create_publisher(Bool, "estop", RELIABLE)
        return node

    def check(self, name, code, profile=PROFILE):
        """Return the check `name` once it has this code, or its last state after a timeout.

        The code "" is that of a passed check.
        """
        end = time.monotonic() + GENEROUS_S
        while True:
            checks = checks_of(self.ours, profile)
            if checks[name].code == code or time.monotonic() > end:
                assert (checks[name].code, checks[name].passed) == (code, not code)
                return checks[name]
            time.sleep(0.05)

    def close(self):
        for node in self._open:
            node.close()


@pytest.fixture
def nodes(domain_id):
    made = Nodes()
    yield made
    made.close()


def in_s(seconds):
    return SteadyClock().now_ns() + round(seconds * NS_PER_S)


def look(nodes, seconds, **options):
    return preflight(ARM, PROFILE, nodes.ours.node, in_s(seconds), clock=SteadyClock(), **options)


# ------------------------------------------------------------------------------------------------- robots


def test_a_correct_robot_passes_with_one_check_per_topic(nodes):
    nodes.robot()
    checks = look(nodes, GENEROUS_S, settle_s=0.3)
    raise_unless_passed(checks)
    assert [check.name for check in checks] == [
        "limits", "safety mode", "controller timeout", "start outside limits", "security",
        "sensors.joints", "sensors.tcp", "sensors.target", "sensors.true_distance", "actuators.arm", "estop.button",
        "node name",
    ]  # fmt: skip
    assert {check.name for check in checks if check.passed is None} == {"security"}


def test_preflight_waits_for_a_late_robot(nodes):
    calls = []

    def start_once():
        if not calls:
            nodes.robot()
        calls.append(1)

    raise_unless_passed(look(nodes, GENEROUS_S, settle_s=0.3, check_liveness=start_once))
    assert calls


def test_preflight_without_a_robot_fails_at_the_deadline_and_names_its_environment(nodes, domain_id):
    checks = look(nodes, 0.3)
    with pytest.raises(BackendNotReadyError) as raised:
        raise_unless_passed(checks, surroundings=surroundings(nodes.ours.node))
    text = str(raised.value)
    assert "preflight: 6 of 12 checks failed" in text
    assert "[pub.none] no publisher: /robot_1/joint_states, /robot_1/tcp_pose, " in text
    assert "[sub.none] no subscriber: /robot_1/arm_controller/commands" in text
    assert text.count("ROS_DOMAIN_ID") == 1
    assert f"namespace /robot_1, ROS_DOMAIN_ID={domain_id}, ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST" in text
    assert "RMW_IMPLEMENTATION=rmw_" in text


def test_a_graph_that_passes_too_briefly_fails(nodes):
    nodes.robot()
    for name in ("actuators.arm", "estop.button", *(f"sensors.{name}" for name in ARM.sensors)):
        nodes.check(name, "")
    *_, last = look(nodes, 0.2, settle_s=1000.0)
    assert (last.name, last.passed, last.code) == ("graph", False, "graph.unsettled")


def test_an_error_of_check_liveness_ends_the_wait(nodes):
    def fail():
        raise BackendNotReadyError("the child died")

    with pytest.raises(BackendNotReadyError, match="the child died"):
        look(nodes, GENEROUS_S, check_liveness=fail)


# ---------------------------------------------------------------------------------------------- sensors


def test_two_publishers_of_a_sensor_are_rejected_by_name(nodes):
    nodes.robot()
    nodes.publish("ghost", "joint_states", message_class("sensor_msgs/msg/JointState"))
    check = nodes.check("sensors.joints", "pub.multiple")
    assert "2 publishers (expected 1): " in check.detail
    nodes.ours.wait_until(lambda: "/robot_1/ghost" in nodes.check("sensors.joints", "pub.multiple").detail, GENEROUS_S)
    assert "/robot_1/ghost" in nodes.check("sensors.joints", "pub.multiple").detail


@pytest.mark.parametrize(
    ("robot", "name", "code", "words", "remedy"),
    [
        (
            {"sensors": {"joints": (Float64MultiArray, RELIABLE)}},
            *("sensors.joints", "type.mismatch"),
            "std_msgs/msg/Float64MultiArray (expected sensor_msgs/msg/JointState)",
            "",
        ),
        (
            {"sensors": {"tcp": (message_class("geometry_msgs/msg/PoseStamped"), BEST_EFFORT)}},
            *("sensors.tcp", "qos.incompatible", "Best effort publisher and reliable subscription"),
            "remove sensors.tcp.qos (the default suits any publisher), or change this policy in the other node",
        ),
        (
            {"commands": LATCHED},
            *("actuators.arm", "qos.incompatible", "Volatile publisher and transient local subscription"),
            "set actuators.arm.qos: latched, or change this policy in the other node",
        ),
        (
            {"commands": RELIABLE, "controller": Float64},
            *("actuators.arm", "type.mismatch"),
            "has type std_msgs/msg/Float64 (expected std_msgs/msg/Float64MultiArray)",
            "",
        ),
        ({"commands": None}, "actuators.arm", "sub.none", "", ""),
        ({"estop": False}, "estop.button", "pub.none", "", ""),
        ({"commands": RELIABLE}, "actuators.arm", "", "", ""),
        ({"commands": BEST_EFFORT}, "actuators.arm", "", "", ""),
    ],
)
def test_an_endpoint_that_does_not_fit_is_reported_with_its_remedy(nodes, robot, name, code, words, remedy):
    nodes.robot(**robot)
    check = nodes.check(name, code)
    assert words in check.detail
    assert remedy in check.remedy


@pytest.mark.parametrize("durability", [DurabilityPolicy.VOLATILE, DurabilityPolicy.TRANSIENT_LOCAL])
@pytest.mark.parametrize("reliability", [ReliabilityPolicy.RELIABLE, ReliabilityPolicy.BEST_EFFORT])
def test_a_sensor_without_qos_receives_from_every_kind_of_publisher(reliability, durability):
    assert ARM.sensors["tcp"].qos is None
    offered = QoSProfile(depth=1, reliability=reliability, durability=durability)
    assert incompatible_policies(offered=offered, requested=sensor_qos(ARM.sensors["tcp"])) == ()


def test_a_silent_latched_sensor_has_a_remedy_of_its_own(nodes):
    pose, tcp = message_class("geometry_msgs/msg/PoseStamped"), ARM.sensors["tcp"]
    nodes.robot(sensors={"tcp": (pose, LATCHED)})
    nodes.check("sensors.tcp", "")
    remedy = "publishes it latched (transient local); set sensors.tcp.qos: latched"
    node = nodes.ours.node
    assert nodes.ours.wait_until(lambda: latched_remedy("tcp", tcp, node) == f"/robot_1/driver {remedy}", GENEROUS_S)
    assert latched_remedy("tcp", dataclasses.replace(tcp, qos="latched"), node) == ""
    assert latched_remedy("joints", ARM.sensors["joints"], node) == ""


def test_a_sensor_without_a_publisher_is_reported_with_topics_of_its_type(nodes):
    nodes.robot(sensors={"joints": None})
    nodes.publish("elsewhere", "joint_states", message_class("sensor_msgs/msg/JointState"), namespace="/robot_2")

    def names_the_other():
        return "/robot_2/joint_states" in nodes.check("sensors.joints", "pub.none").remedy

    assert nodes.ours.wait_until(names_the_other, GENEROUS_S)


# -------------------------------------------------------------------------------------------- actuators


@pytest.mark.parametrize(
    ("name", "kind", "named"),
    [
        ("rogue", Float64MultiArray, "/robot_1/rogue"),
        ("rogue", Float64, "/robot_1/rogue"),
        ("environment", Float64MultiArray, "another /robot_1/environment"),
    ],
)
def test_a_foreign_command_publisher_is_rejected_by_name(nodes, name, kind, named):
    nodes.robot()
    nodes.publish(name, "arm_controller/commands", kind)
    assert nodes.ours.wait_until(lambda: named in nodes.check("actuators.arm", "robot.contention").detail, GENEROUS_S)


# ------------------------------------------------------------------------------------------------- relay


def test_a_second_actuator_that_is_remapped_to_the_topic_is_contention(nodes):
    nodes.robot()
    nodes.ours.node.create_publisher(Float64MultiArray, "arm_controller/commands", RELIABLE)
    nodes.check("actuators.arm", "robot.contention")


def test_our_own_command_publisher_beside_a_relay_is_contention(nodes):
    nodes.robot()
    check = nodes.check("actuators.arm", "robot.contention", RELAYED)
    assert "also published by /robot_1/environment (expected the relay only)" in check.detail


def test_a_required_relay_must_be_running(nodes):
    assert checks_of(nodes.node("bystander"), RELAYED)["relay"].code == "sub.none"


def test_a_relay_that_owns_the_topics_passes(nodes):
    driver = nodes.node("driver", "/robot_2").node
    driver.create_subscription(Float64MultiArray, "arm_controller/commands", print, RELIABLE)
    relay = nodes.node("relay", "/robot_2").node
    relay.create_publisher(Float64MultiArray, "arm_controller/commands", RELIABLE)
    relay.create_subscription(message_class("sensor_msgs/msg/JointState"), "relay/command", print, RELIABLE)
    ours = nodes.node("environment", "/robot_2")

    def is_right():
        return all(checks_of(ours, RELAYED)[name].passed for name in ("actuators.arm", "relay"))

    assert ours.wait_until(is_right, GENEROUS_S)
    assert contention(ARM, RELAYED, ours.node) == {}
    nodes.publish("rogue", "arm_controller/commands", Float64MultiArray, namespace="/robot_2")
    assert ours.wait_until(lambda: len(contention(ARM, RELAYED, ours.node)) == 1, GENEROUS_S)


@pytest.mark.parametrize("topic", ["relay/command", "relay/report", "relay/state"])
def test_a_foreign_publisher_on_a_relay_topic_is_detected_before_and_during_motion(nodes, topic):
    types = {"relay/command": message_class("sensor_msgs/msg/JointState")}
    relay = nodes.node("relay").node
    relay.create_subscription(message_class("sensor_msgs/msg/JointState"), "relay/command", print, RELIABLE)
    for name in ("relay/report", "relay/state"):
        relay.create_publisher(message_class("std_msgs/msg/String"), name, RELIABLE)
    ours = nodes.node("environment")
    ours.node.create_publisher(message_class("sensor_msgs/msg/JointState"), "relay/command", RELIABLE)

    def checked():
        return checks_of(ours, RELAYED)["relay" if topic == "relay/command" else topic]

    assert ours.wait_until(lambda: checked().passed, GENEROUS_S)
    nodes.publish("rogue", topic, types.get(topic, message_class("std_msgs/msg/String")))
    assert ours.wait_until(lambda: "/robot_1/rogue" in checked().detail, GENEROUS_S)
    assert checked().code == "robot.contention"
    assert contention(ARM, RELAYED, ours.node)[topic] == ["/robot_1/rogue"]


def test_a_node_without_commands_may_inspect_a_relay_of_another_client(nodes):
    learner = nodes.node("learner").node
    learner.create_publisher(message_class("sensor_msgs/msg/JointState"), "relay/command", RELIABLE)
    learner.create_subscription(message_class("sensor_msgs/msg/JointState"), "relay/command", print, RELIABLE)
    bystander = nodes.node("bystander")

    def checked():
        return checks_of(bystander, RELAYED)["relay"]

    assert bystander.wait_until(lambda: checked().passed and "/robot_1/learner" in checked().detail, GENEROUS_S)


# --------------------------------------------------------------------------------------------- run time


def test_a_rogue_publisher_is_detected_during_motion_until_it_leaves(nodes):
    nodes.robot()
    rogue = nodes.node("rogue")
    publisher = rogue.node.create_publisher(Float64MultiArray, "arm_controller/commands", RELIABLE)

    def found():
        return contention(ARM, PROFILE, nodes.ours.node)

    assert nodes.ours.wait_until(lambda: found() == {"arm_controller/commands": ["/robot_1/rogue"]}, GENEROUS_S)
    rogue.node.destroy_publisher(publisher)
    assert nodes.ours.wait_until(lambda: found() == {}, GENEROUS_S)


# ------------------------------------------------------------------------------------------------ survey


@pytest.fixture
def running_robot(nodes):
    """Return a function that starts a robot publishing these positions with delayed stamps, and surveys it."""
    stop, threads = threading.Event(), []

    def look_at(positions, *, stamped_s=0.0, profile=PROFILE, speaks=True, pressed=False, is_enough=bool):
        driver = nodes.robot()
        publishers = {publisher.topic_name: publisher for publisher in driver.publishers}

        def speak():
            while not stop.wait(0.02):
                for sensor in ARM.sensors.values():
                    message = message_class(sensor.type)()
                    stamp = message.header.stamp
                    stamp.sec, stamp.nanosec = divmod(time.time_ns() + round(stamped_s * NS_PER_S), NS_PER_S)
                    if sensor.topic == "joint_states":
                        message.name = [f"j{i}" for i in range(1, 7)]
                        message.position, message.velocity = list(positions), [0.0] * 6
                    publishers[f"/robot_1/{sensor.topic}"].publish(message)
                publishers["/robot_1/estop"].publish(Bool(data=pressed))

        if speaks:
            threads.append(threading.Thread(target=speak))
            threads[-1].start()
        for timeout_s in (GENEROUS_S,) if speaks else (0.7, 2.0, GENEROUS_S):  # a silent sensor takes the whole timeout
            checks = survey(ARM, profile, namespace="/robot_1", timeout_s=timeout_s, settle_s=0.2)
            if is_enough({check.name: check for check in checks}):
                break
        return {check.name: check for check in checks}

    yield look_at
    stop.set()
    for thread in threads:
        thread.join()


@pytest.fixture
def without_our_publisher(nodes):
    """Remove our command publisher, since the doctor inspects a robot that is not driven."""
    publisher = next(p for p in nodes.ours.node.publishers if p.topic_name.endswith("commands"))
    nodes.ours.node.destroy_publisher(publisher)


def test_a_survey_of_a_correct_robot_passes_with_its_readings(running_robot, without_our_publisher):
    checks = running_robot(INSIDE)
    raise_unless_passed(checks.values())
    assert checks["readings.joints"].passed
    assert checks["state.button"].passed
    assert checks["robot inside its limits"].passed


NO_POSITIONS = ("robot inside its limits", "no measured position of j1, j2, j3, j4, j5, j6")


@pytest.mark.parametrize(
    ("positions", "options", "name", "code", "detail"),
    [
        (INSIDE, {"pressed": True}, "state.button", "estop.active", ("state.button", "active: topic ")),
        (moved(2, 3.5), {}, "robot inside its limits", "start_out_of_limits", ("robot inside its limits", "j3 at 3.5")),
        (INSIDE, {"stamped_s": -37.0}, "readings.joints", "obs.stale", NO_POSITIONS),
        (INSIDE, {"stamped_s": 5.0}, "readings.joints", "obs.future", NO_POSITIONS),
        (INSIDE, {"speaks": False}, "readings.joints", "obs.silent", NO_POSITIONS),
    ],
)
def test_a_survey_finds_what_is_wrong(running_robot, without_our_publisher, positions, options, name, code, detail):
    """Readings that are stale, or of another clock, are no positions."""
    checks = running_robot(positions, is_enough=lambda found: name in found, **options)  # else: not found in time
    assert (checks[name].passed, checks[name].code) == (False, code)
    assert checks[detail[0]].detail.startswith(detail[1])


def test_a_survey_without_a_robot_has_one_remedy_for_everything_missing(domain_id):
    profile = dataclasses.replace(PROFILE, active={"drive": ActiveSpec(topic="drive"), "arm": ActiveSpec(node="/arm")})
    checks = survey(ARM, profile, namespace="/robot_1", timeout_s=0.2, settle_s=0.2)
    absent = [check for check in checks if check.passed is False]
    assert [check.name for check in absent] == [
        "sensors.joints", "sensors.tcp", "sensors.target", "sensors.true_distance", "actuators.arm", "estop.button",
        "active.drive", "active.arm",
    ]  # fmt: skip
    assert [bool(check.remedy) for check in absent] == [False] * 7 + [True]
    assert "embodied-env sim <contract> --free-running" in absent[-1].remedy


def test_a_survey_publishes_nothing_and_finds_the_active_client(running_robot):
    """For the doctor, which has no publisher, an environment that drives the robot is a foreign client."""

    def sees_all(found):  # the graph is discovered gradually, names last
        return "/robot_1/environment" in found["actuators.arm"].detail

    check = running_robot(INSIDE, speaks=False, is_enough=sees_all)["actuators.arm"]
    assert check.code == "robot.contention"
    assert "/robot_1/environment" in check.detail


# --------------------------------------------------------------------------------------------- policies


@pytest.mark.parametrize(
    ("offered", "requested", "policy"),
    [
        (BEST_EFFORT, VOLATILE, "Best effort"),
        (VOLATILE, LATCHED, "Volatile"),
        (VOLATILE, QoSProfile(depth=1, deadline=Duration(seconds=1)), "deadline"),
        (
            QoSProfile(depth=1, deadline=Duration(seconds=2)),
            QoSProfile(depth=1, deadline=Duration(seconds=1)),
            "deadline",
        ),
        (
            QoSProfile(depth=1, liveliness=LivelinessPolicy.AUTOMATIC),
            QoSProfile(depth=1, liveliness=LivelinessPolicy.MANUAL_BY_TOPIC),
            "liveliness",
        ),
        (VOLATILE, QoSProfile(depth=1, liveliness_lease_duration=Duration(seconds=1)), "liveliness lease duration"),
    ],
)
def test_the_incompatible_policy_is_named_and_rclpy_agrees(offered, requested, policy):
    (found,) = incompatible_policies(offered=offered, requested=requested)
    assert policy in found
    assert qos_check_compatible(offered, requested)[0] == QoSCompatibility.ERROR


@pytest.mark.parametrize(
    ("offered", "requested"),
    [
        (LATCHED, BEST_EFFORT),
        *((qos, qos) for qos in (RELIABLE, BEST_EFFORT, LATCHED, QoSProfile(depth=1, deadline=Duration(seconds=1)))),
    ],
)
def test_an_equal_or_stronger_offered_policy_is_compatible(offered, requested):
    assert incompatible_policies(offered=offered, requested=requested) == ()


def test_an_unparsed_incompatibility_is_still_reported(monkeypatch):
    monkeypatch.setattr(graph_check_module, "qos_check_compatible", lambda *_: (QoSCompatibility.ERROR, "no match"))
    assert incompatible_policies(offered=LATCHED, requested=BEST_EFFORT) == ("no match",)


# ------------------------------------------------------------------------------- contract, keys, positions


def with_arm(unit="rad", **changes):
    """Return the contract with other limits of its first joint."""
    arm = ARM.actuators["arm"]
    joints = {**arm.joints, "j1": dataclasses.replace(arm.joints["j1"], **changes)}
    contract = dataclasses.replace(ARM, actuators={"arm": dataclasses.replace(arm, joints=joints)})
    object.__setattr__(contract.actuators["arm"].joints["j1"], "unit", unit)  # a sensor in m would be required too
    return contract


def test_the_shipped_arm_passes_all_contract_checks():
    raise_unless_passed(contract_checks(ARM, RealProfile(), environment={}))


ENDLESS = with_arm(position=None)
MONITORING = dataclasses.replace(ARM, safety=dataclasses.replace(ARM.safety, mode="monitor"))


@pytest.mark.parametrize(
    ("contract", "profile", "name", "passed", "code", "words"),
    [
        (ENDLESS, {}, "limits", True, "", "6 joints have limits; no position limits: j1"),
        (ENDLESS, {}, "turns", None, "", "readings of j1 as they are"),
        (with_arm("m", position=None), {}, "limits", False, "limits.missing", "'j1'"),
        (with_arm(position=(-114.0, 114.0)), {}, "limits", False, "limits.degrees", "actuators.arm.joints.j1.position"),
        (MONITORING, {}, "safety mode", False, "safety.mode", "safety.mode is 'monitor' (expected 'enforce'"),
        (CART, {"allow_no_downstream_timeout": True}, "controller timeout", True, "", "as the profile allows"),
        (CART, {"downstream_timeout_s": 0.5}, "controller timeout", True, "", "after 0.5 s without a command"),
        (CART, {}, "controller timeout", False, "downstream.timeout", "['base'] are commanded by velocity"),
    ],
)
def test_a_contract_that_may_move_a_robot_wrongly_is_rejected(contract, profile, name, passed, code, words):
    checks = contract_checks(contract, RealProfile(**profile), environment={})
    check = next(check for check in checks if check.name == name)
    assert (check.passed, check.code) == (passed, code)
    assert words in check.detail


KEYS = ["identity_ca.cert.pem", "cert.pem", "key.pem", "permissions_ca.cert.pem", "governance.p7s", "permissions.p7s"]


@pytest.fixture
def secured(tmp_path):
    """Return an environment with keys, as created by ``ros2 security``."""
    enclave = tmp_path / "enclaves"
    enclave.mkdir()
    for file in KEYS:
        (enclave / file).write_text("key")
    return {"ROS_SECURITY_ENABLE": "true", "ROS_SECURITY_STRATEGY": "Enforce", "ROS_SECURITY_KEYSTORE": str(tmp_path)}


REQUIRED = RealProfile(security="required")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROS_SECURITY_ENABLE", ""),
        ("ROS_SECURITY_ENABLE", "false"),
        ("ROS_SECURITY_STRATEGY", "Permissive"),
        ("ROS_SECURITY_KEYSTORE", ""),
        ("ROS_SECURITY_KEYSTORE", "/nowhere"),
        ("ROS_SECURITY_ENCLAVE_OVERRIDE", "/other"),
    ],
)
def test_incomplete_required_security_fails_closed(name, value, secured):
    assert security_check(REQUIRED, secured).passed
    check = security_check(REQUIRED, {**secured, name: value})
    assert (check.passed, check.code) == (False, "security")
    assert "ROS_SECURITY_KEYSTORE=<folder>" in check.remedy


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("spoil", [Path.unlink, lambda key: key.write_text("")], ids=["missing", "empty"])
def test_a_missing_or_empty_key_fails_closed(spoil, name, secured, tmp_path):
    spoil(tmp_path / "enclaves" / name)
    check = security_check(REQUIRED, secured)
    assert check.passed is False
    assert check.detail.endswith(f": {name}")


@pytest.mark.parametrize(
    ("position", "code", "words"),
    [
        (1.0, "", "after margins"),
        (3.13, "start_out_of_limits", "j3 at 3.13 rad is above its limit 3.12"),
        (-4.0, "start_out_of_limits", "j3 at -4 rad is below its limit -3.12"),
    ],
)
def test_a_robot_outside_its_limits_is_rejected_with_joint_value_and_limit(position, code, words):
    check = check_positions(ARM, moved(2, position))
    assert (check.passed, check.code, check.detail) == (not code, code, words)


@pytest.mark.parametrize(("outside", "passes"), [("inward", True), ({"j3": "inward"}, True), ({"j2": "inward"}, False)])
def test_start_outside_may_be_accepted_for_all_joints_or_some(outside, passes):
    check = check_positions(ARM, moved(2, 3.5), outside=outside)
    assert (check.passed, "inward motion only" in check.detail) == (passes, passes)


@pytest.mark.parametrize("outside", ["refuse", "inward"])
@pytest.mark.parametrize("position", [math.nan, math.inf])
def test_an_unknown_position_is_never_inside(position, outside):
    check = check_positions(ARM, moved(4, position), outside=outside)
    assert (check.passed, check.detail) == (False, "no measured position of j5")


def test_a_joint_without_limits_may_have_any_position():
    assert check_positions(CART, np.array([math.nan, 1e6])).passed


# ------------------------------------------------------------------------------------------------ motion


def motion_check(*, driven=0.5, reported=0.5, commanded=0.5, is_commanded=True):
    """Return the check of a base whose odometry moves along x, with the commands of another node."""
    contract = sideways_base(timeline="receive")
    motion, readers = OdometryCheck.declared_by(contract), {"odom": SensorReader("odom", contract.sensors["odom"])}
    arrivals = []
    for k in range(50):
        twist, odometry = message_class("geometry_msgs/msg/Twist")(), message_class("nav_msgs/msg/Odometry")()
        twist.linear.x = commanded
        odometry.pose.pose.position.x = driven * k / 10
        odometry.pose.pose.orientation.w = 1.0
        odometry.twist.twist.linear.x = reported
        for key, message in ((_COMMANDS, twist), ("odom", odometry))[not is_commanded :]:
            arrival = ReceivedMessage(
                key=key, message=message, info={}, arrival_ns=k * NS_PER_S // 10, arrival_system_ns=0
            )
            arrivals.append(arrival)
    (check,) = _motion_checks(motion, arrivals, readers)
    return check


@pytest.mark.parametrize(
    ("motion", "passes", "words"),
    [
        ({}, True, ""),
        ({"commanded": 1.0, "driven": 0.2, "reported": 0.2}, False, "1.00 m/s applied, 0.20 m/s driven"),
        ({"reported": 0.0, "is_commanded": False}, False, "its twist of linear.x is 0.00 m/s"),
        ({"driven": 0.0, "reported": 0.0, "is_commanded": False}, None, "stood still"),
    ],
    ids=["follows", "does not follow", "no twist", "stands"],
)
def test_the_doctor_compares_the_odometry_with_itself_and_with_commands(motion, passes, words):
    check = motion_check(**motion)
    assert check.passed is passes
    assert words in check.detail


def test_a_contract_without_a_base_has_no_check_of_its_motion():
    assert list(_motion_checks(OdometryCheck.declared_by(ARM), (), {})) == []


# ------------------------------------------------------------------------------------------------ simulated time


def test_simulated_time_is_required_where_it_is_used_and_noted_where_it_is_not(nodes):
    nodes.robot()
    uses = dataclasses.replace(PROFILE, use_sim_time=True)
    assert nodes.check("simulated time", "pub.none", profile=uses).detail == "/clock: no publisher"
    nodes.publish("simulator", "/clock", message_class("rosgraph_msgs/msg/Clock"), namespace="/")
    assert nodes.check("simulated time", "", profile=uses).detail.startswith("/clock is published by")
    check = checks_of(nodes.ours)["simulated time"]
    assert (check.passed, "not used" in check.detail) == (None, True)
