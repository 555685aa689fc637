"""Rules that remember: they take the rows of a run in order and keep a bounded memory of what was before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.message_types import JOINT_SENSOR
from embodied_env.core.clock import NS_PER_S
from embodied_env.core.types import DRY_RUN
from embodied_env.record.arrays import is_reference
from embodied_env.record.audit.sensor_rules import ns_of
from embodied_env.record.audit.sequence_rules import PAIRS, Limits, is_reset
from embodied_env.record.audit.violation import Violation, make_violation
from embodied_env.record.rows import RESET, TRANSITION, Row

BLOCK = 50
"""Steps of which the least late one is compared: what the machine does to one of them is no drift."""

STILL = 100
"""Steps in which a camera shows the very same picture, while its stamps and the robot move, that are told of."""

_MOVED = 0.1  # rad or m of a joint, between two of these steps


class EpisodeOrderRule:
    """Takes rows in order: resets, steps and episodes follow each other, and nothing lies behind an end.

    Rows whose info has no ``episode_index`` and ``step_index`` are not judged.
    """

    def __init__(self, *, resets: bool) -> None:
        """Begin with no row. `resets`: there are rows of resets; None is missed before the first otherwise."""
        self._resets = resets
        self.forget()
        self._begun = False

    def forget(self) -> None:
        """The next row is not right after the last: nothing is known of what was before."""
        self._before: tuple[int, int] | None = None  # episode and step of the row before; None: nothing is known
        self._begun, self._ended = True, False

    def add(self, row: Row) -> Iterator[Violation]:
        """Take in one row, of a reset or of a transition."""
        place = _place(row)
        self._resets |= row.get("schema") == RESET
        if place is None:
            self._before, self._begun = None, True
            return
        yield from self._reset(row, *place) if row.get("schema") == RESET else self._step(*place)
        self._before, self._begun = place, True
        self._ended = row.get("schema") != RESET and (row.get("terminated") is True or row.get("truncated") is True)
        if isinstance(inner := row.get("inner"), dict):
            self._ended |= bool(inner.get("end_reasons"))

    def _reset(self, row: Row, episode: int, _: int) -> Iterator[Violation]:
        where = "info.episode_index"
        if row.get("seed") is not None and episode != 0:
            text = f"{where} is {episode}, but the reset was seeded; allowed: 0"
            yield make_violation("episode.index", where, episode, text)
        elif row.get("seed") is None and self._before is not None and episode <= self._before[0]:
            text = f"{where} is {episode}, but the episode before it is {self._before[0]}; allowed: the next"
            yield make_violation("episode.index", where, episode, text)

    def _step(self, episode: int, step: int) -> Iterator[Violation]:
        where = "info.step_index"
        is_new = self._before is not None and (episode != self._before[0] or (self._ended and step == 1))
        if self._resets and (not self._begun or is_new):
            text = f"{where} is {step} of episode {episode}, but there is no reset before it"
            yield make_violation("episode.reset_missing", where, step, text)
        elif self._ended and not is_new:
            text = f"{where} is {step}, behind the end of the episode; allowed: a reset"
            yield make_violation("episode.after_end", where, step, text)
        elif self._before is not None and step != (expected := 1 if is_new else self._before[1] + 1):
            text = f"{where} is {step}; allowed: {expected}, the next of its episode"
            yield make_violation("episode.step", where, step, text)

    def warnings(self, row: Row) -> Iterator[Violation]:
        """Say what is odd of `row`, which is the next, but no proof of anything."""
        place, where = _place(row), "info.episode_index"
        if place is None or row.get("schema") != RESET or row.get("seed") is not None or self._before is None:
            return
        if place[0] > self._before[0] + 1:
            missing = place[0] - self._before[0] - 1
            text = f"{where} is {place[0]} after {self._before[0]}: {missing} resets failed, or were not recorded"
            yield make_violation("episode.gap", where, place[0], text)


def _place(row: Row) -> tuple[int, int] | None:
    """Return episode and step of a row; None where it does not say."""
    info = row.get("info")
    indices = [info.get(key) for key in ("episode_index", "step_index")] if isinstance(info, dict) else [None]
    return (indices[0], indices[1]) if all(type(index) is int for index in indices) else None  # type: ignore[return-value] # both


class SequenceRule:
    """Takes rows in order whose structure is sound, and holds each against the one right before it."""

    def __init__(self, contract: Contract | None) -> None:
        """Begin with no row."""
        self._contract = contract
        self._limits = None if contract is None else Limits(contract)
        self._before: Row | None = None
        self._is_dry = False  # nothing of what was sent reached the robot
        self._observed_ns: int | None = None  # of the newest step, whatever its episode
        self._start: Any = None  # the observation that the episode began with
        self._last: Any = None  # the newest observation

    def forget(self) -> None:
        """The next row is not right after the last."""
        self._before = self._start = self._last = None

    def add(self, row: Row) -> Iterator[Violation]:
        """Take in one row, of a reset or of a transition."""
        if is_reset(row):
            yield from self._kept(row)
            self._is_dry = DRY_RUN in ((row.get("inner") or {}).get("details") or {})
            self._start = row["observation"]
        else:
            yield from self._step(row)
        self._before, self._last = row, row["observation"]

    def _step(self, row: Row) -> Iterator[Violation]:
        before = self._before if self._before is not None and _follows(self._before, row) else None
        if before is not None:
            for rule in PAIRS:
                yield from rule(before, row, self._contract)
        if self._limits is not None:
            earlier = None if before is None or is_reset(before) else before
            yield from self._limits.check(earlier, row, is_dry=self._is_dry and "inner" in row)
        if "inner" not in row:
            return
        stamps = row["inner"]["stamps_ns"]
        is_first = before is None or is_reset(before)  # or the chain of stamps has told it
        if is_first and self._observed_ns is not None and stamps["previous_observed"] < self._observed_ns:
            where = "inner.stamps_ns.previous_observed"
            text = f"{where} is {stamps['previous_observed']}, before the last step, which ended at {self._observed_ns}"
            yield make_violation("clock.steady", where, stamps["previous_observed"], text)
        self._observed_ns = stamps["observed"]

    def _kept(self, row: Row) -> Iterator[Violation]:
        """A world that was reset by a seed, and had moved, does not begin where the last episode ended."""
        is_seeded = row["info"]["reset"]["seed_applied"] >= 0
        has_moved = self._start is not None and self._last not in (None, self._start)
        if is_seeded and has_moved and row["observation"] == self._last:
            text = "observation is that with which the last episode ended: the reset has changed nothing"
            yield make_violation("reset.kept", "observation", row["observation"], text)


def _follows(before: Row, row: Row) -> bool:
    episode, step = _place(before) or (-1, -1)
    return _place(row) == (episode, step + 1)


class PeriodDriftRule:
    """Takes rows in order: in a paced world, steps keep to the grid of the contract's period.

    The grid is the pacer's: it begins anew where a wait began more than a period too late. How late a step was read is
    taken as the least of 50, so what stands out is what adds up.
    """

    def __init__(self, period_ns: int) -> None:
        """Begin with no row."""
        self._period_ns = period_ns
        self._begin()

    def _begin(self) -> None:
        self._grid_ns: int | None = None
        self._least_ns: list[int] = []  # of the block that is not full
        self._first_ns: int | None = None  # the least of the first block
        self._is_told = False

    def forget(self) -> None:
        """The next row is not right after the last."""
        self._begin()

    def add(self, row: Row) -> Iterator[Violation]:
        """Take in one row, of a reset or of a transition."""
        if is_reset(row) or "inner" not in row:
            self._begin()
            return
        overrun_s = row["info"]["latency"].get("overrun_s")
        if overrun_s is None or self._is_told:
            return
        observed_ns, overrun_ns = row["inner"]["stamps_ns"]["observed"], ns_of(overrun_s)
        self._grid_ns = observed_ns if self._grid_ns is None else self._grid_ns + self._period_ns
        self._least_ns.append(observed_ns - self._grid_ns - overrun_ns)
        if overrun_ns > self._period_ns:
            self._grid_ns += overrun_ns
        if len(self._least_ns) == BLOCK:
            yield from self._judge(min(self._least_ns))
            self._least_ns.clear()

    def _judge(self, least_ns: int) -> Iterator[Violation]:
        if self._first_ns is None:
            self._first_ns = least_ns
        elif abs(drift_ns := least_ns - self._first_ns) > self._period_ns:
            self._is_told = True
            text = (
                f"inner.stamps_ns.observed has drifted by {drift_ns / NS_PER_S} s from the grid of the control period "
                f"{self._period_ns / NS_PER_S} s, beyond what overrun_s tells; allowed: one period"
            )
            yield make_violation("period.drift", "inner.stamps_ns.observed", drift_ns / NS_PER_S, text)


class FrozenCameraRule:
    """Takes rows in order: a picture that never changes while its stamps and the robot do is told of, as a warning."""

    def __init__(self, contract: Contract) -> None:
        """Find the cameras and the joints."""
        self._cameras = {f"{name}_{field}": name for name, spec in contract.sensors.items() for field in spec.fields}
        joints = [name for name, spec in contract.sensors.items() if spec.type == JOINT_SENSOR]
        self._joints = [f"{name}_position" for name in joints if "position" in contract.sensors[name].fields]
        self._since: dict[str, tuple[str, int, int, list[float], float]] = {}
        self._told: set[str] = set()

    def forget(self) -> None:
        """Begin with no row."""
        self._since.clear()

    def add(self, row: Row) -> Iterator[Violation]:
        """Take in one row, of a reset or of a transition."""
        observation = row["observation"]
        if row.get("schema") != TRANSITION or not isinstance(observation, dict):
            self.forget()
            return
        places = [x for key in self._joints for x in (observation.get(key) or []) if isinstance(x, (int, float))]
        for key, name in self._cameras.items():
            value, sensor = observation.get(key), row["info"]["sensors"].get(name)
            if key not in self._told and sensor is not None and isinstance(value, dict) and is_reference(value):
                yield from self._look(key, value["sha256"], sensor["stamp_ns"], places)

    def _look(self, key: str, picture: str, stamp_ns: int, places: list[float]) -> Iterator[Violation]:
        known, seen_ns, count, origin, moved = self._since.get(key, ("", stamp_ns, 0, places, 0.0))
        if picture != known:
            self._since[key] = (picture, stamp_ns, 0, places, 0.0)
            return
        count += stamp_ns != seen_ns
        moved = max([moved, *(abs(b - a) for a, b in zip(origin, places, strict=False))])
        self._since[key] = (picture, stamp_ns, count, origin, moved)
        if count >= STILL and moved > _MOVED:
            self._told.add(key)
            text = f"observation.{key} is the very same picture in {count} readings, while a joint moved by {moved}"
            yield make_violation("frame.frozen", f"observation.{key}", picture, text)
