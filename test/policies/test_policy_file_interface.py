"""Values go by name and in the policy's units, as in training, and are checked before anything moves."""

import json

import numpy as np
import onnx_models
import pytest
from evidence import assert_sound
from grippers import ACTION, TOPIC, gripper_contract, gripper_text
from hypothesis import given
from hypothesis import strategies as st
from policy_files import BENCH, JOINTS, TrialModel, bench, interface, observation
from shipped_contracts import changed_contract, changed_text

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract.sensor_schema import ResizeSpec
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.policy import BatchPolicy, NoAction, PolicyIdentity, find_n_action_steps
from embodied_env.core.reading_conversion import resize_image
from embodied_env.errors import ContractError, UsageError
from embodied_env.policies.chunk_execution import ChunkRunner
from embodied_env.policies.policy_file import PolicyFile
from embodied_env.policies.policy_file_interface import PolicyFileInterface
from embodied_env.policies.policy_loader import parse_address
from embodied_env.policies.policy_model import ArraySpec, ModelPolicy, connect, plausible_observation

ALL = (*JOINTS, "finger")
LIMITS = {"shoulder": (-2.0, 2.0), "elbow": (0.0, 2.0), "wrist": (-1.0, 3.0), "finger": (0.0, 0.1)}
"""Of the training: the contract's may be tighter."""


def parsed(document, contract=BENCH):
    from embodied_env.contract.typed_values import parse_as

    return PolicyFileInterface(parse_as(PolicyFile, {"name": "p", "control_period_s": 0.05, **document}), contract)


def arm_part(unit, **keys):
    return {"actuator": "arm", "joints": list(JOINTS), "unit": unit, **keys}


def finger_part(unit="m", **keys):
    return {"actuator": "gripper", "joints": ["finger"], "unit": unit, **keys}


def simple(*, inputs=None, parts=None, normalize=None, **keys):
    """Return a document, by default with absolute joint positions."""
    return {
        "inputs": inputs or {"state": {"parts": [{"field": "tcp_position"}]}},
        "outputs": {
            "action": {
                "parts": parts or [arm_part("rad"), finger_part("action")],
                **({} if normalize is None else {"normalize": normalize}),
            }
        },
        **keys,
    }


def act(found, answer, seen=None):
    """Return the action for an answer of the model."""
    found.observe(observation() if seen is None else seen)
    return found.to_action({"action": np.asarray(answer)})


def flat(action):
    return np.concatenate([np.atleast_1d(action[name]) for name in ("arm", "gripper")], axis=-1)


# ------------------------------------------------------------------------------------------------------------ vectors


def test_inputs_are_by_name_in_the_units_of_the_policy(tmp_path):
    seen = observation()
    shoulder, elbow, wrist, finger = seen["joints_position"]
    x, y, z, w = seen["tcp_orientation"]
    state = interface(tmp_path).to_inputs(seen)["state"]
    expected = [*np.degrees([wrist, -shoulder, elbow]), 100 * finger / 0.1, w, x, y, z]
    np.testing.assert_allclose(state, expected, rtol=1e-6)
    assert state.dtype == np.float32


def test_outputs_are_by_name_in_the_units_of_the_policy(tmp_path):
    action = act(interface(tmp_path), [10.0, 20.0, 30.0, 0.025])
    np.testing.assert_allclose(action["arm"], np.radians([-30.0, 10.0, 20.0]))
    np.testing.assert_allclose(action["gripper"], [-0.5])  # normalized: 0 to 0.1 m


@given(st.permutations(ALL), st.permutations(JOINTS), st.integers(0, 2**16))
def test_order_is_by_name_on_either_side(inputs, outputs, seed):
    """A permutation of the policy's joints permutes its vectors, and one of the contract's changes nothing."""
    seen = observation(seed=seed)
    numbers = dict(zip(ALL, np.random.default_rng(seed).uniform(0.2, 0.9, 4), strict=True))
    shuffled = bench(
        [
            (
                "[shoulder, elbow, wrist, finger], unit: [rad, rad, rad, m]",
                "[finger, wrist, elbow, shoulder], unit: [m, rad, rad, rad]",
            )
        ]
    )
    parts = [{"actuator": "arm", "joints": list(outputs), "unit": "rad"}, finger_part()]
    units = ["m" if joint == "finger" else "rad" for joint in inputs]
    state = {"state": {"parts": [{"field": "joints_position", "joints": list(inputs), "unit": units}]}}
    for contract, view in ((BENCH, seen), (shuffled, {**seen, "joints_position": seen["joints_position"][::-1]})):
        found = parsed(simple(inputs=state, parts=parts), contract)
        given = dict(zip(inputs, found.to_inputs(view)["state"], strict=True))
        assert given == {joint: np.float32(seen["joints_position"][index]) for index, joint in enumerate(ALL)}
        action = found.to_action({"action": np.array([numbers[joint] for joint in (*outputs, "finger")])})
        np.testing.assert_array_equal(action["arm"], [numbers[joint] for joint in JOINTS])


NUMBER = st.floats(-3, 3).filter(lambda x: abs(x) > 1e-2)


