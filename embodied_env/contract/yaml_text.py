"""Parse untrusted contract and team files as bounded, strict YAML."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from embodied_env.contract.value_checks import check_text
from embodied_env.errors import ContractError, escaped

MOST_CHARACTERS = 2**20
MOST_NODES = 50_000  # scalars, lists and mappings of a document, with each alias counted as the nodes it repeats
DEEPEST = 50  # levels of nesting
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
    """Return the value of the YAML document `text` in bounded time and memory.

    `source` is named in errors. Plain scalars are those of the core schema of YAML 1.2, integers decimal only. Keys
    are text. Raises ContractError for duplicate keys, tags other than ``!!str``, recursive aliases, integers beyond 64
    bits, and documents beyond `MOST_CHARACTERS`, `MOST_NODES` or `DEEPEST`.
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
        problem = " ".join(str(error).replace('in "<unicode string>", line', "at line").split())
        raise ContractError("", f"not valid YAML: {problem[:500]}", source=source) from None


def dump_yaml(value: Any, *, flow: bool | None = None, width: int = 120) -> str:  # noqa: ANN401 - YAML types
    """Return `value` as YAML, on one line with `flow`, by default innermost collections only."""
    import yaml  # noqa: PLC0415

    text = yaml.dump(value, Dumper=_dumper(), sort_keys=False, default_flow_style=flow, width=width)
    return str(text)


def comment(text: str) -> str:
    """Return the line of a comment, with everything escaped that could end it."""
    return f"# {escaped(text)}"


def checked_text(text: str, document: Mapping[str, Any] | list[Any]) -> str:
    """Return `text` if it reads as `document` with printable names, or raise ContractError."""
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

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser is ten times as fast
    try:
        return _Reader(yaml.parse(text, loader)).read()
    except yaml.MarkedYAMLError as error:  # its scanner is ahead of the events, with limits of its own: ours come first
        with contextlib.suppress(yaml.YAMLError):
            _Reader(yaml.parse(text[: error.problem_mark.index] if error.problem_mark else "", loader)).read()
        raise


@functools.cache
def _dumper() -> Any:  # noqa: ANN401 - a class without type information
    """Return a safe dumper that quotes text which YAML would read as another type."""
    import yaml  # noqa: PLC0415

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc] # either class has no type information
        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - of yaml
            return True

    for tag, (pattern, first) in _SCALARS.items():
        Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)
    return Dumper


class _Reader:
    """Builds the value of a document from its events, in linear time and within limits."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = (each for each in events if not type(each).__name__.startswith(("Stream", "Document")))
        self._nodes = 0
        self._known: dict[str, tuple[Any, int, int]] = {}  # by anchor: a value, its nodes, and the levels in it

    def read(self) -> Any:  # noqa: ANN401 - YAML types
        """Return the value of the only document, or None without one."""
        value = self._value(event, 0)[0] if (event := next(self._events, None)) else None
        if next(self._events, None) is not None:
            raise ValueError("several documents (expected one)")
        return value

    def _value(self, event: Any, depth: int) -> tuple[Any, int]:  # noqa: ANN401 - yaml's
        """Return the value that begins with `event`, and the number of levels in it."""
        kind, anchor, before = type(event).__name__, event.anchor, self._nodes
        if kind == "AliasEvent":
            if anchor not in self._known:
                _refuse(event, f"alias of an unknown or enclosing node: *{_shown(anchor)}")
            value, nodes, levels = self._known[anchor]
            self._check_size(event, nodes, depth + levels)
            return value, levels
        if event.tag not in (None, "tag:yaml.org,2002:str"):  # some constructors take quadratic time
            _refuse(event, f"tag {_shown(event.tag)!r} (expected none, or !!str)")
        if kind == "ScalarEvent":
            self._check_size(event, 1, depth)
            value, levels = _scalar(event), 0
        else:
            self._known.pop(anchor, None)  # an alias inside its own anchor is recursive
            self._check_size(event, 1, depth + 1)
            value, levels = self._mapping(depth + 1) if kind == "MappingStartEvent" else self._list(depth + 1)
        if anchor is not None:
            self._known[anchor] = value, self._nodes - before, levels
        return value, levels

    def _list(self, depth: int) -> tuple[list[Any], int]:
        found = [self._value(event, depth) for event in iter(self._next, None)]
        return [item for item, _ in found], 1 + max((levels for _, levels in found), default=0)

    def _mapping(self, depth: int) -> tuple[dict[str, Any], int]:
        mapping: dict[str, Any] = {}
        lines: dict[str, int] = {}
        deepest = 0
        for event in iter(self._next, None):
            line, (key, _) = event.start_mark.line + 1, self._value(event, depth)
            if not isinstance(key, str):
                shown = _shown(getattr(event, "value", key))
                raise ContractError("", f"the key {shown} at line {line} is not text: quote it")
            if key in mapping:
                raise ContractError(_shown(key), f"duplicate key at line {line} (first at line {lines[key]})")
            mapping[key], levels = self._value(next(self._events), depth)
            lines[key], deepest = line, max(deepest, levels)
        return mapping, 1 + deepest

    def _next(self) -> Any:  # noqa: ANN401 - yaml's
        """Return the next event of a list or mapping, or None at its end."""
        event = next(self._events)
        return None if type(event).__name__ in ("SequenceEndEvent", "MappingEndEvent") else event

    def _check_size(self, event: Any, nodes: int, depth: int) -> None:  # noqa: ANN401 - yaml's
        self._nodes += nodes
        if depth > DEEPEST:
            _refuse(event, f"nested deeper than {DEEPEST} levels")
        if self._nodes > MOST_NODES:
            _refuse(event, f"too many values: over {MOST_NODES}, with aliases counted as what they repeat,")


def _scalar(event: Any) -> object:  # noqa: ANN401 - yaml's
    """Return the value of a scalar, which only a plain one resolves from its text."""
    text: str = event.value
    is_plain = event.tag is None and event.implicit[0]
    kinds = (kind for kind, (pattern, _) in _SCALARS.items() if is_plain and re.fullmatch(pattern, text))
    kind = next(kinds, "str")
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        value = int(text[:_LONGEST_SHOWN])  # 010 is ten, not octal
        if value not in _INTEGERS or len(text) > _LONGEST_SHOWN:
            line = event.start_mark.line + 1
            raise ContractError("", f"integer out of range at line {line}: {_shown(text)} (expected 64 bits)")
        return value
    return float(re.sub(r"\.(?=inf|nan)", "", text.lower())) if kind == "float" else text


def _refuse(event: Any, problem: str) -> NoReturn:  # noqa: ANN401 - yaml's
    raise ContractError("", f"{problem} at line {event.start_mark.line + 1}")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else "of type list or mapping"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
