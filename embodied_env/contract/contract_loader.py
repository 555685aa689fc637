"""Load contracts from YAML."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import logging
import os
import sys
import typing
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from embodied_env.contract.bounded_files import read_file, read_text_file
from embodied_env.contract.contract import Contract
from embodied_env.contract.contract_schema import RESERVED, SCHEMA, ContractFields, RobotSource
from embodied_env.contract.fingerprint import to_plain
from embodied_env.contract.model_files import with_model_hashes
from embodied_env.contract.robot_files import RobotFile, loosened, merge_robot, rebase_robot
from embodied_env.contract.typed_values import parse_as
from embodied_env.contract.value_checks import one_of
from embodied_env.contract.yaml_text import read_yaml
from embodied_env.errors import ContractError, did_you_mean
from embodied_env.plugins.plugin_lookup import installed_plugins

_log = logging.getLogger(__name__)
ROBOTS = "robots"  # the folder of shipped robot files, in a folder of shipped contracts
SAVED = {"name", "source", "text", "files", "trusted"}  # the keys of a saved contract
_TASK_KEYS = ("type", "instruction")  # the others are parameters of the task

_LONGEST_SHOWN = 400  # characters of an argument in a message


def config_folders() -> Iterator[Path]:
    """Yield the contract folders of the checkout, the ament prefixes and the Python prefix."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "package.xml").is_file():  # first: an editable install has copies in the other folders
        yield checkout / "config"
    for prefix in filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)):
        yield Path(prefix) / "share" / "embodied_env" / "config"
    yield Path(sys.prefix) / "share" / "embodied_env" / "config"


def shipped_files(folder: str = "", suffix: str = ".yaml") -> dict[str, Path]:
    """Return the shipped contracts, robot files, teams or policies of a folder by name."""
    known: dict[str, Path] = {}
    for config in config_folders():
        for file in sorted((config / folder).glob(f"*{suffix}")):
            known.setdefault(file.stem, file)
    return known


def known_robots() -> dict[str, Path]:
    """Return the shipped robot files and those of plug-ins, which are not imported."""
    found = {}
    for plugin in installed_plugins("robots"):
        module, _, name = plugin.target.partition(":")
        top, *parts = module.split(".")
        spec = find_spec(top)
        folders = (spec.submodule_search_locations if spec is not None else None) or [""]
        found[plugin.name] = Path(folders[0], *parts, name)
    return {**found, **shipped_files(ROBOTS)}


def _check_unique(robot: str) -> None:
    """Raise ContractError for the name of a robot file that two packages register."""
    packages = [plugin.package for plugin in installed_plugins("robots") if plugin.name == robot]
    if packages and robot in shipped_files(ROBOTS):
        packages.insert(0, "embodied_env")
    if len(packages) > 1:
        problem = f"{robot!r} is registered twice in the group embodied_env.robots: by {' and '.join(packages)}"
        raise ContractError("robot", f"{problem}; uninstall one of them")


def find_contract(name_or_path: str | Path, *, kind: str = "contract", folder: str = "") -> Path:
    """Return the file of a contract or team by path or name, or raise ContractError."""
    text = str(name_or_path)
    is_path = text.endswith((".yaml", ".yml")) or os.sep in text
    if is_path and os.path.isfile(text):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        return Path(text)
    known = known_robots() if folder == ROBOTS else shipped_files(folder)
    if folder == ROBOTS:
        _check_unique(text)
    if not is_path and text in known:
        return known[text]
    kinds = {"contract": shipped_files(), "robot": known_robots(), "team": shipped_files("teams")}
    other = next((f", which is a {name}" for name, names in kinds.items() if text in names), "")
    guess = did_you_mean(Path(text).stem, known)
    expected = f"a path, or one of: {', '.join(sorted(known)) or 'none'}"
    if is_path and os.path.isdir(text):  # noqa: PTH112 - as above
        raise ContractError("", f"not a file: {text!r} is a directory (expected {expected})")
    problem = f"no such {'file' if is_path else kind}: {text[:_LONGEST_SHOWN]!r}{other} (expected {expected}){guess}"
    raise ContractError("", problem)


