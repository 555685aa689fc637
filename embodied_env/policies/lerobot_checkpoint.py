"""Features, names, rate and statistics of LeRobot policies and datasets, without LeRobot.

Formats of LeRobot 0.1 to 0.6: ``config.json``, ``train_config.json``, the processors of 0.4 and newer, the buffers in
``model.safetensors`` of older ones, and a dataset's ``meta/info.json`` and ``meta/stats.json``. Pickle is never read.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from embodied_env.contract.bounded_files import check_file, read_file
from embodied_env.contract.bounded_json import parse_json
from embodied_env.errors import UsageError, described
from embodied_env.policies.normalization import Normalization, read_safetensors
from embodied_env.policies.policy_file import STATISTICS

Statistics = Mapping[str, tuple[float, ...]]
"""``mean``, ``std``, ``min``, ``max``, ``q01`` and so on, one number for each component or channel."""

_METHODS = {  # by LeRobot's mode
    "IDENTITY": None,
    "MEAN_STD": "mean_std",
    "MIN_MAX": "min_max",
    "QUANTILES": "quantiles",
    "QUANTILE10": "quantiles10",
}
_MOST_BYTES = 8 * 2**20
_MOST_MODEL_BYTES = 64 * 2**30
_MOST_COMPONENTS = 10_000  # components of a feature
_MOST_FEATURES = 100
_MOST_STEPS = 1000
_MOST_AXES = 8
_LONGEST_NAME = 200
_KNOWN = frozenset(name for pair in STATISTICS.values() for name in pair)
_NORMALIZERS = (
    "policy_preprocessor_step_*_normalizer_processor.safetensors",
    "policy_postprocessor_step_*_unnormalizer_processor.safetensors",
)
_BUFFER = re.compile(r"(?:un)?normalize_(?:inputs|outputs|targets)\.buffer_(.+)\.(mean|std|min|max)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """An input or output of a LeRobot policy."""

    kind: str  # STATE, VISUAL, ENV, ACTION
    shape: tuple[int, ...]  # images: (channels, height, width)
    method: str | None  # of the normalisation, as in a policy file; None: none
    names: tuple[str, ...]  # of the components, from the dataset; empty: unknown
    statistics: Statistics  # empty: not found


@dataclass(frozen=True, slots=True, kw_only=True)
class LerobotPolicy:
    """The declarations in the files of a policy."""

    kind: str  # act, diffusion, smolvla, ...
    inputs: Mapping[str, Feature]
    outputs: Mapping[str, Feature]
    n_obs_steps: int
    n_action_steps: int
    chunk_size: int | None
    returns_chunks: bool  # not one action per observation, in LeRobot's library
    is_relative: bool  # actions relative to the state, made absolute by LeRobot's processors
    rate_hz: float | None
    lost: tuple[str, ...]  # statistics that its processors need and lack
    contract: Mapping[str, str]  # name and fingerprint, if the dataset is an export of this package; else empty


def read_lerobot(folder: Path, dataset: Path | None = None) -> LerobotPolicy:
    """Read the policy in `folder` with names, rate and statistics of its training dataset."""
    config, train = read_mapping(folder / "config.json"), read_mapping(folder / "train_config.json", {})
    info, stats = {}, {}
    if dataset is not None:
        meta = dataset / "meta"
        info = {**read_mapping(meta / "info.json"), **read_mapping(meta / "embodied_env.json", {})}
        stats = read_mapping(meta / "stats.json", {})
    try:
        lost = read_normalizers(folder)[1] if (folder / "policy_preprocessor.json").exists() else []
        return _policy(config, train, info, _statistics(folder, config, stats), lost)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        expected = "expected a policy with input_features and output_features, as LeRobot 0.1 to 0.6 save it"
        raise UsageError(f"cannot read the LeRobot policy {folder}: {described(error)} ({expected})") from error


def read_normalizers(folder: Path) -> tuple[dict[str, Normalization], list[str]]:
    """Return each input's normalisation by LeRobot's processors, and the missing statistics.

    LeRobot leaves a feature without statistics as it is, in both directions.
    """
    config, found, lost = read_mapping(folder / "config.json"), dict[str, Normalization](), list[str]()
    try:
        for kind in ("input", "output"):
            name = f"policy_{'pre' if kind == 'input' else 'post'}processor.json"
            steps = read_mapping(folder / name, {"steps": []})["steps"]
            step = next((each for each in steps if _normalizes(each)), None)
            if step is None and any(each.get("state_file") for each in steps):
                continue  # a step of another kind may normalise
            step = step or {}
            options = step.get("config", {})
            modes = options.get("norm_map") or config.get("normalization_mapping") or {}
            features = config.get(f"{kind}_features") or {}
            kept = options.get("normalize_observation_keys") if kind == "input" else None
            needed = {
                feature: method
                for feature, spec in features.items()
                if (method := _METHODS[str(modes.get(spec["type"], "IDENTITY"))]) and (not kept or feature in kept)
            }
            file = Path(str(step.get("state_file"))).name  # in this folder only
            known = dict(_read_tensors(folder / file)) if needed and step.get("state_file") else {}
            for feature, method in needed.items():
                names = [f"{feature}.{statistic}" for statistic in STATISTICS[method]]
                is_skipped = feature not in options.get("features", features)
                lost += [f"{each} in {name}" for each in names if is_skipped or each not in known]
                if kind == "input" and all(each in known for each in names):
                    first, second = (np.asarray(known[each], np.float64).ravel() for each in names)
                    found[feature] = Normalization(method, first, second)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        expected = "expected a policy with its processors, as LeRobot saves them"
        raise UsageError(f"cannot read the LeRobot policy {folder}: {described(error)} ({expected})") from None
    return found, lost


def _normalizes(step: Mapping[str, Any]) -> bool:
    """Return whether a step, by name or class, is LeRobot's normalizer or unnormalizer."""
    return "normalizerprocessor" in str(step.get("registry_name") or step.get("class")).replace("_", "").lower()


