"""YAML to `Contract`. pydantic and yaml are imported only here, and only when a contract is loaded."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from embodied_env.contract.model import SCHEMA, Contract
from embodied_env.errors import ContractError

T = TypeVar("T")

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")

_CONFIG = {"extra": "forbid", "strict": True, "allow_inf_nan": False, "arbitrary_types_allowed": False}


def config_folders() -> Iterator[Path]:
    """Yield where contracts are looked for: ament share folders, the Python prefix, the checkout."""
    for prefix in filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)):
        yield Path(prefix) / "share" / "embodied_env" / "config"
    yield Path(sys.prefix) / "share" / "embodied_env" / "config"
    yield Path(__file__).resolve().parents[2] / "config"


def find_contract(name_or_path: str | Path) -> Path:
    """Return the file of a contract, given its path or its name in one of `config_folders`.

    Raises:
        ContractError: when there is none; it lists what was found instead.
    """
    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")) or os.sep in text:
        if Path(text).is_file():
            return Path(text)
        raise ContractError("", f"there is no file {text!r}")
    known: dict[str, Path] = {}
    for folder in config_folders():
        for file in sorted(folder.glob("*.yaml")):
            known.setdefault(file.stem, file)
    if text in known:
        return known[text]
    raise ContractError(
        "", f"there is no contract {text!r}; known: {', '.join(sorted(known)) or 'none'}; or give a path to a file"
    )


def load_contract(name_or_path: str | Path | Contract) -> Contract:
    """Load and check a contract.

    Args:
        name_or_path: a shipped contract's name (``arm_reach``), a path to a YAML file, or a Contract, returned as is.

    Raises:
        ContractError: for the first thing that is wrong, with its YAML path, its value and what is allowed.
    """
    if isinstance(name_or_path, Contract):
        return name_or_path
    file = find_contract(name_or_path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError("", f"the file cannot be read: {error}", source=str(file)) from None
    return parse_contract(text, source=str(file))


def parse_contract(text: str, *, source: str = "<text>") -> Contract:
    """Build a Contract from YAML text; raises ContractError like `load_contract`."""
    document = _read_yaml(text, source)
    if not isinstance(document, dict):
        raise ContractError("", f"a contract is a mapping, not {type(document).__name__}", source=source)
    schema = document.pop("contract", None)
    if schema != SCHEMA:
        raise ContractError("contract", f"the schema {schema!r} is not known; allowed: {SCHEMA}", source=source)
    for reserved in ("source", "text"):
        if reserved in document:
            raise ContractError(reserved, "unknown key", source=source)
    task = document.get("task")
    if isinstance(task, dict) and "type" in task:
        parameters = {key: value for key, value in task.items() if key != "type"}
        document["task"] = {"type": task["type"], "parameters": parameters}
    return parse_as(Contract, {**document, "source": source, "text": text}, source=source)


def _read_yaml(text: str, source: str) -> Any:  # noqa: ANN401 - YAML types
    import yaml  # noqa: PLC0415 - heavy, needed only here

    class Loader(yaml.SafeLoader):
        """YAML with plain scalars as in YAML 1.2, and no key twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    line = node.start_mark.line + 1
                    raise ContractError(str(key), f"the key stands twice in the mapping at line {line}", source=source)
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {}
    for tag, pattern, first in (
        ("null", r"~|null|", "~n\0"),
        ("bool", r"true|false", "tf"),
        ("int", r"[-+]?[0-9]+", "-+0123456789"),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", "-+0123456789."),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ContractError("", f"not valid YAML: {' '.join(str(error).split())}", source=source) from None


def parse_as(cls: type[T], data: Mapping[str, Any], *, path: str = "", source: str = "") -> T:
    """Build the dataclass `cls` from JSON-like `data`, strictly: no unknown key, no conversion, no NaN.

    Args:
        cls: a dataclass, whose nested dataclasses are built too.
        data: what to build it from.
        path: where `data` stands in its file, put before the path of an error.
        source: the file, named in an error.

    Raises:
        ContractError: for the first thing that does not fit.
    """
    import pydantic  # noqa: PLC0415 - heavy, needed only here

    try:
        text = json.dumps(data)
    except TypeError as error:
        raise ContractError(path, str(error), source=source) from None
    adapter = _adapter(cls)
    try:
        return typing.cast("T", adapter.validate_json(text))
    except pydantic.ValidationError as error:
        errors = error.errors(include_url=False)
        unknown = [e for e in errors if e["type"] in _UNKNOWN_KEY]  # a misspelt key is also a missing one: say the first
        raise _contract_error(cls, data, (unknown or errors)[0], path, source) from None


def _adapter(cls: type) -> Any:  # noqa: ANN401 - a pydantic type
    import pydantic  # noqa: PLC0415

    for nested in _dataclasses_in(cls):
        nested.__pydantic_config__ = _CONFIG  # type: ignore[attr-defined]  # read by pydantic
    return pydantic.TypeAdapter(cls)


def _dataclasses_in(hint: Any) -> set[Any]:  # noqa: ANN401 - a type hint
    found: set[Any] = set()
    if dataclasses.is_dataclass(hint):
        found.add(hint)
        for nested in typing.get_type_hints(hint).values():
            found |= _dataclasses_in(nested)
    for argument in typing.get_args(hint):
        found |= _dataclasses_in(argument)
    return found


def _contract_error(
    cls: type, data: Mapping[str, Any], error: Mapping[str, Any], path: str, source: str
) -> ContractError:
    """Say a pydantic error in words: the YAML path, the value, what is allowed."""
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, ContractError):  # raised by the rules of the model
        return cause
    parts: list[str] = []
    node: Any = data
    hint: Any = cls
    for part in error["loc"]:
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        elif error["type"] != "missing" or part != error["loc"][-1]:
            continue  # a name of the type system, not of the document
        parts.append(str(part))
        if error["type"] not in _UNKNOWN_KEY or part != error["loc"][-1]:
            hint = _hint_of(hint, part)
    where = ".".join([path, *parts] if path else parts).replace("task.parameters.", "task.")
    value = json.dumps(error["input"], default=str)
    if error["type"] == "missing":
        problem = "the key is missing"
    elif error["type"] in _UNKNOWN_KEY:
        allowed = [f.name for f in dataclasses.fields(hint)] if dataclasses.is_dataclass(hint) else []
        allowed = [name for name in allowed if name not in ("source", "text")]
        close = difflib.get_close_matches(parts[-1] if parts else "", allowed, n=1)
        guess = f" (did you mean {close[0]!r}?)" if close else ""
        problem = f"unknown key{guess}; allowed: {', '.join(allowed)}"
    else:
        problem = f"{error['msg']}, not {value}"
    return ContractError(where, problem, source=source)


def _hint_of(hint: Any, part: Any) -> Any:  # noqa: ANN401 - type hints
    """Return the type hint of the value at `part` of a value of type `hint`."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return typing.get_type_hints(hint).get(part, Any)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next((h for h in map(lambda h: _hint_of(h, part), typing.get_args(hint)) if h is not Any), Any)  # noqa: C417
    arguments = typing.get_args(hint)
    return arguments[-1] if arguments else Any
