"""Fingerprints, whose equality makes two results comparable."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from embodied_env.contract.contract_schema import EACH_ITS_OWN, PROVENANCE, RESERVED, SCHEMA, ContractFields
from embodied_env.contract.sensor_schema import INFINITIES

SEMANTICS = 2  # bumped by hand when the meaning of the same contract text changes


def to_plain(value: Any, *, with_defaults: bool = True) -> Any:  # noqa: ANN401 - any value of a contract
    """Convert a value of a contract to JSON types, optionally without default values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: to_plain(getattr(value, f.name), with_defaults=with_defaults)
            for f in dataclasses.fields(value)
            if with_defaults or not _is_default(f, getattr(value, f.name))
        }
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, with_defaults=with_defaults) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, with_defaults=with_defaults) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return next(text for text, number in INFINITIES.items() if number == value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _is_default(key: dataclasses.Field[Any], value: object) -> bool:
    if key.default_factory is not dataclasses.MISSING:
        return bool(to_plain(value) == to_plain(key.default_factory()))
    return key.default is not dataclasses.MISSING and bool(value == key.default)


SHIPPED_TASKS: Mapping[str, tuple[str, int]] = {
    "navigate": ("embodied_env.tasks.navigate:Navigate", 1),
    "no_goal": ("embodied_env.tasks.no_goal:NoGoal", 1),
    "open_door": ("embodied_env.tasks.open_door:OpenDoor", 2),
    "reach": ("embodied_env.tasks.reach:Reach", 2),
    EACH_ITS_OWN: ("embodied_env.contract.team:EachItsOwn", 1),
}
"""Task of this package -> its fixed text in the fingerprint, which names no place in the code, and its version.

These tasks are loaded without trust.
"""


def task_meaning(contract: ContractFields, *, with_defaults: bool = False) -> dict[str, Any]:
    """Return the fingerprinted part of the task, with the version of a shipped one."""
    plain: dict[str, Any] = to_plain(contract.task, with_defaults=with_defaults)
    plain.pop("instruction", None)  # a condition of an episode
    if ".py:" in contract.task.type:  # a file by its name, in any folder; its content has a hash of its own
        plain["type"] = f"./{PurePosixPath(contract.task.type).name}"
    if contract.task.type in SHIPPED_TASKS:
        plain["type"], plain["version"] = SHIPPED_TASKS[contract.task.type]
    return plain


def meaning(contract: ContractFields, *, with_defaults: bool = False) -> dict[str, Any]:
    """Return the fingerprinted part of `contract`, without importing or opening anything.

    It has JSON types, and excludes the name, topic names with their QoS, the origin of values (`PROVENANCE`), the
    backend profiles, the blocks with ``fingerprint: false`` and the instruction. The order counts for joints only. A
    file is represented by the hash of its content, which must have been read.
    """
    plain = to_plain(contract, with_defaults=with_defaults)
    for key in ("name", "backends", *PROVENANCE, *RESERVED):
        plain.pop(key, None)
    for topic_owner in (*plain["sensors"].values(), *plain["actuators"].values()):
        topic_owner.pop("topic")
        topic_owner.pop("qos", None)
    plain["joint_order"] = [joint for actuator in contract.actuators.values() for joint in actuator.joints]
    plain["task"] = task_meaning(contract, with_defaults=with_defaults)
    if contract.blocks:  # as written, so that it needs no plug-in
        plain["blocks"] = {
            name: {key: value for key, value in block.items() if key != "fingerprint"}
            for name, block in plain["blocks"].items()
            if block.get("fingerprint", True)
        }
        if not plain["blocks"] and not with_defaults:
            del plain["blocks"]
    if (file := contract.safety.urdf) is not None:
        plain["safety"]["urdf"] = hashlib.sha256(contract.content_of(file)).hexdigest()
    return {"schema": SCHEMA, "semantics": SEMANTICS, **plain}


def sha256_of(value: Any) -> str:  # noqa: ANN401 - JSON types
    """Return the SHA-256 (hex) of the canonical JSON of `value`."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(a: Any, b: Any, path: str = "") -> list[tuple[str, Any, Any]]:  # noqa: ANN401 - JSON types
    """List the paths at which plain values differ, with both (None where one is missing)."""
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
