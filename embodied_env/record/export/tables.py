"""Columns of Arrow for leaves, and a Parquet file that is written group by group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from embodied_env.record.export.leaves import Leaf, Leaves, named
from embodied_env.record.export.libraries import library
from embodied_env.record.export.pictures import png

MOST_ROWS = 1024
MOST_BYTES = 32 * 2**20
"""Of images in a group of rows."""


def arrow(module: str = "pyarrow") -> Any:  # noqa: ANN401 - a module without type information
    """Return pyarrow, or a module of it."""
    return library(module, needed_for="this export")


def type_of(leaf: Leaf) -> Any:  # noqa: ANN401 - of pyarrow
    """Return the Arrow type of a leaf: PNG as binary, a scalar, or a list of one length, in C order."""
    pa = arrow()
    if leaf.is_image:
        return pa.binary()
    number = pa.bool_() if leaf.dtype == "bool" else pa.type_for_alias(leaf.dtype)
    return number if not leaf.shape else pa.list_(number, leaf.size)


def cell(leaf: Leaf, array: NDArray[Any]) -> Any:  # noqa: ANN401 - what pyarrow takes
    """Return what stands in a cell for `array`."""
    if leaf.is_image:
        return png(array)
    return array.reshape(-1).tolist() if leaf.shape else array.item()


def columns_of(prefix: str, leaves: Leaves) -> dict[str, Leaf]:
    """Return the leaves by the names of their columns."""
    return {named(prefix, key): leaf for key, leaf in leaves.items()}


def cells_of(prefix: str, leaves: Leaves, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the cells of one row, by the names of their columns."""
    return {named(prefix, key): cell(leaf, arrays[key]) for key, leaf in leaves.items()}


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
