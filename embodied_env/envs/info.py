"""``info``: the account of a step in fixed keys, dtypes and shapes (``info.schema.json``), so vector envs stack it.

Ages and durations are seconds. A stage that a (contract, backend, clock) can never measure is absent; NaN appears only
where a measurement was lost at run time. Every call returns fresh containers and arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env._version import __version__
from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.clock import NS_PER_S
from embodied_env.core.codes import Severity
from embodied_env.core.types import GateReport, Snapshot, Transition
from embodied_env.safety.findings import gate_arrays

Info = dict[str, Any]

_IMMUTABLE = frozenset((float, int, str, bool))


class InfoBuilder:
    """Builds infos for one stepper, but for ``latency`` (`core.latency.info`). What does not change is resolved once.

    Attributes:
        sensors: whose account is told.
    """

    def __init__(
        self, contract: Contract, layout: ActionLayout, *, backend: str, wall_stamps: bool, evaluator_info: bool
    ) -> None:
        """Resolve the constant parts; `wall_stamps`: sensors stamp by clocks that may be others than ours."""
        self._layout = layout
        self._wall_stamps = wall_stamps
        self.sensors = tuple(
            name for name, sensor in contract.sensors.items() if evaluator_info or sensor.visibility == "agent"
        )
        self._constant = {
            "wrapper_version": f"embodied_env {__version__}, {contract.name} v{contract.version}",
            "contract": contract.fingerprint,
            "backend": backend,
        }

    def common(
        self,
        snapshot: Snapshot,
        *,
        frozen_ns: int,
        origin_ns: int,
        episode_index: int,
        step_index: int,
        end_reason: str,
    ) -> Info:
        """Return the keys that reset and step share.

        `origin_ns` is the world's time at the reset: ``stamp_ns`` of a sensor counts from there, on the world's clock.
        """
        now_ns, samples = snapshot.now_ns, snapshot.samples
        sensors: Info = {}
        for name in self.sensors:
            sample = samples[name]
            stamp_ns = sample.stamp_ns
            account = sensors[name] = {
                "age_s": (now_ns - stamp_ns) / NS_PER_S,
                "arrival_age_s": (frozen_ns - sample.arrival_ns) / NS_PER_S,
                "stamp_ns": stamp_ns - origin_ns,
                "seq": sample.seq,
                "lost": sample.lost,
                "duplicated": sample.duplicated,
                "reordered": sample.reordered,
                "quality": int(sample.quality),
            }
            if sample.confidence is not None:
                account["confidence"] = sample.confidence
            if self._wall_stamps:
                account["stamp_quality"] = int(sample.stamp_quality)
                account["suspect_clock"] = sample.suspect_clock
        return {
            **self._constant,
            "episode_index": episode_index,
            "step_index": step_index,
            "end_reason": end_reason,
            "is_success": end_reason == "success",
            "sensors": sensors,
        }

    def action(self, report: GateReport) -> Info:
        """Return what was requested, what was applied, and the published SI values."""
        layout = self._layout
        return {
            "requested": layout.as_action(report.requested),
            "applied": layout.as_action(report.applied),
            "applied_si": dict(zip(layout.joints, report.applied_si.tolist())),  # noqa: B905 - a value for each
        }

    def safety(self, report: GateReport, *, latched: bool, watchdog_trips: int, intervention_share: float) -> Info:
        """Return what the gates did."""
        severity, code = gate_arrays(report)
        return {
            "disposition": int(report.disposition),
            "intervened": report.intervened,
            "severity": severity,
            "code": code,
            "guaranteed": dict(report.guaranteed),
            "dt_s": report.dt_s,
            "latched": latched,
            "watchdog": {"trips": watchdog_trips},
            "intervention_share": intervention_share,
            "estop": report.disposition is Severity.ESTOP,
        }


def reset_info(snapshot: Snapshot, *, duration_s: float, hidden: Collection[str]) -> Info:
    """Return what the reset did. `hidden` names the reset options that only the evaluator may see."""
    report = snapshot.reset
    if report is None:
        raise TypeError("a backend's reset must return a snapshot with a ResetReport")
    return {
        "seed_applied": -1 if report.seed_applied is None else report.seed_applied,
        "sampled": {name: value.copy() for name, value in report.sampled.items() if name not in hidden},
        "level": report.level,
        "routine": report.routine,
        "confirmed_by": report.confirmed_by,
        "options_ignored": ",".join(report.ignored),
        "judged": report.verdict is not None,
        "solved": report.verdict is not None and bool(report.verdict.success),
        "duration_s": duration_s,
        "sensors_verified": len(snapshot.samples),
    }


def copy_step_result(done: Transition) -> tuple[dict[str, NDArray[Any]], float, bool, bool, Info]:
    """Return what Gymnasium's `step` returns, in copies: a write into them does not change the account."""
    observation = {key: value.copy() for key, value in done.observation.items()}
    return observation, done.reward, done.terminated, done.truncated, copy_info(done.info)


def copy_info(info: Mapping[str, Any]) -> Info:
    """Return a copy of nested dicts of arrays and plain values that shares no dict and no array with `info`."""
    fresh = dict(info)
    for key, value in fresh.items():
        if type(value) in _IMMUTABLE:  # most values; a look-up takes a fraction of `isinstance`
            continue
        if isinstance(value, np.ndarray):
            fresh[key] = value.copy()
        elif isinstance(value, Mapping):
            fresh[key] = copy_info(value)
    return fresh
