"""A Ray cluster started for an evaluation leaves nothing in the home folder, and no environment variable."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs ray: install the extra scale")

SCRIPT = """
import json, os, pathlib, sys
from embodied_env.extensions.ray.ray_workers import RayCluster

before = set(os.environ)
seen = []
for _ in range(2):  # Ray keeps the token that it reads first
    with RayCluster(1):
        seen.append(pathlib.Path(os.environ["RAY_AUTH_TOKEN_PATH"]).stat().st_mode & 0o777)
ours = {"RAY_AUTH_TOKEN_PATH", "RAY_USAGE_STATS_ENABLED"}
print(json.dumps({"modes": seen, "left": sorted(ours & set(os.environ) - before)}))
"""


@pytest.mark.long
def test_new_cluster_keeps_its_token_in_a_separate_folder(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="ee_") as temporary:  # tmp_path is too long for socket names
        surroundings = {**kept, "HOME": str(tmp_path), "TMPDIR": temporary}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=surroundings, capture_output=True, text=True, timeout=120, check=False
        )
        left = list(Path(temporary).iterdir())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"modes": [0o600, 0o600], "left": []}
    assert list(tmp_path.iterdir()) == []
    assert left == []
