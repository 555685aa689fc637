"""Mutation tests of the safety package: one textual mutant at a time, in a copy of the package.

    python .ci/mutants.py [part of a mutant's name ...]

For each mutant the properties that should kill it run first, then all safety tests. Prints a table; the exit status is
1 when a mutant survives, or when a mutant no longer matches the source.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS, GATE = "test/safety/test_joint_limits_properties.py", "test/safety/test_gate_properties.py"
MACHINE, UNIT_GATE = "test/safety/test_gate_machine.py", "test/safety/test_gate.py"
VELOCITY = "test/safety/test_velocity_properties.py"
ARBITER, WATCHDOG = "test/safety/test_arbiter.py", "test/safety/test_watchdog.py"
CHAIN, JERK = "test/safety/test_gate_chain_properties.py", "test/safety/test_jerk.py"
INTERLOCKS, FILTERS = "test/safety/test_interlocks.py", "test/safety/test_command_filters.py"
INTERVENTION, SITUATION = "test/safety/test_intervention.py", "test/safety/test_context.py"
TIGHTENING = "test/safety/test_limit_changes.py"
SETPOINTS, TRAJECTORIES = "test/safety/test_setpoints.py", "test/safety/test_trajectories.py"
GRIPPERS = "test/safety/test_grippers.py"
SUPPORT = ("test/support", "test/core", "test/envs", "test/ros", "test/safety")
RULES, STEPPER = "test/contract/test_safety_rules.py", "test/envs/test_stepper.py"
ROOM = (
    *(LIMITS, GATE, VELOCITY, CHAIN, MACHINE, UNIT_GATE, ARBITER, WATCHDOG),
    *(INTERLOCKS, FILTERS, JERK, INTERVENTION, SITUATION, RULES, STEPPER, TIGHTENING),
    *(SETPOINTS, TRAJECTORIES, GRIPPERS),
)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """In `file`, or the one file of a folder with that text, `old` becomes `new`; tests that match `by` should fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    by: str


def gate(name: str, old: str, new: str, by: str, tests: str = GATE) -> Mutant:
    return Mutant(name=name, file="gate.py", old=old, new=new, tests=tests, by=by)


def form(name: str, old: str, new: str, by: str, tests: str = GATE) -> Mutant:
    return Mutant(name=name, file="action_parsing.py", old=old, new=new, tests=tests, by=by)


def limits(name: str, old: str, new: str, by: str, tests: str = LIMITS) -> Mutant:
    return Mutant(name=name, file="joint_limits.py", old=old, new=new, tests=tests, by=by)


def arbiter(name: str, old: str, new: str, by: str, tests: str) -> Mutant:
    return Mutant(name=name, file="arbiter.py", old=old, new=new, tests=tests, by=by)


def limiter(name: str, old: str, new: str, by: str, tests: str = GATE) -> Mutant:
    return Mutant(name=name, file="command_limiter.py", old=old, new=new, tests=tests, by=by)


def approved(name: str, old: str, new: str, by: str, tests: str = GATE) -> Mutant:
    return Mutant(name=name, file="approved_commands.py", old=old, new=new, tests=tests, by=by)


def findings(name: str, old: str, new: str, by: str, tests: str = GATE) -> Mutant:
    return Mutant(name=name, file="findings.py", old=old, new=new, tests=tests, by=by)


def interlocks(name: str, old: str, new: str, by: str, tests: str = INTERLOCKS) -> Mutant:
    return Mutant(name=name, file="interlocks.py", old=old, new=new, tests=tests, by=by)


def filters(name: str, old: str, new: str, by: str, tests: str = FILTERS) -> Mutant:
    return Mutant(name=name, file="command_filters.py", old=old, new=new, tests=tests, by=by)


def jerk(name: str, old: str, new: str, by: str, tests: str = JERK) -> Mutant:
    return Mutant(name=name, file="joint_limits.py", old=old, new=new, tests=tests, by=by)


def intervention(name: str, old: str, new: str, by: str, tests: str = INTERVENTION) -> Mutant:
    return Mutant(name=name, file="interlocks.py", old=old, new=new, tests=tests, by=by)


def outside(name: str, file: str, old: str, new: str, *, by: str, tests: str) -> Mutant:
    """Return a mutant of a file or folder outside the safety package."""
    return Mutant(name=name, file=f"../{file}", old=old, new=new, tests=tests, by=by)


def watchdog(name: str, old: str, new: str, by: str, tests: str = MACHINE) -> Mutant:
    return Mutant(name=name, file="watchdog.py", old=old, new=new, tests=tests, by=by)


ROBOT_MACHINE = "TestFreeRunningRobot or TestEpisodes"

