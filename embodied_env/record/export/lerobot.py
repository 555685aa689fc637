"""A LeRobot dataset of version 3.0, in its documented layout; LeRobot itself is not needed to write it.

``meta/info.json``, ``meta/stats.json``, ``meta/tasks.parquet``, ``meta/episodes/chunk-000/file-000.parquet`` and
``data/chunk-000/file-000.parquet``. Images are inline (dtype ``image``): a video would lose bits. Numbers of an
observation that stand in one line are one vector ``observation.state``, whose names say key and index: that is the name
that LeRobot's policies look for. A policy of LeRobot takes every column that is called ``action...`` or
``observation...``, and every image, as its own; so no other column is called so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.errors import UsageError
from embodied_env.record.export.episodes import EpisodeEnd, EpisodeReader, Step
from embodied_env.record.export.fields import ArrayField, Arrays, Leaves, named, png
from embodied_env.record.export.parquet import TableFile, arrow
from embodied_env.record.manifest import write_json

VERSION = "v3.0"

THE_ACTION = (
    "action: what the agent asked for, NaN where it asked for no such thing: a policy that learns from it is put "
    "behind the same gate. applied_action: what was executed, by a name that LeRobot's policies do not take as theirs"
)

FILES_PER_CHUNK = 1000

MOST_BYTES_PER_FILE = 100 * 2**20

_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"

_STATISTICS = ("min", "max", "mean", "std", "count")

FloatArray = NDArray[np.float64]


class LerobotDataset:
    """Writes the dataset, episode by episode: one or more groups of rows of each, never of two."""

    def __init__(self, out: Path, source: EpisodeReader, *, most_bytes_per_file: int = MOST_BYTES_PER_FILE) -> None:
        """Begin in the folder `out`.

        Raises:
            MissingDependencyError: without pyarrow.
            UsageError: for images that only the evaluator sees: LeRobot's policies would take them for their own.
        """
        arrow()
        images = [key for key, leaf in source.evaluator.items() if leaf.is_image]
        if images:
            raise UsageError(
                f"--evaluator: LeRobot's policies take the images {', '.join(images)} for their own; "
                "allowed: no --evaluator, or another format"
            )
        self._out, self._source, self._most_bytes = out, source, most_bytes_per_file
        self._state = {key: leaf for key, leaf in source.observation.items() if len(leaf.shape) <= 1}
        self._apart = {key: leaf for key, leaf in source.observation.items() if key not in self._state}
        self._features = self._all_features()
        self._stats = {name: self._running(name) for name in self._features}
        self._of_episode: dict[str, RunningStatistics] = {}
        self._frames = 0
        self._file: TableFile | None = None
        self._place = (0, -1)  # chunk and file
        (out / "meta").mkdir()
        self._episodes = EpisodesFile(out, self._features)
        self._count = 0

    def step(self, step: Step) -> None:
        """Write one frame."""
        if step.step_index == 0:
            self._of_episode = {name: self._running(name) for name in self._features}
            if self._file is None or self._file.written_bytes >= self._most_bytes:
                self._next_file()
        source, period_s = self._source, self._source.contract.control_period_s
        values: dict[str, Any] = {
            "timestamp": step.step_index * period_s,
            "frame_index": step.step_index,
            "episode_index": step.episode_index,
            "index": self._frames,
            "task_index": 0,
            "observation.state": _flat(self._state, step.observation),
            **{_apart(key, leaf): step.observation[key] for key, leaf in self._apart.items()},
            "action": _flat(source.action, step.action),
            "applied_action": _flat(source.applied, step.action_applied),
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
            self._of_episode[name].add(values[name])
            row[name] = _cell(feature, values[name])
        if self._file is not None:
            self._file.add(row)
        self._frames += 1

    def end(self, ending: EpisodeEnd) -> None:
        """Write the group of rows, and the row of the episode."""
        if self._file is not None:
            self._file.flush()
        for name, found in self._of_episode.items():
            self._stats[name].merge(found)
        self._episodes.add(
            ending,
            task=self._task,
            place=self._place,
            to_index=self._frames,
            stats={name: found.as_json() for name, found in self._of_episode.items()},
        )
        self._count += 1

    def close(self, account: Mapping[str, Any]) -> None:
        """Write what is about the whole."""
        meta = self._out / "meta"
        if self._file is not None:
            self._file.close()
        self._episodes.close()
        write_tasks(meta / "tasks.parquet", [self._task])
        write_json(
            meta / "stats.json",
            {name: found.as_json() for name, found in self._stats.items() if found.is_known},
        )
        write_json(
            meta / "info.json",
            info_of(self._source.contract, self._features, episodes=self._count, frames=self._frames),
        )
        write_json(meta / "embodied_env.json", {**account, "the_action": THE_ACTION})

    def abort(self) -> None:
        """Let go of the files."""
        if self._file is not None:
            self._file.abort()
        self._episodes.abort()

    @property
    def _task(self) -> str:
        return f"{self._source.contract.name}: {self._source.contract.task.type}"

    def _next_file(self) -> None:
        if self._file is not None:
            self._file.close()
        chunk, file = self._place
        self._place = (chunk, file + 1) if file + 1 < FILES_PER_CHUNK else (chunk + 1, 0)
        path = self._out / "data" / f"chunk-{self._place[0]:03d}" / f"file-{self._place[1]:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pa = arrow()
        self._file = TableFile(path, pa.schema([(name, _type(feature)) for name, feature in self._features.items()]))

    def _running(self, name: str) -> RunningStatistics:
        feature = self._features[name]
        return RunningStatistics(tuple(feature["shape"]), is_image=feature["dtype"] == "image")

    def _all_features(self) -> dict[str, dict[str, Any]]:
        source = self._source
        one = {"shape": [1], "names": None}
        return {
            "timestamp": {"dtype": "float32", **one},
            "frame_index": {"dtype": "int64", **one},
            "episode_index": {"dtype": "int64", **one},
            "index": {"dtype": "int64", **one},
            "task_index": {"dtype": "int64", **one},
            **({"observation.state": _vector(self._state)} if self._state else {}),
            **{_apart(key, leaf): _array(leaf) for key, leaf in self._apart.items()},
            "action": _vector(source.action),
            "applied_action": _vector(source.applied),
            "next.reward": {"dtype": "float32", **one},
            "next.done": {"dtype": "bool", **one},
            "next.terminated": {"dtype": "bool", **one},
            "next.truncated": {"dtype": "bool", **one},
            "next.success": {"dtype": "bool", **one},
            "measured_timestamp": {"dtype": "float64", **one},
            **{named("evaluator", key): _array(leaf) for key, leaf in source.evaluator.items()},
        }


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
        ending: EpisodeEnd,
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


class RunningStatistics:
    """Least, greatest, mean and standard deviation of each element; values that are not finite do not count.

    Of an image they are per channel, shaped (channels, 1, 1), of pixels between 0 and 1.

    Attributes:
        count: values taken in.
    """

    def __init__(self, shape: tuple[int, ...], *, is_image: bool = False) -> None:
        """Begin with no value of `shape`; a scalar has the shape (1,)."""
        self.count = 0
        self._is_image = is_image
        self._shape = (shape[2], 1, 1) if is_image else shape or (1,)
        self._known = np.zeros(self._shape)
        self._mean = np.zeros(self._shape)
        self._spread = np.zeros(self._shape)  # sum of squared distances from the mean
        self._least = np.full(self._shape, np.inf)
        self._greatest = np.full(self._shape, -np.inf)

    def add(self, value: Any) -> None:  # noqa: ANN401 - an array, or a number
        """Take in one value."""
        self.count += 1
        array = np.asarray(value, dtype=np.float64)
        if self._is_image:
            pixels = array.reshape(-1, array.shape[2]) / 255.0
            mean = pixels.mean(0).reshape(self._shape)
            spread = pixels.var(0).reshape(self._shape) * len(pixels)
            known = np.full(self._shape, float(len(pixels)))
            self._join(known, mean, spread)
            low, high = pixels.min(0).reshape(self._shape), pixels.max(0).reshape(self._shape)
        else:
            array = array.reshape(self._shape)
            finite = np.isfinite(array)
            self._join(finite.astype(np.float64), np.where(finite, array, 0.0), np.zeros(self._shape))
            low, high = np.where(finite, array, np.inf), np.where(finite, array, -np.inf)
        np.minimum(self._least, low, out=self._least)
        np.maximum(self._greatest, high, out=self._greatest)

    def merge(self, other: RunningStatistics) -> None:
        """Take in what another has taken in."""
        self.count += other.count
        self._join(other._known, other._mean, other._spread)
        np.minimum(self._least, other._least, out=self._least)
        np.maximum(self._greatest, other._greatest, out=self._greatest)

    @property
    def is_known(self) -> bool:
        """Whether something was known of every element."""
        return bool((self._known > 0).all())

    def as_json(self) -> dict[str, Any]:
        """Return them as nested lists; None for an element of which nothing was known."""
        unknown = self._known == 0
        deviation = np.sqrt(self._spread / np.where(unknown, 1.0, self._known))
        found = {"min": self._least, "max": self._greatest, "mean": self._mean, "std": deviation}
        return {
            **{name: np.where(unknown, None, values).tolist() for name, values in found.items()},  # type: ignore[call-overload] # numpy has no type for arrays with None
            "count": [self.count],
        }

    def _join(self, known: FloatArray, mean: FloatArray, spread: FloatArray) -> None:
        """Join two samples, after Chan, Golub and LeVeque (1979), "Updating formulae"."""
        total = self._known + known
        share = known / np.where(total == 0, 1.0, total)
        apart = mean - self._mean
        self._spread += spread + apart**2 * self._known * share
        self._mean += apart * share
        self._known = total


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


def _apart(key: str, leaf: ArrayField) -> str:
    return named("observation.images" if leaf.is_image else "observation", key).replace("/", "_")


def _vector(leaves: Leaves) -> dict[str, Any]:
    """Return the feature of all numbers of `leaves` in a row: float32, as LeRobot's policies take them."""
    names = [named(key or "value", str(index)) for key, leaf in leaves.items() for index in range(leaf.size)]
    return {"dtype": "float32", "shape": [len(names)], "names": names}


