"""The checklist before the first motion of a robot.

`preflight` checks the contract (`contract_checks`) and the graph (`graph_checks`) until the graph is right; `survey`
also reads one message of each sensor, for `embodied-env doctor`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rclpy.utilities import get_rmw_implementation_identifier

from embodied_env.contract import Contract, SensorSpec
from embodied_env.core.clock import NS_PER_S, Clock, Domain, Stamp, SteadyClock
from embodied_env.ros.message_fields import MalformedMessageError
from embodied_env.ros.node import RosNode
from embodied_env.ros.qos import input_qos, sensor_qos
from embodied_env.ros.receive_thread import ReceiveThread
from embodied_env.ros.receiver import LivenessCheck, ReceivedMessage
from embodied_env.ros.robot.backend_profile import SETTLE_S, RealProfile
from embodied_env.ros.robot.contract_checks import Check, check_positions, contract_checks, measured_positions
from embodied_env.ros.robot.graph_checks import graph_checks
from embodied_env.ros.robot.stamp_translation import suspect_clock
from embodied_env.ros.sensor_readers import SensorReader, stamp_ns
from embodied_env.ros.transforms import as_it_comes

_POLL_S = 0.05


def preflight(
    contract: Contract,
    profile: RealProfile,
    ros: RosNode,
    deadline: Stamp,
    *,
    clock: Clock,
    settle_s: float = SETTLE_S,
    patrol: LivenessCheck | None = None,
) -> tuple[Check, ...]:
    """Return all checks except that of the positions, once the graph has been right for `settle_s`, or at `deadline`.

    A publisher that was killed stays in the graph until its lease expires, so a failed check may still pass.

    Args:
        contract: the sensors and actuators that are required.
        profile: of the backend ``real``.
        ros: our node, whose publishers on the actuator topics are allowed, and whose endpoints have our QoS.
        deadline: on the steady clock.
        clock: waits.
        settle_s: 0 if the graph has been watched since (`graph_checks.contention`).
        patrol: called between two looks; raises when there is nothing left to wait for.
    """
    static = contract_checks(contract, profile)
    right_since_ns: int | None = None
    while True:
        checks = graph_checks(contract, profile, ros.node)
        now_ns = clock.now_ns()
        if any(check.passed is False for check in checks):
            right_since_ns = None
        elif right_since_ns is None:
            right_since_ns = now_ns
        if right_since_ns is not None and now_ns - right_since_ns >= settle_s * NS_PER_S:
            return (*static, *checks)
        if now_ns >= deadline.ns:
            if right_since_ns is None:
                return (*static, *checks)
            right_s = (now_ns - right_since_ns) / NS_PER_S
            detail = f"the graph was right for {right_s:.2f} s at the deadline; needed: {settle_s:.2f} s"
            unsettled = Check(
                name="graph", passed=False, detail=detail, remedy="allow more time", code="graph.unsettled"
            )
            return (*static, *checks, unsettled)
        if patrol is not None:
            patrol()
        clock.sleep_until_ns(min(deadline.ns, now_ns + round(_POLL_S * NS_PER_S)))


def survey(
    contract: Contract, profile: RealProfile, *, namespace: str, timeout_s: float, settle_s: float = SETTLE_S
) -> tuple[Check, ...]:
    """Check the robot in `namespace` without any publisher, so that a moving robot is not disturbed.

    Args:
        contract: the sensors and actuators that are required.
        profile: of the backend ``real``.
        namespace: absolute.
        timeout_s: how long the graph may take to become right, and again the first readings to arrive.
        settle_s: how long the graph must stay right.

    Raises:
        BackendNotReadyError: when ROS 2 cannot be initialised.
    """
    readers = {
        name: SensorReader(name, as_it_comes(sensor) if name in profile.tf else sensor)
        for name, sensor in contract.sensors.items()
    }
    newest: dict[str, ReceivedMessage] = {}
    clock = SteadyClock()
    ros = RosNode(f"doctor_{os.getpid()}", namespace=namespace, clock=clock)
    listener = ReceiveThread(ros.node, clock)

    def store(arrival: ReceivedMessage) -> None:
        if readers[arrival.key].concerns(arrival.message):
            newest[arrival.key] = arrival

    try:
        for name, sensor in contract.sensors.items():
            listener.subscribe(name, sensor.type, sensor.topic, sensor_qos(sensor), store)
        for name, estop in profile.estop.items():
            listener.subscribe(name, estop.type, estop.topic, input_qos(latched=estop.latched), lambda _: None)
        deadline = Stamp(clock.now_ns() + round(timeout_s * NS_PER_S), Domain.STEADY)
        checks = preflight(contract, profile, ros, deadline, clock=clock, settle_s=settle_s)
        if any(check.passed is False for check in checks):
            detail = "not looked at, because of what failed"
            return (*checks, Check(name="readings", passed=None, detail=detail))
        listener.start()
        with listener.condition:
            listener.condition.wait_for(lambda: len(newest) == len(contract.sensors) or listener.failure, timeout_s)
        listener.raise_if_failed()
    finally:
        listener.stop()
        ros.close()
    readings = {
        name: _reading(sensor, name, newest.get(name), readers[name]) for name, sensor in contract.sensors.items()
    }
    measured = measured_positions(contract, {name: values for name, (_, values) in readings.items()})
    positions = check_positions(contract, measured, outside=profile.start_outside)
    return (*checks, *(check for check, _ in readings.values()), positions)


def middleware() -> str:
    """Return the name of the RMW implementation that is loaded."""
    return str(get_rmw_implementation_identifier())


def _reading(
    sensor: SensorSpec, name: str, arrival: ReceivedMessage | None, reader: SensorReader
) -> tuple[Check, Mapping[str, Any]]:
    """Return the check of a sensor's newest message, and the values of a sound one."""
    title = f"readings.{name}"
    if arrival is None:
        remedy = "see that it publishes: ros2 topic hz"
        return Check(name=title, passed=False, detail="no message came", remedy=remedy, code="obs.silent"), {}
    try:
        values = reader.read(arrival.message)
    except MalformedMessageError as error:
        return Check(name=title, passed=False, detail=str(error), remedy="", code="obs.invalid"), {}
    if sensor.timeline == "receive":
        return Check(name=title, passed=True, detail="a message came"), values
    arrival_ns = arrival.info["received_timestamp"] or arrival.arrival_system_ns
    age_s = (arrival_ns - stamp_ns(arrival.message)) / NS_PER_S
    if not -sensor.max_age_s <= age_s <= sensor.max_age_s:
        suspect = suspect_clock(age_s)
        by = f", by the clock {suspect!r}?" if suspect else ""
        detail = f"stamped {age_s:.3f} s before it came{by}; allowed: {sensor.max_age_s} s"
        remedy = "see that its clock is that of this host (chrony, PTP), and that it stamps its messages"
        code = "obs.stale" if age_s > 0 else "obs.future"
        return Check(name=title, passed=False, detail=detail, remedy=remedy, code=code), {}
    return Check(name=title, passed=True, detail=f"stamped {age_s:.3f} s before it came"), values
