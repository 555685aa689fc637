"""Describe in words the findings of a comparison or the evidence that it lacks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from embodied_env.extensions.comparison.effect_sizes import FeatureDifference
from embodied_env.extensions.comparison.run_features import FeatureName
from embodied_env.extensions.report.html_pages import format_number, percent, plural
from embodied_env.extensions.report.totals import stage_label

_NAMED = 3  # groups of features in the findings
_VERBS = {"differs": "differs", "probably": "probably differs"}
_ROUNDING = 1e-12  # a smaller mean is an error of rounding
_TITLES = {
    "observation": "observation",
    "evaluator": "evaluator's reading",
    "action": "action",
    "gate": "gate",
    "sensor": "readings of",
}


def label(name: FeatureName) -> str:
    """Return the name of a feature for people, such as "tracking error of j3"."""
    if name.kind == "latency":
        return stage_label((name.group, name.component))
    if name.kind in ("delay", "gain", "offset"):
        return f"{name.group} of {name.component}"
    if name.kind == "tracking":
        return f"tracking error of {name.component}" + (" (velocity)" if name.group == "velocity" else "")
    title = name.group if name.group == "changed actions" else f"{_TITLES.get(name.kind, '')} {name.group}".lstrip()
    return " · ".join(filter(None, (title, name.component)))


def describe_level(name: FeatureName, value: float) -> str:
    """Return a value of a feature with its unit, such as "12.3 ms", "40.0 %" or "0.0123 rad"."""
    if name.is_event or name.is_share_of_episodes:
        return percent(value)
    value = value if abs(value) > _ROUNDING else 0.0
    if name.unit == "s":
        return f"{format_number(1e3 * value)} ms"
    return format_number(value) + ("" if name.unit in ("", "1") else f" {name.unit}")


def describe_difference(found: FeatureDifference) -> str:
    """Return B - A with its unit, such as "+60.0 ms" or "-25.0 points"."""
    return _signed(found.name, found.difference, with_unit=True)


def describe_relative(found: FeatureDifference) -> str:
    """Return the size of B - A, such as "1.20 control periods", or "" if the unit explains it."""
    if found.scale.name.startswith("points"):
        return ""
    return f"{format_number(abs(found.difference) / found.scale.unit)} {found.scale.name}"


def describe_interval(found: FeatureDifference) -> str:
    """Return the interval at 95 % of B - A, such as "+58.1 to +61.9 ms", or "none" without one."""
    if found.interval is None:
        return "none"
    low, high = found.interval
    return f"{_signed(found.name, low)} to {_signed(found.name, high, with_unit=True)}"


def describe_evidence(found: FeatureDifference) -> str:
    """Return how certain a difference is, such as "probably, 12 episodes needed"."""
    if found.verdict in ("differs", "same"):
        return "certain" if found.verdict == "differs" else "none that matters"
    return (
        f"{found.verdict}, {'more' if found.episodes_needed is None else f'{found.episodes_needed:,}'} episodes needed"
    )


def group_differences(differences: Iterable[FeatureDifference]) -> list[list[FeatureDifference]]:
    """Return the differences by kind and group of their features, in the given order."""
    groups: dict[tuple[str, str], list[FeatureDifference]] = {}
    for found in differences:
        groups.setdefault((found.name.kind, found.name.group), []).append(found)
    return list(groups.values())


def describe_findings(differences: Sequence[FeatureDifference], a: str = "A", b: str = "B") -> tuple[str, ...]:
    """Return the findings of differences in order, with the runs named `a` and `b`."""
    if not differences:
        return (f"{a} and {b} have nothing in common to compare.",)
    first, *others = group_differences(differences)
    if first[0].verdict not in _VERBS:
        named, sentences = [], [_describe_absence(differences, a, b)]
    else:
        named, sentences = [first], [_join([first], f"{b} {_VERBS[first[0].verdict]} from {a} most", a, b)]
        for verdict, verb in _VERBS.items():
            if found := [group for group in others if group[0].verdict == verdict][: _NAMED - 1]:
                sentences.append(_join(found, f"{b} {verb} also", a, b))
                named += found
    success = next((found for found in differences if found.name.group == "success"), None)
    if success is not None and [success] not in named:
        sentences.append(f"S{_describe([success], a, b)[1:]}.")
    return tuple(sentences)


def _join(groups: Sequence[Sequence[FeatureDifference]], start: str, a: str, b: str) -> str:
    text = f"{start} in {'; in '.join(_describe(group, a, b) for group in groups)}."
    return text if groups[0][0].verdict == "differs" else f"{text} {_too_few([group[0] for group in groups])}"


def _describe_absence(differences: Sequence[FeatureDifference], a: str, b: str) -> str:
    """Return that no difference was found, and how many episodes would exclude one."""
    open_ones = [found for found in differences if found.verdict == "undecided"]
    open_ones.sort(key=lambda found: found.name.group != "success")
    text = f"No difference that matters was found between {a} and {b}"
    if not open_ones:
        return f"{text}, and the evidence excludes one in each of {plural(len(differences), 'compared feature')}."
    return (
        f"{text}, but the evidence is too small to exclude one in {label(open_ones[0].name)}: {_too_few(open_ones[:1])}"
    )


def _describe(group: Sequence[FeatureDifference], a: str, b: str) -> str:
    """Return the first difference of a group, and the range of others of its verdict and sign."""
    found = group[0]
    of_a, of_b = (describe_level(found.name, level.mean) for level in (found.a, found.b))
    details = ", ".join(filter(None, (describe_difference(found), describe_relative(found))))
    interval = "" if found.interval is None else f"; 95 %: {describe_interval(found)}"
    levels = f"{of_a} in both" if of_a == of_b else f"{of_a} in {a}, {of_b} in {b}"
    text = f"{label(found.name)}: {levels} ({details}{interval})"
    others = [x for x in group[1:] if x.verdict == found.verdict and x.difference * found.difference > 0]
    if others:
        sizes = sorted(x.difference for x in others)
        low, high = (_signed(found.name, size) for size in (sizes[0], sizes[-1]))
        unit = _signed(found.name, sizes[-1], with_unit=True)
        of = "another one" if len(others) == 1 else f"{len(others)} others"
        text += f", and {unit if low == high else f'{low} to {unit}'} in {of}"
    return text


def _too_few(found: Sequence[FeatureDifference]) -> str:
    first = found[0]
    count = min(first.a.episodes, first.b.episodes)
    few = f"{plural(count, 'episode')} of each run {'is' if count == 1 else 'are'} too few"
    needed = [needed for one in found if (needed := one.episodes_needed) is not None]
    if not needed:
        return f"{few}, and the spread between episodes is unknown."
    if first.relevance >= 1:
        return f"{few} to be certain; about {max(needed):,} would settle it."
    size = _signed(first.name, first.scale.matters, with_unit=True).lstrip("+")
    return f"{few}; about {max(needed):,} would show a difference of {size}."


def _signed(name: FeatureName, value: float, *, with_unit: bool = False) -> str:
    if name.is_event or name.is_share_of_episodes:
        return f"{100 * value:+.1f}" + (" points" if with_unit else "")
    text = describe_level(name, abs(value)) if math.isfinite(value) else "none"
    text = text if with_unit else text.split(" ")[0]
    return ("-" if value < 0 else "+") + text
