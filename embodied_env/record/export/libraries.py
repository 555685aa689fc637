"""The libraries that exports are written with, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from embodied_env.errors import MissingDependencyError

_EXTRAS = {"pyarrow": "export", "minari": "export", "PIL": "images"}


def library(module: str, *, needed_for: str) -> Any:  # noqa: ANN401 - a module without type information
    """Return `module`, imported.

    Raises:
        MissingDependencyError: when it is not installed; with the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        name = {"PIL": "pillow"}.get(package, package)
        remedy = f'pip install "embodied_env[{_EXTRAS[package]}]"'
        raise MissingDependencyError(name, needed_for=needed_for, remedy=remedy) from None
