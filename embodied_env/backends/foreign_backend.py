"""Wrap a backend of another package: whatever it raises is an error of ours, which ends the episode as any loss."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import gymnasium

from embodied_env.core.foreign_code import foreign_code
from embodied_env.errors import BackendError, BackendLostError, BackendNotReadyError

_BEFORE_MOTION = ("open", "reset", "confirm", "verify")
_CALLS = frozenset(_BEFORE_MOTION) | {"send", "advance", "read", "newest", "estops", "has_arrived"}
_CALLS |= {"close", "processes", "render", "show", "observe"}


def guard_backend(name: str, world: Any) -> Any:  # noqa: ANN401 - a Backend with any abilities, or its observer
    """Return the backend called `name` with the abilities of `world`, whose errors are errors of ours.

    They are BackendNotReadyError before the robot moves, else BackendLostError; an error of `halt` is a warning. Its
    class lists the attributes of `world`, because from Python 3.12 on `isinstance` looks for abilities only there.
    """

    def read(_: object, attribute: str) -> Any:  # noqa: ANN401 - of the type that the attribute has
        value = getattr(world, attribute)
        if attribute == "observers":
            return tuple(guard_backend(name, observer) for observer in value)
        if attribute == "halt":
            return partial(_halt, name, value)
        return partial(_call, name, attribute, value) if attribute in _CALLS else value

    names = [each for each in dir(world) if not each.startswith("_")]
    members = {each: property(partial(read, attribute=each)) for each in names}
    return type("ForeignBackend", (), {**members, "__getattr__": read})()


def _call(name: str, call: str, method: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - any method
    def error_of(what: str) -> BackendError:
        problem = f"backend {name!r} failed in {call}(): {what}"
        is_lost = call not in _BEFORE_MOTION
        return BackendLostError(what.partition(":")[0], problem) if is_lost else BackendNotReadyError(problem)

    with foreign_code(error_of):
        return method(*arguments, **named)


def _halt(name: str, halt: Any, reason: str) -> None:  # noqa: ANN401 - as above
    """Halt the backend; an error must not end the braking or the account of the step."""
    try:
        _call(name, "halt", halt, reason)
    except BackendError as error:
        with contextlib.suppress(UserWarning):  # a warning turned into an error
            gymnasium.logger.warn(str(error))
