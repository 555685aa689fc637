"""Rules that take the rows of a run in order and keep a bounded part of the earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.required_sensors import required_sensors
from embodied_env.core.code_types import Quality, Severity, end_kind
from embodied_env.extensions.audit.latency_rules import to_ns
from embodied_env.extensions.audit.row_pair_rules import PAIR_RULES, AnyRow, LimitRule
from embodied_env.messages.message_types import JOINT_SENSOR
from embodied_env.record.arrays import MOST_IN_A_ROW, is_reference
from embodied_env.record.row_schema import Violation, make_violation, wrong_value
from embodied_env.record.row_types import RESET, StepRow, TransitionRow
from embodied_env.record.rows import is_dry_run
from embodied_env.safety.action_parsing import NO_ACTION
from embodied_env.safety.late_agent import LATE, have_aged, is_explained, were_valid
from embodied_env.timing.clock import NS_PER_S

BLOCK = 50  # steps of which the minimum lateness is compared, since a single late step is no drift
STILL = 100  # readings with the same image, while its stamps and the robot move, after which there is a warning
_MIN_MOTION = 0.1  # rad or m of a joint, between two of these steps


class EpisodeOrderRule:
    """Resets, steps and episodes follow each other in rows of any form that have indices."""

    def __init__(self, *, resets: bool) -> None:
        """Expect a reset before the first step, if `resets`."""
        self._resets = resets
        self.forget()
        self._has_started = False

    def forget(self) -> None:
        """Discard the previous row, which the next one does not directly follow."""
        self._before: tuple[int, int] | None = None  # episode and step of the previous row
        self._has_started, self._has_ended = True, False

    def add(self, row: Mapping[str, Any]) -> Iterator[Violation]:
        """Check the next row."""
        place = _place(row)
        self._resets |= _is_reset(row)
        if place is None:
            self._before, self._has_started = None, True
            return
        yield from self._check_reset(row, place[0]) if _is_reset(row) else self._check_step(*place)
        self._before, self._has_started = place, True
        self._has_ended = not _is_reset(row) and (row.get("terminated") is True or row.get("truncated") is True)
        if isinstance(inner := row.get("inner"), dict):
            self._has_ended |= bool(inner.get("end_reasons"))

    def _check_reset(self, row: Mapping[str, Any], episode: int) -> Iterator[Violation]:
        where = "info.episode_index"
        if row.get("seed") is not None and episode != 0:
            yield wrong_value("episode.index", where, episode, "0 after a seeded reset")
        elif row.get("seed") is None and self._before is not None and episode <= self._before[0]:
            yield wrong_value("episode.index", where, episode, f"more than {self._before[0]}, the previous episode")

    def _check_step(self, episode: int, step: int) -> Iterator[Violation]:
        where = "info.step_index"
        is_new = self._before is not None and (episode != self._before[0] or (self._has_ended and step == 1))
        if self._resets and (not self._has_started or is_new):
            text = f"no reset before {where} {step} of episode {episode}"
            yield make_violation("episode.reset_missing", where, step, text)
        elif self._has_ended and not is_new:
            text = f"{where} is {step}, after the end of the episode (expected a reset)"
            yield make_violation("episode.after_end", where, step, text)
        elif self._before is not None and step != (expected := 1 if is_new else self._before[1] + 1):
            yield wrong_value("episode.step", where, step, f"{expected}, the next step of the episode")

    def warnings(self, row: Mapping[str, Any]) -> Iterator[Violation]:
        """Warn of episodes missing before `row`, which is the next one to `add`."""
        place, where = _place(row), "info.episode_index"
        if place is None or not _is_reset(row) or row.get("seed") is not None or self._before is None:
            return
        if (missing := place[0] - self._before[0] - 1) > 0:
            text = f"{where} is {place[0]} after {self._before[0]}: {missing} resets failed or were not recorded"
            yield make_violation("episode.gap", where, place[0], text)


def _is_reset(row: Mapping[str, Any]) -> bool:
    return row.get("schema") == RESET


def _place(row: Mapping[str, Any]) -> tuple[int, int] | None:
    info = row.get("info")
    episode, step = (info.get(key) if isinstance(info, dict) else None for key in ("episode_index", "step_index"))
    return (episode, step) if type(episode) is int and type(step) is int else None


class SequenceRule:
    """Each row that fits its schema is consistent with the one directly before it."""

    def __init__(self, contract: Contract | None) -> None:
        self._contract = contract
        self._limits = None if contract is None else LimitRule(contract)
        self._missed: int | None = None  # steps in a row without an action, None if unknown
        self._late: int | None = None  # steps in a row in which the agent's time made a reading too old, or None
        self._before: AnyRow | None = None
        self._is_dry = False  # no command reached the robot
        self._observed_ns: int | None = None  # that of the newest step of any episode
        self._start: Any = None  # the first observation of the episode
        self._last: Any = None  # the newest observation

    def forget(self) -> None:
        """Discard the previous row, which the next one does not directly follow."""
        self._before = self._start = self._last = self._missed = self._late = None

    def add(self, row: AnyRow) -> Iterator[Violation]:
        """Check the next row."""
        observation = row["observation"]
        if row["schema"] == RESET:
            is_seeded = row["info"]["reset"]["seed_applied"] >= 0
            has_moved = self._start is not None and self._last not in (None, self._start)
            if is_seeded and has_moved and observation == self._last:
                text = "observation equals the last one of the previous episode: the reset changed nothing"
                yield make_violation("reset.kept", "observation", observation, text)
            self._is_dry = is_dry_run(row)
            self._start, self._missed, self._late = observation, 0, 0
        else:
            yield from self._check_step(row)
        self._before, self._last = row, observation

    def _check_step(self, row: StepRow) -> Iterator[Violation]:
        before, info = self._before, row["info"]
        place = info["episode_index"], info["step_index"] - 1
        if before is not None and (before["info"]["episode_index"], before["info"]["step_index"]) != place:
            before = None
        if before is not None:
            for rule in PAIR_RULES:
                yield from rule(before, row, self._contract)
        previous = None if before is None or before["schema"] == RESET else before
        if self._limits is not None:
            yield from self._limits.check(previous, row, is_dry=self._is_dry and row["inner"] is not None)
        if row["inner"] is None:
            self._missed = None
            return
        yield from self._check_missed(row, before)
        stamps, where = row["inner"]["stamps_ns"], "inner.stamps_ns.previous_observed"
        earlier_ns, stamp_ns = self._observed_ns, stamps["previous_observed"]
        if previous is None and earlier_ns is not None and stamp_ns < earlier_ns:  # else ``stamps.chain`` applies
            yield wrong_value("clock.steady", where, stamp_ns, f">= {earlier_ns}, the end of the previous step")
        self._observed_ns = stamps["observed"]

    def _check_missed(self, row: TransitionRow, before: AnyRow | None) -> Iterator[Violation]:
        """Check that the episode ends exactly when too many actions were late or missing."""
        inner = row["inner"]
        missed = [found["detail"] for found in inner["findings"] if found["code"] == NO_ACTION]
        if missed and inner["action"] != {"no_action": missed[0]}:
            expected = f"no action: {missed[0]!r}, as in inner.findings"
            yield wrong_value("ending.policy", "inner.action", inner["action"], expected)
        self._missed = 0 if not missed else None if self._missed is None else self._missed + 1
        if self._contract is None or self._missed is None:
            return
        most = self._contract.policy.max_missed
        lost = [f"policy_lost:{missed[0]}"] if self._missed >= most else []
        if (is_late := self._is_late(row, before, self._contract)) is None:
            return
        lost = [*dict.fromkeys([LATE] * is_late + lost)]
        if lost != [reason for reason in inner["end_reasons"] if end_kind(reason) == "policy_lost"]:
            expected = f"{lost or 'no policy_lost'} after {self._missed} steps without an action, of {most}"
            yield wrong_value("ending.policy", "inner.end_reasons", inner["end_reasons"], expected)

    def _is_late(self, row: TransitionRow, before: AnyRow | None, contract: Contract) -> bool | None:
        """Return whether the agent's time alone explains each stop, or None if unknown."""
        inner, seen = row["inner"], None if before is None else before["inner"]
        given, samples = inner["external_inputs"], {} if seen is None else seen["sensors"]
        names = {*required_sensors(contract), *given.get("required", ())}
        if not names <= samples.keys() & contract.sensors.keys():
            self._late = None
            return None
        action_age_s, now_ns = given["action_age_s"], 0 if seen is None else seen["now_ns"]
        readings = [
            (Quality[each["quality"]], (now_ns - each["stamp_ns"]) / NS_PER_S, contract.sensors[name].max_age_s)
            for name, each in ((name, samples[name]) for name in names)
        ]
        is_counted = any(found["gate"] == "observation" for found in inner["findings"])
        if not (is_counted and have_aged(readings, action_age_s)):
            self._late = 0
        elif self._late is not None:
            self._late += 1
        of_latch = given["latched"] or given["latched_after"]
        latched = "latch.stop" if of_latch is None else of_latch["code"]
        stops = [found["code"] for found in inner["findings"] if Severity[found["severity"]] >= Severity.STOP]
        if "obs.stale" in stops and self._late is None:
            return None
        are_valid = were_valid(quality for quality, *_ in readings)
        codes = [latched if code == "latch.stop" else code for code in stops]
        late = self._late or 0
        return bool(stops) and all(
            is_explained(contract, code, late_in_a_row=late, are_valid=are_valid, action_age_s=action_age_s)
            for code in codes
        )


