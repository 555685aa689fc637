"""Policies of LeRobot are refused without it, and its training and library run in a separate virtual environment."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from evidence import assert_sound

import embodied_env
from embodied_env.cli.main import main
from embodied_env.errors import MissingDependencyError, UsageError
from embodied_env.policies.policy_loader import load_model

ROOT = Path(__file__).parents[2]

NORMALIZER = {"registry_name": "normalizer_processor", "state_file": "normalizer.safetensors"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"type": "act"}')
    (tmp_path / "policy_preprocessor.json").write_text(json.dumps({"steps": [NORMALIZER]}))
    (tmp_path / "policy_postprocessor.json").write_text(json.dumps({"steps": []}))
    for name in ("model", "normalizer"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
    return tmp_path


def test_missing_library_is_named_with_the_remedy(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "lerobot", None)
    with pytest.raises(
        MissingDependencyError, match=r"a LeRobot policy needs lerobot, .* a virtual environment of its"
    ):
        load_model(f"lerobot:{folder}")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("config.json", "no config.json .*; give the folder pretrained_model of a checkpoint; nothing is downloaded"),
        ("model.safetensors", "no model.safetensors .* weights in pickle .* are never read"),
        ("policy_preprocessor.json", "no policy_preprocessor.json .*; migrate it"),
        ("normalizer.safetensors", "state_file 'normalizer.safetensors' .expected a safetensors file next to it"),
    ],
)
def test_missing_file_is_refused_before_anything_is_loaded(folder, name, problem):
    (folder / name).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UsageError, match=problem):
        load_model(f"lerobot:{folder}", trust=True)


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"class": "my_package.Step"}, "not trusted: .* imports my_package.Step .expected trust=True"),
        ({**NORMALIZER, "state_file": "../normalizer.safetensors"}, "state_file '../normalizer.safetensors'"),
        ({**NORMALIZER, "state_file": ["normalizer.safetensors"]}, "state_file"),
        ({}, "expected a processor of LeRobot"),
        ("normalizer_processor", "expected a processor of LeRobot"),
    ],
)
def test_processor_with_code_or_files_elsewhere_is_refused(folder, step, problem):
    (folder / "policy_postprocessor.json").write_text(json.dumps({"steps": [NORMALIZER, step]}))
    with pytest.raises(UsageError, match=problem):
        load_model(f"lerobot:{folder}")


def processor(kind, *statistics, **options):
    """Return the files of a processor whose normalizer, unless missing, has these statistics."""
    if statistics == (None,):
        return {"steps": [{"registry_name": "to_batch_processor"}]}, {}
    step = {"registry_name": f"{kind}_processor", "state_file": f"{kind}.safetensors", "config": options}
    tensors = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in statistics}
    header = json.dumps(tensors).encode()
    return {"steps": [step]}, {step["state_file"]: len(header).to_bytes(8, "little") + header + bytes(8)}


STATE = ("observation.state.mean", "observation.state.std")
ACTION = ("action.min", "action.max")
LOST: dict = {
    "nothing": (STATE, ACTION, {}, None),
    "what only the other direction has": ((*STATE, *ACTION), STATE, {}, r"no action\.min in policy_postprocessor"),
    "one of two": (STATE[:1], ACTION, {}, r"no observation\.state\.std in policy_preprocessor"),
    "the names of another dataset": (("state.mean", "state.std"), ACTION, {}, r"no observation\.state\.mean"),
    "its normaliser": ((None,), ACTION, {}, r"no observation\.state\.mean in policy_preprocessor"),
    "a feature": (STATE, ACTION, {"features": {}}, r"no observation\.state\.mean"),
    "a feature that is not to be normalised": ((), ACTION, {"normalize_observation_keys": ["other"]}, None),
    "an action, which LeRobot always normalises": (
        STATE,
        (),
        {"normalize_observation_keys": ["other"]},
        r"no action\.min",
    ),
}


@pytest.mark.parametrize("case", LOST)
def test_normaliser_without_statistics_is_refused(folder, monkeypatch, case):
    monkeypatch.setitem(sys.modules, "lerobot", None)
    before, after, options, problem = LOST[case]
    types = {"observation.state": {"type": "STATE", "shape": [2]}}, {"action": {"type": "ACTION", "shape": [2]}}
    config = dict(zip(("input_features", "output_features"), types, strict=True))
    modes = {"STATE": "MEAN_STD", "ACTION": "MIN_MAX"}
    (folder / "config.json").write_text(json.dumps({"type": "act", "normalization_mapping": modes, **config}))
    for name, (steps, files) in (
        ("policy_preprocessor", processor("normalizer", *before, **options)),
        ("policy_postprocessor", processor("unnormalizer", *after, **options)),
    ):
        (folder / f"{name}.json").write_text(json.dumps(steps))
        for file, content in files.items():
            (folder / file).write_bytes(content)
    with pytest.raises(MissingDependencyError if problem is None else UsageError, match=problem):
        load_model(f"lerobot:{folder}")


@pytest.fixture(scope="module")
def lerobot():
    """Return a function that runs Python in LeRobot's own virtual environment, which is made if it does not exist."""
    folder = os.environ.get("EMBODIED_ENV_LEROBOT_VENV")
    if not folder:
        pytest.skip("set EMBODIED_ENV_LEROBOT_VENV to a folder for a virtual environment with LeRobot (6 GB)")
    python = Path(folder) / "bin" / "python"
    if not (Path(folder) / "bin" / "lerobot-train").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "lerobot==0.4.4"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "-e", f"{ROOT}[remote,sim,record]"], check=True)

    def start(*arguments, **options):
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([python, *map(str, arguments)], env=environment, **options)

    return start


