"""The grammar of policy addresses, for all policies.

An address is ``NAME[:LOCATION][#PART][?OPTION=VALUE[&OPTION=VALUE]...]``, and a location on a server is
``//host[:port][/path]``. The page `docs/reference/policies.md` has the rules with examples.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from embodied_env.errors import UsageError
from embodied_env.plugins.plugin_lookup import find_plugin
from embodied_env.plugins.plugin_table import ADDRESSES

_NAME_END = re.compile(r"[:#?]|$")
_OPTIONS = re.compile(r"\?(?=[A-Za-z_]\w*=)")
_NOT_IN_ADDRESSES = ("trust", "api_key", "api_token")  # an address is recorded, and may come from a file


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAddress:
    """The parts of the address `text`."""

    text: str
    name: str  # a format, or a module of the user
    location: str | None = None  # a file, a server, or an expression of the module; None: without ":"
    part: str | None = None  # only of a format whose form has one, such as the episode of a run
    options: Mapping[str, Any]  # Python literals, any other value as text


def parse_address(address: str) -> PolicyAddress:
    """Return the parts of an address, or raise UsageError for a repeated or forbidden option."""
    first = _NAME_END.search(address)
    name = address[: first.start()] if first else address
    rest = address[len(name) :]
    is_python = rest.startswith(":") and find_plugin("policies", name) is None
    begin = _OPTIONS.search(rest, rest.rfind(")") + 1 if is_python else 0)  # a "?" in a literal is a character of it
    body, query = (rest, "") if begin is None else (rest[: begin.start()], rest[begin.end() :])
    part = None
    if "#" in body and any(form.startswith(f"{name}:") and "#" in form for form in ADDRESSES):
        body, _, part = body.rpartition("#")
    location = body[1:] if body.startswith(":") else None
    if location is None and body:  # neither a name nor a location
        name = name + body
    return PolicyAddress(text=address, name=name, location=location, part=part, options=_read_options(query, name))


def parse_server(address: str, default_port: int) -> tuple[str, int]:
    """Return host and port of a server address, or raise UsageError for another form.

    The form is ``scheme://host[:port]``. No built-in protocol has a path. A format of another package may read it from
    its location.
    """
    try:
        url = urlsplit(address)
        host, port = url.hostname, default_port if url.port is None else url.port
    except ValueError:
        host, port = None, 0
    if not host or not port or url.path.strip("/") or url.query or url.fragment or url.username is not None:
        scheme = address.partition(":")[0]
        expected = f"expected {scheme}://host:port, for example {scheme}://127.0.0.1:{default_port}"
        raise UsageError(f"invalid address of a policy server: {address!r} ({expected})")
    return host, port


def _read_options(query: str, name: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, text in parse_qsl(query, keep_blank_values=True):
        if key in _NOT_IN_ADDRESSES:
            remedy = "pass it as an argument, or as the command line or environment variable of the format"
            raise UsageError(f"unknown option of the address of a policy {name!r}: {key!r}; {remedy}")
        if key in options:
            raise UsageError(f"option {key!r} given twice in the address of a policy {name!r} (expected once)")
        try:
            options[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            options[key] = text
    return options
