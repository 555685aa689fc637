"""Load the task of a contract, a class or function of a module or a file."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import inspect
import sys
import traceback
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

from embodied_env.contract import Contract
from embodied_env.contract.bounded_files import read_file
from embodied_env.contract.fingerprint import SHIPPED_TASKS
from embodied_env.contract.typed_values import parse_as
from embodied_env.contract.value_checks import naming_file
from embodied_env.errors import ContractError, described, did_you_mean
from embodied_env.plugins.plugin_lookup import get_plugin
from embodied_env.processes.signals import Terminated
from embodied_env.tasks.judging import class_of_function, hint
from embodied_env.tasks.task import Task
from embodied_env.tasks.task_parts import ArrayTask


def load_task(contract: Contract, *, trust: bool = False, file: str | Path | None = None) -> Task:
    """Build the task of `contract`, whose class or function is ``task.type``.

    The other keys of ``task`` are its parameters.

    Args:
        contract: the contract of the task.
        trust: load the package, module or file that the contract names; a shipped task needs no trust.
        file: load this file instead, as ``FILE.py`` or ``FILE.py:NAME``; the default name is the contract's.

    Raises:
        ContractError: when the task is not trusted, when it cannot be loaded or is not one, and for an
            unknown, missing or wrong key.
    """
    found = _task_class(contract, trust=trust, file=file)
    parameters = getattr(found, "Parameters", None)
    missing = [name for name in ("version", "terms", "judge") if not hasattr(found, name)]
    if not (isinstance(parameters, type) and dataclasses.is_dataclass(parameters)):
        missing.append("Parameters (a dataclass)")
    terms = getattr(found, "terms", ())
    is_named = isinstance(terms, tuple | list) and all(isinstance(term, str) for term in terms)
    if not (is_named and len(set(terms)) == len(terms)):
        missing.append("tuple of different names as terms")
    if not isinstance(getattr(found, "version", 0), int):
        missing.append("whole number as version")
    if missing:
        raise ContractError(
            "task.type",
            f"{contract.task.type!r} is not a task: it has no {', '.join(missing)}; see embodied_env.tasks.task",
            source=contract.source,
        )
    _source_sha256(found)  # caches the hash of the source as loaded
    try:
        values = parse_as(cast("type[Any]", parameters), contract.task.parameters, path="task", source=contract.source)
        with naming_file(contract.source):
            task = cast("Task", found(contract, values))
    except (ContractError, Terminated):
        raise
    except (Exception, SystemExit) as error:  # the code of a user may raise anything, and call sys.exit
        problem = f"{contract.task.type!r} cannot be made: {described(error)}{hint(error, contract)}"
        raise ContractError("task.type", problem, source=contract.source) from error
    if isinstance(task, ArrayTask):
        task.n_joints = sum(len(actuator.joints) for actuator in contract.actuators.values())
    return task


def describe_task(task: Task, contract: Contract) -> dict[str, Any]:
    """Return a loaded task's entry in a manifest, with the SHA-256 of its source."""
    return {
        "type": contract.task.type,
        "version": task.version,
        "terms": list(task.terms),
        "source_sha256": _source_sha256(type(task)),
    }


def is_shipped(contract: Contract) -> bool:
    """Return whether the task of `contract` is one of this package, which needs no trust."""
    return contract.task.type in SHIPPED_TASKS


def find_task(contract: Contract) -> str:
    """Return ``module:NAME`` or ``FILE.py:NAME`` of the task, or raise ContractError."""
    name = contract.task.type
    if ":" in name:
        return name
    return get_plugin("tasks", name, error=functools.partial(ContractError, "task.type", source=contract.source)).target


def _task_class(contract: Contract, *, trust: bool, file: str | Path | None) -> type:
    """Import the class of the task, or execute its exact file, without ``sys.path``."""
    name = contract.task.type if file is None else str(file)
    path, module_name, class_name = _place_of(contract, file)
    if file is None and not (trust or is_shipped(contract)):
        remedy = "pass --trust-task or --task FILE (in Python: trust=True or file=...)"
        raise ContractError(
            "task.type",
            f"task not loaded: {name!r} is not trusted (expected a shipped task); {remedy}",
            source=contract.source,
        )
    module = None
    try:
        module = importlib.import_module(module_name) if path is None else _load_file(path)
        found = getattr(module, class_name)
        if inspect.isfunction(found):
            found = class_of_function(found, version=int(_source_sha256(found)[:8], 16))
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # as above
        guess = did_you_mean(class_name, vars(module)) if module is not None else ""
        if path is None and isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            file = f"./{module_name.replace('.', '/')}.py:{class_name}"
            guess = f" (expected an installed module); name a file by its path from the contract, {file!r}"
        frames = traceback.extract_tb(error.__traceback__)
        lines = [at.lineno for at in frames if path is not None and Path(at.filename).name == path.name]
        line = f" at line {lines[-1]}" if lines else ""
        problem = f"{name!r} cannot be loaded{line}: {described(error)}{guess}"
        raise ContractError("task.type", problem, source=contract.source) from error
    if not isinstance(found, type):
        problem = f"{name!r} is a {type(found).__name__} (expected a class or a function)"
        raise ContractError("task.type", problem, source=contract.source)
    return found


def _place_of(contract: Contract, file: str | Path | None) -> tuple[Path | None, str, str]:
    """Return the file of a task or None, its module without a file, and its name."""
    given, _, own = str(file or "").rpartition(":")
    if given.endswith(".py"):
        return Path(given), "", own
    module, _, name = find_task(contract).rpartition(":")
    if file is not None:
        return Path(file), "", name
    return (Path(contract.source).parent / module, "", name) if module.endswith(".py") else (None, module, name)


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
def _source_sha256(found: type | FunctionType) -> str:
    """Return the SHA-256 (hex) of the source file of a class or function, as of the first call."""
    module = sys.modules.get(found.__module__)
    if (known := getattr(module, _SHA256, None)) is not None:
        return str(known)
    try:
        return hashlib.sha256(read_file(inspect.getsourcefile(found) or "")).hexdigest()
    except (OSError, TypeError) as error:
        raise ContractError("task.type", f"source of {found.__qualname__!r} cannot be read: {error}") from None


_SHA256 = "__embodied_env_sha256__"
"""The attribute of a module executed from a file: the SHA-256 of the executed code."""
