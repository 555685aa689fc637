"""Check the options of environments, and complete them by their defaults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from embodied_env.backends.backend_registry import check_options
from embodied_env.contract import Contract, load_contract
from embodied_env.contract.argument_checks import checked_flag
from embodied_env.contract.contract_loader import SAVED, restore_contract
from embodied_env.envs.env_options import DEFAULTS, OPTIONS, BackendOptions, EnvOptions
from embodied_env.errors import UsageError

_FLAGS = {each.flag.lstrip("-").replace("-", "_"): name for name, each in OPTIONS.items() if each.flag}
_SEED_BOUND = 2**53  # JSON readers represent integers below this exactly


def changed_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their default, without the booleans of NumPy."""
    defaults: Mapping[str, Any] = DEFAULTS
    plain = _with_plain_flags(options).items()
    return {name: value for name, value in plain if name not in defaults or value is not defaults[name]}


def _with_plain_flags(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: bool(value) if isinstance(value, np.bool_) else value for name, value in options.items()}


def split_options(
    options: Mapping[str, Any], names: Collection[str], *, caller: str
) -> tuple[EnvOptions, dict[str, Any]]:
    """Return the environment's options with their defaults, and those of its backend.

    `names` are the options of `caller`, a public function. Raises as `check_options`.
    """
    of_backends = BackendOptions.__optional_keys__
    own = {*names} - of_backends
    of_backend = {name: value for name, value in changed_options(options).items() if name not in own}
    checked_flag("spawn", options.get("spawn", True))
    backend = options.get("backend", DEFAULTS["backend"])
    check_options(
        backend,
        of_backend,
        pacing=options.get("pacing"),
        caller=caller,
        others=own,
        of_backends=of_backends,
        flags=_FLAGS,
    )
    return cast("EnvOptions", {**DEFAULTS, **_with_plain_flags(options)}), of_backend


def rebuild(cls: Callable[..., Any], arguments: Mapping[str, Any], spec: EnvSpec | None) -> Any:  # noqa: ANN401 - `cls`
    """Make a copy of an environment from its constructor's arguments."""
    env = cls(**arguments)
    env.spec = spec
    return env


def resolve_contract(contract: str | Path | Contract | Mapping[str, Any]) -> Contract:
    """Return the contract of a name, a path or a mapping in an `EnvSpec`, or raise UsageError."""
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
