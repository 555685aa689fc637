"""Reading of MCAP files with the library of Foxglove's application, `@mcap/core`, of npm."""

import functools
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from mcap.reader import make_reader

READ = """
const { McapIndexedReader } = require("@mcap/core");
const { loadDecompressHandlers } = require("@mcap/support");
const data = require("fs").readFileSync(process.argv[1]);
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


def read_with_core(path):
    """Return the finished process that prints the number of messages by topic, or skip the test without a folder."""
    folder = os.environ.get("EMBODIED_ENV_MCAP_CORE")
    if not folder or shutil.which("npm") is None:
        pytest.skip("set EMBODIED_ENV_MCAP_CORE to a folder for @mcap/core from npm")
    _install(Path(folder))
    environment = {**os.environ, "NODE_PATH": str(Path(folder) / "node_modules")}
    command = ["node", "-e", READ, str(path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@functools.cache
def _install(folder):
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / "@mcap" / "core").exists():
        subprocess.run(["npm", "install", "--silent", "@mcap/core", "@mcap/support"], cwd=folder, check=True)


def counts_of(path):
    with path.open("rb") as file:
        return dict(Counter(channel.topic for _, channel, _ in make_reader(file).iter_messages()))
