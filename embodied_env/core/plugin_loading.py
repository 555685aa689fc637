"""Load extensions, plug-ins and optional packages by name, and run foreign code."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from embodied_env.errors import ContractError, EmbodiedEnvError, MissingDependencyError, UsageError, described
from embodied_env.plugins.plugin_lookup import Plugin, get_plugin
from embodied_env.processes.signals import Terminated

if TYPE_CHECKING:
    from embodied_env.contract import Contract

PARTS: Mapping[str, str] = {  # objects of extensions that the core uses where they are installed
    "contract_init": "embodied_env.extensions.contract_init.contract_init_cli:",
    "load_team": "embodied_env.extensions.teams.team_file:load_team",
    "load_simulator_profile": "embodied_env.extensions.gazebo.external_sim_profile:load_simulator_profile",
    "simulator_profile": "embodied_env.extensions.gazebo.external_sim_profile:SimulatorProfile",
    "gazebo_version_checks": "embodied_env.extensions.gazebo.simulator_survey:version_checks",
    "survey_simulator": "embodied_env.extensions.gazebo.simulator_survey:survey_simulator",
}

_PACKAGES = {  # where the names differ
    "PIL": "pillow",
    "foxglove": "foxglove-sdk",
    "rerun": "rerun-sdk",
    "stable_baselines3": "stable-baselines3",
    "zmq": "pyzmq",
    "zstandard": "mcap",  # mcap requires it
}


def import_optional(module: str, *, needed_for: str) -> Any:  # noqa: ANN401 - a module without type information
    """Return `module`, or raise MissingDependencyError with how to install or repair it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        cause = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise MissingDependencyError(f"{_PACKAGES.get(name, name)}{cause}", needed_for=needed_for) from None


@contextmanager
def foreign_code(error_of: Callable[[str], EmbodiedEnvError]) -> Iterator[None]:
    """Convert foreign errors, `sys.exit` included, by `error_of`, and pass our own unchanged."""
    try:
        yield
    except (EmbodiedEnvError, Terminated):
        raise
    except (Exception, SystemExit) as error:  # it may raise anything
        raise error_of(described(error)) from error


def find_extension(name: str) -> Any | None:  # noqa: ANN401 - any object
    """Return the object of a name as in `pkgutil.resolve_name`, or None without its module."""
    try:
        return resolve_name(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name.partition(':')[0]}.".startswith(f"{error.name}."):
            raise  # the extension needs a missing package
        return None


def load_extension(name: str, *, needed_for: str) -> Any:  # noqa: ANN401 - any object
    """Return the object of `find_extension`, or raise MissingDependencyError."""
    if (found := find_extension(name)) is None:
        module = name.partition(":")[0]
        raise MissingDependencyError(module, needed_for=needed_for, remedy="install embodied_env with this extension")
    return found


def load_plugin(plugin: Plugin, label: str, *, error: Callable[[str], EmbodiedEnvError] = UsageError) -> Any:  # noqa: ANN401 - any object
    """Import and return the target of a plug-in, called `label` in errors.

    Raises MissingDependencyError for an extension of ours that was removed, else UsageError or `error`.
    """
    if plugin.is_built_in:
        return load_extension(plugin.target, needed_for=label)
    problem = f"{label} cannot be loaded from {plugin.target}"
    with foreign_code(lambda what: error(f"{problem}: {what}; correct or reinstall its package")):
        return resolve_name(plugin.target)


def make_plugin(contract: Contract, kind: str, name: str, parameters: Mapping[str, Any]) -> Any:  # noqa: ANN401 - foreign
    """Create the plug-in of ``safety.<kind>.<name>``, or raise ContractError if that fails."""
    path = f"safety.{kind}.{name}"

    def error_of(problem: str) -> ContractError:
        return ContractError(path, problem, source=contract.source)

    plugin = get_plugin(kind, name, error=error_of)
    factory = load_plugin(plugin, f"the plug-in {name!r}", error=error_of)
    with foreign_code(lambda what: error_of(f"{name!r} could not be created from {plugin.target}: {what}")):
        return factory(contract, **parameters)
