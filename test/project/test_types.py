"""The Python blocks of the documentation pass ``mypy --strict`` as scripts outside the repository."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/tutorials/first_run.md", "docs/reference/api.md")
TYPES_OF_MAKE = {
    'make("arm_reach")': "embodied_env.envs.embodied_env.EmbodiedEnv",
    'make("arm_reach", backend="fake", faults=[])': "embodied_env.envs.embodied_env.EmbodiedEnv",
    'make("arm_reach", record="runs")': "embodied_env.record.recorder.RecordTransitions",
    'make("arm_reach", record="runs", max_episode_steps=5)': "embodied_env.record.recorder.RecordTransitions",
    'make("arm_reach", max_episode_steps=5)': "gymnasium.core.Env[",
    'make_vec("arm_reach", num_envs=2, threads=1)': "embodied_env.extensions.vector.vector_env.EmbodiedVectorEnv",
    'parallel_env("two_carts", clock="virtual")': "embodied_env.extensions.teams.parallel_env.EmbodiedParallelEnv",
}


@pytest.mark.needs("audit", "evaluation", "teams", "vector")
@pytest.mark.long
def test_scripts_of_the_documentation_are_typed(tmp_path):
    pytest.importorskip("mypy")
    for page in PAGES:
        (block,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        (tmp_path / f"{Path(page).stem.lower()}.py").write_text(block)
    calls = "".join(f"reveal_type(embodied_env.{call})\n" for call in TYPES_OF_MAKE)
    (tmp_path / "calls.py").write_text(f"import embodied_env\n{calls}")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", *sorted(map(str, tmp_path.iterdir()))],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},  # an editable installation is not on mypy's path
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for line, name in enumerate(TYPES_OF_MAKE.values(), start=2):
        assert f'calls.py:{line}: note: Revealed type is "{name}' in done.stdout
