"""Virtual environments of libraries that the tests of the package do not need."""

import subprocess
import sys
import sysconfig
from pathlib import Path


def make_environment(folder: Path, *requirements: str) -> Path:
    """Make a virtual environment with these packages over that of the tests, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python, program = folder / "bin" / "python", folder / "bin" / "embodied-env"
    (found,) = folder.glob("lib/python*/site-packages")
    (found / "tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    program.write_text(f'#!/bin/sh\nexec {python} -m embodied_env.cli "$@"\n')
    program.chmod(0o755)
    if requirements:
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", *requirements], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    return python
