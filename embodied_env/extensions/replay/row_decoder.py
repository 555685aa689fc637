"""Decoding of rows into samples, snapshots, external inputs and actions.

Numbers are decoded bit for bit, except for NaN in an action, which is null in the row. If such an action was refused,
the row has the finding, and an `UnreadableAction` is refused with the same code and text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract, EffectiveLimits
from embodied_env.contract.spaces import ActionLayout, FieldLayout, field_layouts
from embodied_env.core.code_types import Quality
from embodied_env.core.policy import NoAction
from embodied_env.core.safety_input_state import parse_states
from embodied_env.core.types import (
    ActionChunk,
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
from embodied_env.record.row_schema import short_repr
from embodied_env.record.row_types import RESET, ChunkRecord, ResetRow, SnapshotRecord, TransitionRow
from embodied_env.record.rows import is_dry_run
from embodied_env.safety.action_parsing import NO_ACTION, MalformedActionError, parse_action
from embodied_env.timing.clock import NS_PER_S

_JUDGED_BY_CONTRACT = (Quality.OK, Quality.OUT_OF_RANGE)  # replay derives these from the values


class RowDecoder:
    """Decodes the rows of one run."""

    def __init__(self, contract: Contract, array: Callable[[Mapping[str, Any]], NDArray[Any]]) -> None:
        """Decode rows recorded under `contract`, with `array` to get the array of a reference."""
        self._array = array
        self._contract = contract
        self._layout = ActionLayout(contract)
        self._fields: dict[str, tuple[FieldLayout, ...]] = {
            name: field_layouts(name, sensor) for name, sensor in contract.sensors.items()
        }

    def reset(self, row: ResetRow) -> Snapshot:
        """Return the snapshot of a reset, with its report."""
        inner = row["inner"]
        report = ResetReport(
            level=inner["level"],
            seed_applied=inner["seed_applied"],
            sampled={name: _numbers(value, f"inner.sampled.{name}") for name, value in inner["sampled"].items()},
            details=inner["details"],
            dry_run=is_dry_run(row),
            ignored=tuple(inner["ignored"]),
            routine=inner["routine"],
            confirmed_by=inner["confirmed_by"],
            options={name: _numbers(value, f"inner.options.{name}") for name, value in inner["options"].items()},
            instruction=inner["instruction"],
        )
        return self._snapshot(inner, reset=report)

    def snapshot(self, row: TransitionRow) -> Snapshot:
        """Return the snapshot of a step, or raise BackendLostError if the backend was lost in it."""
        inner = row["inner"]
        for sample in inner["sensors"].values():
            if sample["quality"] == Quality.LOST.name:
                why, _, detail = sample["reason"].partition(": ")
                raise BackendLostError(why, detail)
        render_s = row["info"]["latency"].get("render_s")
        render_ns = None if render_s is None else round(render_s * NS_PER_S)
        return self._snapshot(inner, actuation=_built(ActuationEvidence, inner["actuation"]), render_ns=render_ns)

    def _snapshot(self, inner: SnapshotRecord, **fields: Any) -> Snapshot:  # noqa: ANN401 - of Snapshot
        return Snapshot(
            now_ns=inner["now_ns"],
            samples={
                name: self._sample(name, inner, is_reset="reset" in fields)
                for name in inner["sensors"]
                if name in self._fields
            },
            clock=_built(ClockStatus, inner["clock"]),
            injected=_built(InjectedDelays, inner["injected"]),
            **fields,
        )

    def observation(self, row: TransitionRow | ResetRow) -> dict[str, NDArray[Any]]:
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

    def external_inputs(self, row: TransitionRow) -> ExternalInputs:
        """Return the external inputs of a step."""
        inputs = row["inner"]["external_inputs"]
        return ExternalInputs(
            safety_context=SafetyContext(
                sensors={},
                measured=np.full(self._layout.size, np.nan),
                action_age_s=inputs["action_age_s"],
                latency_s=inputs["latency_s"],
                estops=parse_states(inputs["estops"]),
                required=self._required(inputs.get("required", [])),
            ),
            latched=_built(Finding, inputs["latched"]),
            latched_after=_built(Finding, inputs["latched_after"]),
            watchdog_trips=inputs["watchdog_trips"],
            dt_s=math.nan if inputs["dt_s"] is None else inputs["dt_s"],
            reference=_built(CommandState, inputs["reference"]),
            answer=_built(GateReport, inputs["answer"]),
            delay=_built(WriteDelay, inputs.get("delay")),
            annotations=inputs.get("annotations", {}),
            chunk=self._chunk(inputs["chunk"]) if "chunk" in inputs else None,
            limits=self._limits(inputs["limits"]) if "limits" in inputs else None,
            instruction=inputs["instruction"],
        )

    def _chunk(self, recorded: ChunkRecord) -> ActionChunk:
        shape = (*recorded["actions"]["shape"][:1], self._layout.size)
        actions = self._read_field(recorded, "actions", np.float64, shape)
        return ActionChunk(id=recorded["id"], born=recorded["born"], actions=actions)

    def _required(self, recorded: list[str]) -> tuple[str, ...]:
        """Return the sensors of the policy, or raise RecordError for one that the contract lacks."""
        if not all(name in self._contract.sensors for name in recorded):
            expected = f"expected some of: {', '.join(self._contract.sensors)}"
            raise RecordError(f"invalid inner.external_inputs.required: {short_repr(recorded)} ({expected})")
        return tuple(recorded)

    def _limits(self, recorded: Mapping[str, Any]) -> EffectiveLimits:
        """Return changed limits, unlimited for null, and symmetric without `velocity_low`."""
        joints, vectors = tuple(recorded["joints"]), {}
        for name in recorded.keys() - {"joints"}:
            unlimited = -math.inf if name.endswith("_low") else math.inf
            vectors[name] = np.array([unlimited if x is None else x for x in recorded[name]])
        if joints != self._layout.joints or any(len(vector) != len(joints) for vector in vectors.values()):
            raise RecordError(f"invalid inner.external_inputs.limits: {short_repr(recorded)} (expected one per joint)")
        fastest = vectors.pop("velocity")
        vectors.setdefault("velocity_low", -fastest)
        return EffectiveLimits(joints=joints, velocity_high=fastest, **vectors)

    def published(self, row: TransitionRow) -> FloatArray:
        """Return the values that the gate approved, or NaN if a relay decided on them."""
        inner = row["inner"]
        if inner["external_inputs"]["answer"] is not None:
            return np.full(self._layout.size, np.nan)
        return cast("FloatArray", _vector(inner["report"]["applied_si"]))

    def action(self, row: TransitionRow) -> tuple[Any, bool]:
        """Return the action that the gate received, and whether it is made from the gate's report."""
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

    def _sample(self, name: str, inner: SnapshotRecord, *, is_reset: bool) -> Sample:
        account: dict[str, Any] = {**inner["sensors"][name]}
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
        """Return the newest reading of a field, the only one in the account of a reset."""
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
    """Replaces a malformed action that JSON cannot express, and is refused like the original."""

    def __init__(self, refusal: MalformedActionError) -> None:
        self._refusal = refusal

    def detach(self) -> UnreadableAction:
        """Raise the refusal when `embodied_env.safety.action_parsing` gets the numbers of a tensor."""
        raise self._refusal


