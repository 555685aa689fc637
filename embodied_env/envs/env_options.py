"""Check and resolve the arguments of environments, shared by single, vector and parallel ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from embodied_env.backends.backend import Backend
from embodied_env.contract import Contract, load_contract
from embodied_env.contract.argument_checks import checked_flag
from embodied_env.contract.contract_loader import SAVED, restore_contract
from embodied_env.contract.plugins import get_plugin
from embodied_env.core.extensions import load_plugin
from embodied_env.core.foreign_code import foreign_code
from embodied_env.core.types import Observer
from embodied_env.errors import UsageError

_SEED_BOUND = 2**53  # every JSON reader keeps integers below this exactly


def arguments_of(local: Mapping[str, Any], others: str) -> dict[str, Any]:
    """Return the arguments of a constructor by its `locals` at its start; `others`: its ``**`` parameter."""
    return {**{name: local[name] for name in local if name not in ("self", "__class__", others)}, **local[others]}


def rebuild(cls: Callable[..., Any], arguments: Mapping[str, Any], spec: EnvSpec | None) -> Any:  # noqa: ANN401 - `cls`
    """Return the copy of an environment, made by its constructor's arguments."""
    env = cls(**arguments)
    env.spec = spec
    return env


def resolve_contract(contract: str | Path | Contract | Mapping[str, Any]) -> Contract:
    """Return the contract of a name, a path or the mapping in the spec of an environment; raises UsageError."""
    if not isinstance(contract, Mapping):
        return load_contract(contract)
    if contract.keys() != SAVED:
        raise UsageError(f"invalid contract mapping: keys {list(contract)} (expected those of a spec of `make`)")
    return restore_contract(contract)


def check_seed(seed: object) -> None:
    """Raise Gymnasium's error for a bool, which its own check accepts, and for a negative seed."""
    if isinstance(seed, bool):
        raise gymnasium.error.Error(f"Seed must be a python integer, actual type: {type(seed)}")
    if isinstance(seed, (int, np.integer)) and seed < 0:
        raise gymnasium.error.Error(f"Seed must be greater or equal to zero, actual value: {seed}")


def draw_world_seed(generator: np.random.Generator) -> int:
    """Return the seed of the world for the next reset."""
    return int(generator.integers(_SEED_BOUND))


def ros_options(spawn: bool, namespace: str | None) -> dict[str, Any]:  # noqa: FBT001 - the user's option
    """Return the options that only some backends take, where they differ from the default."""
    options: dict[str, Any] = {} if checked_flag("spawn", spawn) else {"spawn": False}
    return options if namespace is None else {**options, "namespace": namespace}


def render_metadata(name: str, backend: Backend, contract: Contract, render_mode: str | None) -> dict[str, Any]:
    """Return the metadata for rendering; raises UsageError for a mode that the backend does not offer."""
    modes = backend.capabilities.render_modes
    if render_mode not in (None, *modes):
        expected = ", ".join(map(repr, (None, *modes)))
        raise UsageError(f"unsupported render_mode for {name}: {render_mode!r} (expected one of: {expected})")
    return {"render_modes": list(modes), "render_fps": max(1, round(1 / contract.control_period_s))}


@runtime_checkable
class View(Observer, Protocol):
    """An observer that the environment ends and closes, such as one that shows steps in a viewer."""

    def stop(self) -> None:
        """End after the steps so far. Never blocks."""

    def close(self) -> None:
        """Wait for a short time until the steps are shown. Idempotent."""


def open_observers(
    given: Iterable[str | Observer], view: object, contract: Contract, pacing: str
) -> tuple[list[Observer], list[View]]:
    """Return all observers, and those that the environment must close: those made by name, and that of a `view`.

    ``NAME`` and ``NAME:TARGET`` are those of a factory ``(target, contract, *, pacing)`` in the group
    ``embodied_env.observers``; without a target it is True. Raises UsageError for one that is none.
    """
    named: list[tuple[str, object]] = []
    for each in given:
        if isinstance(each, str):
            name, _, target = each.partition(":")
            named.append((name, target or True))
    if view is not None and view is not False:
        named.append(("rerun", view))
    opened = [_open_observer(name, target, contract, pacing) for name, target in named]
    objects = [each for each in given if not isinstance(each, str)]
    return [*objects, *opened], [each for each in opened if isinstance(each, View)]


def _open_observer(name: str, target: object, contract: Contract, pacing: str) -> Observer:
    label = f"the observer {name!r}"
    plugin = get_plugin("observers", name)
    factory = load_plugin(plugin, label)
    guard = foreign_code(lambda what: UsageError(f"{label} cannot be made: {what}"))
    with nullcontext() if plugin.is_built_in else guard:
        made = factory(target, contract, pacing=pacing)
    if not isinstance(made, Observer):
        raise UsageError(f"invalid observer {name!r}: {made!r:.80} (expected an object with a method observe)")
    return made
