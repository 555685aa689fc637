"""Compare runs of one contract, and order their differences by importance."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np

from embodied_env.contract import Contract
from embodied_env.core.excluded_episodes import describe_exclusions
from embodied_env.core.terminal import NO_PROGRESS, Progress
from embodied_env.extensions.comparison.comparability import Comparability, check_ignored, comparability
from embodied_env.extensions.comparison.comparison_findings import describe_findings
from embodied_env.extensions.comparison.effect_sizes import CHANCE, FeatureDifference, find_differences
from embodied_env.extensions.comparison.run_features import MISSED_DEADLINES, MOST_STREAMS, FeatureName, RunFeatures
from embodied_env.extensions.report.html_pages import describe_value, plural
from embodied_env.record import Run, read_run
from embodied_env.record.episode_pairing import Outcome, Pairing, compare_outcomes, pair_episodes
from embodied_env.record.json_values import to_json_types
from embodied_env.record.manifest import name_of_policy, world_of

SCHEMA = "embodied_env/comparison/1"

_LISTS = ("outcomes", "excluded", "one_sided")
_IN_THE_WORLD = ("capture_age_s", "data_age_s", "actuation_s", "end_to_end_s")
_OF_THE_AGENT = ("inference", "policy_s")


@dataclass(frozen=True, kw_only=True)
class Excluded:
    """Stages that the pacing of the runs makes incomparable."""

    stages: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class OneSided:
    """Feature that only one run has."""

    name: FeatureName
    run: str  # name of this run


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the runs, its features, and the counts of its ``summary.json``, from the rows."""

    name: str  # "A", "B"
    run: Run
    features: RunFeatures
    summary: Mapping[str, Any]

    @property
    def is_lockstep(self) -> bool:
        """Whether its world waited for the agent."""
        return self.run.manifest.get("pacing") == "lockstep"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs of one contract."""

    a: Side  # the first run
    b: Side  # the other run
    terms: Comparability  # their conditions, with the differences that were ignored
    outcomes: tuple[Outcome, ...]  # both success rates
    pairing: Pairing  # episodes that have the same initial conditions
    differences: tuple[FeatureDifference, ...]  # in all compared features, the most important one first
    excluded: tuple[Excluded, ...]  # what the pacing makes incomparable
    one_sided: tuple[OneSided, ...]  # features that only one run has
    untracked: tuple[str, ...]  # commanded joints without a reading

    @property
    def findings(self) -> tuple[str, ...]:
        """The largest differences with their sizes, or the evidence that is missing, in sentences."""
        return describe_findings(self.differences, self.a.name, self.b.name)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The limits of the comparison, in sentences."""
        return (*self.terms.notes, *_warnings(self.a, self.b))