MUTANTS = (
    # velocity commands
    limiter(
        "velocities are limited as positions",
        "limit_velocity(x, v, t, bounds, dt_s) if is_velocity else limit_joint",
        "limit_joint(x, v, t, bounds, dt_s) if is_velocity else limit_joint",
        "bit_for_bit or keeps_speed",
        VELOCITY,
    ),
    limiter(
        "positions are published instead of velocities",
        "return np.where(self.layout.is_velocity, velocities, positions)",
        "return positions",
        "keeps_speed or bit_for_bit",
        VELOCITY,
    ),
    limiter(
        "a lagging measured position ends the episode",
        "severity = Severity.HOLD if measured.issuperset(finding.joints) else Severity.STOP",
        "severity = Severity.STOP",
        "position_beyond",
        VELOCITY,
    ),
    limits(
        "a velocity is not limited",
        "    chosen = min(max(desired, lower), upper)\n    is_rounding",
        "    chosen = desired\n    is_rounding",
        "nearest or keeps_speed",
        VELOCITY,
    ),
    limits(
        "the measured position of a velocity joint is ignored",
        "    lower, upper = velocity_interval(position, velocity, bounds, dt_s)\n    if lower > upper:\n"
        "        if is_unrecoverable(position, velocity, bounds, dt_s):\n"
        "            braked = brake_velocity(velocity, bounds, dt_s)\n            reached",
        "    lower, upper = velocity_interval(0.0, velocity, bounds, dt_s)\n    if lower > upper:\n"
        "        if is_unrecoverable(position, velocity, bounds, dt_s):\n"
        "            braked = brake_velocity(velocity, bounds, dt_s)\n            reached",
        "joint_stops or rounding",
        VELOCITY,
    ),
    arbiter(
        "the commanded velocity is cleared after a pause",
        "acting = np.where(rests, 0.0, reference.velocities)",
        "acting = np.zeros_like(reference.velocities)",
        "after_a_pause",
        VELOCITY,
    ),
    arbiter(
        "a measurement replaces a published position",
        "chosen = np.where(is_velocity, positions, self._reference.positions)",
        "chosen = positions",
        "measured_position_is",
        VELOCITY,
    ),
    arbiter(
        "an old measurement counts as new",
        "slack=slack if slack.any() else None",
        "slack=None",
        "old_measurement",
        VELOCITY,
    ),
    limiter(
        "motion since a measurement is ignored",
        "replace(bounds, low=bounds.low + slack, high=bounds.high - slack)",
        "replace(bounds, low=bounds.low - 0.0 * slack, high=bounds.high)",
        "joint_with",
        VELOCITY,
    ),
    limiter(
        "a position is always guaranteed",
        '"position": sound and not any(is_late) and self._is_inside(reference, published),',
        '"position": sound,',
        "guaranteed_only",
        VELOCITY,
    ),
    # the chain: each gate deleted
    gate(
        "no latch gate",
        "        if self._latched is not None:\n            return self._limiter.brake",
        "        if False:\n            return self._limiter.brake",
        "p13",
        GATE,
    ),
    form("NaN is accepted", "if not all(map(math.isfinite, vector.tolist())):", "if False:", "finite or malformed"),
    form("a wrong shape is accepted", "if array.shape != (size,):", "if array.size != size:", "malformed"),
    form(
        "booleans are accepted",
        'not in "fiu"',
        'not in "fiub"',
        "gate_also or held_with or reported or the_right or three_malformed or unprintable",
        UNIT_GATE,
    ),
    form(
        "errors of other libraries propagate",
        "    except Exception as error:  # noqa: BLE001 - a foreign object",
        "    except ValueError as error:  # noqa: BLE001 - a foreign object",
        "p1_ or p2 or malformed",
    ),
    limiter(
        "no space box",
        "return np.minimum(np.maximum(action, self.layout.scale.low), self.layout.scale.high)",
        "return action.copy()",
        "p2",
    ),
    gate(
        "space box after the mapping",
        "target = self._limiter.target(boxed, reference)",
        "target = self._limiter.target(requested, reference)",
        "p12",
    ),
    limiter(
        "deltas start at zero",
        "end = value + sign * start if is_delta else value",
        "end = value + 0.0 * start if is_delta else value",
        "p12 or p23",
    ),
    limiter(
        "no joint limits",
        "else limit_joint(x, v, t, bounds, dt_s)\n",
        "else JointStep(position=t, velocity=(t - x) / dt_s, code='', bound=t)\n",
        "p12",
    ),
    limiter(
        "no joint limits and no check of the result",
        "        if self._limits_elsewhere:\n            velocities",
        "        if True:\n            velocities",
        "p3",
    ),
    limiter(
        "no check of the result",
        "        if problem := self._violation(reference, positions, velocities, dt_s):",
        "        if problem := '':",
        "bug_is_caught",
        UNIT_GATE,
    ),
    limiter(
        "no check of the result of braking",
        "if problem and not self._is_hopeless(reference, dt_s):",
        "if False:",
        "approved",
        UNIT_GATE,
    ),
    gate(
        "dt <= 0 moves",
        "if not dt_s > 0.0:\n            findings.append",
        "if dt_s != dt_s:\n            findings.append",
        "last_command",
    ),
    gate(
        "dt <= 0 moves a command without an action",
        "if not dt_s > 0.0:\n            return self.brake",
        "if dt_s != dt_s:\n            return self.brake",
        "a_relayed or commands or non_finite",
        CHAIN,
    ),
    limiter(
        "braking leaves the range",
        "            positions = self._clamp_position(positions, reference, dt_s)\n            problem",
        "            problem",
        "braking_from",
        UNIT_GATE,
    ),
    # latch
    gate(
        "repeated malformed actions do not latch",
        "            if finding.severity >= Severity.STOP:\n",
        "            if finding.severity >= Severity.STOP and finding.gate != 'form':\n",
        ROBOT_MACHINE,
        MACHINE,
    ),
    gate(
        "malformed actions are not counted", "self._malformed_in_a_row += is_malformed", "pass", ROBOT_MACHINE, MACHINE
    ),
    gate(
        "a valid action does not reset the count",
        "        self._malformed_in_a_row = 0\n        findings = self._run_interlocks",
        "        findings = self._run_interlocks",
        ROBOT_MACHINE,
        MACHINE,
    ),
    gate(
        "an infeasible state does not latch",
        "            if finding.severity >= Severity.STOP:\n",
        "            if finding.severity >= Severity.STOP and finding.gate != 'joint_limits':\n",
        "p14 or infeasible or save",
        UNIT_GATE,
    ),
    gate(
        "a reset clears an ESTOP",
        "self._latched.severity < Severity.ESTOP",
        "self._latched.severity <= Severity.ESTOP",
        ROBOT_MACHINE,
        MACHINE,
    ),
    gate(
        "clearing an ESTOP clears everything",
        "self._latched = replace(self._latched, severity=Severity.STOP)",
        "self._latched = None",
        ROBOT_MACHINE,
        MACHINE,
    ),
    gate(
        "a STOP weakens an ESTOP",
        "if self._latched is None or finding.severity > self._latched.severity:",
        "if True:",
        ROBOT_MACHINE,
        MACHINE,
    ),
    # the report
    findings(
        "the disposition is the least severe finding",
        "return max([finding.severity",
        "return min([finding.severity",
        "p13 or p12",
    ),
    limiter(
        "interventions are not reported",
        "intervened=disposition >= self._intervenes_from",
        "intervened=disposition > self._intervenes_from",
        "p12",
    ),
    limiter(
        "applied equals requested",
        "np.copyto(applied, boxed, where=published == target)",
        "np.copyto(applied, boxed)",
        "p12 or p6",
    ),
    limiter("commands can be written", "            array.setflags(write=False)", "            pass", "command_and"),
    form(
        "the agent's array is kept",
        "return array.astype(np.float64)",
        "return array.astype(np.float64, copy=False)",
        "later_writes or the_array",
    ),
    gate(
        "monitoring clips",
        "return self._limiter.monitor(requested, reference, dt_s, findings)",
        "return self._limiter.monitor(boxed, reference, dt_s, findings)",
        "monitoring",
    ),
    limiter(
        "monitoring passes non-finite values",
        "if not (np.abs(velocities) < MAX_REPRESENTABLE_SPEED).all():",
        "if False:",
        "monitoring",
    ),
    # limits
    limits(
        "no braking term",
        "    if above < forwards:\n        forwards = above\n",
        "",
        "p4",
    ),
    limits(
        "no braking term below",
        "    if below < backwards:\n        backwards = below\n",
        "",
        "p4",
    ),
    limits(
        "braking distance by A",
        "above = _braking_velocity(bounds.high - position, deceleration, dt_s)",
        "above = _braking_velocity(bounds.high - position, bounds.acceleration, dt_s)",
        "p4",
    ),
    limits(
        "braking distance without the step itself",
        "return twice / (step + math.sqrt(step * step",
        "return twice / (math.sqrt(step * step",
        "p4",
    ),
    limits(
        "braking by A",
        "abs(velocity) - bounds.deceleration * dt_s), velocity)",
        "abs(velocity) - bounds.acceleration * dt_s), velocity)",
        "p10",
    ),
    limits(
        "braking through zero",
        "math.copysign(max(0.0, abs(velocity) - bounds.deceleration * dt_s), velocity)",
        "math.copysign(abs(velocity) - bounds.deceleration * dt_s, velocity)",
        "p10",
    ),
    limits("no speed limit", "(fastest if fastest < forwards else forwards)", "forwards", "p3"),
    limits(
        "no acceleration limit", "forwards = _max_next_velocity(velocity, bounds, dt_s)", "forwards = math.inf", "p3"
    ),
    limits(
        "slowing down by A",
        "braked = velocity + deceleration * dt_s",
        "braked = velocity + acceleration * dt_s",
        "p3 or p5 or p10",
    ),
    limits(
        "speeding up by D",
        "return velocity + bounds.acceleration * dt_s",
        "return velocity + bounds.deceleration * dt_s",
        "p3",
    ),
    limits(
        "across zero by the greater limit",
        "slowest = acceleration if acceleration < deceleration else deceleration",
        "slowest = acceleration if acceleration > deceleration else deceleration",
        "p3",
    ),
    limits(
        "no final clip",
        "        reached = min(max(reached, low), high)",
        "        pass",
        "joint_outside or rounding",
    ),
    limits(
        "feasible targets are recomputed",
        'return JointStep(target, chosen, "", target)',
        'return JointStep(position + chosen * dt_s, chosen, "", target)',
        "p7 or p2",
    ),
    limits(
        "no rounding is tolerated",
        "<= _rounding_of_step(position, reached, bounds, dt_s) and",
        "<= 0.0 and",
        "p6 or p7",
    ),
    limits(
        "any rounding is tolerated",
        "abs(desired - chosen) <= _rounding_of_step(position, reached, bounds, dt_s) and",
        "abs(desired - chosen) <= 1e-3 * abs(chosen) and",
        "p9 or p8 or p3 or p4",
    ),
    limits(
        "a joint outside its range is snapped",
        "    if not low <= position <= high:  # a joint outside",
        "    if False:  # a joint outside",
        "outside",
    ),
    limits(
        "rounding is infeasible",
        "> 2.0 * _rounding_of_step(position, position, bounds, dt_s)",
        "> 0.0",
        "random_steps or p5",
    ),
    limits(
        "nothing is infeasible",
        "> 2.0 * _rounding_of_step(position, position, bounds, dt_s)",
        "> math.inf",
        "braking_from or state_is",
        UNIT_GATE,
    ),
    limits(
        "the report names another limit",
        'bounds.velocity == speed:\n            return "vel.limit"',
        'bounds.velocity == speed:\n            return "acc.limit"',
        "p12",
        GATE,
    ),
    # check of the result
    limits(
        "the check of the result ignores deceleration",
        "before - after > bounds.deceleration * dt_s + allowed",
        "before - after > math.inf",
        "p12",
    ),
    limits(
        "the check of the result ignores the stopping distance",
        "if low - near <= stop <= high + near:",
        "if True:",
        "p12",
    ),
    limits(
        "the check of the result ignores non-finite values",
        "if not (-_INF < next_position < _INF and -_INF < next_velocity < _INF):",
        "if False:",
        "p1_",
    ),
    limits(
        "the check of the result does not relate position and velocity",
        "if abs((next_position - position) / dt_s - next_velocity) > allowed:",
        "if False:",
        "p12",
    ),
    # arbiter
    arbiter(
        "dt not capped",
        "return self._reference, min(elapsed_s, longest_s)",
        "return self._reference, elapsed_s",
        "p23",
        GATE,
    ),
    arbiter(
        "the wall clock counts in lockstep",
        "        if not self._free_running:\n            return self._reference, self._period_s\n",
        "",
        "p23",
        GATE,
    ),
    arbiter(
        "a stalled robot keeps its velocity",
        "rests = ~is_velocity if elapsed_s > _STALL_PERIODS * self._period_s else np.zeros_like(is_velocity)",
        "rests = np.zeros_like(is_velocity)",
        "long_pause",
        ARBITER,
    ),
    approved(
        "the reference is not updated",
        "        positions=positions,\n",
        "        positions=before.positions,\n",
        ROBOT_MACHINE,
        MACHINE,
    ),
    approved(
        "the reference has no velocity",
        "        velocities=velocities,\n        seq",
        "        velocities=np.zeros_like(command.values),\n        seq",
        "reference",
        ARBITER,
    ),
    approved(
        "sequence numbers repeat",
        "        seq=command.seq,\n        epoch=command.epoch",
        "        seq=before.seq,\n        epoch=command.epoch",
        ROBOT_MACHINE,
        MACHINE,
    ),
    arbiter(
        "sequence numbers of refused commands are reused",
        "replace(before, seq=command.seq), published_ns",
        "before, published_ns",
        "refused",
        ARBITER,
    ),
    arbiter(
        "a resync restarts the sequence numbers",
        "seq=self._reference.seq, epoch=epoch",
        "seq=0, epoch=epoch",
        ROBOT_MACHINE,
        MACHINE,
    ),
    arbiter(
        "the epoch is not copied",
        "seq=self._reference.seq, epoch=epoch",
        "seq=self._reference.seq, epoch=0",
        ROBOT_MACHINE,
        MACHINE,
    ),
    arbiter(
        "publishers are not serialised",
        "self._lock = threading.RLock()",
        "self._lock = __import__('contextlib').nullcontext()",
        "threads",
        MACHINE,
    ),
    arbiter(
        "stopping brakes once",
        "while self._free_running and slowest > 0.0:",
        "while False:",
        "p10",
        GATE,
    ),
    # watchdog
    watchdog(
        "the watchdog never brakes",
        "            self._arbiter.brake(finding)\n            return",
        "            return",
        ROBOT_MACHINE,
    ),
    watchdog("the watchdog brakes late", "if age_ns < self._hold_ns:", "if age_ns < 2 * self._hold_ns:", ROBOT_MACHINE),
    watchdog(
        "the watchdog brakes once",
        "            self._arbiter.brake(finding)\n            return",
        "            if getattr(self, 'braked', None) != fed_ns:\n                self.braked = fed_ns\n"
        "                self._arbiter.brake(finding)\n            return",
        ROBOT_MACHINE,
    ),
    watchdog(
        "the watchdog never stops",
        "stop = age_ns >= self._stop_ns",
        "stop = False",
        ROBOT_MACHINE,
    ),
    watchdog(
        "the watchdog decides too early",
        "        with self._arbiter.exclusive():  # a step",
        "        if True:  # a step",
        "step_with",
        WATCHDOG,
    ),
    watchdog(
        "a refused command ends the watchdog thread",
        "with contextlib.suppress(Exception):",
        "with contextlib.suppress(KeyError):",
        "survives",
        WATCHDOG,
    ),
    # interlocks: each deleted, each threshold moved, two swapped, comparisons that accept NaN
    *(
        interlocks(f"no {what} interlock", f"        {line},\n", "", by, tests)
        for what, line, by, tests in (
            ("observation", "ObservationGate(contract)", "in_the_order_of or observation_stop", INTERLOCKS),
            ("action age", "ActionAgeGate(contract)", "in_the_order_of or late_action", INTERLOCKS),
            ("tracking", "*tracking", "in_the_order_of or blocked", INTERLOCKS),
            ("force", "ForceGate(safety)", "in_the_order_of or is_excessive or excessive_force", INTERLOCKS),
            ("latency", "LatencyGate(safety.latency)", "in_the_order_of or warning", INTERLOCKS),
        )
    ),
    *(
        interlocks(f"no {what} interlock (stateful)", f"        {line},\n", "", ROBOT_MACHINE, MACHINE)
        for what, line in (
            ("observation", "ObservationGate(contract)"),
            ("action age", "ActionAgeGate(contract)"),
        )
    ),
    interlocks(
        "two interlocks are swapped",
        "        ObservationGate(contract),\n        ActionAgeGate(contract),",
        "        ActionAgeGate(contract),\n        ObservationGate(contract),",
        "interlocks_are_in",
    ),
    findings(
        "two gates are swapped in the report",
        '    "space_box",\n    "mapping",\n    "jerk",\n    "joint_limits",',
        '    "joint_limits",\n    "mapping",\n    "jerk",\n    "space_box",',
        "p12",
        CHAIN,
    ),
    findings(
        "findings are not sorted by gate",
        "sorted(findings, key=lambda",
        "list(findings) or sorted(findings, key=lambda",
        "p12",
        CHAIN,
    ),
    gate(
        "interlocks run before the form is checked",
        "        try:\n            requested = parse_action",
        "        if gravest(self._refuse(situation, reference)) >= Severity.HOLD:\n"
        "            return self._braked(reference, dt_s, self._refuse(situation, reference))\n"
        "        try:\n            requested = parse_action",
        "hide or skips or in_the_order_of or latency_misses",
        INTERLOCKS,
    ),
    gate(
        "interlocks are skipped",
        "findings = self._run_interlocks(context, reference)\n",
        "findings: list[Finding] = []\n",
        "p10",
        CHAIN,
    ),
    gate(
        "a modified action is no longer refused",
        "        if worst_severity(findings) >= Severity.HOLD:\n            return",
        "        if worst_severity(findings) >= Severity.STOP:\n            return",
        "p10",
        CHAIN,
    ),
    gate(
        "a malformed action hides other findings",
        "others = inputs if self._latched is not None else self._run_interlocks(context, reference)",
        "others = inputs",
        "p13",
        CHAIN,
    ),
    gate(
        "monitoring refuses",
        '        if self._mode == "enforce":\n            return findings',
        "        if True:\n            return findings",
        "monitoring",
        CHAIN,
    ),
    gate(
        "monitoring stops for interventions",
        "self._downgrade_in_monitor_mode(self.interventions.check())",
        "self.interventions.check()",
        "monitoring",
        INTERVENTION,
    ),
    gate(
        "looser limits apply immediately",
        "if not is_tighter(wanted, self._in_force):",
        "if False:",
        "acceleration or looser_limits",
        TIGHTENING,
    ),
    gate(
        "changed limits never apply",
        "        self._enforce(self._wanted)\n",
        "",
        "acceleration or looser_limits",
        TIGHTENING,
    ),
    gate(
        "an invalid limit changes the others",
        "wanted = changed_limits(self.contract, changes)",
        "wanted = changed_limits(self._contract, dict(list(changes.items())[:1]))",
        "change_nothing",
        TIGHTENING,
    ),
    # safety inputs
    gate(
        "safety inputs do not latch",
        "        self.latch_stops(inputs)  # even if the action is malformed\n",
        "",
        "monitoring",
        CHAIN,
    ),
    gate(
        "safety inputs are not read",
        "inputs = [] if context is None else safety_input_findings(context.estops)",
        "inputs = []",
        "malformed or monitoring",
        INTERLOCKS,
    ),
    interlocks(
        "any input state is ok",
        'if state != "ok":',
        'if state == "active":',
        "input or latch_remains or asserted_estop",
        INTERLOCKS,
    ),
    interlocks("an undefined state is inactive", '_INPUTS["unknown"])', '_INPUTS["inactive"])', "each_state"),
    interlocks(
        "an expired safety input is a STOP",
        '"expired": (Severity.ESTOP',
        '"expired": (Severity.STOP',
        ROBOT_MACHINE,
        MACHINE,
    ),
    interlocks(
        "an inactive driver is an ESTOP",
        '"inactive": (Severity.STOP',
        '"inactive": (Severity.ESTOP',
        ROBOT_MACHINE,
        MACHINE,
    ),
    interlocks(
        "contention is a HOLD",
        '"contention": (Severity.STOP',
        '"contention": (Severity.HOLD',
        ROBOT_MACHINE,
        MACHINE,
    ),
    # observation
    interlocks(
        "no reading is stale",
        "if status.age_s > self._max_age_s[name]:",
        "if status.age_s > 1e9:",
        "reading_is",
    ),
    interlocks(
        "a reading at the maximum age is stale",
        "if status.age_s > self._max_age_s[name]:",
        "if status.age_s >= self._max_age_s[name]:",
        "reading_is",
    ),
    interlocks(
        "a non-finite age is valid",
        "if status is None or not math.isfinite(status.age_s):",
        "if status is None:",
        "non_finite",
    ),
    interlocks(
        "a reading of any quality is valid",
        "if status.quality not in JUDGED_BY_AGE:",
        "if False:",
        "other_quality",
    ),
    interlocks(
        "a reading from the future is valid",
        "if status.quality is Quality.FUTURE or",
        "if False or",
        "other_quality",
    ),
    interlocks(
        "a negative age is valid",
        " or status.age_s < -self._future_tolerance_s:",
        ":",
        "reading_may",
    ),
    interlocks(
        "no future tolerance",
        "status.age_s < -self._future_tolerance_s:",
        "status.age_s <= -self._future_tolerance_s:",
        "reading_may",
    ),
    interlocks(
        "a silent sensor never stops",
        "severity = Severity.STOP if self.in_a_row >= self._stop_steps else Severity.HOLD",
        "severity = Severity.HOLD",
        ROBOT_MACHINE,
        MACHINE,
    ),
    interlocks(
        "a silent sensor stops one step late",
        "if self.in_a_row >= self._stop_steps else",
        "if self.in_a_row > self._stop_steps else",
        ROBOT_MACHINE,
        MACHINE,
    ),
    interlocks(
        "valid readings do not reset the count",
        "        if not problems:\n            self.in_a_row = 0\n",
        "        if not problems:\n",
        ROBOT_MACHINE,
        MACHINE,
    ),
    interlocks(
        "the count of invalid readings survives a reset",
        '        """Reset the count of failed steps."""\n        self.in_a_row = 0\n',
        '        """Reset the count of failed steps."""\n',
        "p17",
        CHAIN,
    ),
    # action age, tracking, force, latency
    interlocks(
        "an action at the maximum age is late",
        "if context.action_age_s <= self._max_age_s:",
        "if context.action_age_s < self._max_age_s:",
        "action_is",
    ),
    interlocks(
        "an action of unknown age is valid",
        "if context.action_age_s <= self._max_age_s:",
        "if not context.action_age_s > self._max_age_s:",
        "unknown_age",
    ),
    interlocks(
        "an unknown position has no tracking error",
        "are_hit = [not error <= tolerance for",
        "are_hit = [error > tolerance for",
        "joint_of",
    ),
    interlocks(
        "the tracking tolerance itself is an error",
        "are_hit = [not error <= tolerance for",
        "are_hit = [not error < tolerance for",
        "joint_error",
    ),
    interlocks(
        "velocities are tracked as positions",
        "or not is_by_position else error",
        "else error",
        "velocity",
    ),
    interlocks(
        "tracking holds without debounce",
        "if self.in_a_row < self.spec.debounce_steps:",
        "if self.in_a_row < 1:",
        "debounce or failures",
    ),
    interlocks(
        "tracking holds one step late",
        "if self.in_a_row < self.spec.debounce_steps:",
        "if self.in_a_row <= self.spec.debounce_steps:",
        "debounce or failures",
    ),
    interlocks(
        "a blocked robot never stops",
        "Severity.STOP if self.in_a_row >= self.spec.stop_steps else Severity.HOLD",
        "Severity.HOLD",
        "debounce or failures",
    ),
    interlocks(
        "a step without a tracking error does not reset the count",
        "self.in_a_row = self.in_a_row + 1 if True in are_hit else 0",
        "self.in_a_row = self.in_a_row + 1 if True in are_hit else self.in_a_row",
        "good_step or valid_step",
    ),
    interlocks(
        "sent commands survive a reset",
        "        self.sent.clear()\n",
        "",
        "p17",
        CHAIN,
    ),
    interlocks(
        "one command too few is compared",
        "maxlen=spec.delay_steps + 1",
        "maxlen=max(1, spec.delay_steps)",
        "last_commands",
    ),
    interlocks(
        "one command too many is compared",
        "maxlen=spec.delay_steps + 1",
        "maxlen=spec.delay_steps + 2",
        "last_commands",
    ),
    interlocks(
        "only the first and last sent command are compared",
        "above, below = position - high, low - position",
        "above, below = position - low, high - position",
        "between_two",
    ),
    interlocks("metres are treated as radians", '"m": 1.0}', '"m": 2.0 * math.pi}', "turn_or_a_metre"),
    interlocks("the force limit itself is excessive", "if not force <= limit:", "if not force < limit:", "equal_its"),
    interlocks(
        "an unknown force is accepted", "if not force <= limit:", "if force > limit:", "missing_sensor or unknown_force"
    ),
    interlocks(
        "a missing force is zero",
        "forces.get(name, math.nan)",
        "forces.get(name, 0.0)",
        "missing_sensor or unknown_force",
    ),
    interlocks(
        "an excessive force is a HOLD",
        'Finding(gate="force", severity=Severity.STOP',
        'Finding(gate="force", severity=Severity.HOLD',
        "excessive_force or equal_its",
    ),
    interlocks(
        "a latency equal to the budget is a miss",
        "not context.latency_s <= budget_s",
        "not context.latency_s < budget_s",
        "latency_equal",
    ),
    interlocks(
        "an unknown latency is not a miss",
        "not context.latency_s <= budget_s",
        "context.latency_s > budget_s",
        "joint_of or unknown_latency",
    ),
    interlocks(
        "misses are reported one too early",
        "if misses < self._spec.misses:",
        "if misses <= self._spec.misses:",
        "latency_misses",
    ),
    interlocks(
        "a budget only warns",
        'Severity.HOLD if self._spec.action == "hold" else Severity.PASS',
        "Severity.PASS",
        "latency_misses",
    ),
    interlocks("misses survive a reset", "        self.missed.clear()\n", "        pass\n", "p17", CHAIN),
    # interventions
    gate(
        "interventions are not counted",
        "self.interventions.count(intervened=approved.report.intervened)",
        "pass",
        "count or intervention",
        INTERVENTION,
    ),
    gate(
        "interventions are never reported",
        "        findings += self._downgrade_in_monitor_mode(self.interventions.check())\n",
        "",
        "configured or warning_does",
        INTERVENTION,
    ),
    gate("interventions survive a reset", "        self.interventions.reset()\n", "", "p17", CHAIN),
    intervention(
        "the warn share stops",
        "Severity.STOP if stops else Severity.PASS",
        "Severity.STOP",
        "share_itself or warning",
    ),
    intervention("the stop share is ignored", "Severity.STOP if stops else Severity.PASS", "Severity.PASS", "stop"),
    intervention(
        "a share equal to the warn share warns", "share > spec.warn_share", "share >= spec.warn_share", "warning_starts"
    ),
    intervention(
        "a share equal to the stop share stops", "share > spec.stop_share", "share >= spec.stop_share", "stop_starts"
    ),
    intervention(
        "a partial window is reported",
        "self.share if len(window) == window.maxlen else 0.0",
        "self.share",
        "partial_window",
    ),
    # command filters
    limiter(
        "the share is ignored",
        "velocities = braking + share * (velocities - braking)",
        "velocities = 1.0 * velocities",
        "half or p12",
        FILTERS,
    ),
    limiter(
        "the share applies to the braking command",
        "velocities = braking + share * (velocities - braking)",
        "velocities = velocities + share * (braking - velocities)",
        "interpolates",
        FILTERS,
    ),
    limiter(
        "a filter scales to nothing instead of braking",
        "velocities = braking + share * (velocities - braking)",
        "velocities = share * velocities",
        "p5",
        CHAIN,
    ),
    limiter(
        "the decision of a plug-in is ignored",
        "decision = ask_filter(command_filter, proposal)\n",
        "decision = ask_filter(command_filter, proposal)\n            continue\n",
        "half",
        FILTERS,
    ),
    limiter(
        "each plug-in receives the first proposal",
        "velocities=_read_only(velocities),",
        "velocities=_read_only(np.array([step.velocity for step in steps])),",
        "each_filter_receives",
        FILTERS,
    ),
    limiter(
        "the refusal of a plug-in is ignored",
        "if worst_severity(found) >= Severity.HOLD:",
        "if worst_severity(found) >= Severity.STOP:",
        "brakes",
        FILTERS,
    ),
    limiter(
        "a refusal by a plug-in is not reported",
        "return self.brake(reference, dt_s, findings + found, requested)",
        "return self.brake(reference, dt_s, findings, requested)",
        "p12 or brakes",
        FILTERS,
    ),
    limiter(
        "a plug-in cannot stop",
        "severity = max(decision.severity, Severity.HOLD)",
        "severity = Severity.HOLD",
        "latched",
        FILTERS,
    ),
    limiter("a plug-in may modify the proposal", "    copy.flags.writeable = False\n", "", "writes_into", FILTERS),
    limiter(
        "every command has the workspace guarantee",
        '"workspace": sound and self._workspace is not None and getattr(self._workspace, "is_kept", False)',
        '"workspace": sound',
        "guaranteed",
        FILTERS,
    ),
    filters("a negative share is 1", "0.0 < decision.share < 1.0", "decision.share < 1.0", "any_other or limit_with"),
    filters("a share above 1 is 1", "0.0 < decision.share < 1.0", "0.0 < decision.share", "other_share"),
    filters(
        "a NaN share is 1",
        "0.0 < decision.share < 1.0",
        "not (decision.share <= 0.0 or decision.share >= 1.0)",
        "other_share",
    ),
    filters("a HOLD applies its share", "decision.severity is Severity.LIMIT and is_share", "is_share", "refusing"),
    filters(
        "a raising plug-in ends the program",
        "crash\n        return FilterDecision",
        "crash\n        raise error\n        return FilterDecision",
        "filter_raising or raising_filter",
    ),
    filters(
        "a raising plug-in passes the proposal",
        'FilterDecision(severity=Severity.STOP, detail=f"gate raised',
        'FilterDecision(severity=Severity.PASS, detail=f"gate raised',
        "filter_raising or raising_filter",
    ),
    filters(
        "an invalid decision is accepted",
        "    return FilterDecision(severity=Severity.STOP, detail=detail)",
        "    return FilterDecision(severity=Severity.PASS, detail=detail)",
        "invalid_decision",
    ),
    filters(
        "a missing plug-in is ignored",
        "        if name not in offered:\n",
        "        if name not in offered:\n            continue\n",
        "plugin_that",
    ),
    filters("plug-ins get no parameters", ".load()(contract, **parameters)", ".load()(contract)", "its_parameters"),
    gate("a reset does not reach filters", "command_filter.reset()\n", "pass\n", "passed_on", FILTERS),
    gate("refusals are not reset", "            interlock.reset()\n", "            pass\n", "p17", CHAIN),
    # a command without an action
    gate(
        "limit() does not latch",
        "self._limiter.as_action(target, reference))\n        self.latch_stops(approved.report.findings)\n",
        "self._limiter.as_action(target, reference))\n",
        "a_relayed or commands",
        FILTERS,
    ),
    gate(
        "limit() ignores the latch",
        "        if self._latched is not None:\n            return self.brake",
        "        if False:\n            return self.brake",
        "p14",
        CHAIN,
    ),
    gate(
        "limit() accepts non-finite values",
        "if not (np.abs(target) < MAX_REPRESENTABLE_SPEED).all():",
        "if (np.abs(target) >= MAX_REPRESENTABLE_SPEED).any():",
        "a_relayed or commands or non_finite",
        CHAIN,
    ),
    approved(
        "the findings of the environment are lost",
        "findings=sorted_by_gate([*approved.report.findings, *answer.findings])",
        "findings=answer.findings",
        "p13",
        CHAIN,
    ),
    approved(
        "the disposition of the environment is lost",
        "disposition=max(approved.report.disposition, answer.disposition)",
        "disposition=answer.disposition",
        "p13",
        CHAIN,
    ),
    approved(
        "the interventions of the environment are lost",
        "intervened=approved.report.intervened or answer.intervened",
        "intervened=answer.intervened",
        "p13",
        CHAIN,
    ),
    approved(
        "the request of the environment is lost", "        requested=approved.report.requested,\n", "", "p13", CHAIN
    ),
    approved(
        "the applied command is not that of the relay",
        "    report = replace(\n        answer,\n",
        "    report = replace(\n        answer,\n        applied_si=approved.values,\n",
        "p13",
        CHAIN,
    ),
    # jerk
    limiter(
        "jerk is unbounded",
        "        smooth = self.limit_jerk(target, reference, dt_s)\n",
        "        smooth = target\n",
        "acceleration",
        CHAIN,
    ),
    limiter(
        "jerk is guaranteed at any rate",
        "if not (self._fixed_rate and dt_s > 0.0):",
        "if not dt_s > 0.0:",
        "acceleration_jump or guaranteed_without or is_guaranteed",
        JERK,
    ),
    limiter(
        "jerk is guaranteed although it was exceeded",
        "self.has_jerk and bool(self.keeps_jerk(reference, velocities, dt_s))",
        "self.has_jerk and self._fixed_rate",
        "guaranteed",
        CHAIN,
    ),
    limiter(
        "a joint braked to rest is driven backwards",
        "np.where(reference.velocities == 0.0, 0.0, accelerations)  # braked",
        "accelerations  # braked",
        "robot_braked",
        CHAIN,
    ),
    limiter(
        "the last acceleration is ignored",
        "accelerations = np.zeros_like(desired) if reference.accelerations is None else reference.accelerations",
        "accelerations = np.zeros_like(desired)",
        "acceleration",
        CHAIN,
    ),
    jerk(
        "the jerk is not limited above",
        "highest = np.minimum(accelerations + jerk * dt_s, slope",
        "highest = np.minimum(np.inf, slope",
        "acceleration",
        CHAIN,
    ),
    jerk(
        "the jerk is not limited below",
        "lowest = np.maximum(accelerations - jerk * dt_s, -slope",
        "lowest = np.maximum(-np.inf, -slope",
        "acceleration",
        CHAIN,
    ),
    jerk(
        "no barrier at the speed limit",
        "np.minimum(accelerations + jerk * dt_s, slope * (limits.velocity - velocities))",
        "accelerations + jerk * dt_s",
        "acceleration_falls",
        JERK,
    ),
    jerk(
        "no barrier at the speed limit backwards",
        "np.maximum(accelerations - jerk * dt_s, -slope * (limits.velocity + velocities))",
        "accelerations - jerk * dt_s",
        "acceleration_falls",
        JERK,
    ),
    jerk(
        "the barrier exceeds the jerk limit",
        "highest = np.maximum(highest, accelerations - jerk * dt_s)",
        "highest = 1.0 * highest",
        "barrier_never",
        JERK,
    ),
    jerk(
        "a stopping robot passes through zero",
        "np.where(ahead <= 0.0, np.maximum(lowest, -reach), lowest)",
        "lowest",
        "stopping",
        JERK,
    ),
    jerk(
        "a stopping robot passes through zero backwards",
        "np.where(ahead >= 0.0, np.minimum(highest, reach), highest)",
        "highest",
        "stopping",
        JERK,
    ),
    jerk(
        "a target within the jerk limit is filtered",
        "np.maximum(slope * np.abs(ahead), jerk * dt_s)",
        "slope * np.abs(ahead)",
        "difference or velocity_within",
        JERK,
    ),
    jerk(
        "joints without a jerk limit are limited",
        "np.where(is_limited & (np.abs",
        "np.where((np.abs",
        "joint_without or only_limited",
        JERK,
    ),
    jerk(
        "ten times the jerk limit is accepted",
        "np.where(is_limited, limits.jerk * dt_s, np.inf)",
        "np.where(is_limited, 10.0 * limits.jerk * dt_s, np.inf)",
        "guaranteed",
        CHAIN,
    ),
    jerk("no jerk limit is guaranteed", "return is_limited.any() & (", "return (", "guaranteed_without", JERK),
    approved(
        "the acceleration is not stored",
        "accelerations=(velocities - before.velocities) / report.dt_s if report.dt_s > 0.0 else None",
        "accelerations=None",
        "reference",
        JERK,
    ),
    arbiter(
        "the acceleration survives a pause",
        "accelerations=None if rests.any() or is_lowered.any() else reference.accelerations,",
        "accelerations=reference.accelerations,",
        "acceleration_is",
        JERK,
    ),
    approved(
        "the relay's velocities are not the reference",
        "report = command.report if sent is None or sent.report is None else sent.report",
        "report = command.report",
        "reference",
        CHAIN,
    ),
    # setpoints, trajectories, grippers
    arbiter(
        "a late setpoint makes up for any gap",
        "(1 + is_moving) * planner.period_ns / NS_PER_S",
        "10 * planner.period_ns / NS_PER_S",
        "",
        SETPOINTS,
    ),
    arbiter(
        "a setpoint moves on after its segment",
        "if segment is not None and not planner.is_over(segment, self._clock.now_ns()):",
        "if segment is not None:",
        "",
        SETPOINTS,
    ),
    arbiter(
        "braking does not end the segment",
        "(reference, dt_s), self._segment = self._last_published(self._period_s), None",
        "reference, dt_s = self._last_published(self._period_s)",
        "",
        SETPOINTS,
    ),
    arbiter(
        "a step starts at a goal that the motion does not reach",
        "planner.is_over(segment, now_ns) or not planner.follows(segment, published, limits):",
        "planner.is_over(segment, now_ns):",
        "",
        SETPOINTS,
    ),
    arbiter(
        "a late step starts at the first point of a trajectory",
        "passed = max(0, (now_ns - trajectory.first_ns) // period_ns + 1)",
        "passed = 0",
        "",
        TRAJECTORIES,
    ),
    limiter(
        "a trajectory does not end at rest",
        "while points[-1].velocities.any():",
        "while False:",
        "",
        TRAJECTORIES,
    ),
    limiter(
        "a stop leaves the gripper as it is",
        "if worst_severity(findings) >= Severity.STOP:",
        "if worst_severity(findings) > Severity.ESTOP:",
        "",
        GRIPPERS,
    ),
    # stateful tests, and callers
    watchdog(
        "the watchdog ignores safety inputs",
        "finding = self._input_finding()\n",
        "finding = None\n",
        ROBOT_MACHINE,
    ),
    watchdog(
        "a safety input does not brake between steps",
        "            self._arbiter.brake(finding)\n            return",
        '            if finding.gate == "watchdog":\n                self._arbiter.brake(finding)\n            return',
        ROBOT_MACHINE,
    ),
    watchdog(
        "a safety input does not latch between steps",
        "            self._gate.latch_stops([finding])\n",
        '            self._gate.latch_stops([finding] if finding.gate == "watchdog" else [])\n',
        ROBOT_MACHINE,
    ),
    watchdog(
        "the least severe of several inputs counts",
        "return max(safety_input_findings(inputs), key",
        "return min(safety_input_findings(inputs), key",
        "most_severe",
        WATCHDOG,
    ),
    watchdog(
        "unreadable inputs are ok",
        'inputs = {"the safety inputs": "unknown"}',
        "inputs = {}",
        "unreadable",
        WATCHDOG,
    ),
    watchdog(
        "unreadable inputs disable the watchdog",
        "        except Exception:  # noqa: BLE001 - a transport",
        "        except KeyError:  # noqa: BLE001 - a transport",
        "unreadable",
        WATCHDOG,
    ),
    outside(
        "no sensor is required",
        "safety/interlocks.py",
        "    return tuple(dict.fromkeys((*needed, *contract.safety.forces)))",
        "    return tuple(contract.safety.forces)",
        by="commanded or contract or evaluator or force_limited or has_only or sensor_of",
        tests=SITUATION,
    ),
    outside(
        "the sensor of a force is not required",
        "safety/interlocks.py",
        "(*needed, *contract.safety.forces)",
        "(*needed,)",
        by="commanded or contract or evaluator or force_limited or has_only or sensor_of",
        tests=SITUATION,
    ),
    outside(
        "readings do not age while the agent computes",
        "safety/interlocks.py",
        "(now_ns - sample.stamp_ns) / NS_PER_S + latency_s",
        "(now_ns - sample.stamp_ns) / NS_PER_S",
        by="readings_age",
        tests=SITUATION,
    ),
    outside(
        "an unknown joint is at zero",
        "safety/interlocks.py",
        "self._joints.positions_or_nan(snapshot)",
        "self._joints.measured(snapshot)[0]",
        by="position",
        tests=SITUATION,
    ),
    outside(
        "actions do not age",
        "envs/external_inputs.py",
        "elapsed_ns = (now_ns - since_ns[0], now_ns - since_ns[1])",
        "elapsed_ns = (now_ns - since_ns[0], 0)",
        by="up_to_its_maximum_age",
        tests=STEPPER,
    ),
    outside(
        "the age of an action survives a reset",
        "envs/stepper.py",
        "        self._episode.returned_ns = self._ledger.leave_step()\n        return observation, info",
        "        self._ledger.leave_step()\n        return observation, info",
        by="after_a_reset",
        tests=STEPPER,
    ),
    outside(
        "the stepper reads no safety input",
        "envs/external_inputs.py",
        "since_returned_ns=elapsed_ns[1], estops=self._guard.estops()",
        "since_returned_ns=elapsed_ns[1], estops={}",
        by="a_person or are_unknown or asserted or episode_names or neither_steps or stop_brakes or world_without",
        tests=STEPPER,
    ),
    outside(
        "the gate is not reset",
        "envs/reset_procedure.py",
        "        self.gate.reset()\n",
        "",
        by="survive_a_reset",
        tests=STEPPER,
    ),
    outside(
        "the end reason names the latch",
        "envs/transition_builder.py",
        'key=lambda found: (found.severity, found.gate != "latch")',
        "key=lambda found: found.severity",
        by="names_the_safety_input",
        tests=STEPPER,
    ),
    outside(
        "a plug-in may guarantee the workspace",
        "contract/validation.py",
        'allow(name != "workspace", f',
        "allow(True, f",
        by="workspace",
        tests=RULES,
    ),
)


