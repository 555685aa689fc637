"""``info`` in numbers of one fixed structure, for libraries that stack infos.

The structure is generated from the schema of info and the names of the contract, so that simulation and robot have the
same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout, field_layouts
from embodied_env.core.code_table import GATES
from embodied_env.core.code_types import end_kind
from embodied_env.core.info_schema import Schema, info_definition
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.transition_builder import Info
from embodied_env.errors import UsageError

_Path = tuple[str, ...]

_ABSENT, _ABSENT_IF_NEGATIVE = -1, -(2**63)


class NumericInfo(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Returns infos of numbers only, always with the same keys, shapes and dtypes.

    This holds for every `reset` and `step`. The wrapper must be the outermost wrapper, also outside of
    `RecordTransitions`. The keys are the paths of ``info``, such as ``"safety.code"`` and ``"sensors.joints.age_s"``,
    and depend on the contract and `evaluator_info` only, not on the backend. Values are NumPy's: scalars float64 and
    int64, and arrays in their own dtypes.

    - A float that is absent, such as a stage that is not measured or not part of a reset, is NaN.
    - A boolean is 1 or 0. Text with a fixed vocabulary is a number of `codes`; an end reason outside of it has the
      number of its kind.
    - An absent integer, boolean or code is -1, or -2**63 where -1 can be a value.
    - Other text, annotations, and keys of other wrappers are left out.

    Attributes:
        codes: the code table: key -> word -> number.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Determine the structure, or raise UsageError for a foreign environment or a vector."""
        RecordConstructorArgs.__init__(self)
        base = getattr(env, "unwrapped", None)
        if not isinstance(env, gymnasium.Env) or not isinstance(base, EmbodiedEnv):
            raise UsageError(
                f"cannot encode the infos of {type(env).__qualname__} (expected a single environment made by "
                "embodied_env); wrap each environment of a vector"
            )
        super().__init__(env)
        self._entries = {".".join(entry.path): entry for entry in _entries_of(base)}
        self.codes = {key: dict(entry.codes) for key, entry in self._entries.items() if entry.codes}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        """Reset."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._encoded(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:  # noqa: ANN401
        """Step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._encoded(info)

    def _encoded(self, info: Mapping[str, Any]) -> Info:
        encoded = {key: entry.encode(info) for key, entry in self._entries.items()}
        cast("EmbodiedEnv", self.unwrapped).mark("returned")  # the encoding is not the agent's time
        return encoded


@dataclass(frozen=True, kw_only=True)
class _Entry:
    path: _Path
    absent: Any  # a scalar or an array of NumPy
    codes: Mapping[str, int]

    def encode(self, info: Any) -> Any:  # noqa: ANN401 - JSON types and arrays
        """Return the value at the path as a new array or a scalar."""
        value = info
        for part in self.path:
            if part not in value:
                return self.absent.copy()
            value = value[part]
        if isinstance(value, str):
            value = self.codes.get(value, self.codes.get(end_kind(value), _ABSENT))
        return np.array(value, dtype=self.absent.dtype)[()]


def _codes_of(schema: Schema) -> dict[str, int]:
    coded = schema.get("items", schema)
    words = schema.get("enum", ()) if schema["dtype"] == "str" else ()
    return dict(coded.get("codes") or {word: number for number, word in enumerate(words)})


def _absent(schema: Schema) -> int:
    is_never_negative = schema["dtype"] == "bool" or schema.get("minimum", -1) >= 0
    return _ABSENT if is_never_negative or _codes_of(schema) else _ABSENT_IF_NEGATIVE


def _entries_of(env: EmbodiedEnv) -> Iterator[_Entry]:
    """Yield the fixed entries of the infos of `reset` and `step`, by the contract's names."""
    names = _Names(env)
    both = {**info_definition("reset")["properties"], **info_definition("step")["properties"]}
    for path, schema in _leaves({"properties": both}, names):
        codes = _codes_of(schema)
        if schema["dtype"] != "str" or codes:
            yield _Entry(path=path, absent=names.absent_at(path, schema), codes=codes)


def _leaves(schema: Schema, names: _Names, path: _Path = ()) -> Iterator[tuple[_Path, Schema]]:
    if "anyOf" in schema:
        per_name = [option for option in schema["anyOf"] if "patternProperties" in option and names.at(path)]
        schema = (per_name or schema["anyOf"])[0]
    if schema.get("type", "object") != "object":
        yield path, schema
    for key, value in schema.get("properties", {}).items():
        yield from _leaves(value, names, (*path, key))
    for value in schema.get("patternProperties", {}).values():
        for name in names.at(path):
            yield from _leaves(value, names, (*path, name))


class _Names:
    """The names and sizes that the schema of info leaves to the contract."""

    def __init__(self, env: EmbodiedEnv) -> None:
        self._contract: Contract = env.contract
        self._layout = layout = ActionLayout(env.contract)
        sensors = env.contract.sensors
        hidden = [name for name, sensor in sensors.items() if sensor.visibility == "evaluator"]
        options = env.contract.reset_options.items()
        actuators = layout.slices if len(layout.slices) > 1 else ()
        self._sensors = [name for name in sensors if env.evaluator_info or name not in hidden]
        self._others: dict[_Path, Iterable[str]] = {
            ("annotations",): (),  # they differ from step to step
            ("action", "requested"): actuators,
            ("action", "applied"): actuators,
            ("action", "applied_si"): layout.joints,
            ("action", "applied_driver"): layout.in_driver_units,
            ("safety", "joints"): layout.joints,
            ("task",): env.task_description["terms"] or (),  # None: the task of a replay is not trusted
            ("reset", "sampled"): [name for name, o in options if env.evaluator_info or o.visibility == "agent"],
            ("evaluator",): hidden if env.evaluator_info else (),
            **{("evaluator", name): sensors[name].fields for name in hidden},
        }

    def at(self, path: _Path) -> Iterable[str]:
        """Return the names of the entries of the mapping at `path`."""
        return self._others.get(path, self._sensors)

    def absent_at(self, path: _Path, schema: Schema) -> Any:  # noqa: ANN401 - a scalar or an array of NumPy
        """Return the value of an absent entry, with its shape and dtype."""
        match path:
            case ("evaluator", sensor, field):  # never absent
                layouts = field_layouts(sensor, self._contract.sensors[sensor])
                (layout,) = (each for each in layouts if each.field == field)
                return np.zeros(layout.shape, layout.dtype)
            case ("reset", "sampled", option):
                return np.full(self._contract.reset_options[option].low_array.shape, np.nan)[()]
        is_float = schema["dtype"] in ("float", "float64")
        dtype = schema["dtype"] if schema["shape"] else "float64" if is_float else "int64"
        shape = [self._size(name, path) for name in schema["shape"]]
        return np.full(shape, np.nan if is_float else _absent(schema), np.dtype(dtype))[()]

    def _size(self, name: str, path: _Path) -> int:
        sizes = {"n_gates": len(GATES), "n_joints": self._layout.size}
        return sizes[name] if name in sizes else len(self._contract.actuators[path[-1]].joints)
