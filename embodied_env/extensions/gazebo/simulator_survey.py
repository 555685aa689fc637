"""Check services, clock, topics, periods and controllers of a simulator for ``doctor``.

The survey publishes no command. It steps the world, if it is at rest: most sensors publish only while time passes.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from embodied_env.contract import Contract, SensorSpec
from embodied_env.contract.qos_schema import QosSpec
from embodied_env.errors import BackendLostError, BackendNotReadyError, ContractError, MissingDependencyError
from embodied_env.extensions.gazebo.control import APIS
from embodied_env.extensions.gazebo.control.lockstep_control import LockstepControl
from embodied_env.extensions.gazebo.control.service_session import REST_S, ServiceSession
from embodied_env.extensions.gazebo.derived_sensors import EntityTopics
from embodied_env.extensions.gazebo.external_sim_profile import SimulatorProfile, check_offered, load_simulator_profile
from embodied_env.messages.message_types import message_class
from embodied_env.ros.robot.graph_checks import publisher_problems, reader_problems, surroundings, topic_check
from embodied_env.ros.transport.checklist import Check, failed, passed
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import qos_profile
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.ros.transport.setup_checks import apt_package
from embodied_env.ros.wire.sensor_buffer import stamp_ns
from embodied_env.ros.wire.step_arrivals import DueReading
from embodied_env.timing.clock import NS_PER_S, SteadyClock

_EVERY_MESSAGE = qos_profile(QosSpec(depth=1000, reliability="best_effort"))
_POLL_S = 0.05
_CALL_S = 1.0
_MOST_MESSAGES = 10  # messages of one topic in a control period
_SLOWEST_NS = 2 * NS_PER_S  # simulated time in which even a slow topic has a message
_LIST_CONTROLLERS = "controller_manager_msgs/srv/ListControllers"
_OLDEST = 8  # the first that can reset a world and be controlled exactly by the shipped worlds
_VERSION_S = 20.0
_VERSION = re.compile(r"\d+\.\d+\.\d+\S*")
_DEAD_BRIDGE = "a bridge that was killed stays in the graph until its lease expires, 20 s by default"
_START_BRIDGE = (
    "start the bridge: ros2 run ros_gz_bridge parameter_bridge --ros-args -p config_file:=<world>.bridge.yaml"
)
_PLUGINS = 'search the log of gz sim, in ~/.gz/sim/log, for "Failed to load system plugin"'
_LIFELESS = (
    "start the server, paused: gz sim -s <world>.sdf; server and bridge need the same GZ_PARTITION, the world the name "
    f"in the profile, and the bridge an entry for its clock; {_DEAD_BRIDGE}"
)


def survey_simulator(contract: Contract, backend: str, *, namespace: str, timeout_s: float) -> tuple[Check, ...]:
    """Check the simulator of ``backends.<backend>``, stepping it without a reset.

    Args:
        contract: with a valid profile of the backend.
        backend: ``gazebo`` or ``simulation_interfaces``.
        namespace: absolute, of relative topics.
        timeout_s: limit for the graph to be complete, and for each step.
    """
    profile, control = load_simulator_profile(contract, backend)
    ros = RosNode(f"doctor_{os.getpid()}", namespace=namespace, clock=SteadyClock())
    try:
        survey = _Survey(contract, profile, control, ros, timeout_s)
        survey.gazebo_world = profile.world if backend == "gazebo" else None
        return tuple(survey.checks())
    finally:
        ros.close()


@dataclass(kw_only=True)
class _Topic:
    title: str  # title of its checks
    spec: SensorSpec
    messages: int = 0
    repeats: int = 0  # messages without a newer stamp
    newest_ns: int = -1


class _Survey:
    def __init__(
        self, contract: Contract, profile: SimulatorProfile, control: str, ros: RosNode, timeout_s: float
    ) -> None:
        self._contract, self._profile, self._ros, self._timeout_s = contract, profile, ros, timeout_s
        self._topics = dict(_topics_of(contract, profile))
        self._session = ServiceSession(ros.receiver, reply_timeout_s=profile.reply_timeout_s, on_message=self._store)
        for key, topic in self._topics.items():
            ros.receiver.subscribe(key, message_class(topic.spec.type), topic.spec.topic, _EVERY_MESSAGE)
        self._control_name = control
        self.gazebo_world: str | None = None

    def checks(self) -> Iterator[Check]:
        try:
            api = APIS[self._control_name](world=self._profile.world, prefix=self._profile.prefix)
        except (MissingDependencyError, ContractError) as error:
            yield failed("services", str(error), "", "missing")
            return
        control = LockstepControl(api, self._session, step_ns=self._profile.step_ns)
        before = list(self._graph_checks(control))
        yield from before
        wrong = [check.name for check in before if check.passed is False and check.name in ("services", "clock")]
        if wrong:
            yield Check(name="step", passed=None, detail=f"not checked because of: {', '.join(wrong)}")
            return
        yield from self._step_checks(control)
        yield from self._controller_checks()

    # ---------------------------------------------------------------------------------------- before a step

    def _graph_checks(self, control: LockstepControl) -> Iterator[Check]:
        """Repeat the checks of services, clock and graph until all pass, or time is over."""
        end = time.monotonic() + self._timeout_s
        while True:
            self._session.receive(_POLL_S)
            checks = [self._service_check(control), self._clock_check(), *self._topic_checks()]
            if all(check.passed for check in checks) or time.monotonic() > end:
                return iter(checks)

    def _service_check(self, control: LockstepControl) -> Check:
        try:
            control.probe(time.monotonic() + _CALL_S)
            check_offered(self._profile, self._control_name, control.capabilities)
        except (BackendNotReadyError, BackendLostError) as error:
            return failed("services", str(error), "", "service.none")
        return passed("services", f"{self._control_name}, world {self._profile.world!r}")

    def _clock_check(self) -> Check:
        clock = self._session.clock
        if clock.now_ns is None:
            if not clock.repeats:
                return passed("clock", "no message at rest")
            return failed("clock", "no message on /clock", _LIFELESS, "clock.silent")
        moved_s = time.monotonic() - clock.changed_s
        if moved_s < REST_S:
            remedy = "start gz sim without -r, and stop other clients that step the world"
            return failed(
                "clock", f"moves, at {clock.now_ns / NS_PER_S:.3f} s (expected a pause)", remedy, "clock.moves"
            )
        return passed("clock", f"at rest at {clock.now_ns / NS_PER_S:.3f} s")

    def _topic_checks(self) -> list[Check]:
        """Return a check per topic, or one for all if there is no endpoint and so no bridge."""
        node = self._ros.node
        actuators = {name: actuator.as_topic() for name, actuator in self._contract.actuators.items()}
        published = [(topic.title, topic.spec.topic, topic.spec.type) for topic in self._topics.values()]
        published += [(f"echo.{name}", topic, actuators[name].type) for name, topic in self._profile.echo.items()]
        checks = []
        for title, topic, kind in published:
            problems = publisher_problems("", topic, kind, node, at_most=1)
            check = topic_check(title, topic, node, problems)
            if check.code == "pub.multiple":
                check = replace(check, remedy=f"{check.remedy}; {_DEAD_BRIDGE}")
            checks.append(check)
        for name, actuator in actuators.items():
            problems = reader_problems("", actuator.topic, actuator.type, node)
            checks.append(topic_check(f"actuators.{name}", actuator.topic, node, problems))
        if all(check.code in ("pub.none", "sub.none") for check in checks):
            detail = f"nothing publishes or subscribes to any of the {len(checks)} topics"
            return [failed("topics", detail, f"{_START_BRIDGE}; {surroundings(node)}", "topics.none")]
        return checks

    # --------------------------------------------------------------------------------------- while it steps

    def _step_checks(self, control: LockstepControl) -> Iterator[Check]:
        """Step to the end of a control period, then as many periods as the slowest sensor needs."""
        period_ns = self._contract.control_period_ns
        slowest_hz = min((topic.spec.rate_hz for topic in self._topics.values() if topic.spec.rate_hz), default=None)
        periods = 1 if slowest_hz is None else 1 + math.ceil(NS_PER_S / slowest_hz / period_ns)
        try:
            control.connect(time.monotonic() + self._timeout_s)
            control.wake_clock(time.monotonic() + self._timeout_s)
            control.step_to_period(1, period_ns, time.monotonic() + self._timeout_s)
            self._session.drain()
            for topic in self._topics.values():
                topic.messages = topic.repeats = 0
            since_ns, since_s = control.now_ns(), time.monotonic()
            for _ in range(periods):
                control.step(period_ns, time.monotonic() + self._timeout_s)
            took_s = (time.monotonic() - since_s) / periods
            self._await_readings(control.now_ns())
            if any(not self._is_complete(topic, control.now_ns()) for topic in self._topics.values()):
                while control.now_ns() - since_ns < _SLOWEST_NS:  # to name their rates
                    control.step(period_ns, time.monotonic() + self._timeout_s)
                    periods += 1
                self._await_readings(control.now_ns())
        except (BackendLostError, BackendNotReadyError) as error:
            remedy = "stop other clients of the simulator, and set step_s of the profile to max_step_size of the world"
            yield failed("step", str(error), remedy, "step")
            return
        period_s = period_ns / NS_PER_S
        exact = passed(
            "step", f"{periods} control periods of {period_s:g} s are exact; one takes {took_s * 1e3:.1f} ms"
        )
        yield replace(exact, remedy=control.last_step.describe_throttle(self.gazebo_world) if control.last_step else "")
        for topic in self._topics.values():
            yield self._reading_check(topic, control.now_ns(), periods)

    def _await_readings(self, now_ns: int) -> None:
        end = time.monotonic() + self._profile.sensor_grace_s
        while time.monotonic() < end and any(not self._is_complete(topic, now_ns) for topic in self._topics.values()):
            self._session.receive(_POLL_S)

    def _is_complete(self, topic: _Topic, now_ns: int) -> bool:
        if topic.spec.timeline == "receive" and topic.messages:
            return True
        return DueReading.of(topic.spec, self._profile.step_ns).satisfies(topic.newest_ns, now_ns)

    def _reading_check(self, topic: _Topic, now_ns: int, periods: int) -> Check:
        title, count = f"readings.{topic.title}", topic.messages
        rate_hz = NS_PER_S / self._contract.control_period_ns
        if not count:
            remedy = f"check the topic of the sensor in the world, and its entry in the bridge's file; {_PLUGINS}"
            found = "only repeats of one stamp" if topic.repeats else "no message"
            return failed(title, f"{found} while the world moved by {periods / rate_hz:g} s", remedy, "obs.silent")
        is_slow = topic.spec.timeline == "header" and not topic.spec.rate_hz and count < periods - 1
        if is_slow or not self._is_complete(topic, now_ns):
            age_s = (now_ns - topic.newest_ns) / NS_PER_S
            found_hz = count * rate_hz / periods
            remedy = (
                f"publish at every control period (update_rate or update_frequency: {rate_hz:g}), or declare its "
                f"rate_hz, about {found_hz:.2g}"
            )
            detail = f"about {found_hz:.2g} Hz, newest stamped {age_s:.3f} s before the end of the step"
            return failed(title, detail, remedy, "obs.stale")
        detail = f"{count / periods:g} messages per control period"
        if count <= _MOST_MESSAGES * periods:
            return passed(title, detail)
        remedy = f"set update_rate or update_frequency of its publisher to {rate_hz:g}: more only costs time"
        return replace(passed(title, detail), remedy=remedy)

    def _store(self, arrival: ReceivedMessage) -> None:
        topic = self._topics[arrival.key]
        if topic.spec.timeline == "header":
            found_ns = stamp_ns(arrival.message)
            if found_ns <= topic.newest_ns:
                topic.repeats += 1
                return
            topic.newest_ns = found_ns
        topic.messages += 1

    # ------------------------------------------------------------------------------------------ controllers

    def _controller_checks(self) -> Iterator[Check]:
        """Check that the controllers are active, which requires simulated time to pass."""
        for service, types in sorted(self._ros.receiver.services().items()):
            if _LIST_CONTROLLERS not in types:
                continue
            try:
                kind = message_class(_LIST_CONTROLLERS)
                reply = self._ros.receiver.call(kind, service, kind.Request(), _CALL_S, lambda: None)
            except (MissingDependencyError, ContractError, TimeoutError) as error:
                yield Check(name="controllers", passed=None, detail=f"{service} cannot be read: {error}")
                continue
            states = {each.name: each.state for each in reply.controller}
            listed = ", ".join(f"{name} {state}" for name, state in states.items()) or "none loaded"
            if states and set(states.values()) == {"active"}:
                yield passed("controllers", listed)
                continue
            remedy = "run the spawner of the controllers, then reset once: they become active while time passes"
            yield failed("controllers", f"{listed} (expected active)", remedy, "controllers")


def _topics_of(contract: Contract, profile: SimulatorProfile) -> Iterator[tuple[str, _Topic]]:
    for name, sensor in contract.sensors.items():
        if name not in profile.sources:
            yield name, _Topic(title=f"sensors.{name}", spec=sensor)
    for key, spec in EntityTopics(profile).topics.items():
        yield key, _Topic(title=key.removeprefix("/").replace("/", "."), spec=spec)


GAZEBO_OF: Mapping[str, int] = {"jazzy": 8, "kilted": 9, "lyrical": 10, "rolling": 10}
"""ROS 2 distribution -> major version of gz-sim that its packages use."""


def version_checks() -> Iterator[Check]:
    """Yield checks of gz-sim and ros_gz_bridge on this host, not on a remote server's."""
    yield _gazebo_check(os.environ.get("ROS_DISTRO", ""))
    prefixes = filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep))
    manifests = (Path(prefix, "share", "ros_gz_bridge", "package.xml") for prefix in prefixes)
    text = next((manifest.read_text(encoding="utf-8") for manifest in manifests if manifest.is_file()), "")
    if (found := re.search(r"<version>([^<]+)</version>", text)) is None:
        remedy = f"apt install {apt_package('ros_gz_bridge')}, and source its setup.bash"
        yield Check(name="ros_gz_bridge", passed=None, detail="not installed on this host", remedy=remedy)
    else:
        yield passed("ros_gz_bridge", found[1])


