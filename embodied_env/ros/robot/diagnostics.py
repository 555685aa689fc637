"""Publish the diagnostics of an environment's steps as five statuses.

docs/reference/contract.md has the rule of each level, which covers the steps since the last message. Without a step for
a second or ten control periods, whichever is longer, all are STALE while an episode runs, and before the first one. The
levels at the end of an episode remain until the next.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
from rclpy.clock import Clock as RosClock
from rclpy.clock import ClockType
from rclpy.node import Node

from embodied_env.contract import Contract
from embodied_env.core.code_types import Quality, Severity, end_kind
from embodied_env.core.types import Transition
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.node import Threshold
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.timing.clock import NS_PER_S, Clock

TOPIC = "/diagnostics"
PERIOD_S = 1.0
_THRESHOLD = "diagnostics.threshold.periodicity"
THRESHOLDS = {
    f"{_THRESHOLD}.{of}.{level}": Threshold(default_hz)
    for of in ("mean_error", "standard_deviation")
    for level, default_hz in (("warn", 5.0), ("error", 10.0))
}
"""Parameters in Hz with their defaults, named as those of ros2_control."""

_STALE_PERIODS = 10
_GOOD = (int(Quality.OK), int(Quality.OUT_OF_RANGE))
_LATE_CODES = ("lat.budget", "act.late")
_TIMES = ("obs_to_command_s", "period_s", "overrun_s")


class Diagnostics:
    """Observer that publishes the status of each step, and never affects a step by failing."""

    def __init__(self, contract: Contract, clock: Clock) -> None:
        """Start before the first step on the steady `clock`, without publishing until `connect`."""
        self._hardware_id = f"{contract.name} {contract.fingerprint[:12]}"
        self._lock = threading.Lock()
        self._node: Node | None = None
        self._publisher: Any = None
        self._thresholds: Mapping[str, float] = THRESHOLDS
        self._published = 0
        self._clock = clock
        self._rate_hz = 1.0 / contract.control_period_s
        self._warn_share = contract.safety.intervention.warn_share
        self._stale_ns = round(max(NS_PER_S, _STALE_PERIODS * contract.control_period_ns))
        self._window = _Window()
        self._info: Mapping[str, Any] = {}
        self._end_reason = ""
        self._is_running = False
        self._stepped_ns: int | None = None
        self._total_missed = 0
        self._final_levels = dict.fromkeys(("gates", "latency", "sensors"), DiagnosticLevel.OK)
        self._published_levels: Mapping[str, DiagnosticLevel] = {}

    def connect(self, node: Node) -> None:
        """Publish from `node`, every second and when a level rises."""
        with self._lock:
            self._node = node
            self._thresholds = read_thresholds(node)
            self._publisher = node.create_publisher(
                message_class("diagnostic_msgs/msg/DiagnosticArray"), TOPIC, RELIABLE
            )
        node.create_timer(PERIOD_S, self._on_timer, clock=RosClock(clock_type=ClockType.STEADY_TIME))

    def disconnect(self) -> None:
        """Stop publishing before the node is destroyed (idempotent)."""
        with self._lock:
            self._node = self._publisher = None

    def observe(self, transition: Transition) -> None:
        """Add a step and publish at once if a level rises."""
        with self._lock:
            if self.add(transition):
                self._publish()

    def _on_timer(self) -> None:
        with self._lock:
            self._publish()

    def _publish(self) -> None:
        if self._node is None:
            return
        self._published += 1
        statuses = (*self.publishable(self._thresholds), heartbeat(self._published))
        message = diagnostic_array(self._node, self._hardware_id, statuses)
        with contextlib.suppress(RuntimeError):  # the context was shut down elsewhere
            self._publisher.publish(message)

    # ------------------------------------------------------------------------------ the statuses, under the lock

    def add(self, transition: Transition) -> bool:
        """Add a step and return whether to publish, as a level rose or is no longer stale."""
        window, info = self._window, transition.info
        window.steps += 1
        latency = info["latency"]
        for name in _TIMES:
            value = latency.get(name)
            if isinstance(value, float) and math.isfinite(value) and latency["quality"].get(name, 0) == Quality.OK:
                window.times[name].append(value)
        total = int(latency.get("missed_deadlines", 0))  # counted since the reset
        window.missed += total - self._total_missed if total >= self._total_missed else total
        self._total_missed = total
        window.severity = max(window.severity, transition.report.disposition)
        window.codes.update(finding.code for finding in transition.report.findings if finding.code)
        window.bad.update(name for name, sensor in info["sensors"].items() if sensor["quality"] not in _GOOD)
        self._info, self._end_reason = info, info["end_reason"]
        self._is_running = not self._end_reason
        self._stepped_ns = self._clock.now_ns()
        published = self._published_levels
        return any(
            level > published.get(name, DiagnosticLevel.OK) or published.get(name) is DiagnosticLevel.STALE
            for name, level in self._current().items()
        )

    def publishable(self, thresholds: Mapping[str, float] = THRESHOLDS) -> tuple[Status, ...]:
        """Return the statuses of the steps since the last call."""
        window, levels = self._window, self._current()
        self._window = _Window()
        if window.steps:
            self._final_levels = levels
        self._published_levels = levels
        stale = f"no step for {self._silent_s():.1f} s" if self._stepped_ns is not None else "no step yet"
        end = f"ended: {self._end_reason}" if self._end_reason else ""
        messages = {
            "gates": end or window.severity.name,
            "latency": f"{window.missed} deadlines missed" if window.missed else "",
            "sensors": ", ".join(sorted(window.bad)),
        }
        values = self._values(window)
        rate = periodicity(window.times["period_s"], self._rate_hz, thresholds)
        if DiagnosticLevel.STALE in levels.values():
            rate = replace(rate, level=DiagnosticLevel.STALE, message=stale)
        statuses = (
            Status(
                name=name,
                level=level,
                message=stale if level is DiagnosticLevel.STALE else messages[name] or level.name,
                values={key: str(value) for key, value in values[name].items()},
            )
            for name, level in levels.items()
        )
        return (*statuses, rate)

    def _silent_s(self) -> float:
        return math.inf if self._stepped_ns is None else (self._clock.now_ns() - self._stepped_ns) / NS_PER_S

    def _current(self) -> dict[str, DiagnosticLevel]:
        if self._stepped_ns is None or (self._is_running and self._silent_s() * NS_PER_S > self._stale_ns):
            return dict.fromkeys(self._final_levels, DiagnosticLevel.STALE)
        if not self._window.steps:
            return dict(self._final_levels)
        window, end = self._window, end_kind(self._end_reason)
        share = float(self._info["safety"]["intervention_share"])
        is_stopped = window.severity >= Severity.STOP or end in ("safety_stop", "backend_lost")
        is_held = window.severity >= Severity.HOLD or share > self._warn_share
        is_late = window.missed > 0 or any(window.codes[code] for code in _LATE_CODES)
        return {
            "gates": _level(is_error=is_stopped, is_warning=is_held),
            "latency": _level(is_error=False, is_warning=is_late),
            "sensors": _level(is_error=end == "sensor_gap", is_warning=bool(window.bad)),
        }

    def _values(self, window: _Window) -> dict[str, dict[str, object]]:
        safety = self._info.get("safety", {})
        gates = {
            "disposition": window.severity.name,
            **{f"code.{code}": count for code, count in sorted(window.codes.items())},
            "intervention_share": f"{safety.get('intervention_share', math.nan):.3f}",
            "latched": safety.get("latched", False),
            "end_reason": self._end_reason,
            "episode": self._info.get("episode_index", -1),
            "step": self._info.get("step_index", 0),
        }
        latency: dict[str, object] = {"steps": window.steps, "missed_deadlines": window.missed}
        for name, times_s in window.times.items():
            if times_s:
                p50_s, p95_s = np.percentile(times_s, (50.0, 95.0))
                latency |= {f"{name}.p50": f"{p50_s:.6f}", f"{name}.p95": f"{p95_s:.6f}"}
        sensors: dict[str, object] = {}
        for name, sensor in self._info.get("sensors", {}).items():
            sensors[f"{name}.age_s"] = f"{sensor['age_s']:.4f}"
            sensors[f"{name}.quality"] = Quality(sensor["quality"]).name
            sensors[f"{name}.bad"] = window.bad[name]
        return {"gates": gates, "latency": latency, "sensors": sensors}


def _level(*, is_error: bool, is_warning: bool) -> DiagnosticLevel:
    return DiagnosticLevel.ERROR if is_error else DiagnosticLevel.WARN if is_warning else DiagnosticLevel.OK


def read_thresholds(node: Node) -> dict[str, float]:
    """Return the thresholds that a node has declared as parameters."""
    return {name: float(node.get_parameter(name).value) for name in THRESHOLDS}


def periodicity(periods_s: Sequence[float], wanted_hz: float, thresholds: Mapping[str, float]) -> Status:
    """Return the status of a rate by its mean error and deviation, with thresholds in Hz."""
    values: dict[str, object] = {"samples": len(periods_s), "wanted_hz": wanted_hz, **thresholds}
    level, deviations = DiagnosticLevel.OK, {}
    if periods_s:
        rates_hz = 1.0 / np.maximum(periods_s, 1e-9)
        mean_hz = float(np.mean(rates_hz))
        deviations = {"mean_error": abs(mean_hz - wanted_hz), "standard_deviation": float(np.std(rates_hz))}
        values |= {"rate_hz": mean_hz, **deviations}
        for threshold, found in (("warn", DiagnosticLevel.WARN), ("error", DiagnosticLevel.ERROR)):
            if any(value > thresholds[f"{_THRESHOLD}.{of}.{threshold}"] for of, value in deviations.items()):
                level = found
    text = ", ".join(f"{of} {value:.2f} Hz" for of, value in deviations.items()) or "no period measured"
    return Status(name="periodicity", level=level, message=text, values={k: str(v) for k, v in values.items()})


def heartbeat(number: int) -> Status:
    """Return the status of a process that publishes its message `number`."""
    return Status(name="heartbeat", level=DiagnosticLevel.OK, message="alive", values={"messages": str(number)})


def diagnostic_array(node: Node, hardware_id: str, statuses: Sequence[Status]) -> Any:  # noqa: ANN401 - generated
    """Return the DiagnosticArray with these statuses of `node`."""
    status_type = message_class("diagnostic_msgs/msg/DiagnosticStatus")
    key_value = message_class("diagnostic_msgs/msg/KeyValue")
    message = message_class("diagnostic_msgs/msg/DiagnosticArray")()
    message.header.stamp = node.get_clock().now().to_msg()
    message.status = [
        status_type(
            level=bytes([status.level]),
            name=f"{node.get_fully_qualified_name()[1:]}: {status.name}",
            message=status.message,
            hardware_id=hardware_id,
            values=[key_value(key=key, value=value) for key, value in status.values.items()],
        )
        for status in statuses
    ]
    return message


class DiagnosticLevel(IntEnum):
    """The levels of diagnostic_msgs/msg/DiagnosticStatus."""

    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3


@dataclass(frozen=True, kw_only=True)
class Status:
    """The content of one diagnostic_msgs/msg/DiagnosticStatus."""

    name: str
    level: DiagnosticLevel
    message: str
    values: Mapping[str, str]


@dataclass(kw_only=True)
class _Window:  # since the last message
    steps: int = 0
    missed: int = 0
    times: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _TIMES})
    codes: Counter[str] = field(default_factory=Counter)
    severity: Severity = Severity.PASS
    bad: Counter[str] = field(default_factory=Counter)  # bad readings by sensor
