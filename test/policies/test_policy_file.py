"""Every mistake in a policy file is refused by its path, and nothing outside its folder is opened."""

import dataclasses
import json
import struct

import numpy as np
import policy_files
import pytest
from policy_files import BENCH, FILE, TrialModel, bench, interface, observation, write

import embodied_env
from embodied_env.errors import UsageError
from embodied_env.policies.policy_file import dump_policy_file, read_policy_file, trained_on, write_policy_file
from embodied_env.policies.policy_file_interface import PolicyFileInterface
from embodied_env.policies.policy_model import ArraySpec


def changed(old, new):
    assert old in FILE, old
    return FILE.replace(old, new, 1)


def with_normalize(normalize):
    return changed("  state:\n", f"  state:\n    normalize: {normalize}\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            changed("field: joints_position", "feild: joints_position"),
            r"parts\[0\]\.feild: unknown key.*did you mean 'field'",
        ),
        (
            changed("policy/1", "policy/2"),
            r"policy: unknown schema 'embodied_env/policy/2' \(expected embodied_env/policy/1\)",
        ),
        (changed("0.05", "0"), r"control_period_s: 0 .expected at least 1e-09"),
        (changed("sign: [1, -1, 1]", "sign: [1, -2, 1]"), r"parts\[0\]\.sign\[1\]: .*expected 1 or -1"),
        (changed("sign: [1, -1, 1]", "scale: 0"), r"scale: 0.0 .expected not 0"),
        (changed("[wrist, shoulder, elbow]", "[wrist, wrist]"), r"joints: .*expected different names"),
        (
            changed("  state:\n", "  state:\n    text: instruction\n"),
            r"parts and text \(expected exactly one of: parts, image, text",
        ),
        (changed("  state:\n", "  state:\n    history: {steps: [-1, 1]}\n"), r"history\.steps\[1\]: 1 .*at most 0"),
        (changed(", unit: m}", "}"), r"outputs\.action\.parts\[1\]\.unit: missing key"),
        (changed("unit: m}", "unit: m, ignore: 2}"), "ignore with another key"),
        (changed("unit: m}", "unit: m, scale: 2, threshold: {at: 0, below: 0, above: 1}}"), "threshold with mode"),
        (FILE + "chunk: {length: 4, execute: 5}\n", r"chunk\.execute: 5 \(expected 1 to 4"),
        (FILE + "chunk: {length: 1000000000000}\n", r"chunk\.length: .*at most 10000"),
        (changed("unit: m}", "unit: m}\n      - {ignore: 1000000000000}"), r"parts\[2\]\.ignore: .*at most 10000"),
        (FILE + "      - {ignore: 9999}\nchunk: {length: 9999}\n", "outputs.action: 100019997 values"),
        (
            changed(
                "  state:\n    parts:\n",
                f"  state:\n    history: {{steps: {[*range(-999, 1)]}}}\n    parts:\n"
                + "      - {field: tcp_position}\n" * 8,
            ),
            "inputs: 11000 readings",
        ),
        (changed("sign: [1, -1, 1]", "scale: [1, 1, 1e308]"), r"parts\[0\]\.scale\[2\]: 1e\+308 .expected at most"),
        (changed("sign: [1, -1, 1]", "offset: -1e308"), r"parts\[0\]\.offset: -1e\+308 .expected at least"),
        (changed("[0.0, 0.1]", "[0, 1e-320]"), r"limits\.finger: .*low < high"),
        (changed("[0.0, 0.1]", "[-1e308, 1e308]"), r"limits\.finger\[0\]: .*at least"),
        (changed("unit: m}", "unit: m, threshold: {at: 0, below: 0, above: 1e300}}"), r"threshold\.above: 1e\+300"),
        (with_normalize("{method: min_max, min: 0, max: 1, clip: 1e300}"), r"normalize\.clip: 1e\+300"),
        (
            changed("inputs:", "inputs:\n  i: {image: {field: front_image, size: [9, 99999]}}"),
            r"size\[1\]: 99999 .*4096",
        ),
        (FILE + "source: elsewhere\n", "source: unknown key"),
        (with_normalize("{method: mean_std, mean: 0}"), r"normalize: mean \(expected mean and std, or file and key"),
        (with_normalize("{method: min_max, mean: 0, std: 1}"), r"mean, std \(expected min and max"),
        (
            with_normalize("{method: mean_std, mean: 0, std: 1, range: [0, 1]}"),
            r"range: .*expected no range with mean_std",
        ),
        (
            with_normalize("{method: mean_std, file: ../stats.json, key: a}"),
            "expected the name of a file in the folder",
        ),
        (with_normalize("{method: mean_std, file: missing.json, key: a}"), "cannot read policy file.*missing.json"),
        ("[]", r"list \(expected a YAML mapping"),
        (changed("name: pick", "name: !!python/object:os.system pick"), "tag"),
    ],
)
def test_mistake_is_refused_by_its_path(tmp_path, text, problem):
    with pytest.raises(UsageError, match=rf"(?s){problem}"):
        read_policy_file(write(tmp_path, text))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[wrist, shoulder, elbow]", "[wrist_3, shoulder, elbow]", r"policy has 3 joints; no counterpart in the contract for 'wrist_3' "),
        ("field: joints_position, joints: [wrist", "field: joint_position, joints: [wrist", "did you mean 'joints_position'"),
        (", unit: deg, sign: [1, -1, 1]", "", r"has joints \(expected joints by name, with their unit"),
        ("unit: deg, sign: [1, -1, 1]", "unit: mm, sign: [1, -1, 1]", r"'mm' of 'wrist' \(expected one of: rad, deg, -100"),
        ("sign: [1, -1, 1]", "sign: [1, -1]", r"sign: 2 values \(expected one for all, or 3"),
        (", quaternion: wxyz", "", r"quaternion: None \(expected xyzw or wxyz"),
        ("{field: tcp_orientation, quaternion: wxyz}", "{field: tcp_position, components: [0, 3]}", r"components: .*0 to 2"),
        ("{field: tcp_orientation, quaternion: wxyz}", "{field: tcp_position, unit: deg}", r"'deg' of '0' \(expected one of: m, "),
        ("{field: tcp_orientation, quaternion: wxyz}", "{field: front_image}", "is an image"),
        ("actuator: gripper", "actuator: griper", "did you mean 'gripper'"),
        ("      - {actuator: gripper, joints: [finger], unit: m}\n", "", r"no counterpart in the policy for 'finger'"),
        ("[elbow, wrist, shoulder], unit: deg, sign: [1, 1, -1]", "[elbow, wrist], unit: deg", "for 'shoulder'"),
        ("unit: m}", "unit: m, mode: delta}", r"delta for actuators.gripper.command position \(expected absolute or relative"),
        ("0.05", "0.02", r"control_period_s: 0.02 s, that of the contract is 0.05 s .*resample"),
        ("0.05", "1.0e9\nresample: hold", r"resample: 1 actions of 1e\+09 s are 20000000000 steps of the contract \(expected 1 to"),
        ("inputs:", "inputs:\n  i: {image: {field: front_image, size: [4096, 4096], method: stretch}, history: {steps: [-2, -1, 0]}}", "150994944 values"),
        ("policy/1", "policy/1\njoint_names: {wrst: wrist}", "unused joint 'wrst'"),
        ("inputs:", "inputs:\n  i: &i {image: {field: front_image, size: [4096, 4096], method: stretch}}\n  j: *i", r"inputs\.j: 100663296 values"),
        ("  state:\n", "  state:\n    normalize: {method: min_max, min: -1e308, max: 1e308}\n", r"min: -1e.308"),
        ("  state:\n", "  state:\n    normalize: {method: mean_std, mean: 0, std: 1e-300}\n", r"std: 1e-300 of component 0 \(expected above 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_contract_is_refused_by_name(tmp_path, old, new, problem):
    with pytest.raises(UsageError, match=rf"(?s)pick\.policy\.yaml: .*{problem}"):
        interface(tmp_path, changed(old, new))


def test_written_file_reads_equal(tmp_path):
    file = read_policy_file(
        write(tmp_path, with_normalize("{method: mean_std, mean: 0.5, std: [1, 2, 3, 4, 5, 6, 7, 8e-9]}"))
    )
    contract, files = trained_on(BENCH)
    file = dataclasses.replace(file, contract=contract, files=files)
    again = write_policy_file(tmp_path / "again.policy.yaml", file)
    assert again == file
    assert dump_policy_file(again) == dump_policy_file(file)
    assert again.difference(BENCH) == ""


def test_fingerprint_covers_the_data_files(tmp_path):
    text = with_normalize("{method: mean_std, file: stats.json, key: s}")
    first = read_policy_file(write(tmp_path, text, stats_json=b"{}"))
    second = read_policy_file(write(tmp_path, text, stats_json=b"{ }"))
    renamed = read_policy_file(write(tmp_path, text, name="other.policy.yaml"))
    assert len({first.sha256, second.sha256}) == 2
    assert renamed.sha256 == second.sha256


def test_another_contract_is_refused_with_the_difference(tmp_path):
    contract, files = trained_on(BENCH)
    write_policy_file(
        path := tmp_path / "p.policy.yaml",
        dataclasses.replace(read_policy_file(write(tmp_path)), contract=contract, files=files),
    )
    file = read_policy_file(path)
    PolicyFileInterface(file, BENCH)
    other = bench([("velocity: 0.5, acceleration: 2.0", "velocity: 0.7, acceleration: 2.0")])
    with pytest.raises(
        UsageError,
        match=r"bench is not the contract of the training: actuators.gripper.*velocity: 0.7 \(trained under 0.5\)",
    ):
        PolicyFileInterface(file, other)
    (tmp_path / "contract.json").write_text(json.dumps({"schema": "other"}))
    with pytest.raises(UsageError, match="has another fingerprint"):
        read_policy_file(path).difference(other)
    plain = dataclasses.replace(file, contract=dataclasses.replace(contract, file=None))
    assert plain.difference(other).startswith(f"fingerprint {other.fingerprint[:16]}")


def safetensors(**tensors):
    header: dict = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        array = np.asarray(values, dtype=np.float32)
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


MEAN, STD = np.arange(8.0), np.arange(1.0, 9.0)


@pytest.mark.parametrize(
    ("file", "key", "content"),
    [
        ("stats.json", "observation.state", json.dumps({"observation.state": {"mean": MEAN.tolist(), "std": STD.tolist(), "count": [3]}})),
        ("norm_stats.json", "state", json.dumps({"norm_stats": {"state": {"mean": MEAN.tolist(), "std": STD.tolist()}}})),
        ("stats.safetensors", "observation.state", safetensors(**{"observation.state.mean": MEAN, "observation.state.std": STD})),
    ],
)  # fmt: skip
def test_statistics_of_files_equal_those_in_numbers(tmp_path, file, key, content):
    (tmp_path / file).write_bytes(content.encode() if isinstance(content, str) else content)
    read = interface(tmp_path, with_normalize(f"{{method: mean_std, file: {file}, key: {key}, epsilon: 1.0e-8}}"))
    plain = interface(
        tmp_path, with_normalize(f"{{method: mean_std, mean: {MEAN.tolist()}, std: {STD.tolist()}, epsilon: 1.0e-8}}")
    )
    seen = policy_files.observation()
    np.testing.assert_array_equal(read.to_inputs(seen)["state"], plain.to_inputs(seen)["state"])


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("s.json", b'{"a": {"mean": [1]}}', "no 'a.std' in s.json"),
        ("s.json", b'{"a": {"mean": [1, 2], "std": [1, 2]}}', r"mean: 2 values \(expected 8, one per component"),
        ("s.json", b'{"a": {"mean": [0], "std": [0]}}', r"std: 0 of component 0 \(expected above 0\); set epsilon"),
        ("s.json", b'{"a": {"mean": [0], "std": ["b"]}}', "cannot read s.json"),
        ("s.json", b'{"a": {"mean": [0], "std": [1e400]}}', "cannot read s.json"),
        ("s.json", b"[1]", "no statistics by feature"),
        ("s.safetensors", b"\xff" * 7, "cut off"),
        ("s.safetensors", safetensors(**{"a.mean": [1.0], "a.std": [np.nan]}), "not finite"),
        ("s.safetensors", safetensors(**{"a.mean": [1.0], "a.std": [1.0]})[:-4], "wrong size"),
        ("s.safetensors", struct.pack("<Q", 9) + b'{"a": [1]}', "cannot read"),
        ("s.safetensors", safetensors(**{"a.mean": np.ones((1,) * 9), "a.std": [1.0]}), "wrong size"),
        ("s.json", b'{"": {"a.mean": [5]}, "a": {"std": [1]}}', "no 'a.mean' in s.json"),
    ],
)
def test_damaged_statistics_are_refused(tmp_path, file, content, problem):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UsageError, match=rf"inputs\.state\.normalize\..*{problem}"):
        interface(tmp_path, with_normalize(f"{{method: mean_std, file: {file}, key: a}}"))


def test_a_file_of_another_kind_is_not_opened(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        read_policy_file(write(tmp_path, with_normalize("{method: mean_std, file: pipe, key: a}")))


def test_data_files_are_bounded_together(tmp_path):
    """Many names of one file are not read into memory one by one."""
    text = with_normalize("{method: mean_std, file: a.json, key: a}")
    text += "    normalize: {method: mean_std, file: b.json, key: a}\n"
    for name in ("a.json", "b.json"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(5 * 2**20)
    with pytest.raises(UsageError, match=r"too large: .*b\.json' \(expected at most 3 MiB"):
        read_policy_file(write(tmp_path, text))


def test_a_policy_file_is_for_models(tmp_path):
    with pytest.raises(UsageError, match=r"policy file for 'hold': .*expected a model: .*onnx:"):
        embodied_env.load_policy("hold", BENCH, policy_file=write(tmp_path))


# --------------------------------------------------------------------------------- published mistakes of other projects


IMAGE = "inputs:\n  front: {image: {field: front_image, SIZE, layout: chw, range: [0, 1]}}\n"


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