def copy_of_the_package(folder: Path) -> Path:
    """Copy the package and its tests, so that the tests import the mutant."""
    for part in ("embodied_env", "config", "test"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return folder


def run(folder: Path, tests: tuple[str, ...], by: str) -> tuple[bool, str]:
    """Run tests in `folder` up to the first failure; return whether all passed, and what failed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        *tests,
        "-x",
        "-q",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-m",
        "not long",
    ]
    command += ["-c", os.devnull, "--rootdir", str(folder), "--import-mode=importlib", "-W", "ignore"]
    command += ["-o", f"pythonpath={' '.join(SUPPORT)}", "--tb=line", *(["-k", by] if by else [])]
    path = os.pathsep.join(map(str, (folder, *(folder / part for part in SUPPORT))))
    environment = {**os.environ, "PYTHONPATH": path, "EMBODIED_ENV_SHRINK": "0"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    failed = re.findall(r"^(?:FAILED|ERROR) \S*?::(\S+)", done.stdout, flags=re.MULTILINE)
    if done.returncode == 5:  # pytest: no test was selected
        return True, f"no test is named like {by!r}"
    if done.returncode not in (0, 1):
        return False, failed[0] if failed else (done.stdout + done.stderr)[-300:]
    return done.returncode == 0, failed[0] if failed else ""


def judge(mutant: Mutant) -> tuple[Mutant, str, str, float]:
    """Return the mutant, its result, the test that killed it, and the seconds it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant_") as temporary:
        folder = copy_of_the_package(Path(temporary))
        target = folder / "embodied_env/safety" / mutant.file
        texts = {file: file.read_text() for file in (target.rglob("*.py") if target.is_dir() else [target])}
        count = sum(text.count(mutant.old) for text in texts.values())
        if count != 1:
            return mutant, "DOES NOT FIT", f"{count} places", 0.0
        for file, text in texts.items():
            file.write_text(text.replace(mutant.old, mutant.new))
        passed, killer = run(folder, (mutant.tests,), mutant.by)
        fate = "killed"
        if passed:
            fate = "killed by another"
            passed, killer = run(folder, ROOM, "")
        return mutant, "SURVIVED" if passed else fate, killer, time.monotonic() - began


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    with tempfile.TemporaryDirectory(prefix="unharmed_") as temporary:
        passed, failed = run(copy_of_the_package(Path(temporary)), ROOM, "")
    if not passed:
        print(f"the tests fail without a mutant: {failed}")
        return 1
    bad = 0
    print(f"{'mutant':58} {'expected':28} {'fate':18} {'killed by':100} s")
    with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
        for mutant, fate, killer, seconds in pool.map(judge, chosen):
            bad += fate.isupper()
            print(
                f"{mutant.file + ': ' + mutant.name:58} {mutant.by:28} {fate:18} {killer:100} {seconds:.0f}", flush=True
            )
    print(f"{len(chosen)} mutants, {bad} survived or do not fit")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
