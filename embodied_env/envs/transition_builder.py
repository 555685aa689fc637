"""Build the infos and transitions that `reset` and `step` return.

``info`` has fixed keys, dtypes and shapes (`core.info_types`), so that vector environments can stack it. Ages and
durations are in seconds. A stage that a combination of contract, backend and clock can never measure is absent, while
NaN means that a measurement was lost at run time. Infos are new at each call, while observations share the read-only
arrays of the readings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from embodied_env._version import __version__
from embodied_env.backends.backend import Paced
from embodied_env.contract import Contract
from embodied_env.contract.fixed_sizes import count_padding
from embodied_env.contract.required_sensors import required_sensors
from embodied_env.core.code_types import TERMINATED_REASONS, Severity, end_kind, order_end_reasons
from embodied_env.core.odometry_check import OdometryCheck
from embodied_env.core.policy import NoAction
from embodied_env.core.types import Finding, ResetReport, Snapshot, TaskResult, Transition, Verdict
from embodied_env.envs.latency_info import CommandsInFlight, LatencyInfoBuilder
from embodied_env.envs.motion_guard import MotionGuard
from embodied_env.envs.observation_builder import Observation, ObservationBuilder
from embodied_env.envs.stepper_state import EpisodeState, PendingStep
from embodied_env.errors import TaskError
from embodied_env.safety.findings import NO_CODE, NO_SEVERITY, gate_arrays, joint_codes, unmoved_joints
from embodied_env.safety.gate import SafetyGate
from embodied_env.safety.interlocks.observation import ObservationGate
from embodied_env.safety.late_agent import LATE, is_explained, were_valid
from embodied_env.timing.clock import NS_PER_S
from embodied_env.timing.ledger import Ledger

if TYPE_CHECKING:
    from embodied_env.core.info_types import Origin, ResetInfo, SensorInfo, StepInfo

Info = dict[str, Any]


class TransitionBuilder:
    """Builds the infos and transitions of one stepper.

    Attributes:
        clouds: sensors with a fixed number of points.
        origin: the keys of info that never change.
    """

    def __init__(self, guard: MotionGuard, ledger: Ledger, *, evaluator_info: bool, host_timing: bool) -> None:
        """Determine the measurable stages, as ROS stamps do not relate to a virtual clock."""
        contract, backend, capabilities = guard.contract, guard.backend, guard.backend.capabilities
        self._contract, self._gate, self._watchdog, self._ledger = contract, guard.gate, guard.watchdog, ledger
        self.observations = ObservationBuilder(contract)
        self.evaluator_info, self.host_timing = evaluator_info, host_timing
        self._hidden_options = {
            name
            for name, option in contract.reset_options.items()
            if option.visibility == "evaluator" and not evaluator_info
        }
        self.sensors = tuple(
            name for name, sensor in contract.sensors.items() if evaluator_info or sensor.visibility == "agent"
        )
        fields = [(name, spec) for name in self.sensors for spec in contract.sensors[name].fields.values()]
        self.clouds = {name: spec.points for name, spec in fields if spec.points is not None}
        self.renders_images = capabilities.renders_images
        self._has_wall_stamps = capabilities.transport and capabilities.free_running
        self._odometry = OdometryCheck.declared_by(contract) if self._has_wall_stamps else None
        self.origin: Origin = {
            "wrapper_version": f"embodied_env {__version__}, {contract.name} v{contract.version}",
            "contract": contract.fingerprint,
            "backend": backend.name,
            "world": capabilities.world,
        }
        self._commands = CommandsInFlight() if capabilities.actuation else None
        self._latencies = LatencyInfoBuilder(
            sensors=self.sensors,
            primary=next(iter(required_sensors(contract)), None),
            period_ns=contract.control_period_ns,
            transport=capabilities.transport and not guard.clock.virtual,
            renders_images=self.renders_images,
            moves_by_itself=capabilities.free_running,
            pacer=backend.pacer if isinstance(backend, Paced) else None,
            commands=self._commands,
            injected=capabilities.injected,
        )

    def begin_episode(self) -> None:
        """Forget the commands of the last episode."""
        if self._commands is not None:
            self._commands.begin()
        if self._odometry is not None:
            self._odometry.begin()

    def at_reset(self, episode: EpisodeState, duration_ns: int) -> tuple[Observation, Info]:
        """Return the observation and the info of the reset that started `episode`."""
        seen = self.observations.observe(episode.history, episode.step_index, episode.applied, episode.sampled)
        return copy_observation(seen), cast("Info", self._reset_info(episode, duration_ns))

    def _reset_info(self, episode: EpisodeState, duration_ns: int) -> ResetInfo:
        report, origin = reset_report(episode.snapshot), self.origin
        info: ResetInfo = {
            "wrapper_version": origin["wrapper_version"],
            "contract": origin["contract"],
            "backend": origin["backend"],
            "world": origin["world"],
            "episode_index": episode.index,
            "step_index": 0,
            "end_reason": "",
            "is_success": False,
            "sensors": self._sensor_infos(episode),
            "reset": {
                "seed_applied": -1 if report.seed_applied is None else report.seed_applied,
                "sampled": {
                    name: value.copy() for name, value in report.sampled.items() if name not in self._hidden_options
                },
                "level": report.level,
                "routine": report.routine,
                "home_offset": _home_offset(report),
                "confirmed_by": report.confirmed_by,
                "options_ignored": ",".join(report.ignored),
                "judged": report.verdict is not None,
                "solved": report.verdict is not None and bool(report.verdict.success),
                "sensors_verified": len(episode.snapshot.samples),
            },
            "instruction": report.instruction,
        }
        if self.evaluator_info:
            info["evaluator"] = self.observations.evaluator_readings(episode.snapshot)
        if self.host_timing:
            info["reset"]["duration_s"] = duration_ns / NS_PER_S
        return info

    def transition(
        self, episode: EpisodeState, step: PendingStep, result: TaskResult, reasons: tuple[str, ...]
    ) -> Transition:
        """Return the transition of the step that led to the newest snapshot."""
        report, inputs, ledger, origin = step.approved.report, step.external_inputs, self._ledger, self.origin
        gate, trips, layout, guaranteed = self._gate, self._watchdog.trips, self._gate.layout, report.guaranteed
        latched = gate.latched if gate.is_latched else None
        if self._commands is not None:
            self._commands.record_sent(step.approved.seq, ledger.published_ns)
        if self._odometry is not None:
            reading = episode.snapshot.samples[self._odometry.sensor]
            sent = dict(zip(layout.joints, report.applied_si.tolist(), strict=True))
            self._odometry.add_command(episode.snapshot.now_ns, sent)
            self._odometry.add_reading(reading.stamp_ns, reading.values)
        end_reason = reasons[0] if reasons else ""
        terminated = bool(reasons) and end_kind(end_reason) in TERMINATED_REASONS
        findings = report.findings
        severity, code = gate_arrays(findings) if findings else (NO_SEVERITY.copy(), NO_CODE.copy())
        info: StepInfo = {
            "wrapper_version": origin["wrapper_version"],
            "contract": origin["contract"],
            "backend": origin["backend"],
            "world": origin["world"],
            "episode_index": episode.index,
            "step_index": episode.step_index,
            "end_reason": end_reason,
            "is_success": end_reason == "success",
            "sensors": self._sensor_infos(episode),
            "action_clipped": report.intervened,
            "action": {
                "requested": layout.as_action(report.requested),
                "applied": layout.as_action(report.applied),
                "applied_si": dict(zip(layout.joints, report.applied_si.tolist(), strict=True)),
            },
            "safety": {
                "disposition": int(report.disposition),
                "intervened": report.intervened,
                "severity": severity,
                "code": code,
                "joints": joint_codes(findings, layout.joints) if findings else dict.fromkeys(layout.joints, 0),
                "unmoved": ",".join(unmoved_joints(findings, layout.joints, episode.start)) if findings else "",
                "guaranteed": {
                    "position": guaranteed["position"],
                    "velocity": guaranteed["velocity"],
                    "acceleration": guaranteed["acceleration"],
                    "jerk": guaranteed["jerk"],
                    "workspace": guaranteed["workspace"],
                },
                "dt_s": report.dt_s,
                "latched": latched is not None,
                "watchdog": {"trips": trips},
                "intervention_share": gate.interventions.share,
                "estop": report.disposition is Severity.ESTOP,
            },
            "latency": self._latencies.build(ledger, episode.before, episode.snapshot, host_timing=self.host_timing),
            "task": dict(result.terms),
            "instruction": inputs.instruction,
        }
        if layout.in_driver_units:
            info["action"]["applied_driver"] = layout.driver_values(report.applied_si)
        if self.evaluator_info:
            info["evaluator"] = self.observations.evaluator_readings(episode.snapshot)
        if self.host_timing:
            info["latency_ms"] = ledger.obs_to_command_ns / 1e6
        if inputs.annotations:
            info["annotations"] = deepcopy(dict(inputs.annotations))
        if latched is not None or trips:
            inputs = replace(inputs, latched_after=latched, watchdog_trips=trips)
        ledger.is_first = False
        return Transition(
            observation=self.observations.observe(
                episode.history, episode.step_index, episode.applied, episode.sampled
            ),
            action=step.action,
            reward=float(result.reward),
            terminated=terminated,
            truncated=bool(reasons) and not terminated,
            info=info,
            end_reasons=reasons,
            report=report,
            stamps_ns=ledger.stamps_ns(),
            snapshot=episode.snapshot,
            external_inputs=inputs,
        )

    def _sensor_infos(self, episode: EpisodeState) -> dict[str, SensorInfo]:
        """Return the newest readings with ``stamp_ns`` counted from the reset."""
        now_ns, samples, origin_ns = episode.snapshot.now_ns, episode.snapshot.samples, episode.origin_ns
        sensors: dict[str, SensorInfo] = {}
        for name in self.sensors:
            sample = samples[name]
            stamp_ns = sample.stamp_ns
            reading: SensorInfo = {
                "age_s": (now_ns - stamp_ns) / NS_PER_S,
                "stamp_ns": stamp_ns - origin_ns,
                "seq": sample.seq,
                "lost": sample.lost,
                "duplicated": sample.duplicated,
                "reordered": sample.reordered,
                "quality": int(sample.quality),
            }
            sensors[name] = reading
            if self.host_timing:
                reading["arrival_age_s"] = (episode.frozen_ns - sample.arrival_ns) / NS_PER_S
            if sample.confidence is not None and not math.isnan(sample.confidence):  # an unknown one is absent
                reading["confidence"] = sample.confidence
            if self._has_wall_stamps:
                reading["stamp_quality"] = int(sample.stamp_quality)
                reading["suspect_clock"] = sample.suspect_clock
        for name, points in self.clouds.items():
            sensors[name]["padded"] = int(count_padding(samples[name].values["points"], points))
        if self._odometry is not None and self._odometry.sensor in sensors:
            sensors[self._odometry.sensor]["suspect_motion"] = self._odometry.text
        return sensors


def reset_report(snapshot: Snapshot) -> ResetReport:
    """Return the report of a reset, or raise TypeError for a backend that gives none."""
    if snapshot.reset is None:
        raise TypeError("reset of the backend returned a snapshot without a ResetReport")
    return snapshot.reset


def _home_offset(report: ResetReport) -> float:
    """Return the distance from home in a report, or -1 without one."""
    try:
        return float(report.details.get("home_offset", -1))
    except ValueError:
        return -1.0


def copy_action(action: Any) -> Any:  # noqa: ANN401 - any action of an agent
    """Return a copy of the action, since its owner may write to its arrays later."""
    if isinstance(action, np.ndarray):
        return action.copy()
    if isinstance(action, Mapping):
        return {name: copy_action(part) for name, part in action.items()}
    return list(action) if isinstance(action, list) else action


def copy_observation(observation: Mapping[str, NDArray[Any]]) -> Observation:
    """Return the observation in new arrays, which may be written."""
    copied: Observation = {}
    for key, value in observation.items():
        copied[key] = value.copy()
    return copied


def copy_info(info: Mapping[str, Any]) -> Info:
    """Return a copy of nested dicts that shares no dict and no array with `info`."""
    copied = dict(info)
    for key, value in info.items():
        kind = type(value)
        if kind is dict:
            copied[key] = copy_info(value)
        elif kind is np.ndarray:
            copied[key] = value.copy()
        elif kind is list:  # a list in an annotation
            copied[key] = deepcopy(value)
    return copied


class EndReasons:
    """Finds the reasons to end an episode after each step."""

    def __init__(self, contract: Contract, gate: SafetyGate) -> None:
        self._contract, self._gate = contract, gate
        self._observation_gate = next(each for each in gate.interlocks if isinstance(each, ObservationGate))

    def find(
        self,
        verdict: Verdict,
        step_index: int,
        *,
        step: PendingStep | None = None,
        missed: int = 0,
        failed: TaskError | None = None,
        gaps: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Return all reasons to end the episode, in order of precedence.

        Without `step` they are those of the task and of the contract's limit. `missed` is the number of steps in a row
        without an action of the policy, and `gaps` are sensors whose gap ends the episode.
        """
        reasons = []
        if verdict.success:
            reasons.append("success")
        if verdict.failure:
            reasons.append(f"failure:{verdict.failure}")
        if verdict.out_of_bounds:
            reasons.append(f"out_of_bounds:{verdict.out_of_bounds}")
        if step_index >= self._contract.episode.horizon_steps:
            reasons.append("horizon" if self._contract.episode.kind == "finite_horizon" else "time_limit")
        if step is not None:
            if step.approved.report.disposition >= Severity.STOP:
                reasons.append(self._stop_reason(step))
            if step.lost is not None:
                reasons.append(f"backend_lost:{step.lost.why}")
            if isinstance(step.action, NoAction) and missed >= self._contract.policy.max_missed:
                reasons.append(f"policy_lost:{step.action.reason}")
        if failed is not None:
            reasons.append(f"task_error:{failed.why}")
        reasons.extend(map("sensor_gap:{}".format, gaps))
        return order_end_reasons([*dict.fromkeys(reasons)]) if reasons else ()

    def _stop_reason(self, step: PendingStep) -> str:
        """Return the most severe end reason, LATE if the agent's time alone explains every stop."""
        findings, context = step.approved.report.findings, step.external_inputs.safety_context
        is_late = partial(
            is_explained,
            self._contract,
            late_in_a_row=self._observation_gate.late_in_a_row,
            are_valid=were_valid(each.quality for each in context.sensors.values()),
            action_age_s=context.action_age_s,
        )
        stops = [found for found in findings if found.severity >= Severity.STOP]
        others = [found for found in stops if not is_late(self._stop_code(found))]
        if stops and not others:
            return LATE
        worst = max(others or findings, key=lambda found: (found.severity, found.gate != "latch"))
        return f"safety_stop:{self._stop_code(worst)}"

    def _stop_code(self, found: Finding) -> str:
        """Return the code of a finding, or the code that set its latch in this episode."""
        latched = self._gate.latched
        return latched.code if found.code == "latch.stop" and latched is not None else found.code
