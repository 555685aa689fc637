"""Mistakes that users of other projects have published are refused by name, or cannot be made."""

import numpy as np
import pytest
from policy_files import FILE, JOINTS, TrialModel, bench, interface, observation, write

from embodied_env.errors import UsageError
from embodied_env.policies.policy_file import read_policy_file, write_policy_file
from embodied_env.policies.policy_model import ArraySpec

ARM = "{actuator: arm, joints: [elbow, wrist, shoulder], unit: deg, sign: [1, 1, -1]}"
IMAGE = "inputs:\n  front: {image: {field: front_image, SIZE, layout: chw, range: [0, 1]}}\n"


def changed(old, new):
    assert old in FILE, old
    return FILE.replace(old, new, 1)


def with_image(size):
    return FILE.replace("inputs:\n", IMAGE.replace("SIZE", size))


def camera(width, height):
    return bench([("[48, 64, 3]", f"[{height}, {width}, 3]")])


def test_isaaclab_2636_an_output_without_its_unit_is_refused(tmp_path):
    """The file declares whether the scale of the action is part of the ONNX model, or is refused."""
    with pytest.raises(UsageError, match=r"outputs\.action\.parts\[0\]\.unit: missing key"):
        interface(tmp_path, changed(ARM, "{actuator: arm, joints: [elbow, wrist, shoulder], scale: 2.0}"))
    scaled = interface(
        tmp_path, changed(ARM, "{actuator: arm, joints: [elbow, wrist, shoulder], unit: rad, scale: 2.0}")
    )
    scaled.observe(observation())
    action = scaled.to_action({"action": np.array([0.5, 0.25, -0.5, 0.0])})
    np.testing.assert_allclose(action["arm"], [-1.0, 1.0, 0.5])


def test_isaaclab_2339_an_action_relative_to_a_pose_is_no_joint_position(tmp_path):
    """Raw outputs of a JointPositionAction were sent as joint positions, but with its pose and scale 0 is that pose."""
    pose = "{actuator: arm, joints: [elbow, wrist, shoulder], unit: rad, scale: 0.5, offset: [1.0, 0.5, -0.2]}"
    found = interface(tmp_path, changed(ARM, pose))
    found.observe(observation())
    np.testing.assert_allclose(found.to_action({"action": np.zeros(4)})["arm"], [-0.2, 1.0, 0.5])
    deltas = bench([("command: position\n    scale: physical", "command: position_delta\n    scale: physical")])
    with pytest.raises(UsageError, match=r"absolute for actuators.arm.command position_delta \(expected delta\)"):
        interface(tmp_path, changed(ARM, pose), contract=deltas)


def test_rsl_rl_37_scale_and_offset_are_in_the_file_of_the_policy(tmp_path):
    """Which transformations were there in training? What training wrote is what the policy gets, or it is refused."""
    text = changed("unit: deg, sign: [1, -1, 1]", "unit: rad, scale: 0.25, offset: [0.1, 0.8, -1.5]")
    seen = observation()
    joints = dict(zip(JOINTS, seen["joints_position"], strict=False))
    expected = [0.25 * (joints["wrist"] - 0.1), 0.25 * (joints["shoulder"] - 0.8), 0.25 * (joints["elbow"] + 1.5)]
    np.testing.assert_allclose(interface(tmp_path, text).to_inputs(seen)["state"][:3], expected, rtol=1e-6)
    specs = {name: ArraySpec(shape=(8,), dtype=np.dtype(np.float32)) for name in ("state", "last_action")}
    with pytest.raises(UsageError, match="no entry for the input 'last_action' of the model"):
        interface(tmp_path, text).check(TrialModel({"action": np.zeros(4)}, inputs=specs))


def test_isaacgymenvs_261_joints_without_a_unit_are_refused(tmp_path):
    """Radians or degrees? In either case the motors moved."""
    with pytest.raises(
        UsageError, match=r"inputs\.state\.parts\[0\]: 'joints_position' has joints \(expected joints by name, with"
    ):
        interface(tmp_path, changed(", unit: deg, sign: [1, -1, 1]", ""))


def test_himloco_7_history_from_the_newest_to_the_oldest(tmp_path):
    """The file gives the order of the rows of six observations, here the newest first."""
    text = changed("  state:\n", "  state:\n    history: {steps: [0, -1, -2], layout: by_time}\n")
    found, seen = interface(tmp_path, text), observation()
    rows = []
    for finger in (0.0, 0.05, 0.1):
        positions = np.array([*seen["joints_position"][:3], finger])
        rows.append(found.to_inputs({**seen, "joints_position": positions})["state"].reshape(3, 8)[:, 3].tolist())
    np.testing.assert_allclose(rows, [[0, 0, 0], [50, 0, 0], [100, 50, 0]], atol=1e-4)


def test_mujoco_playground_267_statistics_that_are_missing_are_refused(tmp_path):
    """The normalisation of the training was skipped, since the statistics had no entry for the input."""
    text = changed("  state:\n", "  state:\n    normalize: {method: mean_std, file: stats.json, key: obs}\n")
    with pytest.raises(UsageError, match=r"inputs\.state\.normalize\.key: no 'obs\.mean' in stats\.json"):
        interface(tmp_path, text, stats_json=b'{"observation": {"mean": [0.0], "std": [1.0]}}')


