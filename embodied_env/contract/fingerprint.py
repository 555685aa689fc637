"""Fingerprints: what two results must share to be comparable."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from embodied_env.contract.model import SCHEMA, Contract
from embodied_env.errors import ContractError

SEMANTICS = 1
"""Bumped by hand when the same contract text begins to mean something else."""


def to_plain(value: Any) -> Any:  # noqa: ANN401 - any value of a contract
    """Turn a value of a contract into JSON types; numbers that are equal look equal."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def task_class(contract: Contract) -> type:
    """Import the class named by ``task.type``.

    Raises:
        ContractError: when it cannot be imported or is not a class.
    """
    module_name, _, class_name = contract.task.type.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ContractError(
            "task.type", f"{contract.task.type!r} cannot be imported: {error}", source=contract.source
        ) from None
    if not isinstance(found, type):
        raise ContractError("task.type", f"{contract.task.type!r} is not a class", source=contract.source)
    return found


def task_identity(contract: Contract) -> dict[str, Any]:
    """Return what identifies the task: class, version, and the hash of its source when it is not one of ours."""
    task = task_class(contract)
    identity: dict[str, Any] = {"type": contract.task.type, "version": getattr(task, "version", None)}
    if task.__module__.partition(".")[0] != "embodied_env":
        try:
            source = inspect.getsource(inspect.getmodule(task) or task)
        except (OSError, TypeError) as error:
            raise ContractError(
                "task.type", f"the source of {contract.task.type!r} cannot be read: {error}", source=contract.source
            ) from None
        identity["source_sha256"] = hashlib.sha256(source.encode()).hexdigest()
    return identity


def meaning(contract: Contract) -> dict[str, Any]:
    """Return everything that gives a result of `contract` its meaning, as JSON types.

    Left out: the name, topic names and their QoS, and the backend profiles. The order of the joints counts, that of
    other keys not.
    """
    plain = to_plain(contract)
    for key in ("name", "source", "text", "backends"):
        del plain[key]
    for topic_owner in (*plain["sensors"].values(), *plain["actuators"].values()):
        del topic_owner["topic"], topic_owner["qos"]
    plain["joint_order"] = [joint for actuator in contract.actuators.values() for joint in actuator.joints]
    plain["task"] = {**plain["task"], **task_identity(contract)}
    return {"schema": SCHEMA, "semantics": SEMANTICS, **plain}


def _sha256(value: Any) -> str:  # noqa: ANN401 - JSON types
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def contract_fingerprint(contract: Contract) -> str:
    """Return the SHA-256 of the canonical JSON of `meaning`."""
    return _sha256(meaning(contract))


def backend_fingerprint(contract: Contract, backend: str) -> str:
    """Return the SHA-256 of the canonical JSON of one backend's name and profile."""
    return _sha256({"backend": backend, "profile": to_plain(contract.backends.get(backend, {}))})


def differences(a: Any, b: Any, path: str = "") -> list[tuple[str, Any, Any]]:  # noqa: ANN401 - JSON types
    """List the paths at which two plain values differ, with both values (None where one has nothing)."""
    if isinstance(a, dict) and isinstance(b, dict):
        found: list[tuple[str, Any, Any]] = []
        for key in dict.fromkeys([*a, *b]):
            where = f"{path}.{key}" if path else str(key)
            both = key in a and key in b
            found += differences(a[key], b[key], where) if both else [(where, a.get(key), b.get(key))]
        return found
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{path}[{i}]")]
    same = a == b and isinstance(a, bool) == isinstance(b, bool)  # 1 == True, but not in JSON
    return [] if same else [(path, a, b)]
