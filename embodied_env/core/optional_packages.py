"""Import modules of optional packages."""

from __future__ import annotations

import importlib
from typing import Any

from embodied_env.errors import MissingDependencyError

_PACKAGES = {  # where the names differ
    "PIL": "pillow",
    "rerun": "rerun-sdk",
    "stable_baselines3": "stable-baselines3",
    "zmq": "pyzmq",
    "zstandard": "mcap",  # which requires it
}


def import_optional(module: str, *, needed_for: str) -> Any:  # noqa: ANN401 - a module without type information
    """Return `module`; the MissingDependencyError has the command that installs its package, or why it is broken."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        cause = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise MissingDependencyError(f"{_PACKAGES.get(name, name)}{cause}", needed_for=needed_for) from None