class PeriodDriftRule:
    """Steps of a paced world keep to the grid of the control period.

    The grid is the pacer's: it starts over where a wait began more than a period late. The lateness compared is the
    minimum of 50 steps, so only lateness that accumulates is found.
    """

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self.forget()

    def forget(self) -> None:
        """Start a new grid for a row that does not directly follow the previous one."""
        self._grid_ns: int | None = None
        self._lateness_ns: list[int] = []  # those of the current block
        self._first_ns: int | None = None  # the minimum of the first block
        self._is_reported = False

    def add(self, row: AnyRow) -> Iterator[Violation]:
        """Check the next row."""
        if row["schema"] == RESET or row["inner"] is None:
            self.forget()
            return
        overrun_s = row["info"]["latency"].get("overrun_s")
        if overrun_s is None or self._is_reported:
            return
        observed_ns, overrun_ns = row["inner"]["stamps_ns"]["observed"], to_ns(overrun_s)
        self._grid_ns = observed_ns if self._grid_ns is None else self._grid_ns + self._period_ns
        self._lateness_ns.append(observed_ns - self._grid_ns - overrun_ns)
        if overrun_ns > self._period_ns:
            self._grid_ns += overrun_ns
        if len(self._lateness_ns) < BLOCK:
            return
        least_ns = min(self._lateness_ns)
        self._lateness_ns.clear()
        if self._first_ns is None:
            self._first_ns = least_ns
        elif abs(drift_ns := least_ns - self._first_ns) > self._period_ns:
            self._is_reported = True
            text = (
                f"inner.stamps_ns.observed drifted by {drift_ns / NS_PER_S} s from the grid of the control period "
                f"after subtracting overrun_s (expected at most one period, {self._period_ns / NS_PER_S} s)"
            )
            yield make_violation("period.drift", "inner.stamps_ns.observed", drift_ns / NS_PER_S, text)


