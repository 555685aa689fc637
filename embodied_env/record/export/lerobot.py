"""A LeRobot dataset of version 3.0, in its documented layout; LeRobot is not needed to write it.

``meta/info.json``, ``meta/stats.json``, ``meta/tasks.parquet``, ``meta/episodes/chunk-000/file-000.parquet`` and
``data/chunk-000/file-000.parquet``. Images are inline (dtype ``image``), because video is lossy. Scalars and vectors
of an observation form one vector ``observation.state``, the name that LeRobot's policies expect; its names have key
and index, those of the action are the joints. Without an image, what does not measure the robot itself is
``observation.environment_state``: ACT and Diffusion require one or the other. LeRobot's policies use every column
called ``action...`` or ``observation...``, and every image; no other column has such a name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout, field_layouts
from embodied_env.errors import UsageError
from embodied_env.record.export.episodes import EpisodeEnd, EpisodeReader, Step
from embodied_env.record.export.fields import ArrayField, Arrays, Leaves, library, named, png
from embodied_env.record.export.parquet import TableFile
from embodied_env.record.manifest import write_json

VERSION = "v3.0"

THE_ACTION = (
    "action: requested by the agent, NaN if malformed; a policy trained on it runs behind the same safety gate. "
    "applied_action: executed, under a name that LeRobot's policies do not use"
)

_FILES_PER_CHUNK = 1000
_MAX_FILE_BYTES = 100 * 2**20
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"

FloatArray = NDArray[np.float64]

_ROBOT_SENSORS = (
    "geometry_msgs/msg/WrenchStamped",
    "nav_msgs/msg/Odometry",
    "sensor_msgs/msg/Imu",
    "sensor_msgs/msg/JointState",
)
"""Types of sensors that measure the robot itself."""

Feature = dict[str, Any]
"""A column: dtype, shape and names."""


class LerobotDataset:
    """Writes the dataset episode by episode; a group of rows has rows of one episode only."""

    def __init__(self, out: Path, source: EpisodeReader, files: ExitStack) -> None:
        """Create the files in `out`; raises UsageError for images of the evaluator."""
        images = [key for key, leaf in source.evaluator.items() if leaf.is_image]
        if images:
            raise UsageError(
                f"cannot export the evaluator's images {', '.join(images)}: LeRobot's policies would use them; "
                "omit --evaluator or choose another format"
            )
        self._out, self._source, self._files = out, source, files
        contract = source.contract
        self._task = contract.task.instruction or f"{contract.name}: {contract.task.type}"
        vectors = {key: leaf for key, leaf in source.observation.items() if len(leaf.shape) <= 1}
        self._apart = {key: leaf for key, leaf in source.observation.items() if key not in vectors}
        has_images = any(leaf.is_image for leaf in self._apart.values())
        around = set() if has_images or source.has_wrappers else _environment_keys(contract)
        self._vectors = {
            column: leaves
            for column, is_around in (("observation.state", False), ("observation.environment_state", True))
            if (leaves := {key: leaf for key, leaf in vectors.items() if (key in around) is is_around})
        }
        self._features = self._all_features()
        self._stats = self._new_statistics()
        self._episode_stats: dict[str, RunningStatistics] = {}
        self._n_episodes = self._n_frames = 0
        self._place = (0, 0)  # chunk and file
        self._data = self._open_file()
        path = out / "meta" / "episodes" / _FILE.format(chunk_index=0, file_index=0)
        path.parent.mkdir(parents=True)
        self._episodes = TableFile(path, _episodes_schema(self._features), files)

    def step(self, step: Step) -> None:
        """Write one frame."""
        if step.step_index == 0:
            self._episode_stats = self._new_statistics()
            if self._data.written_bytes >= _MAX_FILE_BYTES:
                self._data.close()
                chunk, file = self._place
                self._place = (chunk, file + 1) if file + 1 < _FILES_PER_CHUNK else (chunk + 1, 0)
                self._data = self._open_file()
        source = self._source
        values: dict[str, Any] = {
            "timestamp": step.step_index * source.contract.control_period_s,
            "frame_index": step.step_index,
            "episode_index": step.episode_index,
            "index": self._n_frames,
            "task_index": 0,
            **{name: _flat(leaves, step.observation) for name, leaves in self._vectors.items()},
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
                "tasks": [self._task],
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
        _write_task(meta / "tasks.parquet", self._task)
        write_json(
            meta / "stats.json", {name: found.as_json() for name, found in self._stats.items() if found.is_known}
        )
        write_json(meta / "info.json", self._info())
        write_json(meta / "embodied_env.json", {**metadata, "the_action": THE_ACTION})

    def _open_file(self) -> TableFile:
        path = self._out / "data" / _FILE.format(chunk_index=self._place[0], file_index=self._place[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = library("pyarrow").schema([(name, _type(feature)) for name, feature in self._features.items()])
        return TableFile(path, schema, self._files)

    def _new_statistics(self) -> dict[str, RunningStatistics]:
        return {
            name: RunningStatistics(tuple(feature["shape"]), is_image=feature["dtype"] == "image")
            for name, feature in self._features.items()
        }

    def _all_features(self) -> dict[str, Feature]:
        source = self._source
        return {
            "timestamp": _scalar("float32"),
            **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), _scalar("int64")),
            **{name: _vector(leaves) for name, leaves in self._vectors.items()},
            **{_apart(key, leaf): _array(leaf) for key, leaf in self._apart.items()},
            "action": _action(source, source.action),
            "applied_action": _action(source, source.applied),
            "next.reward": _scalar("float32"),
            **{f"next.{flag}": _scalar("bool") for flag in ("done", "terminated", "truncated", "success")},
            "measured_timestamp": _scalar("float64"),
            **{named("evaluator", key): _array(leaf) for key, leaf in source.evaluator.items()},
        }

    def _info(self) -> dict[str, Any]:
        """Return ``info.json``; the rate is an integer if it is a whole number."""
        contract = self._source.contract
        rate_hz = 1.0 / contract.control_period_s
        return {
            "codebase_version": VERSION,
            "robot_type": contract.name,
            "total_episodes": self._n_episodes,
            "total_frames": self._n_frames,
            "total_tasks": 1,
            "chunks_size": _FILES_PER_CHUNK,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": round(rate_hz) if abs(rate_hz - round(rate_hz)) <= 1e-9 * rate_hz else rate_hz,
            "splits": {"train": f"0:{self._n_episodes}"},
            "data_path": f"data/{_FILE}",
            "video_path": None,
            "features": dict(self._features),
        }


class RunningStatistics:
    """Minimum, maximum, mean and standard deviation of each element, over the finite ones of `count` values.

    Those of an image are per channel, of shape (channels, 1, 1), of pixels between 0 and 1.
    """

    def __init__(self, shape: tuple[int, ...], *, is_image: bool = False) -> None:
        self.count = 0
        self._is_image = is_image
        self._shape = (shape[2], 1, 1) if is_image else shape or (1,)
        self._known = np.zeros(self._shape)
        self._mean = np.zeros(self._shape)
        self._spread = np.zeros(self._shape)  # sum of squared distances from the mean
        self._min = np.full(self._shape, np.inf)
        self._max = np.full(self._shape, -np.inf)

    def add(self, value: Any) -> None:  # noqa: ANN401 - an array, or a number
        """Add one value."""
        self.count += 1
        array = np.asarray(value, dtype=np.float64)
        if self._is_image:
            pixels = array.reshape(-1, array.shape[2]) / 255.0
            found = [pixels.mean(0), pixels.var(0) * len(pixels), pixels.min(0), pixels.max(0)]
            self._join(np.full(self._shape, float(len(pixels))), *(part.reshape(self._shape) for part in found))
        else:
            array = array.reshape(self._shape)
            finite = np.isfinite(array)
            mean, low, high = (np.where(finite, array, unknown) for unknown in (0.0, np.inf, -np.inf))
            self._join(finite.astype(np.float64), mean, np.zeros(self._shape), low, high)

    def merge(self, other: RunningStatistics) -> None:
        """Add the values of `other`."""
        self.count += other.count
        self._join(other._known, other._mean, other._spread, other._min, other._max)

    @property
    def is_known(self) -> bool:
        """Whether every element had a finite value."""
        return bool((self._known > 0).all())

    def as_json(self) -> dict[str, Any]:
        """Return the statistics as nested lists, with None for an element without a finite value."""
        unknown = self._known == 0
        deviation = np.sqrt(self._spread / np.where(unknown, 1.0, self._known))
        found = {"min": self._min, "max": self._max, "mean": self._mean, "std": deviation}
        return {
            **{name: np.where(unknown, None, values).tolist() for name, values in found.items()},  # type: ignore[call-overload] # numpy has no type for arrays with None
            "count": [self.count],
        }

    def _join(self, known: FloatArray, mean: FloatArray, spread: FloatArray, low: FloatArray, high: FloatArray) -> None:
        """Join two samples, after Chan, Golub and LeVeque (1979), "Updating formulae"."""
        total = self._known + known
        share = known / np.where(total == 0, 1.0, total)
        apart = mean - self._mean
        self._spread += spread + apart**2 * self._known * share
        self._mean += apart * share
        self._known = total
        np.minimum(self._min, low, out=self._min)
        np.maximum(self._max, high, out=self._max)


def _episodes_schema(features: Mapping[str, Feature]) -> Any:  # noqa: ANN401 - of pyarrow
    """Return the schema of ``meta/episodes``: location, end and statistics of each episode."""
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
    for name, feature in features.items():
        numbers = _nested(pa.float64(), 3 if feature["dtype"] == "image" else len(feature["shape"]))
        kinds = {**dict.fromkeys(("min", "max", "mean", "std"), numbers), "count": pa.list_(pa.int64())}
        fields += [(f"stats/{name}/{statistic}", kind) for statistic, kind in kinds.items()]
    return pa.schema([*fields, *((f"meta/episodes/{name}", pa.int64()) for name in ("chunk_index", "file_index"))])


def _write_task(path: Path, task: str) -> None:
    """Write the task as pandas writes a table of ``task_index`` whose index is ``task``."""
    pa = library("pyarrow")
    columns = [
        {"name": name, "field_name": name, "pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": None}
        for name, pandas_type, numpy_type in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    schema = pa.schema(
        [("task_index", pa.int64()), ("task", pa.string())], metadata={"pandas": json.dumps(pandas).encode()}
    )
    library("pyarrow.parquet").write_table(pa.table({"task_index": [0], "task": [task]}, schema=schema), path)


def _environment_keys(contract: Contract) -> set[str]:
    """Return the keys of the observation that do not measure the robot itself: other sensors, and reset options."""
    others = {name: sensor for name, sensor in contract.sensors.items() if sensor.type not in _ROBOT_SENSORS}
    fields = {layout.key for name, sensor in others.items() for layout in field_layouts(name, sensor)}
    return fields | {f"{name}_valid" for name in others} | set(contract.reset_options)


def _action(source: EpisodeReader, leaves: Leaves) -> Feature:
    """Return the feature of an action, whose names are the joints unless a wrapper changed it."""
    feature = _vector(leaves)
    return feature if source.has_wrappers else {**feature, "names": list(ActionLayout(source.contract).joints)}


def _apart(key: str, leaf: ArrayField) -> str:
    return named("observation.images" if leaf.is_image else "observation", key).replace("/", "_")


def _vector(leaves: Leaves) -> Feature:
    """Return the feature of all leaves in one vector: float32, as LeRobot's policies require."""
    names = [named(key or "value", str(index)) for key, leaf in leaves.items() for index in range(leaf.size)]
    return {"dtype": "float32", "shape": [len(names)], "names": names}


def _scalar(dtype: str) -> Feature:
    return {"dtype": dtype, "shape": [1], "names": None}


def _array(leaf: ArrayField) -> Feature:
    if leaf.is_image:
        return {"dtype": "image", "shape": list(leaf.shape), "names": ["height", "width", "channels"]}
    return {"dtype": leaf.dtype, "shape": list(leaf.shape) or [1], "names": None}


def _flat(leaves: Leaves, arrays: Arrays) -> NDArray[Any]:
    flat = [arrays[key].reshape(-1) for key in leaves]
    return np.concatenate(flat).astype(np.float32) if flat else np.empty(0, np.float32)


def _type(feature: Feature) -> Any:  # noqa: ANN401 - of pyarrow
    pa, shape = library("pyarrow"), feature["shape"]
    if feature["dtype"] == "image":
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kind = pa.bool_() if feature["dtype"] == "bool" else pa.type_for_alias(feature["dtype"])
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
