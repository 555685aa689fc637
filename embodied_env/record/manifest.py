"""The manifest of a run with its contract, backend, wrappers, versions, host and processes."""

from __future__ import annotations

import functools
import json
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import gymnasium

from embodied_env._version import __version__
from embodied_env.contract import Contract, parse_contract
from embodied_env.contract.bounded_files import write_file
from embodied_env.contract.contract_loader import SAVED, dump_contract, pack_files, unpack_files
from embodied_env.core.types import Snapshot, Transition, name_world
from embodied_env.errors import ContractError, RecordError
from embodied_env.record.json_values import encodable, to_json_types
from embodied_env.record.row_types import RUN

ROS_VARIABLES = ("ROS_DISTRO", "ROS_DOMAIN_ID", "RMW_IMPLEMENTATION", "ROS_AUTOMATIC_DISCOVERY_RANGE")
DISTRIBUTIONS = ("numpy", "gymnasium", "mujoco", "rclpy", "mcap")
RECORDER = "embodied_env:RecordTransitions"  # the class of the recorder in the wrappers of a manifest


@runtime_checkable
class RecordableEnv(Protocol):
    """The environment under all wrappers, as far as the recorder uses it."""

    contract: Contract
    backend_name: str
    clock_name: str  # name of the ledger's clock
    pacing: str  # "lockstep" or "realtime"
    capabilities: Any  # a dataclass with the abilities of the backend
    task_description: Mapping[str, Any]
    contract_files: Mapping[str, bytes]  # content of the files that a replay of the contract needs, by name
    last_transition: Transition | None
    last_reset: Snapshot | None  # with its report
    host_timing: bool  # infos of the agent have the durations of the host
    keep_host_timing: Callable[[], None]  # let infos have them, for a recorder that removes them where needed
    mark: Callable[[str], None]  # stamps an event outside the step; "returned": the end of the recorder's own work
    processes: Callable[[], list[dict[str, Any]]]  # role and pid of each process that the environment started


def start_of_manifest(
    env: gymnasium.Env[Any, Any], base: RecordableEnv, *, run_id: str, started_utc: str
) -> dict[str, Any]:
    """Return the manifest of a new run, of the outermost wrapper `env` around `base`."""
    contract = base.contract
    return {
        "schema": RUN,
        "run_id": run_id,
        "clean": False,
        "problem": "",
        "started_utc": started_utc,
        "ended_utc": None,
        "contract": {
            "name": contract.name,
            "version": contract.version,
            "source": contract.source,
            "fingerprint": contract.fingerprint,
            "text": _contract_text(contract),
            "files": pack_files(base.contract_files),
            "robot": describe_robot(contract),
        },
        "task": to_json_types(base.task_description),
        "backend": base.backend_name,
        "backend_fingerprint": contract.backend_fingerprint(base.backend_name),
        "pacing": base.pacing,
        "clock": base.clock_name,
        "scheduling": to_json_types(getattr(base, "scheduling", None)),
        "delays": None if (delays := getattr(base, "delays", None)) is None else to_json_types(delays.as_mapping()),
        "capabilities": to_json_types(vars(base.capabilities)),
        "policy": None,
        "seeds": [],
        "distributions": {
            name: {key: value for key, value in to_json_types(asdict(option)).items() if value is not None}
            for name, option in contract.reset_options.items()
        },
        "wrappers": _wrapper_stack(env),
        "versions": {
            "embodied_env": __version__,
            "python": platform.python_version(),
            **{name: version_of(name) for name in DISTRIBUTIONS},
        },
        "host": _host(),
        "ros": {name: os.environ.get(name) for name in ROS_VARIABLES},
        "processes": processes(base),
        "record": None,
        "chain": None,
    }


def describe_robot(contract: Contract) -> dict[str, Any] | None:
    """Return a contract's robot file, overridden limits and unconfirmed chosen values."""
    if (robot := contract.robot) is None:
        return None
    lists = {"overridden": list(robot.overridden), "unconfirmed": dict(contract.unconfirmed)}
    return {"name": robot.name, "sha256": robot.sha256, **lists}


def name_of_policy(recorded: object) -> object:
    """Return the name in the identity of a policy, or another value itself."""
    return recorded["name"] if isinstance(recorded, dict) and isinstance(recorded.get("name"), str) else recorded


def world_of(manifest: Mapping[str, Any]) -> str:
    """Return "simulator", "emulator", "robot" or "dry run" for what the commands move."""
    flags = manifest.get("capabilities")
    return name_world({"simulated": manifest.get("backend") != "real", **(flags if isinstance(flags, dict) else {})})


def processes(base: RecordableEnv) -> list[dict[str, Any]]:
    """Return role and pid of this process and of those that it started."""
    return [{"role": "environment", "pid": os.getpid()}, *to_json_types(base.processes())]


def contract_of_manifest(manifest: Mapping[str, Any]) -> Contract:
    """Return the contract of a run with the recorded content of its files.

    None of the files is opened.

    Raises:
        RecordError: if the manifest has no contract text.
        ContractError: if the contract cannot be read, or the content of a file does not match its hash.
    """
    recorded = manifest.get("contract")
    if not isinstance(recorded, dict) or not isinstance(recorded.get("text"), str):
        raise RecordError("manifest.json has no contract.text (expected the text of a contract)")
    files = unpack_files(recorded.get("files", {}))
    return parse_contract(recorded["text"], source=str(recorded.get("source", "")), files=files, trusted=False)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` to `path` like `write_text`."""
    write_text(path, encodable(json.dumps(value, indent=2, allow_nan=False)) + "\n")


def write_text(path: Path, text: str, *, replace: bool = True) -> None:
    """Write `text` to `path` like `write_file`, or raise RecordError."""
    try:
        write_file(path, text, replace=replace)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error}") from None


def _contract_text(contract: Contract) -> str:
    """Return `contract` as written if that is the resolved one, else dumped, opening no file."""
    with suppress(ContractError):
        if contract.safety.urdf is None and parse_contract(contract.text, trusted=False) == contract:
            return contract.text
    return dump_contract(contract)


def _wrapper_stack(env: gymnasium.Env[Any, Any]) -> list[dict[str, Any]]:
    """Return class and arguments of each wrapper, outermost first, then of the environment."""
    layers: list[tuple[gymnasium.Env[Any, Any], Mapping[str, Any] | None]] = []
    while isinstance(env, gymnasium.Wrapper):
        layers.append((env, getattr(env, "_saved_kwargs", None)))  # of gymnasium.utils.RecordConstructorArgs
        env = env.env
    layers.append((env, None if env.spec is None else env.spec.kwargs))
    return [
        {
            "class": _class_name(type(layer)),
            "kwargs": None if kwargs is None else {k: _argument(v) for k, v in kwargs.items() if k != "env"},
        }
        for layer, kwargs in layers
    ]


def _class_name(kind: type) -> str:
    """Return the import path of a class, without the module for one of this package."""
    package = kind.__module__.partition(".")[0]
    return f"{package if package == 'embodied_env' else kind.__module__}:{kind.__qualname__}"


def _argument(value: Any) -> Any:  # noqa: ANN401 - of any constructor
    if isinstance(value, Contract):
        return value.name
    if isinstance(value, Mapping) and value.keys() == SAVED:  # a Contract in a spec of `make`
        return value["name"]
    return to_json_types(value)


@functools.cache  # a search of all installed distributions
def version_of(distribution: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _host() -> dict[str, Any]:
    """Describe this machine, with None for the memory if it is unknown."""
    try:
        memory: int | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        memory = None
    return {
        "name": platform.node(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": memory,
    }
