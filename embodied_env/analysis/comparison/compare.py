"""Two runs of one contract side by side: what came of them, and where they lie furthest apart."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_env.analysis.comparison.comparability import Comparability, comparability
from embodied_env.analysis.comparison.episode_pairing import Ended, Pairing, paired
from embodied_env.analysis.comparison.features import FeatureName, RunFeatures
from embodied_env.analysis.comparison.streams import Numbers, Share, Stream
from embodied_env.analysis.progress import NoProgress, Progress
from embodied_env.analysis.report.row_access import get_mapping
from embodied_env.analysis.statistics import (
    PairedTest,
    difference_interval,
    ks_distance,
    ks_noise,
    mcnemar_exact,
    share_noise,
    wilson_interval,
)
from embodied_env.contract import Contract
from embodied_env.record import Run, read_run
from embodied_env.record.json_values import to_json_types

CHANCE = 0.05
"""How likely it may be that any difference at all is called more than chance where there is none."""

_OUTCOMES = (
    ("success_rate", "truncation counts as failure", "rated"),
    ("success_rate_not_truncated", "of the episodes that ended by themselves", "rated_terminated"),
)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A success rate with its interval (Wilson, 95 %). Of no trial the three are NaN."""

    successes: int
    trials: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One of both success rates, in both runs.

    `difference` is the interval of B less A for independent episodes (Newcombe, 95 %); `paired` the test over the
    episodes that began alike. None: there is no such evidence.
    """

    key: str
    how: str
    a: Rate
    b: Rate
    difference: tuple[float, float] | None
    paired: PairedTest | None


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How far the runs lie apart in one thing.

    Attributes:
        name: what it is.
        distance: of the two distributions (Kolmogorov-Smirnov), or the difference of the two shares; 0 to 1.
        noise: a distance that chance would hardly exceed, if there were no difference.
        a: what run A says: a distribution, or a share.
        b: the same of run B.
    """

    name: FeatureName
    distance: float
    noise: float
    a: Numbers | Share
    b: Numbers | Share

    @property
    def is_more_than_chance(self) -> bool:
        """Chance would hardly make the runs differ so much."""
        return self.distance > self.noise


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """The largest gap of its group, and how many others of the group are more than chance, too."""

    gap: Gap
    others: int


