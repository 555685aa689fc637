"""Explain a step in words, from its ``info``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from embodied_env.core.codes import CODES, Quality, Severity, end_kind
from embodied_env.core.policy import CHUNK_MODES
from embodied_env.envs.remedies import UNMOVED, operator_remedy
from embodied_env.errors import UsageError
from embodied_env.safety.findings import GATES
from embodied_env.safety.interlocks import AFTER_ESTOP

CODE_WORDS: Mapping[str, str] = {
    "latch.stop": "an earlier stop is latched until reset()",
    "latch.estop": "an earlier emergency stop is latched until it is cleared",
    "form.nan": "the action is not finite",
    "form.shape": "the action has the wrong shape or keys",
    "form.type": "the action is not made of real numbers",
    "form.repeated": "too many malformed actions in a row",
    "form.none": "the policy returned no action",
    "box.clip": "outside the action space",
    "pos.limit": "position limit",
    "vel.limit": "velocity limit",
    "acc.limit": "acceleration limit",
    "limits.infeasible": "no command keeps all limits",
    "vel.gap": "reference velocity lowered after a gap in the commands",
    "limits.tightened": "still braking into tightened limits",
    "clock.dt": "no time since the last command",
    "clock.jump": "a clock was set",
    "clock.suspended": "the computer was suspended",
    "wd.hold": "the watchdog braked, since no action came in time",
    "wd.stop": "the watchdog stopped, since no action came for too long",
    "fault.internal": "internal fault",
    "estop.active": "the emergency stop is pressed",
    "estop.expired": "the emergency stop topic fell silent",
    "estop.unknown": "the state of the emergency stop is not known",
    "robot.protective_stop": "protective stop of the robot",
    "robot.inactive": "the robot or its controller is not active",
    "robot.contention": "another node publishes the robot's commands or readings",
    "robot.restarted": "a driver of the robot has restarted",
    "gripper.silent": "the action server of a gripper does not answer",
    "obs.stale": "a required reading is too old",
    "obs.future": "a required reading is stamped in the future",
    "obs.invalid": "a required reading is invalid",
    "act.late": "the action came too late",
    "act.dup": "the same action came twice",
    "act.epoch": "the action belongs to another episode",
    "act.jump": "the command jumps",
    "track.error": "the robot does not follow its command",
    "force.limit": "force limit",
    "jerk.limit": "jerk limit",
    "ws.keepout": "a forbidden part of the workspace is near",
    "gate.plugin": "a command filter decided so, or failed",
    "lat.budget": "the time from observation to command exceeds its budget",
    "rate.intervention": "too many actions were changed",
    "relay.silent": "no answer from the relay",
}
"""Gate code -> meaning."""

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
_WITHOUT_ESTOP = ("robot.inactive", "robot.contention", "robot.restarted", "gripper.silent")
_NAMES = {number: code for code, number in CODES.items()}
_REQUIRED_KEYS = {"episode_index", "step_index", "wrapper_version", "backend", "world", "sensors", "end_reason"}


def explain(info: Mapping[str, Any]) -> str:
    """Return one step or reset in words: what was changed, by which gate, what was late, why the episode ended.

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
        reset = info["reset"]
        lasted = f", in {reset['duration_s']:.3g} s" if "duration_s" in reset else ""
        lines = [f"Reset to episode {info['episode_index']} of {world}{lasted}."]
        lines += ["The reset already satisfies the task: the episode counts in no success rate."] * bool(
            reset["solved"]
        )
        return "\n".join([*lines, *_explain_readings(info)])
    late = [*_explain_readings(info), *_explain_delays(info["latency"])]
    return "\n".join(
        [
            f"Step {info['step_index']} of episode {info['episode_index']}: {world}.",
            *_explain_stages(info.get("annotations", {}).get("action_stages", {})),
            *_explain_action(info["action"]),
            *_explain_gates(info["safety"]),
            *_explain_chunk(info.get("annotations", {}).get("chunk", {})),
            *_explain_inference(info.get("annotations", {}).get("inference", {})),
            *(late or ["Nothing was late."]),
            *([f"Observation to command: {info['latency_ms']:.3g} ms."] if "latency_ms" in info else []),
            *_explain_end(info["end_reason"]),
        ]
    )


