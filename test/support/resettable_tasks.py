"""Tasks that judge the reset snapshot and keep state for one episode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scripted_tasks import NoParameters, Running

from embodied_env.contract import Contract
from embodied_env.core.types import Snapshot, TaskResult, Verdict, field_values
from embodied_env.record.json_values import to_json_types


class Solved(Running):
    """It is satisfied at each reset, and so is each step."""

    verdict = Verdict.succeeded()

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Verdict | None:
        return self.verdict


class Undecided(Solved):
    """Does not judge the reset snapshot."""

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Verdict | None:
        return None


class Broken(Solved):
    """It returns something else than a verdict."""

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Any:
        return True


class SolvedOnce(Running):
    """Every second reset snapshot satisfies it, by the reset option `load`; each first step is a success."""

    verdict = Verdict.succeeded()

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Verdict | None:
        return Verdict(success=bool(options["load"] > 1.0))


class Bins(Running):
    """Every second bin is the right one: it reads the observed reset option `bin`, drawn or given."""

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Verdict | None:
        assert snapshot.reset is not None
        return Verdict(success=bool(snapshot.reset.sampled["bin"][0] > 0.2))


class Telling(Running):
    """Its verdict contains all of its arguments."""

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Verdict | None:
        samples = {name: field_values(sample) for name, sample in sorted(snapshot.samples.items())}
        arguments = [options, snapshot.now_ns, samples, snapshot.clock, snapshot.injected, field_values(snapshot.reset)]
        return Verdict.failed(json.dumps(to_json_types(arguments), sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class DwellParameters:
    """Sensors with a position, in one frame; success: nearer than `radius_m` in `steps` steps, one after the other."""

    tip: str
    goal: str
    radius_m: float
    steps: int


class Dwell:
    """The reward is the way from where the episode began, seen from the goal, plus what was asked of the reset."""

    version = 1
    terms = ("way", "asked", "inside")
    Parameters = DwellParameters

    def __init__(self, contract: Contract, parameters: DwellParameters) -> None:
        self._p = parameters

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Verdict | None:
        self._start, self._inside = self._error(snapshot), 0
        self._asked = float(sum(np.sum(value) for value in options.values()))
        return Verdict.running()

    def judge(self, previous: Snapshot, current: Snapshot, applied: Any) -> TaskResult:
        error = self._error(current)
        self._inside = self._inside + 1 if np.linalg.norm(error) <= self._p.radius_m else 0
        terms = {
            "way": float(np.linalg.norm(error - self._start)),
            "asked": self._asked,
            "inside": float(self._inside),
        }
        verdict = Verdict(success=self._inside >= self._p.steps)
        return TaskResult(reward=terms["way"] + terms["asked"], verdict=verdict, terms=terms)

    def _error(self, snapshot: Snapshot) -> Any:
        return snapshot.samples[self._p.goal].values["position"] - snapshot.samples[self._p.tip].values["position"]


__all__ = ["Broken", "Dwell", "NoParameters", "Solved", "SolvedOnce", "Telling", "Undecided"]
