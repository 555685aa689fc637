"""Rules of the accounts of grippers with an action server, ``info.annotations.grippers``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.schema import GripperSpec
from embodied_env.record.audit.violation import Violation, make_violation, wrong_value
from embodied_env.record.rows import Row

_WHERE = "info.annotations.grippers"
_ENDED = ("rejected", "failed", "reached", "stalled")  # not sent again
_STATES = ("idle", "unsent", "sent", "accepted", *_ENDED)


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
        """Check the next row; that of a reset has no account."""
        annotations = row["info"].get("annotations")
        accounts = annotations.get("grippers") if isinstance(annotations, Mapping) else None
        before, self._before = self._before, {}
        if not self._actuators or accounts is None:
            return
        if not isinstance(accounts, Mapping) or not all(_is_sound(accounts.get(name)) for name in self._actuators):
            text = f"{_WHERE} has no goal, state and goals_sent of each of {', '.join(self._actuators)}"
            yield make_violation("gripper.account", _WHERE, accounts, text)
            return
        self._before = accounts
        for name, actuator in self._actuators.items():
            (limits,), goal, where = actuator.joints.values(), accounts[name]["goal"], f"{_WHERE}.{name}"
            if goal is not None and limits.position and not limits.position[0] <= goal <= limits.position[1]:
                yield wrong_value("gripper.goal", f"{where}.goal", goal, f"{list(limits.position)}, the limits")
            gripper = actuator.gripper if before else None
            if gripper is not None and _is_miscounted(before[name], accounts[name], gripper):
                expected = f"{before[name]['goals_sent']}, plus 1 for a change of the goal by more than the hysteresis"
                yield wrong_value("gripper.sent", f"{where}.goals_sent", accounts[name]["goals_sent"], expected)


def _is_sound(account: object) -> bool:
    """Return whether an account has the right fields: a goal unless there was none since the reset."""
    if not isinstance(account, Mapping) or account.get("state") not in _STATES:
        return False
    goal, count = account.get("goal"), account.get("goals_sent")
    is_goal = goal is None if account["state"] == "idle" else type(goal) in (int, float)
    return is_goal and type(count) is int and count >= 0


def _is_miscounted(before: Mapping[str, Any], account: Mapping[str, Any], gripper: GripperSpec) -> bool:
    """Return whether the goals sent since `before` do not fit its goal and state."""
    goals, sent = (before["goal"], account["goal"]), account["goals_sent"] - before["goals_sent"]
    is_near = None not in goals and abs(goals[1] - goals[0]) <= gripper.hysteresis * abs(gripper.open - gripper.closed)
    is_unsent = sent == 0 and goals[0] != goals[1] and account["state"] != "unsent"
    return sent < 0 or is_unsent or (sent == 1 and is_near and before["state"] in _ENDED)
