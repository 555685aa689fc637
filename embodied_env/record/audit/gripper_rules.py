"""Rules of the accounts of grippers with an action server, ``info.annotations.grippers``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from embodied_env.contract import Contract
from embodied_env.core.codes import GRIPPER_STATES
from embodied_env.record.audit.sequence_rules import is_reset
from embodied_env.record.audit.violation import Violation, make_violation, wrong_value
from embodied_env.record.rows import Row

_WHERE = "info.annotations.grippers"
_ENDED = ("reached", "stalled", "rejected", "failed")  # not sent again


class GripperRule:
    """A goal is within the limits of its joint, and is sent and counted when it changes.

    Backends in which a topic carries the goals have no accounts.
    """

    def __init__(self, contract: Contract | None) -> None:
        actuators = {} if contract is None else contract.actuators
        self._actuators = {name: actuator for name, actuator in actuators.items() if actuator.is_action}
        self.forget()

    def forget(self) -> None:
        """Forget the previous row: the next one does not directly follow it."""
        self._before: Mapping[str, Mapping[str, Any]] = {}

    def add(self, row: Row) -> Iterator[Violation]:
        """Check the next row."""
        annotations = row["info"].get("annotations")
        accounts = annotations.get("grippers") if isinstance(annotations, Mapping) else None
        before, self._before = self._before, {}
        if is_reset(row) or not self._actuators or accounts is None:
            return
        if not isinstance(accounts, Mapping) or not all(_is_sound(accounts.get(name)) for name in self._actuators):
            text = f"{_WHERE} has no goal, state and goals_sent of each of {', '.join(self._actuators)}"
            yield make_violation("gripper.account", _WHERE, accounts, text)
            return
        self._before = accounts
        for name in self._actuators:
            yield from self._check_goal(name, accounts[name], before.get(name))

    def _check_goal(
        self, name: str, account: Mapping[str, Any], before: Mapping[str, Any] | None
    ) -> Iterator[Violation]:
        actuator, goal, where = self._actuators[name], account["goal"], f"{_WHERE}.{name}"
        (limits,), gripper = actuator.joints.values(), actuator.gripper
        if goal is not None and limits.position and not limits.position[0] <= goal <= limits.position[1]:
            yield wrong_value("gripper.goal", f"{where}.goal", goal, f"one from {list(limits.position)}, the limits")
        if before is None or gripper is None:
            return
        sent, is_new = account["goals_sent"] - before["goals_sent"], goal != before["goal"]
        step = gripper.hysteresis * abs(gripper.open - gripper.closed)
        is_small = is_new and None not in (goal, before["goal"]) and abs(goal - before["goal"]) <= step
        wrong = {
            "as many as before or more": sent < 0,
            "one more, for another goal": is_new and sent == 0 and account["state"] != "unsent",
            "as many as before, for a goal that has ended": not is_new and sent == 1 and before["state"] in _ENDED,
            "as many as before, for a change within the hysteresis": sent == 1 and is_small,
        }
        for expected in (text for text, is_wrong in wrong.items() if is_wrong):
            yield wrong_value("gripper.sent", f"{where}.goals_sent", account["goals_sent"], expected)


def _is_sound(account: object) -> bool:
    """Return whether an account has the right fields: a goal unless there was none since the reset."""
    if not isinstance(account, Mapping) or account.get("state") not in GRIPPER_STATES:
        return False
    goal, count = account.get("goal"), account.get("goals_sent")
    is_goal = goal is None if account["state"] == "idle" else type(goal) in (int, float)
    return is_goal and type(count) is int and count >= 0