def _gazebo_check(distribution: str) -> Check:
    program = shutil.which("gz")
    if program is None:
        return Check(name="gz sim", passed=None, detail="not installed on this host")
    try:
        command = [program, "sim", "--versions"]
        printed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_VERSION_S).stdout  # noqa: S603 - the installed gz
    except (OSError, subprocess.TimeoutExpired) as error:
        return failed("gz sim", f"`gz sim --versions` failed: {error}", "reinstall Gazebo", "gz.version")
    versions = _VERSION.findall(printed)
    if not versions:  # gz-tools alone has `gz`, but no `sim`
        remedy = f"install gz-sim: apt install {apt_package('ros_gz')}, or gz-harmonic"
        return failed("gz sim", "`gz sim --versions` printed no version", remedy, "gz.version")
    newest = max(versions, key=lambda version: int(version.partition(".")[0]))
    major, expected = int(newest.partition(".")[0]), GAZEBO_OF.get(distribution)
    if major < _OLDEST:
        remedy = "install Harmonic (8) or newer"
        return failed("gz sim", f"version {newest} (expected {_OLDEST} or newer)", remedy, "gz.version")
    if expected is not None and major != expected:
        detail = f"version {newest} (the packages of {distribution} use {expected})"
        return Check(name="gz sim", passed=None, detail=detail, remedy="use one Gazebo for server and bridge")
    return passed("gz sim", f"version {newest}")