@dataclass(frozen=True, kw_only=True)
class OneSided:
    """What only one of the runs tells: "A" or "B", and how often."""

    name: FeatureName
    run: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the runs.

    `problem` is why it is not sound, or "". `summary` has the counts of ``summary.json``, from its rows.
    """

    path: Path
    manifest: Mapping[str, Any]
    problem: str
    steps: int
    resets: int
    left_out: int
    unreadable: int
    summary: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs of one contract, side by side.

    Attributes:
        a: the one run.
        b: the other.
        terms: what of their kinds differs and was ignored.
        outcomes: both success rates.
        pairing: which episodes began alike; its `pairs` are not in the JSON form.
        gaps: everything that was compared.
        ranking: the largest gap of each group, the largest first; those that may be chance behind the others.
        one_sided: what only one of the runs tells, and so cannot be compared.
        untracked: commanded joints that no sensor tells of.
    """

    a: Side
    b: Side
    terms: Comparability
    outcomes: tuple[Outcome, ...]
    pairing: Pairing
    gaps: tuple[Gap, ...]
    ranking: tuple[Ranked, ...]
    one_sided: tuple[OneSided, ...]
    untracked: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Both runs are whole."""
        return not (self.a.problem or self.b.problem)

    def of(self, *kinds: str) -> list[Gap]:
        """Return the gaps of these kinds, in the order in which the runs tell them."""
        return [gap for gap in self.gaps if gap.name.kind in kinds]

    def as_json(self) -> dict[str, Any]:
        """Return everything in types of JSON; what is not known is None."""
        found: dict[str, Any] = to_json_types(
            {
                "refused": False,
                "sound": self.sound,
                **{name: _side_as_json(side) for name, side in (("a", self.a), ("b", self.b))},
                "ignored": [dataclasses.asdict(mismatch) for mismatch in self.terms.ignored],
                "ignored_without_effect": self.terms.idle,
                "notes": self.terms.notes,
                "outcomes": [dataclasses.asdict(outcome) for outcome in self.outcomes],
                "pairing": {
                    "pairs": len(self.pairing.pairs),
                    "only_a": self.pairing.only_a,
                    "only_b": self.pairing.only_b,
                    "drawn_apart": self.pairing.drawn_apart,
                    "problem": self.pairing.problem,
                },
                "ranking": [{**_gap_as_json(ranked.gap), "others": ranked.others} for ranked in self.ranking],
                "gaps": [_gap_as_json(gap) for gap in self.gaps],
                "one_sided": [dataclasses.asdict(found) for found in self.one_sided],
                "untracked": self.untracked,
            }
        )
        return found


def compare_runs(
    a: str | Path, b: str | Path, *, ignore: Iterable[str] = (), progress: Progress | None = None
) -> Comparison:
    """Compare two run directories; each is read row by row.

    Args:
        a: the one run directory, say of a simulator.
        b: the other, say of a robot.
        ignore: paths of the contract, of ``wrappers``, or ``capabilities.actuates``, in which the runs may differ, and
            everything below them.
        progress: receives how far it has come.

    Raises:
        NotComparableError: when their contracts or wrappers differ, or one alone is a dry run; it lists in what.
        RecordError: when one is no run directory, or its manifest cannot be read.
        MissingDependencyError: when mcap is not installed.
    """
    runs = read_run(a), read_run(b)
    terms = comparability(*runs, ignore)
    progress = progress or NoProgress()
    features = [_read(*of_run, progress) for of_run in zip("AB", runs, terms.contracts, strict=True)]
    progress.start("comparing", None)
    return _compared(runs, features, terms)


def _read(name: str, run: Run, contract: Contract | None, progress: Progress) -> RunFeatures:
    progress.start(f"reading run {name}", None)
    found = RunFeatures(contract)
    for row in run.rows():
        found.add(row)
        progress.advance()
    found.look_at(run.array)
    return found


def _compared(runs: Sequence[Run], features: Sequence[RunFeatures], terms: Comparability) -> Comparison:
    of_a, of_b = features
    a, b = (_side(run, found) for run, found in zip(runs, features, strict=True))
    pairing = paired(of_a.episodes, of_b.episodes)
    gaps = _gaps(of_a, of_b, a, b)
    return Comparison(
        a=a,
        b=b,
        terms=terms,
        outcomes=tuple(_outcome(key, how, of, a.summary, b.summary, pairing) for key, how, of in _OUTCOMES),
        pairing=pairing,
        gaps=tuple(gaps),
        ranking=rank(gaps),
        one_sided=tuple(_one_sided(of_a, of_b)),
        untracked=tuple(dict.fromkeys((*of_a.untracked, *of_b.untracked))),
    )


def _side(run: Run, found: RunFeatures) -> Side:
    return Side(
        path=run.path,
        manifest=run.manifest,
        problem=run.problem,
        steps=found.steps,
        resets=found.resets,
        left_out=found.left_out,
        unreadable=found.unreadable,
        summary=found.outcomes.summary(),
    )


def rank(gaps: Iterable[Gap]) -> tuple[Ranked, ...]:
    """Return the largest gap of each group, the largest first; those that may be chance behind the others.

    Of gaps that are as large, that comes first which is further above what chance makes.
    """
    groups: dict[tuple[str, str], list[Gap]] = {}
    for gap in gaps:
        groups.setdefault((gap.name.kind, gap.name.group), []).append(gap)
    ranked = []
    for group in groups.values():
        largest = max(group, key=_weight)
        others = sum(gap.is_more_than_chance for gap in group) - largest.is_more_than_chance
        if largest.distance > 0.0:
            ranked.append(Ranked(gap=largest, others=others))
    return tuple(sorted(ranked, key=lambda found: _weight(found.gap), reverse=True))


def _weight(gap: Gap) -> tuple[bool, float, float]:
    return gap.is_more_than_chance, gap.distance, gap.distance / gap.noise


def _outcome(key: str, how: str, of: str, a: Mapping[str, Any], b: Mapping[str, Any], pairing: Pairing) -> Outcome:
    rates = [_rate(summary["successes"], summary[of]) for summary in (a, b)]
    known = all(rate.trials for rate in rates)
    rated = [pair for pair in pairing.pairs if pair[0].rated and pair[1].rated]
    pairs = [pair for pair in rated if of == "rated" or not any(_truncated(pair))]
    first, second = ((rate.share, rate.low, rate.high) for rate in rates)
    return Outcome(
        key=key,
        how=how,
        a=rates[0],
        b=rates[1],
        difference=difference_interval(first, second) if known else None,
        paired=mcnemar_exact([(x.success, y.success) for x, y in pairs]) if pairs else None,
    )


def _truncated(pair: tuple[Ended, Ended]) -> tuple[bool, bool]:
    return pair[0].truncated, pair[1].truncated


def _rate(successes: int, trials: int) -> Rate:
    share = successes / trials if trials else math.nan
    low, high = wilson_interval(successes, trials) if trials else (math.nan, math.nan)
    return Rate(successes=successes, trials=trials, share=share, low=low, high=high)


def _gaps(of_a: RunFeatures, of_b: RunFeatures, a: Side, b: Side) -> list[Gap]:
    """Return all gaps; the chance of a false alarm is shared among them (Bonferroni), but for the success rates."""
    streams = [
        (name, of_a.streams[name], of_b.streams[name])
        for name in of_a.streams
        if name in of_b.streams and of_a.streams[name].count and of_b.streams[name].count
    ]
    shares = [*_reasons(a.summary, b.summary), *_shares_of_steps(of_a, of_b)]
    chance = CHANCE / max(1, len(streams) + len(shares))
    return [
        *(_gap_of_shares(name, first, second, CHANCE) for name, first, second in _successes(a.summary, b.summary)),
        *(_gap_of_streams(name, first, second, chance) for name, first, second in streams),
        *(_gap_of_shares(name, first, second, chance) for name, first, second in shares),
    ]


def _gap_of_streams(name: FeatureName, a: Stream, b: Stream, chance: float) -> Gap:
    said, samples = (a.numbers(), b.numbers()), (a.values(), b.values())
    counts = [min(numbers.effective_count, len(kept)) for numbers, kept in zip(said, samples, strict=True)]
    noise = ks_noise(counts[0], counts[1], chance=chance)
    return Gap(name=name, distance=ks_distance(*samples), noise=noise, a=said[0], b=said[1])


def _gap_of_shares(name: FeatureName, a: Share, b: Share, chance: float) -> Gap:
    return Gap(
        name=name,
        distance=abs(a.share - b.share),
        noise=share_noise((a.share, a.effective_total), (b.share, b.effective_total), chance=chance),
        a=a,
        b=b,
    )


def _shares_of_steps(a: RunFeatures, b: RunFeatures) -> Iterator[tuple[FeatureName, Share, Share]]:
    if not (a.steps and b.steps):
        return
    for name in dict.fromkeys((*a.events, *b.events)):
        yield name, a.share(name), b.share(name)


def _successes(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[FeatureName, Share, Share]]:
    for _, how, of in _OUTCOMES:
        if a[of] and b[of]:
            name = FeatureName(kind="outcome", group="success", component=how)
            yield name, _of_episodes(a["successes"], a[of]), _of_episodes(b["successes"], b[of])


def _reasons(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[FeatureName, Share, Share]]:
    if not (a["episodes"] and b["episodes"]):
        return
    for reason in dict.fromkeys((*a["end_reasons"], *b["end_reasons"])):
        first, second = (_of_episodes(found["end_reasons"].get(reason, 0), found["episodes"]) for found in (a, b))
        yield FeatureName(kind="outcome", group="ended by", component=reason), first, second


def _of_episodes(count: int, total: int) -> Share:
    return Share(count=count, total=total, effective_total=float(total))


def _one_sided(a: RunFeatures, b: RunFeatures) -> Iterator[OneSided]:
    for run, here, there in (("A", a, b), ("B", b, a)):
        for name, stream in here.streams.items():
            if stream.count and not (name in there.streams and there.streams[name].count):
                yield OneSided(name=name, run=run, count=stream.count)


def _side_as_json(side: Side) -> dict[str, Any]:
    contract = get_mapping(side.manifest, "contract")
    return {
        "path": side.path,
        "backend": side.manifest.get("backend"),
        "policy": side.manifest.get("policy"),
        "fingerprint": contract.get("fingerprint"),
        "problem": side.problem,
        "steps": side.steps,
        "resets": side.resets,
        "left_out": side.left_out,
        "unreadable": side.unreadable,
        "summary": {
            key: value for key, value in side.summary.items() if key not in ("latency", "contract_fingerprint")
        },
    }


def _gap_as_json(gap: Gap) -> dict[str, Any]:
    return {
        **dataclasses.asdict(gap.name),
        "distance": gap.distance,
        "noise": gap.noise,
        "more_than_chance": gap.is_more_than_chance,
        "a": dataclasses.asdict(gap.a),
        "b": dataclasses.asdict(gap.b),
    }
