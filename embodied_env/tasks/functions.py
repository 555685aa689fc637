"""Tasks that are one function: it returns the reward of a step and whether the step succeeds."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.types import Snapshot, TaskResult, Verdict, field_values

_SNAPSHOTS_AND_ACTION = 3
_LONGEST_SHOWN = 100  # characters of a value in a message
_MISSING = inspect.Parameter.empty


class WrongResultError(Exception):
    """A task returned something else than it should."""


class FunctionTask:
    """The task of one function; each function has a subclass of its own, made by `class_of_function`."""

    version: int
    terms: tuple[str, ...]
    Parameters: ClassVar[type]
    function: ClassVar[Callable[..., Any]]

    def __init__(self, contract: Contract, parameters: Any) -> None:  # noqa: ANN401 - of the function
        """Keep the arguments of the function."""
        self._keywords = field_values(parameters)
        self._no_motion = np.zeros(sum(len(actuator.joints) for actuator in contract.actuators.values()))

    def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:
        """Call the function; raises WrongResultError unless it returns reward, success and its terms, if any."""
        result, name = self.function(previous, current, applied, **self._keywords), self.function.__name__
        expected = "(reward, success, terms)" if self.terms else "(reward, success)"
        if not isinstance(result, tuple) or len(result) != expected.count(",") + 1:
            remedy = "" if self.terms else f"; name further terms by {name}.terms = (...)"
            raise WrongResultError(f"{name} returned {shown(result)} (expected {expected}){remedy}")
        reward, success, *terms = result
        if not isinstance(success, bool | np.bool_):
            raise WrongResultError(f"{name} returned success {shown(success)} (expected True or False)")
        return TaskResult(reward=reward, verdict=Verdict(success=bool(success)), terms=terms[0] if terms else {})

    def reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Verdict:  # noqa: ARG002 - protocol
        """Return whether the function finds success in the reset snapshot, without motion."""
        return self.judge(snapshot, snapshot, self._no_motion.copy()).verdict


@functools.cache
def class_of_function(function: Callable[..., Any], version: int) -> type[FunctionTask]:
    """Return the class of the task `function`; raises TypeError for a function that is not a task."""
    parameters = dataclasses.make_dataclass(
        f"{function.__name__}_parameters",
        _parameters(function),
        frozen=True,
        kw_only=True,
        namespace={"__module__": function.__module__},
    )
    members = {
        "__module__": function.__module__,
        "__doc__": function.__doc__,
        "version": version,
        "terms": tuple(vars(function).get("terms", ())),
        "Parameters": parameters,
        "function": staticmethod(function),
    }
    return type(function.__name__, (FunctionTask,), members)


def shown(value: object) -> str:
    """Return the `repr` of a value of a task, shortened."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of the keyword-only arguments."""
    hints, arguments = typing.get_type_hints(function), inspect.signature(function).parameters
    positional = [p.name for p in arguments.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = [p.name for p in arguments.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(positional) != _SNAPSHOTS_AND_ACTION or others:
        expected = "expected a class, or a function of (previous, current, applied) and keyword-only parameters"
        raise TypeError(f"it has the arguments ({', '.join(arguments)}) ({expected})")
    for name in list(arguments)[_SNAPSHOTS_AND_ACTION:]:
        default = arguments[name].default
        if name not in hints and default in (_MISSING, None):
            raise TypeError(f"its parameter {name!r} has no type (expected an annotation such as {name}: float)")
        hint = hints.get(name, type(default))
        yield name, hint, dataclasses.field() if default is _MISSING else dataclasses.field(default=default)
