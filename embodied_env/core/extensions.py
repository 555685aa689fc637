"""Objects of extensions by name: the core imports no extension, and runs without one that was removed."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from embodied_env.errors import MissingDependencyError


def find_extension(name: str) -> Any | None:  # noqa: ANN401 - any object
    """Return the object at ``module:attribute``, ``module:`` itself, or None if there is no such module."""
    try:
        return resolve_name(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name.partition(':')[0]}.".startswith(f"{error.name}."):
            raise  # of a package that the extension needs
        return None


def load_extension(name: str, *, needed_for: str) -> Any:  # noqa: ANN401 - any object
    """Return the object at ``module:attribute``; raises MissingDependencyError if there is no such module."""
    if (found := find_extension(name)) is None:
        module = name.partition(":")[0]
        raise MissingDependencyError(module, needed_for=needed_for, remedy="install embodied_env with this extension")
    return found