def read_contract_file(file: Path) -> str:
    """Return the text of a contract or team file, or raise ContractError."""
    try:
        return read_text_file(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError("", f"cannot read the file: {error}", source=str(file)) from None


def read_document(text: str, kind: str, source: str, *, schema: str = SCHEMA) -> dict[str, Any]:
    """Return the YAML mapping of a ``contract`` or ``team``, or raise ContractError."""
    document = read_yaml(text, source)
    if not isinstance(document, dict):
        found = "empty" if document is None else type(document).__name__
        raise ContractError("", f"not a file with the key {kind}: {found} (expected a YAML mapping)", source=source)
    if kind not in document:
        other = next((f": a {name} file" for name in ("contract", "robot", "team") if document.get(name) == SCHEMA), "")
        raise ContractError(kind, f"missing key{other} (expected {kind}: {schema})", source=source)
    found = document.pop(kind)
    if found != schema:
        raise ContractError(kind, f"unknown schema {found!r} (expected {schema})", source=source)
    return document


def _complete_axes(document: Mapping[str, Any]) -> None:
    """Set the omitted keys of twist axes and action servers to null for the schema."""
    actuators = document.get("actuators")
    for actuator in actuators.values() if isinstance(actuators, dict) else ():
        if not isinstance(actuator, dict):
            continue
        keys = ["position"] if actuator.get("command") == "twist" else []
        keys += ["acceleration"] if "/action/" in str(actuator.get("type")) else []
        joints = actuator.get("joints")
        for limits in joints.values() if isinstance(joints, dict) else ():
            for key in keys if isinstance(limits, dict) else ():
                limits.setdefault(key, None)


def load_contract(name_or_path: str | Path | Contract) -> Contract:
    """Load a contract by shipped name or path, or return one unchanged.

    Raises ContractError for the first error, with the `others`.
    """
    if isinstance(name_or_path, Contract):
        return name_or_path
    file = find_contract(name_or_path)
    _log.debug("load the contract %s", file)
    return parse_contract(read_contract_file(file), source=str(file))


def parse_contract(
    text: str, *, source: str = "<text>", files: Mapping[str, bytes] | None = None, trusted: bool = True
) -> Contract:
    """Build a Contract from YAML text, or raise ContractError like `load_contract`.

    The files that it names are relative to the folder of `source`, and are read unless `files` has them by name. A
    contract that is not `trusted`, that of a run, opens no file and imports no task.
    """
    document = read_document(text, "contract", source)
    for reserved in RESERVED:
        if reserved in document:
            raise ContractError(reserved, "unknown key (reserved for the loader)", source=source)
    robot = None
    if isinstance(document.get("robot"), str):
        robot, document = _with_robot_file(document, source, trusted=trusted)
    _complete_axes(document)
    task = document.get("task")
    if isinstance(task, dict):
        own = {key: value for key, value in task.items() if key in _TASK_KEYS}
        document["task"] = {**own, "parameters": {k: v for k, v in task.items() if k not in _TASK_KEYS}}
    document |= {"source": source, "text": text, "files": files or {}, "trusted": trusted}
    fields = parse_as(ContractFields, document, source=source)
    contract = Contract(**vars(with_model_hashes(fields) if trusted else fields))
    if robot is not None:
        contract = _limited_by_robot(contract, robot)
    return contract if contract.safety.urdf is None else _with_limits_of_urdf(contract, contract.safety.urdf)


def load_robot_file(name: str, *, source: str = "") -> tuple[Path, RobotFile]:
    """Return a robot file by name or path relative to `source`, or raise ContractError."""
    file, _, _, robot = _read_robot_file(name, source)
    return file, robot


def _with_robot_file(document: Mapping[str, Any], source: str, *, trusted: bool) -> tuple[RobotFile, dict[str, Any]]:
    name: str = document["robot"]
    if not trusted:
        problem = f"robot file not opened: {name!r}, named by the contract of a run (expected a resolved contract)"
        raise ContractError("robot", problem, source=source)
    _, text, own, robot = _read_robot_file(name, source)
    try:
        return robot, merge_robot(dict(document), own, text)
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=source) from None


def _read_robot_file(name: str, source: str) -> tuple[Path, str, dict[str, Any], RobotFile]:
    """Return a robot file's path, text, document and keys, with paths relative to the contract."""
    is_path = name.endswith((".yaml", ".yml")) or os.sep in name
    try:
        file = find_contract(Path(source).parent / name if is_path else name, kind="robot", folder=ROBOTS)
    except ContractError as error:
        raise ContractError("robot", error.problem, source=source) from None
    text = read_contract_file(file)
    own = rebase_robot(read_document(text, "robot", str(file)), file.parent, Path(source).parent)
    _complete_axes(own)
    return file, text, own, parse_as(RobotFile, own, source=str(file))


