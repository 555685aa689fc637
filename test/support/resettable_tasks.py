"""Tasks that evaluate the reset snapshot and keep state for one episode."""

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
    """Succeeds at each reset and at each step."""

    verdict = Verdict.succeeded()

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Verdict | None:
        return self.verdict


class Undecided(Solved):
    """Returns no verdict for the reset snapshot."""

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Verdict | None:
        return None


class Broken(Solved):
    """Returns something other than a verdict."""

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Any:
        return True


class SolvedOnce(Running):
    """Succeeds at every second reset, by the reset option `load`, and at each first step."""

    verdict = Verdict.succeeded()

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Verdict | None:
        return Verdict(success=bool(options["load"] > 1.0))


class Bins(Running):
    """Succeed in every second bin, by the observed reset option `bin`, which is drawn or given."""

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Verdict | None:
        assert snapshot.reset is not None
        return Verdict(success=bool(snapshot.reset.sampled["bin"][0] > 0.2))


class ArgumentVerdicts(Running):
    """Returns a verdict that contains all of its arguments."""

    def reset(self, snapshot: Snapshot, options: Mapping[str, Any]) -> Verdict | None:
        assert snapshot.reset is not None
        samples = {name: field_values(sample) for name, sample in sorted(snapshot.samples.items())}
        arguments = [options, snapshot.now_ns, samples, snapshot.clock, snapshot.injected, field_values(snapshot.reset)]
        return Verdict.failed(json.dumps(to_json_types(arguments), sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class DwellParameters:
    """Sensors with positions in one frame, for `steps` steps in a row nearer than `radius_m`."""

    tip: str
    goal: str
    radius_m: float
    steps: int


class Dwell:
    """The reward is the path from the start of the episode, relative to the goal, plus the value of the reset option."""

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
        terms = {"way": float(np.linalg.norm(error - self._start)), "asked": self._asked, "inside": float(self._inside)}
        verdict = Verdict(success=self._inside >= self._p.steps)
        return TaskResult(reward=terms["way"] + terms["asked"], verdict=verdict, terms=terms)

    def _error(self, snapshot: Snapshot) -> Any:
        return snapshot.samples[self._p.goal].values["position"] - snapshot.samples[self._p.tip].values["position"]


__all__ = ["ArgumentVerdicts", "Broken", "Dwell", "NoParameters", "Solved", "SolvedOnce", "Undecided"]