@given(
    unit=st.sampled_from(["rad", "deg", "-100..100", "0..100", "-1..1", "0..1"]),
    sign=st.sampled_from([1, -1]),
    offset=st.floats(-50, 50),
    scale=NUMBER,
    method=st.sampled_from(["none", "mean_std", "min_max", "quantiles", "quantiles10"]),
    positions=st.tuples(st.floats(-1.9, 1.9), st.floats(0.1, 1.9), st.floats(-0.9, 2.9)),
)
def test_output_inverts_the_input(unit, sign, offset, scale, method, positions):
    """With x = (q - offset) * sign * scale, a position observed in a unit and sent back in it is the same position."""
    names = {
        "mean_std": ("mean", "std"),
        "min_max": ("min", "max"),
        "quantiles": ("q01", "q99"),
        "quantiles10": ("q10", "q90"),
    }
    normalize = (
        None if method == "none" else {"method": method, names[method][0]: -2.5, names[method][1]: 4.0, "epsilon": 1e-8}
    )
    part = {"joints": ["wrist", "shoulder", "elbow"], "unit": unit, "sign": sign, "offset": offset}
    grip = {"joints": ["finger"], "unit": "m"}
    found = parsed(
        simple(
            inputs={"state": {"parts": [{"field": "joints_position", **part, "scale": scale}, {"field": "joints_position", **grip}], "normalize": normalize}},
            parts=[{"actuator": "arm", **part, "scale": 1 / scale}, {"actuator": "gripper", **grip}],
            normalize=normalize,
            limits={} if unit in ("rad", "deg") else {joint: LIMITS[joint] for joint in JOINTS},
        )
    )  # fmt: skip
    seen = observation()
    seen["joints_position"] = np.array([*positions, 0.05])
    action = found.to_action({"action": found.to_inputs(seen)["state"]})
    np.testing.assert_allclose(flat(action), [*positions, 0.0], atol=2e-5 * max(1.0, abs(offset)))


def test_normalised_actions_and_clipped_features():
    """As in the training examples, features are clipped at 10 standard deviations, and actions are from -1..1."""
    arm = embodied_env.load_contract("arm_reach")
    low, high = arm.action_space.low.astype(float), arm.action_space.high.astype(float)
    document = {
        "inputs": {"obs": {"parts": [{"field": "tcp_position"}], "normalize": {"method": "mean_std", "mean": [0.1, 0.2, 0.3], "std": [0.01, 1.0, 2.0], "clip": 10.0}}},
        "outputs": {"action": {"parts": [{"actuator": "arm", "joints": [f"j{n}" for n in range(1, 7)], "unit": "action"}],
                               "normalize": {"method": "min_max", "min": low.tolist(), "max": high.tolist(), "clip": 1.0}}},
    }  # fmt: skip
    found = parsed(document, arm)
    seen = {**plausible_observation(arm), "tcp_position": np.array([1.0, -0.3, 0.9])}
    np.testing.assert_allclose(found.to_inputs(seen)["obs"], [10.0, -0.5, 0.3], rtol=1e-6)
    output = np.array([-1.5, -1.0, -0.25, 0.0, 0.5, 1.0])
    expected = np.clip(low + 0.5 * (output + 1.0) * (high - low), low, high)
    np.testing.assert_allclose(found.to_action({"action": output}), expected, atol=1e-12)


def test_defaults_of_the_training_as_offsets():
    """In Isaac Lab, the observation is relative to a default pose, and the action is a scaled offset from it."""
    default, scale = [0.1, 0.2, 0.3], 0.25
    joints = {"joints": list(JOINTS), "unit": "rad", "offset": default}
    document = simple(
        inputs={"obs": {"parts": [{"field": "joints_position", **joints}, {"last_output": "action"}]}},
        parts=[{"actuator": "arm", **joints, "scale": scale}, finger_part()],
    )
    found, seen = parsed(document), observation()
    first = found.to_inputs(seen)["obs"]
    np.testing.assert_allclose(first[:3], seen["joints_position"][:3] - default, rtol=1e-6)
    assert first[3:].tolist() == [0, 0, 0, 0]
    output = np.array([2.0, -1.0, 0.5, 0.05])
    np.testing.assert_allclose(found.to_action({"action": output})["arm"], np.array(default) + scale * output[:3])
    np.testing.assert_allclose(found.to_inputs(seen)["obs"][3:], output, rtol=1e-6)
    found.reset()
    assert not found.to_inputs(seen)["obs"][3:].any()
    assert not found.is_stateless


def test_joints_named_otherwise():
    names = {"shoulder_pan.pos": "shoulder", "gripper.pos": "finger"}
    parts = [
        {"actuator": "arm", "joints": ["elbow", "shoulder_pan.pos", "wrist"], "unit": "rad"},
        {"actuator": "gripper", "joints": ["gripper.pos"], "unit": "0..100"},
    ]
    action = act(
        parsed(simple(parts=parts, joint_names=names, limits={"gripper.pos": [0.0, 0.1]})), [0.1, 0.2, 0.3, 75.0]
    )
    np.testing.assert_allclose(flat(action), [0.2, 0.1, 0.3, 0.5])
    with pytest.raises(UsageError, match=r"which joint_names maps to .*expected different joints"):
        parsed(
            simple(
                parts=[{**parts[0], "joints": ["shoulder", "shoulder_pan.pos", "wrist"]}, parts[1]], joint_names=names
            )
        )


