"""Call a task and check its result, with its file and line in every error."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from reprlib import repr as shown
from typing import Any, ClassVar

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.types import Snapshot, TaskResult, Verdict, field_values
from embodied_env.errors import TaskError, described, did_you_mean
from embodied_env.processes.signals import Terminated
from embodied_env.tasks.task import ResettableTask, Task

_SNAPSHOTS_AND_ACTION = 3
_OWN = "embodied_env."  # modules of this package
_NUMBERS = (float, int, np.floating, np.integer)


class FunctionTask:
    """The task of one function, for which `class_of_function` makes a subclass of its own."""

    version: int
    terms: tuple[str, ...]
    function: ClassVar[Callable[..., Any]]

    def __init__(self, contract: Contract, parameters: Any) -> None:  # noqa: ANN401 - of the function
        self._keywords = field_values(parameters)
        self._no_motion = np.zeros(sum(len(actuator.joints) for actuator in contract.actuators.values()))

    def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:
        """Call the function, or raise TaskError unless it returns reward, success and terms."""
        name, result = self.function.__name__, self.function(previous, current, applied, **self._keywords)
        names = ("reward", "success", "terms") if self.terms else ("reward", "success")
        if not isinstance(result, tuple) or len(result) != len(names):
            is_longer = isinstance(result, tuple) and len(result) > len(names)
            remedy = f"; declare the terms: {name}.terms = (...)" if is_longer else ""
            raise TaskError(f"{name} returned {shown(result)} (expected ({', '.join(names)})){remedy}")
        if not isinstance(result[1], bool | np.bool_):
            raise TaskError(f"{name} returned success {shown(result[1])} (expected True or False)")
        terms = result[2] if self.terms else {}
        return TaskResult(reward=result[0], verdict=Verdict(success=bool(result[1])), terms=terms)

    def reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Verdict:  # noqa: ARG002 - protocol
        """Return whether the function finds success in the reset snapshot, without motion."""
        return self.judge(snapshot, snapshot, self._no_motion.copy()).verdict


@functools.cache
def class_of_function(function: Callable[..., Any], version: int) -> type[FunctionTask]:
    """Return the class of the task `function`, or raise TypeError if it is none."""
    module = {"__module__": function.__module__}
    parameters = dataclasses.make_dataclass(
        "Parameters", _parameters(function), frozen=True, kw_only=True, namespace=module
    )
    own = {"version": version, "terms": vars(function).get("terms", ())}
    own |= {"Parameters": parameters, "function": staticmethod(function)}
    return type(function.__name__, (FunctionTask,), {**module, **own})


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    found, hints = inspect.getfullargspec(function), typing.get_type_hints(function)
    if len(found.args) != _SNAPSHOTS_AND_ACTION or found.varargs or found.varkw:
        expected = "a class, or a function of (previous, current, applied) and keyword-only parameters"
        raise TypeError(f"arguments {', '.join(inspect.signature(function).parameters)} (expected {expected})")
    defaults = found.kwonlydefaults or {}
    for name in found.kwonlyargs:
        if name not in hints and defaults.get(name) is None:
            raise TypeError(f"parameter {name!r} without a type (expected an annotation such as {name}: float)")
        field = dataclasses.field(default=defaults[name]) if name in defaults else dataclasses.field()
        yield name, hints.get(name, type(defaults.get(name))), field


def judge_step(
    task: Task, contract: Contract, previous: Snapshot, current: Snapshot, applied: FloatArray
) -> TaskResult:
    """Return the result of `task.judge` with plain floats and ordered terms.

    Raises TaskError for an invalid result or an error of the task. A task of another package receives copies, because
    the next step and the record use the originals.
    """
    try:
        if not type(task).__module__.startswith(_OWN):
            previous, current, applied = _copied(previous), _copied(current), applied.copy()
        result: Any = task.judge(previous, current, applied)
        if not (isinstance(result, TaskResult) and isinstance(result.verdict, Verdict)):
            raise TaskError(f"judge returned {shown(result)} (expected a TaskResult with a Verdict)")  # noqa: TRY301
        reward, terms, names = result.reward, result.terms, task.terms
        if type(terms) is dict and tuple(terms) == names and type(reward) is float and isfinite(reward):
            for value in terms.values():
                if type(value) is not float or not isfinite(value):
                    break
            else:
                return result
        if not isinstance(terms, Mapping) or (tuple(terms) != names and set(terms) != set(names)):
            raise TaskError(f"terms {shown(terms)} (expected the keys {names}, as declared in `terms`)")  # noqa: TRY301
        values = {name: _number(name, terms[name]) for name in names}
        return TaskResult(reward=_number("reward", reward), verdict=result.verdict, terms=values)
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the code of a user may raise anything, and call sys.exit
        raise _located(error, task, task.judge, contract) from (None if isinstance(error, TaskError) else error)


def judge_reset(
    task: ResettableTask, contract: Contract, snapshot: Snapshot, options: Mapping[str, FloatArray]
) -> Verdict | None:
    """Return the verdict of `task.reset`, with copies as in `judge_step`, or raise TaskError."""
    try:
        if not type(task).__module__.startswith(_OWN):
            snapshot = _copied(snapshot)
        verdict: Any = task.reset(snapshot, options)
        if not isinstance(verdict, Verdict | None):
            raise TaskError(f"reset returned {shown(verdict)} (expected a Verdict or None)")  # noqa: TRY301
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
        raise _located(error, task, task.reset, contract) from (None if isinstance(error, TaskError) else error)
    return verdict


def _number(name: str, value: Any) -> float:  # noqa: ANN401 - of foreign code
    if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not isfinite(value):
        raise TaskError(f"{name} {shown(value)} (expected a finite number)")
    return float(value)


def _copied(snapshot: Snapshot) -> Snapshot:
    """Return a copy with the same arrays, which are read-only."""
    samples = {
        name: dataclasses.replace(sample, values=dict(sample.values)) for name, sample in snapshot.samples.items()
    }
    return dataclasses.replace(snapshot, samples=samples)


def _located(error: BaseException, task: Task, method: Callable[..., Any], contract: Contract) -> TaskError:
    place = _place(error, task, method, contract)
    if isinstance(error, TaskError):
        return TaskError(f"task {place}: {error}", why=error.why)
    return TaskError(f"task {place}: {described(error)}{hint(error, contract)}", why=type(error).__name__)


def _place(error: BaseException, task: Task, method: Callable[..., Any], contract: Contract) -> str:
    """Return file and line of the task in the traceback, or else of the called function."""
    own = getattr(sys.modules.get(type(task).__module__), "__file__", None)
    places = [(at.filename, at.lineno) for at in traceback.extract_tb(error.__traceback__) if at.filename == own]
    called = task.function if isinstance(task, FunctionTask) else method
    if (code := getattr(called, "__code__", None)) is not None:
        places.insert(0, (code.co_filename, code.co_firstlineno))
    file, line = places[-1] if places else (contract.task.type, 0)
    name = contract.task.type.rpartition(":")[0]
    is_named = name.endswith(".py") and (Path(contract.source).parent / name).resolve() == Path(file)
    return f"{name if is_named else file}:{line}"


def hint(error: BaseException, contract: Contract) -> str:
    """Return what the contract declares for a KeyError, and the name that may be meant."""
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        sensors = {name: list(sensor.fields) for name, sensor in contract.sensors.items()}
        known = "; ".join(f"{name}: {', '.join(fields)}" for name, fields in sensors.items())
        names = [*sensors, *(field for fields in sensors.values() for field in fields)]
        return f" (sensors and fields of the contract: {known}){did_you_mean(error.args[0], names)}"
    return did_you_mean(error.name, dir(error.obj)) if isinstance(error, AttributeError) else ""
