"""Mistakes that users of other projects have published are refused by name, or cannot be made."""

import numpy as np
import pytest
from policy_files import FILE, TrialModel, bench, interface, observation, write

from embodied_env.errors import UsageError
from embodied_env.policies.policy_file import read_policy_file, write_policy_file
from embodied_env.policies.policy_model import ArraySpec

IMAGE = "inputs:\n  front: {image: {field: front_image, SIZE, layout: chw, range: [0, 1]}}\n"


def changed(old, new):
    assert old in FILE, old
    return FILE.replace(old, new, 1)


def with_image(size):
    return FILE.replace("inputs:\n", IMAGE.replace("SIZE", size))


def camera(width, height):
    return bench([("[48, 64, 3]", f"[{height}, {width}, 3]")])


def test_himloco_7_history_from_the_newest_to_the_oldest(tmp_path):
    """The file gives the order of the rows of six observations, here the newest first."""
    text = changed("  state:\n", "  state:\n    history: {steps: [0, -1, -2], layout: by_time}\n")
    found, seen = interface(tmp_path, text), observation()
    rows = []
    for finger in (0.0, 0.05, 0.1):
        positions = np.array([*seen["joints_position"][:3], finger])
        rows.append(found.to_inputs({**seen, "joints_position": positions})["state"].reshape(3, 8)[:, 3].tolist())
    np.testing.assert_allclose(rows, [[0, 0, 0], [50, 0, 0], [100, 50, 0]], atol=1e-4)


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


def test_robojudo_55_outputs_are_by_name(tmp_path):
    """The wrong one of several outputs was used, but they are found by name, whatever their number and order."""
    found = interface(tmp_path)
    float32 = np.dtype(np.float32)
    specs = {"value": ArraySpec(shape=(1,), dtype=float32), "action": ArraySpec(shape=(4,), dtype=float32)}
    found.check(TrialModel({"value": np.full(1, np.nan), "action": np.zeros(4)}, outputs=specs))
    with pytest.raises(UsageError, match=r"unknown output of the model: 'action' \(expected one of: .*mean, std"):
        found.check(TrialModel({}, outputs={"mean": specs["action"], "std": specs["action"]}))


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