def test_a_range_stands_for_the_limits_of_the_training():
    """A contract with tighter limits changes nothing.

    Without the limits, the range is refused with those it has.
    """
    tight = bench([("elbow: {position: [0.0, 2.0]", "elbow: {position: [0.5, 1.5]")])
    parts = [arm_part(["rad", "-100..100", "rad"]), finger_part()]
    for contract in (BENCH, tight):
        found = parsed(simple(parts=parts, limits={"elbow": [0.0, 2.0]}), contract)
        np.testing.assert_allclose(act(found, [0.0, 20.0, 0.0, 0.0])["arm"], [0.0, 1.2, 0.0])
        with pytest.raises(
            UsageError, match=r"'-100..100' of 'elbow' without limits \(expected limits.elbow of the training; in"
        ):
            parsed(simple(parts=parts), contract)
    with pytest.raises(UsageError, match="limits: unused joint 'elbw'"):
        parsed(simple(parts=parts, limits={"elbow": [0.0, 2.0], "elbw": [0, 1]}))


# ------------------------------------------------------------------------------------------------- modes and gripper


def test_gripper_threshold_and_ignored_components():
    grip = finger_part(threshold={"at": 0.5, "below": 0.1, "above": 0.0})
    found = parsed(simple(parts=[{"ignore": 2}, arm_part("rad"), grip]))
    for value, expected in ((0.5, 1.0), (0.51, -1.0)):
        np.testing.assert_allclose(flat(act(found, [9, 9, 0.1, 0.2, 0.3, value])), [0.1, 0.2, 0.3, expected])


@pytest.mark.parametrize(("unit", "value_of"), [("0..100", 100.0), ("0..1", 1.0), ("-100..100", None), ("rad", 0.8)])
@pytest.mark.parametrize("kind", [ACTION, TOPIC])
def test_a_binary_gripper_opens_above_half_of_the_range_of_a_lerobot_gripper(kind, unit, value_of, tmp_path):
    contract = gripper_contract(tmp_path, gripper_text(kind))
    document = {
        "inputs": {"observation.state": {"parts": [{"field": "joints_position", "joints": ["j2"], "unit": unit}]}},
        "outputs": {
            "action": {
                "parts": [
                    {"actuator": "arm", "joints": ["j1"], "unit": "deg"},
                    {"actuator": "gripper", "joints": ["j2"], "unit": unit},
                ]
            }
        },
        **({} if unit == "rad" else {"limits": {"j2": [0.0, 0.8]}}),
    }
    found, scale = parsed(document, contract), ActionLayout(contract).scale
    for share, position in ((0.0, 0.0), (0.3, 0.0), (0.49, 0.0), (0.51, 0.8), (1.0, 0.8), (1.04, 0.8)):
        value = 200.0 * share - 100.0 if value_of is None else share * value_of
        seen = {"joints_position": np.array([0.0, share * 0.8])}
        np.testing.assert_allclose(found.to_inputs(seen)["observation.state"], value, atol=1e-6)
        action = act(found, [9.0, value], seen)
        clipped = np.clip(flat(action), scale.low, scale.high)  # as the gate does
        np.testing.assert_allclose(scale.to_si(clipped), [np.radians(9.0), position])


def test_relative_chunk_is_relative_to_its_own_observation():
    parts = [arm_part("deg", mode="relative"), finger_part()]
    found = parsed(simple(parts=parts, chunk={"length": 3, "execute": 2}))
    model = TrialModel({"action": np.array([[0.0, 9.0, 0.0, 0.05], [0.0, 18.0, 0.0, 0.05], [0.0, 27.0, 0.0, 0.05]])})
    runner = ChunkRunner(connect(model, found))
    for start in (0.3, 0.7):
        for step in (1, 2):
            seen = {**observation(), "joints_position": np.array([start, start + (step - 1), start, 0.0])}
            np.testing.assert_allclose(flat(runner(seen)), [start, start + np.radians(9.0 * step), start, 0.0])
    assert len([each for each in model.seen if isinstance(each, dict)]) == 2
    assert not found.is_stateless
    assert found.rows_per_step is None  # another chunk would be relative to another observation


def test_a_relative_range_of_a_joint_moves_nothing_at_zero():
    limits = {joint: [-1.0, 3.0] for joint in JOINTS}
    found = parsed({**simple(parts=[arm_part("0..100", mode="relative"), finger_part()]), "limits": limits})
    seen = observation()
    np.testing.assert_allclose(act(found, [0.0, 0.0, 0.0, 0.0], seen)["arm"], seen["joints_position"][:3])


def test_a_joint_in_two_parts_is_refused():
    with pytest.raises(UsageError, match=r"parts\[1\]\.joints: 'shoulder' is in two parts"):
        parsed(simple(parts=[arm_part("rad"), arm_part("deg"), finger_part()]))


def test_a_threshold_is_not_passed_by_a_value_that_is_no_number():
    gripper = finger_part(threshold={"at": 0.5, "above": 0.1, "below": 0.0})
    found = parsed(simple(parts=[arm_part("rad"), gripper]))
    assert isinstance(act(found, [0.0, 0.0, 0.0, np.nan]), NoAction)


@pytest.mark.parametrize("scale", ["physical", "normalized"])
def test_deltas_are_those_of_the_contract(scale):
    contract = bench([("command: position\n    scale: physical", f"command: position_delta\n    scale: {scale}")])
    arm = arm_part("deg", mode="delta")
    grip = finger_part("mm")
    action = act(parsed(simple(parts=[arm, grip]), contract), [1.0, -2.0, 0.0, 50])
    most = 3.0 * 0.95 * 0.05 if scale == "normalized" else 1.0
    np.testing.assert_allclose(action["arm"], np.radians([1.0, -2.0, 0.0]) / most)
    with pytest.raises(
        UsageError, match=r"absolute for actuators.arm.command position_delta \(expected delta\); correct it"
    ):
        parsed(simple(parts=[{**arm, "mode": "absolute"}, grip]), contract)


