"""The reference pages contain every key, message, rule and code of the definitions behind their tables."""

import dataclasses
import re
import runpy
from pathlib import Path
from typing import get_type_hints

import pytest
from extension_marks import is_installed

from embodied_env.contract.contract_schema import RESERVED
from embodied_env.contract.key_tables import inner_class, meanings_of
from embodied_env.core.code_table import CODE_TABLE, CODES, GATES
from embodied_env.core.code_types import END_REASONS
from embodied_env.core.info_schema import info_schema
from embodied_env.messages.commands import COMMAND_TYPES, TWIST_AXES
from embodied_env.messages.images import ENCODINGS
from embodied_env.messages.message_types import PATH_DTYPES
from embodied_env.messages.sensor_types import SENSOR_MESSAGES
from embodied_env.plugins.plugin_table import POLICY_FORMATS

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
TABLES = runpy.run_path(str(ROOT / "tools" / "reference_tables.py"))


def page(name, part="reference"):
    return (ROOT / "docs" / part / f"{name}.md").read_text()


@pytest.mark.parametrize(
    "file", [file for file in DOCS if TABLES["MARKER"].search(file.read_text())], ids=lambda f: f.stem
)
def test_the_tables_of_a_page_are_current(file):
    assert file.read_text() == TABLES["fill"](file.read_text()), "run: python tools/reference_tables.py --write"


def code_in(text):
    return set(re.findall(r"`([^`\n]+)`", text))


def dataclasses_in(cls):
    """Return a dataclass and those of its fields."""
    inner = (inner_class(hint) for hint in get_type_hints(cls).values())
    return [cls, *(each for found in inner if found is not None for each in dataclasses_in(found))]


CLASSES = [
    (name, cls)
    for name in ("contract", "policy_file")
    for found in re.findall(r"<!-- keys: ([\w.]+):(\w+) -->", page(name))
    if (cls := TABLES["class_at"](*found)) is not None
]


@pytest.mark.parametrize(("name", "cls"), CLASSES, ids=lambda each: getattr(each, "__name__", each))
def test_the_page_of_a_file_lists_every_key_with_its_meaning(name, cls):
    rows = [line.split(" | ") for line in page(name).splitlines() if line.startswith("| `")]
    listed = {part for row in rows for part in row[0].strip("|` ").split(".")}
    for each in dataclasses_in(cls):
        assert {field.name for field in dataclasses.fields(each) if field.compare} <= listed


@pytest.mark.parametrize("cls", [cls for _, cls in CLASSES], ids=lambda cls: cls.__name__)
def test_every_key_of_a_table_has_a_meaning(cls):
    meanings = meanings_of(cls)
    inner = {name for name, hint in get_type_hints(cls).items() if inner_class(hint)}
    assert {name for name, text in meanings.items() if not text} - inner <= {*RESERVED, "reliability"}


def test_a_contract_documents_every_section():
    names = {cls.__name__ for name, cls in CLASSES if name == "contract"}
    profiles = {"WorldProfile", "RealProfile", *(["SimulatorProfile"] if is_installed("gazebo") else [])}
    assert {"ContractFields", "SensorSpec", "ActuatorSpec", "Safety", "ResetOption", "QosSpec"} | profiles <= names


def test_the_contract_page_lists_every_shipped_robot():
    robots = {path.stem for path in (ROOT / "config" / "robots").glob("*.yaml")}
    assert robots
    assert robots <= code_in(page("contract").split("#### Shipped robots")[1].split("\n### ")[0])


def test_the_contract_page_lists_every_command_and_encoding():
    assert {*COMMAND_TYPES, *ENCODINGS, *PATH_DTYPES, *TWIST_AXES} <= code_in(page("contract"))


def test_the_messages_page_covers_every_message_type():
    text = page("messages")
    assert {name for name in COMMAND_TYPES if name.rpartition("/")[2] not in text} == set()
    assert {*SENSOR_MESSAGES, *(name for message in SENSOR_MESSAGES.values() for name in message.fields)} <= code_in(
        text
    )


def test_the_page_of_policies_has_a_column_for_each_protocol_of_a_server():
    schemes = [form.removesuffix("host:port") for form in POLICY_FORMATS if form.endswith("://host:port")]
    (heading,) = re.findall(r"^\| \| (`\w+://` .*) \|$", page("policies"), flags=re.MULTILINE)
    assert re.findall(r"`(\w+://)` \(port \d+\)", heading) == schemes


def test_the_pages_of_the_gate_and_of_the_faults_list_every_gate_and_code():
    rows = re.findall(r"^\| `([\w.]+)` \|", page("safety_gate", "concepts"), flags=re.MULTILINE)
    assert list(dict.fromkeys(name for name in rows if name in GATES)) == list(GATES)
    assert re.findall(r"^\| `(\w+\.\w+)` \| (\d+) ", page("faults"), flags=re.MULTILINE) == [
        (name, str(code.number)) for name, code in CODE_TABLE.items()
    ]


def test_the_info_page_lists_every_key_code_and_end_reason():
    listed = code_in(page("info"))
    definitions = info_schema()["$defs"]
    assert set(definitions["step"]["properties"]) | set(definitions["reset"]["properties"]) <= listed
    assert {f"sensors.<name>.{key}" for key in definitions["sensor"]["properties"]} <= listed
    assert {*filter(None, CODES), *END_REASONS} <= listed
