"""Decoding of rows into samples, snapshots, external inputs and actions.

Numbers are decoded bit for bit, except for NaN in an action, which is null in the row. If such an action was refused,
the row has the finding, and an `UnreadableAction` is refused with the same code and text.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, EffectiveLimits
from embodied_env.contract.spaces import ActionLayout, FieldLayout, field_layouts
from embodied_env.core.codes import Quality, Severity
from embodied_env.core.policy import NoAction
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
    WriteDelay,
)
from embodied_env.errors import BackendLostError, RecordError
from embodied_env.record.arrays import is_reference
from embodied_env.record.rows import RESET, Row
from embodied_env.record.violation import short_repr
from embodied_env.safety.action_parsing import NO_ACTION, MalformedActionError, parse_action
from embodied_env.timing.clock import NS_PER_S

_FINDING_VECTORS = ("before", "after", "limit", "margin")
_REFERENCE_VECTORS = ("positions", "velocities", "slack", "accelerations", "before_gap")
_REPORT_VECTORS = ("requested", "applied", "applied_si", "velocity_si")
_JUDGED_BY_CONTRACT = (Quality.OK, Quality.OUT_OF_RANGE)  # replay derives these from the values


class RowDecoder:
    """Decodes the rows of one run."""

    def __init__(self, contract: Contract, array: Callable[[Mapping[str, Any]], NDArray[Any]]) -> None:
        """Decode rows recorded under `contract`; `array` returns the array of a reference."""
        self._array = array
        self._contract = contract
        self._layout = ActionLayout(contract)
        self._fields: dict[str, tuple[FieldLayout, ...]] = {
            name: field_layouts(name, sensor) for name, sensor in contract.sensors.items()
        }

    def reset(self, row: Row) -> Snapshot:
        """Return the snapshot of a reset, with its report."""
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
        return self._snapshot(inner, reset=report)

    def snapshot(self, row: Row) -> Snapshot:
        """Return the snapshot of a step; raises BackendLostError if the backend was lost in it."""
        inner = row["inner"]
        for sample in inner["sensors"].values():
            if sample["quality"] == Quality.LOST.name:
                why, _, detail = sample["reason"].partition(": ")
                raise BackendLostError(why, detail)
        evidence = inner["actuation"]
        return self._snapshot(inner, actuation=None if evidence is None else ActuationEvidence(**evidence))

    def _snapshot(self, inner: Row, **fields: Any) -> Snapshot:  # noqa: ANN401 - of Snapshot
        clock, injected = inner["clock"], inner.get("injected")
        return Snapshot(
            now_ns=inner["now_ns"],
            samples={
                name: self._sample(name, inner, is_reset="reset" in fields)
                for name in inner["sensors"]
                if name in self._fields
            },
            clock=None if clock is None else ClockStatus(**clock),
            injected=None if injected is None else InjectedDelays(**{**injected, "early": tuple(injected["early"])}),
            **fields,
        )

    def observation(self, row: Row) -> dict[str, NDArray[Any]]:
        """Return the observation that the environment itself made in a step or a reset.

        Keys of a reset that belong to no sensor (masks, reset options, applied actions, remaining time) are taken from
        the observation that the outermost wrapper returned.
        """
        outer, inner = row["observation"], row["inner"]["observation"]
        are_dicts = isinstance(outer, dict) and isinstance(inner, dict)  # not validated
        recorded = {**outer, **inner} if are_dicts and row["schema"] == RESET else inner
        if are_dicts and row["schema"] == RESET:
            for layout in (each for layouts in self._fields.values() for each in layouts if each.history is not None):
                newest = self._read_newest(inner, layout, is_reset=True)
                recorded[layout.key] = np.stack([newest] * (layout.history or 1))
        return {
            key: self._read_field(recorded, key, space.dtype, space.shape)
            for key, space in self._contract.observation_space.items()
            if not isinstance(recorded, dict) or key in recorded
        }

    def external_inputs(self, row: Row) -> ExternalInputs:
        """Return the external inputs of a step."""
        inputs = row["inner"]["external_inputs"]
        answer, delay = inputs["answer"], inputs.get("delay")
        if answer is not None:
            findings = tuple(_finding(found) for found in answer["findings"])
            fields = {**_with_vectors(answer, _REPORT_VECTORS), "findings": findings}
            answer = GateReport(**{**fields, "disposition": Severity[answer["disposition"]]})
        return ExternalInputs(
            safety_context=SafetyContext(
                sensors={},
                measured=np.full(self._layout.size, np.nan),
                action_age_s=inputs["action_age_s"],
                latency_s=inputs["latency_s"],
                estops=inputs["estops"],
                required=self._required(inputs.get("required", [])),
            ),
            latched=None if inputs["latched"] is None else _finding(inputs["latched"]),
            latched_after=None if inputs["latched_after"] is None else _finding(inputs["latched_after"]),
            watchdog_trips=inputs["watchdog_trips"],
            dt_s=math.nan if inputs["dt_s"] is None else inputs["dt_s"],
            reference=_reference(inputs["reference"]),
            answer=answer,
            delay=None if delay is None else WriteDelay(**{**delay, "reference": _reference(delay["reference"])}),
            annotations=inputs.get("annotations", {}),
            limits=None if inputs.get("limits") is None else self._limits(inputs["limits"]),
        )

    def _required(self, recorded: object) -> tuple[str, ...]:
        """Return the sensors of the policy; raises RecordError for one that the contract lacks."""
        if not isinstance(recorded, list) or not all(name in self._contract.sensors for name in recorded):
            expected = f"expected some of: {', '.join(self._contract.sensors)}"
            raise RecordError(f"invalid inner.external_inputs.required: {short_repr(recorded)} ({expected})")
        return tuple(recorded)

    def _limits(self, recorded: Row) -> EffectiveLimits:
        """Return changed limits, with null for unlimited; without `velocity_low` they are equal in both directions."""
        joints, vectors = tuple(recorded["joints"]), {}
        for name in recorded.keys() - {"joints"}:
            unlimited = -math.inf if name.endswith("_low") else math.inf
            vectors[name] = np.array([unlimited if x is None else x for x in recorded[name]])
        if joints != self._layout.joints or any(len(vector) != len(joints) for vector in vectors.values()):
            raise RecordError(f"invalid inner.external_inputs.limits: {short_repr(recorded)} (expected one per joint)")
        fastest = vectors.pop("velocity")
        vectors.setdefault("velocity_low", -fastest)
        return EffectiveLimits(joints=joints, velocity_high=fastest, **vectors)

    def published(self, row: Row) -> FloatArray:
        """Return the values that the gate approved; NaN if a relay decided on them."""
        inner = row["inner"]
        if inner["external_inputs"]["answer"] is not None:
            return np.full(self._layout.size, np.nan)
        return cast("FloatArray", _vector(inner["report"]["applied_si"]))

    def action(self, row: Row) -> tuple[Any, bool]:
        """Return the action given to the environment, and whether it is reconstructed from the gate's report."""
        inner = row["inner"]
        action, requested = inner["action"], cast("FloatArray", _vector(inner["report"]["requested"]))
        of_form = (found for found in inner["findings"] if found["gate"] == "form")
        refused = next((found for found in of_form if found["code"] != "form.repeated"), None)
        if refused is not None and refused["code"] == NO_ACTION:
            return NoAction(refused["detail"]), False
        try:
            read = parse_action(action, self._layout)
        except MalformedActionError as error:
            if refused is not None and (error.finding_code, str(error)) == (refused["code"], refused["detail"]):
                return action, False
        else:
            if refused is None and np.array(read).tobytes() == requested.tobytes():
                return action, False
        if refused is None:
            return self._layout.as_action(requested), True
        values = None if refused["code"] != "form.nan" else requested.tolist()
        unreadable = UnreadableAction(MalformedActionError(refused["code"], refused["detail"], values))
        return (unreadable if len(self._layout.slices) == 1 else dict.fromkeys(self._layout.slices, unreadable)), True

    def _sample(self, name: str, inner: Row, *, is_reset: bool) -> Sample:
        account = dict(inner["sensors"][name])
        truth = inner["evaluator"].get(name)
        values = {
            layout.field: self._read_newest(inner["observation"], layout, is_reset=is_reset)
            if truth is None
            else self._read_field(truth, layout.field, layout.dtype, layout.shape)
            for layout in self._fields[name]
        }
        if account.get("confidence", 0.0) is None:
            account["confidence"] = math.nan
        for quality in ("quality", "stamp_quality", "transport_quality"):
            account[quality] = Quality[account[quality]]
        if account["quality"] in _JUDGED_BY_CONTRACT:
            account |= {"quality": Quality.OK, "reason": ""}
        return Sample(sensor=name, values=values, **account)

    def _read_newest(self, fields: Any, layout: FieldLayout, *, is_reset: bool) -> NDArray[Any]:  # noqa: ANN401 - JSON
        """Return the newest reading of a field; a reset has no other in its account."""
        if layout.history is None or is_reset:
            return self._read_field(fields, layout.key, layout.dtype, layout.shape)
        values = self._read_field(fields, layout.key, layout.dtype, (layout.history, *layout.shape))
        return np.array(values[-1])

    def _read_field(self, fields: Any, key: str, dtype: Any, shape: Any) -> NDArray[Any]:  # noqa: ANN401 - JSON types
        recorded = fields.get(key) if isinstance(fields, dict) else None
        if is_reference(recorded):
            array = self._array(recorded)
            if (array.shape, array.dtype) == (tuple(shape), dtype):
                return array.astype(array.dtype.newbyteorder("="))  # a copy: an array from the log is read-only
        elif recorded is not None:
            with contextlib.suppress(TypeError, ValueError, ArithmeticError), np.errstate(over="raise"):
                return np.array(recorded, dtype=dtype).reshape(shape)
        expected = f"{np.dtype(dtype)} of shape {tuple(shape)}"
        raise RecordError(f"cannot read {key} of a recorded step: {short_repr(recorded)} (expected {expected})")