@pytest.mark.long
def test_actions_equal_those_of_lerobots_own_loop(lerobot, tmp_path):
    """Compare chunks, temporal ensembling and a policy with a history, all with images."""
    assert lerobot(ROOT / "test" / "support" / "lerobot_policies.py", tmp_path).wait() == 0


ACT = {"type": "act", "chunk_size": 8, "n_action_steps": 4, "dim_model": 64, "n_heads": 4, "dim_feedforward": 128}
DIFFUSION = {"type": "diffusion", "down_dims": [16, 32], "noise_scheduler_type": "DDIM", "num_inference_steps": 2}
NOT_DOWNLOADED = {"pretrained_backbone_weights": "null"}


def record_and_export(contract, folder, *, episodes):
    from embodied_env.extensions.evaluation.evaluation import evaluate
    from embodied_env.extensions.export.run_export import export_run

    (run,) = evaluate(contract, "scripted", episodes=episodes, record=folder / "runs").results
    export_run(run.path, folder / "dataset", format="lerobot")
    return folder / "dataset"


def train(lerobot, dataset, out, *, steps, **policy):
    """Train with LeRobot's own trainer, and return the folder of the checkpoint."""
    options = {
        "dataset.repo_id": "local/dataset",
        "dataset.root": dataset,
        "output_dir": out,
        "wandb.enable": False,
        "batch_size": 8,
        "steps": steps,
        "num_workers": 0,
        **{f"policy.{name}": value for name, value in {"device": "cpu", "push_to_hub": False, **policy}.items()},
    }
    assert (
        lerobot("-m", "lerobot.scripts.lerobot_train", *(f"--{key}={each}" for key, each in options.items())).wait()
        == 0
    )
    return out / "checkpoints" / "last" / "pretrained_model"


@pytest.mark.needs("evaluation", "export")
@pytest.mark.long
@pytest.mark.parametrize("contract", ["so101_reach", "door_open"])
def test_lerobot_loads_trains_and_pushes_an_export(lerobot, tmp_path, contract):
    """Load, edit and push the dataset, train ACT and Diffusion, and run an episode of each checkpoint."""
    pytest.importorskip("pyarrow")
    dataset = record_and_export(contract, tmp_path, episodes=3)
    script = ROOT / "test" / "support" / "lerobot_dataset.py"
    shown = lerobot(script, dataset, tmp_path / "edited", stdout=subprocess.PIPE, text=True)
    listed, _ = shown.communicate()
    assert shown.returncode == 0
    files = [path.relative_to(dataset).as_posix() for path in dataset.rglob("*") if path.is_file()]
    assert listed.splitlines() == sorted([*files, "card with tags ['LeRobot']"])
    for policy in (ACT, DIFFUSION):
        kind = policy["type"]
        checkpoint = train(lerobot, dataset, tmp_path / kind, steps=3, **policy, **NOT_DOWNLOADED)
        file = tmp_path / f"{kind}.policy.yaml"
        draft = ["--from-lerobot", str(checkpoint), "--dataset", str(dataset), "--contract", contract, "-o", str(file)]
        assert main(["policy", "init", *draft]) == 0
        driven = [
            "--policy",
            f"lerobot:{checkpoint}",
            "--policy-file",
            file,
            "--episodes",
            1,
            "--out",
            tmp_path / "driven",
        ]
        assert lerobot("-m", "embodied_env.cli", "evaluate", contract, *driven).wait() == 0
    paths = [*(tmp_path / "driven").iterdir()]
    assert len(paths) == 2
    for path in paths:
        assert_sound(path)


@pytest.mark.needs("evaluation", "remote")
@pytest.mark.long
@pytest.mark.ros
def test_policy_of_lerobots_trainer_drives_the_simulator_over_a_server(lerobot, tmp_path, domain_id):
    """Record, export, train with LeRobot, write the policy file, serve from LeRobot's environment, drive, audit."""
    from embodied_env.extensions.evaluation.episode_runner import PolicySource
    from embodied_env.extensions.evaluation.evaluation import evaluate

    for module in ("pyarrow", "websockets", "msgpack"):
        pytest.importorskip(module)
    runs, file = tmp_path / "runs", tmp_path / "act.policy.yaml"
    dataset = record_and_export("so101_reach", tmp_path, episodes=20)
    policy = train(lerobot, dataset, tmp_path / "act", steps=20, **ACT)
    draft = ["--from-lerobot", str(policy), "--dataset", str(dataset), "--contract", "so101_reach", "-o", str(file)]
    assert main(["policy", "init", *draft]) == 0
    server = lerobot(
        "-m", "embodied_env.cli", "serve", f"lerobot:{policy}", "--port", 0, stdout=subprocess.PIPE, text=True
    )
    try:
        line = next(line for line in server.stdout if line.startswith("serving "))
        address = "openpi://" + re.search(r"ws://(\S+);", line)[1]
        source = PolicySource(address=address, policy_file=str(file))
        (done,) = evaluate("so101_reach", source, backend="mujoco_ros", episodes=2, seed=7, record=runs).results
    finally:
        server.terminate()
        assert server.wait(30) == 0
        server.stdout.close()
    assert_sound(done.path)
    rows = list(embodied_env.read_run(done.path).transitions())
    assert len(rows) >= 10
    assert not any("form.none" in str(row["info"].get("action")) for row in rows)
    manifest = json.loads((done.path / "manifest.json").read_text())
    identity = manifest["policy"]["server"]["embodied_env"]["identity"]
    assert (identity["format"], manifest["policy"]["policy_file"]) == ("lerobot", str(file))
    assert identity["library"].startswith("lerobot ")
