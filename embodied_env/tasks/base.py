"""The `Task` protocol, how to write a task, and how tasks are loaded.

A task is a class with a version, a frozen keyword-only dataclass of parameters, and `judge`, which judges one step from
the snapshots before and after it and from the applied action. It may also have `reset` (`ResettableTask`), which sets
the state of one episode and returns whether the task is solved before the agent acts. Each environment, slot and agent
has its own task object. A complete task outside the package::

    class Hover:
        '''Stay above a height.'''

        version = 1                                  # bump it when a result changes its meaning
        terms = ("height",)                          # the keys of every TaskResult.terms

        @dataclass(frozen=True, kw_only=True)
        class Parameters:                            # the keys of `task:` in the contract, checked strictly
            sensor: str
            height_m: float = 0.3

        def __init__(self, contract: Contract, parameters: Parameters) -> None:
            self._sensor, self._height_m = parameters.sensor, parameters.height_m

        def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:
            height_m = float(current.samples[self._sensor].values["position"][2])
            verdict = Verdict.running() if height_m >= self._height_m else Verdict.failed("too_low")
            return TaskResult(reward=height_m, verdict=verdict, terms={"height": height_m})

        def reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Verdict | None:    # optional
            return Verdict.running()                 # hovering is never solved at reset

and in the contract ``task: {type: my_package.hover:Hover, sensor: tcp}``, or ``type: ./hover.py:Hover`` for a file
in the folder of the contract. `make` loads it; reading a contract or a run does not.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast, runtime_checkable

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.files import read_file
from embodied_env.contract.fingerprint import SHIPPED_TASKS
from embodied_env.contract.loader import parse_as
from embodied_env.contract.value_checks import naming_file
from embodied_env.core.policy import PolicyFunction
from embodied_env.core.types import Snapshot, TaskResult, Verdict
from embodied_env.errors import ContractError


class Task(Protocol):
    """Computes the reward of a step and whether the task is over. Its class has a dataclass `Parameters`.

    Attributes:
        version: part of the contract's fingerprint.
        terms: the keys of `TaskResult.terms`, fixed.
    """

    version: int
    terms: tuple[str, ...]

    def judge(self, previous: Snapshot, current: Snapshot, applied: FloatArray) -> TaskResult:
        """Judge the step from `previous` to `current`; `applied`: the action, flat over all joints, (n_joints,)."""
        ...


@runtime_checkable
class ResettableTask(Task, Protocol):
    """A task that judges the reset snapshot and may keep state for one episode."""

    def reset(self, snapshot: Snapshot, options: Mapping[str, FloatArray]) -> Verdict | None:
        """Set the state of the new episode and judge its first snapshot.

        It is called once after each reset, and by a replay with the recorded arguments. Verdict and state must depend
        on the arguments only, not on earlier episodes, clocks or random generators. The verdict follows the formula of
        `judge`, so that an episode solved without acting does not count as a success; None: unknown.

        Args:
            snapshot: the readings of the reset; ``snapshot.reset`` is its report.
            options: requested values by reset option; drawn ones are in ``snapshot.reset.sampled``.
        """
        ...


class SiteKinematics(Protocol):
    """Forward kinematics of the sites of a robot, for joint positions of shape (n,).

    Sites have the names of the sensors that report their poses, or their own.
    """

    def position_m(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return the position of `site` in the world frame, shape (3,), m."""
        ...

    def jacobian(self, site: str, joint_positions: FloatArray) -> FloatArray:
        """Return the translational Jacobian of `site`, shape (3, n), m per joint unit."""
        ...


@runtime_checkable
class ScriptedTask(Task, Protocol):
    """A task with a scripted policy: a baseline, and evidence that the task can be solved."""

    def scripted(self, kinematics: SiteKinematics) -> PolicyFunction:
        """Return a policy that uses the observation only."""
        ...


