"""Wrap a backend of another package: whatever it raises is an error of ours, which ends the episode as any loss."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import gymnasium

from embodied_env.core.foreign_code import foreign_code
from embodied_env.errors import BackendError, BackendLostError, BackendNotReadyError

_BEFORE_MOTION = ("open", "reset", "confirm", "verify")
_CALLS = frozenset(_BEFORE_MOTION) | {"send", "advance", "read", "newest", "estops", "has_arrived", "compute_in"}
_CALLS |= {"close", "processes", "render", "show", "observe"}


def guard_backend(name: str, world: Any) -> Any:  # noqa: ANN401 - it may lack a part of a backend, or have more
    """Return the backend called `name` with the abilities of `world`, whose errors are errors of ours.

    They are BackendNotReadyError before the robot moves, else BackendLostError; an error of `halt` is a warning. Its
    class lists the attributes of `world`, because from Python 3.12 on `isinstance` looks for abilities only there.
    """
    names = [each for each in dir(world) if not each.startswith("_")]
    members = {each: property(partial(_read, name=name, attribute=each)) for each in names}
    return type("ForeignBackend", (_Foreign,), members)(world)


class _Foreign:
    """Reads other attributes from the wrapped object."""

    def __init__(self, world: Any) -> None:  # noqa: ANN401 - as above
        self._wrapped = world

    def __getattr__(self, attribute: str) -> Any:  # noqa: ANN401 - as above
        return getattr(self._wrapped, attribute)


def _read(self: _Foreign, *, name: str, attribute: str) -> Any:  # noqa: ANN401 - of the type that the attribute has
    value = getattr(self._wrapped, attribute)
    if attribute == "observers":
        return tuple(guard_backend(name, observer) for observer in value)
    if attribute == "halt":
        return partial(_halt, name, value)
    return partial(_call, name, attribute, value) if attribute in _CALLS else value


def _call(name: str, call: str, method: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - any method
    with foreign_code(partial(_error_of, name, call)):
        return method(*arguments, **named)


def _halt(name: str, halt: Any, reason: str) -> None:  # noqa: ANN401 - as above
    """Halt the backend; an error must not end the braking or the account of the step."""
    try:
        _call(name, "halt", halt, reason)
    except BackendError as error:
        with contextlib.suppress(UserWarning):  # a warning turned into an error
            gymnasium.logger.warn(str(error))


def _error_of(name: str, call: str, what: str) -> BackendError:
    problem = f"backend {name!r} failed in {call}(): {what}"
    why = what.partition(":")[0]
    return BackendNotReadyError(problem) if call in _BEFORE_MOTION else BackendLostError(why, problem)
