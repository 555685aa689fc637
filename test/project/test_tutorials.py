"""The command and code blocks of each tutorial run, in order, in one shell."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(<!-- background -->\n)?^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"<!-- printed -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = re.compile(r"\b800\d\b")
SHORTER = {  # interactive steps and waits that a test skips
    "--steps 100000": "--steps 600 --feature-steps 200",
    "--repeats 2 --out": "--repeats 2 --joints j1 --out",
    "--episodes 2 --seed 3": "--episodes 1 --seed 3",
}


@contextmanager
def operator_at_terminal() -> Iterator[int]:
    """Yield the standard input of an operator who presses Enter twice a second."""
    hand, terminal = pty.openpty()
    done = threading.Event()

    def press_enter() -> None:
        while not done.wait(0.5):
            os.write(hand, b"\n")

    thread = threading.Thread(target=press_enter)
    thread.start()
    try:
        yield terminal
    finally:
        done.set()
        thread.join()
        os.close(hand)
        os.close(terminal)


def free_port() -> str:
    """Return a port on which no program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def script_of(page: Path) -> str:
    """Return the blocks of a page as one script; background blocks run until its end."""
    lines = ["set -e", "trap 'kill -INT $(jobs -p) 2>/dev/null || true; wait' EXIT"]
    for background, language, code in BLOCK.findall(page.read_text()):
        if language == "python":
            lines.append(f"python - <<'END'\n{code}END")
        elif background:
            lines.append(f"(trap - INT; exec {code.strip()}) &\nsleep 3")
        else:
            lines.append(code)
    script = "\n".join(lines)
    for long, short in SHORTER.items():
        script = script.replace(long, short)
    for port in {*PORT.findall(script)}:
        script = script.replace(port, free_port())
    return script


@pytest.mark.ros
@pytest.mark.tutorial
@pytest.mark.parametrize(
    "name",
    [
        "tutorials/first_run",
        "tutorials/your_robot",
        "tutorials/mobile_base",
        "tutorials/your_model",
        "tutorials/your_task",
        "tutorials/your_policy",
        "tutorials/train_and_evaluate",
        "tutorials/sim_to_real",
        "howto/randomise",
    ],
)
def test_tutorial_command_blocks_run(name, tmp_path, domain_id):
    if name == "tutorials/train_and_evaluate":
        pytest.importorskip("stable_baselines3")
        pytest.importorskip("tqdm")
    for folder in ("examples", "config"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    script = script_of(ROOT / "docs" / f"{name}.md")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with operator_at_terminal() as terminal:
        done = subprocess.run(
            ["bash", "-x", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    for printed in PRINTED.findall((ROOT / "docs" / f"{name}.md").read_text()):
        assert printed in done.stdout


def test_a_robot_needs_at_most_eight_commands_to_its_first_motion():
    """Clone and installation are the first two."""
    for name, first_motion in (("your_robot", "--confirm-chosen"), ("mobile_base", "--policy scripted")):
        page = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text()
        commands = [line for *_, code in BLOCK.findall(page) for line in code.splitlines()]
        assert next(i for i, line in enumerate(commands, 3) if first_motion in line) <= 8
