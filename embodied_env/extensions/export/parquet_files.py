"""Export to ``transitions.parquet``, and the last observations to ``episodes.parquet``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied_env.errors import RecordError
from embodied_env.extensions.export.exported_episodes import (
    ArrayField,
    Arrays,
    EpisodeEnd,
    EpisodeReader,
    ExportedStep,
    Leaves,
    library,
    named,
    png,
)
from embodied_env.record.manifest import write_json

_MAX_GROUP_ROWS = 1024
_MAX_GROUP_BYTES = 32 * 2**20  # bytes of images

THE_ACTION = (
    "action: see action_source; policies learn from requested actions, because the safety gate is a part of the "
    "environment. action_applied: executed, in the contract's action space"
)


class ParquetFiles:
    """Writes the two files and ``metadata.json``."""

    def __init__(self, out: Path, source: EpisodeReader, files: ExitStack) -> None:
        pa = library("pyarrow")
        self._out = out
        self._fixed = {
            **dict.fromkeys(("episode_index", "step_index"), pa.int64()),
            "timestamp_s": pa.float64(),
            **dict.fromkeys(("observed_ns", "published_ns"), pa.int64()),
            "action_source": pa.string(),
            "reward": pa.float64(),
            **dict.fromkeys(("terminated", "truncated"), pa.bool_()),
            "end_reason": pa.string(),
            "is_success": pa.bool_(),
        }
        self._fixed_of_episode = {
            **dict.fromkeys(("episode_index", "length", "seed", "world_seed"), pa.int64()),
            "ended": pa.bool_(),
            "end_reason": pa.string(),
            "is_success": pa.bool_(),
        }
        self._leaves = {
            "observation": source.observation,
            "action": source.action,
            "action_applied": source.applied,
            "evaluator": source.evaluator,
        }
        self._leaves_of_episode = {"final_observation": source.observation, "final_evaluator": source.evaluator}
        self._steps = TableFile(out / "transitions.parquet", _schema(self._fixed, self._leaves), files)
        schema = _schema(self._fixed_of_episode, self._leaves_of_episode)
        self._episodes = TableFile(out / "episodes.parquet", schema, files)

    def step(self, step: ExportedStep) -> None:
        """Write one row."""
        fixed = {name: getattr(step, name) for name in self._fixed}
        arrays = {name: getattr(step, name) for name in self._leaves}
        self._steps.add(fixed | _cells(self._leaves, arrays))

    def end(self, ending: EpisodeEnd) -> None:
        """Write the row of the episode."""
        fixed = {name: getattr(ending, name) for name in self._fixed_of_episode}
        arrays = {"final_observation": ending.observation, "final_evaluator": ending.evaluator}
        self._episodes.add(fixed | _cells(self._leaves_of_episode, arrays))

    def close(self, metadata: Mapping[str, Any]) -> None:
        """Finish the files and write ``metadata.json`` with the shapes of the columns."""
        self._steps.close()
        self._episodes.close()
        columns = {
            name: {"dtype": leaf.dtype, "shape": list(leaf.shape), "is_png": leaf.is_image}
            for name, leaf in (_columns(self._leaves) | _columns(self._leaves_of_episode)).items()
        }
        write_json(self._out / "metadata.json", {**metadata, "the_action": THE_ACTION, "columns": columns})


class TableFile:
    """Writes a Parquet file in groups of rows, so that memory does not grow with the file."""

    def __init__(self, path: Path, schema: Any, files: ExitStack) -> None:  # noqa: ANN401 - of pyarrow
        self._name, self._schema = path.name, schema
        self._rows: list[Mapping[str, Any]] = []
        self._bytes = 0
        self.written_bytes = 0
        self._file = files.enter_context(path.open("xb"))
        self._writer = files.enter_context(library("pyarrow.parquet").ParquetWriter(self._file, schema))

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row."""
        self._rows.append(row)
        self._bytes += sum(len(value) for value in row.values() if isinstance(value, bytes))
        if len(self._rows) >= _MAX_GROUP_ROWS or self._bytes >= _MAX_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the rows so far as one group, or raise RecordError for a value that does not fit."""
        if self._rows:
            pa = library("pyarrow")
            try:
                table = pa.Table.from_pylist(self._rows, schema=self._schema)
            except (OverflowError, pa.ArrowException) as error:
                problem = f"a value does not fit into its column of {self._name}: {error}"
                raise RecordError(f"{problem}; choose another format") from None
            self._writer.write_table(table)
            self._rows, self._bytes = [], 0
            self.written_bytes = self._file.tell()

    def close(self) -> None:
        """Write the last group and finish the file."""
        self.flush()
        self._writer.close()
        self._file.close()


def _columns(leaves: Mapping[str, Leaves]) -> dict[str, ArrayField]:
    return {named(prefix, key): leaf for prefix, group in leaves.items() for key, leaf in group.items()}


def _schema(fixed: Mapping[str, Any], leaves: Mapping[str, Leaves]) -> Any:  # noqa: ANN401 - of pyarrow
    return library("pyarrow").schema(
        [*fixed.items(), *((name, _type(leaf)) for name, leaf in _columns(leaves).items())]
    )


def _type(leaf: ArrayField) -> Any:  # noqa: ANN401 - of pyarrow
    """Return the Arrow type of a leaf, binary for PNG, scalar, or C-order fixed-size list."""
    pa = library("pyarrow")
    if leaf.is_image:
        return pa.binary()
    number = pa.type_for_alias(leaf.dtype)
    return pa.list_(number, leaf.size) if leaf.shape else number


def _cells(leaves: Mapping[str, Leaves], arrays: Mapping[str, Arrays]) -> dict[str, Any]:
    return {
        named(prefix, key): _cell(leaf, arrays[prefix][key])
        for prefix, group in leaves.items()
        for key, leaf in group.items()
    }


def _cell(leaf: ArrayField, array: NDArray[Any]) -> Any:  # noqa: ANN401 - a value for pyarrow
    if leaf.is_image:
        return png(array)
    return array.reshape(-1).tolist() if leaf.shape else array.item()