def _limited_by_robot(contract: Contract, robot: RobotFile) -> Contract:
    """Record the limits that `contract` overrides, or raise ContractError for loosened ones."""
    found = loosened(robot, contract)
    if not found:
        return contract
    if not contract.override_robot_limits:
        path, theirs, ours = found[0]
        more = f"; also {', '.join(path for path, _, _ in found[1:])}" if found[1:] else ""
        raise ContractError(
            path,
            f"{ours} loosens the limit {theirs} of the robot file {robot.name!r} (expected a value at least as tight); "
            f"tighten it, or set override_robot_limits: true{more}",
            source=contract.source,
        )
    overridden = tuple(path for path, _, _ in found)
    origin = typing.cast("RobotSource", contract.robot)
    return dataclasses.replace(contract, robot=dataclasses.replace(origin, overridden=overridden))


def _with_limits_of_urdf(contract: Contract, file: str) -> Contract:
    from embodied_env.contract.urdf import parse_urdf, tightened  # noqa: PLC0415 - only where there is one

    if contract.trusted and not contract.files:
        try:
            contract = dataclasses.replace(contract, files={file: read_file(contract.resolve_path(file))})
        except OSError as error:
            raise ContractError("safety.urdf", f"cannot read the file: {error}", source=contract.source) from None
    try:
        robot = parse_urdf(contract.content_of(file), source=file)
        actuators = {
            name: actuator
            if actuator.command == "twist"
            else dataclasses.replace(actuator, joints=tightened(actuator.joints, robot))
            for name, actuator in contract.actuators.items()
        }
        return dataclasses.replace(contract, actuators=actuators)
    except ContractError as error:
        path = error.path if error.path.startswith("safety.") else f"safety.urdf: {error.path}"
        raise ContractError(path, error.problem, source=contract.source) from None


def dump_contract(contract: Contract) -> str:
    """Return `contract` as one line of JSON, from which `parse_contract` builds an equal one."""
    plain = to_plain(contract)
    for own in RESERVED:
        del plain[own]
    plain["task"] |= plain["task"].pop("parameters")
    return json.dumps({"contract": SCHEMA, **plain}, allow_nan=False)


def save_contract(contract: Contract) -> dict[str, Any]:
    """Return `contract` with its files as a mapping of JSON types, for `restore_contract`."""
    return {
        "name": contract.name,
        "source": contract.source,
        "text": dump_contract(contract),
        "files": pack_files(contract.files),
        "trusted": contract.trusted,
    }


def restore_contract(saved: Mapping[str, Any]) -> Contract:
    """Return the contract saved by `save_contract`, or raise like `parse_contract`."""
    if saved.keys() != SAVED:
        raise ContractError("", f"not a saved contract: keys {sorted(saved)} (expected {sorted(SAVED)})")
    files, is_trusted = unpack_files(saved["files"]), saved["trusted"] is True
    return parse_contract(saved["text"], source=saved["source"], files=files or None, trusted=is_trusted)


def pack_files(files: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    """Return the contents of files as JSON types, each with its SHA-256 (hex)."""
    return {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "base64": base64.b64encode(content).decode()}
        for name, content in files.items()
    }


def unpack_files(packed: object) -> dict[str, bytes]:
    """Return the contents packed by `pack_files`, or raise ContractError for damaged ones."""
    if not isinstance(packed, Mapping):
        raise ContractError("files", f"{type(packed).__name__} (expected a mapping of files by name)")
    files = {}
    for name, entry in packed.items():
        try:
            content = base64.b64decode(entry["base64"], validate=True)
            is_sound = hashlib.sha256(content).hexdigest() == entry["sha256"]
        except (TypeError, KeyError, ValueError):
            is_sound = False
        if not is_sound:
            raise ContractError("files", f"damaged content of {name!r} (expected base64 with its SHA-256)")
        files[name] = content
    return files


def backend_profile(contract: Contract, backend: str) -> Mapping[str, Any]:
    """Return the profile ``backends.<backend>`` of `contract`, or raise ContractError."""
    if backend in contract.backends:
        return contract.backends[backend]
    problem = f"no profile in the contract for backend {one_of(backend, contract.backends)}"
    raise ContractError(f"backends.{backend}", problem, source=contract.source)