def test_twist_axes():
    cart = embodied_env.load_contract("cart_goal")
    (name,) = cart.actuators
    parts = [{"actuator": name, "joints": ["angular.z", "linear.x"], "unit": ["deg/s", "m/s"]}]
    document = simple(inputs={"goal": {"parts": [{"field": next(iter(cart.observation_space.spaces))}]}}, parts=parts)
    found = parsed({**document, "control_period_s": cart.control_period_s}, cart)
    action = act(found, [10.0, 0.1], plausible_observation(cart))
    layout = ActionLayout(cart)
    np.testing.assert_allclose(layout.scale.to_si(action), [0.1, np.radians(10.0)])


def test_velocities():
    contract = bench([("command: position\n    scale: physical", "command: velocity\n    scale: physical")])
    grip = finger_part("mm")
    arm = arm_part("deg/s")
    action = act(parsed(simple(parts=[arm, grip]), contract), [90.0, 0.0, -45.0, 25.0])
    np.testing.assert_allclose(flat(action), [np.pi / 2, 0, -np.pi / 4, -0.5])
    with pytest.raises(UsageError, match=r"'-1..1' of 'shoulder' \(expected one of: rad/s, deg/s"):
        parsed(simple(parts=[{**arm, "unit": "-1..1"}, grip]), contract)


# --------------------------------------------------------------------------------------------- chunks and the period


@pytest.mark.parametrize(("period", "n_action_steps"), [(0.05, 2), (0.1, 4)])
def test_chunk_is_executed_in_part_and_the_rest_is_a_reserve(period, n_action_steps):
    found = parsed(simple(control_period_s=period, resample="linear", chunk={"length": 4, "execute": 2}))
    rows = np.arange(16.0).reshape(4, 4) / 20
    whole = act(parsed(simple(control_period_s=period, resample="linear", chunk={"length": 4})), rows)
    np.testing.assert_array_equal(act(found, rows)["arm"], whole["arm"])
    policy = connect(TrialModel({"action": rows}), found)
    runner = ChunkRunner(policy)
    executed = [runner(observation())["arm"].tolist() for _ in range(n_action_steps + 1)]
    assert executed == [*whole["arm"][:n_action_steps].tolist(), whole["arm"][0].tolist()]
    assert find_n_action_steps(policy) == n_action_steps
    assert isinstance(act(found, rows[:3]), NoAction)
    assert isinstance(act(found, rows[0]), NoAction)


@pytest.mark.parametrize(
    ("period", "method", "expected"),
    [
        (0.1, "hold", [0.0, 0.0, 0.4, 0.4, 0.8, 0.8]),
        (0.1, "linear", [0.0, 0.2, 0.4, 0.6, 0.8, 0.8]),
        (0.025, "hold", [0.0, 0.8]),
        (0.075, "linear", [0.0, 0.8 / 3, 1.6 / 3, 0.8]),
    ],
)
def test_another_control_period_is_resampled_by_an_explicit_key(period, method, expected):
    document = simple(control_period_s=period, resample=method, chunk={"length": 3})
    action = act(parsed(document), np.array([[x, x, x, 0.0] for x in (0.0, 0.4, 0.8)]))
    np.testing.assert_allclose(action["arm"][:, 0], expected)
    del document["resample"]
    with pytest.raises(UsageError, match=r"that of the contract is 0.05 s \(expected the same\); or set resample"):
        parsed(document)


@pytest.mark.parametrize("period", [0.1, 0.025, 0.15])
def test_resampled_deltas_keep_their_sum(period):
    contract = bench([("command: position\n    scale: physical", "command: position_delta\n    scale: physical")])
    parts = [arm_part("rad", mode="delta"), finger_part(threshold={"at": 0.5, "below": 0.0, "above": 0.1})]
    rows = np.array([[0.01, -0.02, 0.03, 1.0], [0.02, 0.0, 0.0, 0.0]])
    for method in ("hold", "linear"):
        document = simple(parts=parts, control_period_s=period, resample=method, chunk={"length": 2})
        action = act(parsed(document, contract), rows)
        np.testing.assert_allclose(action["arm"].sum(axis=0), rows[:, :3].sum(axis=0))
        assert set(action["gripper"].ravel()) <= {-1.0, 1.0}  # never half open


def test_single_actions_of_a_slow_policy_are_repeated():
    action = act(parsed(simple(control_period_s=0.1, resample="hold")), [0.1, 0.2, 0.3, 0.0])
    np.testing.assert_allclose(action["arm"], [[0.1, 0.2, 0.3]] * 2)
    with pytest.raises(UsageError, match=r"1 actions of 0.01 s are 0 steps of the contract"):
        parsed(simple(control_period_s=0.01, resample="hold"))


def test_reciprocals_are_of_values_above_the_smallest():
    part = {"field": "tcp_position", "reciprocal_from": 0.2, "offset": 1.0, "scale": 2.0}
    found = parsed(simple(inputs={"state": {"parts": [part, {"field": "tcp_position"}]}}))
    seen = found.to_inputs({**observation(), "tcp_position": np.array([0.5, 0.1, -3.0], np.float32)})["state"]
    np.testing.assert_allclose(seen, [2.0, 8.0, 8.0, 0.5, 0.1, -3.0])


