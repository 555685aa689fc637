"""Draft policy files from the files of LeRobot policies, in the formats of its versions."""

import json

import numpy as np
import pytest
import yaml
from shipped_contracts import changed_contract

from embodied_env.contract import load_contract
from embodied_env.errors import UsageError
from embodied_env.policies.lerobot_checkpoint import read_lerobot
from embodied_env.policies.lerobot_draft import draft_policy_file
from embodied_env.policies.policy_file import read_policy_file
from embodied_env.policies.policy_file_interface import PolicyFileInterface

SO101 = load_contract("so101_reach")
DOOR = load_contract("door_open")
JOINTS = list(SO101.actuators["arm"].joints)
NAMES = [f"{joint}.pos" for joint in JOINTS]  # of the SO-101 in LeRobot 0.4
MEAN = np.array([0.1, -12.25, 30.0, 1e-3, 5.0, 47.5], dtype=np.float32)
STD = np.linspace(1.0, 2.0, 6, dtype=np.float32)
STATE = {"observation.state": {"type": "STATE", "shape": [6]}}
ACTION = {"action": {"type": "ACTION", "shape": [6]}}
PLAIN = {"STATE": "MEAN_STD", "ACTION": "MEAN_STD", "VISUAL": "MEAN_STD"}
NORMALIZER = "policy_preprocessor_step_3_normalizer_processor.safetensors"


def safetensors(tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + tensor.nbytes],
        }
        data += tensor.astype("<f4").tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.fixture
def policy(tmp_path):
    """Return a function that writes the files of a policy, and returns its folder."""

    def write(files=(), **config):
        known = {"type": "act", "n_obs_steps": 1, "chunk_size": 100, "n_action_steps": 50}
        known |= {"input_features": STATE, "output_features": ACTION, "normalization_mapping": PLAIN}
        config = {**known, **config}
        for name, content in {"config.json": config, **dict(files)}.items():
            path = tmp_path / "policy" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return tmp_path / "policy"

    return write


@pytest.fixture
def dataset(tmp_path):
    """Return a function that writes the metadata of a dataset, and returns its folder."""

    def write(names=NAMES, actions=None, *, stats=(), rate=20, **files):
        named = {"observation.state": names, "action": actions or names}
        columns = {key: {"dtype": "float32", "shape": [6], "names": each} for key, each in named.items()}
        (tmp_path / "dataset" / "meta").mkdir(parents=True)
        for name, content in {"info": {"fps": rate, "features": columns}, "stats": dict(stats), **files}.items():
            (tmp_path / "dataset" / "meta" / f"{name}.json").write_text(json.dumps(content))
        return tmp_path / "dataset"

    return write


def statistics(*features):
    return {f"{feature}.{name}": values for feature in features for name, values in (("mean", MEAN), ("std", STD))}


def drafted(folder, dataset=None, *, contract=SO101, normalize=True):
    """Return the draft as a mapping, and its gaps as text."""
    text, gaps = draft_policy_file(read_lerobot(folder, dataset), contract, name="mine", normalize=normalize)
    assert all(f"# - {what}: {where}\n" in text for what, where in gaps)
    return yaml.safe_load(text), "\n".join(f"{what}: {where}" for what, where in gaps)


