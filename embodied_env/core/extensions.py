"""Load objects of extensions and plug-ins by name, so that the core runs without an extension that was removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.plugins import Plugin, get_plugin
from embodied_env.core.foreign_code import foreign_code
from embodied_env.errors import ContractError, EmbodiedEnvError, MissingDependencyError, UsageError

PARTS: Mapping[str, str] = {
    "row_views": "embodied_env.extensions.viewers.foxglove:RowViews",
    "contract_init": "embodied_env.extensions.contract_init.contract_init_cli:",
    "load_team": "embodied_env.extensions.teams.team_file:load_team",
    "load_simulator_profile": "embodied_env.extensions.gazebo.external_sim_profile:load_simulator_profile",
    "gazebo_version_checks": "embodied_env.extensions.gazebo.gazebo_versions:version_checks",
    "survey_simulator": "embodied_env.extensions.gazebo.simulator_survey:survey_simulator",
}
"""Objects of extensions that the core uses where they are installed."""


def find_extension(name: str) -> Any | None:  # noqa: ANN401 - any object
    """Return the object at ``module:attribute``, ``module:`` itself, or None if there is no such module."""
    try:
        return resolve_name(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name.partition(':')[0]}.".startswith(f"{error.name}."):
            raise  # of a package that the extension needs
        return None


def load_extension(name: str, *, needed_for: str) -> Any:  # noqa: ANN401 - any object
    """Return the object at ``module:attribute``.

    Raises MissingDependencyError if there is no such module.
    """
    if (found := find_extension(name)) is None:
        module = name.partition(":")[0]
        raise MissingDependencyError(module, needed_for=needed_for, remedy="install embodied_env with this extension")
    return found


def load_plugin(plugin: Plugin, label: str, *, error: Callable[[str], EmbodiedEnvError] = UsageError) -> Any:  # noqa: ANN401 - any object
    """Import and return the target of a plug-in, which errors call `label`.

    Raises:
        MissingDependencyError: for one of an extension of ours that was removed.
        UsageError, or `error`: for one of another package whose import fails.
    """
    if plugin.is_built_in:
        return load_extension(plugin.target, needed_for=label)
    problem = f"{label} cannot be loaded from {plugin.target}"
    with foreign_code(lambda what: error(f"{problem}: {what}; correct or reinstall its package")):
        return resolve_name(plugin.target)


def make_plugin(contract: Contract, kind: str, name: str, parameters: Mapping[str, Any]) -> Any:  # noqa: ANN401 - foreign
    """Create the plug-in of ``safety.<kind>.<name>`` with these parameters.

    Raises ContractError if it is unknown, cannot be loaded or cannot be created.
    """
    path = f"safety.{kind}.{name}"

    def error_of(problem: str) -> ContractError:
        return ContractError(path, problem, source=contract.source)

    plugin = get_plugin(kind, name, error=error_of)
    factory = load_plugin(plugin, f"the plug-in {name!r}", error=error_of)
    with foreign_code(lambda what: error_of(f"{name!r} could not be created from {plugin.target}: {what}")):
        return factory(contract, **parameters)
