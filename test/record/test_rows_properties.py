"""Every row is strict JSON, keeps every bit, shares nothing, and never breaks the audit."""

from __future__ import annotations

import copy
import enum
import functools
import json
import math
import tempfile

import numpy as np
import pytest
from evidence import assert_transitions_sound
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from run_files import record
from safety_strategies import SEEDED

from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.contract import load_contract
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.record import RecordTransitions, read_run
from embodied_env.record.arrays import from_bytes, is_reference, portable, refer_to, references
from embodied_env.record.json_values import to_json_types
from embodied_env.record.row_log import parse_row
from embodied_env.record.rows import FIELDS, encode_row, transition_row
from embodied_env.record.rows import to_json_row as strict_row

SHARE = 1 if SEEDED else 3  # a third of the examples in each run, and all of them where .ci/long gives a seed
few = settings(max_examples=25 // SHARE, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=150 // SHARE, deadline=None)


CONTRACT = load_contract("arm_reach")


class Colour(enum.Enum):
    RED = "red"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)

any_arrays = npst.arrays(
    st.one_of(
        npst.scalar_dtypes(),
        npst.unicode_string_dtypes(max_len=3),
        npst.byte_string_dtypes(max_len=3),
        st.just(np.dtype("g")),
    ),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)

anything = st.recursive(
    st.one_of(
        json_values,
        st.floats(),
        any_arrays,
        st.complex_numbers(),
        st.binary(),
        st.sampled_from(
            [Colour.RED, object(), range(3), Ellipsis, {1, 2}, np.float32("nan"), np.bool_(True), 10**2000]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)
"""Values that an agent might send for an action."""


def dumped(value):
    """Return plain JSON as in a log."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


@many
@given(anything, st.booleans())
def test_encoded_row_equals_plain_json(value, stores):
    shelf = MemoryStore() if stores else None
    row = {"value": value, "more": [value]}
    assert dumped(json.loads(encode_row(row, shelf))) == dumped(strict_row(row, shelf))


@pytest.mark.parametrize("depth", [40, 200, 2000])
def test_deeply_nested_values_can_be_read(depth):
    cyclic, deep = [], [1.0]
    for _ in range(depth - 1):
        deep = [deep]
    cyclic.append(cyclic)
    assert parse_row(encode_row({"deep": deep, "cyclic": cyclic if depth == 40 else None}))["deep"]


def strict(text):
    """Parse JSON without NaN and infinity."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@many
@given(json_values)
def test_json_values_are_unchanged(value):
    assert to_json_types(value) == value
    assert strict(json.dumps(to_json_types(value), allow_nan=False)) == value


@many
@given(npst.arrays(st.sampled_from(["f8", "f4", "f2"]), npst.array_shapes(min_dims=1, max_dims=3, max_side=4)))
def test_finite_floats_keep_every_bit_and_others_are_null(array):
    again = np.array(strict(json.dumps(to_json_types(array), allow_nan=False)), dtype=object)
    assert again.shape == array.shape
    for before, after in zip(array.flat, again.flat, strict=True):
        if math.isfinite(before):
            assert array.dtype.type(after).tobytes() == before.tobytes()
        else:
            assert after is None


@many
@given(st.lists(st.floats(), min_size=1, max_size=4), st.integers(0, 40))
def test_plain_values_share_nothing_mutable(values, depth):
    array = np.array(values)
    value = [array, list(values)]
    for _ in range(depth):
        value = {"deeper": value}
    before = to_json_types(value)
    kept = copy.deepcopy(before)
    array[:] = 7.0
    assert before == kept


# -------------------------------------------------------------------------------------------------------------- images


class MemoryStore:
    """Stores arrays like a log, in memory."""

    def __init__(self):
        self.kept = {}

    def __call__(self, array):
        stored = portable(array)
        data, reference = stored.tobytes(), refer_to(stored)
        self.kept[reference["sha256"]] = data
        return reference


numbers = st.one_of(npst.boolean_dtypes(), npst.integer_dtypes(), npst.floating_dtypes(sizes=(16, 32, 64)))


@many
@given(npst.arrays(numbers, npst.array_shapes(min_dims=3, max_dims=4, min_side=0, max_side=4)))
def test_images_are_stored_and_read_bit_for_bit(array):
    shelf = MemoryStore()
    row = strict(json.dumps(to_json_types({"deep": [array]}, shelf), allow_nan=False))
    ((where, reference),) = references(row)
    found = from_bytes(reference, shelf.kept[reference["sha256"]])
    assert where == "deep[0]"
    assert (found.shape, found.dtype) == (array.shape, array.dtype.newbyteorder("<"))
    assert found.tobytes() == array.astype(found.dtype).tobytes()


@many
@given(st.integers(1, 2), st.booleans(), st.data())
def test_images_and_arrays_over_4096_numbers_are_stored_outside_the_row(ndim, is_large, data):
    size = 4097 if is_large else data.draw(st.integers(0, 4096))
    array = np.zeros((size,) if ndim == 1 else (size, 1))
    assert is_reference(to_json_types(array, MemoryStore())) == is_large


# ------------------------------------------------------------------------------------------------------- whole episodes

actions = st.one_of(
    npst.arrays("f8", 6, elements=st.floats(-1.5, 1.5)),
    npst.arrays("f8", 6),
    st.lists(st.floats(), max_size=7),
    npst.arrays("f4", npst.array_shapes(min_dims=0, max_dims=2, max_side=7)),
    anything,
)

faults = st.lists(
    st.builds(
        ScriptedFault,
        kind=st.sampled_from(["drop", "nan", "stale", "future", "refuse"]),
        step=st.integers(1, 6),
        sensor=st.sampled_from([None, "joints", "tcp", "true_distance"]),
    ),
    max_size=3,
)


@few
@given(st.lists(actions, min_size=1, max_size=6), faults, st.integers(0, 2**32), st.booleans())
def test_any_action_and_fault_gives_strict_and_valid_rows(sent, wrong, seed, marks):
    with tempfile.TemporaryDirectory() as folder:
        env = RecordTransitions(EmbodiedEnv(CONTRACT, backend="fake", faults=wrong), folder)
        env.reset(seed=seed)
        for action in sent:
            if marks:
                env.unwrapped.mark("policy")
            *_, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        env.close()
        run = read_run(env.path)
        rows = list(run.rows())
        assert run.problem == ""
        assert [row["row"] for row in rows] == list(range(len(rows)))
        strict(json.dumps(rows, allow_nan=False))
        transitions = list(run.transitions())
        assert len(transitions) == len(sent)
        assert_transitions_sound(transitions, CONTRACT)


@few
@given(st.lists(actions, min_size=1, max_size=4), faults, st.integers(0, 2**32))
def test_encoded_step_equals_its_plain_row(sent, wrong, seed):
    env = EmbodiedEnv(CONTRACT, backend="fake", faults=wrong)
    env.reset(seed=seed)
    for action in sent:
        returned = env.step(action)
        made = env.last_transition
        outer = dict(zip(FIELDS, (returned[0], to_json_types(action), *returned[1:]), strict=True))
        row = transition_row(made, outer=outer, row=1, evaluator=["true_distance"])
        assert dumped(json.loads(encode_row(row))) == dumped(strict_row(row))
        if returned[2] or returned[3]:
            env.reset()
    env.close()


@functools.cache
def valid_row():
    with tempfile.TemporaryDirectory() as folder:
        (row,) = read_run(record(folder, [[np.full(6, 2.0)]])).transitions()
    return row


def places(value, path=()):
    """List the path of every key and every index in a row."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, child in children for found in ((*path, key), *places(child, (*path, key)))]


@pytest.mark.needs("audit")
@many
@given(st.data())
def test_row_with_arbitrary_values_is_audited_without_raising(data):
    from embodied_env.extensions.audit import audit_transition

    row = copy.deepcopy(valid_row())
    *parents, last = data.draw(st.sampled_from(places(row)))
    functools.reduce(lambda node, key: node[key], parents, row)[last] = data.draw(json_values)
    for contract in (None, CONTRACT):
        assert all(isinstance(problem, str) for problem in audit_transition(row, contract))


DEPENDS_ON_THE_CONTRACT = [
    ("inner", "sensors"),
    ("inner", "evaluator"),
    ("inner", "evaluator", "true_distance"),
    ("info", "task"),
    ("info", "sensors"),
    ("info", "safety", "joints"),
    ("info", "latency", "hold_s"),
    ("info", "latency", "capture_age_s"),
    ("info", "latency", "quality", "hold_s"),
    ("info", "latency", "quality", "capture_age_s"),
]
"""Paths whose keys are unknown without the contract."""


@pytest.mark.needs("audit")
@many
@given(st.data())
def test_row_with_a_missing_value_fails_the_audit(data):
    from embodied_env.extensions.audit import audit_transition

    row = copy.deepcopy(valid_row())
    named = [path for path in places(row)[1:] if isinstance(path[-1], str) and path[:-1] not in DEPENDS_ON_THE_CONTRACT]
    *parents, last = data.draw(st.sampled_from(named))
    del functools.reduce(lambda node, key: node[key], parents, row)[last]
    assert audit_transition(row) != []