BUFFERS = {
    "normalize_inputs.buffer_observation_state.mean": MEAN,
    "normalize_inputs.buffer_observation_state.std": STD,
    "unnormalize_outputs.buffer_action.mean": MEAN,
    "unnormalize_outputs.buffer_action.std": STD,
    "model.action_head.weight": np.zeros((6, 2), np.float32),
}
STEPS = {"name": "policy_preprocessor", "steps": [{"registry_name": "normalizer_processor", "state_file": NORMALIZER}]}
OLD_STATS = {key: {"mean": MEAN.tolist(), "std": STD.tolist()} for key in ("observation.state", "action")}
TENSORS = safetensors(statistics("observation.state", "action"))
SOURCES = {
    "the saved processor": ({"policy_preprocessor.json": STEPS, NORMALIZER: TENSORS}, {}),
    "a processor without its list": ({NORMALIZER: TENSORS}, {}),
    "the dataset": ({}, OLD_STATS),
    "buffers of the model": ({"model.safetensors": safetensors(BUFFERS)}, {}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_statistics_of_every_version(policy, dataset, source):
    files, stats = SOURCES[source]
    draft, gaps = drafted(policy(files), dataset(stats=stats))
    for spec in (draft["inputs"]["observation.state"], draft["outputs"]["action"]):
        found = spec["normalize"]
        assert (found["method"], found["epsilon"]) == ("mean_std", 1e-8)
        np.testing.assert_array_equal(np.float32(found["mean"]), MEAN)
        np.testing.assert_array_equal(np.float32(found["std"]), STD)
    assert "mean" not in gaps


def test_joints_by_name_and_what_lerobot_does_not_store(policy, dataset):
    order = [3, 5, 0, 1, 4, 2]
    draft, gaps = drafted(policy({NORMALIZER: TENSORS}), dataset([f"main_{JOINTS[i]}" for i in order]))
    assert draft["control_period_s"] == 0.05
    assert draft["chunk"] == {"length": 100, "execute": 50}
    joints = [JOINTS[i] for i in order]
    assert draft["inputs"]["observation.state"]["parts"] == [{"field": "joints_position", "joints": joints}]
    assert draft["outputs"]["action"]["parts"] == [{"actuator": "arm", "joints": joints}]
    assert f"unit of inputs.observation.state (values: main_{JOINTS[3]} " in gaps
    assert "sign and zero of the joints of outputs.action" in gaps


def test_positions_and_velocities_of_joints_are_parts_of_their_own(policy, dataset):
    names = [*NAMES[:3], "shoulder_pan.vel", "elbow_flex.vel", "wrist_roll.vel"]
    draft, _ = drafted(policy(), dataset(names), normalize=False)
    assert draft["inputs"]["observation.state"] == {
        "parts": [
            {"field": "joints_position", "joints": JOINTS[:3]},
            {"field": "joints_velocity", "joints": ["shoulder_pan", "elbow_flex", "wrist_roll"]},
        ]
    }


def test_a_quantity_that_the_contract_does_not_observe_is_unknown(policy, dataset):
    names = [*JOINTS[:4], "shoulder_pan.effort", "shoulder_lift_velocity"]
    draft, gaps = drafted(policy(), dataset(names), normalize=False)
    position, velocity = draft["inputs"]["observation.state"]["parts"]
    assert position == {"field": "joints_position", "joints": [*JOINTS[:4], "shoulder_pan.effort"]}
    assert velocity == {"field": "joints_velocity", "joints": ["shoulder_lift"]}
    assert "shoulder_pan.effort of inputs.observation.state" in gaps


@pytest.mark.parametrize("names", [["motors", NAMES], {name: i for i, name in reversed([*enumerate(NAMES)])}])
def test_older_forms_of_names(policy, dataset, names):
    draft, _ = drafted(policy(), dataset(dict([names]) if isinstance(names, list) else names))
    assert draft["inputs"]["observation.state"]["parts"][0]["joints"] == JOINTS


def test_nothing_is_assumed_without_a_dataset(policy):
    draft, gaps = drafted(policy())
    assert "control_period_s" not in draft
    (part,) = draft["outputs"]["action"]["parts"]
    assert not {*part["joints"]} & {*JOINTS}
    assert draft["outputs"]["action"]["normalize"] == {"method": "mean_std", "epsilon": 1e-8}
    for what in ("rate of the training data", "names of the components of outputs.action", "mean and std of outputs"):
        assert what in gaps


def test_joint_without_counterpart_is_reported(policy, dataset):
    draft, gaps = drafted(policy(), dataset([*NAMES[:5], "jaw.pos"]))
    assert draft["outputs"]["action"]["parts"] == [{"actuator": "arm", "joints": [*JOINTS[:5], "jaw.pos"]}]
    assert (
        f"jaw.pos of outputs.action: replace them in outputs.action.parts, by joints such as {', '.join(JOINTS)}"
        in gaps
    )


def test_policy_trained_on_our_export_needs_no_answer(policy, dataset):
    names = [*JOINTS[:2], "joints_position.elbow_flex", *(f"target_position.{axis}" for axis in "xyz")]
    ours = {"contract": {"name": SO101.name, "version": 1, "fingerprint": SO101.fingerprint}}
    draft, gaps = drafted(policy(), dataset(names, JOINTS, embodied_env=ours), normalize=False)
    assert gaps == ""
    assert draft["contract"] == {"name": "so101_reach", "fingerprint": SO101.fingerprint}
    assert draft["inputs"]["observation.state"]["parts"] == [
        {"field": "joints_position", "joints": JOINTS[:3], "unit": "rad"},
        {"field": "target_position"},
    ]
    assert draft["outputs"]["action"] == {"parts": [{"actuator": "arm", "joints": JOINTS, "unit": "action"}]}


@pytest.mark.needs("evaluation", "export")
def test_draft_for_our_export_fits_without_an_answer(policy, tmp_path):
    from embodied_env.extensions.evaluation.evaluation import evaluate
    from embodied_env.extensions.export.run_export import export_run

    pytest.importorskip("pyarrow")
    contract = changed_contract(load_contract("arm_reach"), {"episode.horizon_steps": 3})
    (run,) = evaluate(contract, "random", backend="fake", episodes=1, record=tmp_path / "runs").results
    export_run(run.path, tmp_path / "export", format="lerobot")
    columns = json.loads((tmp_path / "export" / "meta" / "info.json").read_text())["features"]
    kinds = {"observation.state": "STATE", "observation.environment_state": "ENV", "action": "ACTION"}
    features = {name: {"type": kind, "shape": columns[name]["shape"]} for name, kind in kinds.items()}
    config = {"output_features": {"action": features.pop("action")}, "input_features": features}
    modes = dict.fromkeys(kinds.values(), "MIN_MAX")
    folder = policy(**config, normalization_mapping=modes)
    text, gaps = draft_policy_file(read_lerobot(folder, tmp_path / "export"), contract, name="mine", normalize=True)
    assert gaps == []
    (tmp_path / "mine.policy.yaml").write_text(text)
    interface = PolicyFileInterface(read_policy_file(tmp_path / "mine.policy.yaml"), contract)
    contract.observation_space.seed(0)
    seen = contract.observation_space.sample()
    raw = {name: interface.inputs[name].read_raw(seen, {}) for name in features}
    units = json.loads((tmp_path / "export" / "meta" / "embodied_env.json").read_text())["units"]
    for name, values in raw.items():  # in the order of the export
        np.testing.assert_array_equal(values, np.concatenate([seen[key].ravel() for key in units[name]]))
    assert interface.actions.labels["action"] == [f"arm[{joint}]" for joint in contract.actuators["arm"].joints]


def test_images_match_cameras_by_name(policy):
    images = {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 96, 96]} for name in ("camera", "side")}
    mean = np.full((3, 1, 1), 0.485, np.float32)
    tensors = {f"observation.images.camera.{name}": mean for name in ("mean", "std")}
    draft, gaps = drafted(policy({NORMALIZER: safetensors(tensors)}, input_features=images), contract=DOOR)
    assert draft["inputs"]["observation.images.camera"] == {
        "image": {"field": "camera_image", "size": [96, 96], "layout": "chw", "range": [0.0, 1.0]},
        "normalize": {"method": "mean_std", "mean": [0.485] * 3, "std": [0.485] * 3, "epsilon": 1e-8},
    }
    assert draft["inputs"]["observation.images.side"]["image"]["field"] == "side"
    assert "camera of observation.images.side: set inputs.observation.images.side.image.field" in gaps


