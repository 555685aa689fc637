"""Parquet: ``transitions.parquet``, one step a row, and ``episodes.parquet`` with the last observation of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied_env.record.export.episodes import EpisodeEnd, EpisodeReader, Step
from embodied_env.record.export.fields import ArrayField, Leaves, library, named, png
from embodied_env.record.manifest import write_json

MOST_ROWS = 1024

MOST_BYTES = 32 * 2**20
"""Of images in a group of rows."""

THE_ACTION = (
    "action: what the agent asked for, NaN where it asked for no such thing; a policy is judged and trained by what "
    "it chose, since the gate belongs to the world. action_applied: what was executed, in the contract's action space"
)


class ParquetFiles:
    """Writes the two files and ``metadata.json``."""

    def __init__(self, out: Path, source: EpisodeReader) -> None:
        """Begin in the folder `out`.

        Raises:
            MissingDependencyError: without pyarrow.
        """
        pa = arrow()
        self._out, self._source = out, source
        self._leaves: dict[str, ArrayField] = {
            **columns_of("observation", source.observation),
            **columns_of("action", source.action),
            **columns_of("action_applied", source.applied),
            **columns_of("evaluator", source.evaluator),
        }
        self._last: dict[str, ArrayField] = {
            **columns_of("final_observation", source.observation),
            **columns_of("final_evaluator", source.evaluator),
        }
        fixed, episodes = _of_step(pa), _of_episode(pa)
        self._steps = TableFile(out / "transitions.parquet", _schema(fixed, self._leaves))
        self._episodes = TableFile(out / "episodes.parquet", _schema(episodes, self._last))
        self._fixed, self._of_episode = tuple(fixed), tuple(episodes)

    def step(self, step: Step) -> None:
        """Write one row."""
        source = self._source
        self._steps.add(
            {
                **{name: getattr(step, name) for name in self._fixed},
                **cells_of("observation", source.observation, step.observation),
                **cells_of("action", source.action, step.action),
                **cells_of("action_applied", source.applied, step.action_applied),
                **cells_of("evaluator", source.evaluator, step.evaluator),
            }
        )

    def end(self, ending: EpisodeEnd) -> None:
        """Write the row of the episode."""
        self._episodes.add(
            {
                **{name: getattr(ending, name) for name in self._of_episode},
                **cells_of("final_observation", self._source.observation, ending.observation),
                **cells_of("final_evaluator", self._source.evaluator, ending.evaluator),
            }
        )

    def close(self, account: Mapping[str, Any]) -> None:
        """Finish the files; ``metadata.json`` has the shape of each column of arrays."""
        self._steps.close()
        self._episodes.close()
        columns = {
            name: {"dtype": leaf.dtype, "shape": list(leaf.shape), "is_png": leaf.is_image}
            for name, leaf in (self._leaves | self._last).items()
        }
        write_json(self._out / "metadata.json", {**account, "the_action": THE_ACTION, "columns": columns})

    def abort(self) -> None:
        """Let go of the files."""
        self._steps.abort()
        self._episodes.abort()


class TableFile:
    """A Parquet file. Rows are kept until they make a group, so that memory does not grow with the file."""

    def __init__(self, path: Path, schema: Any, *, most_rows: int = MOST_ROWS) -> None:  # noqa: ANN401 - of pyarrow
        """Create the file with an Arrow schema."""
        self._schema, self._most_rows = schema, most_rows
        self._rows: list[Mapping[str, Any]] = []
        self._bytes = 0
        self.written_bytes = 0
        self._file = path.open("xb")
        self._writer = arrow("pyarrow.parquet").ParquetWriter(self._file, schema)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one row."""
        self._rows.append(row)
        self._bytes += sum(len(value) for value in row.values() if isinstance(value, bytes))
        if len(self._rows) >= self._most_rows or self._bytes >= MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was kept as one group."""
        if self._rows:
            self._writer.write_table(arrow().Table.from_pylist(self._rows, schema=self._schema))
            self._rows, self._bytes = [], 0
            self.written_bytes = self._file.tell()

    def close(self) -> None:
        """Write the rest, and the end of the file."""
        self.flush()
        self._writer.close()
        self._file.close()

    def abort(self) -> None:
        """Let go of the file, whole or not. Idempotent."""
        self._rows = []
        if not self._file.closed:
            self._writer.close()
            self._file.close()


def arrow(module: str = "pyarrow") -> Any:  # noqa: ANN401 - a module without type information
    """Return pyarrow, or a module of it."""
    return library(module, needed_for="this export")


def type_of(leaf: ArrayField) -> Any:  # noqa: ANN401 - of pyarrow
    """Return the Arrow type of a leaf: PNG as binary, a scalar, or a list of one length, in C order."""
    pa = arrow()
    if leaf.is_image:
        return pa.binary()
    number = pa.bool_() if leaf.dtype == "bool" else pa.type_for_alias(leaf.dtype)
    return number if not leaf.shape else pa.list_(number, leaf.size)


def cell(leaf: ArrayField, array: NDArray[Any]) -> Any:  # noqa: ANN401 - what pyarrow takes
    """Return what stands in a cell for `array`."""
    if leaf.is_image:
        return png(array)
    return array.reshape(-1).tolist() if leaf.shape else array.item()


def columns_of(prefix: str, leaves: Leaves) -> dict[str, ArrayField]:
    """Return the leaves by the names of their columns."""
    return {named(prefix, key): leaf for key, leaf in leaves.items()}


def cells_of(prefix: str, leaves: Leaves, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the cells of one row, by the names of their columns."""
    return {named(prefix, key): cell(leaf, arrays[key]) for key, leaf in leaves.items()}


def _of_step(pa: Any) -> dict[str, Any]:  # noqa: ANN401 - pyarrow
    return {
        "episode_index": pa.int64(),
        "step_index": pa.int64(),
        "timestamp_s": pa.float64(),
        "observed_ns": pa.int64(),
        "published_ns": pa.int64(),
        "reward": pa.float64(),
        "terminated": pa.bool_(),
        "truncated": pa.bool_(),
        "end_reason": pa.string(),
        "is_success": pa.bool_(),
    }


def _of_episode(pa: Any) -> dict[str, Any]:  # noqa: ANN401 - pyarrow
    return {
        "episode_index": pa.int64(),
        "length": pa.int64(),
        "seed": pa.int64(),
        "world_seed": pa.int64(),
        "ended": pa.bool_(),
        "end_reason": pa.string(),
        "is_success": pa.bool_(),
    }


def _schema(fixed: Mapping[str, Any], leaves: Mapping[str, ArrayField]) -> Any:  # noqa: ANN401 - of pyarrow
    return arrow().schema([*fixed.items(), *((name, type_of(leaf)) for name, leaf in leaves.items())])
