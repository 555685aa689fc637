from __future__ import annotations

import copy
import json
import math
import pickle
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safety_strategies import SEEDED, examples
from shipped_contracts import resolved_document
from strategies import Document, contracts, document_of, documents, plain_values

from embodied_env.cli.contract_cli import describe_contract
from embodied_env.contract import Contract, parse_contract
from embodied_env.contract.fingerprint import differences, meaning, to_plain
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import ContractError

LARGE = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]  # contracts are
FEW = 15 if SEEDED else 6  # drawing a contract is slow: .ci/long draws the full number, twenty times
few = settings(max_examples=FEW, deadline=None, suppress_health_check=LARGE)
many = examples(200)
ARM_REACH = yaml.safe_dump(resolved_document("arm_reach"), sort_keys=False)


@few
@given(contracts)
def test_every_form_of_a_contract_is_equal_to_it(contract: Contract) -> None:
    again = parse_contract(yaml.safe_dump(document_of(contract), sort_keys=False))
    assert again.fingerprint == contract.fingerprint
    for twin in (again, copy.deepcopy(contract), pickle.loads(pickle.dumps(contract))):  # noqa: S301 - our own bytes
        assert twin == contract
        assert hash(twin) == hash(contract)
    assert json.loads(json.dumps(meaning(contract), allow_nan=False)) == meaning(contract)
    assert differences(meaning(contract), meaning(contract)) == []
    assert json.loads(json.dumps(describe_contract(contract), allow_nan=False)) == describe_contract(contract)


@few
@given(contracts, contracts)
def test_fingerprints_are_equal_exactly_when_no_difference_is_listed(a: Contract, b: Contract) -> None:
    assert (a.fingerprint == b.fingerprint) == (differences(meaning(a), meaning(b)) == [])


@few
@given(contracts, st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_change_the_fingerprint(contract: Contract, random: Any) -> None:
    def shuffled(value: Any, *, keep: bool = False) -> Any:
        if not isinstance(value, dict):
            return value
        keys = list(value)
        if not keep:
            random.shuffle(keys)
        return {key: shuffled(value[key], keep=key in ("joints", "actuators")) for key in keys}

    assert parse_contract(json.dumps(shuffled(document_of(contract)))).fingerprint == contract.fingerprint


@many
@given(plain_values, plain_values)
def test_a_difference_is_listed_exactly_when_the_json_differs(a: Any, b: Any) -> None:
    a, b = to_plain(a), to_plain(b)
    same = json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    assert (differences(a, b) == []) == same


@few
@given(documents(), st.data())
def test_mutated_document_parses_or_raises_contract_error(source: Document, data: st.DataObject) -> None:
    node: Any = source
    while True:
        key = data.draw(st.sampled_from(sorted(node)) if isinstance(node, dict) else st.integers(0, len(node) - 1))
        deeper = isinstance(node[key], (dict, list)) and node[key]
        if not deeper or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = data.draw(plain_values)
    try:
        contract = parse_contract(json.dumps(source))
    except ContractError as error:
        assert error.problem  # noqa: PT017 - either outcome is right
    else:
        sizes = [
            math.prod(field.shape or ()) for sensor in contract.sensors.values() for field in sensor.fields.values()
        ]
        assert max(sizes) > 10**6 or contract.observation_space is not None


@many
@given(st.text(st.sampled_from("contract: embodied_env/1\n  name[]{},&*!!int'\"#-?|>%@`~0.9e<\t"), max_size=60))
def test_arbitrary_text_parses_or_raises_contract_error(text: str) -> None:
    with pytest.raises(ContractError):
        parse_contract(text)


YAML_PIECES = (
    "&a ", "*a", "&b [*a, *a]", "<<: *a\n", "!!str ", "!!python/name:os.system ", "? ", ": ", "- ", "\n", "\n  ", "{", "}", "[", "]",
    "|\n", ">-\n", "'", '"', "\\", "#", "---\n", "%TAG ! x\n", "0x10", "1:30:00", "2020-01-01", ".nan", "-.inf", "1e999", "9" * 30,
    "\x85", "\u2028", "\ufeff", "\x1b", "\x00", "\t", "{a: " * 60, "[" * 200, "~", "null",
)  # fmt: skip


@many
@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 40), st.sampled_from(YAML_PIECES)), min_size=1, max_size=6
    )
)
def test_damaged_contract_parses_or_raises_contract_error(changes: list[tuple[int, int, str]]) -> None:
    text = ARM_REACH
    for place, length, piece in changes:
        at = place % (len(text) + 1)
        text = text[:at] + piece + text[at + length :]
    with suppress(ContractError):
        assert parse_contract(text).name


@few
@given(contracts, st.data())
def test_action_round_trips_through_si_units(contract: Contract, data: st.DataObject) -> None:
    scale = ActionLayout(contract).scale
    parts = data.draw(st.lists(st.floats(0, 1), min_size=scale.low.size, max_size=scale.low.size))
    action = np.clip(scale.low + np.array(parts) * (scale.high - scale.low), scale.low, scale.high)
    si = scale.to_si(action)
    ends, is_binary = np.sort([scale.si_low, scale.si_high], axis=0), ~np.isnan(scale.threshold)
    rounding = 8 * np.finfo(np.float64).eps * (np.abs(scale.offset) / np.abs(scale.span) + 1 + np.abs(action))
    assert (is_binary | (np.abs(scale.from_si(si) - action) <= rounding)).all()
    assert (~is_binary | (si == scale.si_low) | (si == scale.si_high)).all()  # closed or open, in either order
    assert ((ends[0] <= si) & (si <= ends[1])).all()
    assert ((scale.low <= scale.from_si(si)) & (scale.from_si(si) <= scale.high)).all()


@few
@given(contracts)
def test_ends_of_the_action_are_the_limits_and_zero_is_rest(contract: Contract) -> None:
    layout = ActionLayout(contract)
    scale, kinds = layout.scale, layout.is_velocity | layout.is_delta
    for action, si in ((scale.low, scale.si_low), (scale.high, scale.si_high)):
        np.testing.assert_array_equal(scale.to_si(action), si)
        np.testing.assert_array_equal(scale.from_si(si), action)
    assert not scale.to_si(np.zeros(layout.size))[kinds].any()
    time_s = np.where(layout.is_delta, contract.control_period_s, 1.0)
    np.testing.assert_array_equal(scale.si_low[kinds], (layout.limits.velocity_low * time_s)[kinds])
    np.testing.assert_array_equal(scale.si_high[kinds], (layout.limits.velocity_high * time_s)[kinds])
    vector = np.arange(layout.size, dtype=np.float64)
    np.testing.assert_array_equal(np.concatenate(list(layout.split(vector).values())), vector)


@few
@given(contracts)
def test_effective_limits_are_within_declared_limits(contract: Contract) -> None:
    limits = ActionLayout(contract).limits
    declared = [(actuator, joint) for actuator in contract.actuators.values() for joint in actuator.joints.values()]
    for i, (actuator, joint) in enumerate(declared):
        if not actuator.is_action:  # an action server limits its motion
            low, high = joint.velocities
            assert low <= limits.velocity_low[i] <= 0.0 <= limits.velocity_high[i] <= high
            assert (limits.velocity_low[i] < 0.0, limits.velocity_high[i] > 0.0) == (low < 0.0, high > 0.0)
            assert 0 < limits.acceleration[i] <= joint.acceleration
        assert limits.position_low[i] < limits.position_high[i]
        if joint.position is not None:
            assert joint.position[0] <= limits.position_low[i]
            assert limits.position_high[i] <= joint.position[1]
