"""The policy of the runner's tests, whose behaviour a file selects at each reset."""

import os
import time
from pathlib import Path

import numpy as np

MODE_FILE = "RUNNER_TEST_MODE"
FAST = np.array([1.0, 0, 0, 0, 0, 0])


class SelectedPolicy:
    """Moves the first joint at full speed, or fails as the file selects. A line of another file counts the objects."""

    def __init__(self):
        self.file = Path(os.environ[MODE_FILE])
        with self.file.with_suffix(".loads").open("a") as loads:
            loads.write("loaded\n")
        self.mode = ""

    def reset(self):
        """Read the file."""
        self.mode = self.file.read_text()

    def __call__(self, observation):
        """Return an action."""
        if self.mode == "raise":
            raise ZeroDivisionError
        if self.mode == "exit":
            raise KeyboardInterrupt  # no error of a policy
        if self.mode == "degrees":
            return 90.0 * FAST
        if self.mode == "hang":
            self.file.with_suffix(".hangs").touch()
            while self.file.read_text() == "hang":
                time.sleep(0.05)
        return FAST

    def instruct(self, instruction):
        """Append the prompt to another file."""
        with self.file.with_suffix(".prompts").open("a") as prompts:
            prompts.write(f"{instruction}\n")
        return True

    def close(self):
        """Fail if the file selects it."""
        if self.file.read_text() == "keep":
            raise ZeroDivisionError


def selected():
    return SelectedPolicy()