def test_mono_image_of_our_export_is_repeated_in_three_channels(policy):
    shape = "sensors.camera.fields.image.shape"
    mono = changed_contract(DOOR, {"sensors.camera.encoding": "mono8", shape: [96, 96, 1]})
    features = {"observation.images.camera_image": {"type": "VISUAL", "shape": [3, 96, 96]}}
    draft, gaps = drafted(policy(input_features=features), contract=mono, normalize=False)
    assert draft["inputs"]["observation.images.camera_image"]["image"]["expand"]
    assert "camera" not in gaps


def test_only_image_of_another_size_asks_for_the_method(policy):
    images = {"observation.image": {"type": "VISUAL", "shape": [3, 224, 224]}}
    draft, gaps = drafted(policy(input_features=images), contract=DOOR, normalize=False)
    assert draft["inputs"]["observation.image"]["image"]["field"] == "camera_image"
    assert "method" not in draft["inputs"]["observation.image"]["image"]
    assert "resizing of camera_image, 96x96, to the 224x224 of observation.image: set" in gaps


def test_depth_image_of_our_export_is_an_image_and_another_array_is_unknown(policy):
    features = {f"observation.{name}": {"type": "STATE", "shape": [64, 64, 1]} for name in ("depth_image", "grid")}
    document, gaps = drafted(policy(input_features=features), contract=DOOR, normalize=False)
    image = {"field": "depth_image", "size": [64, 64], "channels": "depth"}
    assert document["inputs"]["observation.depth_image"] == {"image": image}
    assert "meaning of observation.grid, [64, 64, 1]" in gaps
    assert "meaning of observation.depth_image" not in gaps