class FrozenCameraRule:
    """Warns of an image that never changes while its stamps and the robot do."""

    def __init__(self, contract: Contract) -> None:
        sensors = contract.sensors
        self._cameras = {f"{name}_{field}": name for name, spec in sensors.items() for field in spec.fields}
        joints = [name for name, spec in sensors.items() if spec.type == JOINT_SENSOR and "position" in spec.fields]
        self._joints = [f"{name}_position" for name in joints]
        self._since: dict[str, tuple[str, int, int, list[float], float]] = {}
        self._reported: set[str] = set()

    def forget(self) -> None:
        """Discard the images of the previous row, which the next one does not directly follow."""
        self._since.clear()

    def add(self, row: AnyRow) -> Iterator[Violation]:
        """Check the next row."""
        observation = row["observation"]
        if row["schema"] == RESET or row["inner"] is None or not isinstance(observation, dict):
            self.forget()
            return
        positions = [x for key in self._joints for x in (observation.get(key) or []) if isinstance(x, (int, float))]
        for key, name in self._cameras.items():
            value, sensor = observation.get(key), row["info"]["sensors"].get(name)
            if key not in self._reported and sensor is not None and is_reference(value):
                yield from self._check_image(key, value["sha256"], sensor["stamp_ns"], positions)

    def _check_image(self, key: str, image: str, stamp_ns: int, positions: list[float]) -> Iterator[Violation]:
        known, seen_ns, count, origin, moved = self._since.get(key, ("", stamp_ns, 0, positions, 0.0))
        if image != known:
            self._since[key] = (image, stamp_ns, 0, positions, 0.0)
            return
        count += stamp_ns != seen_ns
        moved = max([moved, *(abs(b - a) for a, b in zip(origin, positions, strict=False))])
        self._since[key] = (image, stamp_ns, count, origin, moved)
        if count >= STILL and moved > _MIN_MOTION:
            self._reported.add(key)
            text = f"observation.{key} is the same image in {count} readings, although a joint moved by {moved}"
            yield make_violation("frame.frozen", f"observation.{key}", image, text)