def _array(leaf: ArrayField) -> dict[str, Any]:
    if leaf.is_image:
        return {"dtype": "image", "shape": list(leaf.shape), "names": ["height", "width", "channels"]}
    return {"dtype": leaf.dtype, "shape": list(leaf.shape) or [1], "names": None}


def _flat(leaves: Leaves, arrays: Arrays) -> NDArray[Any]:
    flat = [arrays[key].reshape(-1) for key in leaves]
    return np.concatenate(flat).astype(np.float32) if flat else np.empty(0, np.float32)


def _type(feature: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of pyarrow
    pa = arrow()
    if feature["dtype"] == "image":
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kind = pa.bool_() if feature["dtype"] == "bool" else pa.type_for_alias(feature["dtype"])
    shape = feature["shape"]
    if shape == [1]:
        return kind
    if len(shape) == 1:
        return pa.list_(kind, shape[0])
    for _ in shape:
        kind = pa.list_(kind)
    return kind


def _nested(statistic: str, depth: int) -> Any:  # noqa: ANN401 - of pyarrow
    pa = arrow()
    kind = pa.int64() if statistic == "count" else pa.float64()
    for _ in range(1 if statistic == "count" else depth):
        kind = pa.list_(kind)
    return kind


def _cell(feature: Mapping[str, Any], value: Any) -> Any:  # noqa: ANN401 - what pyarrow takes
    if feature["dtype"] == "image":
        return {"bytes": png(value), "path": None}
    if feature["shape"] == [1]:
        return np.asarray(value).reshape(()).item()
    return value.tolist()
