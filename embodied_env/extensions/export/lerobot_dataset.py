"""Write a LeRobot dataset of version 3.0 in its documented layout, without LeRobot.

``meta/info.json``, ``meta/stats.json``, ``meta/tasks.parquet``, ``meta/episodes/chunk-000/file-000.parquet`` and
``data/chunk-000/file-000.parquet``. Images are inline (dtype ``image``), because video is lossy. LeRobot's policies use
every column called ``action...`` or ``observation...``, and every image; no other column has such a name.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.errors import RecordError, UsageError
from embodied_env.extensions.export.exported_episodes import (
    EpisodeEnd,
    EpisodeReader,
    ExportedStep,
    is_finite,
    library,
    named,
    png,
)
from embodied_env.extensions.export.lerobot_columns import (
    ENVIRONMENT,
    Columns,
    ColumnStatistics,
    Feature,
    new_statistics,
)
from embodied_env.extensions.export.parquet_files import TableFile
from embodied_env.record.manifest import write_json

VERSION = "v3.0"

THE_ACTION = (
    "action: see source_of_action; a policy trained on it runs behind the same safety gate. applied_action: executed. "
    "LeRobot's policies would use columns whose names begin with action"
)

_FILES_PER_CHUNK = 1000
_MAX_FILE_BYTES = 100 * 2**20
_HALF = 0.5  # an action that is blended from chunks of two prompts has the task of the larger share
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_log = logging.getLogger(__name__)


class LerobotDataset:
    """Writes the dataset episode by episode, with rows of one episode only in a group of rows."""

    def __init__(
        self, out: Path, source: EpisodeReader, files: ExitStack, *, environment_state: Collection[str] | None = None
    ) -> None:
        """Create the files in `out`.

        Raises:
            UsageError: for images of the evaluator, or a key of `environment_state` that is no vector.
        """
        images = [key for key, leaf in source.evaluator.items() if leaf.is_image]
        if images:
            raise UsageError(
                f"cannot export the evaluator's images {', '.join(images)}: LeRobot's policies would use them; "
                "leave out the evaluator or choose another format"
            )
        self._out, self._source, self._files = out, source, files
        self._tasks: dict[str, int] = {}  # prompt -> its index
        self._tasks_of_episode: list[str] = []
        self._columns = Columns(source, environment_state)
        self._features = self._all_features()
        if not any(name == ENVIRONMENT or each["dtype"] == "image" for name, each in self._features.items()):
            remedy = "name fields of it with environment_state (--environment-state)"
            _log.warning("no image and no %s, one of which ACT and Diffusion require; %s", ENVIRONMENT, remedy)
        self._stats = new_statistics(self._features)
        self._episode_stats: dict[str, ColumnStatistics] = {}
        self._n_episodes = self._n_frames = 0
        self._place = (0, 0)  # chunk and file
        self._data = self._open_file()
        path = out / "meta" / "episodes" / _FILE.format(chunk_index=0, file_index=0)
        path.parent.mkdir(parents=True)
        self._episodes = TableFile(path, _episodes_schema(self._features), files)

    def step(self, step: ExportedStep) -> None:
        """Write one frame."""
        if step.step_index == 0:
            self._tasks_of_episode = []
            self._episode_stats = new_statistics(self._features)
            if self._data.written_bytes >= _MAX_FILE_BYTES:
                self._data.close()
                chunk, file = self._place
                self._place = (chunk, file + 1) if file + 1 < _FILES_PER_CHUNK else (chunk + 1, 0)
                self._data = self._open_file()
        source = self._source
        task = self._task_of(step)
        values: dict[str, Any] = {
            "timestamp": step.step_index * source.contract.control_period_s,
            "frame_index": step.step_index,
            "episode_index": step.episode_index,
            "index": self._n_frames,
            "task_index": self._tasks[task],
            **self._columns.read(step),
            "source_of_action": step.action_source,
            "next.reward": step.reward,
            "next.done": step.terminated or step.truncated,
            "next.terminated": step.terminated,
            "next.truncated": step.truncated,
            "next.success": step.is_success,
            "measured_timestamp": math.nan if step.timestamp_s is None else step.timestamp_s,
            **{named("evaluator", key): step.evaluator[key] for key in source.evaluator},
        }
        row = {}
        for name, feature in self._features.items():
            if name.startswith("observation.") and not is_finite({name: values[name]}):
                problem = f"row {step.row['row']}: {name} has values that are not finite (expected numbers to train on)"
                raise RecordError(f"{problem}; choose another format")
            if name in self._episode_stats:
                self._episode_stats[name].add(values[name])
            row[name] = _cell(feature, values[name])
        self._data.add(row)
        self._n_frames += 1

    def end(self, ending: EpisodeEnd) -> None:
        """Write the group of rows, and the row of the episode."""
        self._data.flush()
        statistics: dict[str, Any] = {}
        for name, found in self._episode_stats.items():
            self._stats[name].merge(found)
            statistics |= {f"stats/{name}/{key}": value for key, value in found.as_json().items()}
        self._episodes.add(
            {
                "episode_index": ending.episode_index,
                "tasks": self._tasks_of_episode,
                "length": ending.length,
                "data/chunk_index": self._place[0],
                "data/file_index": self._place[1],
                "dataset_from_index": self._n_frames - ending.length,
                "dataset_to_index": self._n_frames,
                "end_reason": ending.end_reason,
                "ended": ending.ended,
                "is_success": ending.is_success,
                "world_seed": ending.world_seed,
                **statistics,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )
        self._n_episodes += 1

    def close(self, metadata: Mapping[str, Any]) -> None:
        """Finish the files and write the metadata."""
        meta = self._out / "meta"
        self._data.close()
        self._episodes.close()
        _write_tasks(meta / "tasks.parquet", list(self._tasks))
        write_json(
            meta / "stats.json", {name: found.as_json() for name, found in self._stats.items() if found.is_known}
        )
        write_json(meta / "info.json", self._info())
        write_json(meta / "embodied_env.json", {**metadata, "the_action": THE_ACTION, "units": self._columns.units})

    def _task_of(self, step: ExportedStep) -> str:
        """Return the prompt of the step's action, which becomes a task of its episode."""
        contract, info = self._source.contract, step.row["info"]
        prompt = info.get("instruction")
        match info.get("annotations", {}).get("chunk"):
            case {"earlier_prompt": {"instruction": str(earlier), "weight": float(weight)}} if weight > _HALF:
                prompt = earlier
        task = str(prompt or contract.task.instruction or contract.name)
        if task not in self._tasks:
            self._tasks[task] = len(self._tasks)
            if task == contract.name:
                _log.warning("no task.instruction in %s: the task of the dataset is %r", contract.name, task)
        if task not in self._tasks_of_episode:
            self._tasks_of_episode.append(task)
        return task

    def _open_file(self) -> TableFile:
        path = self._out / "data" / _FILE.format(chunk_index=self._place[0], file_index=self._place[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = library("pyarrow").schema([(name, _type(feature)) for name, feature in self._features.items()])
        return TableFile(path, schema, self._files)

    def _all_features(self) -> dict[str, Feature]:
        source = self._source
        return {
            "timestamp": _scalar("float32"),
            **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), _scalar("int64")),
            **self._columns.features,
            "source_of_action": _scalar("string"),
            "next.reward": _scalar("float32"),
            **{f"next.{flag}": _scalar("bool") for flag in ("done", "terminated", "truncated", "success")},
            "measured_timestamp": _scalar("float64"),
            **{
                named("evaluator", key): {"dtype": leaf.dtype, "shape": list(leaf.shape) or [1], "names": None}
                for key, leaf in source.evaluator.items()
            },
        }

    def _info(self) -> dict[str, Any]:
        """Return ``info.json``, with an integer rate if it is a whole number."""
        contract = self._source.contract
        rate_hz = 1.0 / contract.control_period_s
        return {
            "codebase_version": VERSION,
            "robot_type": contract.name,
            "total_episodes": self._n_episodes,
            "total_frames": self._n_frames,
            "total_tasks": len(self._tasks),
            "chunks_size": _FILES_PER_CHUNK,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": round(rate_hz) if abs(rate_hz - round(rate_hz)) <= 1e-9 * rate_hz else rate_hz,
            "splits": {"train": f"0:{self._n_episodes}"},
            "data_path": f"data/{_FILE}",
            "video_path": None,
            "features": dict(self._features),
        }