def _explain_stages(account: Mapping[str, Any]) -> Iterator[str]:
    for name, own in account.get("stages", {}).items():
        yield f"The action stage {name} failed." if "failed" in own else f"The action stage {name} set the action."


def _explain_action(action: Mapping[str, Any]) -> Iterator[str]:
    requested, applied = _flat(action["requested"]), _flat(action["applied"])
    if not np.isfinite(requested).all():
        yield "The action was not used."
        return
    changed = [
        f"{joint} from {before:.4g} to {after:.4g}"
        for joint, before, after in zip(action["applied_si"], requested, applied, strict=True)
        if before != after
    ]
    yield f"The action was changed: {', '.join(changed)}." if changed else "The gates passed the action unchanged."


def _explain_gates(safety: Mapping[str, Any]) -> Iterator[str]:
    for gate, severity, number in zip(GATES, safety["severity"], safety["code"], strict=True):
        if number:
            code = _NAMES[int(number)]
            where = ", ".join(joint for joint, of_joint in safety["joints"].items() if of_joint == number)
            where = f"{code}: {where}" if where else code
            yield f"Gate {gate} {_REACTIONS[Severity(severity)]}: {CODE_WORDS[code]} ({where})."
    yield from (f"{joint} {UNMOVED}" for joint in safety["unmoved"].split(",") if joint)


def _explain_chunk(account: Mapping[str, Any]) -> Iterator[str]:
    """Explain the account of an action chunk (`policies.chunks`); one of another form is left out."""
    if account.get("mode") not in CHUNK_MODES or not {"id", "age", "weight", "underruns"} <= account.keys():
        return
    if account["id"] is None:
        yield f"No chunk had an action for this step; steps of this episode without one: {account['underruns']}."
        return
    blended = f", blended with a weight of {account['weight']:.3g}" if account["weight"] < 1.0 else ""
    yield f"The action is of chunk {account['id']}, computed from the observation {account['age']} steps ago{blended}."


def _explain_inference(account: Mapping[str, Any]) -> Iterator[str]:
    """Explain the account of an inference on a policy server."""
    stages = {name: account.get(f"{name}_s") for name in ("encode", "wire", "server", "decode")}
    if known := [f"{name} {1e3 * value:.3g} ms" for name, value in stages.items() if value is not None]:
        yield f"Inference on the policy server: {', '.join(known)}."
    counts = {name: count for name, count in account.items() if name not in stages and type(count) is int and count}
    if counts:
        yield f"Failed inferences of this episode: {', '.join(f'{name} {count}' for name, count in counts.items())}."


def _explain_readings(info: Mapping[str, Any]) -> Iterator[str]:
    for name, reading in info["sensors"].items():
        if reading["quality"] in _QUALITIES:
            problem = _QUALITIES[reading["quality"]]
            is_lost = reading["quality"] == Quality.LOST
            kept = "the previous one" if is_lost else f"one that is {reading['age_s']:.3g} s old"
            yield f"The reading of {name} {problem}; the observation has {kept}."
        if reading["lost"]:
            yield f"Messages of {name} lost since the previous step: {reading['lost']}."


def _explain_delays(latency: Mapping[str, Any]) -> Iterator[str]:
    if latency.get("overrun_s", 0.0) > 0.0:
        yield f"The step was {latency['overrun_s']:.3g} s late for its deadline."
    if latency.get("missed_deadlines", 0):
        yield f"Deadlines of this episode that passed before a step waited for them: {latency['missed_deadlines']}."


def _explain_end(reason: str) -> Iterator[str]:
    if not reason:
        yield "The environment did not end the episode."
        return
    kind, why = end_kind(reason), reason.partition(":")[2]
    words = ": ".join(part for part in (_ENDS.get(kind, kind), CODE_WORDS.get(why, why)) if part)
    yield f"The episode ended: {words} ({reason})."
    if kind == "backend_lost":
        yield "Whether the command was executed is not known."
    if remedy := operator_remedy(reason):
        next_call = "then call reset()" if why in _WITHOUT_ESTOP else AFTER_ESTOP
        yield f"Next: {remedy}, {next_call}."


def _flat(action: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - one vector, or one per actuator
    """Return one vector over all joints; null is NaN."""
    parts = action.values() if isinstance(action, Mapping) else [action]
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
