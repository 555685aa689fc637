"""Statistics of training data for a policy's inputs and outputs, in numbers or in files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from mmap import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract.actuator_schema import FloatArray
from embodied_env.contract.bounded_json import parse_json
from embodied_env.contract.value_checks import allow, require
from embodied_env.errors import ContractError, described, did_you_mean
from embodied_env.policies.policy_file import MOST_DATA_BYTES, STATISTICS, NormalizeSpec, PolicyFile

_LARGEST, _NARROWEST = 1e12, 1e-12  # statistic, and divisor: products of such numbers are finite
_MOST_AXES = 8
_DEVIATION = {"mean_std": 1.0, "min_max": 12**-0.5, "quantiles": 1 / 4.653, "quantiles10": 1 / 2.563}
"""Standard deviation as a share of the second statistic, or of the width between both: of uniform or normal values."""

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}


class Normalization(NamedTuple):
    """A method of a policy file, and its two statistics."""

    method: str
    first: FloatArray
    second: FloatArray

    def deviations(self, values: FloatArray) -> FloatArray:
        """Return how many standard deviations `values` are away from the statistics."""
        method, first, second = self
        center, width = (first, second) if method == "mean_std" else ((first + second) / 2, second - first)
        found: FloatArray = np.abs(values - center) / np.maximum(width * _DEVIATION[method], _NARROWEST)
        return found


class Normalizer:
    """The normalisation of vectors along their last axis, to magnitudes of at most `clip`."""

    def __init__(self, file: PolicyFile, path: str, spec: NormalizeSpec, size: int) -> None:
        """Read the statistics of `spec` at `path`, or raise ContractError if they do not fit."""
        names = STATISTICS[spec.method]
        found = dict(zip(names, _read(file, path, spec, names), strict=True))
        for name, values in found.items():
            allow(values.size in (1, size), f"{path}.{name}", f"{values.size} values", f"{size}, one per component")
            is_moderate = bool((np.abs(values) <= _LARGEST).all())  # not NaN
            require(is_moderate, f"{path}.{name}", f"not finite, or too large (expected numbers up to {_LARGEST:g})")
        first, second = (np.broadcast_to(values.ravel(), size) for values in found.values())
        self.clip, is_standard = spec.clip, spec.method == "mean_std"
        self.deviations = Normalization(spec.method, first, second).deviations
        self._center, self._width = first, (second if is_standard else second - first) + spec.epsilon
        self._low, self._span = (0.0, 1.0) if is_standard else (spec.range[0], spec.range[1] - spec.range[0])
        if (bad := np.flatnonzero(self._width < _NARROWEST)).size:
            problem = f"{second[bad[0]]:g} of component {bad[0]}"
            expected = "above 0" if is_standard else f"above {names[0]}, {first[bad[0]]:g}"
            require(False, f"{path}.{names[1]}", f"{problem} (expected {expected}); set epsilon as in training")

    def normalize(self, values: FloatArray) -> FloatArray:
        """Return the normalised values."""
        return self._clipped((values - self._center) / self._width * self._span + self._low)

    def combine(self, gain: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return gain and bias of the unclipped normalised values of ``gain * x + bias``."""
        ratio = self._span / self._width
        return gain * ratio, (bias - self._center) * ratio + self._low

    def unnormalize(self, values: FloatArray) -> FloatArray:
        """Return the values before the normalisation."""
        return (self._clipped(values) - self._low) / self._span * self._width + self._center

    def _clipped(self, values: FloatArray) -> FloatArray:
        return values if self.clip is None else np.clip(values, -self.clip, self.clip)


def make_normalizer(file: PolicyFile, path: str, spec: NormalizeSpec | None, size: int) -> Normalizer | None:
    """Return the normalizer of an input or output at `path`, None without the key."""
    return None if spec is None else Normalizer(file, f"{path}.normalize", spec, size)


def _read(file: PolicyFile, path: str, spec: NormalizeSpec, names: tuple[str, str]) -> list[NDArray[np.float64]]:
    if spec.file is None:
        return [np.atleast_1d(np.array(getattr(spec, name), dtype=np.float64)) for name in names]
    data, wanted = file.files[spec.file], [f"{spec.key}.{name}" for name in names]
    try:
        known = read_safetensors(data) if spec.file.endswith(".safetensors") else _read_json(data)
        for name in wanted:
            require(name in known, f"{path}.key", f"no {name!r} in {spec.file}{did_you_mean(name, known)}")
        return [np.atleast_1d(np.array(known[name], dtype=np.float64)) for name in wanted]
    except ContractError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"cannot read {spec.file}: {described(error)} (expected safetensors or JSON)"
        raise ContractError(f"{path}.file", problem) from None


def _read_json(data: bytes) -> Mapping[str, Any]:
    """Return ``feature.statistic`` values of LeRobot's stats.json or openpi's norm_stats.json."""
    document = parse_json(data, max_bytes=MOST_DATA_BYTES)
    document = document.get("norm_stats", document) if isinstance(document, dict) else document
    if not isinstance(document, dict) or not all(isinstance(each, dict) for each in document.values()):
        raise ValueError("it has no statistics by feature")
    return {
        f"{key}.{name}": values  # unique, since no statistic has a dot
        for key, each in document.items()
        for name, values in each.items()
        if "." not in name
    }


def read_safetensors(data: bytes | mmap) -> Mapping[str, NDArray[Any]]:
    """Return the tensors by name of a file (8 bytes of length, a JSON header, the data)."""
    size = int.from_bytes(data[:8], "little")
    if not 2 <= size <= len(data) - 8:
        raise ValueError("it is cut off")
    header, tensors = parse_json(data[8 : 8 + size], max_bytes=MOST_DATA_BYTES), {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in _DTYPES:
            continue
        dtype, (start, end), shape = np.dtype(_DTYPES[entry["dtype"]]), entry["data_offsets"], entry["shape"]
        count = math.prod(shape) if len(shape) <= _MOST_AXES else -1
        if not 0 <= start <= end <= len(data) - 8 - size or end - start != dtype.itemsize * count:
            raise ValueError(f"tensor {name!r} has the wrong size")
        tensors[name] = np.frombuffer(data, dtype, count, 8 + size + start)
    return tensors
