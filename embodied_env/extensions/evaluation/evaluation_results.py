"""Results of each policy, and their comparison over the same initial conditions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_env.contract import Contract
from embodied_env.errors import RecordError
from embodied_env.record.json_values import to_json_types
from embodied_env.record.manifest import world_of
from embodied_env.record.row_types import RESET, TRANSITION, RecordedRow
from embodied_env.record.run import read_run

if TYPE_CHECKING:
    from embodied_env.record.episode_pairing import Episodes, Outcome, Pairing, ReturnDifference


@dataclass(frozen=True, kw_only=True, repr=False)
class PolicyResult:
    """The episodes of one policy."""

    policy: str  # its address or name, with the position among equal ones, as in "hold (2)"
    path: Path  # run directory, or with an engine the folder of its runs
    summary: Mapping[str, Any]  # summary of the episodes (``summary.json``)
    problem: str  # reason why it is not sound evidence, or ""
    where: Mapping[int, Path]  # run directory of each finished episode, from 0
    parts: tuple[Path, ...] = ()  # run directories of an engine
    losses: tuple[str, ...] = ()  # description of each episode that was lost and repeated

    def __repr__(self) -> str:
        found = self.summary
        outcome = f"{found.get('successes', 0)} of {found.get('rated', 0)} episodes successful, {self.path}"
        return f"<PolicyResult {self.policy}: {outcome}{f', problem: {self.problem}' * bool(self.problem)}>"


@dataclass(frozen=True, kw_only=True)
class PolicyComparison:
    """Comparison of a policy B of an evaluation with a policy A."""

    a: str  # name of the first policy
    b: str  # name of the other one
    outcomes: tuple[Outcome, ...]  # both success rates
    returns: ReturnDifference | None  # None without pairs
    pairing: Pairing  # episodes that have the same initial conditions

    def as_json(self) -> dict[str, Any]:
        """Return everything in JSON types, with the number of pairs only."""
        found: dict[str, Any] = to_json_types({**dataclasses.asdict(self), "pairing": self.pairing.as_json()})
        return found


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation:
    """The evaluation of policies on one backend, with `results` in their order."""

    contract: Contract
    backend: str
    results: tuple[PolicyResult, ...]

    def __repr__(self) -> str:
        head = f"<Evaluation of {self.contract.name} on {self.backend}"
        return "\n  ".join([head, *map(repr, self.results)]) + ">"

    @property
    def world(self) -> str:
        """World that the commands moved, as a word of `name_world`, or "unknown" without a run."""
        paths = [path for result in self.results for path in result.where.values()]
        return world_of(read_run(paths[0]).manifest) if paths else "unknown"

    @property
    def problem(self) -> str:
        """Why it is not sound evidence, with the path of each run concerned, or ""."""
        return "; ".join(f"{result.path}: {result.problem}" for result in self.results if result.problem)

    def compare(self) -> tuple[PolicyComparison, ...]:
        """Compare every later policy with the first one by their recorded episodes.

        Raises MissingDependencyError without scipy, and RecordError when a run cannot be read.
        """
        from embodied_env.record.episode_pairing import compare_outcomes, compare_returns, pair_episodes

        (first, baseline), *others = ((result, _episodes(result.where)) for result in self.results)
        found = []
        for result, episodes in others:
            pairing = pair_episodes(baseline, episodes)
            comparison = PolicyComparison(
                a=first.policy,
                b=result.policy,
                outcomes=compare_outcomes(first.summary, result.summary, pairing),
                returns=compare_returns(pairing),
                pairing=pairing,
            )
            found.append(comparison)
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """Return the results in JSON types, without the comparison."""
        runs: list[dict[str, Any]] = []
        for result in self.results:
            runs.append({"policy": result.policy, "path": str(result.path), "summary": dict(result.summary)})
            if result.parts:
                runs[-1] |= {"parts": [str(path) for path in result.parts], "losses": list(result.losses)}
        head = {"contract": self.contract.name, "fingerprint": self.contract.fingerprint}
        return {**head, "backend": self.backend, "world": self.world, "runs": runs}


def rows_of_episodes(where: Mapping[int, Path]) -> Iterator[RecordedRow]:
    """Yield the rows of these episodes in order, or raise RecordError for incomplete ones."""
    readers: dict[Path, Iterator[tuple[int, Iterator[RecordedRow]]]] = {}
    for episode, path in sorted(where.items()):
        rows = _find_episode(readers[path], episode) if path in readers else None
        if rows is None:  # it may be before the reader
            readers[path] = groupby(read_run(path).rows(), key=lambda row: row["info"]["episode_index"])
            rows = _find_episode(readers[path], episode)
        if rows is None:
            raise RecordError(f"{path}: episode {episode} is incomplete in the log")
        yield from rows


def _find_episode(reader: Iterator[tuple[int, Iterator[RecordedRow]]], episode: int) -> list[RecordedRow] | None:
    """Return the rows of `episode`, or None, with one episode at a time in memory."""
    for number, group in reader:
        if number == episode:
            rows = list(group)
            if rows[-1]["schema"] == TRANSITION and (rows[-1]["terminated"] or rows[-1]["truncated"]):
                return rows
    return None


def _episodes(where: Mapping[int, Path]) -> Episodes:
    from embodied_env.record.episode_pairing import Episodes
    from embodied_env.record.summary import Outcomes

    episodes, outcomes = Episodes(), Outcomes()
    for row in rows_of_episodes(where):
        if row["schema"] == RESET:
            episodes.begin(row)
        if (ended := outcomes.add(row)) is not None:
            episodes.end(ended)
    return episodes
