"""Do the tests of the safety room notice when it is broken? One textual mutant at a time, in a copy of the package.

    python .ci/mutants.py [part of a mutant's name ...]

For each mutant the properties that should kill it run first, then all tests of the room. Prints a table; the exit
status is 1 when a mutant survives, or when a mutant no longer fits the source.
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
LIMITS, GATE = "test/property/test_limits_properties.py", "test/property/test_gate_properties.py"
MACHINE, UNIT_GATE = "test/property/test_gate_machine.py", "test/unit/test_gate.py"
VELOCITY = "test/property/test_velocity_properties.py"
ARBITER, WATCHDOG = "test/unit/test_arbiter.py", "test/unit/test_watchdog.py"
ROOM = (LIMITS, GATE, VELOCITY, MACHINE, UNIT_GATE, ARBITER, WATCHDOG)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One way to break the room: in `file`, `old` becomes `new`; the tests named like `by`, in `tests`, should fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    by: str


def gate(name: str, old: str, new: str, by: str, tests: str = GATE) -> Mutant:
    return Mutant(name=name, file="gate.py", old=old, new=new, tests=tests, by=by)


def form(name: str, old: str, new: str, by: str, tests: str = GATE) -> Mutant:
    return Mutant(name=name, file="form.py", old=old, new=new, tests=tests, by=by)


def limits(name: str, old: str, new: str, by: str, tests: str = LIMITS) -> Mutant:
    return Mutant(name=name, file="limits.py", old=old, new=new, tests=tests, by=by)


def arbiter(name: str, old: str, new: str, by: str, tests: str) -> Mutant:
    return Mutant(name=name, file="arbiter.py", old=old, new=new, tests=tests, by=by)


def watchdog(name: str, old: str, new: str, by: str, tests: str = MACHINE) -> Mutant:
    return Mutant(name=name, file="watchdog.py", old=old, new=new, tests=tests, by=by)


MACHINE_OF_THE_ROBOT = "TestFreeRunningRobot or TestEpisodes"

MUTANTS = (
    # what is commanded by velocity
    gate(
        "velocities are limited as positions",
        "limit_velocity(x, v, t, bounds, dt_s) if is_velocity else limit_joint",
        "limit_joint(x, v, t, bounds, dt_s) if is_velocity else limit_joint",
        "bit_for_bit or keeps_speed",
        VELOCITY,
    ),
    gate(
        "positions are published instead of velocities",
        "return np.where(self.layout.is_velocity, velocities, positions)",
        "return positions",
        "keeps_speed or bit_for_bit",
        VELOCITY,
    ),
    gate(
        "a measured position that lags ends the episode",
        "severity = Severity.HOLD if measured.issuperset(finding.joints) else Severity.STOP",
        "severity = Severity.STOP",
        "does_not_end",
        VELOCITY,
    ),
    limits(
        "a velocity is not limited",
        "    chosen = min(max(desired, lower), upper)\n    if abs(desired - chosen) <= 4.0",
        "    chosen = desired\n    if abs(desired - chosen) <= 4.0",
        "nearest or keeps_speed",
        VELOCITY,
    ),
    limits(
        "the measured position of a velocity does not count",
        "    lower, upper = velocity_interval(position, velocity, bounds, dt_s)\n    if lower > upper:\n"
        "        if is_hopeless(position, velocity, bounds, dt_s):\n"
        "            braked = brake_velocity(velocity, bounds, dt_s)\n            reached",
        "    lower, upper = velocity_interval(0.0, velocity, bounds, dt_s)\n    if lower > upper:\n"
        "        if is_hopeless(position, velocity, bounds, dt_s):\n"
        "            braked = brake_velocity(velocity, bounds, dt_s)\n            reached",
        "end_of_its_range",
        VELOCITY,
    ),
    arbiter(
        "a commanded velocity is forgotten after a pause",
        "acting = np.where(self._gate.layout.is_velocity, reference.velocities, 0.0)",
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
        "an old measurement counts as a new one",
        "slack=slack if slack.any() else None",
        "slack=None",
        "old_measurement",
        VELOCITY,
    ),
    gate(
        "what may have been driven since a measurement does not count",
        "replace(bounds, low=bounds.low + slack, high=bounds.high - slack)",
        "replace(bounds, low=bounds.low - 0.0 * slack, high=bounds.high)",
        "sensor_is_gone",
        VELOCITY,
    ),
    gate(
        "a position is guaranteed wherever it is",
        '"position": sound and self._is_inside(reference, published),',
        '"position": sound,',
        "guaranteed_only",
        VELOCITY,
    ),
    # the chain: each gate deleted
    gate(
        "no latch gate",
        "        if self._latched is not None:\n            return self._approve",
        "        if False:\n            return self._approve",
        "p13",
        GATE,
    ),
    form("NaN let through", "if not np.isfinite(vector).all():", "if False:", "not_finite or malformed"),
    form("shape let through", "if array.shape != (size,):", "if array.size != size:", "malformed"),
    form("booleans let through", 'not in "fiu"', 'not in "fiub"', "malformed"),
    form(
        "foreign errors let through",
        "    except Exception as error:  # noqa: BLE001 - a foreign object",
        "    except ValueError as error:  # noqa: BLE001 - a foreign object",
        "p1_ or p2 or malformed",
    ),
    gate(
        "no space box",
        "boxed = np.minimum(np.maximum(requested, layout.scale.low), layout.scale.high)",
        "boxed = requested.copy()",
        "p2",
    ),
    gate(
        "space box after the mapping",
        "target = self._target(boxed, reference)",
        "target = self._target(requested, reference)",
        "p12",
    ),
    gate(
        "displacements from nowhere",
        "reference.positions + mapped, reference.positions",
        "mapped, reference.positions",
        "p12 or p23",
    ),
    gate(
        "no joint limits",
        "else limit_joint(x, v, t, bounds, dt_s)\n",
        "else JointStep(position=t, velocity=(t - x) / dt_s, code='', bound=t)\n",
        "p12",
    ),
    gate(
        "no joint limits and no post-condition",
        "        steps = self._steps(target, reference, dt_s)\n        positions",
        "        velocities = (target - reference.positions) / dt_s\n"
        "        return self._approved(reference, dt_s, findings, requested, boxed, target, velocities)\n"
        "        positions",
        "p3",
    ),
    gate(
        "no post-condition",
        "        if problem := self._violation(reference, positions, velocities, dt_s):",
        "        if problem := '':",
        "bug_is_caught",
        UNIT_GATE,
    ),
    gate(
        "no post-condition on braking",
        "if problem and not self._is_hopeless(reference, dt_s):",
        "if False:",
        "even_braking_fails",
        UNIT_GATE,
    ),
    gate("dt <= 0 moves", "if not dt_s > 0.0:", "if dt_s != dt_s:", "without_time"),
    gate(
        "braking leaves the range",
        "positions = self._kept_inside(reference.positions + velocities * dt_s, reference)",
        "positions = reference.positions + velocities * dt_s",
        "p10 or p2 or raises_nothing",
        UNIT_GATE,
    ),
    # latch
    gate(
        "repeated malformed actions do not latch",
        "            self.latch(findings[-1])\n",
        "",
        MACHINE_OF_THE_ROBOT,
        MACHINE,
    ),
    gate("malformed actions are not counted", "self._malformed_in_a_row += 1", "pass", MACHINE_OF_THE_ROBOT, MACHINE),
    gate(
        "a good action does not begin the count anew",
        "        self._malformed_in_a_row = 0\n        if not dt_s",
        "        if not dt_s",
        MACHINE_OF_THE_ROBOT,
        MACHINE,
    ),
    gate(
        "an infeasible state does not latch",
        "            self.latch(refused)\n",
        "            pass\n",
        "p14 or infeasible or save",
        UNIT_GATE,
    ),
    gate(
        "a reset clears an ESTOP",
        "self._latched.severity < Severity.ESTOP",
        "self._latched.severity <= Severity.ESTOP",
        MACHINE_OF_THE_ROBOT,
        MACHINE,
    ),
    gate(
        "clearing an ESTOP clears everything",
        "self._latched = replace(self._latched, severity=Severity.STOP)",
        "self._latched = None",
        MACHINE_OF_THE_ROBOT,
        MACHINE,
    ),
    gate(
        "a STOP weakens an ESTOP",
        "if self._latched is None or finding.severity > self._latched.severity:",
        "if True:",
        MACHINE_OF_THE_ROBOT,
        MACHINE,
    ),
    # the report
    gate(
        "the disposition is the mildest finding",
        "disposition = max((finding",
        "disposition = min((finding",
        "p13 or p12",
    ),
    gate(
        "interventions are not told",
        "intervened=disposition >= (Severity.LIMIT",
        "intervened=disposition > (Severity.LIMIT",
        "p12",
    ),
    gate(
        "applied is what was requested",
        "applied = np.where(kept, boxed,",
        "applied = np.where(kept | ~kept, boxed,",
        "p12 or p6",
    ),
    gate("commands can be written", "array.flags.writeable = False", "pass", "cannot_be_written"),
    form(
        "the agent's array is kept",
        "return array.astype(np.float64)",
        "return array.astype(np.float64, copy=False)",
        "array",
    ),
    gate(
        "monitoring clips",
        "return self._monitor(requested, reference, dt_s, findings)",
        "return self._monitor(boxed, reference, dt_s, findings)",
        "monitoring",
    ),
    gate(
        "monitoring passes what is not finite",
        "if not (np.abs(velocities) < _ABSURD).all():",
        "if False:",
        "monitoring",
    ),
    # limits
    limits(
        "no braking term",
        "        _braking_velocity(bounds.high - position, bounds.deceleration, dt_s),\n    )\n    lower",
        "    )\n    lower",
        "p4",
    ),
    limits(
        "no braking term below",
        "        _braking_velocity(position - bounds.low, bounds.deceleration, dt_s),\n    )\n    return",
        "    )\n    return",
        "p4",
    ),
    limits(
        "braking distance by A",
        "_braking_velocity(bounds.high - position, bounds.deceleration, dt_s),\n    )\n    lower",
        "_braking_velocity(bounds.high - position, bounds.acceleration, dt_s),\n    )\n    lower",
        "p4",
    ),
    limits(
        "braking distance without the step itself",
        "denominator = step + math.sqrt(step * step",
        "denominator = math.sqrt(step * step",
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
    limits("no speed limit", "    upper = min(\n        bounds.velocity,", "    upper = min(\n        math.inf,", "p3"),
    limits("no acceleration limit", "        _faster(velocity, bounds, dt_s),", "        math.inf,", "p3"),
    limits(
        "slowing down by A",
        "return min(velocity + bounds.deceleration * dt_s, crossing)",
        "return min(velocity + bounds.acceleration * dt_s, crossing)",
        "p3 or p5 or p10",
    ),
    limits(
        "speeding up by D",
        "return velocity + bounds.acceleration * dt_s",
        "return velocity + bounds.deceleration * dt_s",
        "p3",
    ),
    limits(
        "across zero by the greater",
        "min(bounds.acceleration, bounds.deceleration) * dt_s)\n    return min(velocity",
        "max(bounds.acceleration, bounds.deceleration) * dt_s)\n    return min(velocity",
        "p3",
    ),
    limits(
        "no final clip",
        "reached = min(max(position + chosen * dt_s, low), high)",
        "reached = position + chosen * dt_s",
        "found",
    ),
    limits(
        "kept targets are computed anew",
        'return JointStep(position=target, velocity=chosen, code="", bound=target)',
        'return JointStep(position=position + chosen * dt_s, velocity=chosen, code="", bound=target)',
        "p7 or p2",
    ),
    limits(
        "no rounding is forgiven", "<= _rounding_of_step(position, reached, bounds, dt_s) and", "<= 0.0 and", "p6 or p7"
    ),
    limits(
        "any rounding is forgiven",
        "abs(desired - chosen) <= _rounding_of_step(position, reached, bounds, dt_s) and",
        "abs(desired - chosen) <= 1e-3 * abs(chosen) and",
        "p8 or p3 or p4",
    ),
    limits(
        "a joint outside its range is snapped",
        "high = max(bounds.high, position)  # a joint",
        "high = bounds.high  # a joint",
        "outside",
    ),
    limits(
        "rounding is hopeless", "> 2.0 * _rounding_of_step(position, position, bounds, dt_s)", "> 0.0", "storm or p5"
    ),
    limits(
        "nothing is hopeless",
        "> 2.0 * _rounding_of_step(position, position, bounds, dt_s)",
        "> math.inf",
        "save",
        UNIT_GATE,
    ),
    limits(
        "the report names another limit", '"vel.limit": bounds.velocity,', '"acc.limit": bounds.velocity,', "p12", GATE
    ),
    # the post-condition
    limits(
        "the post-condition knows no deceleration",
        "before - after > bounds.deceleration * dt_s + allowed",
        "before - after > math.inf",
        "p12",
    ),
    limits(
        "the post-condition knows no stopping distance",
        "if not is_braking and not low - near",
        "if False and not low - near",
        "p12",
    ),
    limits(
        "the post-condition knows no finiteness",
        "if not (math.isfinite(next_position) and math.isfinite(next_velocity)):",
        "if False:",
        "p1_",
    ),
    limits(
        "the post-condition does not relate position and velocity",
        "if abs((next_position - position) / dt_s - next_velocity) > allowed:",
        "if False:",
        "p12",
    ),
    # arbiter
    arbiter("dt not capped", "dt_s = min(elapsed_s, self._period_s)", "dt_s = elapsed_s", "p23", GATE),
    arbiter(
        "the wall clock counts in lockstep",
        "            if self._free_running:\n                elapsed_s",
        "            if True:\n                elapsed_s",
        "p23",
        GATE,
    ),
    arbiter(
        "a stalled robot keeps its velocity",
        "if elapsed_s > _STALL_PERIODS * self._period_s:",
        "if False:",
        "long_pause",
        ARBITER,
    ),
    arbiter(
        "the reference is not updated",
        "self._reference.positions, command.values),\n                velocities",
        "self._reference.positions, self._reference.positions),\n                velocities",
        MACHINE_OF_THE_ROBOT,
        MACHINE,
    ),
    arbiter(
        "the reference has no velocity",
        "velocities=command.report.velocity_si,",
        "velocities=np.zeros_like(command.values),",
        "reference",
        ARBITER,
    ),
    arbiter(
        "numbers are given twice",
        "                seq=command.seq,\n                epoch=command.epoch",
        "                seq=self._reference.seq,\n                epoch=command.epoch",
        MACHINE_OF_THE_ROBOT,
        MACHINE,
    ),
    arbiter(
        "numbers of refused commands are given again",
        "self._reference = replace(self._reference, seq=command.seq)",
        "pass",
        "refused",
        ARBITER,
    ),
    arbiter(
        "a resync begins the numbers anew",
        "                seq=self._reference.seq,\n                epoch=epoch",
        "                seq=0,\n                epoch=epoch",
        MACHINE_OF_THE_ROBOT,
        MACHINE,
    ),
    arbiter(
        "the epoch is not taken over",
        "                epoch=epoch,\n",
        "                epoch=0,\n",
        MACHINE_OF_THE_ROBOT,
        MACHINE,
    ),
    arbiter(
        "nobody takes turns",
        "self._lock = threading.RLock()",
        "self._lock = __import__('contextlib').nullcontext()",
        "threads",
        MACHINE,
    ),
    arbiter(
        "stopping brakes once",
        "while self._free_running and command.report.velocity_si.any():",
        "while False:",
        "p10",
        GATE,
    ),
    # watchdog
    watchdog("the watchdog never brakes", "            self._arbiter.brake(finding)\n", "", MACHINE_OF_THE_ROBOT),
    watchdog(
        "the watchdog brakes late", "if age_ns < self._hold_ns:", "if age_ns < 2 * self._hold_ns:", MACHINE_OF_THE_ROBOT
    ),
    watchdog(
        "the watchdog brakes once",
        "            self._arbiter.brake(finding)\n",
        "            if getattr(self, 'braked', None) != fed_ns:\n                self.braked = fed_ns\n"
        "                self._arbiter.brake(finding)\n",
        MACHINE_OF_THE_ROBOT,
    ),
    watchdog(
        "the watchdog never stops",
        "                self._gate.latch(finding)\n",
        "                pass\n",
        MACHINE_OF_THE_ROBOT,
    ),
    watchdog(
        "the watchdog decides before its turn",
        "        with self._arbiter.turn():  # a step",
        "        if True:  # a step",
        "its_turn",
        WATCHDOG,
    ),
    watchdog(
        "the watchdog dies of a refused command",
        "with contextlib.suppress(Exception):",
        "with contextlib.suppress(KeyError):",
        "outlives",
        WATCHDOG,
    ),
)


def copy_of_the_package(folder: Path) -> Path:
    """Copy what the tests need, so that the mutant is what they import."""
    for part in ("embodied_env", "config", "test/property", "test/unit"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return folder


def run(folder: Path, tests: tuple[str, ...], by: str) -> tuple[bool, str]:
    """Run tests in `folder` up to the first failure; return whether all passed, and what failed."""
    command = [sys.executable, "-m", "pytest", *tests, "-x", "-q", "--noconftest", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, "--rootdir", str(folder), "--import-mode=importlib", "-W", "ignore"]
    command += ["-o", "pythonpath=test/unit test/property", "--tb=line", *(["-k", by] if by else [])]
    path = os.pathsep.join(map(str, (folder, folder / "test/unit", folder / "test/property")))
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
    """Return the mutant, its fate, what killed it, and the seconds that this took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant_") as temporary:
        folder = copy_of_the_package(Path(temporary))
        file = folder / "embodied_env/safety" / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            return mutant, "DOES NOT FIT", f"{text.count(mutant.old)} places", 0.0
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
