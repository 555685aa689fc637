"""The files of a LeRobot policy and its dataset, read without LeRobot: features, names, rate and statistics.

Formats of LeRobot 0.1 to 0.6: ``config.json``, ``train_config.json``, the processors of 0.4 and newer, the buffers in
``model.safetensors`` of older ones, and a dataset's ``meta/info.json`` and ``meta/stats.json``. Pickle is never read.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.contract.files import check_file, read_file
from embodied_env.core.bounded_json import parse_json
from embodied_env.errors import UsageError, described
from embodied_env.policies.statistics import read_safetensors

Statistics = Mapping[str, tuple[float, ...]]
"""``mean``, ``std``, ``min``, ``max``, ``q01`` and so on, one number for each component or channel."""

MODES = {
    "IDENTITY": None,
    "MEAN_STD": "mean_std",
    "MIN_MAX": "min_max",
    "QUANTILES": "quantiles",
    "QUANTILE10": "quantiles10",
}
"""The normalisation modes of LeRobot, and the methods of a policy file."""

_MOST_BYTES = 64 * 2**20
_MOST_MODEL_BYTES = 64 * 2**30
_MOST_COMPONENTS = 10_000
_NORMALIZER = "policy_preprocessor_step_*_normalizer_processor.safetensors"
_BUFFER = re.compile(r"(?:un)?normalize_(?:inputs|outputs|targets)\.buffer_(.+)\.(mean|std|min|max)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """An input or output of a LeRobot policy."""

    kind: str  # STATE, VISUAL, ENV, ACTION
    shape: tuple[int, ...]  # images: (channels, height, width)
    mode: str  # a key of `MODES`
    names: tuple[str, ...]  # of the components, from the dataset; empty: unknown
    statistics: Statistics  # empty: not found


@dataclass(frozen=True, slots=True, kw_only=True)
class LerobotPolicy:
    """What the files of a policy declare."""

    kind: str  # act, diffusion, smolvla, ...
    inputs: Mapping[str, Feature]
    outputs: Mapping[str, Feature]
    n_obs_steps: int
    n_action_steps: int
    chunk_size: int | None
    returns_chunks: bool  # not one action per observation, in LeRobot's library
    is_relative: bool  # actions relative to the state, made absolute by LeRobot's processors
    rate_hz: float | None
    contract: Mapping[str, str]  # name and fingerprint, if the dataset is an export of this package; else empty


def read_lerobot(folder: Path, dataset: Path | None = None) -> LerobotPolicy:
    """Read the policy in `folder`, with names, rate and statistics of the `dataset` it was trained on.

    Raises UsageError for files that are missing or not in LeRobot's formats.
    """
    config = _read_json(folder / "config.json")
    train, processor = (_read_json(folder / name, {}) for name in ("train_config.json", "policy_preprocessor.json"))
    meta = None if dataset is None else dataset / "meta"
    info = {} if meta is None else _read_json(meta / "info.json")
    stats, export = (
        {} if meta is None else _read_json(meta / f"{name}.json", {}) for name in ("stats", "embodied_env")
    )
    try:
        return _policy(config, train, {**info, **export}, _statistics(folder, config, processor, stats))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        expected = "expected a policy with input_features and output_features, as LeRobot 0.1 to 0.6 save it"
        raise UsageError(f"cannot read the LeRobot policy {folder}: {described(error)} ({expected})") from error


def _policy(config: Any, train: Any, info: Any, statistics: Mapping[str, Statistics]) -> LerobotPolicy:  # noqa: ANN401 - JSON
    modes, columns = config.get("normalization_mapping") or {}, info.get("features") or {}
    own_names = {"action": tuple(config.get("action_feature_names") or ())}

    def features(key: str) -> dict[str, Feature]:
        found = {}
        for name, spec in (config[key] or {}).items():
            shape, mode = tuple(int(size) for size in spec["shape"]), str(modes.get(spec["type"], "IDENTITY"))
            if mode not in MODES:
                raise ValueError(f"unknown normalization mode {mode!r} of {name} (expected one of: {', '.join(MODES)})")
            if (len(shape) != 3) if spec["type"] == "VISUAL" else prod(shape) > _MOST_COMPONENTS:
                raise ValueError(
                    f"shape {shape} of {name} (expected an image, or at most {_MOST_COMPONENTS} components)"
                )
            names = _names(columns.get(name, {}).get("names")) or own_names.get(name, ())
            found[name] = Feature(
                kind=str(spec["type"]),
                shape=shape,
                mode=mode,
                names=names if (len(names),) == shape else (),
                statistics=statistics.get(name, {}),
            )
        return found

    n_obs_steps, chunk_size = int(config.get("n_obs_steps") or 1), config.get("chunk_size")
    rate = info.get("fps") or (train.get("env") or {}).get("fps")
    ours = {} if info.get("spaces_read_off_rows") else info.get("contract", {})
    return LerobotPolicy(
        kind=str(config["type"]),
        inputs=features("input_features"),
        outputs=features("output_features"),
        n_obs_steps=n_obs_steps,
        n_action_steps=int(config.get("n_action_steps") or 1),
        chunk_size=None if chunk_size is None else int(chunk_size),
        returns_chunks=chunk_size is not None and n_obs_steps == 1 and config.get("temporal_ensemble_coeff") is None,
        is_relative=bool(config.get("use_relative_actions")),
        rate_hz=None if rate is None else float(rate),
        contract={key: str(ours[key]) for key in ("name", "fingerprint") if ours},
    )


def _names(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON
    """Return the names of a column: a list, ``{"motors": [...]}``, or ``{name: index}``."""
    if isinstance(value, Mapping):
        lists = [each for each in value.values() if isinstance(each, list)]
        value = lists[0] if len(lists) == 1 else [] if lists else sorted(value, key=value.__getitem__)
    return tuple(map(str, value or ()))


def _statistics(folder: Path, config: Any, processor: Any, stats: Any) -> dict[str, Statistics]:  # noqa: ANN401 - JSON
    """Return the statistics by feature: of the saved processor, else of an old model, else of the dataset."""
    named = [Path(str(step.get("state_file"))).name for step in processor.get("steps", ())]
    files = [folder / name for name in named if "_normalizer_" in name] or sorted(folder.glob(_NORMALIZER))
    if files:
        return _by_feature((*key.rpartition(".")[::2], value) for key, value in _read_tensors(files[0]))
    if (folder / "model.safetensors").is_file():
        features = {**config["input_features"], **config["output_features"]}
        known = {name.replace(".", "_"): name for name in features}
        tensors = ((_BUFFER.fullmatch(key), value) for key, value in _read_tensors(folder / "model.safetensors"))
        buffers = [(known.get(str(m[1]), str(m[1])), str(m[2]), value) for m, value in tensors if m]
        if buffers:
            return _by_feature(buffers)
    return _by_feature((name, key, value) for name, each in stats.items() for key, value in each.items())


def _by_feature(rows: Iterable[tuple[str, str, Any]]) -> dict[str, Statistics]:
    """Group finite statistics by feature, float32 in the fewest digits that keep them."""
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for feature, statistic, value in rows:
        array = np.asarray(value)
        if array.dtype.kind in "fiu" and np.isfinite(array).all():
            found.setdefault(feature, {})[statistic] = tuple(float(str(number)) for number in array.ravel())
    return dict(found)


def _read_json(path: Path, missing: Any = None) -> Any:  # noqa: ANN401 - JSON
    """Return the mapping of a JSON file; `missing`, unless None, for a file that is not there."""
    if missing is not None and not path.exists():
        return missing
    try:
        value = parse_json(read_file(path, most_bytes=_MOST_BYTES), max_bytes=_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error} (expected a JSON file of LeRobot)") from None
    if not isinstance(value, dict):
        raise UsageError(f"cannot read {path}: {type(value).__name__} (expected a mapping)")
    return value


def _read_tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a safetensors file by name, which may be larger than the memory."""
    try:
        check_file(path, most_bytes=_MOST_MODEL_BYTES)
        with path.open("rb") as file:
            yield from read_safetensors(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).items()
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {described(error)} (expected a safetensors file)") from None
