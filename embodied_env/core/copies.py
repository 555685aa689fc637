"""Which `step` hands out copies of its own account: whoever keeps the account need not copy what was handed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Step = TypeVar("_Step", bound=Callable[..., Any])


def gives_copies(step: _Step) -> _Step:
    """Mark a method `step`: observation, reward, ends and info are copies of those of `last_transition`."""
    step.gives_copies = step  # type: ignore[attr-defined] # itself: what is wrapped around it has its attributes, too
    return step


def is_giving_copies(step: Callable[..., Any]) -> bool:
    """Say whether `step`, mostly a bound method, is one that was marked, and not one that overrides or wraps it."""
    function = getattr(step, "__func__", step)
    return getattr(function, "gives_copies", None) is function