class UnreadableAction:
    """Replaces a malformed action that JSON cannot express: it is refused like the original."""

    def __init__(self, refusal: MalformedActionError) -> None:
        self._refusal = refusal

    def detach(self) -> UnreadableAction:
        """Raise the refusal; `embodied_env.safety.action_parsing` calls this to get the numbers of a tensor."""
        raise self._refusal


def frozen_ns(row: Row) -> int:
    """Return the time of the snapshot of a reset on the steady clock; 0 if info has no sensor."""
    samples = row["inner"]["sensors"]
    for name, account in row["info"]["sensors"].items():
        if name in samples:
            arrival_ns: int = samples[name]["arrival_ns"]
            age_s: float = account["arrival_age_s"]
            return arrival_ns + round(age_s * NS_PER_S)
    return 0


def _finding(recorded: Row) -> Finding:
    severity, joints = Severity[recorded["severity"]], tuple(recorded["joints"])
    return Finding(**{**_with_vectors(recorded, _FINDING_VECTORS), "severity": severity, "joints": joints})


def _reference(recorded: Row | None) -> CommandState | None:
    return None if recorded is None else CommandState(**_with_vectors(recorded, _REFERENCE_VECTORS))


def _with_vectors(recorded: Row, names: tuple[str, ...]) -> Row:
    return {**recorded, **{name: _vector(recorded[name]) for name in names}}


def _numbers(recorded: Any, where: str) -> FloatArray:  # noqa: ANN401 - JSON types
    try:
        return np.array(recorded, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise RecordError(f"cannot read {where}: {short_repr(recorded)} (expected numbers)") from None


def _vector(recorded: list[float | None] | None) -> FloatArray | None:
    """Return an array with NaN for null."""
    return None if recorded is None else np.array(recorded, dtype=np.float64)
