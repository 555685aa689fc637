"""Runs the command and code blocks of a documentation page, in order, in one shell.

A comment before a block changes this: ``<!-- background -->`` lets it run until the end of the page, ``<!-- not tested
here -->`` skips it, and ``<!-- printed -->`` marks text that the page must print.
"""

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

ROOT = Path(__file__).parents[2]
PRINTED = re.compile(r"<!-- printed -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"(?:<!-- ([a-z ]+) -->\n)?^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_IN_BACKGROUND = re.compile(r"^(.+) &$", re.MULTILINE)  # a shell without job control lets it ignore SIGINT
_PORT = re.compile(r"\b800\d\b")
_SHORTER = {  # long trainings, and waits that a test skips
    "--steps 160000": "--steps 600 --feature-steps 200",
    "--repeats 2 --out": "--repeats 2 --joints j1 --out",
    "--episodes 2 --seed 3": "--episodes 1 --seed 3",
    "--steps=2000": "--steps=20",
    "--episodes 100 --out demonstrations": "--episodes 10 --out demonstrations",
    "--episodes 20 --seed 500": "--episodes 2 --seed 500",
    "learn(100_000)": "learn(600)",
    "--policy hold --episodes 20": "--policy hold --episodes 2",
    "--episodes 50 --engine": "--episodes 4 --engine",
    "mujoco_ros real": "mujoco_ros real --episodes 1",
    "train_sac.py arm_reach": "train_sac.py arm_reach --steps 600 --feature-steps 200 --episodes 1",
}


def text_of(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def section_of(text: str, title: str) -> str:
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found


def commands_of(text: str) -> list[str]:
    """Return the lines of all blocks."""
    return [line for *_, code in _BLOCK.findall(text) for line in code.splitlines()]


def script_of(text: str) -> str:
    """Return the blocks of a page as one shell script."""
    lines = ["set -e", "trap 'kill -INT $(jobs -p) 2>/dev/null || true; wait' EXIT"]
    for comment, language, code in _BLOCK.findall(text):
        if comment == "not tested here":
            continue
        if language == "python":
            lines.append(f"python - <<'END'\n{code}END")
        elif comment == "background":
            lines.append(f"(trap - INT; exec {code.strip()}) &\nsleep 3")
        else:
            lines.append(_IN_BACKGROUND.sub(r"(trap - INT; exec \1) &", code))
    script = "\n".join(lines)
    for long, short in _SHORTER.items():
        script = script.replace(long, short)
    for port in {*_PORT.findall(script)}:
        script = script.replace(port, _free_port())
    return script


def run_blocks(text: str, folder: Path, *, python: Path | str = sys.executable) -> str:
    """Run the blocks of a page in `folder` with the programs next to `python`, and check what is printed."""
    for name in ("examples", "config"):
        (folder / name).symlink_to(ROOT / name)
    path = os.pathsep.join((str(Path(python).parent), str(Path(sys.executable).parent), os.environ["PATH"]))
    with _operator_at_terminal() as terminal:
        done = subprocess.run(
            ["bash", "-x", "-c", script_of(text)],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    for printed in PRINTED.findall(text):
        assert printed in done.stdout
    return done.stdout


@contextmanager
def _operator_at_terminal() -> Iterator[int]:
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


def _free_port() -> str:
    """Return a port on which no program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])
