"""Declare the arguments of the launch targets and the accepted spellings of their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import yaml

from embodied_env.errors import UsageError, did_you_mean

Values = Mapping[str, str]

UNSET = "none"  # ros2 launch accepts no empty value
BOOL = ("true", "false")
# as in YAML and Python, and as conditions of launch read them
_SPELLINGS = {
    **dict.fromkeys(("true", "1", "yes", "on"), "true"),
    **dict.fromkeys(("false", "0", "no", "off"), "false"),
}


@dataclass(frozen=True)
class Argument:
    """An argument of a launch target, with any value if `allowed` is empty."""

    name: str
    default: str
    description: str
    allowed: tuple[str, ...] = ()


def as_bool(text: str) -> str:
    """Return "true" or "false" for another spelling of it, any other text unchanged."""
    return _SPELLINGS.get(text.lower(), text)


def complete_values(target: str, arguments: Iterable[Argument], given: Values) -> dict[str, str]:
    """Return the given or default value of each argument of a target, "" if unset."""
    known = {argument.name: argument for argument in arguments}
    values = {name: argument.default for name, argument in known.items()}
    for name, value in given.items():
        if name not in known:
            problem = f"unknown argument of {target}: {name!r} (expected one of: {', '.join(known)})"
            raise UsageError(problem + did_you_mean(name, known))
        allowed = known[name].allowed
        values[name] = as_bool(value) if set(BOOL) <= {*allowed} else value
        if allowed and values[name] not in allowed:
            raise UsageError(f"invalid argument: {name}:={value} (expected one of: {', '.join(allowed)})")
    return {name: "" if value == UNSET else value for name, value in values.items()}


def policy_options(values: Values) -> Iterator[str]:
    """Yield the options of `evaluate` for one policy and file, or for YAML lists of several."""
    addresses, files = _items(values, "policy"), _items(values, "policy_file")
    if len(files) > len(addresses):
        expected = f"expected at most one for each of the policies: {', '.join(addresses)}"
        raise UsageError(f"too many policy files: policy_file:={values['policy_file']} ({expected})")
    for address, file in zip_longest(addresses, files, fillvalue=UNSET):
        yield f"--policy={address}"
        if file != UNSET:
            yield f"--policy-file={file}"


def _items(values: Values, name: str) -> list[str]:
    text = values[name]
    if not text.startswith("["):
        return [text] if text else []
    try:
        items = yaml.safe_load(text)
    except yaml.YAMLError:
        items = None
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"invalid argument: {name}:={text} (expected one, or a YAML list such as [hold, scripted])")
    return items


def file_of(values: Values, argument: str, default: Path) -> Path:
    """Return the file of an argument or the default one, or raise UsageError if it is missing."""
    file = Path(values[argument]) if values[argument] else default
    if not file.is_file():
        raise UsageError(f"no such file: {argument}:={file}")
    return file.resolve()
