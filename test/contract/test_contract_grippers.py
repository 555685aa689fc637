from __future__ import annotations

import numpy as np
import pytest
from grippers import ACTION, PARALLEL, TOPIC, gripper_contract, gripper_text

from embodied_env.contract.spaces import ActionLayout, action_space
from embodied_env.errors import ContractError


@pytest.mark.parametrize("kind", [ACTION, PARALLEL, TOPIC])
def test_a_binary_action_opens_or_closes(kind, tmp_path):
    contract = gripper_contract(tmp_path, gripper_text(kind, more="threshold: 0.2"))
    layout = ActionLayout(contract)
    assert action_space(contract)["gripper"].contains(np.array([-1.0]))
    found = [layout.scale.to_si(np.array([0.0, action]))[1] for action in (-1.0, 0.19, 0.2, 1.0)]
    assert found == [0.0, 0.0, 0.8, 0.8]
    assert [layout.scale.from_si(np.array([0.0, si]))[1] for si in (0.0, 0.4, 0.8)] == [-1.0, 0.0, 1.0]


def test_the_open_position_may_be_the_smaller_one(tmp_path):
    text = gripper_text().replace("open: 0.8, closed: 0.0", "open: 0.1, closed: 0.7")
    scale = ActionLayout(gripper_contract(tmp_path, text)).scale
    assert [scale.to_si(np.array([0.0, action]))[1] for action in (-0.5, 0.5)] == [0.7, 0.1]
    assert scale.from_si(np.array([0.0, 0.7])).tolist() == [0.0, -1.0]
    assert scale.from_si(np.array([0.0, 0.1])).tolist() == [0.0, 1.0]


def test_an_action_server_is_limited_in_position_only_and_has_no_margin(tmp_path):
    layout = ActionLayout(gripper_contract(tmp_path, gripper_text(scale="physical")))
    limits = layout.limits
    assert layout.is_goal.tolist() == [False, True]
    assert (limits.position_low[1], limits.position_high[1]) == (0.0, 0.8)
    assert np.isinf([limits.fastest[1], limits.acceleration[1], limits.deceleration[1], limits.jerk[1]]).all()
    assert np.isfinite([limits.fastest[0], limits.acceleration[0]]).all()


def test_the_behaviour_at_a_stop_is_part_of_the_fingerprint_and_defaults_are_not(tmp_path):
    plain = gripper_contract(tmp_path, gripper_text())
    same = gripper_contract(tmp_path, gripper_text(more="on_stop: hold, max_silent_s: 5.0, threshold: 0.0"))
    other = gripper_contract(tmp_path, gripper_text(more="on_stop: open"))
    assert plain.fingerprint == same.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (gripper_text().replace("    gripper: {open: 0.8, closed: 0.0}\n", ""), "actuators.gripper.gripper: missing"),
        (gripper_text(TOPIC).replace("    gripper: {open: 0.8, closed: 0.0}\n", ""), "gripper.gripper: missing"),
        (gripper_text(TOPIC, more="on_stop: open"), "gripper.gripper.on_stop: 'open' (expected hold for a topic)"),
        (gripper_text().replace("open: 0.8", "open: 0.9"), "gripper.gripper.open: 0.9 (expected 0.0 to 0.8"),
        (gripper_text().replace("open: 0.8", "open: 0.0"), "gripper.gripper.closed"),
        (gripper_text(more="threshhold: 0.1"), "threshhold"),
        (gripper_text().replace("command: position", "command: velocity"), "actuators.gripper.command"),
        (gripper_text().replace("scale: binary", "qos: reliable"), "actuators.gripper.qos"),
        (
            gripper_text().replace("scale: binary", "setpoint_rate_hz: 100.0"),
            "gripper.setpoint_rate_hz: 100 Hz (expected none",
        ),
        (gripper_text(TOPIC).replace(", acceleration: 20.0", ""), "acceleration"),
    ],
)
def test_a_wrong_gripper_is_refused(text, path, tmp_path):
    with pytest.raises(ContractError) as caught:
        gripper_contract(tmp_path, text)
    assert path in str(caught.value)