def test_directions_are_of_vectors_of_at_least_a_length():
    found = parsed(
        simple(inputs={"state": {"parts": [{"field": "tcp_position", "direction_from": 0.5, "scale": 2.0}]}})
    )
    for seen, expected in (([3.0, 0.0, -4.0], [1.2, 0.0, -1.6]), ([0.25, 0.0, 0.0], [1.0, 0.0, 0.0])):
        given = found.to_inputs({**observation(), "tcp_position": np.array(seen, np.float32)})["state"]
        np.testing.assert_allclose(given, expected, rtol=1e-6)


@pytest.mark.parametrize("key", ["reciprocal_from", "direction_from"])
@pytest.mark.parametrize(
    ("least", "others", "problem"),
    [
        (-0.1, {}, r"-0.1 .*at least 1e-09"),
        (0.1, {"unit": "mm"}, "expected one of unit, reciprocal_from, direction_from"),
        (0.1, {"reciprocal_from": 0.1, "direction_from": 0.1}, "expected one of unit, reciprocal_from, direction_from"),
    ],
)
def test_impossible_reciprocals_and_directions_are_refused(key, least, others, problem):
    part = {"field": "tcp_position", key: least, **others}
    with pytest.raises(ContractError, match=rf"inputs.state.parts\[0\]..*_from: .*{problem}"):
        parsed(simple(inputs={"state": {"parts": [part]}}))


# -------------------------------------------------------------------------------------------------------- history


def history(steps, *, pad="repeat", layout="stacked"):
    parts = [{"field": "tcp_position", "components": [0]}, {"field": "tcp_position", "components": [2, 1]}]
    return {"state": {"parts": parts, "history": {"steps": steps, "pad": pad, "layout": layout}}}


def at(value):
    return {**observation(), "tcp_position": np.array([value, value + 0.25, value + 0.5])}


@pytest.mark.parametrize(
    ("pad", "layout", "first", "third"),
    [
        ("repeat", "stacked", [[0, 0.5, 0.25]] * 2, [[0, 0.5, 0.25], [2, 2.5, 2.25]]),
        ("zeros", "stacked", [[0, 0, 0], [0, 0.5, 0.25]], [[0, 0.5, 0.25], [2, 2.5, 2.25]]),
        ("repeat", "by_time", [0, 0.5, 0.25] * 2, [0, 0.5, 0.25, 2, 2.5, 2.25]),
        ("repeat", "by_part", [0, 0, 0.5, 0.25, 0.5, 0.25], [0, 2, 0.5, 0.25, 2.5, 2.25]),
    ],
)
def test_history_at_the_ticks_of_the_policy(pad, layout, first, third):
    found = parsed(simple(inputs=history([-2, 0], pad=pad, layout=layout)))
    values = [found.to_inputs(at(step))["state"].tolist() for step in range(3)]
    assert (values[0], values[2]) == (first, third)
    found.reset()
    assert found.to_inputs(at(0))["state"].tolist() == first


def test_history_has_the_steps_between_two_inferences_of_a_chunk():
    found = parsed(simple(inputs=history([-1, 0]), chunk={"length": 3}))
    model = TrialModel({"action": np.zeros((3, 4))})
    runner = ChunkRunner(connect(model, found))
    runner.reset(seed=0, episode_index=0)
    for step in range(4):
        runner(at(step))
    assert [each["state"][:, 0].tolist() for each in model.seen if isinstance(each, dict)] == [[0, 0], [2, 3]]
    assert not isinstance(connect(model, found), BatchPolicy)


def remembering(**chunk):
    """Return a policy of two observations in chunks of three actions."""
    found = parsed(simple(inputs=history([-1, 0]), chunk={"length": 3, **chunk}))
    return ModelPolicy(TrialModel({"action": np.zeros((3, 4))}), found)


@pytest.mark.needs("remote")
def test_a_history_in_chunks_is_not_served():
    from embodied_env.extensions.remote.policy_server import ServedPolicy

    with pytest.raises(UsageError, match="cannot be served: a client sends no observation within a chunk"):
        ServedPolicy(remembering(), bench())
    ServedPolicy(remembering(execute=1), bench())


def test_a_step_that_a_history_has_not_observed_is_an_error():
    policy = remembering()
    policy(at(0))
    with pytest.raises(UsageError, match=r"its history lacks the steps .* \(expected observe\(observation\)"):
        policy(at(3))
    policy.reset(seed=0, episode_index=1)
    policy(at(0))
    policy.observe(at(1))
    policy.observe(at(2))
    policy(at(3))
    assert policy.model.seen[-1]["state"][:, 0].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("chunk", [{"execute": 1}, {}])
def test_a_history_that_is_called_at_every_step_lacks_none(chunk):
    """The policy file, or a runner that observes every step, records the history."""
    policy = remembering(**chunk)
    call = policy if chunk else ChunkRunner(policy, "ensemble")
    for step in range(3):
        call(at(step))
    assert policy.model.seen[-1]["state"][:, 0].tolist() == [1.0, 2.0]


