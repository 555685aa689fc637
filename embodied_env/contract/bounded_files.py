"""Read untrusted files and XML within limits, and write files whole."""

from __future__ import annotations

import os
import stat
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NoReturn

from embodied_env.contract.value_checks import allow
from embodied_env.errors import ContractError

MOST_BYTES = 4 * 2**20  # maximum size of a hand-written text: contract, team, URDF, task
MOST_DATA_BYTES = 256 * 2**20  # maximum size of a generated file: MuJoCo model, latency profile
MOST_XML_BYTES = 2**23  # of an XML document
_MOST_ELEMENTS = 2**17  # of an XML document
_DEEPEST = 64  # levels of nesting of XML


def read_file(path: str | Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file, or of one behind a symbolic link.

    Devices and FIFOs are refused before they are opened. A growing file is read up to the limit. Raises OSError, also
    for an invalid path.
    """
    check_file(path, most_bytes=most_bytes)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        _check(os.fstat(descriptor), path, most_bytes)  # it may have been replaced in between
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(_too_large(path, most_bytes))
    return content


def read_text_file(path: str | Path, *, most_bytes: int = MOST_BYTES) -> str:
    """Return the content of a regular file, or raise OSError or UnicodeDecodeError."""
    return read_file(path, most_bytes=most_bytes).decode("utf-8")


def check_file(path: str | Path, *, most_bytes: int = MOST_BYTES) -> None:
    """Raise OSError unless the unopened `path` is a regular file of at most `most_bytes`."""
    try:
        status = os.stat(path)  # noqa: PTH116 - `Path` would hide a NUL byte in some of its methods
    except ValueError as error:  # a NUL byte
        raise OSError(f"not a path: {str(path)!r} ({error})") from None
    _check(status, path, most_bytes)


def _check(status: os.stat_result, path: str | Path, most_bytes: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"not a regular file: {str(path)!r}")
    if status.st_size > most_bytes:
        raise OSError(_too_large(path, most_bytes))


def _too_large(path: str | Path, most_bytes: int) -> str:
    return f"file too large: {str(path)!r} (expected at most {most_bytes / 2**20:g} MiB)"


def write_file(path: str | Path, content: str | bytes, *, replace: bool = True) -> None:
    """Write a file whole or not at all, where `replace` allows an existing one.

    In a text, a lone surrogate becomes "?". Raises OSError, and FileExistsError without `replace`.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        temporary.unlink(missing_ok=True)  # it could be a link
        with temporary.open("xb") as file:
            file.write(content.encode("utf-8", errors="replace") if isinstance(content, str) else content)
        if replace:
            temporary.replace(path)
        else:
            _rename_to_new(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _rename_to_new(temporary: Path, path: Path) -> None:
    """Rename the file to `path`, or raise FileExistsError if that exists."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without links, such as a shared folder
        path.touch(exist_ok=False)
        temporary.replace(path)


def read_xml(text: str | bytes, *, path: str, root: str) -> ET.Element:
    """Return the root element with the tag `root`.

    `path` begins the path of every error. Raises ContractError for malformed XML, a DOCTYPE, another root, or a
    document beyond the limits.
    """
    allow(len(text) <= MOST_XML_BYTES, path, f"{len(text)} bytes", f"at most {MOST_XML_BYTES}")
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
        allow(self._depth <= _DEEPEST, self._path, "nested too deeply", f"at most {_DEEPEST} levels")
        allow(self._elements <= _MOST_ELEMENTS, self._path, "too many elements", f"at most {_MOST_ELEMENTS}")
        return super().start(tag, attrs)

    def end(self, tag: str) -> ET.Element:
        self._depth -= 1
        return super().end(tag)

    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:  # noqa: ARG002 - expat's names
        """Raise ContractError, because a DOCTYPE can define entities."""
        raise ContractError(self._path, f"<!DOCTYPE {name}> (expected none); remove it")