STEPS = 20  # consecutive steps of equality, in which the evaluator's component varied, that make a leak
Leaf = tuple[str, tuple[int, ...]]  # path and shape of a numeric field


class LeakDetector:
    """Counts, for each pair of components, the consecutive steps in which they were equal.

    The evaluator's component is compared as it is and rounded to float32. A constant is never a leak. Fields of more
    than 4096 numbers, and arrays stored outside the row (images), are not searched.
    Memory is bounded by (components of the agent) x (components of the evaluator).
    """

    def __init__(self) -> None:
        self._leaks: dict[tuple[str, str], int] = {}
        self._leaves: tuple[list[Leaf], list[Leaf]] = ([], [])  # of the agent, of the evaluator
        self._before = np.empty(0)  # the evaluator's components of the previous row
        self._steps = np.zeros((0, 0), dtype=np.int32)  # of equality until now, per pair
        self._most = self._steps  # the maximum of `_steps`

    def add(self, row: Mapping[str, Any]) -> None:
        """Compare the components of the next row."""
        inner = row.get("inner")
        truth_leaves, truth = _flatten(inner.get("evaluator") if isinstance(inner, dict) else None, "")
        agent_leaves, agent = _flatten(row.get("observation"), "observation")
        if (agent_leaves, truth_leaves) != self._leaves:  # start over for fields of other names or shapes
            self._collect_leaks()
            self._leaves = (agent_leaves, truth_leaves)
            self._before = np.full(truth.size, np.nan)
            self._steps, self._most = (np.zeros((agent.size, truth.size), dtype=np.int32) for _ in range(2))
        if row.get("schema") != RESET:  # the jump at a reset is no variation, and short episodes add up
            with np.errstate(over="ignore"):
                rounded = truth.astype(np.float32).astype(np.float64)
            is_equal = (agent[:, None] == truth) | (agent[:, None] == rounded)  # NaN equals nothing
            self._steps += truth != self._before
            self._steps *= is_equal
            np.maximum(self._most, self._steps, out=self._most)
        self._before = truth

    def violations(self) -> list[Violation]:
        """Return each leak so far, with its largest number of steps."""
        self._collect_leaks()
        text = "{} equals evaluator {} over {} varying steps: the agent sees an evaluator-only reading"
        return [
            make_violation("evaluator.leak", agent, truth, text.format(agent, truth, steps))
            for (agent, truth), steps in self._leaks.items()
        ]

    def _collect_leaks(self) -> None:
        pairs = np.argwhere(self._most >= STEPS)
        if len(pairs):
            agent, truth = (
                [f"{path}{''.join(f'[{i}]' for i in index)}" for path, shape in side for index in np.ndindex(*shape)]
                for side in self._leaves
            )
            for i, j in pairs:
                pair = (agent[i], truth[j])
                self._leaks[pair] = max(self._leaks.get(pair, 0), int(self._most[i, j]))


def _flatten(value: Any, path: str) -> tuple[list[Leaf], NDArray[np.float64]]:  # noqa: ANN401 - JSON types
    """Return the numeric fields in `value`, and their components in one array, NaN for null."""
    found = list(_fields(value, path))
    parts = [array.ravel() for _, array in found]
    return [(where, array.shape) for where, array in found], np.concatenate([np.empty(0), *parts])


def _fields(value: Any, path: str) -> Iterator[tuple[str, NDArray[np.float64]]]:  # noqa: ANN401 - JSON types
    if isinstance(value, dict):
        if not is_reference(value):
            for key, item in value.items():
                yield from _fields(item, f"{path}.{key}" if path else key)
        return
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # not numeric, ragged, or an integer larger than any float
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from _fields(item, f"{path}[{index}]")
        return
    if array.size <= MOST_IN_A_ROW:
        yield path, array
