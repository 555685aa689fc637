"""Runs as found by the libraries of viewers: `@mcap/core` of Foxglove, and rerun."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from mcap.reader import make_reader

import embodied_env
from embodied_env.record import read_run, repair_run

READ = """
const { McapIndexedReader } = require("@mcap/core");
const { loadDecompressHandlers } = require("@mcap/support");
const data = require("fs").readFileSync(process.argv[2]);
const readable = {
  size: async () => BigInt(data.length),
  read: async (offset, length) => new Uint8Array(data.subarray(Number(offset), Number(offset + length))),
};
(async () => {
  const reader = await McapIndexedReader.Initialize({ readable, decompressHandlers: await loadDecompressHandlers() });
  const counts = {};
  for await (const message of reader.readMessages()) {
    const { topic } = reader.channelsById.get(message.channelId);
    counts[topic] = (counts[topic] ?? 0) + 1;
  }
  console.log(JSON.stringify(counts));
})().catch((error) => { console.error(error.message); process.exit(1); });
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a closed run, its journal before the rewrite, the state after a SIGKILL, and that after a repair."""
    folder = tmp_path_factory.mktemp("runs")
    env = embodied_env.make("door_open", backend="fake", record=folder)
    for _ in range(3):
        env.reset(seed=1)
        env.step(env.action_space.sample())
    env.flush()
    killed = shutil.copytree(env.path, folder / "killed")
    repaired = shutil.copytree(env.path, folder / "repaired")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(env), "_rewrite", lambda _: None)
        env.close()
    journal = shutil.copytree(env.path, folder / "journal")
    env._run.rewrite(env.unwrapped.contract)
    repair_run(repaired)
    paths = {"closed": env.path, "journal": journal, "killed": killed, "repaired": repaired}
    return SimpleNamespace(**{name: path / "transitions.mcap" for name, path in paths.items()})


def counts_of(path):
    with path.open("rb") as file:
        return dict(Counter(channel.topic for _, channel, _ in make_reader(file).iter_messages()))


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Return a function that reads a file with `@mcap/core`."""
    folder = os.environ.get("EMBODIED_ENV_MCAP_CORE")
    if not folder or shutil.which("npm") is None:
        pytest.skip("set EMBODIED_ENV_MCAP_CORE to a folder for @mcap/core from npm")
    Path(folder).mkdir(parents=True, exist_ok=True)
    if not (Path(folder) / "node_modules" / "@mcap" / "core").exists():
        subprocess.run(["npm", "install", "--silent", "@mcap/core", "@mcap/support"], cwd=folder, check=True)
    script = tmp_path_factory.mktemp("core") / "read.cjs"
    script.write_text(READ)
    environment = {**os.environ, "NODE_PATH": str(Path(folder) / "node_modules")}
    return lambda path: subprocess.run(
        ["node", script, path], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture(scope="module")
def rerun():
    """Return a function that runs the command line of rerun."""
    folder = os.environ.get("EMBODIED_ENV_RERUN_VENV")
    if not folder:
        pytest.skip("set EMBODIED_ENV_RERUN_VENV to a folder for a virtual environment with rerun")
    program = Path(folder) / "bin" / "rerun"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([program.with_name("python"), "-m", "pip", "install", "-q", "rerun-sdk==0.41.0"], check=True)
    return lambda *arguments: subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("state", ["closed", "repaired"])
def test_indexed_reader_of_foxglove_finds_every_message(runs, core, state):
    path = getattr(runs, state)
    done = core(path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == counts_of(path)
    assert json.loads(done.stdout)["transition"] == 3


def test_indexed_reader_of_foxglove_finds_nothing_in_a_journal(runs, core):
    assert json.loads(core(runs.journal).stdout) == {}
    assert "Expected MCAP magic" in core(runs.killed).stderr
    assert len(list(read_run(runs.killed.parent).transitions())) == 3


@pytest.mark.parametrize("state", ["closed", "repaired"])
def test_rerun_imports_images_and_poses_and_decodes_joints(runs, rerun, tmp_path, state):
    path = getattr(runs, state)
    assert rerun("mcap", "convert", path, "-o", tmp_path / "out.rrd").returncode == 0
    printed = rerun("rrd", "print", tmp_path / "out.rrd", "-v").stdout
    for component in (
        *("/camera@Image:buffer", "/depth@Image:buffer", "/handle@InstancePoses3D:translations"),
        "/joints@foxglove.JointStates:message",
    ):
        assert component in printed
    assert "Overlapping time ranges  no" in rerun("mcap", "info", path).stdout


def test_rerun_refuses_a_killed_journal(runs, rerun):
    assert "summary is missing or corrupt" in rerun("mcap", "info", runs.killed).stderr
