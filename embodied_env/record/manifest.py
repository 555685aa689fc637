"""The manifest of a run: which contract, world, wrappers, versions, host and processes its rows come from."""

from __future__ import annotations

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
from embodied_env.contract.loader import SAVED, dump_contract, pack_files, unpack_files
from embodied_env.core.types import Snapshot, Transition
from embodied_env.errors import ContractError, RecordError
from embodied_env.record.rows import encodable, to_json_types
from embodied_env.record.schema import RUN

ROS_VARIABLES = ("ROS_DISTRO", "ROS_DOMAIN_ID", "RMW_IMPLEMENTATION", "ROS_AUTOMATIC_DISCOVERY_RANGE")
DISTRIBUTIONS = ("numpy", "gymnasium", "mujoco", "rclpy", "mcap")


@runtime_checkable
class HasWaitHook(Protocol):
    """An environment that calls `_on_waiting` in each step, where it would only wait for its world."""

    _on_waiting: Callable[[], None] | None


@runtime_checkable
class RecordableEnv(Protocol):
    """What the recorder needs of the environment under all wrappers."""

    @property
    def contract(self) -> Contract:
        """The contract in force."""
        ...

    @property
    def backend_name(self) -> str:
        """Which world is behind it."""
        ...

    @property
    def clock_name(self) -> str:
        """Which clock is under the ledger."""
        ...

    @property
    def last_transition(self) -> Transition | None:
        """The full account of the last step."""
        ...

    @property
    def last_reset(self) -> Snapshot | None:
        """What the last reset came up with, its report included."""
        ...

    def mark(self, name: str) -> None:
        """Stamp the end of something outside of the step; ``returned``: of the recorder's own work."""
        ...

    def processes(self) -> list[dict[str, Any]]:
        """Return role and pid of each process that was started for it."""
        ...


def start_of_manifest(
    env: gymnasium.Env[Any, Any], base: RecordableEnv, *, run_id: str, started_utc: str
) -> dict[str, Any]:
    """Return the manifest of a run that begins: what is known before the first reset.

    Args:
        env: the outermost wrapper.
        base: the environment under all wrappers.
        run_id: the name of the run directory.
        started_utc: ISO 8601.
    """
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
            "text": contract_text(contract),
            "files": pack_files(getattr(base, "contract_files", contract.files)),
        },
        "task": to_json_types(getattr(base, "task_description", None)),
        "backend": base.backend_name,
        "backend_fingerprint": contract.backend_fingerprint(base.backend_name),
        "pacing": to_json_types(getattr(base, "pacing", None)),
        "clock": base.clock_name,
        "scheduling": to_json_types(getattr(base, "scheduling", None)),
        "delays": None if (delays := getattr(base, "delays", None)) is None else to_json_types(delays.as_mapping()),
        "capabilities": to_json_types(vars(capabilities))
        if (capabilities := getattr(base, "capabilities", None))
        else None,
        "policy": None,
        "seeds": [],
        "distributions": distributions(contract),
        "wrappers": wrapper_stack(env),
        "versions": versions(),
        "host": host(),
        "ros": ros(),
        "processes": processes(base),
        "record": None,
        "rows_sha256": None,
    }


def distributions(contract: Contract) -> dict[str, dict[str, Any]]:
    """Return what each reset draws by its seed, unless it is told: the range of each reset option."""
    return {
        name: {"distribution": "uniform", **to_json_types(asdict(option))}
        for name, option in contract.reset_options.items()
    }


def host() -> dict[str, Any]:
    """Return which machine this is: its name, system, processor and memory, in bytes (None: not known)."""
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


def ros() -> dict[str, str | None]:
    """Return what the surroundings say of ROS 2; None for what they do not say."""
    return {name: os.environ.get(name) for name in ROS_VARIABLES}


def contract_text(contract: Contract) -> str:
    """Return the text of `contract`: as it was written, if that is the resolved contract; no file is opened."""
    with suppress(ContractError):
        if contract.safety.urdf is None and parse_contract(contract.text, trusted=False) == contract:
            return contract.text
    return dump_contract(contract)


def contract_of_manifest(manifest: Mapping[str, Any]) -> Contract:
    """Return the contract of a run, with the recorded content of its files: nothing that it names is opened.

    Raises:
        RecordError: when the manifest has no text of a contract.
        ContractError: when the contract cannot be read, or the content of a file is not as it was recorded.
    """
    said = manifest.get("contract")
    if not isinstance(said, dict) or not isinstance(said.get("text"), str):
        raise RecordError("manifest.json has no contract.text")
    files = unpack_files(said.get("files", {}))
    return parse_contract(said["text"], source=str(said.get("source", "")), files=files, trusted=False)


def wrapper_stack(env: gymnasium.Env[Any, Any]) -> list[dict[str, Any]]:
    """Return class and constructor arguments of each wrapper, outermost first, then of the environment itself.

    The arguments are None for a wrapper that does not record them.
    """
    stack = []
    while isinstance(env, gymnasium.Wrapper):
        arguments = getattr(env, "_saved_kwargs", None)  # of gymnasium.utils.RecordConstructorArgs
        stack.append(_layer(env, arguments))
        env = env.env
    stack.append(_layer(env, None if env.spec is None else env.spec.kwargs))
    return stack


def _layer(env: gymnasium.Env[Any, Any], arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    known = None if arguments is None else {k: _argument(v) for k, v in arguments.items() if k != "env"}
    return {"class": f"{type(env).__module__}:{type(env).__qualname__}", "kwargs": known}


def _argument(value: Any) -> Any:  # noqa: ANN401 - any constructor's
    if isinstance(value, Contract):
        return value.name
    if isinstance(value, Mapping) and value.keys() == SAVED:  # a Contract, in a spec of `make`
        return value["name"]
    return to_json_types(value)


def versions() -> dict[str, str | None]:
    """Return the versions of what made the rows; None for what is not installed."""
    found: dict[str, str | None] = {"embodied_env": __version__, "python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def processes(base: RecordableEnv) -> list[dict[str, Any]]:
    """Return role and pid of this process and of those that it started."""
    return [{"role": "environment", "pid": os.getpid()}, *to_json_types(base.processes())]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` to `path`, indented, in one go: a reader sees the old file or the new one.

    Raises:
        RecordError: when it cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(encodable(json.dumps(value, indent=2, allow_nan=False)) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise RecordError(f"{path}: the file cannot be written: {error}") from None
