"""Read untrusted XML with bounded size, depth and elements, without DOCTYPE or entities."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import NoReturn

from embodied_env.contract.value_checks import allow
from embodied_env.errors import ContractError

MOST_BYTES = 2**23
MOST_ELEMENTS = 2**17
DEEPEST = 64
"""Limits of one document in bytes, elements and levels of nesting."""


def read_xml(text: str | bytes, *, path: str, root: str) -> ET.Element:
    """Return the root element with the tag `root`.

    `path` begins the path of every error. Raises ContractError for malformed XML, a DOCTYPE, another root, or a
    document beyond the limits.
    """
    allow(len(text) <= MOST_BYTES, path, f"{len(text)} bytes", f"at most {MOST_BYTES}")
    parser = ET.XMLParser(target=_BoundedTree(path))  # noqa: S314 - a DOCTYPE is refused
    try:
        parser.feed(text)
        found = parser.close()
    except (ET.ParseError, LookupError, ValueError) as error:  # LookupError: an unknown encoding, ValueError: NUL
        if isinstance(error, ContractError):
            raise
        raise ContractError(path, f"not well-formed XML: {error}") from None
    if found.tag != root:
        raise ContractError(path, f"root element <{found.tag}> (expected <{root}>)")
    return found


class _BoundedTree(ET.TreeBuilder):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path, self._depth, self._elements = path, 0, 0

    def start(self, tag: str, attrs: dict[str, str]) -> ET.Element:
        """Add an element, or raise ContractError beyond the limits."""
        self._depth += 1
        self._elements += 1
        allow(self._depth <= DEEPEST, self._path, "nested too deeply", f"at most {DEEPEST} levels")
        allow(self._elements <= MOST_ELEMENTS, self._path, "too many elements", f"at most {MOST_ELEMENTS}")
        return super().start(tag, attrs)

    def end(self, tag: str) -> ET.Element:
        self._depth -= 1
        return super().end(tag)

    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:  # noqa: ARG002 - expat's names
        """Raise ContractError, because a DOCTYPE can define entities."""
        raise ContractError(self._path, f"<!DOCTYPE {name}> (expected none); remove it")