def load_task(contract: Contract, *, trust: bool = False, file: str | Path | None = None) -> Task:
    """Build the task of `contract`: the class named by ``task.type``, with the other keys as its parameters.

    Args:
        contract: the contract of the task.
        trust: load the module or file that the contract names; a shipped task needs no trust.
        file: load this file instead, as ``FILE.py`` or ``FILE.py:Class``; the default class is the contract's.

    Raises:
        ContractError: when the task is not trusted, when the class cannot be loaded or is not a task, and for an
            unknown, missing or wrong key.
    """
    found = _task_class(contract, trust=trust, file=file)
    parameters = getattr(found, "Parameters", None)
    missing = [name for name in ("version", "terms", "judge") if not hasattr(found, name)]
    if not (isinstance(parameters, type) and dataclasses.is_dataclass(parameters)):
        missing.append("Parameters (a dataclass)")
    if missing:
        raise ContractError(
            "task.type",
            f"{contract.task.type!r} is not a task: it has no {', '.join(missing)}; see embodied_env.tasks.base",
            source=contract.source,
        )
    _source_sha256(found)  # caches the hash of the source as loaded
    values = parse_as(cast("type[Any]", parameters), contract.task.parameters, path="task", source=contract.source)
    with naming_file(contract.source):
        return cast("Task", found(contract, values))


def describe_task(task: Task, contract: Contract) -> dict[str, Any]:
    """Return a loaded task's entry in a manifest: name in the contract, version, terms, source (SHA-256)."""
    return {
        "type": contract.task.type,
        "version": task.version,
        "terms": list(task.terms),
        "source_sha256": _source_sha256(type(task)),
    }


def is_shipped(contract: Contract) -> bool:
    """Return whether the task of `contract` is one of this package, which needs no trust."""
    return contract.task.type in SHIPPED_TASKS


def _task_class(contract: Contract, *, trust: bool, file: str | Path | None) -> type:
    """Import the class of the task; a file is executed from its exact path, independent of ``sys.path``."""
    name = contract.task.type
    module_name, _, class_name = name.rpartition(":")
    path = Path(contract.source).parent / module_name if module_name.endswith(".py") else None
    if file is not None:
        name = str(file)
        given, _, own = name.rpartition(":")
        path, class_name = (Path(given), own) if given.endswith(".py") else (Path(name), class_name)
    elif not (trust or is_shipped(contract)):
        remedy = "pass --trust-task or --task FILE (in Python: trust=True or file=...)"
        raise ContractError(
            "task.type",
            f"task not loaded: {name!r} is not trusted (expected a shipped task); {remedy}",
            source=contract.source,
        )
    try:
        module = importlib.import_module(module_name) if path is None else _load_file(path)
        found = getattr(module, class_name)
    except Exception as error:  # the code of a user may raise anything
        problem = f"{name!r} cannot be loaded: {type(error).__name__}: {error}"
        raise ContractError("task.type", problem, source=contract.source) from error
    if not isinstance(found, type):
        problem = f"{name!r} is a {type(found).__name__} (expected a class)"
        raise ContractError("task.type", problem, source=contract.source)
    return found


def _load_file(path: Path) -> ModuleType:
    """Execute a file as a module, once per path and content."""
    path = path.resolve()
    code = read_file(path)
    name = f"embodied_env_task_{hashlib.sha256(bytes(path) + bytes(1) + code).hexdigest()[:32]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__dict__[_SHA256] = hashlib.sha256(code).hexdigest()
    sys.modules[name] = module  # where dataclasses look up type hints
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)  # noqa: S102 - the file that the user named
    except BaseException:
        del sys.modules[name]
        raise
    return module


@functools.cache
def _source_sha256(found: type) -> str:
    """Return the SHA-256 (hex) of the source file of a class, as of the first call."""
    module = sys.modules.get(found.__module__)
    if (known := getattr(module, _SHA256, None)) is not None:
        return str(known)
    try:
        return hashlib.sha256(read_file(inspect.getsourcefile(found) or "")).hexdigest()
    except (OSError, TypeError) as error:
        raise ContractError("task.type", f"source of {found.__qualname__!r} cannot be read: {error}") from None


_SHA256 = "__embodied_env_sha256__"
"""The attribute of a module executed from a file: the SHA-256 of the executed code."""
