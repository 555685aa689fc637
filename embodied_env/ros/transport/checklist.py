"""Lines of a checklist, and the error for those that failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from embodied_env.errors import BackendNotReadyError

_START_ROBOT = "start the robot's driver, or its emulator: embodied-env sim <contract> --free-running"
_ABSENT = {
    **dict.fromkeys(("pub.none", "sub.none", "service.none"), _START_ROBOT),
    "relay.silent": "start the relay: embodied-env relay <contract>",
}
"""Code of a check that fails because a node is absent -> remedy."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the checklist.

    `passed` None: not checked, for the reason in `detail`. A failure has a machine-readable `code`, and a `remedy`,
    unless a later check has the remedy of both.
    """

    name: str
    passed: bool | None
    detail: str
    remedy: str = ""
    code: str = ""


def passed(name: str, detail: str) -> Check:
    """Return a check that passed."""
    return Check(name=name, passed=True, detail=detail)


def failed(name: str, detail: str, remedy: str, code: str) -> Check:
    """Return a check that failed."""
    return Check(name=name, passed=False, detail=detail, remedy=remedy, code=code)


def share_remedy(checks: tuple[Check, ...], surroundings: str) -> tuple[Check, ...]:
    """Return `checks` with one remedy, at the last absent node, if the whole robot is absent."""
    absent = [check for check in checks if check.code in _ABSENT]
    of_topics = [check for check in checks if check.name.startswith(("sensors.", "actuators.", "estop.", "active."))]
    if len(absent) < 2 or any(check not in absent for check in of_topics):
        return checks
    remedy = "; ".join([*dict.fromkeys(_ABSENT[check.code] for check in absent), surroundings])
    last = absent[-1]
    return tuple(replace(check, remedy=remedy * (check is last)) if check in absent else check for check in checks)


def raise_unless_passed(checks: Iterable[Check], *, surroundings: str = "") -> None:
    """Raise BackendNotReadyError with the failed checks and their remedies."""
    checks = tuple(checks)
    failures = [check for check in checks if check.passed is False]
    absent = [check for check in failures if check.code in _ABSENT]
    absent = absent if len(absent) > 1 else []
    problems = [
        f"[{check.code}] {check.name}: {check.detail}" + (f" ({check.remedy})" if check.remedy else "")
        for check in failures
        if check not in absent
    ]
    topics: dict[str, list[str]] = {}
    for check in absent:
        topic, _, problem = check.detail.partition(": ")
        topics.setdefault(f"[{check.code}] {problem}", []).append(topic)
    problems += [f"{problem}: {', '.join(names)}" for problem, names in topics.items()]
    if absent:
        remedies = dict.fromkeys([*(_ABSENT[check.code] for check in absent), surroundings])
        problems.append("; ".join(filter(None, remedies)))
    if problems:
        lines = [f"preflight: {len(failures)} of {len(checks)} checks failed", *problems]
        raise BackendNotReadyError("\n- ".join(lines))
