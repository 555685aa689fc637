"""Comparison of two runs of one contract: outcomes, paired episodes, and a ranking of their differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_env.analysis.comparison.comparability import Comparability, comparability
from embodied_env.analysis.comparison.episode_pairing import Pairing, pair_episodes
from embodied_env.analysis.comparison.features import FeatureName, RunFeatures
from embodied_env.analysis.comparison.outcomes import Outcome, compare_outcomes
from embodied_env.analysis.comparison.streams import Numbers, Share
from embodied_env.analysis.progress import NO_PROGRESS, Progress
from embodied_env.analysis.report.outcomes import SUCCESS_RATES
from embodied_env.analysis.statistics import ks_distance, ks_noise, share_noise
from embodied_env.record import Run, read_run
from embodied_env.record.json_values import to_json_types

CHANCE = 0.05
"""Probability that equal runs show any difference reported as more than chance."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Difference of two runs in one feature."""

    name: FeatureName  # of the feature
    distance: float  # Kolmogorov-Smirnov distance of the distributions, or difference of the shares; 0 to 1
    noise: float  # distance that equal runs rarely exceed by chance
    a: Numbers | Share  # distribution or share of run A
    b: Numbers | Share  # the same of run B

    @property
    def is_more_than_chance(self) -> bool:
        """Whether equal runs would rarely differ by as much."""
        return self.distance > self.noise

    @property
    def weight(self) -> tuple[bool, float, float]:
        """Sort key: more than chance, then the distance, then how far it exceeds the noise."""
        return self.is_more_than_chance, self.distance, self.distance / self.noise

    def as_json(self) -> dict[str, Any]:
        """Return the gap in JSON types."""
        values = {"distance": self.distance, "noise": self.noise, "more_than_chance": self.is_more_than_chance}
        return {**dataclasses.asdict(self.name), **values, "a": vars(self.a), "b": vars(self.b)}


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Largest gap of a group, and the number of other gaps in the group that are more than chance."""

    gap: Gap
    others: int


@dataclass(frozen=True, kw_only=True)
class OneSided:
    """Feature that only one run has, "A" or "B", and how many numbers of it."""

    name: FeatureName
    run: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the runs, its features, and the counts of its ``summary.json``, from the rows."""

    run: Run
    features: RunFeatures
    summary: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the side in JSON types."""
        manifest = self.run.manifest
        return {
            "path": self.run.path,
            "backend": manifest.get("backend"),
            "policy": manifest.get("policy"),
            "fingerprint": manifest["contract"]["fingerprint"],
            "problem": self.run.problem,
            "steps": self.features.steps,
            "resets": self.features.resets,
            "left_out": self.features.left_out,
            "unreadable": 0,  # a row that does not fit its schema is an error
            "summary": {k: v for k, v in self.summary.items() if k not in ("latency", "contract_fingerprint")},
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs of one contract."""

    a: Side  # the first run
    b: Side  # the second run
    terms: Comparability  # their conditions, with the differences that were ignored
    outcomes: tuple[Outcome, ...]  # both success rates
    pairing: Pairing  # episodes that began in the same situation
    gaps: tuple[Gap, ...]  # all compared features
    ranking: tuple[Ranked, ...]  # the largest gap of each group, in descending order; those that may be chance last
    one_sided: tuple[OneSided, ...]  # features that only one run has
    untracked: tuple[str, ...]  # commanded joints without a reading

    @property
    def sound(self) -> bool:
        """Whether both runs are clean."""
        return not (self.a.run.problem or self.b.run.problem)

    @property
    def groups(self) -> int:
        """Number of groups of features that were compared."""
        return len({(gap.name.kind, gap.name.group) for gap in self.gaps})

    def of(self, kind: str) -> list[Gap]:
        """Return the gaps of one kind, in the order of the rows."""
        return [gap for gap in self.gaps if gap.name.kind == kind]

    def as_json(self) -> dict[str, Any]:
        """Return everything in JSON types, with the number of pairs only; unknown values are None."""
        pairing = {**vars(self.pairing), "pairs": len(self.pairing.pairs)}
        found: dict[str, Any] = to_json_types(
            {
                "refused": False,
                "sound": self.sound,
                "a": self.a.as_json(),
                "b": self.b.as_json(),
                "ignored": [vars(mismatch) for mismatch in self.terms.ignored],
                "ignored_without_effect": self.terms.idle,
                "notes": self.terms.notes,
                "outcomes": [dataclasses.asdict(outcome) for outcome in self.outcomes],
                "pairing": pairing,
                "ranking": [{**ranked.gap.as_json(), "others": ranked.others} for ranked in self.ranking],
                "gaps": [gap.as_json() for gap in self.gaps],
                "one_sided": [dataclasses.asdict(one_sided) for one_sided in self.one_sided],
                "untracked": self.untracked,
            }
        )
        return found


