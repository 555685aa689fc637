"""Export to ``transitions.jsonl``, one step per line, with large arrays in separate files.

It needs no library. Values are those of the rows of the run; a malformed action is only in ``info``. Images are PNG
files, other arrays ``.npy`` files. Each content is stored once, under its hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from embodied_env.extensions.export.exported_episodes import (
    ArrayField,
    EpisodeEnd,
    EpisodeReader,
    ExportedStep,
    gated_action,
    png,
)
from embodied_env.record.arrays import is_reference
from embodied_env.record.json_values import to_json_types
from embodied_env.record.manifest import write_json

THE_ACTION = "action: see action_source; a requested one is unchanged. action_applied: executed, null if unknown"


class JsonLines:
    """Writes ``transitions.jsonl`` and ``arrays/``."""

    def __init__(self, out: Path, source: EpisodeReader, files: ExitStack) -> None:
        self._out, self._source = out, source
        self._file: IO[str] = files.enter_context((out / "transitions.jsonl").open("x", encoding="utf-8"))

    def step(self, step: ExportedStep) -> None:
        """Write one line."""
        row, evaluator = step.row, bool(self._source.evaluator)
        info: dict[str, Any] = {key: value for key, value in row["info"].items() if key != "evaluator" or evaluator}
        applied = info.get("action", {}).get("applied")
        places = ("episode_index", "step_index", "timestamp_s", "observed_ns", "published_ns")
        line = {
            **{name: getattr(step, name) for name in places},
            "observation": step.seen,
            "action": applied if step.is_gap else gated_action(row),
            "action_source": step.action_source,
            "action_applied": applied,
            "reward": row["reward"],
            "next_observation": row["observation"],
            "terminated": row["terminated"],
            "truncated": row["truncated"],
            "end_reason": step.end_reason,
            "is_success": step.is_success,
            "info": info,
        }
        if evaluator:
            line["evaluator"] = {key: to_json_types(array) for key, array in step.evaluator.items()}
        json.dump(self._with_files(line), self._file, allow_nan=False, separators=(",", ":"))
        self._file.write("\n")

    def end(self, ending: EpisodeEnd) -> None:
        """Do nothing, since each line has its next observation."""

    def close(self, metadata: Mapping[str, Any]) -> None:
        """Write ``metadata.json``."""
        self._file.close()
        write_json(self._out / "metadata.json", {**metadata, "the_action": THE_ACTION})

    def _with_files(self, value: Any) -> Any:  # noqa: ANN401 - JSON types
        """Return `value` with the file name added to each reference."""
        if isinstance(value, list):
            return [self._with_files(item) if isinstance(item, (list, dict)) else item for item in value]
        if not isinstance(value, dict):
            return value
        if is_reference(value):
            return {"file": self._store(value), **value}
        return {key: self._with_files(item) if isinstance(item, (list, dict)) else item for key, item in value.items()}

    def _store(self, reference: dict[str, Any]) -> str:
        is_image = ArrayField(dtype=reference["dtype"], shape=tuple(reference["shape"])).is_image
        name = f"arrays/{reference['sha256']}.{'png' if is_image else 'npy'}"
        path = self._out / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            array = self._source.run.array(reference)
            if is_image:
                path.write_bytes(png(array))
            else:
                np.save(path, array, allow_pickle=False)
        return name
