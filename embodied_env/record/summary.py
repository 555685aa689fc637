"""The summary of a run, computed from its rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from embodied_env.core.confidence_intervals import share_interval
from embodied_env.core.excluded_episodes import SOLVED_AT_FIRST_STEP, SOLVED_AT_RESET, counted_apart, solved_at_reset
from embodied_env.core.latency_statistics import LatencyStatistics
from embodied_env.core.types import ResetReport, field_values
from embodied_env.record.json_values import to_json_types
from embodied_env.record.row_types import RESET, TRANSITION
from embodied_env.record.rows import by_sensor, has_missed_action, held_readings, stopped_joints

_INFO_KEYS = (
    *("latency", "action_clipped", "annotations", "end_reason", "instruction"),
    *("is_success", "safety", "sensors", "step_index", "world"),
)

MOST_INSTRUCTIONS = 200  # prompts whose episodes are counted separately
_MOST_PROMPTS = 8  # of an episode, in its condition
_OMITTED = "…"  # between the first prompts and the last one
OUTSIDE = "outer_wrapper"  # the end reason of an episode that a wrapper ended while the environment continued


@dataclass(kw_only=True, slots=True)
class EpisodeOutcome:
    """One episode, from its reset to its end."""

    number: int  # from 1
    seed: int | None  # given to the reset, if any
    solved: bool | None  # at its reset; None: not judged
    steps: int = 0
    reward: float = 0.0
    ended: str = ""  # "terminated", "truncated", or "" while it runs
    reason: str = ""
    success: bool = False
    joints: tuple[str, ...] = ()  # joints of the finding that ended it
    apart: str = ""  # why it counts in no success rate (`counted_apart`), or ""
    prompts: tuple[str, ...] = ()  # of its steps, in order, each change once

    @property
    def instruction(self) -> str:
        """The prompts in order, a condition of their own, as "first → next", or "" without one."""
        return " → ".join(self.prompts)

    @property
    def kind(self) -> str:
        """The end, "success", "failure", "time" (limit), "stopped", "apart", or "cut" (no end).

        "stopped" is otherwise truncated, and "apart" is in no success rate.
        """
        if not self.ended or self.apart:
            return "apart" if self.apart else "cut"
        if self.ended == "truncated":
            return "time" if self.reason == "time_limit" else "stopped"
        return "success" if self.success else "failure"

    @property
    def end(self) -> str:
        """The end in words."""
        if self.kind == "apart":
            return self.apart.replace("_", " ")
        of_joints = f" ({', '.join(self.joints)})" if self.joints else ""
        return {"cut": "cut off", "success": "success"}.get(self.kind, f"{self.ended}, {self.reason}{of_joints}")


class Summary:
    """Computes ``summary.json`` from rows in order, by the outermost wrapper's ends."""

    def __init__(self) -> None:
        self.episode: EpisodeOutcome | None = None  # the newest one
        self.resets = 0
        self.latency = LatencyStatistics()  # of all steps
        self._returns: list[float] = []
        self._counts: Counter[str] = Counter()
        self._end_reasons: Counter[str] = Counter()
        self._stopped: dict[str, Counter[str]] = {}  # joints by end reason
        self._unmoved: Counter[str] = Counter()
        self._held: Counter[tuple[str, str]] = Counter()
        self._instructions: dict[str, Counter[str]] = {}  # counts of episodes by prompt
        self._world: str | None = None  # world of the newest step
        self._missed_deadlines = 0  # since the reset

    def add_reset(self, report: ResetReport | None) -> None:
        """Add a reset with the environment's own `report`, or None if a wrapper made it."""
        verdict = None if report is None or report.verdict is None else to_json_types(field_values(report.verdict))
        self.add({"schema": RESET, "inner": {"verdict": verdict}})

    def add_step(self, outer: Mapping[str, Any]) -> None:
        """Add a step, with `outer` as in `embodied_env.record.rows.transition_row`."""
        given = outer["info"] if isinstance(outer["info"], Mapping) else {}
        info = {key: value if type(value := given.get(key)) is dict else to_json_types(value) for key in _INFO_KEYS}
        ends = {key: to_json_types(outer[key]) for key in ("reward", "terminated", "truncated")}
        self.add({"schema": TRANSITION, **ends, "info": info})

    def add(self, row: Mapping[str, Any], *, with_latency: bool = True) -> EpisodeOutcome | None:
        """Add a row, with its latencies unless the owner adds them, and return the ended episode."""
        if row["schema"] == RESET:
            self._counts["unfinished"] += self._is_unfinished
            self._add_missed_deadlines()
            self.resets += 1
            solved = solved_at_reset(row.get("inner"))  # None: a wrapper made the reset
            self.episode = EpisodeOutcome(number=self.resets, seed=row.get("seed"), solved=solved)
            return None
        info = row["info"]
        if with_latency:
            self.latency.add(info)
        self._counts["steps"] += 1
        self._world = info["world"] if isinstance(info.get("world"), str) else self._world
        for held in held_readings(info):
            self._held[held] += 1
        is_missed = has_missed_action(info)
        self._counts["missed_actions"] += is_missed
        self._counts["clipped"] += info.get("action_clipped") is True and not is_missed
        latency = info.get("latency")
        missed = latency.get("missed_deadlines") if isinstance(latency, dict) else None
        self._missed_deadlines = missed if isinstance(missed, int) else 0
        episode = self.episode
        if episode is None or episode.ended:  # a step after the end, which only an outer wrapper can make
            return None
        if (prompt := str(info.get("instruction") or "")) not in episode.prompts[-1:]:
            known = episode.prompts
            kept = known if len(known) < _MOST_PROMPTS else (*known[: _MOST_PROMPTS - 2], _OMITTED)
            episode.prompts = (*kept, prompt)
        episode.steps += 1
        episode.reward += row["reward"] if isinstance(row["reward"], (int, float)) else math.nan
        if not (row["terminated"] or row["truncated"]):
            return None
        self._end_episode(episode, row, info)
        return episode

    def _end_episode(self, episode: EpisodeOutcome, row: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        episode.ended = "terminated" if row["terminated"] else "truncated"  # both: a TimeLimit at the task's own end
        episode.reason = info.get("end_reason") or OUTSIDE
        episode.success = info.get("is_success") is True and episode.ended == "terminated"
        episode.apart = counted_apart(solved=episode.solved, success=episode.success, info=info, steps=episode.steps)
        self._add_instruction(episode)
        stopped, unmoved = stopped_joints(info)
        episode.joints = tuple(stopped)
        self._returns.append(episode.reward)
        self._end_reasons[episode.reason] += 1
        self._counts.update((episode.ended, episode.apart or f"rated_{episode.ended}"))
        self._counts["successes"] += episode.success and not episode.apart
        if stopped:
            self._stopped.setdefault(episode.reason, Counter()).update(stopped)
        self._unmoved.update(unmoved)
        self._add_missed_deadlines()

    def _add_instruction(self, episode: EpisodeOutcome) -> None:
        prompt, known = episode.instruction, self._instructions
        if prompt and (prompt in known or len(known) < MOST_INSTRUCTIONS):
            counts = known.setdefault(prompt, Counter(episodes=0, rated=0, successes=0))
            counts.update(episodes=1, rated=not episode.apart, successes=episode.success and not episode.apart)

    @property
    def _is_unfinished(self) -> bool:
        return self.episode is not None and self.episode.steps > 0 and not self.episode.ended

    def _add_missed_deadlines(self) -> None:
        self._counts["missed_deadlines"] += self._missed_deadlines
        self._missed_deadlines = 0

    def as_json(self, contract_fingerprint: str) -> dict[str, Any]:
        """Return the summary in JSON types, with None for a statistic of no episode or no step.

        The success rates are of the episodes in ``rated`` and ``rated_terminated``. Episodes that were solved at their
        reset, or at their first step if the task did not judge the reset, are counted separately. ``missed_actions``
        counts the steps in which neither the policy nor an action stage acted, which are not clipped ones, and
        ``held_readings`` by sensor and quality those with an earlier reading. ``stopped_joints`` counts the joints of
        an end reason, ``unmoved_joints`` those with a tracking error at the end that had not moved since the reset.
        """
        counts, returns = self._counts, np.array(self._returns)
        rated, rated_terminated = counts["rated_terminated"] + counts["rated_truncated"], counts["rated_terminated"]
        summary: dict[str, Any] = to_json_types(
            {
                "contract_fingerprint": contract_fingerprint,
                "world": self._world,
                "episodes": len(returns),
                "terminated": counts["terminated"],
                "truncated": counts["truncated"],
                "unfinished": counts["unfinished"] + self._is_unfinished,
                **{count: counts[count] for count in (SOLVED_AT_RESET, SOLVED_AT_FIRST_STEP)},
                "rated": rated,
                "rated_terminated": rated_terminated,
                "successes": counts["successes"],
                "success_rate": counts["successes"] / rated if rated else None,
                "success_rate_not_truncated": counts["successes"] / rated_terminated if rated_terminated else None,
                "instructions": {prompt: dict(found) for prompt, found in self._instructions.items()},
                "return": {
                    name: getattr(returns, name)() if len(returns) else None for name in ("mean", "min", "max", "std")
                },
                "steps": counts["steps"],
                "clipped_share": counts["clipped"] / counts["steps"] if counts["steps"] else None,
                "missed_actions": counts["missed_actions"],
                "held_readings": by_sensor(self._held),
                "missed_deadlines": counts["missed_deadlines"] + self._missed_deadlines,
                "end_reasons": dict(self._end_reasons),
                "stopped_joints": {reason: dict(joints) for reason, joints in self._stopped.items()},
                "unmoved_joints": dict(self._unmoved),
                "latency": {stage: asdict(found) for stage, found in self.latency.statistics().items()},
            }
        )
        return summary


MOST_REASONS = 200  # end reasons, and kinds of resets, that are counted separately; others are counted as `OTHER`
OTHER = "(others)"
MOST_EPISODES = 20_000  # episodes that are listed; of further ones only the counts are known

SUCCESS_RATES = (  # key in a summary, what it is of, key of its trials, noun of a trial
    ("success_rate", "truncation counts as failure", "rated", "episode"),
    ("success_rate_not_truncated", "of episodes that ended by themselves", "rated_terminated", "terminated episode"),
)

_LONGEST_REASON = 200


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A success rate with its Wilson interval at 95 %, all NaN without trials."""

    successes: int
    trials: int
    share: float
    low: float
    high: float

    @classmethod
    def of(cls, successes: int, trials: int) -> Rate:
        """Compute the rate of `successes` in `trials`."""
        share = successes / trials if trials else math.nan
        low, high = share_interval(share, trials) if trials else (math.nan, math.nan)
        return cls(successes=successes, trials=trials, share=share, low=low, high=high)


class Outcomes(Summary):
    """Counts the episodes of a run from its rows in bounded memory, without latencies."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[EpisodeOutcome] = []
        self.reset_kinds: Counter[str] = Counter()
        self._reasons: set[str] = set()

    def add(self, row: Mapping[str, Any], *, with_latency: bool = False) -> EpisodeOutcome | None:
        """Add a row and return the episode that it ends."""
        reason = str(row["info"].get("end_reason") or "")[:_LONGEST_REASON]
        if reason and reason not in self._reasons:
            reason = reason if len(self._reasons) < MOST_REASONS else OTHER
            self._reasons.add(reason)
        ended = super().add({**row, "info": {**row["info"], "end_reason": reason}}, with_latency=with_latency)
        if row["schema"] == RESET:
            self._note_reset(row)
        return ended

    def _note_reset(self, row: Mapping[str, Any]) -> None:
        if row["inner"] is not None:
            made = row["info"]["reset"]
            labels = {"by": made["routine"], "confirmed by": made["confirmed_by"], "ignoring": made["options_ignored"]}
            details = (f"{label} {value}" for label, value in labels.items() if value)
            kind = ", ".join([made["level"], *details])[:_LONGEST_REASON]
            self.reset_kinds[kind if kind in self.reset_kinds or len(self.reset_kinds) < MOST_REASONS else OTHER] += 1
        if self.episode is not None and len(self.episodes) < MOST_EPISODES:
            self.episodes.append(self.episode)

    def rates(self) -> list[tuple[str, str, Rate]]:
        """Return label, noun of a trial, and value of both success rates."""
        found = self.as_json("")
        return [(how, noun, Rate.of(found["successes"], found[trials])) for _, how, trials, noun in SUCCESS_RATES]
