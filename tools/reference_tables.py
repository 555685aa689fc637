"""Write the tables of the pages from the definitions that they document.

    python tools/reference_tables.py --write

A page has a table between `<!-- keys: MODULE:CLASS -->`, for the keys of a dataclass, or `<!-- table: NAME -->`, and
`<!-- end -->`. Without `--write`, pages that are not current are listed.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from embodied_env.contract.key_tables import Key, declared_keys
from embodied_env.core.code_table import CODE_TABLE
from embodied_env.core.plugin_loading import find_extension
from embodied_env.envs.env_options import OPTIONS
from embodied_env.messages.commands import COMMAND_TYPES
from embodied_env.messages.images import ENCODINGS
from embodied_env.messages.message_types import PATH_DTYPES
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.plugins.plugin_table import POLICY_FORMATS, built_in_classes
from embodied_env.sim.servos import ELEMENTS, REFUSED

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARKER = re.compile(r"(<!-- (?:keys: ([\w.]+):(\w+)|table: ([\w-]+)) -->).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Write the pages, or list those that are not current."""
    stale = {page: text for page in DOCS.rglob("*.md") if (text := fill(page.read_text())) != page.read_text()}
    for page, text in stale.items():
        if "--write" in sys.argv:
            page.write_text(text)
        else:
            print(f"{page} is not current; run: python tools/reference_tables.py --write")
    return 1 if stale and "--write" not in sys.argv else 0


def fill(markdown: str) -> str:
    """Return a page with current tables, in which the table of a removed extension's class stays unchanged."""
    found = [(module, name) for _, module, name, _, _ in MARKER.findall(markdown) if name]
    classes = {each: cls for each in found if (cls := class_at(*each)) is not None}

    def table(match: re.Match[str]) -> str:
        start, module, name, named, end = match.groups()
        if named in INLINE:
            return f"{start}{TABLES[named]()}{end}"
        if named:
            return f"{start}\n\n{TABLES[named]().rstrip()}\n\n{end}"
        if (cls := classes.get((module, name))) is None:
            return match[0]
        return f"{start}\n\n{_keys_table(declared_keys(cls, apart=frozenset(classes.values()) - {cls}))}\n\n{end}"

    return MARKER.sub(table, markdown)


def class_at(module: str, name: str) -> type | None:
    """Return the class that a marker names, or None if its extension was removed."""
    cls: type | None = find_extension(f"embodied_env.{module}:{name}")
    return cls


def _keys_table(keys: Iterable[Key]) -> str:
    """Return the table of keys, without the columns that are empty in all of them."""
    rows = [{**vars(key), "name": f"`{key.name}`"} for key in keys]
    columns = [column for column in rows[0] if any(row[column] for row in rows)]
    return _table(("key", *columns[1:]), ([row[column] for column in columns] for row in rows))


def _table(columns: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join(lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows])


def _sensor_messages() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for name, message in SENSOR_MESSAGES.items():
            for key, field in message.fields.items():
                shape = "joints" if field.shape is None else ", ".join(str(size or "n") for size in field.shape)
                units = ", ".join(f"`{unit}`" for unit in field.units) if field.units else "any"
                first = f"`{name}`" + ("" if message.header else ", no header")
                yield first if key == next(iter(message.fields)) else "", f"`{key}`", shape, units, field.dtype
        yield "any other `package/msg/Type`", "fields with a `path`", "1, or `shape`", "any", "`dtype`"

    return _table(("type", "field", "shape", "unit", "dtype"), rows())


def _invalid_readings() -> str:
    other = "the path does not exist, is not a number or has another length; the declared dtype cannot hold the value"
    known = ((f"`{name}`", message.invalid) for name, message in SENSOR_MESSAGES.items())
    return _table(("message type", "a reading is invalid if"), iter([*known, ("any other, by `path`", other)]))


def _encodings() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for name, encoding in ENCODINGS.items():
            depth = encoding.metres_per_unit is not None
            types_ = [key.rpartition("/")[2] for key, message in SENSOR_MESSAGES.items() if name in message.encodings]
            dtype = "float32, depth in `m`" if depth else "uint8"
            yield f"`{name}`", str(encoding.channels), dtype, ", ".join(f"`{each}`" for each in types_)

    return _table(("encoding", "channels", "observation", "message types"), rows())


def _command_types() -> str:
    rows = (
        (
            f"`{name}`" + (", with a header" if message.header else ""),
            ", ".join(f"`{command}`" for command in message.commands),
            "axes" if message.axes else "any" if message.joints is None else str(message.joints),
        )
        for name, message in COMMAND_TYPES.items()
    )
    return _table(("type", "`command`", "joints"), rows)


def _mjcf_actuators() -> str:
    supported = [(element, *takes, "") for element, takes in ELEMENTS.items()]
    refused = [(element, "no", "no", reason) for element, reason in REFUSED.values()]
    return _table(("actuator of the model", "positions", "velocities", "reason"), [*supported, *refused])


def _policy_addresses() -> str:
    return _table(("address", "policy"), ((f"`{form}`", meaning) for form, (_, meaning) in POLICY_FORMATS.items()))


def _interlocks() -> str:
    gates = (gate for each in built_in_classes("interlocks") for gate in each.gates)
    rows = (
        (f"`{gate.name}`", gate.condition, gate.result, ", ".join(f"`{code}`" for code in gate.codes)) for gate in gates
    )
    return _table(("gate", "condition", "result", "codes"), rows)


def _codes() -> str:
    rows = (
        (f"`{name}`", str(code.number), code.severity.name, code.meaning, code.remedy)
        for name, code in CODE_TABLE.items()
    )
    return _table(("code", "number", "at most", "meaning", "what an operator does after a stop"), rows)


def _options(*, of_backends: bool) -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for name, option in OPTIONS.items():
            if bool(option.backends) == of_backends:
                yield f"`{name}`", *([option.backends] if of_backends else []), option.describe()

    return _table(("option", *(["backends"] if of_backends else []), "meaning"), rows())


def _info() -> str:
    text: str = runpy.run_path(str(Path(__file__).with_name("info.py")))["write_tables"]()
    return text


TABLES: Mapping[str, Callable[[], str]] = {
    "sensor-messages": _sensor_messages,
    "invalid-readings": _invalid_readings,
    "path-dtypes": lambda: ", ".join(f"`{dtype}`" for dtype in PATH_DTYPES),
    "encodings": _encodings,
    "command-types": _command_types,
    "command-contents": lambda: _table(
        ("type", "what is published"), ((f"`{name}`", each.content) for name, each in COMMAND_TYPES.items())
    ),
    "policy-addresses": _policy_addresses,
    "mjcf-actuators": _mjcf_actuators,
    "interlocks": _interlocks,
    "codes": _codes,
    "info": _info,
    "options": lambda: _options(of_backends=False),
    "options-of-backends": lambda: _options(of_backends=True),
}
INLINE = ("path-dtypes",)


if __name__ == "__main__":
    sys.exit(main())