def frozen_ns(row: ResetRow) -> int:
    """Return the steady time of a reset's snapshot, or 0 if info has no sensor."""
    samples = row["inner"]["sensors"]
    for name, account in row["info"]["sensors"].items():
        if name in samples:
            return samples[name]["arrival_ns"] + round(account["arrival_age_s"] * NS_PER_S)
    return 0


def _built(kind: Any, recorded: Any) -> Any:  # noqa: ANN401, PLR0911 - a line per kind of type
    """Decode a part of a row by its type, the reverse of `embodied_env.record.rows`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if recorded is None:
        return None
    if origin in (typing.Union, types.UnionType):
        return _built(arguments[0], recorded)
    if origin is tuple:
        return tuple(_built(arguments[0], item) for item in recorded)
    if origin in (np.ndarray, NDArray):  # NDArray is an origin of its own from NumPy 2.5
        return _vector(recorded)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind[recorded]
    if dataclasses.is_dataclass(kind):
        made: Any = kind
        hints = _hints_of(made)
        return made(**{name: _built(hints[name], value) for name, value in recorded.items()})
    return recorded


_hints_of = functools.cache(typing.get_type_hints)


def _numbers(recorded: Any, where: str) -> FloatArray:  # noqa: ANN401 - JSON types
    try:
        return np.array(recorded, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise RecordError(f"cannot read {where}: {short_repr(recorded)} (expected numbers)") from None


def _vector(recorded: list[float | None] | None) -> FloatArray | None:
    """Return an array with NaN for null."""
    return None if recorded is None else np.array(recorded, dtype=np.float64)
