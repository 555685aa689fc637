"""Rules of the accounts of chunks, setpoints and grippers in ``info.annotations``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.key_types import Quantity, WholeNumber
from embodied_env.contract.typed_values import Keywords, check_value
from embodied_env.core.policy import CHUNK_MODES
from embodied_env.errors import RecordError
from embodied_env.extensions.audit.row_pair_rules import AnyRow
from embodied_env.record.row_schema import Violation, make_violation, short_repr, wrong_value
from embodied_env.record.row_types import RESET, StepRow, TransitionRow
from embodied_env.record.rows import given_action, is_no_action, is_staged
from embodied_env.safety.relay.relay_protocol import GRIPPER_ENDED, GripperAccount, SetpointAccount
from embodied_env.timing.clock import NS_PER_S

Grippers = dict[str, GripperAccount]
_BLENDING = ("crossfade", "ensemble")
_ROUNDING = 1e-9
_LONGEST_GAP = 2.0 * (1.0 + 1e-6)  # periods of setpoints, beyond which the motion falls behind


class EarlierPrompt(TypedDict):
    """The prompt of chunks computed before it changed, and their weight in the action."""

    instruction: str
    weight: Quantity


class _MayBeAbsent(TypedDict, total=False):
    earlier_prompt: EarlierPrompt


class ChunkAccount(_MayBeAbsent):
    """Account of the action chunks of a step, with null where there is no chunk."""

    mode: Annotated[str, Keywords(enum=CHUNK_MODES)]
    id: WholeNumber | None
    born: WholeNumber | None
    age: WholeNumber | None
    weight: Quantity | None
    length: WholeNumber | None
    older: list[list[Quantity]]
    underruns: WholeNumber
    expired: WholeNumber
    failed: WholeNumber


_AT_RESET = ChunkAccount(
    mode="", id=None, born=None, age=None, weight=None, length=None, older=[], underruns=0, expired=0, failed=0
)


class AccountRules:
    """Each account of a step has its fields, and follows from the step and the last one."""

    def __init__(
        self, contract: Contract | None, array: Callable[[Mapping[str, Any]], NDArray[Any]] | None = None
    ) -> None:
        """Check the actions of chunks only with `array`, which returns that of a reference."""
        self._array = array
        self._declared_hz = None if contract is None else contract.setpoints_per_step / contract.control_period_s
        actuators = {} if contract is None else contract.actuators
        self._grippers = {name: actuator for name, actuator in actuators.items() if actuator.is_action}
        self._late_steps, self._worst_gap_s, self._rate_hz = 0, 0.0, 0.0
        self._rules: dict[str, tuple[str, Any, Callable[[StepRow, Any, Any, str], Iterator[Violation]]]] = {
            "chunk": ("chunk.account", ChunkAccount, self._check_chunk),
            "setpoints": ("setpoints.account", SetpointAccount, self._check_setpoints),
            "grippers": ("gripper.account", Grippers, self._check_grippers),
        }
        self.forget()

    def forget(self) -> None:
        """Discard the previous row, which the next one does not directly follow."""
        self._before: dict[str, Any] = {}  # the accounts of the previous step
        self._row: TransitionRow | None = None
        self._newest: tuple[int, int] | None = None  # id and birth of the newest chunk so far
        self._actions: tuple[int, NDArray[Any]] | None = None  # id and actions of the newest recorded chunk

    def add(self, row: AnyRow) -> Iterator[Violation]:
        """Check the next row, with the counts of an episode from 0 after a reset."""
        if row["schema"] == RESET:
            self.forget()
            self._before["chunk"] = _AT_RESET
            return
        accounts = row["info"].get("annotations", {})
        earlier, self._before = self._before, {}
        for name, (rule, kind, check) in self._rules.items():
            account, where = accounts.get(name), f"info.annotations.{name}"
            is_foreign = name == "chunk" and account is not None and account.get("mode") not in CHUNK_MODES
            if account is None or is_foreign or (name == "grippers" and not self._grippers):
                continue
            try:
                check_value(account, where, kind)
                yield from check(row, account, earlier.get(name), where)
                self._before[name] = account
            except ValueError as error:
                yield make_violation(rule, where, account, str(error))
        self._row = None if row["inner"] is None else row
        if "chunk" not in self._before:
            self._newest = None

    def _check_chunk(
        self, row: StepRow, account: ChunkAccount, before: ChunkAccount | None, where: str
    ) -> Iterator[Violation]:
        """Check that the action is from the account's chunks, and that other steps are counted."""
        chunks = _chunks_of(account, where)
        yield from _check_counts(row, account, before, where)
        if not chunks:
            return
        if "earlier_prompt" in account:
            _check_earlier_prompt(row, account["earlier_prompt"], where)
        weights, places = [chunk[2] for chunk in chunks], [chunk[:2] for chunk in chunks]
        age = row["info"]["step_index"] - 1 - places[-1][1]
        if account["age"] != age:
            yield wrong_value("chunk.age", f"{where}.age", account["age"], f"{age}, the steps since {places[-1][1]}")
        is_one = account["mode"] in _BLENDING or len(chunks) == 1
        if not is_one or min(weights) <= 0.0 or abs(sum(weights) - 1.0) > _ROUNDING:
            expected = "positive ones that add up to 1, of one chunk unless the mode blends"
            yield wrong_value("chunk.weight", f"{where}.weight", weights, expected)
        last, self._newest = self._newest, max(places[-1], self._newest or places[-1])
        is_kept = last is None or dict(places).get(last[0], last[1]) == last[1]
        is_next = account["mode"] == "ensemble" or last == places[-1] or _is_later(last, places[-1])
        if not (is_kept and is_next and all(_is_later(a, b) for a, b in pairwise(places))):
            yield wrong_value("chunk.order", f"{where}.id", places, f"ids and births that increase, after {last}")
        if row["inner"] is not None and self._array is not None:
            yield from self._check_actions(row, account, age, where)

    def _check_actions(self, row: TransitionRow, account: ChunkAccount, age: int, where: str) -> Iterator[Violation]:
        """Check that an action of a single chunk is the one at its place in the recorded chunk."""
        inputs, place = row["inner"]["external_inputs"], "inner.external_inputs.chunk"
        if (recorded := inputs.get("chunk")) is not None and self._array is not None:
            try:
                actions = self._array(recorded["actions"])
            except RecordError:  # reported as `array.missing`
                self._actions = None
                return
            found = [recorded["id"], recorded["born"], *actions.shape[:-1]]
            described = [account["id"], account["born"], account["length"]]
            if actions.dtype != np.float64 or found != described:
                yield wrong_value("chunk.actions", place, recorded, f"id, birth and length {described}, as in {where}")
                return
            self._actions = recorded["id"], actions
        if self._actions is None or self._actions[0] != account["id"] or account["older"] or is_staged(row["inner"]):
            return
        actions, requested = self._actions[1], row["inner"]["report"]["requested"]
        row_of_chunk = actions[age] if 0 <= age < len(actions) else np.empty(0)
        planned = [value if math.isfinite(value) else None for value in row_of_chunk.tolist()]
        if planned != requested:
            expected = f"{short_repr(planned)}, action {age} of chunk {account['id']}"
            yield wrong_value("chunk.actions", "inner.report.requested", requested, expected)

    def _check_setpoints(
        self, row: StepRow, account: SetpointAccount, before: SetpointAccount | None, where: str
    ) -> Iterator[Violation]:
        """Check the rate, and that number and worst gap of the setpoints fit the time of steps."""
        rate_hz, sent, gap_s = account["rate_hz"], account["sent"], account["worst_gap_s"]
        if rate_hz <= 0.0 or gap_s < 0.0 or self._declared_hz not in (None, rate_hz):
            raise ValueError(f"{where}: {account} (expected setpoint_rate_hz of the contract, and a gap >= 0)")
        if gap_s * rate_hz > _LONGEST_GAP:
            self._late_steps, self._rate_hz = self._late_steps + 1, rate_hz
            self._worst_gap_s = max(self._worst_gap_s, gap_s)
        if before is None or self._row is None or row["inner"] is None:
            return
        now_ns, stamps_ns = row["inner"]["stamps_ns"]["observed"], self._row["inner"]["stamps_ns"]
        elapsed_s = (now_ns - stamps_ns["entered"]) / NS_PER_S
        longest_s = (now_ns - stamps_ns["previous_entered"]) / NS_PER_S
        most = elapsed_s * rate_hz + 2  # no least, since a relay that stalls sends none
        if sent > most:
            yield wrong_value("setpoints.sent", f"{where}.sent", sent, f"at most {most:.0f} in {elapsed_s} s")
        if gap_s > longest_s:
            yield wrong_value("setpoints.gap", f"{where}.worst_gap_s", gap_s, f"at most {longest_s}, two steps")

    def _check_grippers(
        self, _: StepRow, account: Grippers, before: Grippers | None, where: str
    ) -> Iterator[Violation]:
        """Check that each goal is within its joint's limits, and sent and counted when it changes."""
        if account.keys() != self._grippers.keys():
            raise ValueError(f"{where}: {short_repr(account)} (expected {', '.join(self._grippers)})")
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
            is_near = goal is not None and last is not None and abs(goal - last) <= gripper.hysteresis * abs(travel)
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