def test_history_keeps_copies_of_arrays_that_the_next_step_overwrites():
    """As those of a vector environment with ``copy=False``."""
    found, seen = parsed(simple(inputs=history([-1, 0]))), at(0)
    found.observe(seen)
    for key, value in at(1).items():
        seen[key][...] = value
    assert found.to_inputs(seen)["state"][:, 0].tolist() == [0, 1]


def test_history_of_a_slower_policy_skips_control_steps():
    found = parsed(simple(inputs=history([-1, 0]), control_period_s=0.1, resample="hold"))
    values = [found.to_inputs(at(step))["state"][:, 0].tolist() for step in range(4)]
    assert values == [[0, 0], [0, 1], [0, 2], [1, 3]]
    with pytest.raises(UsageError, match=r"history.steps: -1 is 1.5 control periods ago \(expected a whole number"):
        parsed(simple(inputs=history([-1, 0]), control_period_s=0.075, resample="hold"))


# ---------------------------------------------------------------------------------------------------------- images


def image(**keys):
    return {"front": {"image": {"field": "front_image", "size": [48, 64], **keys}}}


def test_image_as_in_training():
    seen = observation()
    rgb = seen["front_image"][:, :, ::-1]  # the contract has bgr8
    plain = parsed(simple(inputs=image())).to_inputs(seen)["front"]
    np.testing.assert_array_equal(plain, rgb)
    assert plain.dtype == np.uint8
    np.testing.assert_array_equal(
        parsed(simple(inputs=image(channels="bgr"))).to_inputs(seen)["front"], seen["front_image"]
    )
    keys = {"size": [32, 32], "method": "letterbox", "layout": "chw", "range": [0, 1]}
    statistics = {"method": "mean_std", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    document = simple(
        inputs={"front": {**image(**keys)["front"], "normalize": statistics, "history": {"steps": [-1, 0]}}}
    )
    found = parsed(document).to_inputs(seen)["front"]
    boxed = resize_image(np.ascontiguousarray(rgb), ResizeSpec(size=(32, 32), method="letterbox"))
    expected = ((boxed.astype(np.float32) / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4]).transpose(2, 0, 1)
    assert (found.shape, found.dtype) == ((2, 3, 32, 32), np.float32)
    np.testing.assert_allclose(found[1], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "encoding", "problem"),
    [
        ({"size": [24, 32]}, "bgr8", r"'front_image' is 48x64 \(expected 24x32, as in training\); give the method"),
        ({"channels": "mono"}, "bgr8", "mono of an image in bgr8"),
        ({}, "mono8", "rgb of an image in mono8; set expand"),
        ({"channels": "mono", "expand": True}, "mono8", "mono of an image in mono8"),
        ({"field": "front"}, "bgr8", r"did you mean 'front_image'"),
        ({"field": "tcp_position"}, "bgr8", r"expected one of: front_image"),
    ],
)
def test_image_that_is_not_as_in_training_is_refused(keys, encoding, problem):
    changes = [("encoding: bgr8", "encoding: mono8"), ("[48, 64, 3]", "[48, 64, 1]")] if encoding == "mono8" else []
    with pytest.raises(UsageError, match=problem):
        parsed(simple(inputs=image(**keys)), bench(changes))


@pytest.mark.parametrize(
    ("pixels", "mean", "std", "known"),
    [(None, 0.45, 0.225, r"become -2 and 1131 "), ([0, 1], 120.0, 60.0, r"become -2 and -1\.983 ")],
)
def test_statistics_of_another_range_of_pixels_are_refused(pixels, mean, std, known):
    front = {**image(range=pixels)["front"], "normalize": {"method": "mean_std", "mean": mean, "std": std}}
    with pytest.raises(UsageError, match=rf"image\.range: statistics of another range: 0 and 255 {known}"):
        parsed(simple(inputs={"front": front}))


def test_mono_and_depth_images():
    mono = bench([("encoding: bgr8", "encoding: mono8"), ("[48, 64, 3]", "[48, 64, 1]")])
    seen = observation(mono)
    found = parsed(simple(inputs=image(expand=True)), mono).to_inputs(seen)["front"]
    np.testing.assert_array_equal(found, np.repeat(seen["front_image"], 3, axis=2))
    depth = bench(
        [
            ("encoding: bgr8", "encoding: 32FC1"),
            ("[48, 64, 3]", "[48, 64, 1]"),
            ('unit: "1", low: 0, high: 255', "unit: m, low: 0, high: 9"),
        ]
    )
    keys = {"channels": "depth", "layout": "chw", "size": [24, 32], "method": "stretch"}
    with pytest.raises(UsageError, match=r"bilinear \(expected nearest for depth"):
        parsed(simple(inputs=image(**keys)), depth)
    found = parsed(simple(inputs=image(**keys, resample="nearest")), depth).to_inputs(observation(depth))["front"]
    assert (found.shape, found.dtype) == ((1, 24, 32), np.float32)


def test_resize_in_contract_and_policy_file_is_refused():
    resized = bench([("shape: [48, 64, 3]", "shape: [48, 64, 3], resize: {size: [24, 24]}")])
    parsed(simple(inputs=image(size=[24, 24])), resized)
    with pytest.raises(UsageError, match=r"has a resize in the contract too \(expected one of them"):
        parsed(simple(inputs=image(size=[24, 24], method="letterbox")), resized)