def test_lerobot_normalises_and_keeps_the_history_itself(policy, dataset):
    folder = policy({NORMALIZER: TENSORS}, type="diffusion", n_obs_steps=2, chunk_size=None, n_action_steps=8)
    data = dataset()
    own, _ = drafted(folder, data, normalize=False)
    exported, gaps = drafted(folder, data, normalize=True)
    assert {*own["inputs"]["observation.state"]} == {"parts"}
    assert "chunk" not in own
    assert exported["inputs"]["observation.state"]["history"] == {"steps": [-1, 0]}
    assert exported["chunk"] == {"length": 8, "execute": 8}
    assert "first action of the exported chunk" in gaps


def test_statistics_that_the_processors_lack_are_unknown(policy, dataset):
    files = {"policy_preprocessor.json": STEPS, NORMALIZER: TENSORS, "policy_postprocessor.json": {"steps": []}}
    _, gaps = drafted(policy(files), dataset(), normalize=False)
    assert "statistic action.mean in policy_postprocessor.json" in gaps
    assert "observation.state.mean" not in gaps


def test_relative_actions_of_an_export_ask_for_the_mode(policy):
    config = {"use_relative_actions": True, "action_feature_names": NAMES}
    draft, gaps = drafted(policy(**config))
    assert draft["outputs"]["action"]["parts"] == [{"actuator": "arm", "joints": JOINTS}]  # named by the config
    assert "relative to the state: set mode: relative" in gaps
    assert "relative" not in drafted(policy(**config), normalize=False)[1]  # LeRobot makes them absolute


def test_absolute_positions_need_a_contract_that_commands_them(policy, dataset):
    gap = "positions of outputs.action, where the contract commands displacements: set command: position"
    folder, data = policy(), dataset()
    assert gap in drafted(folder, data)[1]
    position = changed_contract(SO101, {"actuators.arm.command": "position"})
    assert gap not in drafted(folder, data, contract=position)[1]


