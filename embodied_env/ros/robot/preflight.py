"""The checklist before the first motion of a robot.

`preflight` repeats the checks of the contract and the graph until they pass; `survey` also reads one message of each
sensor, for `embodied-env doctor`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any

from rclpy.node import Node

from embodied_env.contract import Contract, SensorSpec
from embodied_env.contract.qos_schema import is_latched
from embodied_env.core.code_table import CODE_TABLE
from embodied_env.core.code_types import Severity
from embodied_env.core.controller_joints import JOINTS, controller_of, declared_joints
from embodied_env.core.odometry_check import AXES, OdometryCheck
from embodied_env.core.safety_input_state import InputState
from embodied_env.messages.declaration import InvalidReadingError
from embodied_env.messages.message_types import TRAJECTORY
from embodied_env.ros.robot.contract_checks import check_positions, contract_checks, measured_positions
from embodied_env.ros.robot.graph_checks import UNNAMED, graph_checks, latched_remedy, surroundings
from embodied_env.ros.robot.robot_profile import SETTLE_S, RealProfile
from embodied_env.ros.robot.safety_inputs import CONTENTION, SafetyInputs
from embodied_env.ros.robot.sensor_publishers import CONFLICT, SENSOR_TOPICS, SensorPublishers
from embodied_env.ros.transport.checklist import Check, failed, passed, share_remedy
from embodied_env.ros.transport.node import LEASE_NS, RosNode, node_name
from embodied_env.ros.transport.qos import ANY, sensor_qos
from embodied_env.ros.transport.receive_thread import ReceiveThread
from embodied_env.ros.transport.receiver import LivenessCheck, ReceivedMessage, read_parameters
from embodied_env.ros.wire.sensor_buffer import SensorReader, stamp_ns
from embodied_env.ros.wire.stamp_translation import SYNCED_TOLERANCE_S, suspect_clock
from embodied_env.ros.wire.transforms import as_it_comes
from embodied_env.ros.wire.world_clock import ClockSpec
from embodied_env.safety.findings import safety_input_findings
from embodied_env.timing.clock import NS_PER_S, Clock, SteadyClock

_POLL_S = 0.05
_COMMANDS = "commands of another node"
_MOST_MOVED = 5000  # messages by which the motion of a base is checked
_PARTIAL = "allow_partial_joints_goal"
_DISCOVERY_S = 5.0  # a new node may miss the first announcements of the others, which are repeated every 3 s


def preflight(  # noqa: PLR0913 - its conditions
    contract: Contract,
    profile: RealProfile,
    node: Node,
    deadline_ns: int,
    *,
    clock: Clock,
    settle_s: float = SETTLE_S,
    publishers: SensorPublishers | None = None,
    check_liveness: LivenessCheck = lambda: None,
) -> tuple[Check, ...]:
    """Return all checks except those of readings, once all pass for `settle_s` or time is up.

    A publisher that was killed stays in the graph until its lease expires, so a failed check may still pass. If nothing
    else fails, that is awaited until the deadline. Otherwise a failed check is final after `connect_timeout_s`.

    `settle_s` is 0 if the graph has been watched since (`graph_checks.contention`). `publishers` receive; without it no
    topic can be shared. `check_liveness` is called between two checks, and raises an error to end the wait. The
    deadline is on the steady clock.
    """
    static = contract_checks(contract, profile)
    passing_since_ns: int | None = None
    begun_ns = clock.now_ns()
    last_ns = min(deadline_ns, begun_ns + profile.connect_timeout_s * NS_PER_S)
    lease_ns = min(deadline_ns, begun_ns + LEASE_NS)
    while True:
        checks = graph_checks(contract, profile, node, publishers)
        now_ns = clock.now_ns()
        if any(check.passed is False for check in checks):
            passing_since_ns = None
        elif passing_since_ns is None:
            passing_since_ns = now_ns
        if passing_since_ns is not None and now_ns - passing_since_ns >= settle_s * NS_PER_S:
            return (*static, *checks)
        is_over = now_ns >= last_ns and (now_ns >= lease_ns or not _are_killed(checks, publishers))
        if passing_since_ns is None and is_over:
            return (*static, *checks)
        if passing_since_ns is not None and now_ns >= deadline_ns:
            passing_s = (now_ns - passing_since_ns) / NS_PER_S
            detail = f"the graph passed for only {passing_s:.2f} s before the deadline (expected {settle_s:.2f} s)"
            return (*static, *checks, failed("graph", detail, "allow more time", "graph.unsettled"))
        check_liveness()
        clock.sleep_until_ns(min(deadline_ns, now_ns + round(_POLL_S * NS_PER_S)))


def _are_killed(checks: Iterable[Check], publishers: SensorPublishers | None) -> bool:
    """Return whether the checks fail only for publishers that no longer publish."""
    codes = {check.code for check in checks if check.passed is False}
    return codes <= {"pub.multiple", CONFLICT} and publishers is not None and publishers.await_lease()


def survey(
    contract: Contract, profile: RealProfile, *, namespace: str, timeout_s: float, settle_s: float = SETTLE_S
) -> tuple[Check, ...]:
    """Check the robot in an absolute `namespace`, without any publisher that could disturb it.

    The graph must pass for `settle_s` within `timeout_s`, which also limits the wait for the first readings.
    """
    profile = replace(profile, connect_timeout_s=timeout_s)
    readers = {
        name: SensorReader(name, as_it_comes(sensor) if name in profile.tf else sensor)
        for name, sensor in contract.sensors.items()
    }
    newest: dict[str, ReceivedMessage] = {}
    motion = OdometryCheck.declared_by(contract)
    moved: deque[ReceivedMessage] = deque(maxlen=_MOST_MOVED)  # readings of the odometry, and commands of others
    clock = SteadyClock()
    ros = RosNode(f"doctor_{os.getpid()}", namespace=namespace, clock=clock)
    listener = ReceiveThread(ros.node, clock)

    def store(arrival: ReceivedMessage) -> None:
        inputs.publishers.add(contract.sensors[arrival.key].topic, arrival)
        if readers[arrival.key].concerns(arrival.message):
            newest[arrival.key] = arrival
        if motion is not None and arrival.key == motion.sensor:
            moved.append(arrival)

    try:
        for name, sensor in contract.sensors.items():
            listener.subscribe(name, sensor.type, sensor.topic, sensor_qos(sensor), store)
        if motion is not None:
            base = next(actuator for actuator in contract.actuators.values() if actuator.command == "twist")
            listener.subscribe(_COMMANDS, base.type, base.topic, ANY, moved.append)
        inputs = SafetyInputs(contract, profile, listener, clock)
        listener.start()
        deadline_ns = clock.now_ns() + round((timeout_s + settle_s) * NS_PER_S)
        checks = preflight(
            contract, profile, ros.node, deadline_ns, clock=clock, settle_s=settle_s, publishers=inputs.publishers
        )
        if any(check.passed is False for check in checks):
            checks = share_remedy(checks, surroundings(ros.node))
            skipped = Check(name="readings", passed=None, detail="skipped, because another check failed")
            with listener.condition:
                return (*checks, skipped, *_motion_checks(motion, moved, readers))
        with listener.condition:
            for name in [name for name in newest if not is_latched(contract.sensors[name].qos)]:
                del newest[name]  # it may be silent since
        end_ns = clock.now_ns() + round(timeout_s * NS_PER_S)
        listener.wait_until(lambda: len(newest) == len(contract.sensors) and not inputs.missing(), end_ns)
        with listener.condition:
            states = inputs.states(is_moving=False)
        silent = {
            name: latched_remedy(name, sensor, ros.node) or f"check ros2 topic hz {sensor.topic}"
            for name, sensor in contract.sensors.items()
            if name not in newest
        }
    finally:
        listener.stop()
        ros.close()
    readings = {
        name: (failed(f"readings.{name}", "no message received", silent[name], "obs.silent"), {})
        if name in silent
        else _reading(contract, profile, name, newest[name], readers[name])
        for name in contract.sensors
    }
    with closing(RosNode(f"doctor_parameters_{os.getpid()}", namespace=namespace, clock=clock)) as asking:
        joints = tuple(joint_checks(contract, asking))
    measured = measured_positions(contract, {name: values for name, (_, values) in readings.items()})
    positions = check_positions(contract, measured, outside=profile.start_outside)
    return (
        *checks,
        *(check for check, _ in readings.values()),
        *(_input_check(name, state) for name, state in states.items() if name not in (CONTENTION, SENSOR_TOPICS)),
        positions,
        *joints,
        *_motion_checks(motion, moved, readers),
    )


def joint_checks(contract: Contract, ros: RosNode) -> Iterator[Check]:
    """Yield a check of each actuator with joints on a topic, by a node with no other thread."""
    for name, actuator in contract.actuators.items():
        if actuator.command == "twist" or actuator.is_action:
            continue
        topic, title = ros.node.resolve_topic_name(actuator.topic), f"joints.{name}"
        own = list(actuator.published_joints)
        subscribers = _subscribers(ros, topic)
        wanted = (*JOINTS, f"{controller_of(topic).rpartition('/')[2]}.joints", _PARTIAL)
        nodes = dict.fromkeys([controller_of(topic), *subscribers])
        parameters = {node: read_parameters(ros.receiver, node, wanted.__contains__) for node in nodes if node}
        joints, node = declared_joints(
            topic, parameters, subscribers, is_only=_is_only(ros, subscribers, actuator.type)
        )
        if not joints:
            detail = f"not compared: no node of {topic} has a parameter `joints`"
            yield Check(name=title, passed=None, detail=detail, remedy="compare with the controller's configuration")
            continue
        if actuator.type == TRAJECTORY:
            is_partial = parameters[node].get(_PARTIAL) is True
            fits = set(own) == set(joints) or (is_partial and set(own) < set(joints))
        else:
            fits = own == joints
        detail = f"{node} commands {', '.join(joints)}"
        if fits:
            yield passed(title, detail)
        else:
            remedy = f"set actuators.{name}.joints (gripper.mimic for fingers) to those of the controller, in its order"
            yield failed(title, f"{detail}; the contract has {', '.join(own)}", remedy, "joints")


def _subscribers(ros: RosNode, topic: str) -> list[str]:
    """Return the nodes that subscribe to a topic, once there are any and all have names."""

    def found() -> list[str]:
        return [node_name(info) for info in ros.node.get_subscriptions_info_by_topic(topic)]

    def are_named() -> bool:
        names = found()
        return bool(names) and not any(name.endswith(UNNAMED) for name in names)

    ros.wait_until(are_named, _DISCOVERY_S)
    return found()


def _is_only(ros: RosNode, subscribers: list[str], kind: str) -> bool:
    """Return whether the only subscriber of a command topic reads no other topic of this type."""
    topics = [name for name, kinds in ros.node.get_topic_names_and_types() if kind in kinds]
    found = [node_name(info) for name in topics for info in ros.node.get_subscriptions_info_by_topic(name)]
    return len(subscribers) == 1 == found.count(subscribers[0])


def _motion_checks(
    motion: OdometryCheck | None, moved: Iterable[ReceivedMessage], readers: Mapping[str, SensorReader]
) -> Iterator[Check]:
    """Compare a base's odometry with itself and with another node's commands, if it moved."""
    if motion is None:
        return
    title, problem = f"motion.{motion.sensor}", ""
    for arrival in moved:
        if arrival.key == _COMMANDS:
            twist = getattr(arrival.message, "twist", arrival.message)
            motion.add_command(arrival.arrival_ns, {axis: attrgetter(axis)(twist) for axis in AXES})
            continue
        with suppress(InvalidReadingError):  # reported with the readings
            motion.add_reading(arrival.arrival_ns, readers[motion.sensor].read(arrival.message))
        problem = motion.text or problem
    if problem:
        remedy = (
            f"correct the driver, leave wrong fields of sensors.{motion.sensor} out, or lower the limits of the base"
        )
        yield failed(title, problem, remedy, "motion")
    elif motion.has_moved:
        yield passed(title, "the base moves as its odometry and the commands of the other node say")
    else:
        remedy = "drive it with another node while doctor runs, or read the report of a run"
        yield Check(name=title, passed=None, detail="not checked: the base stood still", remedy=remedy)


def _input_check(name: str, state: InputState) -> Check:
    if state.is_ok:
        return passed(f"state.{name}", "permits motion")
    (finding,) = safety_input_findings({name: state})
    problem, _, remedy = str(state).partition("; ") if finding.severity is Severity.ESTOP else (str(state), "", "")
    return failed(f"state.{name}", problem, remedy or CODE_TABLE[finding.code].remedy, finding.code)


def _ahead_s(contract: Contract, sensor: SensorSpec, clock: ClockSpec) -> float:
    """Return how far ahead of its arrival a stamp may be, as in `StampTranslator`."""
    tolerance_s = contract.safety.observation.future_tolerance_s
    if clock.sync in ("ptp", "chrony"):
        return max(tolerance_s, SYNCED_TOLERANCE_S, clock.error_s or 0.0)
    is_unsynced = clock.sync == "none" or clock.least_delay_s is not None  # only differences of its stamps count
    return sensor.max_age_s if is_unsynced else tolerance_s


def _reading(
    contract: Contract, profile: RealProfile, name: str, arrival: ReceivedMessage, reader: SensorReader
) -> tuple[Check, Mapping[str, Any]]:
    """Return the check of a sensor's newest message, and the values of a valid one."""
    sensor = contract.sensors[name]
    ahead_s = _ahead_s(contract, sensor, profile.clock_of(name))
    title = f"readings.{name}"
    try:
        values = reader.read(arrival.message)
    except InvalidReadingError as error:
        return failed(title, str(error), "", "obs.invalid"), {}
    if sensor.timeline == "receive" or profile.use_sim_time:  # simulated time is compared with /clock while it runs
        return passed(title, "message received"), values
    arrival_ns = arrival.info["received_timestamp"] or arrival.arrival_system_ns
    age_s = (arrival_ns - stamp_ns(arrival.message)) / NS_PER_S
    if not -ahead_s <= age_s <= sensor.max_age_s:
        suspect = suspect_clock(age_s)
        by = f", possibly by the {suspect} clock" if suspect else ""
        side, code = ("before", "obs.stale") if age_s > 0 else ("after", "obs.future")
        most_s = sensor.max_age_s if age_s > 0 else ahead_s
        detail = f"stamped {abs(age_s):.3f} s {side} its arrival{by} (expected at most {most_s} s)"
        remedy = (
            f"synchronise the publisher's clock with this host (chrony, PTP), or set sensors.{name}.timeline: receive"
        )
        return failed(title, detail, remedy, code), {}
    return passed(title, f"stamped {age_s:.3f} s before its arrival"), values