def test_history_in_contract_and_policy_file_is_refused():
    contract = bench([("fields: {position: {unit: m,", "fields: {position: {history: 2, unit: m,")])
    plain = parsed(simple(inputs={"state": {"parts": [{"field": "tcp_position"}]}}), contract)
    assert plain.inputs["state"].shape == (6,)
    with pytest.raises(UsageError, match=r"'tcp_position' has a history in the contract too"):
        parsed(simple(inputs=history([-1, 0])), contract)


def test_the_sensors_of_the_inputs_are_required_unless_they_have_a_mask():
    inputs = {"state": {"parts": [{"field": "tcp_position"}]}, **image()}
    assert parsed(simple(inputs=inputs)).required_sensors == ("tcp", "front")
    masked = bench([("encoding: bgr8", "encoding: bgr8\n    mask: true")])
    assert parsed(simple(inputs=inputs), masked).required_sensors == ("tcp",)


def test_instruction(tmp_path):
    found = parsed(simple(inputs={"prompt": {"text": "instruction"}}))
    assert found.to_inputs(observation())["prompt"] == "pick up the cube"
    with pytest.raises(UsageError, match=r"inputs.prompt.text: no task.instruction in the contract bench"):
        parsed(simple(inputs={"prompt": {"text": "instruction"}}), bench([(", instruction: pick up the cube", "")]))


def test_another_prompt_is_in_the_inputs_that_follow():
    found = parsed(simple(inputs={"prompt": {"text": "instruction"}}))
    assert found.instruct("stack the cubes")
    assert found.to_inputs(observation())["prompt"] == "stack the cubes"
    assert not parsed(simple()).instruct("stack the cubes")


# -------------------------------------------------------------------------------------------------- checks of a model

SPECS = {
    "inputs": {"state": ArraySpec(shape=(3,), dtype=np.dtype(np.float32))},
    "outputs": {"action": ArraySpec(shape=(4,), dtype=np.dtype(np.float32))},
}
ZEROS = {"action": np.zeros(4)}


def spec(*shape, dtype=np.float32):
    return ArraySpec(shape=shape, dtype=np.dtype(dtype))


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (TrialModel(ZEROS, inputs={"obs": spec(3)}), "unknown input of the model: 'state' .*expected one of: obs"),
        (TrialModel(ZEROS, inputs={"state": spec(3), "goal": spec(2)}), "no entry for the input 'goal' of the model"),
        (
            TrialModel(ZEROS, inputs={"state": spec(4)}),
            r"inputs.state: shape \(3,\) \(expected \(4,\), the model's\): tcp_position\[0\], ",
        ),
        (
            TrialModel(ZEROS, outputs={"actions": spec(4)}),
            "unknown output of the model: 'action' .*did you mean 'actions'",
        ),
        (
            TrialModel(ZEROS, outputs={"action": spec(2, 4)}),
            r"outputs.action: shape \(4,\) \(expected \(2, 4\), the model's\): arm\[shoulder\], ",
        ),
        (
            TrialModel({"action": np.zeros(7)}),
            r"no action for a plausible observation: output action has the shape \(7,\)",
        ),
        (TrialModel({"actions": np.zeros(4)}), "output action has no array"),
        (TrialModel({"action": np.full(4, np.nan)}), "not finite numbers"),
        (TrialModel({"action": np.array(["a"] * 4)}), "not finite numbers"),
        (TrialModel(NoAction("no server")), "no action for a plausible observation: no server"),
        (TrialModel(lambda _: 1 / 0), "inference of a plausible observation failed: ZeroDivisionError"),
    ],
)
def test_model_that_does_not_fit_is_refused_before_anything_moves(model, problem):
    with pytest.raises(UsageError, match=problem):
        parsed(simple()).check(model)


def test_instruction_for_a_model_without_one_is_refused():
    file = simple(inputs={"state": {"parts": [{"field": "tcp_position"}]}, "task": {"text": "instruction"}})
    with pytest.raises(UsageError, match=r"inputs\.task: unknown input of the model: 'task' \(expected one of: state"):
        parsed(file).check(TrialModel(ZEROS, **SPECS))
    parsed(file).check(TrialModel(ZEROS))  # a server does not tell


@pytest.mark.parametrize("server", [None, {"embodied_env": {"identity": {"format": "lerobot"}}}])
def test_normalisation_of_a_model_that_normalises_itself_is_refused(server):
    """The policy file and the processors of LeRobot would each apply the statistics."""
    model = TrialModel(ZEROS)
    model.identity = PolicyIdentity(name="x", format="openpi" if server else "lerobot", server=server)
    parsed(simple()).check(model)
    with pytest.raises(UsageError, match=r"outputs\.action\.normalize: LeRobot's processors normalise"):
        parsed(simple(normalize={"method": "mean_std", "mean": 0.0, "std": 2.0})).check(model)


def test_model_that_fits_is_given_a_plausible_observation():
    model = TrialModel(ZEROS, **SPECS)
    parsed(simple()).check(model)
    (_, inputs) = model.seen
    assert inputs["state"].tolist() == [0, 0, 0]
    example = plausible_observation(BENCH)
    assert BENCH.observation_space.contains(example)
    assert example["tcp_orientation"].tolist() == [0, 0, 0, 1]


def test_raw_image_for_a_model_of_floats_is_refused():
    model = TrialModel(ZEROS, inputs={"front": spec(48, 64, 3)})
    with pytest.raises(UsageError, match=r"inputs.front: uint8, the model's is float32 .*give the range"):
        parsed(simple(inputs=image())).check(model)