def compare_runs(
    a: str | Path, b: str | Path, *, ignore: Iterable[str] = (), progress: Progress = NO_PROGRESS
) -> Comparison:
    """Compare two run directories, e.g. of a simulator and of a robot; each is read row by row.

    `ignore` has paths of the contract, of ``wrappers``, or ``capabilities.actuates``, at and below which the runs may
    differ.

    Raises:
        NotComparableError: when contracts or wrappers differ, or only one is a dry run.
        RecordError: when one is no run directory, or it has a row or a manifest that is not valid.
        MissingDependencyError: when mcap is not installed.
    """
    runs = read_run(a), read_run(b)
    terms = comparability(*runs, ignore)
    sides = []
    for name, run, contract in zip("AB", runs, terms.contracts, strict=True):
        progress.start(f"reading run {name}", None)
        features = RunFeatures(contract)
        for row in run.rows():
            features.add(row)
            progress.advance()
        features.read_arrays(run.array)
        sides.append(Side(run=run, features=features, summary=features.outcomes.summary()))
    progress.start("comparing", None)
    side_a, side_b = sides
    of_a, of_b = side_a.features, side_b.features
    pairing = pair_episodes(of_a.episodes, of_b.episodes)
    gaps = _gaps(of_a, of_b, side_a.summary, side_b.summary)
    return Comparison(
        a=side_a,
        b=side_b,
        terms=terms,
        outcomes=compare_outcomes(side_a.summary, side_b.summary, pairing),
        pairing=pairing,
        gaps=tuple(gaps),
        ranking=_rank(gaps),
        one_sided=tuple(_one_sided(of_a, of_b)),
        untracked=tuple(dict.fromkeys((*of_a.untracked, *of_b.untracked))),
    )


def _rank(gaps: Iterable[Gap]) -> tuple[Ranked, ...]:
    groups: dict[tuple[str, str], list[Gap]] = {}
    for gap in gaps:
        groups.setdefault((gap.name.kind, gap.name.group), []).append(gap)
    ranked = []
    for group in groups.values():
        largest = max(group, key=lambda gap: gap.weight)
        others = sum(gap.is_more_than_chance for gap in group) - largest.is_more_than_chance
        if largest.distance > 0.0:
            ranked.append(Ranked(gap=largest, others=others))
    return tuple(sorted(ranked, key=lambda found: found.gap.weight, reverse=True))


def _gaps(of_a: RunFeatures, of_b: RunFeatures, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Gap]:
    """Return all gaps. They share the probability of a false alarm (Bonferroni), except the success rates."""
    streams = [
        (name, stream, of_b.streams[name])
        for name, stream in of_a.streams.items()
        if stream.count and name in of_b.streams and of_b.streams[name].count
    ]
    shares: list[tuple[FeatureName, Share, Share]] = []
    if a["episodes"] and b["episodes"]:
        for reason in dict.fromkeys((*a["end_reasons"], *b["end_reasons"])):
            share_a, share_b = (_share(of["end_reasons"].get(reason, 0), of["episodes"]) for of in (a, b))
            shares.append((FeatureName(kind="outcome", group="ended by", component=reason), share_a, share_b))
    if of_a.steps and of_b.steps:
        shares += [(name, of_a.share(name), of_b.share(name)) for name in {**of_a.events, **of_b.events}]
    chance = CHANCE / max(1, len(streams) + len(shares))
    gaps = []
    for _, how, trials, _ in SUCCESS_RATES:
        if a[trials] and b[trials]:
            share_a, share_b = (_share(of["successes"], of[trials]) for of in (a, b))
            name = FeatureName(kind="outcome", group="success", component=how)
            gaps.append(_share_gap(name, share_a, share_b, CHANCE))
    for name, stream_a, stream_b in streams:
        numbers_a, numbers_b = stream_a.numbers(), stream_b.numbers()
        values_a, values_b = stream_a.values(), stream_b.values()
        counts = min(numbers_a.effective_count, len(values_a)), min(numbers_b.effective_count, len(values_b))
        noise = ks_noise(*counts, chance=chance)
        gaps.append(Gap(name=name, distance=ks_distance(values_a, values_b), noise=noise, a=numbers_a, b=numbers_b))
    return gaps + [_share_gap(*each, chance) for each in shares]


def _share_gap(name: FeatureName, a: Share, b: Share, chance: float) -> Gap:
    noise = share_noise((a.share, a.effective_total), (b.share, b.effective_total), chance=chance)
    return Gap(name=name, distance=abs(a.share - b.share), noise=noise, a=a, b=b)


def _share(count: int, total: int) -> Share:
    return Share(count=count, total=total, effective_total=float(total))


def _one_sided(a: RunFeatures, b: RunFeatures) -> Iterator[OneSided]:
    for run, here, there in (("A", a, b), ("B", b, a)):
        for name, stream in here.streams.items():
            if stream.count and not (name in there.streams and there.streams[name].count):
                yield OneSided(name=name, run=run, count=stream.count)