def comparisons_as_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return all comparisons with the same first run in JSON types, None for unknown values."""
    sides = [comparisons[0].a, *(comparison.b for comparison in comparisons)]
    found: dict[str, Any] = to_json_types(
        {
            "schema": SCHEMA,
            "refused": False,
            "sound": not any(side.run.problem for side in sides),
            "runs": list(map(_side_as_json, sides)),
            "comparisons": [_comparison_as_json(each, place) for place, each in enumerate(comparisons, start=1)],
        }
    )
    return found


def _side_as_json(side: Side) -> dict[str, Any]:
    manifest, features = side.run.manifest, side.features
    return {
        "path": side.run.path,
        "world": world_of(manifest),
        **{key: manifest.get(key) for key in ("backend", "pacing", "policy")},
        "fingerprint": manifest["contract"]["fingerprint"],
        "problem": side.run.problem,
        **{key: getattr(features, key) for key in ("steps", "resets", "left_out")},
        "summary": {key: n for key, n in side.summary.items() if key not in ("latency", "contract_fingerprint")},
    }


def _comparison_as_json(comparison: Comparison, place: int) -> dict[str, Any]:
    return {
        "a": 0,
        "b": place,
        "ignored": [vars(mismatch) for mismatch in comparison.terms.ignored],
        "pairing": comparison.pairing.as_json(),
        "differences": [difference.as_json() for difference in comparison.differences],
        **{key: getattr(comparison, key) for key in ("findings", "warnings", "untracked")},
        **{key: [dataclasses.asdict(each) for each in getattr(comparison, key)] for key in _LISTS},
    }


def compare_runs(a: str | Path, b: str | Path, *, ignore: Iterable[str] = ()) -> Comparison:
    """Compare two run directories, as `compare_with_first` does."""
    (comparison,) = compare_with_first([a, b], ignore=ignore)
    return comparison


def compare_with_first(
    paths: Sequence[str | Path], *, ignore: Iterable[str] = (), progress: Progress = NO_PROGRESS
) -> tuple[Comparison, ...]:
    """Compare two or more run directories with the first one.

    Each is read once, row by row. `ignore` has paths of the contract, of ``wrappers``, or ``capabilities.actuates``, at
    and below which the runs may differ. The comparisons share the probability of a false alarm, `CHANCE`, evenly.

    Raises:
        NotComparableError: when contracts or wrappers differ, or only one is a dry run.
        UsageError: for a path in `ignore` that no run has.
        RecordError: when one is no run directory, or it has a row or a manifest that is not valid.
        MissingDependencyError: when mcap is not installed.
    """
    first, *others = (read_run(path) for path in paths)
    ignore = tuple(ignore)
    check_ignored(ignore, (first, *others))
    terms = [comparability(first, other, ignore) for other in others]
    contracts = [terms[0].contracts[0], *(found.contracts[1] for found in terms)]
    sides = []
    for place, (run, contract) in enumerate(zip((first, *others), contracts, strict=True)):
        name = ascii_uppercase[place] if len(terms) < len(ascii_uppercase) else str(place + 1)
        progress.start(f"reading run {name}", None)
        sides.append(_read_side(name, run, contract, progress))
    progress.start("comparing", None)
    chance = CHANCE / len(others)
    return tuple(_compare(sides[0], side, found, chance) for side, found in zip(sides[1:], terms, strict=True))


def _read_side(name: str, run: Run, contract: Contract | None, progress: Progress) -> Side:
    features = RunFeatures(contract, is_lockstep=run.manifest.get("pacing") == "lockstep")
    for row in run.rows():
        features.add(row)
        progress.advance()
    features.close(run.array)
    return Side(name=name, run=run, features=features, summary=features.outcomes.as_json(""))


def _compare(a: Side, b: Side, terms: Comparability, chance: float) -> Comparison:
    of_a, of_b = a.features, b.features
    pairing = pair_episodes(of_a.episodes, of_b.episodes)
    excluded = {
        name.group
        for name in (*of_a.names(), *of_b.names())
        if name.kind == "latency" and not _is_comparable(name, a, b)
    }
    names = [
        name
        for name in dict.fromkeys((*of_a.names(), *of_b.names()))
        if name.kind != "latency" or name.group not in excluded
    ]
    contract = next((found for found in terms.contracts if found is not None), None)
    differences = find_differences(names, of_a, of_b, contract, pairing, chance=chance)
    compared = {found.name for found in differences}
    return Comparison(
        a=a,
        b=b,
        terms=terms,
        outcomes=compare_outcomes(a.summary, b.summary, pairing),
        pairing=pairing,
        differences=tuple(differences),
        excluded=(Excluded(stages=tuple(sorted(excluded)), reason=_why_excluded(a, b)),) if excluded else (),
        one_sided=tuple(
            OneSided(name=name, run=a.name if np.isfinite(of_a.values(name)).any() else b.name)
            for name in names
            if name not in compared and not name.is_event
        ),
        untracked=tuple(dict.fromkeys((*of_a.untracked, *of_b.untracked))),
    )


def _is_comparable(name: FeatureName, a: Side, b: Side) -> bool:
    """Return whether a stage means the same in both runs, as the world waits in lockstep."""
    if not (a.is_lockstep or b.is_lockstep) or name.group in _IN_THE_WORLD:
        return True
    if all(name.group in side.features.injected for side in (a, b) if side.is_lockstep):
        return True
    is_of_the_agent = name != MISSED_DEADLINES and name.group.startswith(_OF_THE_AGENT)
    return is_of_the_agent and a.is_lockstep == b.is_lockstep


def _why_excluded(a: Side, b: Side) -> str:
    if a.is_lockstep and b.is_lockstep:
        return "both worlds wait for the agent (lockstep), so these are costs of the computer"
    waiting, other = (a, b) if a.is_lockstep else (b, a)
    return f"the world of {waiting.name} waits for the agent (lockstep), that of {other.name} does not (realtime)"


def _warnings(a: Side, b: Side) -> Iterator[str]:
    if a.run.path.resolve() == b.run.path.resolve():
        yield f"{a.name} and {b.name} are the same run."
    policies = [side.run.manifest.get("policy") for side in (a, b)]
    if policies[0] != policies[1] and a.run.manifest.get("backend") != b.run.manifest.get("backend"):
        names = list(dict.fromkeys(describe_value(name_of_policy(policy)) for policy in policies))
        found = f"{names[0]} and {names[1]}" if len(names) > 1 else f"{names[0]} of different content or library"
        yield f"The policies differ: {found}. That may cause any of the differences."
    for side in (a, b):
        if not side.summary["episodes"]:
            steps = side.features.steps
            found = f"{plural(steps, 'step')}, and no episode that ended" if steps else "no step"
            yield f"Run {side.name} has {found}, so it is no evidence of success."
        yield from (f"Run {side.name}: episodes {counts}." for counts in describe_exclusions(side.summary))
        if left_out := side.features.left_out:
            yield f"Run {side.name} has more than {MOST_STREAMS} names: {left_out:,} values are left out."
        if untracked := side.features.untracked:
            yield f"Run {side.name} has no reading of {', '.join(untracked)}: neither tracking error nor response."