@pytest.mark.parametrize(
    "answer", [np.full(4, np.inf), np.zeros(3), np.zeros((1, 4)), np.full(4, 1e308), None, [0.0] * 4]
)
def test_wrong_answer_at_run_time_is_no_action(answer):
    found = parsed(simple(parts=[arm_part("rad", scale=10), finger_part()]))
    found.observe(observation())
    assert isinstance(found.to_action({"action": answer}), NoAction)


# -------------------------------------------------------------------------------------------------------- end to end

ARM = """
policy: embodied_env/policy/1
name: follow
control_period_s: 0.05
inputs:
  obs: {parts: [{field: joints_velocity, joints: [j6, j5, j4, j3, j2, j1], unit: deg/s}]}
outputs:
  action: {parts: [{actuator: arm, joints: [j1, j2, j3, j4, j5, j6], unit: deg, mode: delta}]}
"""


@pytest.fixture
def model(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "follow.onnx").write_bytes(onnx_models.linear(np.eye(6)[::-1] * 0.01, name="obs"))
    return tmp_path / "follow.onnx"


@pytest.mark.parametrize("where", ["beside", "given", "directory"])
def test_policy_file_is_found_and_named(model, tmp_path, where, monkeypatch):
    from embodied_env.policies import policy_loader as loader

    arm = embodied_env.load_contract("arm_reach")
    address, options, name = f"onnx:{model}", {}, "follow.policy.yaml"
    if where == "given":
        name, options = "other.yaml", {"policy_file": tmp_path / "other.yaml"}
    if where == "directory":
        address, name = f"onnx:{tmp_path}", "policy.policy.yaml"
        load = loader._load_model
        monkeypatch.setattr(loader, "_load_model", lambda _, options: load(parse_address(f"onnx:{model}"), options))
    (tmp_path / name).write_text(ARM)
    policy = embodied_env.load_policy(address, arm, **options)
    assert policy.identity.policy_file == str(tmp_path / name)
    assert len(policy.identity.policy_file_sha256) == 64
    seen = {**plausible_observation(arm), "joints_velocity": np.arange(6.0)}
    expected = arm.action_space.high * 0 + np.radians(np.degrees(np.arange(6.0)) * 0.01) / (3.1 * 0.95 * 0.05)
    np.testing.assert_allclose(policy(seen), expected, rtol=1e-5)
    assert isinstance(policy, BatchPolicy)


def test_policy_file_that_cannot_be_read_is_not_ignored(model, tmp_path):
    """With a link to a file that was not copied, the model would run without its mapping."""
    (tmp_path / "follow.policy.yaml").symlink_to("elsewhere.yaml")
    with pytest.raises(UsageError, match=r"cannot read policy file '.*follow\.policy\.yaml'"):
        embodied_env.load_policy(f"onnx:{model}", embodied_env.load_contract("arm_reach"))


@pytest.mark.needs("evaluation", "replay")
def test_evaluation_and_replay_by_a_policy_file(model, tmp_path, capsys):
    (tmp_path / "map.yaml").write_text(ARM)
    common = ["--policy", f"onnx:{model}", "--policy-file", str(tmp_path / "map.yaml"), "--json"]
    runs = ["--out", str(tmp_path / "runs"), "--backend", "fake", "--clock", "virtual", "--episodes", "1"]
    (tmp_path / "short.yaml").write_text(changed_text("arm_reach", {"episode.horizon_steps": 5}))
    assert main(["evaluate", str(tmp_path / "short.yaml"), *runs, *common]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    capsys.readouterr()
    policy = json.loads((run / "manifest.json").read_text())["policy"]
    assert (policy["policy_file"], len(policy["policy_file_sha256"])) == (str(tmp_path / "map.yaml"), 64)
    assert_sound(run)
    assert main(["replay", str(run), *common]) == 0
    assert json.loads(capsys.readouterr().out)["first"] is None
    assert main(["replay", str(run), "--policy-file", "map.yaml"]) == 2


def test_joint_positions_in_other_order_unit_and_sign_hold_the_robot():
    """When the observed positions are returned as targets, the SO-101 stays where it is, and no action is changed."""
    so101 = changed_contract("so101_reach", {"actuators.arm.command": "position", "action.dtype": "float64"})
    joints = {
        "joints": ["gripper", "wrist_roll", "wrist_flex", "elbow_flex", "shoulder_lift", "shoulder_pan"],
        "unit": ["0..100", "deg", "deg", "-100..100", "deg", "deg"],
        "sign": [1, -1, 1, -1, 1, 1],
    }
    found = parsed(
        simple(
            inputs={"state": {"parts": [{"field": "joints_position", **joints}]}},
            parts=[{"actuator": "arm", **joints}],
            limits={"gripper": [-0.17, 1.74], "elbow_flex": [-1.69, 1.69]},
        ),
        so101,
    )
    policy = connect(TrialModel(lambda inputs: {"action": inputs["state"].astype(np.float64)}), found)
    with embodied_env.make(so101) as env:
        seen, _ = env.reset(seed=0)
        policy.reset(seed=0, episode_index=0)
        start = seen["joints_position"]
        for _ in range(5):
            seen, *_, info = env.step(policy(seen))
            assert not np.any(info["action_clipped"])
        np.testing.assert_allclose(seen["joints_position"], start, atol=0.02)
