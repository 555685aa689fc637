"""The delays of consecutive steps, as they were measured together: what belongs together stays together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embodied_env.errors import EmbodiedEnvError

BLOCK = 10
"""So many consecutive steps of an episode are kept together, at most."""

_LONGEST_NS = 10**12


class StepDelaysError(EmbodiedEnvError, ValueError):
    """The delays of steps are not what they must be."""


@dataclass(frozen=True, kw_only=True)
class StepDelays:
    """Blocks of consecutive steps. A step is a row of integer nanoseconds.

    First, by sensor in the order of `sensors`, how old its reading was when the observation was frozen; then how long
    after that the command left; then how long after that it acted, None where that was not measured.
    """

    sensors: tuple[str, ...]
    blocks: tuple[tuple[tuple[int | None, ...], ...], ...]

    def __post_init__(self) -> None:
        """Raise StepDelaysError for a block without steps, or a step that is not as it must be."""
        width = len(self.sensors) + 2
        for number, block in enumerate(self.blocks):
            if not block:
                raise StepDelaysError(f"block {number} has no step; allowed: 1 or more")
            for row in block:
                if len(row) != width or not all(_is_delay(ns) for ns in row[:-1]):
                    raise StepDelaysError(f"a step of block {number} is {row}; allowed: {width} delays, ns >= 0")
                if row[-1] is not None and not _is_delay(row[-1]):
                    raise StepDelaysError(f"the actuation in block {number} is {row[-1]}; allowed: ns >= 0, or null")

    @property
    def count(self) -> int:
        """How many steps there are."""
        return sum(len(block) for block in self.blocks)

    def ages_ns(self, sensor: str) -> list[int]:
        """Return the ages of one sensor's readings."""
        index = self.sensors.index(sensor)
        return [row[index] or 0 for block in self.blocks for row in block]

    def obs_to_command_ns(self) -> list[int]:
        """Return how long after the observation each command left."""
        return [row[-2] or 0 for block in self.blocks for row in block]

    def actuation_ns(self) -> list[int]:
        """Return how long each command took to act, where that was measured."""
        return [row[-1] for block in self.blocks for row in block if row[-1] is not None]

    def as_mapping(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {"sensors": list(self.sensors), "blocks_ns": [[list(row) for row in block] for block in self.blocks]}


def read_steps(data: Any) -> StepDelays:  # noqa: ANN401 - whatever a file holds
    """Read what `StepDelays.as_mapping` wrote; raises StepDelaysError for anything else."""
    if not isinstance(data, Mapping) or data.keys() != {"sensors", "blocks_ns"}:
        raise StepDelaysError("the steps are not a mapping of sensors and blocks_ns")
    sensors, blocks = data["sensors"], data["blocks_ns"]
    if not isinstance(sensors, Sequence) or not all(isinstance(name, str) for name in sensors):
        raise StepDelaysError(f"the sensors of the steps are {sensors!r}; allowed: names")
    try:
        rows = tuple(tuple(tuple(row) for row in block) for block in blocks)
    except TypeError:
        raise StepDelaysError("blocks_ns are not lists of lists of lists") from None
    return StepDelays(sensors=tuple(sensors), blocks=rows)


def _is_delay(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LONGEST_NS


class BlockKeeper:
    """Takes steps one after another, and keeps evenly chosen blocks of them: never more than twice `most`."""

    def __init__(self, most: int = 1000) -> None:
        """Keep at least `most` blocks, if there were so many."""
        self._most = most
        self._stride = 1
        self._seen = 0
        self._kept: list[tuple[tuple[int | None, ...], ...]] = []
        self._block: list[tuple[int | None, ...]] = []

    def take(self, row: Sequence[int | None]) -> None:
        """Take a step that follows the last one."""
        self._block.append(tuple(row))
        if len(self._block) == BLOCK:
            self.end()

    def end(self) -> None:
        """What comes next does not follow what was taken."""
        if not self._block:
            return
        if self._seen % self._stride == 0:
            self._kept.append(tuple(self._block))
        self._seen += 1
        self._block = []
        if len(self._kept) >= 2 * self._most:
            self._kept = self._kept[::2]
            self._stride *= 2

    def blocks(self) -> tuple[tuple[tuple[int | None, ...], ...], ...]:
        """Return what was kept, in the order it came."""
        self.end()
        return tuple(self._kept)