def _chunks_of(account: ChunkAccount, where: str) -> list[tuple[int, int, float]]:
    """Return id, birth and weight of an action's chunks, newest last, or raise ValueError."""
    newest = [account["id"], account["born"], account["weight"]]
    values = [*newest, account["age"], account["length"]]
    if not any((account["older"], "earlier_prompt" in account, *(value is not None for value in values))):
        return []
    if None in values:
        raise ValueError(f"{where}: {short_repr(account)} (expected a chunk, or null for all of it and no other one)")
    found = []
    for chunk in (*account["older"], newest):
        match chunk:
            case [int(number), int(born), int() | float() as weight] if number >= 0 and born >= 0:
                found.append((number, born, weight))
            case _:
                raise ValueError(f"{where}: chunk {chunk} (expected id, birth and weight, or null for all)")
    return found


def _check_earlier_prompt(row: StepRow, earlier: EarlierPrompt, where: str) -> None:
    is_other = earlier["instruction"] != row["info"].get("instruction")
    if not (is_other and 0.0 < earlier["weight"] <= 1.0 + _ROUNDING):
        raise ValueError(
            f"{where}.earlier_prompt: {earlier} (expected another prompt than that of the step, and a weight)"
        )


def _check_counts(row: StepRow, account: ChunkAccount, before: ChunkAccount | None, where: str) -> Iterator[Violation]:
    is_missing = account["id"] is None
    if row["inner"] is not None and is_missing != is_no_action(given_action(row["inner"])):
        expected = "null for a step without an action, and only then"
        yield wrong_value("chunk.underrun", f"{where}.id", account["id"], expected)
    if before is None:
        return
    if account["underruns"] != before["underruns"] + is_missing:
        expected = f"{before['underruns'] + is_missing}, the steps without a chunk in the episode"
        yield wrong_value("chunk.underrun", f"{where}.underruns", account["underruns"], expected)
    counts = {
        "expired": (account["expired"], before["expired"]),
        "failed": (account["failed"], before["failed"]),
    }
    for name, (count, earlier) in counts.items():
        if count < earlier:
            yield wrong_value("chunk.underrun", f"{where}.{name}", count, f">= {earlier}")


def _is_later(before: tuple[int, int] | None, place: tuple[int, int]) -> bool:
    """Return whether both id and birth of a chunk are greater than those of the one before it."""
    return before is None or (before[0] < place[0] and before[1] < place[1])
