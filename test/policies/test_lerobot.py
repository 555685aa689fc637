"""Policies of LeRobot: what is refused without it, and its own training and library in a virtual environment of its own."""

from __future__ import annotations

import json

import pytest

from embodied_env.errors import MissingDependencyError, UsageError
from embodied_env.policies.loader import load_model

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
    monkeypatch.setitem(__import__("sys").modules, "lerobot", None)
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
        ("normalizer.safetensors", "state_file 'normalizer.safetensors' .expected a safetensors file beside it"),
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
