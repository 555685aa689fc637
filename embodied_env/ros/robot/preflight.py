"""Preflight: what must be right before the first motion of a real robot, as a checklist.

`preflight` checks the contract (`ros.robot.contract_checks`) and the graph (`ros.robot.graph_checks`) until the graph
is right; `survey` also reads one message of each sensor, for `embodied-env doctor`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.utilities import get_rmw_implementation_identifier

from embodied_env.contract import Contract
from embodied_env.contract.message_types import message_class
from embodied_env.core.clock import NS_PER_S, Clock, Domain, Stamp, SteadyClock
from embodied_env.ros.message_fields import MalformedMessageError
from embodied_env.ros.node import RosNode
from embodied_env.ros.qos import input_qos, sensor_qos
from embodied_env.ros.receiver import LivenessCheck
from embodied_env.ros.robot.clock_sync import suspect_clock
from embodied_env.ros.robot.contract_checks import Check, check_positions, contract_checks, measured_positions
from embodied_env.ros.robot.graph_checks import graph_checks
from embodied_env.ros.robot.profile import SETTLE_S
from embodied_env.ros.sensor_readers import SensorReader, stamp_ns
from embodied_env.ros.transforms import as_it_comes

_GLANCE_S = 0.05
_SURVEY_POLL_S = 0.05


def preflight(
    contract: Contract,
    profile: Mapping[str, Any],
    ros: RosNode,
    deadline: Stamp,
    *,
    clock: Clock,
    settle_s: float = SETTLE_S,
    patrol: LivenessCheck | None = None,
) -> tuple[Check, ...]:
    """Return every check but that of the positions, when the graph has been right for `settle_s`, or at `deadline`.

    A publisher that was killed stays in the graph until its lease is over, so what is wrong may still become right.

    Args:
        contract: what the robot must be.
        profile: that of the backend ``real``.
        ros: our node; its own publishers on the actuator topics are ours, its subscriptions say which QoS we ask for.
        deadline: on the steady clock.
        clock: waits.
        settle_s: 0 where the graph has been watched since (`embodied_env.ros.robot.graph_checks.contention`).
        patrol: called between two looks; raises when waiting has no sense any more.
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
            return (*static, *checks, *_settled(right_since_ns, now_ns, settle_s))
        if patrol is not None:
            patrol()
        clock.sleep_until_ns(min(deadline.ns, now_ns + round(_GLANCE_S * NS_PER_S)))


def survey(
    contract: Contract, profile: Mapping[str, Any], *, namespace: str, timeout_s: float, settle_s: float = SETTLE_S
) -> tuple[Check, ...]:
    """Check the robot in `namespace`, without a publisher: a robot that moves is not disturbed.

    Args:
        contract: what the robot must be.
        profile: that of the backend ``real``.
        namespace: absolute.
        timeout_s: how long the graph may take to become right; then as long again for the first readings.
        settle_s: how long it must stay right.

    Raises:
        BackendNotReadyError: when ROS 2 cannot be initialised.
    """
    clock = SteadyClock()
    ros = RosNode(f"doctor_{os.getpid()}", namespace=namespace, clock=clock)
    newest: dict[str, tuple[Any, int]] = {}  # sensor -> message, when it came on the system clock
    readers: dict[str, SensorReader] = {}
    executor = SingleThreadedExecutor(context=ros.node.context)
    try:
        for name, sensor in contract.sensors.items():
            readers[name] = SensorReader(name, as_it_comes(sensor) if name in (profile.get("tf") or {}) else sensor)
            take = _taker(newest, name, clock, readers[name])
            ros.node.create_subscription(message_class(sensor.type), sensor.topic, take, sensor_qos(sensor))
        for estop in (profile.get("estop") or {}).values():
            qos = input_qos(latched=estop.get("latched") is True)
            kind = message_class(estop.get("type", "std_msgs/msg/Bool"))
            ros.node.create_subscription(kind, estop["topic"], lambda _: None, qos)
        executor.add_node(ros.node)
        deadline = Stamp(clock.now_ns() + round(timeout_s * NS_PER_S), Domain.STEADY)
        checks = preflight(contract, profile, ros, deadline, clock=clock, settle_s=settle_s)
        if any(check.passed is False for check in checks):
            detail = "not looked at, because of what failed"
            return (*checks, Check(name="readings", passed=None, detail=detail))
        end = time.monotonic() + timeout_s
        while len(newest) < len(contract.sensors) and time.monotonic() < end:
            executor.spin_once(timeout_sec=_SURVEY_POLL_S)
        readings = [_reading(contract, name, newest.get(name), readers[name]) for name in contract.sensors]
        values = {name: found for name, (_, found) in zip(contract.sensors, readings, strict=True)}
        outside = str(profile.get("start_outside", "refuse"))
        positions = check_positions(contract, measured_positions(contract, values), outside=outside)
        return (*checks, *(check for check, _ in readings), positions)
    finally:
        executor.shutdown()
        ros.close()


def middleware() -> str:
    """Return the name of the RMW implementation that is loaded."""
    return str(get_rmw_implementation_identifier())


def _settled(right_since_ns: int | None, now_ns: int, settle_s: float) -> tuple[Check, ...]:
    """Return a failed check when the graph was right at last, but not for long enough to know it."""
    if right_since_ns is None:
        return ()
    seen_s = (now_ns - right_since_ns) / NS_PER_S
    detail = f"the graph was right for {seen_s:.2f} s at the deadline; needed: {settle_s:.2f} s"
    return (Check(name="graph", passed=False, detail=detail, remedy="allow more time", code="graph.unsettled"),)


def _taker(
    newest: dict[str, tuple[Any, int]], name: str, clock: Clock, reader: SensorReader
) -> Callable[[Any, Any], None]:
    def take(message: Any, info: Any) -> None:  # noqa: ANN401 - a generated type, and a dict
        if reader.concerns(message):
            newest[name] = message, info["received_timestamp"] or clock.system_ns()

    return take


def _reading(
    contract: Contract, name: str, found: tuple[Any, int] | None, reader: SensorReader
) -> tuple[Check, Mapping[str, Any]]:
    """Return what can be said of the newest message of a sensor, and its values; none when they do not count."""
    sensor = contract.sensors[name]
    title = f"readings.{name}"
    if found is None:
        remedy = "see that it publishes: ros2 topic hz"
        return Check(name=title, passed=False, detail="no message came", remedy=remedy, code="obs.silent"), {}
    message, arrival_ns = found
    try:
        values = reader.read(message)
    except MalformedMessageError as error:
        return Check(name=title, passed=False, detail=str(error), remedy="", code="obs.invalid"), {}
    if sensor.timeline == "receive":
        return Check(name=title, passed=True, detail="a message came"), values
    age_s = (arrival_ns - stamp_ns(message)) / NS_PER_S
    if not -sensor.max_age_s <= age_s <= sensor.max_age_s:
        suspect = suspect_clock(age_s)
        by = f", by the clock {suspect!r}?" if suspect else ""
        detail = f"stamped {age_s:.3f} s before it came{by}; allowed: {sensor.max_age_s} s"
        remedy = "see that its clock is that of this host (chrony, PTP), and that it stamps its messages"
        code = "obs.stale" if age_s > 0 else "obs.future"
        return Check(name=title, passed=False, detail=detail, remedy=remedy, code=code), {}
    return Check(name=title, passed=True, detail=f"stamped {age_s:.3f} s before it came"), values
