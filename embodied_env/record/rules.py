"""The rules of an account: functions that take a row whose structure is sound and yield what contradicts in it.

Two principles. The environment's account is held against itself (and a contract), and what the outermost wrapper was
given and returned is held against the account: so a difference has one name. And of two values that contradict each
other the derived one is blamed: what the gates found, the raw stamps and the reasons to end are taken as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from embodied_env.contract import Contract
from embodied_env.contract.fingerprint import differences
from embodied_env.contract.spaces import field_layouts
from embodied_env.record.arrays import is_reference
from embodied_env.record.latency_rules import known_stages, sensor_stages, stages, stamps, total, total_of_info
from embodied_env.record.rows import FIELDS, Row
from embodied_env.record.schema import gates
from embodied_env.record.violations import shortened
from embodied_env.transition import (
    CODES,
    TERMINATED_REASONS,
    TRUNCATED_REASONS,
    Quality,
    Severity,
    end_kind,
    order_end_reasons,
)

# ------------------------------------------------------------------------------------------- the outside and the inside


def _outside(row: Row) -> Iterator[str]:
    """The outermost wrapper was given and returned what the environment was given and returned."""
    for field in FIELDS[:-1]:
        found = differences(row[field], row["inner"][field], field)
        if found:
            where, outer, inner = found[0]
            others = f" (and {len(found) - 1} more differences)" if len(found) > 1 else ""
            did = "was given" if field == "action" else "returned"
            yield (
                f"{where} is {shortened(outer)}, but the environment {did} {shortened(inner)}{others}: "
                "an outer wrapper changed it"
            )


# --------------------------------------------------------------------------------------------------------- the ending


def _ending(row: Row) -> Iterator[str]:
    """The flags, end_reason and is_success say what the reasons to end say."""
    info = row["info"]
    reason = _end_reason(row)
    where, flags = ("inner.", row["inner"]) if "inner" in row else ("", row)
    for flag, kinds in (("terminated", TERMINATED_REASONS), ("truncated", TRUNCATED_REASONS)):
        if flags[flag] != (end_kind(reason) in kinds):
            yield f"{where}{flag} is {flags[flag]}, but the end reason is {reason!r}; {flag}: {', '.join(kinds)}"
    if info["end_reason"] != reason:
        yield f"info.end_reason is {info['end_reason']!r}, but the first of inner.end_reasons is {reason!r}"
    if info["is_success"] != (reason == "success"):
        yield f"info.is_success is {info['is_success']}, but the end reason is {reason!r}"


def _end_reason(row: Row) -> str:
    reason: str = (row["inner"]["end_reasons"] or [""])[0] if "inner" in row else row["info"]["end_reason"]
    return reason


def _reasons(row: Row) -> Iterator[str]:
    """The reasons to end stand in their order."""
    reasons = row["inner"]["end_reasons"]
    if (ordered := list(order_end_reasons(reasons))) != reasons:
        yield f"inner.end_reasons is {reasons}; allowed: in the order {ordered}"


# ---------------------------------------------------------------------------------------------------------- the gates


def _gates(row: Row) -> Iterator[str]:
    """The arrays and the disposition say what the gates found."""
    safety = row["info"]["safety"]
    severity, code = [0] * len(gates()), [0] * len(gates())
    for finding in row["inner"]["findings"]:
        gate, level = gates().index(finding["gate"]), Severity[finding["severity"]]
        if level >= severity[gate]:
            severity[gate], code[gate] = int(level), CODES[finding["code"]]
    for key, expected in (("severity", severity), ("code", code), ("disposition", max(severity))):
        if safety[key] != expected:
            yield f"info.safety.{key} is {safety[key]}, but inner.findings make it {expected}"
    disposition = row["inner"]["report"]["disposition"]
    if Severity[disposition] != max(severity):
        yield f"inner.report.disposition is {disposition}, but inner.findings make it {Severity(max(severity)).name}"


_TELLING = ("latency", "intervention")
"""Gates that may say something without doing anything."""


def _gates_of_info(row: Row) -> Iterator[str]:
    """The disposition is the gravest of the gates; a gate has a code when it fired."""
    safety = row["info"]["safety"]
    if safety["disposition"] != max(safety["severity"]):
        yield (
            f"info.safety.disposition is {safety['disposition']}, "
            f"but the gravest of info.safety.severity is {max(safety['severity'])}"
        )
    for gate, level, code in zip(gates(), safety["severity"], safety["code"], strict=True):
        if (code == 0 and level > 0) or (code > 0 and level == 0 and gate not in _TELLING):
            yield f"info.safety.code of {gate} is {code}, but its severity is {level}; allowed: both 0, or none"


def _clipping(row: Row) -> Iterator[str]:
    """action_clipped says whether the gates stepped in, and so whether what was applied is what was requested."""
    info = row["info"]
    guaranteed = {"guaranteed": info["safety"]["guaranteed"]}
    report = row["inner"]["report"] if "inner" in row else {**info["action"], **guaranteed}
    disposition = _disposition(row)
    least = Severity.LIMIT if report["guaranteed"]["position"] else Severity.HOLD  # a gate that only monitors
    saying = {"info.action_clipped": info["action_clipped"], "info.safety.intervened": info["safety"]["intervened"]}
    for name, said in saying.items():
        if said != (disposition >= least):
            yield f"{name} is {said}, but the disposition is {disposition.name}; clipped: from {least.name} on"
    requested, applied = report["requested"], report["applied"]
    if disposition is Severity.PASS and applied != requested:
        yield f"what was applied is {shortened(applied)}, but no gate fired and {shortened(requested)} was requested"
    if disposition is least is Severity.LIMIT and applied == requested and not _has_changed_something(row):
        yield f"what was applied is {shortened(applied)}, just as requested, but the disposition is LIMIT"


def _has_changed_something(row: Row) -> bool:
    """Whether a finding moved a value; without findings it may have, by less than shows in action units."""
    return "inner" not in row or any(any(finding["margin"] or ()) for finding in row["inner"]["findings"])


def _disposition(row: Row) -> Severity:
    if "inner" not in row:
        return Severity(row["info"]["safety"]["disposition"])
    return max((Severity[finding["severity"]] for finding in row["inner"]["findings"]), default=Severity.PASS)


def _report(row: Row) -> Iterator[str]:
    """What info says of the action is what the gates' report says."""
    action, safety, report = row["info"]["action"], row["info"]["safety"], row["inner"]["report"]
    saying = {f"action.{key}": (_flat(action[key]), report[key]) for key in ("requested", "applied", "applied_si")}
    saying |= {f"safety.{key}": (safety[key], report[key]) for key in ("dt_s", "guaranteed")}
    for name, (said, reported) in saying.items():
        if said != reported:
            yield f"info.{name} is {shortened(said)}, but inner.report makes it {shortened(reported)}"


