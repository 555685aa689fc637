"""Sections of a report: the verdict, what came of the episodes, the audit, and what ran."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from embodied_env.analysis.report.collectors import RunCollector
from embodied_env.analysis.report.formatting import format_number, milliseconds, percent, plural, share_of
from embodied_env.analysis.report.html import (
    Block,
    Cell,
    bar,
    bullets,
    cards,
    code,
    facts,
    group,
    heading,
    paragraph,
    section,
    table,
    verdict,
)
from embodied_env.analysis.report.outcome_collectors import LISTED, Episode
from embodied_env.analysis.report.row_access import get_mapping
from embodied_env.analysis.statistics import wilson_interval
from embodied_env.core.outcome_counts import describe_exclusions
from embodied_env.record import AuditReport

_RATES = (
    ("Success rate", "truncation counts as failure", "success_rate", "rated", "episode"),
    ("Success rate, truncation apart", "of those that ended by themselves", "success_rate_not_truncated",
     "rated_terminated", "terminated episode"),
)  # fmt: skip
_MOST_SEEDS = 40
_LONGEST_POLICY = 80  # characters at the top; all of it stands below


def head(run_id: str, manifest: Mapping[str, Any], audit: AuditReport, account: RunCollector) -> Block:
    """Return what stands at the top: which run, the verdict, and the numbers that matter most."""
    contract = get_mapping(manifest, "contract")
    policy = said_of(manifest.get("policy"))
    policy = policy if len(policy) <= _LONGEST_POLICY else f"{policy[:_LONGEST_POLICY]}…"
    said = [f"policy {policy}", f"started {when_of(manifest.get('started_utc'))}", run_id]
    title = f"{said_of(contract.get('name'))} on {said_of(manifest.get('backend'))}"
    return group(heading(title, " · ".join(said)), _verdict(audit), cards(_cards(account)))


def outcome_section(account: RunCollector) -> Block:
    """Return both success rates with their intervals, why episodes ended, and the first episodes."""
    summary = account.outcomes.summary()
    parts = [_rates(summary)]
    if reasons := summary["end_reasons"]:
        ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        rows = [
            (said, f"{count:,}", share_of(count, summary["episodes"]), bar(count / summary["episodes"]))
            for said, count in ordered[:30]
        ]
        parts.append(table(("why episodes ended", "episodes", "share", ""), rows, numbers=(1, 2)))
        if len(ordered) > len(rows):
            rest = sum(count for _, count in ordered[len(rows) :])
            parts.append(
                paragraph(f"and {len(ordered) - len(rows)} more reasons of {plural(rest, 'episode')}.", kind="note")
            )
    else:
        parts.append(paragraph("No episode ended, so there is no reason to tell.", kind="warning"))
    parts += [paragraph(f"Episodes {said}.", kind="warning") for said in describe_exclusions(summary)]
    if summary["unfinished"]:
        cut = plural(summary["unfinished"], "episode was", "episodes were")
        parts.append(paragraph(f"{cut} cut before an end, and counted in no rate.", kind="warning"))
    parts.append(_episodes(account))
    return section("Outcome", *parts, anchor="outcome")


def audit_section(audit: AuditReport, account: RunCollector) -> Block:
    """Return the verdict of the audit with its findings."""
    parts = []
    if audit.sound:
        parts.append(paragraph(f"Sound: {plural(audit.transitions, 'transition')} audited, nothing found."))
    else:
        found = plural(len(audit.problems), "finding")
        parts += [
            paragraph(f"Not sound, {plural(audit.transitions, 'transition')} audited: {found}."),
            bullets(audit.problems),
        ]
    if account.unaccounted:
        answered = plural(account.unaccounted, "step was", "steps were")
        parts.append(paragraph(f"{answered} answered by an outer wrapper, without an account.", kind="warning"))
    if account.unreadable:
        parts.append(
            paragraph(f"{plural(account.unreadable, 'row')} that cannot be read, left out here.", kind="warning")
        )
    return section("Audit", *parts, anchor="audit")


def what_ran_section(manifest: Mapping[str, Any], account: RunCollector) -> Block:
    """Return contract, fingerprints, versions, host, seeds, pacing, policy and wrappers."""
    contract, host = get_mapping(manifest, "contract"), get_mapping(manifest, "host")
    seeds = manifest.get("seeds")
    levels = ", ".join(f"{level} ({count:,})" for level, count in account.outcomes.reset_levels.items())
    pairs: list[tuple[str, Cell]] = [
        ("Contract", f"{said_of(contract.get('name'))} v{said_of(contract.get('version'))}"),
        ("Source", code(said_of(contract.get("source")))),
        ("Contract fingerprint", code(said_of(contract.get("fingerprint")))),
        ("Backend", said_of(manifest.get("backend"))),
        ("Backend fingerprint", code(said_of(manifest.get("backend_fingerprint")))),
        ("Policy", said_of(manifest.get("policy"))),
        ("Pacing", said_of(manifest.get("pacing"))),
        ("Clock", said_of(manifest.get("clock"))),
        ("Scheduling", said_of(manifest.get("scheduling"))),
        ("Seeds given to resets", _seeds(seeds)),
        ("Resets", f"{account.outcomes.resets:,}" + (f": {levels}" if levels else "")),
        ("Started, UTC", said_of(manifest.get("started_utc"))),
        ("Ended, UTC", said_of(manifest.get("ended_utc"))),
        ("Host", f"{said_of(host.get('platform'))}, {said_of(host.get('cpu_count'))} CPUs"),
    ]
    versions = [(name, said_of(version)) for name, version in get_mapping(manifest, "versions").items()]
    parts = [facts(pairs), table(("software", "version"), versions) if versions else None]
    return section("What ran", *parts, _wrappers(manifest.get("wrappers")), _processes(manifest), anchor="what-ran")


def said_of(value: object) -> str:
    """Return what a manifest says in one line; "unknown" for nothing."""
    if value is None or value == "":
        return "unknown"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def when_of(value: object) -> str:
    """Return a time of ISO 8601 to the second, in UTC, as people write it; what is no such time as it is."""
    try:
        when = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        when = None
    return said_of(value) if when is None or when.tzinfo is None else f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _verdict(audit: AuditReport) -> Block:
    if audit.sound:
        said = f"The audit found nothing wrong in {plural(audit.transitions, 'transition')}."
        return verdict(good=True, word="Sound evidence", said=said)
    return verdict(good=False, word="Not sound evidence", said=audit.problems[0])


def _cards(account: RunCollector) -> list[tuple[str, str, str]]:
    summary = account.outcomes.summary()
    found = [
        (f"{label} ({how})", percent(summary[key]), _interval(summary["successes"], summary[of], unit))
        for label, how, key, of, unit in _RATES
    ]
    found.append(("Steps", f"{account.steps:,}", f"in {plural(account.outcomes.resets, 'episode')}"))
    command = account.stages.sketches.get(("obs_to_command_s", ""))
    if command is not None:
        spread = command.percentiles()
        below = f"median {milliseconds(spread.p50)} ms, p99 {milliseconds(spread.p99)} ms"
        found.append(("Observation to command, p95", f"{milliseconds(spread.p95)} ms", below))
    if account.gates.steps:
        changed = f"{account.gates.intervened:,} of {plural(account.gates.steps, 'step')}"
        found.append(("Steps that the gates changed", share_of(account.gates.intervened, account.gates.steps), changed))
    return found


def _interval(successes: int, trials: int, unit: str) -> str:
    if not trials:
        return f"no {unit}, so no rate"
    low, high = wilson_interval(successes, trials)
    return f"{successes:,} of {plural(trials, unit)}; 95 % interval {percent(low)} to {percent(high)}"


def _rates(summary: Mapping[str, Any]) -> Block:
    rows: list[Sequence[Cell]] = []
    for label, how, key, of, _ in _RATES:
        trials = summary[of]
        if not trials:
            rows.append((f"{label}: {how}", "0", "0", "none", "none", ""))
            continue
        low, high = wilson_interval(summary["successes"], trials)
        interval = f"{percent(low)} to {percent(high)}"
        rate = summary[key]
        rows.append((f"{label}: {how}", f"{summary['successes']:,}", f"{trials:,}", percent(rate), interval,
                     bar(rate, low=low, high=high)))  # fmt: skip
    header = ("", "successes", "of", "rate", "95 % interval (Wilson)", "")
    return table(header, rows, numbers=(1, 2, 3))


def _episodes(account: RunCollector) -> Block:
    episodes = account.outcomes.episodes
    if not episodes:
        return paragraph("There was no reset, so no episode.", kind="note")
    rows = [_episode(episode) for episode in episodes]
    header = ("episode", "seed", "steps", "return", "ended", "reason")
    shown = table(header, rows, numbers=(0, 1, 2, 3))
    if account.outcomes.resets <= LISTED:
        return shown
    return group(shown, paragraph(f"The first {LISTED} of {account.outcomes.resets:,} episodes.", kind="note"))


def _episode(episode: Episode) -> Sequence[str]:
    reward = "not known" if episode.rewards_missing else format_number(episode.reward)
    how = "success" if episode.success else episode.apart.replace("_", " ")
    ended = f"{episode.ended}{', ' if how else ''}{how}" if episode.ended else "cut"
    seed = "" if episode.seed is None else str(episode.seed)
    return (f"{episode.number:,}", seed, f"{episode.steps:,}", reward, ended, episode.reason)


def _seeds(seeds: object) -> str:
    if not isinstance(seeds, list) or not seeds:
        return "none"
    shown = ", ".join(str(seed) for seed in seeds[:_MOST_SEEDS])
    return shown if len(seeds) <= _MOST_SEEDS else f"{shown} and {len(seeds) - _MOST_SEEDS:,} more"


def _wrappers(stack: object) -> Block:
    layers = [get_mapping(layer) for layer in stack] if isinstance(stack, list) else []
    rows = [
        (
            code(said_of(layer.get("class"))),
            code("not recorded" if layer.get("kwargs") is None else said_of(layer["kwargs"])),
        )
        for layer in layers
    ]
    return table(("wrappers, outermost first", "arguments"), rows) if rows else paragraph("No wrappers are recorded.")


def _processes(manifest: Mapping[str, Any]) -> Block | None:
    found = manifest.get("processes")
    rows = [
        (said_of(p.get("role")), said_of(p.get("pid")))
        for p in map(get_mapping, found if isinstance(found, list) else ())
    ]
    return table(("process", "pid"), rows[:50], numbers=(1,)) if rows else None