def _episodes_schema(features: Mapping[str, Feature]) -> Any:  # noqa: ANN401 - of pyarrow
    pa = library("pyarrow")
    fields = [
        ("episode_index", pa.int64()),
        ("tasks", pa.list_(pa.string())),
        ("length", pa.int64()),
        *((f"data/{name}", pa.int64()) for name in ("chunk_index", "file_index")),
        *((f"dataset_{name}_index", pa.int64()) for name in ("from", "to")),
        ("end_reason", pa.string()),
        ("ended", pa.bool_()),
        ("is_success", pa.bool_()),
        ("world_seed", pa.int64()),
    ]
    for name, found in new_statistics(features).items():
        numbers = _nested(pa.float64(), len(found.shape))
        kinds = {**dict.fromkeys(found.names, numbers), "count": pa.list_(pa.int64())}
        fields += [(f"stats/{name}/{statistic}", kind) for statistic, kind in kinds.items()]
    return pa.schema([*fields, *((f"meta/episodes/{name}", pa.int64()) for name in ("chunk_index", "file_index"))])


def _write_tasks(path: Path, tasks: list[str]) -> None:
    """Write the tasks as pandas writes a table of ``task_index`` whose index is ``task``."""
    pa = library("pyarrow")
    columns = [
        {"name": name, "field_name": name, "pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": None}
        for name, pandas_type, numpy_type in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    schema = pa.schema(
        [("task_index", pa.int64()), ("task", pa.string())], metadata={"pandas": json.dumps(pandas).encode()}
    )
    library("pyarrow.parquet").write_table(
        pa.table({"task_index": range(len(tasks)), "task": tasks}, schema=schema), path
    )


def _scalar(dtype: str) -> Feature:
    return {"dtype": dtype, "shape": [1], "names": None}


def _type(feature: Feature) -> Any:  # noqa: ANN401 - of pyarrow
    pa, shape = library("pyarrow"), feature["shape"]
    if feature["dtype"] == "image":
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kind = pa.type_for_alias(feature["dtype"])
    if shape == [1]:
        return kind
    return pa.list_(kind, shape[0]) if len(shape) == 1 else _nested(kind, len(shape))


def _nested(kind: Any, depth: int) -> Any:  # noqa: ANN401 - of pyarrow
    for _ in range(depth):
        kind = library("pyarrow").list_(kind)
    return kind


def _cell(feature: Feature, value: Any) -> Any:  # noqa: ANN401 - what pyarrow takes
    if feature["dtype"] == "image":
        return {"bytes": png(value), "path": None}
    if feature["shape"] == [1]:
        return np.asarray(value).reshape(()).item()
    return value.tolist()
