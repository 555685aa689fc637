"""Call a task and check what it returns; every error names the file and the line of the task."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.types import Snapshot, TaskResult, Verdict
from embodied_env.errors import TaskError, described, did_you_mean
from embodied_env.tasks.base import ResettableTask, Task
from embodied_env.tasks.functions import FunctionTask, WrongResultError, shown


def judge_step(
    task: Task, contract: Contract, previous: Snapshot, current: Snapshot, applied: FloatArray
) -> TaskResult:
    """Return the result of `task.judge` with finite numbers and the declared terms; raises TaskError."""
    try:
        result: Any = task.judge(previous, current, applied)
        return result if _is_plain(result, task) else _checked(result, task)
    except Exception as error:  # noqa: BLE001 - the code of a user may raise anything
        raise _task_error(error, task, task.judge, contract) from _cause(error)


def judge_reset(
    task: ResettableTask, contract: Contract, snapshot: Snapshot, options: Mapping[str, FloatArray]
) -> Verdict | None:
    """Return the verdict of `task.reset`; raises TaskError."""
    try:
        verdict: Any = task.reset(snapshot, options)
        if not isinstance(verdict, Verdict | None):
            raise WrongResultError(  # noqa: TRY301 - as judge's
                f"reset returned {shown(verdict)} (expected a Verdict or None)"
            )
    except Exception as error:  # noqa: BLE001 - the code of a user may raise anything
        raise _task_error(error, task, task.reset, contract) from _cause(error)
    return verdict


def hint(error: BaseException, contract: Contract) -> str:
    """Return what the contract declares, for a KeyError by name, and the name that may be meant."""
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        sensors = {name: list(sensor.fields) for name, sensor in contract.sensors.items()}
        known = "; ".join(f"{name}: {', '.join(fields)}" for name, fields in sensors.items())
        names = [*sensors, *(field for fields in sensors.values() for field in fields)]
        return f" (sensors and fields of the contract: {known}){did_you_mean(error.args[0], names)}"
    if isinstance(error, AttributeError) and error.name is not None:
        return did_you_mean(error.name, dir(error.obj))
    return ""


def _is_plain(result: Any, task: Task) -> bool:  # noqa: ANN401 - of foreign code
    """Return whether a result needs no conversion; the checks of almost every step."""
    return (
        type(result) is TaskResult
        and type(result.verdict) is Verdict
        and type(result.reward) is float
        and isfinite(result.reward)
        and type(result.terms) is dict
        and tuple(result.terms) == task.terms
        and all(type(value) is float and isfinite(value) for value in result.terms.values())
    )


def _checked(result: Any, task: Task) -> TaskResult:  # noqa: ANN401 - of foreign code
    """Return a result with plain floats and the terms in their order; raises WrongResultError."""
    if not isinstance(result, TaskResult):
        raise WrongResultError(f"judge returned {shown(result)} (expected a TaskResult)")
    if not isinstance(result.verdict, Verdict):
        raise WrongResultError(f"verdict {shown(result.verdict)} (expected a Verdict)")
    reward, names = _number("reward", result.reward), tuple(task.terms)
    if not isinstance(result.terms, Mapping) or set(result.terms) != set(names):
        found = list(result.terms) if isinstance(result.terms, Mapping) else result.terms
        raise WrongResultError(f"terms {shown(found)} (expected {list(names)}, as declared in `terms`)")
    terms = {name: _number(f"term {name!r}", result.terms[name]) for name in names}
    return TaskResult(reward=reward, verdict=result.verdict, terms=terms)


def _number(what: str, value: object) -> float:
    is_number = isinstance(value, float | int | np.floating | np.integer) and not isinstance(value, bool)
    if not (is_number and isfinite(value)):  # type: ignore[arg-type] # a number
        raise WrongResultError(f"{what} {shown(value)} (expected a finite number)")
    return float(value)  # type: ignore[arg-type] # a number


def _cause(error: Exception) -> BaseException | None:
    return error.__cause__ if isinstance(error, TaskError) else None if isinstance(error, WrongResultError) else error


def _task_error(error: Exception, task: Task, method: Callable[..., Any], contract: Contract) -> TaskError:
    """Return the TaskError for an error in `method` of `task`."""
    if isinstance(error, TaskError):  # of a record
        return error
    where = _place(error, task, method, contract)
    if isinstance(error, WrongResultError):
        return TaskError(f"task {where}: {error}", why="wrong_result")
    return TaskError(f"task {where}: {described(error)}{hint(error, contract)}", why=type(error).__name__)


def _place(error: Exception, task: Task, method: Callable[..., Any], contract: Contract) -> str:
    """Return file and line: the last line of the task in the traceback, or where the called function begins."""
    called: Any = task.function if isinstance(task, FunctionTask) else method
    own = getattr(sys.modules.get(type(task).__module__), "__file__", None)
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    begin = [(code.co_filename, code.co_firstlineno)] if (code := getattr(called, "__code__", None)) is not None else []
    found = [place for place in lines if place[0] == own] or begin
    if not found:
        return contract.task.type
    file, line = found[-1]
    name = contract.task.type.rpartition(":")[0]
    is_named = name.endswith(".py") and (Path(contract.source).parent / name).resolve() == Path(file)
    return f"{name if is_named else file}:{line}"
