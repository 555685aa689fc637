"""Numbers and codes in words that people read."""

from __future__ import annotations

import math
from collections.abc import Mapping

from embodied_env.analysis.report.timing_collectors import NO_NUMBER
from embodied_env.core.codes import Quality

MEANING_OF_QUALITY: Mapping[int, str] = {
    int(Quality.STALE): "the reading was older than its contract allows; the last good one was handed out",
    int(Quality.INVALID): "the message was malformed or not finite; the last good one was handed out",
    int(Quality.LOST): "the world stopped answering; the last good reading was handed out",
    int(Quality.OUT_OF_RANGE): "outside of the declared range, handed out as it was",
    int(Quality.FUTURE): "stamped later than now",
    int(Quality.ZERO_STAMP): "the message carried no stamp",
    int(Quality.NEGATIVE): "it came out negative: the two clocks disagree",
    int(Quality.FIRST): "the first step of an episode: it counts from the reset",
    int(Quality.UNMARKED): "the agent did not mark the end of its policy: an upper bound, and no measurement",
    int(Quality.UNKNOWN): "a stamp that it needs was not there",
    int(Quality.UNSYNCED): "its stamps are of clocks that are not known to agree, or agree less than it is long",
    int(Quality.FALLBACK_SOURCE): "no stamp in the message: that of its publication stands for it",
    int(Quality.FALLBACK_RECEIVED): "no stamp in the message, nor of its publication: its arrival stands for it",
    int(Quality.JUMP): "a clock was set between its two stamps",
    int(Quality.DECLARED): "not measured now: declared, or found by a calibration",
    NO_NUMBER: "it is said to be measured, but there is no number",
}


def format_number(value: float) -> str:
    """Return `value` with three digits that say something, without an exponent where that can be read."""
    if not math.isfinite(value):
        return "none"
    size = abs(value)
    if size == 0:
        return "0"
    if not 1e-5 <= size < 1e7:
        return f"{value:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(size)))
    return f"{value:,.{decimals}f}"


def milliseconds(seconds: float) -> str:
    """Return a duration as a number of milliseconds, without the unit."""
    return format_number(1e3 * seconds)


def percent(share: float | None) -> str:
    """Return a share from 0 to 1."""
    return "none" if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def share_of(count: int, total: int) -> str:
    """Return how much `count` is of `total`; one that is there never reads as 0 %."""
    if not total:
        return "none"
    if not count:
        return "0 %"
    return "< 0.1 %" if count < total / 1000 else percent(count / total)


def plural(count: int, one: str, many: str = "") -> str:
    """Return a number of things: "1 step", "2 steps"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