def _flat(action: Any) -> list[Any]:  # noqa: ANN401 - one vector, or a dict of vectors or of numbers
    if isinstance(action, dict):
        return [x for part in action.values() for x in (part if isinstance(part, list) else [part])]
    return list(action)


# ------------------------------------------------------------------------------------------------------- the contract


def _fingerprint(row: Row, contract: Contract) -> Iterator[str]:
    found = row["info"]["contract"]
    if found != contract.fingerprint:
        yield f"info.contract is {found}, but the fingerprint of {contract.name} is {contract.fingerprint}"


def _observation(row: Row, contract: Contract) -> Iterator[str]:
    """The observation lies in the contract's space; a reading outside of its range must be named as such."""
    where, observation = _inside(row, "observation")
    space = contract.observation_space
    if not isinstance(observation, dict):
        yield f"{where} is {shortened(observation)}; allowed: a mapping of {', '.join(space.spaces)}"
        return
    sensor_of = {layout.key: name for name, spec in contract.sensors.items() for layout in field_layouts(name, spec)}
    for key in dict.fromkeys([*space.spaces, *observation]):
        if key not in observation:
            yield f"{where}.{key} is missing"
        elif key not in space.spaces:
            yield f"{where}.{key} is not in the contract; allowed: {', '.join(space.spaces)}"
        else:
            quality = row["info"]["sensors"].get(sensor_of.get(key), {}).get("quality", Quality.OK)
            if problem := _outside_of(observation[key], space.spaces[key], checked=quality == Quality.OK):
                yield f"{where}.{key} is {shortened(observation[key])}; allowed: {problem}"


def _outside_of(value: Any, space: Any, *, checked: bool) -> str:  # noqa: ANN401 - JSON types, a Box
    """Return what is allowed instead of `value`, or "".

    A held reading may have been out of range when it was made. Of an array beside the row, dtype and shape are known.
    """
    if is_reference(value):
        fits = value["dtype"] == space.dtype.name and value["shape"] == list(space.shape)
        return "" if fits else f"an array of {space.dtype.name} of the shape {space.shape}"
    try:
        array = np.array(value)
    except ValueError:  # a ragged list
        array = np.array(None)
    if array.dtype.kind not in "if" or array.shape != space.shape:
        return f"numbers of the shape {space.shape}"
    if checked and not ((space.low <= array) & (array <= space.high)).all():
        return f"{shortened(space.low.tolist())} to {shortened(space.high.tolist())}, unless its quality is not OK"
    return ""


def _action(row: Row, contract: Contract) -> Iterator[str]:
    """An action that is not of the space's shape was refused by the gate of forms."""
    where, action = _inside(row, "action")
    refused = row["info"]["safety"]["severity"][gates().index("form")] >= Severity.HOLD
    if not refused and not _fits(action, contract.action_space):
        yield f"{where} is {shortened(action)}, and no gate refused it; allowed: {contract.action_space}"


def _fits(action: Any, space: spaces.Space[Any]) -> bool:  # noqa: ANN401 - JSON types
    """Whether `action` is of numbers in the space's shape; what JSON could not say is not judged."""
    if _is_described(action):
        return True
    if isinstance(space, spaces.Dict):
        named = isinstance(action, dict) and set(action) == set(space.spaces)
        return named and all(_fits(action[name], part) for name, part in space.items())
    (size,) = space.shape or (0,)
    vector = isinstance(action, list) and len(action) == size
    return vector and all(_is_number(x) or _is_described(x) for x in action)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _is_described(value: object) -> bool:
    return isinstance(value, dict) and set(value) == {"repr"}


def _inside(row: Row, field: str) -> tuple[str, Any]:
    return (f"inner.{field}", row["inner"][field]) if "inner" in row else (field, row[field])


RULES: tuple[Callable[[Row], Iterator[str]], ...] = (
    _outside,
    _ending,
    _reasons,
    _gates,
    _clipping,
    _report,
    stamps,
    stages,
    sensor_stages,
    known_stages,
    total,
)
"""For a row with the environment's account."""

RULES_OF_INFO: tuple[Callable[[Row], Iterator[str]], ...] = (
    _ending,
    _gates_of_info,
    _clipping,
    known_stages,
    total_of_info,
)
"""For a row that has no more than what `step` returned."""

RULES_OF_CONTRACT: tuple[Callable[[Row, Contract], Iterator[str]], ...] = (_fingerprint, _observation, _action)
"""For either, when the contract is known."""
