"""The audit finds nothing in clean episodes, in this small edition of ``tools/clean_episodes.py``."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "tools" / "clean_episodes.py"


@pytest.fixture(scope="module")
def clean_episodes():
    spec = importlib.util.spec_from_file_location("clean_episodes", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "backend", "episodes"),
    [
        ("arm_reach", "fake", 2),
        ("cart_goal", "mujoco", 1),
        ("door_open", "mujoco", 1),
        ("arm_reach", "mujoco:realtime", 1),
    ],
)
def test_clean_episodes_have_no_violation(clean_episodes, tmp_path, name, backend, episodes):
    if backend != "fake":
        pytest.importorskip("mujoco", reason="needs the embedded simulator")
    ends, findings = clean_episodes.play(name, backend, episodes, str(tmp_path))
    assert findings == []
    assert sum(ends.values()) == episodes
