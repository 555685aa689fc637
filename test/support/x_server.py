"""An X server without a screen, for tests that open a window."""

import shutil
import subprocess

import pytest


@pytest.fixture
def display():
    """Return the name of its display, or skip the test without Xvfb."""
    if not shutil.which("Xvfb"):
        pytest.skip("needs Xvfb: apt install xvfb")
    with subprocess.Popen(
        ["Xvfb", "-displayfd", "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as xvfb:
        assert xvfb.stdout is not None
        yield f":{xvfb.stdout.readline().strip()}"
        xvfb.terminate()
