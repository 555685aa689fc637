"""The reference pages contain every key, message, rule and code of the definitions behind their tables."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import runpy
from pathlib import Path
from typing import get_type_hints

import pytest
from extension_marks import is_installed

from embodied_env.contract.contract_schema import RESERVED
from embodied_env.core.codes import CODES, END_REASONS
from embodied_env.messages.message_types import ACTUATOR_MESSAGES, ENCODINGS, PATH_DTYPES, SENSOR_MESSAGES, TWIST_AXES

ROOT = Path(__file__).parents[2]
TABLES = runpy.run_path(str(ROOT / "tools" / "reference_tables.py"))


@functools.cache
def page(name):
    return TABLES["fill"]((ROOT / "docs" / "reference" / f"{name}.md").read_text())


def code_in(text):
    return set(re.findall(r"`([^`\n]+)`", text))


def dataclasses_in(cls):
    """Return a dataclass and those of its fields."""
    inner = (TABLES["_inner_class"](hint) for hint in get_type_hints(cls).values())
    return [cls, *(each for found in inner if found is not None for each in dataclasses_in(found))]


CLASSES = [
    (name, cls)
    for name in ("contract", "policy_file")
    for found in TABLES["KEYS"].findall((ROOT / "docs" / "reference" / f"{name}.md").read_text())
    if (cls := TABLES["_class_at"](*found)) is not None
]


@pytest.mark.parametrize(("name", "cls"), CLASSES, ids=lambda each: getattr(each, "__name__", each))
def test_the_page_of_a_file_lists_every_key_with_its_meaning(name, cls):
    rows = [line.split(" | ") for line in page(name).splitlines() if line.startswith("| `")]
    listed = {part for row in rows for part in row[0].strip("|` ").split(".")}
    for each in dataclasses_in(cls):
        assert {field.name for field in dataclasses.fields(each) if field.compare} <= listed


@pytest.mark.parametrize("cls", [cls for _, cls in CLASSES], ids=lambda cls: cls.__name__)
def test_every_key_of_a_table_has_a_meaning(cls):
    meanings = TABLES["meanings_of"](cls)
    inner = {name for name, hint in get_type_hints(cls).items() if TABLES["_inner_class"](hint)}
    assert {name for name, text in meanings.items() if not text} - inner <= {*RESERVED, "reliability"}


def test_a_contract_documents_every_section():
    names = {cls.__name__ for name, cls in CLASSES if name == "contract"}
    profiles = {"WorldProfile", "RealProfile", *(["SimulatorProfile"] if is_installed("gazebo") else [])}
    assert {"ContractFields", "SensorSpec", "ActuatorSpec", "Safety", "ResetOption", "QosSpec"} | profiles <= names


def test_the_contract_page_lists_every_shipped_robot():
    robots = {path.stem for path in (ROOT / "config" / "robots").glob("*.yaml")}
    assert robots
    assert robots <= code_in(page("contract").split("#### Shipped robots")[1].split("\n### ")[0])


def test_the_contract_page_lists_every_message_and_encoding():
    text = page("contract")
    fields = {name for message in SENSOR_MESSAGES.values() for name in message.fields}
    expected = {*SENSOR_MESSAGES, *ACTUATOR_MESSAGES, *ENCODINGS, *PATH_DTYPES, *TWIST_AXES, *fields}
    assert expected <= code_in(text)


def test_the_messages_page_covers_every_message_type():
    text = page("messages")
    assert {name for name in (*SENSOR_MESSAGES, *ACTUATOR_MESSAGES) if name.rpartition("/")[2] not in text} == set()


def test_the_info_page_lists_every_key_code_and_end_reason():
    listed = code_in(page("info"))
    definitions = json.loads((ROOT / "embodied_env" / "info.schema.json").read_text())["$defs"]
    assert set(definitions["step"]["properties"]) | set(definitions["reset"]["properties"]) <= listed
    assert {f"sensors.<name>.{key}" for key in definitions["sensor"]["properties"]} <= listed
    assert {*filter(None, CODES), *END_REASONS} <= listed
