"""An observer and an exporter."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from embodied_env.contract import Contract
from embodied_env.core.types import Transition
from embodied_env.extensions.export.exported_episodes import EpisodeEnd, EpisodeReader, ExportedStep


class Counter:
    """Writes the number of steps to a file at the end."""

    def __init__(self, file: Path) -> None:
        self._file, self._steps = file, 0

    def observe(self, transition: Transition) -> None:
        """Count a step."""
        self._steps += 1

    def stop(self) -> None:
        """Never block."""

    def close(self) -> None:
        """Write the file when the environment closes."""
        self._file.write_text(f"{self._steps}\n")


def open_counter(target: object, contract: Contract, *, pacing: str) -> Counter:
    """Return the observer ``lab_count``, which counts into the file in its address."""
    return Counter(Path(str(target)))


class Rewards:
    """Exports the reward of each step as a line of text."""

    def __init__(self, out: Path, source: EpisodeReader, files: ExitStack) -> None:
        self._file = files.enter_context((out / "rewards.txt").open("x"))

    def step(self, step: ExportedStep) -> None:
        """Write a line."""
        self._file.write(f"{step.reward}\n")

    def end(self, ending: EpisodeEnd) -> None:
        """End an episode."""

    def close(self, metadata: Mapping[str, Any]) -> None:
        """End the export."""
