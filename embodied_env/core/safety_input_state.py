"""The state of a safety input of the robot with a status and its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeAlias


class InputStatus(StrEnum):
    """Status of a safety input, which makes the robot brake unless it is `OK`."""

    OK = "ok"
    ACTIVE = "active"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    PROTECTIVE_STOP = "protective_stop"
    LAPSED = "lapsed"  # a condition that must be active has just been found inactive
    INACTIVE = "inactive"
    UNCLEAR = "unclear"  # a message may be from another publisher
    CONTENTION = "contention"
    RESTARTED = "restarted"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class InputState:
    """Status of a safety input, with the reason in words."""

    status: InputStatus
    detail: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether the input permits motion."""
        return self.status is InputStatus.OK

    def __str__(self) -> str:
        return f"{self.status}: {self.detail}" if self.detail else self.status.value

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the state of a text, unknown for an undefined status or an ok with a reason."""
        status, _, detail = text.partition(": ")
        if status in set(InputStatus) and (status != InputStatus.OK or text == status):
            return cls(InputStatus(status), detail)
        return cls(InputStatus.UNKNOWN, text)


INPUT_OK = InputState(InputStatus.OK)
INPUT_UNKNOWN = InputState(InputStatus.UNKNOWN)

InputStates: TypeAlias = Mapping[str, InputState]


def texts_of(states: InputStates) -> dict[str, str]:
    """Return the states as texts, as they are recorded and sent."""
    return {name: str(state) for name, state in states.items()}


def parse_states(texts: Mapping[str, str]) -> dict[str, InputState]:
    """Return the states of recorded or received texts."""
    return {name: InputState.parse(text) for name, text in texts.items()}
