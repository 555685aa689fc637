"""What a LeRobot dataset says about itself: ``meta/``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_env.contract import Contract
from embodied_env.record.export.steps import Ending
from embodied_env.record.export.tables import TableFile, arrow

VERSION = "v3.0"
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_STATISTICS = ("min", "max", "mean", "std", "count")


def info_of(contract: Contract, features: Mapping[str, Any], *, episodes: int, frames: int) -> dict[str, Any]:
    """Return ``info.json``; its rate is a whole number where it is one."""
    rate_hz = 1.0 / contract.control_period_s
    fps = round(rate_hz) if abs(rate_hz - round(rate_hz)) <= 1e-9 * rate_hz else rate_hz
    return {
        "codebase_version": VERSION,
        "robot_type": contract.name,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": f"data/{_FILE}.parquet",
        "video_path": None,
        "features": dict(features),
    }


def write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """Write the tasks as pandas writes a table of ``task_index`` whose index is ``task``."""
    pa = arrow()
    columns = [_pandas_column("task_index", "int64", "int64"), _pandas_column("task", "unicode", "object")]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    schema = pa.schema(
        [("task_index", pa.int64()), ("task", pa.string())], metadata={"pandas": json.dumps(pandas).encode()}
    )
    table = pa.table({"task_index": list(range(len(tasks))), "task": list(tasks)}, schema=schema)
    arrow("pyarrow.parquet").write_table(table, path)


def _pandas_column(name: str, pandas_type: str, numpy_type: str) -> dict[str, Any]:
    types = {"pandas_type": pandas_type, "numpy_type": numpy_type}
    return {"name": name, "field_name": name, **types, "metadata": None}


class EpisodesFile:
    """``meta/episodes/chunk-000/file-000.parquet``: where each episode lies, how it ended, and its statistics."""

    def __init__(self, out: Path, features: Mapping[str, Mapping[str, Any]]) -> None:
        """Create the file."""
        pa = arrow()
        path = out / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        path.parent.mkdir(parents=True)
        whole = ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")
        fields = [
            ("episode_index", pa.int64()),
            ("tasks", pa.list_(pa.string())),
            ("length", pa.int64()),
            *((name, pa.int64()) for name in whole),
            ("end_reason", pa.string()),
            ("ended", pa.bool_()),
            ("is_success", pa.bool_()),
            ("world_seed", pa.int64()),
        ]
        for name, feature in features.items():
            depth = 3 if feature["dtype"] == "image" else len(feature["shape"])
            fields += [(f"stats/{name}/{statistic}", _nested(statistic, depth)) for statistic in _STATISTICS]
        fields += [("meta/episodes/chunk_index", pa.int64()), ("meta/episodes/file_index", pa.int64())]
        self._file = TableFile(path, pa.schema(fields))

    def add(
        self,
        ending: Ending,
        *,
        task: str,
        place: tuple[int, int],
        to_index: int,
        stats: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Write the row of one episode, whose last frame is before `to_index`, in the file at `place`."""
        self._file.add(
            {
                "episode_index": ending.episode_index,
                "tasks": [task],
                "length": ending.length,
                "data/chunk_index": place[0],
                "data/file_index": place[1],
                "dataset_from_index": to_index - ending.length,
                "dataset_to_index": to_index,
                "end_reason": ending.end_reason,
                "ended": ending.ended,
                "is_success": ending.is_success,
                "world_seed": ending.world_seed,
                **{f"stats/{name}/{key}": value for name, found in stats.items() for key, value in found.items()},
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def abort(self) -> None:
        """Let go of the file."""
        self._file.abort()


def _nested(statistic: str, depth: int) -> Any:  # noqa: ANN401 - of pyarrow
    pa = arrow()
    kind = pa.int64() if statistic == "count" else pa.float64()
    for _ in range(1 if statistic == "count" else depth):
        kind = pa.list_(kind)
    return kind
