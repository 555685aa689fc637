"""Rules of the accounts in ``info.annotations``: action chunks, setpoints between steps, and grippers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.json_objects import COUNT, QUANTITY, check_object, enum_of, list_of, object_with, or_null
from embodied_env.core.policy import CHUNK_MODES
from embodied_env.extensions.audit.sequence_rules import is_reset
from embodied_env.record.rows import Row, given_action, has_no_action
from embodied_env.record.violation import Violation, make_violation, wrong_value
from embodied_env.safety.relay.relay_protocol import GRIPPER_ENDED, GRIPPER_FIELDS, SETPOINT_FIELDS
from embodied_env.timing.clock import NS_PER_S

Account = Mapping[str, Any]

_BLENDING = ("crossfade", "ensemble")
_COUNTS = ("underruns", "expired", "failed")
_NEWEST = ("id", "born", "weight")
_CHUNK_FIELDS = {
    "mode": enum_of(CHUNK_MODES, "a mode of chunks"),
    **dict.fromkeys(("id", "born", "age"), or_null(COUNT)),
    "weight": or_null(QUANTITY),
    "older": list_of(list_of(QUANTITY)),
    **dict.fromkeys(_COUNTS, COUNT),
}
_ROUNDING = 1e-9
_LONGEST_GAP = 2.0 * (1.0 + 1e-6)  # periods of setpoints; after a longer gap the motion falls behind


class AccountRules:
    """Each account of a step has its fields, and follows from the step and from the account before it.

    A chunk without a mode of this package is skipped. Backends in which a topic carries the goals of grippers have no
    account of them.
    """

    def __init__(self, contract: Contract | None) -> None:
        self._declared_hz = None if contract is None else contract.setpoints_per_step / contract.control_period_s
        actuators = {} if contract is None else contract.actuators
        self._grippers = {name: actuator for name, actuator in actuators.items() if actuator.is_action}
        self._late_steps, self._worst_gap_s, self._rate_hz = 0, 0.0, 0.0
        self._rules = {
            "chunk": ("chunk.account", _CHUNK_FIELDS, self._check_chunk),
            "setpoints": ("setpoints.account", SETPOINT_FIELDS, self._check_setpoints),
            "grippers": (
                "gripper.account",
                dict.fromkeys(self._grippers, object_with(GRIPPER_FIELDS)),
                self._check_grippers,
            ),
        }
        self.forget()

    def forget(self) -> None:
        """Discard the previous row: the next one does not directly follow it."""
        self._before: dict[str, Account] = {}  # the accounts of the previous step
        self._row: Row | None = None
        self._newest: tuple[int, int] | None = None  # id and birth of the newest chunk so far

    def add(self, row: Row) -> Iterator[Violation]:
        """Check the next row; after a reset, the counts of an episode begin at 0."""
        if is_reset(row):
            self.forget()
            self._before["chunk"] = dict.fromkeys(_COUNTS, 0)
            return
        accounts = row["info"].get("annotations", {})
        earlier, self._before = self._before, {}
        for name, (rule, fields, check) in self._rules.items():
            account, where = accounts.get(name), f"info.annotations.{name}"
            is_foreign = name == "chunk" and account is not None and account.get("mode") not in CHUNK_MODES
            if account is None or is_foreign or not fields:
                continue
            try:
                check_object(account, where, fields)
                yield from check(row, account, earlier.get(name), where)
                self._before[name] = account
            except ValueError as error:
                yield make_violation(rule, where, account, str(error))
        self._row = row if "inner" in row else None
        if "chunk" not in self._before:
            self._newest = None

    def _check_chunk(self, row: Row, account: Account, before: Account | None, where: str) -> Iterator[Violation]:
        """Check that the action is from the chunks of the account, and that steps without one are counted."""
        older, newest = account["older"], [account[key] for key in _NEWEST]
        chunks = [] if [*newest, account["age"]] == [None] * 4 and not older else [*older, newest]
        for chunk in chunks:
            if len(chunk) != 3 or not all(map(COUNT.is_valid, chunk[:2])) or chunk[2] is None:
                raise ValueError(f"{where}: chunk {chunk} (expected id, birth and weight, or null for all)")
        yield from _check_counts(row, account, before, where)
        if account["id"] is None:
            return
        age = row["info"]["step_index"] - 1 - account["born"]
        if account["age"] != age:
            yield wrong_value("chunk.age", f"{where}.age", account["age"], f"{age}, the steps since {account['born']}")
        weights, places = [chunk[2] for chunk in chunks], [(chunk[0], chunk[1]) for chunk in chunks]
        is_one = account["mode"] in _BLENDING or not older
        if not is_one or min(weights) <= 0.0 or abs(sum(weights) - 1.0) > _ROUNDING:
            expected = "positive ones that add up to 1, of one chunk unless the mode blends"
            yield wrong_value("chunk.weight", f"{where}.weight", weights, expected)
        last, self._newest = self._newest, max(places[-1], self._newest or places[-1])
        is_kept = last is None or dict(places).get(last[0], last[1]) == last[1]
        is_next = account["mode"] == "ensemble" or last == places[-1] or _is_later(last, places[-1])
        if not (is_kept and is_next and all(_is_later(a, b) for a, b in pairwise(places))):
            yield wrong_value("chunk.order", f"{where}.id", places, f"ids and births that increase, after {last}")

    def _check_setpoints(self, row: Row, account: Account, before: Account | None, where: str) -> Iterator[Violation]:
        """Check the rate, and that number and worst gap of the setpoints fit into the time of the steps."""
        rate_hz, sent, gap_s = (account[key] for key in SETPOINT_FIELDS)
        if rate_hz <= 0.0 or gap_s < 0.0 or self._declared_hz not in (None, rate_hz):
            raise ValueError(f"{where}: {account} (expected setpoint_rate_hz of the contract, and a gap >= 0)")
        if gap_s * rate_hz > _LONGEST_GAP:
            self._late_steps, self._rate_hz = self._late_steps + 1, rate_hz
            self._worst_gap_s = max(self._worst_gap_s, gap_s)
        if before is None or self._row is None or "inner" not in row:
            return
        now_ns, stamps_ns = row["inner"]["stamps_ns"]["observed"], self._row["inner"]["stamps_ns"]
        elapsed_s, longest_s = ((now_ns - stamps_ns[name]) / NS_PER_S for name in ("entered", "previous_entered"))
        most = elapsed_s * rate_hz + 2  # no least: a relay that stalls sends none
        if sent > most:
            yield wrong_value("setpoints.sent", f"{where}.sent", sent, f"at most {most:.0f} in {elapsed_s} s")
        if gap_s > longest_s:
            yield wrong_value("setpoints.gap", f"{where}.worst_gap_s", gap_s, f"at most {longest_s}, two steps")

    def _check_grippers(self, _: Row, account: Account, before: Account | None, where: str) -> Iterator[Violation]:
        """Check that each goal is within the limits of its joint, and is sent and counted when it changes."""
        for name, each in account.items():
            if (each["goal"] is None) != (each["state"] == "idle"):
                raise ValueError(f"{where}.{name}: {each} (expected a goal, except in the state idle)")
        for name, actuator in self._grippers.items():
            (limits,), goal, sent = actuator.joints.values(), account[name]["goal"], account[name]["goals_sent"]
            if goal is not None and limits.position and not limits.position[0] <= goal <= limits.position[1]:
                yield wrong_value("gripper.goal", f"{where}.{name}.goal", goal, f"{list(limits.position)}, the limits")
            if before is None or (gripper := actuator.gripper) is None:
                continue
            last, last_sent, travel = before[name]["goal"], before[name]["goals_sent"], gripper.open - gripper.closed
            is_near = None not in (goal, last) and abs(goal - last) <= gripper.hysteresis * abs(travel)
            is_unsent = sent == last_sent and goal != last and account[name]["state"] != "unsent"
            is_again = sent == last_sent + 1 and is_near and before[name]["state"] in GRIPPER_ENDED
            if sent < last_sent or is_unsent or is_again:
                expected = f"{last_sent}, plus 1 for a change of the goal by more than the hysteresis"
                yield wrong_value("gripper.sent", f"{where}.{name}.goals_sent", sent, expected)

    def warnings(self) -> list[Violation]:
        """Return one warning for all steps with setpoints so late that the motion fell behind."""
        if not self._late_steps:
            return []
        worst_ms, most_ms = 1e3 * self._worst_gap_s, 2e3 / self._rate_hz
        text = (
            f"setpoints sent late in {self._late_steps} step(s): worst gap {worst_ms:.4g} ms (expected at most "
            f"{most_ms:.3g} ms, two periods of {self._rate_hz:g} Hz); lower setpoint_rate_hz, or "
            "use a relay with an idle core"
        )
        return [make_violation("setpoints.late", "info.annotations.setpoints.worst_gap_s", self._worst_gap_s, text)]


def _check_counts(row: Row, account: Account, before: Account | None, where: str) -> Iterator[Violation]:
    is_missing = account["id"] is None
    if "inner" in row and is_missing != has_no_action({"action": given_action(row)}):
        expected = "null for a step without an action, and only then"
        yield wrong_value("chunk.underrun", f"{where}.id", account["id"], expected)
    if before is not None and account["underruns"] != before["underruns"] + is_missing:
        expected = f"{before['underruns'] + is_missing}, the steps without a chunk in the episode"
        yield wrong_value("chunk.underrun", f"{where}.underruns", account["underruns"], expected)
    for name in _COUNTS[1:]:
        if before is not None and account[name] < before[name]:
            yield wrong_value("chunk.underrun", f"{where}.{name}", account[name], f">= {before[name]}")


def _is_later(before: tuple[int, int] | None, place: tuple[int, int]) -> bool:
    """Return whether both id and birth of a chunk are greater than those of the one before it."""
    return before is None or (before[0] < place[0] and before[1] < place[1])
