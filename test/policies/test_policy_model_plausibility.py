"""Limits of the first inputs and actions, and two images of one camera."""

import numpy as np
import pytest
from policy_files import BENCH, JOINTS, TrialModel, observation

import embodied_env
from embodied_env.contract.typed_values import parse_as
from embodied_env.core.policy import NoAction
from embodied_env.policies.normalization import Normalization
from embodied_env.policies.policy_file import PolicyFile
from embodied_env.policies.policy_file_interface import PolicyFileInterface
from embodied_env.policies.policy_model import ModelPolicy, find_implausible

ARM = embodied_env.load_contract("arm_reach")  # actions from -1 to 1


def mapped(**inputs):
    """Return a policy with these inputs, and a last output."""
    parts = [{"actuator": "arm", "joints": list(JOINTS), "unit": "rad"}]
    parts.append({"actuator": "gripper", "joints": ["finger"], "unit": "action"})
    document = {"name": "p", "control_period_s": 0.05, "inputs": inputs, "outputs": {"action": {"parts": parts}}}
    return ModelPolicy(TrialModel({}), PolicyFileInterface(parse_as(PolicyFile, document), BENCH))


@pytest.mark.parametrize(("value", "is_named"), [(1.99, False), (2.01, True), (-2.01, True), (-16.6, True)])
def test_action_beyond_half_the_width_of_its_space_is_named(value, is_named):
    chunk = np.zeros((3, 6))
    chunk[1, 2] = value
    lines = find_implausible(None, ARM, {}, [*chunk])
    assert [f"action of j3 is {value}" in line for line in lines] == [True] * is_named


@pytest.mark.parametrize("action", [NoAction("late"), np.zeros(5), np.full(6, np.nan), "up"])
def test_action_that_the_gate_refuses_is_not_compared(action):
    assert find_implausible(None, ARM, {}, [action]) == []


@pytest.mark.parametrize(
    ("statistics", "most"),  # the largest value within 6 standard deviations
    [
        ({"method": "mean_std", "mean": 0.0, "std": 0.1}, 0.6),
        ({"method": "mean_std", "mean": 0.0, "std": 0.1, "clip": 5.0}, 0.6),
        ({"method": "min_max", "min": -0.1, "max": 0.1}, 0.6 / 3**0.5),
        ({"method": "quantiles", "q01": -0.2326, "q99": 0.2326}, 0.6),
        ({"method": "quantiles10", "q10": -0.1282, "q90": 0.1282}, 0.6),
    ],
)
def test_input_beyond_six_standard_deviations_is_named(statistics, most):
    policy = mapped(state={"parts": [{"field": "tcp_position"}], "normalize": statistics})
    seen = observation()
    for value, count in ((0.99 * most, 0), (1.01 * most, 1)):
        seen["tcp_position"] = np.array([0.0, -value, 0.0])
        lines = find_implausible(policy, BENCH, seen, [])
        assert ["tcp_position[1]" in line for line in lines] == [True] * count


def test_input_of_a_model_that_normalises_itself_is_compared():
    policy = mapped(state={"parts": [{"field": "tcp_position"}]})
    policy.model.normalizations = {"state": Normalization("mean_std", np.zeros(3), np.full(3, 0.1))}
    seen = {**observation(), "tcp_position": np.array([0.5, 0.7, 0.5])}
    policy.model.answer = NoAction("none")
    policy(seen)
    (line,) = find_implausible(policy, BENCH, seen, [])
    assert line.startswith("input state[1] is 7 ")


def test_last_output_is_not_compared_at_a_reset():
    statistics = {"method": "mean_std", "mean": 5.0, "std": 0.1}
    policy = mapped(state={"parts": [{"last_output": "action"}], "normalize": statistics})
    assert find_implausible(policy, BENCH, observation(), []) == []


def test_two_images_of_one_camera_warn(caplog):
    image = {"image": {"field": "front_image", "size": [48, 64]}}
    mapped(top=image)
    assert caplog.records == []
    mapped(top=image, wrist=image)
    assert "inputs.top and inputs.wrist are the same image, front_image" in caplog.text
