"""Explain a step in words, from its ``info``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from embodied_env.core.code_table import CODE_TABLE, GATES, UNMOVED
from embodied_env.core.code_types import Quality, Severity, end_kind
from embodied_env.core.policy import CHUNK_MODES
from embodied_env.errors import UsageError

if TYPE_CHECKING:
    from embodied_env.core.info_types import ActionInfo, LatencyInfo, ResetDetails, SafetyInfo, SensorInfo, StepInfo
    from embodied_env.record.row_types import ActionRecord, SafetyRecord, StepRecord

_REACTIONS = {
    Severity.PASS: "noted",
    Severity.LIMIT: "limited the action",
    Severity.HOLD: "refused the action and braked for this step",
    Severity.STOP: "stopped the robot",
    Severity.ESTOP: "made an emergency stop",
}
_QUALITIES = {
    Quality.STALE: "is too old",
    Quality.MISSING: "is missing",
    Quality.INVALID: "is invalid",
    Quality.LOST: "was lost with the world",
    Quality.OUT_OF_RANGE: "is outside its declared range",
    Quality.FUTURE: "is stamped in the future",
    Quality.ZERO_STAMP: "has no stamp",
}
_ENDS = {
    "success": "the task succeeded",
    "failure": "the task failed",
    "horizon": "the finite horizon of the task is over",
    "safety_stop": "safety stop",
    "backend_lost": "the world was lost",
    "task_error": "the task raised an error or returned a wrong result",
    "sensor_gap": "no valid reading of a sensor for too long",
    "policy_lost": "no action of the policy for too long",
    "out_of_bounds": "out of bounds",
    "time_limit": "the time limit is reached",
}
_NAMES = {code.number: name for name, code in CODE_TABLE.items()}
_REQUIRED_KEYS = {"episode_index", "step_index", "wrapper_version", "backend", "world", "sensors", "end_reason"}


def explain(info: Mapping[str, Any]) -> str:
    """Describe a step or reset in words, with gates, delays and the end of the episode.

    Args:
        info: the info of `step` or `reset` of a single environment, as returned or as in a recorded row.

    Raises:
        UsageError: for anything else, such as an info of `NumericInfo`.
    """
    missing = _REQUIRED_KEYS.difference(info) if isinstance(info, Mapping) else _REQUIRED_KEYS
    if missing or np.ndim(info["step_index"]):
        shown = f"without {', '.join(sorted(missing))}" if missing else "of several environments"
        raise UsageError(
            f"info not explained: {type(info).__name__} {shown} "
            "(expected the info of step() or reset() of one environment, not of NumericInfo)"
        )
    world = f"{info['wrapper_version'].partition(', ')[2]} on {info['backend']} ({info['world']})"
    if "reset" in info:
        reset: ResetDetails = info["reset"]
        lasted = f", in {reset['duration_s']:.3g} s" if "duration_s" in reset else ""
        lines = [f"Reset to episode {info['episode_index']} of {world}{lasted}."]
        if reset["solved"]:
            lines.append("The reset already satisfies the task: the episode counts in no success rate.")
        return "\n".join([*lines, *_explain_readings(info["sensors"])])
    step = cast("StepInfo | StepRecord", info)
    late = [*_explain_readings(step["sensors"]), *_explain_delays(step["latency"])]
    notes = step.get("annotations", {})
    return "\n".join(
        [
            f"Step {step['step_index']} of episode {step['episode_index']}: {world}.",
            *_explain_prompt(step, notes.get("instruction", {})),
            *_explain_stages(notes.get("action_stages", {})),
            *_explain_action(step["action"], Severity(step["safety"]["disposition"])),
            *_explain_gates(step["safety"]),
            *_explain_chunk(step, notes.get("chunk", {})),
            *_explain_inference(notes.get("inference", {})),
            *(late or ["Each reading was within its age limit, and the step was in time."]),
            *_explain_motion(step["sensors"]),
            *([f"Observation to command: {step['latency_ms']:.3g} ms."] if "latency_ms" in step else []),
            *_explain_end(step["end_reason"]),
        ]
    )


def _explain_prompt(step: StepInfo | StepRecord, account: Mapping[str, Any]) -> Iterator[str]:
    if "before" in account:
        yield f"The prompt was changed from {account['before']!r} to {step['instruction']!r}."


def _explain_stages(account: Mapping[str, Any]) -> Iterator[str]:
    if skipped := account.get("skipped"):
        yield f"The recorded action was played without the action stages of the contract: {', '.join(skipped)}."
    for name, own in account.get("stages", {}).items():
        yield f"The action stage {name} failed." if "failed" in own else f"The action stage {name} set the action."


def _explain_action(action: ActionInfo | ActionRecord, disposition: Severity) -> Iterator[str]:
    requested, applied = _flat(action["requested"]), _flat(action["applied"])
    if not np.isfinite(requested).all():
        yield "The action was not used."
        return
    changed = [
        f"{joint} from {before:.4g} to {after:.4g}"
        for joint, before, after in zip(action["applied_si"], requested, applied, strict=True)
        if before != after
    ]
    if changed:
        yield f"The action was changed: {', '.join(changed)}."
    elif disposition < Severity.HOLD:
        yield "The gates passed the action unchanged."
    else:
        yield "The applied action equals the requested one."


def _explain_gates(safety: SafetyInfo | SafetyRecord) -> Iterator[str]:
    for gate, severity, number in zip(GATES, safety["severity"], safety["code"], strict=True):
        if number:
            code = _NAMES[int(number)]
            where = ", ".join(joint for joint, of_joint in safety["joints"].items() if of_joint == number)
            where = f"{code}: {where}" if where else code
            yield f"Gate {gate} {_REACTIONS[Severity(severity)]}: {CODE_TABLE[code].meaning} ({where})."
    yield from (f"{joint} {UNMOVED}" for joint in safety["unmoved"].split(",") if joint)


def _explain_chunk(step: StepInfo | StepRecord, account: Mapping[str, Any]) -> Iterator[str]:
    """Explain the account of an action chunk, unless it has another form."""
    if account.get("mode") not in CHUNK_MODES or not {"id", "age", "weight", "length", "underruns"} <= account.keys():
        return
    if account["id"] is None:
        yield f"No chunk had an action for this step; steps of this episode without one: {account['underruns']}."
        return
    blended = f", blended with a weight of {account['weight']:.3g}" if account["weight"] < 1.0 else ""
    source = f"computed from the observation {account['age']} steps ago"
    place = f"number {account['age'] + 1} of {account['length']} in chunk {account['id']}"
    yield f"The action is {place}, {source}{blended}."
    if earlier := account.get("earlier_prompt"):
        is_all = round(earlier["weight"], 3) == 1.0
        part = "The action" if is_all else f"A share of {earlier['weight']:.3g} of the action"
        yield f"{part} was computed with the prompt {earlier['instruction']!r}, not with {step['instruction']!r}."


def _explain_inference(account: Mapping[str, Any]) -> Iterator[str]:
    stages = {name: account.get(f"{name}_s") for name in ("encode", "wire", "server", "decode")}
    if known := [f"{name} {1e3 * value:.3g} ms" for name, value in stages.items() if value is not None]:
        yield f"Inference on the policy server: {', '.join(known)}."
    counts = {name: count for name, count in account.items() if name not in stages and type(count) is int and count}
    if counts:
        yield f"Failed inferences of this episode: {', '.join(f'{name} {count}' for name, count in counts.items())}."


def _explain_readings(sensors: Mapping[str, SensorInfo]) -> Iterator[str]:
    for name, reading in sensors.items():
        if reading["quality"] in _QUALITIES:
            problem = _QUALITIES[Quality(reading["quality"])]
            is_lost = reading["quality"] == Quality.LOST
            kept = "the previous one" if is_lost else f"one that is {reading['age_s']:.3g} s old"
            yield f"The reading of {name} {problem}; the observation has {kept}."
        if reading["lost"]:
            yield f"Messages of {name} lost since the previous step: {reading['lost']}."


def _explain_motion(sensors: Mapping[str, SensorInfo]) -> Iterator[str]:
    for name, reading in sensors.items():
        if problem := reading.get("suspect_motion"):
            yield f"The odometry {name} is suspect: {problem}."


def _explain_delays(latency: LatencyInfo) -> Iterator[str]:
    if latency.get("overrun_s", 0.0) > 0.0:
        yield f"The step was {latency['overrun_s']:.3g} s late for its deadline."
    if latency.get("missed_deadlines", 0):
        yield f"Deadlines of this episode that passed before a step waited for them: {latency['missed_deadlines']}."


def _explain_end(reason: str) -> Iterator[str]:
    if not reason:
        yield "The environment did not end the episode."
        return
    kind, why = end_kind(reason), reason.partition(":")[2]
    code = CODE_TABLE.get(why)
    words = ": ".join(part for part in (_ENDS.get(kind, kind), why if code is None else code.meaning) if part)
    yield f"The episode ended: {words} ({reason})."
    if kind == "backend_lost":
        yield "Whether the command was executed is not known."
    if kind == "safety_stop" and code is not None and code.remedy:
        yield f"Next: {code.next_step}."


def _flat(action: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - one vector, or one per actuator
    """Return one vector over all joints, with NaN for null."""
    parts = action.values() if isinstance(action, Mapping) else [action]
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
