"""openpi's own client, from PyPI in a virtual environment of its own, against ``serve``."""

import subprocess
import sys
import venv

import numpy as np
import onnx_models
import pytest

pytestmark = pytest.mark.long

pytest.importorskip("websockets", reason="needs websockets")
pytest.importorskip("onnxruntime", reason="needs onnxruntime")

WEIGHTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)

SCRIPT = """
import sys
import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

assert np.__version__ < "2"
client = WebsocketClientPolicy("127.0.0.1", int(sys.argv[1]))
print(sorted(client.get_server_metadata()["embodied_env"]["inputs"]))
seen = np.arange(4, dtype=np.float32)
for _ in range(3):
    answer = client.infer({"observation": seen, "prompt": "fold the towel"})
    assert answer["server_timing"]["infer_ms"] >= 0
print(answer["action"].dtype, answer["action"].tolist())
try:
    client.infer({"observation": seen[:3]})
except RuntimeError as error:
    print(str(error).splitlines()[-1])
print(client.infer({"observation": seen})["action"].tolist())
"""


def test_openpi_client_works_unchanged(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    packages = ["openpi-client==0.1.2", "typing_extensions"]  # the second it imports without declaring it
    subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    (tmp_path / "a.onnx").write_bytes(onnx_models.linear(WEIGHTS))
    command = [sys.executable, "-m", "embodied_env.cli", "serve", "onnx:a.onnx", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE) as server:
        try:
            port = server.stdout.readline().partition("127.0.0.1:")[2].partition(";")[0]
            done = subprocess.run([python, "-c", SCRIPT, port], capture_output=True, text=True, check=False, timeout=60)
        finally:
            server.terminate()
    action = (np.arange(4, dtype=np.float32) @ WEIGHTS).tolist()
    assert done.stderr == ""
    *_, last = lines = done.stdout.splitlines()
    assert lines[0] == "['observation']"
    assert lines[1].startswith("float32 ")
    assert lines[2] == "input 'observation' has the shape (3,) (expected (4,))"
    np.testing.assert_allclose([float(text) for text in last.strip("[]").split(", ")], action, rtol=1e-5)