def test_unitree_rl_mjlab_32_a_changed_scale_is_another_policy(tmp_path):
    """A scale was copied by hand, but the file is written from the values of training.

    A change of one value changes the SHA-256 of the file.
    """
    file = read_policy_file(write(tmp_path, changed("unit: m}", "unit: m, scale: 0.55}")))
    written = write_policy_file(tmp_path / "written.policy.yaml", file)
    assert written == file
    text = (tmp_path / "written.policy.yaml").read_text()
    (tmp_path / "copied.policy.yaml").write_text(text.replace("0.55", "0.35"))
    copied = read_policy_file(tmp_path / "copied.policy.yaml")
    assert copied.sha256 != written.sha256
    identity = interface(tmp_path).identify(TrialModel(None).identity)
    assert identity.policy_file_sha256 == read_policy_file(identity.policy_file).sha256


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[wrist, shoulder, elbow]", "[hip, shoulder, elbow]", "policy has 3 joints; no counterpart in the contract for 'hip'"),
        (", quaternion: wxyz", "", r"quaternion: None \(expected xyzw or wxyz, as in training"),
        ("sign: [1, 1, -1]", "scale: [0.2, 0.3]", r"outputs\.action\.parts\[0\]\.scale: 2 values \(expected one for all, or 3"),
    ],
)  # fmt: skip
def test_robojudo_55_joint_order_quaternion_order_and_length_of_scales(tmp_path, old, new, problem):
    with pytest.raises(UsageError, match=problem):
        interface(tmp_path, changed(old, new))


def test_robojudo_55_outputs_are_by_name(tmp_path):
    """The wrong one of several outputs was used, but they are found by name, whatever their number and order."""
    found = interface(tmp_path)
    float32 = np.dtype(np.float32)
    specs = {"value": ArraySpec(shape=(1,), dtype=float32), "action": ArraySpec(shape=(4,), dtype=float32)}
    found.check(TrialModel({"value": np.full(1, np.nan), "action": np.zeros(4)}, outputs=specs))
    with pytest.raises(UsageError, match=r"unknown output of the model: 'action' \(expected one of: .*mean, std"):
        found.check(TrialModel({}, outputs={"mean": specs["action"], "std": specs["action"]}))


def test_robojudo_55_order_of_observations_is_that_of_the_parts(tmp_path):
    """A model that takes another number of values is refused with the names of those that the file gives."""
    spec = {"state": ArraySpec(shape=(7,), dtype=np.dtype(np.float32))}
    with pytest.raises(
        UsageError,
        match=r"inputs.state: shape \(8,\) \(expected \(7,\), the model's\): joints_position\[wrist\], joints_position\[sho",
    ):
        interface(tmp_path).check(TrialModel({"action": np.zeros(4)}, inputs=spec))


def test_lerobot_2980_4345_an_image_is_not_resized_without_a_method(tmp_path):
    """Frames of 1280x720 squashed to the (3, 256, 256) of the configuration, before the policy's own resize."""
    with pytest.raises(
        UsageError, match=r"'front_image' is 720x1280 \(expected 256x256, as in training\); give the method"
    ):
        interface(tmp_path, with_image("size: [256, 256]"), contract=camera(1280, 720))
    found = interface(tmp_path, with_image("size: [720, 1280]"), contract=camera(1280, 720))
    assert found.inputs["front"].shape == (3, 720, 1280)  # for a policy that resizes by itself


def test_grabette_143_images_of_another_size_are_refused(tmp_path):
    """960x720 was given to a policy of 480x360 that accepts any size, so the model's specification is not enough."""
    with pytest.raises(UsageError, match=r"'front_image' is 720x960 \(expected 360x480, as in training\)"):
        interface(tmp_path, with_image("size: [360, 480]"), contract=camera(960, 720))
    any_size = {"front": ArraySpec(shape=(3, None, None), dtype=np.dtype(np.float32))}
    any_size["state"] = ArraySpec(shape=(8,), dtype=np.dtype(np.float32))
    found = interface(
        tmp_path, with_image("size: [360, 480], method: stretch, resample: area"), contract=camera(960, 720)
    )
    found.check(TrialModel({"action": np.zeros(4)}, inputs=any_size))


def test_vla_evaluation_harness_149_letterbox_keeps_the_aspect_ratio(tmp_path):
    """640x480 was squashed to 256x256, but the method is that of the training, and a square stays a square."""
    contract = camera(640, 480)
    seen = {**observation(contract), "front_image": np.zeros((480, 640, 3), dtype=np.uint8)}
    seen["front_image"][140:340, 220:420] = 255  # 200x200
    sizes = {}
    for method in ("letterbox", "stretch"):
        found = interface(tmp_path, with_image(f"size: [256, 256], method: {method}"), contract=contract)
        bright = found.to_inputs(seen)["front"][0] > 0.5
        sizes[method] = (int(bright.any(axis=1).sum()), int(bright.any(axis=0).sum()))
    assert sizes == {"letterbox": (80, 80), "stretch": (106, 80)}
    resized = bench([("shape: [48, 64, 3]", "shape: [480, 640, 3], resize: {size: [256, 256], method: stretch}")])
    with pytest.raises(UsageError, match="has a resize in the contract too"):
        interface(tmp_path, with_image("size: [256, 256], method: letterbox"), contract=resized)
