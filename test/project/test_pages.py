"""The commands and code of the README, tutorials and other pages run as they are printed."""

import os
from pathlib import Path

import pytest
from pages import ROOT, commands_of, run_blocks, section_of, text_of

PAGES = [
    "tutorials/first_run",
    "tutorials/your_robot",
    "tutorials/mobile_base",
    "tutorials/your_model",
    "tutorials/your_task",
    "tutorials/your_policy",
    "tutorials/train_and_evaluate",
    "tutorials/sim_to_real",
    "tutorials/identify",
    "howto/compare_policies",
    "howto/instructions",
    "howto/playback",
    "howto/randomise",
    "howto/several_robots",
    "howto/smooth_motion",
    "howto/stable_baselines3",
    "reference/api",
    "reference/wrappers",
]
SECTIONS = {"howto/chunks": "Try it", "howto/cluster": "On one machine", "reference/vector": "Batched steps"}
NEEDS = {
    "tutorials/train_and_evaluate": ("torch", "onnx"),
    "howto/several_robots": ("pettingzoo",),
    "howto/stable_baselines3": ("stable_baselines3", "onnxscript"),
}


@pytest.mark.ros
@pytest.mark.tutorial
@pytest.mark.parametrize("name", PAGES)
def test_blocks_of_page_run(name, tmp_path, domain_id):
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    run_blocks(text_of(name), tmp_path)


@pytest.mark.tutorial
@pytest.mark.parametrize("name", SECTIONS)
def test_blocks_of_section_run(name, tmp_path):
    run_blocks(section_of(text_of(name), SECTIONS[name]), tmp_path)


@pytest.mark.tutorial
def test_code_of_the_readme_runs(tmp_path):
    run_blocks((ROOT / "README.md").read_text(encoding="utf-8"), tmp_path)


@pytest.mark.ros
@pytest.mark.long
def test_blocks_of_the_training_page_run(tmp_path, domain_id):
    for module in ("torch", "stable_baselines3", "onnxscript"):
        pytest.importorskip(module)
    run_blocks(text_of("howto/training"), tmp_path)


@pytest.mark.ros
@pytest.mark.long
def test_blocks_of_lerobot_page_run(tmp_path, domain_id):
    environment = os.environ.get("EMBODIED_ENV_LEROBOT_VENV")
    if not environment:
        pytest.skip("set EMBODIED_ENV_LEROBOT_VENV to a virtual environment with LeRobot")
    (tmp_path / "lerobot_venv").symlink_to(Path(environment).resolve())
    run_blocks(text_of("howto/lerobot"), tmp_path)


def test_a_robot_needs_at_most_eight_commands_to_its_first_motion():
    """Clone and installation are the first two."""
    for name, first_motion in (("your_robot", "--confirm-chosen"), ("mobile_base", "--policy scripted")):
        commands = commands_of(text_of(f"tutorials/{name}"))
        assert next(i for i, line in enumerate(commands, 3) if first_motion in line) <= 8
