"""A LeRobot dataset of version 3.0, in its documented layout; LeRobot itself is not needed to write it.

``meta/info.json``, ``meta/stats.json``, ``meta/tasks.parquet``, ``meta/episodes/chunk-000/file-000.parquet`` and
``data/chunk-000/file-000.parquet``. Images are inline (dtype ``image``): a video would lose bits. Numbers of an
observation that stand in one line are one vector ``observation.state``, whose names say key and index: that is the name
that LeRobot's policies look for. A policy of LeRobot takes every column that is called ``action...`` or
``observation...``, and every image, as its own; so no other column is called so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_env.errors import UsageError
from embodied_env.record.export.leaves import Arrays, Leaf, Leaves, named
from embodied_env.record.export.lerobot_meta import EpisodesFile, info_of, write_tasks
from embodied_env.record.export.pictures import png
from embodied_env.record.export.running import Running
from embodied_env.record.export.steps import Ending, Source, Step
from embodied_env.record.export.tables import TableFile, arrow
from embodied_env.record.manifest import write_json

THE_ACTION = (
    "action: what the agent asked for, NaN where it asked for no such thing: a policy that learns from it is put "
    "behind the same gate. applied_action: what was executed, by a name that LeRobot's policies do not take as theirs"
)
FILES_PER_CHUNK = 1000
MOST_BYTES_PER_FILE = 100 * 2**20


class LerobotDataset:
    """Writes the dataset, episode by episode: one or more groups of rows of each, never of two."""

    def __init__(self, out: Path, source: Source, *, most_bytes_per_file: int = MOST_BYTES_PER_FILE) -> None:
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
        self._of_episode: dict[str, Running] = {}
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

    def end(self, ending: Ending) -> None:
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

    def _running(self, name: str) -> Running:
        feature = self._features[name]
        return Running(tuple(feature["shape"]), is_image=feature["dtype"] == "image")

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


def _apart(key: str, leaf: Leaf) -> str:
    return named("observation.images" if leaf.is_image else "observation", key).replace("/", "_")


def _vector(leaves: Leaves) -> dict[str, Any]:
    """Return the feature of all numbers of `leaves` in a row: float32, as LeRobot's policies take them."""
    names = [named(key or "value", str(index)) for key, leaf in leaves.items() for index in range(leaf.size)]
    return {"dtype": "float32", "shape": [len(names)], "names": names}


def _array(leaf: Leaf) -> dict[str, Any]:
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


def _cell(feature: Mapping[str, Any], value: Any) -> Any:  # noqa: ANN401 - what pyarrow takes
    if feature["dtype"] == "image":
        return {"bytes": png(value), "path": None}
    if feature["shape"] == [1]:
        return np.asarray(value).reshape(()).item()
    return value.tolist()