@pytest.mark.parametrize(
    ("mode", "method"), [("QUANTILES", "quantiles"), ("QUANTILE10", "quantiles10"), ("IDENTITY", None)]
)
def test_normalisation_modes(policy, dataset, mode, method):
    stats = {"action": {name: [float(i)] * 6 for i, name in enumerate(("q01", "q10", "q90", "q99"))}}
    draft, _ = drafted(policy(normalization_mapping={"ACTION": mode}), dataset(stats=stats))
    found = draft["outputs"]["action"].get("normalize", {})
    assert found.get("method") == method
    assert {*found} - {"method", "epsilon"} == {"quantiles": {"q01", "q99"}, "quantiles10": {"q10", "q90"}}.get(
        method, set()
    )


def test_language_policy_takes_the_instruction(policy):
    draft, _ = drafted(policy(type="smolvla"))
    assert draft["inputs"]["task"] == {"text": "instruction"}


def test_rate_of_the_training_environment(policy):
    draft, _ = drafted(policy({"train_config.json": {"env": {"fps": 50}}}))
    assert draft["control_period_s"] == 0.02


def test_pickle_is_never_read(policy):
    _, gaps = drafted(policy({"pytorch_model.bin": b"cos\nsystem\n(S'true'\ntR."}))
    assert "mean and std of inputs.observation.state" in gaps


CONFIG = {"type": "act", "input_features": STATE, "output_features": ACTION}


def with_inputs(*names, shape, kind="STATE"):
    features = {name: {"type": kind, "shape": shape} for name in names}
    return {"config.json": {**CONFIG, "input_features": features}}


INVALID = {
    "not JSON": ({"config.json": b"{"}, "config.json: "),
    "NaN": ({"config.json": b'{"type": NaN}'}, "expected finite numbers"),
    "no features": ({"config.json": {"type": "act"}}, "'input_features' (expected a policy with"),
    "an unknown mode": ({}, "unknown normalization mode 'NEW' of observation.state (expected one of: IDENTITY"),
    "an image without axes": (with_inputs("image", shape=[3], kind="VISUAL"), "shape (3,) of image (expected an image"),
    "billions of components": (with_inputs("state", shape=[4000000000]), "shape (4000000000,) of state"),
    "a length of 0": (with_inputs("s", shape=[0]), "from 1 to"),
    "a million axes": (with_inputs("s", shape=[10**39] * 1000), " of s (expected lengths"),
    "a name of two lines": (with_inputs("s\nname: x", shape=[6]), "expected printable text"),
    "many features": (with_inputs(*map(str, range(101)), shape=[6]), "101 input_features (expected at most 100"),
    "many steps": ({"config.json": {**CONFIG, "n_obs_steps": 10**30}}, "n_obs_steps 1000000000"),
    "features of one buffer": (
        with_inputs("observation.state", "observation_state", shape=[6]) | {"model.safetensors": b""},
        "names that differ by more than",
    ),
    "tensors cut off": ({NORMALIZER: TENSORS[:200]}, f"{NORMALIZER}: "),
    "a huge header": ({NORMALIZER: b"\xff" * 64}, f"{NORMALIZER}: "),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_files_are_refused(policy, case):
    files, message = INVALID[case]
    config = {"normalization_mapping": {"STATE": "NEW"}} if case == "an unknown mode" else {}
    with pytest.raises(UsageError) as error:
        read_lerobot(policy(files, **config))
    assert message in str(error.value)


def test_statistics_of_other_tensors_are_not_read(policy):
    """A header can name one large block a million times."""
    large = {"dtype": "F32", "shape": [2**20], "data_offsets": [0, 2**22]}
    header = json.dumps({f"observation.state.{name}": large for name in ("mean", *range(1000))}).encode()
    files = {NORMALIZER: len(header).to_bytes(8, "little") + header + bytes(2**22)}
    assert read_lerobot(policy(files)).inputs["observation.state"].statistics == {}