def read_mapping(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the mapping of a JSON file, or `missing`, unless None, where there is no file."""
    if missing is not None and not path.exists():
        return missing
    try:
        value = parse_json(read_file(path, most_bytes=_MOST_BYTES), max_bytes=_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error} (expected a JSON file of LeRobot)") from None
    if not isinstance(value, dict):
        raise UsageError(f"cannot read {path}: {type(value).__name__} (expected a mapping)")
    return value


def _policy(
    config: Any,  # noqa: ANN401 - JSON
    train: Any,  # noqa: ANN401
    info: Any,  # noqa: ANN401
    statistics: Mapping[str, Statistics],
    lost: Iterable[str],
) -> LerobotPolicy:
    columns = info.get("features") or {}
    names = {name: _names(column.get("names")) for name, column in columns.items()}
    if config.get("action_feature_names") and not names.get("action"):
        names["action"] = tuple(config["action_feature_names"])
    modes = config.get("normalization_mapping") or {}

    def features(key: str) -> dict[str, Feature]:
        if (count := len(config[key] or {})) > _MOST_FEATURES:
            raise ValueError(f"{count} {key} (expected at most {_MOST_FEATURES})")
        return {
            name: _feature(name, spec, modes, names.get(name, ()), statistics.get(name, {}))
            for name, spec in (config[key] or {}).items()
        }

    n_obs_steps, n_action_steps, chunk_size = (
        _steps(key, config.get(key)) for key in ("n_obs_steps", "n_action_steps", "chunk_size")
    )
    is_averaged = config.get("temporal_ensemble_coeff") is not None
    rate = info.get("fps") or (train.get("env") or {}).get("fps")
    ours = {} if info.get("spaces_read_off_rows") else info.get("contract", {})
    return LerobotPolicy(
        kind=str(config["type"]),
        inputs=features("input_features"),
        outputs=features("output_features"),
        n_obs_steps=n_obs_steps or 1,
        n_action_steps=n_action_steps or 1,
        chunk_size=chunk_size,
        returns_chunks=chunk_size is not None and n_obs_steps in (None, 1) and not is_averaged,
        is_relative=bool(config.get("use_relative_actions")),
        rate_hz=None if rate is None else float(rate),
        lost=tuple(lost),
        contract={key: str(ours[key]) for key in ("name", "fingerprint") if ours},
    )


def _steps(key: str, value: Any) -> int | None:  # noqa: ANN401 - JSON
    if value is not None and not 1 <= int(value) <= _MOST_STEPS:
        raise ValueError(f"{key} {value!r:.80} (expected 1 to {_MOST_STEPS})")
    return None if value is None else int(value)


def _feature(
    name: str, spec: Mapping[str, Any], modes: Mapping[str, Any], names: tuple[str, ...], statistics: Statistics
) -> Feature:
    kind, shape = str(spec["type"]), tuple(int(size) for size in spec["shape"])
    if not all(each.isprintable() and len(each) <= _LONGEST_NAME for each in (name, *names)):
        raise ValueError(f"name of or in {name!r:.80} (expected printable text of at most {_LONGEST_NAME} characters)")
    if len(shape) > _MOST_AXES or not all(1 <= size <= _MOST_COMPONENTS for size in shape):
        raise ValueError(f"shape {shape!r:.80} of {name} (expected lengths from 1 to {_MOST_COMPONENTS})")
    if (mode := str(modes.get(kind, "IDENTITY"))) not in _METHODS:
        raise ValueError(f"unknown normalization mode {mode!r} of {name} (expected one of: {', '.join(_METHODS)})")
    if (len(shape) != 3) if kind == "VISUAL" else prod(shape) > _MOST_COMPONENTS:
        raise ValueError(f"shape {shape} of {name} (expected an image, or at most {_MOST_COMPONENTS} components)")
    names = names if (len(names),) == shape else ()
    return Feature(kind=kind, shape=shape, method=_METHODS[mode], names=names, statistics=statistics)


def _names(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON
    """Return the names of a column from a list, a mapping to a list, or a mapping to indices."""
    if isinstance(value, Mapping):
        lists = [each for each in value.values() if isinstance(each, list)]
        value = lists[0] if len(lists) == 1 else [] if lists else sorted(value, key=value.__getitem__)
    return tuple(map(str, value or ()))


def _statistics(folder: Path, config: Any, stats: Any) -> dict[str, Statistics]:  # noqa: ANN401 - JSON
    """Return statistics by feature, of the processor, else an old model, else the dataset."""
    features = {**(config.get("input_features") or {}), **(config.get("output_features") or {})}
    found: dict[str, Statistics] = {}
    for pattern, known in zip(_NORMALIZERS, (features, config.get("output_features") or {}), strict=True):
        for file in sorted(folder.glob(pattern))[:1]:
            rows = ((*key.rpartition(".")[::2], value) for key, value in _read_tensors(file))
            found |= _by_feature(known, rows)
    if found:
        return found
    if (folder / "model.safetensors").is_file():
        known = {name.replace(".", "_"): name for name in features}
        if len(known) < len(features):
            raise ValueError(f"features {', '.join(features)!r:.200} (expected names that differ by more than . and _)")
        tensors = ((_BUFFER.fullmatch(key), value) for key, value in _read_tensors(folder / "model.safetensors"))
        buffers = [(known.get(str(match[1]), str(match[1])), str(match[2]), value) for match, value in tensors if match]
        if buffers:
            return _by_feature(features, buffers)
    return _by_feature(features, ((name, key, value) for name, each in stats.items() for key, value in each.items()))


def _by_feature(features: Container[str], rows: Iterable[tuple[str, str, Any]]) -> dict[str, Statistics]:
    """Group finite statistics by feature, float32 in the fewest digits that keep them."""
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for feature, statistic, value in rows:
        if feature not in features or statistic not in _KNOWN:
            continue
        array = np.asarray(value)
        if array.size <= _MOST_COMPONENTS and array.dtype.kind in "fiu" and np.isfinite(array).all():
            found.setdefault(feature, {})[statistic] = tuple(float(str(number)) for number in array.ravel())
    return dict(found)


def _read_tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a safetensors file by name, which may be larger than the memory."""
    try:
        check_file(path, most_bytes=_MOST_MODEL_BYTES)
        with path.open("rb") as file:
            yield from read_safetensors(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).items()
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {described(error)} (expected a safetensors file)") from None
