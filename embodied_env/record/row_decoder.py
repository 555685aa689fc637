"""From rows back to the values that they were written from: samples, snapshots, circumstances, actions.

Numbers come back bit for bit. What JSON has no word for does not: an action with NaN in it is null there. Where such an
action was refused, its refusal stands in the row, and `UnreadableAction` is refused in the same words.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, EffectiveLimits
from embodied_env.contract.spaces import ActionLayout, FieldLayout, field_layouts
from embodied_env.core.clock import NS_PER_S
from embodied_env.core.codes import Quality, Severity
from embodied_env.core.types import (
    ActuationEvidence,
    ClockStatus,
    CommandState,
    ExternalInputs,
    Finding,
    FloatArray,
    GateReport,
    InjectedDelays,
    ResetReport,
    SafetyContext,
    Sample,
    Snapshot,
)
from embodied_env.errors import BackendLostError, RecordError
from embodied_env.record.arrays import is_reference
from embodied_env.record.audit.violation import short_repr
from embodied_env.record.rows import RESET, TRANSITION, Row
from embodied_env.safety.action_parsing import MalformedActionError, parse_action

_NEEDED = {
    RESET: ("routine", "options", "verdict", "observation", "now_ns", "sensors"),
    TRANSITION: ("circumstances", "now_ns", "sensors"),
}
_REFERENCE = ("positions", "velocities", "slack", "accelerations", "before_gap")
_JUDGED_ANEW = (Quality.OK, Quality.OUT_OF_RANGE)  # what a reading is called follows from it and from the contract


def require_replayable(row: Row) -> None:
    """Raise RecordError when `row` was recorded before rows held all that a replay needs."""
    inner = row["inner"]
    lacking = [key for key in _NEEDED[row["schema"]] if key not in inner]
    lacking += ["sensors.*.seq" for sample in inner.get("sensors", {}).values() if "seq" not in sample][:1]
    if lacking:
        raise RecordError(
            f"row {row['row']} has no inner.{', inner.'.join(lacking)}: "
            "the run is too old to be replayed; record it anew"
        )


class RowDecoder:
    """Reads rows of one run."""

    def __init__(self, contract: Contract, array: Callable[[Mapping[str, Any]], NDArray[Any]]) -> None:
        """Read rows that were recorded under `contract`; `array` finds what they refer to."""
        self._array = array
        self._contract = contract
        self._layout = ActionLayout(contract)
        self._fields: dict[str, tuple[FieldLayout, ...]] = {
            name: field_layouts(name, sensor) for name, sensor in contract.sensors.items()
        }

    def reset(self, row: Row) -> Snapshot:
        """Return what a reset came up with."""
        inner = row["inner"]
        report = ResetReport(
            level=inner["level"],
            seed_applied=inner["seed_applied"],
            sampled={name: _numbers(value, f"inner.sampled.{name}") for name, value in inner["sampled"].items()},
            details=inner["details"],
            ignored=tuple(inner["ignored"]),
            routine=inner["routine"],
            confirmed_by=inner["confirmed_by"],
            options={name: _numbers(value, f"inner.options.{name}") for name, value in inner["options"].items()},
        )
        return Snapshot(
            now_ns=inner["now_ns"],
            samples=self._samples(inner),
            reset=report,
            clock=_clock(inner["clock"]),
            injected=_injected(inner),
        )

    def snapshot(self, row: Row) -> Snapshot:
        """Return what a step read.

        Raises:
            BackendLostError: as it was, where the world was lost.
        """
        inner = row["inner"]
        for sample in inner["sensors"].values():
            if sample["quality"] == Quality.LOST.name:
                why, _, detail = sample["reason"].partition(": ")
                raise BackendLostError(why, detail)
        evidence = inner["actuation"]
        return Snapshot(
            now_ns=inner["now_ns"],
            samples=self._samples(inner),
            clock=_clock(inner["clock"]),
            actuation=None if evidence is None else ActuationEvidence(**evidence),
            injected=_injected(inner),
        )

    def observation(self, row: Row) -> dict[str, NDArray[Any]]:
        """Return the observation of a step or of a reset, as the environment itself made it.

        Of a reset what is no sensor's (masks, applied actions, the time that is left) is what the outermost wrapper
        returned.
        """
        outer, inner = row["observation"], row["inner"]["observation"]
        recorded = {**outer, **inner} if isinstance(outer, dict) and row["schema"] == RESET else inner
        spaces = self._contract.observation_space
        return {
            key: self._read_field(recorded, key, space.dtype, space.shape)
            for key, space in spaces.items()
            if not isinstance(recorded, dict) or key in recorded
        }

    def circumstances(self, row: Row) -> ExternalInputs:
        """Return what time and others did to a step."""
        seen = row["inner"]["circumstances"]
        return ExternalInputs(
            situation=SafetyContext(
                sensors={},
                measured=np.full(self._layout.size, np.nan),
                action_age_s=seen["action_age_s"],
                latency_s=seen["latency_s"],
                estops=seen["estops"],
            ),
            latched=None if seen["latched"] is None else _finding(seen["latched"]),
            latched_after=None if seen["latched_after"] is None else _finding(seen["latched_after"]),
            watchdog_trips=seen["watchdog_trips"],
            dt_s=math.nan if seen["dt_s"] is None else seen["dt_s"],
            reference=None if seen["reference"] is None else _reference(seen["reference"]),
            answer=None if seen["answer"] is None else _answer(seen["answer"]),
            limits=None if seen.get("limits") is None else self._limits(seen["limits"]),
        )

    def _limits(self, recorded: Row) -> EffectiveLimits:
        """Return changed limits; null is no limit. Raises RecordError unless they are those of the joints."""
        open_end = {name: -math.inf if name == "position_low" else math.inf for name in recorded if name != "joints"}
        vectors = {
            name: np.array([none if x is None else x for x in recorded[name]]) for name, none in open_end.items()
        }
        joints = tuple(recorded["joints"])
        if joints != self._layout.joints or any(len(vector) != len(joints) for vector in vectors.values()):
            raise RecordError(
                f"inner.circumstances.limits cannot be read: {short_repr(recorded)} (expected one per joint)"
            )
        return EffectiveLimits(joints=joints, **vectors)

    def published(self, row: Row) -> FloatArray:
        """Return the values that our gate approved, before any other had the last word; NaN where that is not known."""
        inner = row["inner"]
        if inner["circumstances"]["answer"] is not None:
            return np.full(self._layout.size, np.nan)
        return cast("FloatArray", _vector(inner["report"]["applied_si"]))

    def action(self, row: Row) -> tuple[Any, bool]:
        """Return the action that the environment was given, and whether it is re-made from what the gate said of it."""
        inner = row["inner"]
        action, requested = inner["action"], cast("FloatArray", _vector(inner["report"]["requested"]))
        refused = next((found for found in inner["findings"] if found["gate"] == "form" and not _counts(found)), None)
        try:
            read = parse_action(action, self._layout)
        except MalformedActionError as error:
            if refused is not None and (error.finding_code, str(error)) == (refused["code"], refused["detail"]):
                return action, False
        else:
            if refused is None and read.tobytes() == requested.tobytes():
                return action, False
        if refused is None:
            return self._layout.as_action(requested), True
        vector = None if refused["code"] != "form.nan" else requested
        remade = UnreadableAction(MalformedActionError(refused["code"], refused["detail"], vector))
        return (remade if len(self._layout.slices) == 1 else dict.fromkeys(self._layout.slices, remade)), True

    def _samples(self, inner: Row) -> dict[str, Sample]:
        return {name: self._sample(name, inner) for name in inner["sensors"] if name in self._fields}

    def _sample(self, name: str, inner: Row) -> Sample:
        account = dict(inner["sensors"][name])
        truth = inner["evaluator"].get(name)
        values = {
            layout.field: self._read_field(inner["observation"], layout.key, layout.dtype, layout.shape)
            if truth is None
            else self._read_field(truth, layout.field, layout.dtype, layout.shape)
            for layout in self._fields[name]
        }
        if account.get("confidence", 0.0) is None:
            account["confidence"] = math.nan
        for quality in ("quality", "stamp_quality", "transport_quality"):
            account[quality] = Quality[account[quality]]
        if account["quality"] in _JUDGED_ANEW:
            account |= {"quality": Quality.OK, "reason": ""}
        return Sample(sensor=name, values=values, **account)

    def _read_field(self, fields: Any, key: str, dtype: Any, shape: Any) -> NDArray[Any]:  # noqa: ANN401 - JSON types
        recorded = fields.get(key) if isinstance(fields, dict) else None
        if isinstance(recorded, dict) and is_reference(recorded):
            array = self._array(recorded)
            if (array.shape, array.dtype) == (tuple(shape), dtype):
                return array.astype(array.dtype.newbyteorder("="))  # a copy: what is read from the log is read-only
        elif recorded is not None:
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                return np.array(recorded, dtype=dtype).reshape(shape)
        expected = f"{np.dtype(dtype)} of the shape {tuple(shape)}"
        raise RecordError(f"{key} of a recorded step cannot be read: {short_repr(recorded)} (expected {expected})")


class UnreadableAction:
    """Stands for an action that JSON has no word for: it is refused as that one was."""

    def __init__(self, refusal: MalformedActionError) -> None:
        """Be refused by `refusal`."""
        self._refusal = refusal

    def detach(self) -> UnreadableAction:
        """Raise the refusal; `embodied_env.safety.action_parsing` asks tensors so for their numbers."""
        raise self._refusal


def frozen_ns(row: Row) -> int:
    """Return when the snapshot of a reset was frozen, on the steady clock; 0 where a wrapper has taken that away."""
    sensors = row["inner"]["sensors"]
    for name, account in _accounts(row):
        if name in sensors and isinstance(account.get("arrival_age_s"), float):
            arrival_ns: int = sensors[name]["arrival_ns"]
            age_ns: int = round(account["arrival_age_s"] * NS_PER_S)
            return arrival_ns + age_ns
    return 0


def _accounts(row: Row) -> Iterator[tuple[str, Any]]:
    info = row["info"]
    sensors = info.get("sensors") if isinstance(info, dict) else None
    return iter((sensors if isinstance(sensors, dict) else {}).items())


def _counts(found: Row) -> bool:
    """Say whether a finding counts malformed actions, beside that of the action itself."""
    return bool(found["code"] == "form.repeated")


def _clock(recorded: Row | None) -> ClockStatus | None:
    return None if recorded is None else ClockStatus(**recorded)


def _injected(inner: Row) -> InjectedDelays | None:
    recorded = inner.get("injected")
    return None if recorded is None else InjectedDelays(**{**recorded, "early": tuple(recorded["early"])})


def _finding(recorded: Row) -> Finding:
    vectors = {name: _vector(recorded[name]) for name in ("before", "after", "limit", "margin")}
    severity, joints = Severity[recorded["severity"]], tuple(recorded["joints"])
    return Finding(**{**recorded, **vectors, "severity": severity, "joints": joints})


def _reference(recorded: Row) -> CommandState:
    vectors = {name: _vector(recorded[name]) for name in _REFERENCE}
    return CommandState(**{**recorded, **vectors})


def _answer(recorded: Row) -> GateReport:
    vectors = {name: _vector(recorded[name]) for name in ("requested", "applied", "applied_si", "velocity_si")}
    return GateReport(
        **{
            **recorded,
            **vectors,
            "disposition": Severity[recorded["disposition"]],
            "findings": tuple(_finding(found) for found in recorded["findings"]),
        }
    )


def _numbers(recorded: Any, where: str) -> FloatArray:  # noqa: ANN401 - JSON types
    try:
        return np.array(recorded, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise RecordError(f"{where} cannot be read: {short_repr(recorded)} (expected numbers)") from None


def _vector(recorded: list[float | None] | None) -> FloatArray | None:
    """Return numbers, NaN where JSON had no word."""
    return None if recorded is None else np.array(recorded, dtype=np.float64)
