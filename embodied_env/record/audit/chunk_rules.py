"""Rules of the account of an action chunk, ``info.annotations.chunk`` of an asynchronous runner of chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from embodied_env.core.policy import CHUNK_MODES
from embodied_env.record.audit.sequence_rules import is_reset
from embodied_env.record.audit.violation import Violation, make_violation, wrong_value
from embodied_env.record.rows import Row, has_no_action

_WHERE = "info.annotations.chunk"
_COUNTS = ("underruns", "expired", "failed")
_BLENDING = ("crossfade", "ensemble")
_ROUNDING = 1e-9


class ChunkRule:
    """The action of each step is from the chunks in its account, at their age, and steps without one are counted.

    Accounts named ``chunk`` without a mode of this package are skipped.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the previous row: the next one does not directly follow it."""
        self._counts: dict[str, int] | None = None  # of the previous step; None: unknown
        self._newest: tuple[int, int] | None = None  # id and birth of the newest chunk so far

    def add(self, row: Row) -> Iterator[Violation]:
        """Check the next row."""
        if is_reset(row):
            self._counts, self._newest = dict.fromkeys(_COUNTS, 0), None
            return
        annotations = row["info"].get("annotations")
        account = annotations.get("chunk") if isinstance(annotations, Mapping) else None
        if not isinstance(account, Mapping) or account.get("mode") not in CHUNK_MODES:
            self.forget()
            return
        if problem := _misfit(account):
            yield make_violation("chunk.account", _WHERE, dict(account), f"{_WHERE} {problem}")
            self.forget()
            return
        yield from self._check_counts(row, account)
        if account["id"] is None:
            return
        age = row["info"]["step_index"] - 1 - account["born"]
        if account["age"] != age:
            yield wrong_value("chunk.age", f"{_WHERE}.age", account["age"], f"{age}, the steps since {account['born']}")
        weights = [weight for *_, weight in account["older"]] + [account["weight"]]
        is_one = account["mode"] in _BLENDING or len(weights) == 1
        if not is_one or min(weights) <= 0.0 or abs(sum(weights) - 1.0) > _ROUNDING:
            expected = "positive ones that add up to 1, of one chunk unless the mode blends"
            yield wrong_value("chunk.weight", f"{_WHERE}.weight", weights, expected)
        places = [(number, born) for number, born, _ in account["older"]] + [(account["id"], account["born"])]
        before = self._newest
        is_kept = before is None or dict(places).get(before[0], before[1]) == before[1]
        is_next = account["mode"] == "ensemble" or before == places[-1] or _is_later(before, places[-1])
        if not (is_kept and is_next and all(_is_later(a, b) for a, b in pairwise(places))):
            expected = f"ids and births that increase, after {self._newest}"
            yield wrong_value("chunk.order", f"{_WHERE}.id", places, expected)
        self._newest = max(places[-1], before or places[-1])

    def _check_counts(self, row: Row, account: Mapping[str, Any]) -> Iterator[Violation]:
        is_missing, before = account["id"] is None, self._counts
        if "inner" in row and is_missing != has_no_action({"action": row["inner"]["action"]}):
            expected = "null for a step without an action, and only then"
            yield wrong_value("chunk.underrun", f"{_WHERE}.id", account["id"], expected)
        self._counts = {name: account[name] for name in _COUNTS}
        if before is None:
            return
        if account["underruns"] != before["underruns"] + is_missing:
            expected = f"{before['underruns'] + is_missing}, the steps without a chunk in the episode"
            yield wrong_value("chunk.underrun", f"{_WHERE}.underruns", account["underruns"], expected)
        for name in ("expired", "failed"):
            if account[name] < before[name]:
                yield wrong_value("chunk.underrun", f"{_WHERE}.{name}", account[name], f">= {before[name]}")


def _is_later(before: tuple[int, int] | None, place: tuple[int, int]) -> bool:
    """Return whether both id and birth of a chunk are greater than those of the one before it."""
    return before is None or (before[0] < place[0] and before[1] < place[1])


def _misfit(account: Mapping[str, Any]) -> str:
    """Return what is wrong with the fields of an account, or ""."""
    keys = ("id", "born", "age", "weight")
    counts = [account.get(name) for name in _COUNTS]
    if not all(type(count) is int and count >= 0 for count in counts):
        return f"has the counts {counts} (expected integers >= 0: {', '.join(_COUNTS)})"
    values, older = [account.get(key) for key in keys], account.get("older")
    if not isinstance(older, list):
        return "has no older chunks (expected a list of id, birth and weight)"
    chunks = [] if values == [None] * 4 and not older else [*older, [values[0], values[1], values[3]]]
    for chunk in chunks:
        is_chunk = isinstance(chunk, list) and [type(each) for each in chunk] in ([int, int, float], [int, int, int])
        if not is_chunk or min(chunk[:2]) < 0:
            return f"has the chunk {chunk} (expected id, birth and weight, or null for all)"
    return ""
