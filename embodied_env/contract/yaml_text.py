"""Bounded, strict YAML: the only parser of contract and team files, which may be untrusted."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from embodied_env.contract.value_checks import check_text
from embodied_env.errors import ContractError, escaped

MOST_CHARACTERS = 2**20
MOST_NODES = 50_000
"""Scalars, lists and mappings of a document, with each alias counted as the nodes it repeats."""

DEEPEST = 50
"""Levels of nesting."""

_LONGEST_SHOWN = 80  # characters of a key in a message
_INTEGERS = range(-(2**63), 2**64)

_SCALARS: Mapping[str, tuple[str, list[str]]] = {  # tag: pattern of the plain scalars, and their first characters
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
}


def read_yaml(text: str, source: str) -> Any:  # noqa: ANN401 - YAML types
    """Return the value of the YAML document `text` in bounded time and memory; `source` is named in errors.

    Plain scalars are those of the core schema of YAML 1.2, integers decimal only; keys are text. Raises ContractError
    for duplicate keys, tags other than ``!!str``, recursive aliases, integers beyond 64 bits, and documents beyond
    `MOST_CHARACTERS`, `MOST_NODES` or `DEEPEST`.
    """
    import yaml  # noqa: PLC0415 - heavy, needed only here

    if len(text) > MOST_CHARACTERS:
        problem = f"the document is too large: {len(text)} characters (expected at most {MOST_CHARACTERS}); shorten it"
        raise ContractError("", problem, source=source)
    try:
        return copy.deepcopy(_construct(text))
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=source) from None
    except (yaml.YAMLError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise ContractError("", f"not valid YAML: {problem[:500]}", source=source) from None


def dump_yaml(value: Any, *, flow: bool | None = None, width: int = 120) -> str:  # noqa: ANN401 - YAML types
    """Return `value` as YAML; `flow`: on one line, None: only the innermost lists and mappings."""
    import yaml  # noqa: PLC0415

    text = yaml.dump(value, Dumper=_dumper(), sort_keys=False, default_flow_style=flow, width=width)
    return str(text)


def comment(text: str) -> str:
    """Return the line of a comment, with everything escaped that could end it."""
    return f"# {escaped(text)}"


def checked_text(text: str, document: Mapping[str, Any]) -> str:
    """Return `text`, written for `document`; raises ContractError unless it reads as it, with printable names."""
    _check_printable("", document)
    if json.dumps(read_yaml(text, "the written file")) != json.dumps(document):
        raise ContractError("", "the written file reads as another document; report this with its sources")
    return text


def _check_printable(path: str, value: Any) -> None:  # noqa: ANN401 - YAML types
    if isinstance(value, str) and value:
        check_text(path, value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_text(path, key)
            _check_printable(f"{path}.{key}".lstrip("."), item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_printable(path, item)


@functools.lru_cache(maxsize=8)  # each environment, recorder and audit of a program reads the same contract
def _construct(text: str) -> Any:  # noqa: ANN401 - YAML types
    import yaml  # noqa: PLC0415

    loader = _loader()
    try:
        _check_events(yaml.parse(text, loader))
    except yaml.MarkedYAMLError as error:  # its scanner is ahead of the events, with limits of its own: ours come first
        with contextlib.suppress(yaml.YAMLError):
            _check_events(yaml.parse(text[: error.problem_mark.index] if error.problem_mark else "", loader))
        raise
    return yaml.load(text, loader)  # noqa: S506 - a SafeLoader


@functools.cache
def _loader() -> Any:  # noqa: ANN401 - a class without type information
    """Return a safe loader with the scalars of YAML 1.2 and unique text keys."""
    import yaml  # noqa: PLC0415

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser is ten times as fast

    class Loader(base):  # type: ignore[misc] # either class has no type information
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
            _check_keys(node)
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            return mapping

    Loader.yaml_implicit_resolvers = {}
    for tag, (pattern, first) in _SCALARS.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)
    Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: _integer(node))
    return Loader


@functools.cache
def _dumper() -> Any:  # noqa: ANN401 - a class without type information
    """Return a safe dumper that quotes the text that `_loader` or YAML 1.1 would read as another type."""
    import yaml  # noqa: PLC0415

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc] # either class has no type information
        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - of yaml
            return True

    for tag, (pattern, first) in _SCALARS.items():
        Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)
    return Dumper


def _check_keys(node: Any) -> None:  # noqa: ANN401 - yaml's
    first_lines: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if key.tag != "tag:yaml.org,2002:str":
            raise ContractError("", f"the key {_shown(key.value)} at line {line} is not text: quote it")
        if key.value in first_lines:
            problem = f"duplicate key at line {line} (first at line {first_lines[key.value]})"
            raise ContractError(_shown(key.value), problem)
        first_lines[key.value] = line


def _integer(node: Any) -> int:  # noqa: ANN401 - yaml's
    value = int(node.value[:_LONGEST_SHOWN])  # 010 is ten, not octal
    if value not in _INTEGERS or len(node.value) > _LONGEST_SHOWN:
        line = node.start_mark.line + 1
        raise ContractError("", f"integer out of range at line {line}: {_shown(node.value)} (expected 64 bits)")
    return value


@dataclass
class _Collection:
    """An open list or mapping: its anchor, the number of nodes before it, and the deepest level inside it."""

    anchor: str | None
    before: int
    deepest: int


def _check_events(events: Any) -> None:  # noqa: ANN401 - yaml's
    """Refuse a document that is too deep or too large before it is constructed, in time linear in the text."""
    known: dict[str | None, tuple[int, int]] = {}  # anchor -> nodes and levels below it
    opened: list[_Collection] = []
    nodes = 0
    for event in events:
        kind, deepest = type(event).__name__, 0
        _check_tag(event)
        if kind in ("SequenceStartEvent", "MappingStartEvent"):
            known.pop(event.anchor, None)  # an alias inside its own anchor is recursive
            opened.append(_Collection(event.anchor, nodes, len(opened) + 1))
            nodes, deepest = nodes + 1, len(opened)
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            closed = opened.pop()
            known[closed.anchor], deepest = (nodes - closed.before, closed.deepest - len(opened)), closed.deepest
        elif kind == "ScalarEvent":
            known[event.anchor] = (1, 0)
            nodes += 1
        elif kind == "AliasEvent":
            if event.anchor not in known:
                _refuse(event, f"alias of an unknown or enclosing node: *{_shown(event.anchor)}")
            more, levels = known[event.anchor]
            nodes, deepest = nodes + more, len(opened) + levels
        if opened:
            opened[-1].deepest = max(opened[-1].deepest, deepest)
        if deepest > DEEPEST:
            _refuse(event, f"nested deeper than {DEEPEST} levels")
        if nodes > MOST_NODES:
            _refuse(event, f"too many values: over {MOST_NODES}, with aliases counted as what they repeat,")


def _check_tag(event: Any) -> None:  # noqa: ANN401 - yaml's
    """Refuse explicit tags: some of their constructors take quadratic time."""
    if getattr(event, "tag", None) not in (None, "tag:yaml.org,2002:str"):
        _refuse(event, f"tag {_shown(event.tag)!r} (expected none, or !!str)")


def _refuse(event: Any, problem: str) -> NoReturn:  # noqa: ANN401 - yaml's
    raise ContractError("", f"{problem} at line {event.start_mark.line + 1}")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else "of type list or mapping"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
