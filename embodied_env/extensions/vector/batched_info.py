"""Observations and infos of several slots as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray
from embodied_env.contract.contract_schema import APPLIED_ACTIONS, TIME_REMAINING
from embodied_env.contract.fixed_sizes import count_padding
from embodied_env.contract.sensor_schema import AGES
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Quality
from embodied_env.core.info_schema import without_host_timing
from embodied_env.envs.observation_builder import Observation
from embodied_env.envs.transition_builder import Info, TransitionBuilder
from embodied_env.extensions.vector.batched_types import BoolArray, GateReportBatch, IntArray, SnapshotBatch
from embodied_env.timing.clock import NS_PER_S
from embodied_env.timing.ledger import StepEvent


class BatchedTransitions:
    """Builds observations and infos of several slots' steps, as `TransitionBuilder` for one."""

    def __init__(self, builder: TransitionBuilder, layout: ActionLayout, n_slots: int) -> None:
        """Take contract and options from any slot's builder, of a lockstep world without delays."""
        self._builder, self._layout, self._n_slots = builder, layout, n_slots
        self._fixed = {name: self._full(value) for name, value in builder.origin.items()}
        self._zero, no = self._full(0), self._full(False)
        self._all_arrived = dict.fromkeys(("lost", "duplicated", "reordered"), self._zero)  # without a middleware
        self._without_stops = {  # stops and tracking errors are left to the slot's own environment
            "unmoved": self._full(""),
            "latched": no,
            "watchdog": {"trips": self._zero},
            "estop": no,
        }
        self._ok_by_sensor = dict.fromkeys(builder.sensors, self._zero)

    def observe(
        self,
        history: Sequence[SnapshotBatch],
        step_index: IntArray,
        applied: FloatArray,
        sampled: Mapping[str, FloatArray],
    ) -> Observation:
        """Return each slot's observation of valid readings, not copied (`ObservationBuilder`).

        `applied` has the shape (n_slots, count, n_joints), oldest first. `sampled` has the observed reset options, of
        shape (n_slots, size).
        """
        builder, snapshot = self._builder.observations, history[-1]
        observation: Observation = {}
        for name, fields, mask in builder.visible:
            for key, field, length in fields:
                if length is None:
                    observation[key] = snapshot.samples[name].values[field]
                    continue
                samples = [batch.samples[name] for batch in history[-length:]]
                observation[key] = np.stack([sample.values[field] for sample in samples], axis=1)
                ages_ns = [snapshot.now_ns - sample.stamp_ns for sample in samples]
                observation[f"{key}{AGES}"] = np.stack(ages_ns, axis=1) / NS_PER_S
            if mask:
                observation[mask] = np.ones((self._n_slots, 1), dtype=np.int8)
        observation |= sampled
        if builder.applied_actions:
            observation[APPLIED_ACTIONS] = applied.reshape(self._n_slots, -1)
        if builder.episode.kind == "finite_horizon":
            horizon = builder.episode.horizon_steps
            observation[TIME_REMAINING] = (np.maximum(0, horizon - step_index) / horizon)[:, np.newaxis]
        return observation

    def info(  # noqa: PLR0913 - the parts of a step
        self,
        snapshot: SnapshotBatch,
        report: GateReportBatch,
        stamps_ns: IntArray,
        *,
        origin_ns: IntArray,
        is_first: BoolArray,
        is_marked: BoolArray,
        intervention_share: FloatArray,
        terms: Mapping[str, FloatArray],
        own: Mapping[str, NDArray[Any]],
        render_ns: int,
    ) -> Info:
        """Return ``info`` with a row per slot in each array.

        `own`: the values that are its keys already; `render_ns`: the time spent on the images of all slots.
        """
        joints, sensors = self._layout.joints, self._sensors(snapshot, stamps_ns[StepEvent.OBSERVED], origin_ns)
        obs_to_command_ns = stamps_ns[StepEvent.PUBLISHED] - stamps_ns[StepEvent.PREVIOUS_OBSERVED]
        info = {
            **self._fixed,
            **own,
            "is_success": own["end_reason"] == "success",
            "sensors": sensors,
            "latency_ms": obs_to_command_ns / 1e6,
            "action_clipped": report.intervened,
            "action": {
                "requested": self._layout.as_action(report.requested),
                "applied": self._layout.as_action(report.applied),
                "applied_si": dict(zip(joints, report.applied_si.T, strict=True)),
            },
            "safety": {
                "disposition": report.disposition.astype(np.int64),
                "intervened": report.intervened,
                "severity": report.severity,
                "code": report.code,
                "joints": dict(zip(joints, report.joint_code.T.astype(np.int64), strict=True)),
                "guaranteed": dict(report.guaranteed),
                "dt_s": self._full(report.dt_s),
                "intervention_share": intervention_share,
                **self._without_stops,
            },
            "latency": self._latency(snapshot, sensors, stamps_ns, is_first, is_marked, render_ns),
            "task": dict(terms),
        }
        if self._layout.in_driver_units:
            info["action"]["applied_driver"] = self._layout.driver_values(report.applied_si)
        if not self._builder.host_timing:
            info = without_host_timing(info)
        if self._builder.evaluator_info:
            info["evaluator"] = {
                name: {field: snapshot.samples[name].values[field] for field in fields}
                for name, fields in self._builder.observations.evaluator_only.items()
            }
        return info

    def _sensors(self, snapshot: SnapshotBatch, observed_ns: IntArray, origin_ns: IntArray) -> Info:
        sensors: Info = {}
        for name in self._builder.sensors:
            sample = snapshot.samples[name]
            reading = sensors[name] = {
                "age_s": (snapshot.now_ns - sample.stamp_ns) / NS_PER_S,
                "arrival_age_s": (observed_ns - sample.arrival_ns) / NS_PER_S,
                "stamp_ns": sample.stamp_ns - origin_ns,
                "seq": sample.seq,
                "quality": sample.quality.astype(np.int64),
                **self._all_arrived,
            }
            if name in self._builder.clouds:
                reading["padded"] = count_padding(sample.values["points"], self._builder.clouds[name])
            if sample.confidence is not None:
                reading["confidence"] = np.ma.masked_invalid(sample.confidence)  # an unknown one is absent
        return sensors

    def _latency(
        self,
        snapshot: SnapshotBatch,
        sensors: Info,
        stamps_ns: IntArray,
        is_first: BoolArray,
        is_marked: BoolArray,
        render_ns: int,
    ) -> Info:
        """Return ``info["latency"]`` of a lockstep world, all of whose readings are valid."""
        previous_entered, before, returned, marked, entered, gated, published, observed, _ = stamps_ns
        stamps = np.stack([snapshot.samples[name].stamp_ns for name in self._builder.sensors])
        oldest_ns = stamps.min(axis=0)
        stages: Info = {
            "handoff_s": (returned - before) / NS_PER_S,
            "inference_s": (entered - returned) / NS_PER_S,
            "policy_s": (np.where(is_marked, marked, entered) - returned) / NS_PER_S,
            "gate_s": (gated - entered) / NS_PER_S,
            "publish_s": (published - gated) / NS_PER_S,
            "obs_to_command_s": (published - before) / NS_PER_S,
            "world_s": (observed - published) / NS_PER_S,
            "period_s": (entered - previous_entered) / NS_PER_S,
            "capture_age_s": {name: reading["age_s"] for name, reading in sensors.items()},
            "hold_s": {name: reading["arrival_age_s"] for name, reading in sensors.items()},
            "obs_skew_s": (stamps.max(axis=0) - oldest_ns) / NS_PER_S,
            "obs_age_max_s": (snapshot.now_ns - oldest_ns) / NS_PER_S,
        }
        if self._builder.renders_images:
            stages["render_s"] = self._full(render_ns / NS_PER_S)
        quality: Info = dict.fromkeys(stages, self._zero)
        quality |= {"capture_age_s": self._ok_by_sensor, "hold_s": self._ok_by_sensor}
        quality["policy_s"] = np.where(is_marked, 0, int(Quality.UNMARKED))
        quality["period_s"] = np.where(is_first, int(Quality.FIRST), 0)
        return {**stages, "quality": quality}

    def _full(self, value: Any) -> NDArray[Any]:  # noqa: ANN401 - text or a number
        return np.full(self._n_slots, value, dtype=object if isinstance(value, str) else None)
