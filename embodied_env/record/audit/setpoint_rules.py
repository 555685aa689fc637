"""Rules of the account of the set-points between steps, ``info.annotations.setpoints``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from embodied_env.contract import Contract
from embodied_env.core.clock import NS_PER_S
from embodied_env.core.codes import Severity
from embodied_env.record.audit.violation import Violation, make_violation, short_repr, wrong_value
from embodied_env.record.rows import Row

_WHERE = "info.annotations.setpoints"
_KEYS = ("rate_hz", "sent", "worst_gap_s")
_MADE_UP_FOR = 2.0 * (1.0 + 1e-6)  # periods of set-points; after a longer gap the motion falls behind


class SetpointRule:
    """Set-points have the contract's rate; their number and worst gap fit into the time of the steps."""

    def __init__(self, contract: Contract | None) -> None:
        self._declared_hz = None if contract is None else contract.setpoints_per_step / contract.control_period_s
        self._late_steps, self._worst_gap_s, self._rate_hz = 0, 0.0, 0.0
        self.forget()

    def forget(self) -> None:
        """Forget the previous row: the next one does not directly follow it."""
        self._before: Row | None = None  # the previous step, if it has an account

    def add(self, row: Row) -> Iterator[Violation]:
        """Check the next row."""
        before, self._before = self._before, None
        account = row["info"].get("annotations", {}).get("setpoints")
        if account is None:
            return
        if problem := self._misfit(account):
            yield make_violation("setpoints.account", _WHERE, account, f"{_WHERE} {problem}")
            return
        rate_hz, sent, gap_s = (account[key] for key in _KEYS)
        if gap_s * rate_hz > _MADE_UP_FOR:
            self._late_steps, self._rate_hz = self._late_steps + 1, rate_hz
            self._worst_gap_s = max(self._worst_gap_s, gap_s)
        self._before = row if "inner" in row else None
        if before is None or self._before is None:
            return
        now_ns, earlier = row["inner"]["stamps_ns"]["observed"], before["inner"]["stamps_ns"]
        elapsed_s, longest_s = ((now_ns - earlier[name]) / NS_PER_S for name in ("entered", "previous_entered"))
        least, most = before["info"]["safety"]["disposition"] < Severity.HOLD, elapsed_s * rate_hz + 2
        if not least <= sent <= most:
            yield wrong_value("setpoints.sent", f"{_WHERE}.sent", sent, f"{int(least)} to {most:.0f} in {elapsed_s} s")
        if gap_s > longest_s:
            yield wrong_value("setpoints.gap", f"{_WHERE}.worst_gap_s", gap_s, f"at most {longest_s}, two steps")

    def warnings(self) -> list[Violation]:
        """Return one warning for all steps with set-points so late that the motion fell behind."""
        if not self._late_steps:
            return []
        worst_ms, most_ms = 1e3 * self._worst_gap_s, 2e3 / self._rate_hz
        text = (
            f"set-points left late in {self._late_steps} step(s): worst gap {worst_ms:.4g} ms (expected at most "
            f"{most_ms:.3g} ms, two periods of {self._rate_hz:g} Hz); lower setpoint_rate_hz, or "
            "use a relay with an idle core"
        )
        return [make_violation("setpoints.late", f"{_WHERE}.worst_gap_s", self._worst_gap_s, text)]

    def _misfit(self, account: Mapping[str, Any]) -> str:
        """Return what is wrong with the fields of an account, or ""."""
        values: list[Any] = [account.get(key) for key in _KEYS]
        is_typed = len(account) == len(_KEYS) and [type(each) for each in values] == [float, int, float]
        if not (is_typed and values[0] > 0.0 and min(values) >= 0):
            return f"is {short_repr(account)} (expected {', '.join(_KEYS)}: a rate above 0, a count, a gap >= 0)"
        is_declared = self._declared_hz in (None, values[0])
        return "" if is_declared else f"has a rate of {values[0]} Hz (expected setpoint_rate_hz of the contract)"
