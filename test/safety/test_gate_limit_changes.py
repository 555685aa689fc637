"""Limits may be tightened at run time, while loosening waits for a reset and invalid values change nothing."""

from dataclasses import replace

import numpy as np
import pytest
import strategies

from embodied_env.core.types import CommandState
from embodied_env.errors import ContractError, UsageError
from embodied_env.safety.gate import SafetyGate

CONTRACT = strategies.parse(strategies.document())
OWN = CONTRACT.actuators["arm"].joints["a"]
SLOW = replace(OWN, velocity=1.0)
PERIOD_S = CONTRACT.control_period_s


@pytest.fixture
def gate():
    return SafetyGate(CONTRACT)


def fastest(gate):
    """Return the largest velocity that joint a reaches from rest when its upper end is requested."""
    reference, fastest = CommandState(positions=np.zeros(2), velocities=np.zeros(2), seq=0, epoch=0), 0.0
    for _ in range(30):
        command = gate.judge([1.0, 0.0], reference, PERIOD_S)
        reference = CommandState(
            positions=command.values, velocities=command.report.velocity_si, seq=command.seq, epoch=0
        )
        fastest = max(fastest, float(command.report.velocity_si[0]))
    return fastest


def test_tighter_velocity_applies_at_once(gate):
    assert gate.change_limits({"a": SLOW})
    assert fastest(gate) == pytest.approx(0.95)


def test_unnamed_joint_keeps_its_limits(gate):
    gate.change_limits({"b": SLOW})
    assert fastest(gate) > 0.95


def test_looser_limits_apply_from_the_next_reset(gate):
    gate.change_limits({"a": SLOW})
    assert not gate.change_limits({"a": OWN})
    assert fastest(gate) == pytest.approx(0.95)
    gate.reset()
    assert fastest(gate) > 0.95


def test_changed_acceleration_applies_from_the_next_reset(gate):
    """With weaker deceleration the last command might lead beyond a limit."""
    assert not gate.change_limits({"a": replace(OWN, acceleration=1.0)})
    before = fastest(gate)
    gate.reset()
    assert fastest(gate) < before


@pytest.mark.parametrize(
    "beyond",
    [
        {"velocity": OWN.velocity * 1.01},
        {"velocity": (-OWN.velocity * 1.01, OWN.velocity)},
        {"velocity": (-OWN.velocity, OWN.velocity * 1.01)},
        {"acceleration": OWN.acceleration * 1.01},
        {"position": (OWN.position[0], OWN.position[1] + 0.1)},
        {"position": (OWN.position[0] - 0.1, OWN.position[1])},
    ],
)
def test_limits_beyond_the_contract_are_rejected(gate, beyond):
    with pytest.raises(UsageError, match="the contract's"):
        gate.change_limits({"a": replace(OWN, **beyond)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"velocity": float("nan")},
        {"velocity": -1.0},
        {"velocity": (0.1, 1.0)},
        {"velocity": (0.0, 0.0)},
        {"velocity": [float("nan"), 1.0]},
        {"position": (1.0, -1.0)},
    ],
)
def test_invalid_limits_change_nothing(gate, wrong):
    before = fastest(gate)
    with pytest.raises(ContractError):
        gate.change_limits({"a": SLOW, "b": replace(OWN, **wrong)})
    gate.reset()
    assert fastest(gate) == before


def test_an_unknown_joint_is_named(gate):
    with pytest.raises(UsageError, match="unknown joint 'c'"):
        gate.change_limits({"c": SLOW})


def test_changed_limits_keep_the_action_space(gate):
    """Tighter limits show as clipping, since the action space is the contract's."""
    gate.change_limits({"a": SLOW})
    reference = CommandState(positions=np.zeros(2), velocities=np.array([0.95, 0.0]), seq=0, epoch=0)
    report = gate.judge([0.5, 0.0], reference, PERIOD_S).report
    assert report.intervened
    assert [finding.code for finding in report.findings if "a" in finding.joints] == ["vel.limit"]
