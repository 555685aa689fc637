"""The wheel of `examples/plugin` uses every kind of plug-in, found by its entry points alone."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from embodied_env.plugins.plugin_table import BUILT_IN

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
CONTRACT = """
contract: embodied_env/1
name: lab
version: 1
control_period_s: 0.05
episode: {horizon_steps: 50}
robot: lab_axis
task: {type: lab_low, most: 0.5}
safety:
  gates: {lab_slow: {share: 0.5}}
  interlocks: {lab_joints: {most_rad: 0.02}}
blocks: {lab_mirror: {gain: 2.0}}
"""
SCRIPT = """
import sys
from pathlib import Path
import embodied_env
from embodied_env.extensions.replay.run_replay import replay_run
from embodied_env.extensions.export.run_export import export_run

folder = Path(sys.argv[1])
contract = embodied_env.load_contract(folder / "lab.yaml")
assert contract.robot.name == "lab_axis"
policy = embodied_env.load_policy("lab_gain:-0.25", contract)
env = embodied_env.make(contract, backend="lab_still", record=folder, observers=[f"lab_count:{folder / 'steps'}"])
observation, _ = env.reset(seed=0)
infos = []
for _ in range(5):
    observation, reward, *_, info = env.step(policy(observation))
    infos.append(info)
env.close()
assert infos[0]["backend"] == "lab_still"
assert infos[0]["annotations"]["action_stages"] == {"given": [-0.25], "stages": {"lab_mirror": {"gain": 2.0}}}
assert infos[0]["action"]["requested"].tolist() == [0.5]
found = [each["detail"] for row in embodied_env.read_run(env.path).transitions() for each in row["inner"]["findings"]]
assert any("slowed down" in text for text in found), found
assert any("lab_joints: joints.outside: " in text for text in found), found
assert (folder / "steps").read_text() == "5\\n"
assert not embodied_env.audit_run(env.path).violations
assert replay_run(env.path, trust_task=True).sound
export_run(env.path, folder / "out", format="lab_rewards")
assert (folder / "out" / "rewards.txt").read_text().splitlines()[-1] == str(reward)
assert reward < 0.0
"""


@pytest.mark.needs("audit", "export", "replay")
def test_every_kind_of_plugin_works_from_its_entry_point(tmp_path):
    groups = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["entry-points"]
    assert {group.partition(".")[2] for group in groups} == set(BUILT_IN)
    shutil.copytree(PLUGIN, tmp_path / "source")
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(tmp_path / "source")], check=True)
    (tmp_path / "lab.yaml").write_text(CONTRACT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_example_stays_small():
    files = [file for file in PLUGIN.rglob("*") if file.suffix in (".py", ".toml", ".yaml")]
    assert sum(len(file.read_text().splitlines()) for file in files) <= 270
