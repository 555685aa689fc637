"""Foxglove and other MCAP tools read the summary, the channels and the schemas of a log."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

pytest.importorskip("mcap.reader", reason="needs mcap")

from mcap.reader import make_reader

from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.record import RecordTransitions

SIMPLE = {"boolean", "string", "number", "integer"}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Return the log of two short episodes."""
    env = RecordTransitions(EmbodiedEnv("arm_reach", backend="fake"), tmp_path_factory.mktemp("runs"))
    for _ in range(2):
        env.reset(seed=1)
        env.step(np.full(6, 2.0))
        env.step(np.full(6, np.nan))
    env.close()
    return env.path / "transitions.mcap"


@pytest.fixture(scope="module")
def summary(log):
    with log.open("rb") as file:
        return make_reader(file).get_summary()


def unsupported(schema, path=""):
    """Yield what Foxglove's reader of JSON schemas rejects, as it needs one simple type for each property."""
    if schema.get("type") != "object" or "properties" not in schema:
        yield f"{path}: not an object with properties"
        return
    for name, field in schema["properties"].items():
        kind, where = field.get("type"), f"{path}.{name}"
        if kind == "object":
            yield from unsupported(field, where)
        elif kind == "array":
            items = field.get("items", {})
            if items.get("type") == "object":
                yield from unsupported(items, where)
            elif items.get("type") not in SIMPLE:
                yield f"{where}: items of {items.get('type')}"
        elif not isinstance(kind, str) or kind not in SIMPLE:
            yield f"{where}: {kind}"


def test_foxglove_can_read_every_schema(summary):
    assert {
        schema.name: list(unsupported(json.loads(schema.data)))
        for schema in summary.schemas.values()
        if schema.encoding == "jsonschema"
    } == {"embodied_env/transition/1": [], "embodied_env/reset/1": []}  # fmt: skip


def test_rows_are_valid_under_their_channel_schema(log):
    checked = 0
    with log.open("rb") as file:
        for schema, channel, message in make_reader(file).iter_messages(topics=["transition", "reset"]):
            assert channel.message_encoding == "json"
            jsonschema.Draft202012Validator(json.loads(schema.data)).validate(json.loads(message.data))
            checked += 1
    assert checked == 6
