"""Backends by name and pacing, also of other packages, whose errors become ours."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, cast

import gymnasium

from embodied_env.backends.backend import Backend, BackendFactory, ContractSource
from embodied_env.contract import Contract
from embodied_env.core.plugin_loading import foreign_code, load_plugin
from embodied_env.errors import (
    BackendError,
    BackendLostError,
    BackendNotReadyError,
    UnknownOptionError,
    UsageError,
    did_you_mean,
)
from embodied_env.plugins.plugin_lookup import Plugin, get_plugin, known_backends, plugin_names
from embodied_env.timing.clock import Clock

BackendName = Literal["fake", "mujoco", "mujoco_ros", "gazebo", "simulation_interfaces", "real", "replay"]
"""The backends of this package."""

DELAYED_BACKENDS = ("mujoco", "mujoco_ros")  # backends that in lockstep inject the delays of their option `delays`

_PARTS = ("capabilities", "open", "reset", "send", "advance", "read", "halt", "close")  # attributes of a backend
_NO_OPTIONS = ("clock", "pacing")  # keywords of a factory that are not user options


def make_backend(
    name: str,
    contract: Contract,
    *,
    clock: Clock,
    pacing: str | None = None,
    **options: Any,  # noqa: ANN401 - the factory declares them
) -> Backend:
    """Build the backend called `name` without starting anything.

    With `pacing` None it has its default pacing.

    Raises:
        UsageError: for an unknown name or option, or an unsupported pacing.
        ContractError: when the contract has no valid profile for the backend.
    """
    check_options(name, options, pacing=pacing)
    plugin, factory = _find(name, pacing)
    if plugin.is_built_in:
        return factory(contract, clock=clock, **options)
    if pacing is not None and "pacing" in inspect.signature(factory).parameters:
        options["pacing"] = pacing
    problem = f"backend {name!r} cannot be made"
    with foreign_code(lambda what: UsageError(f"{problem}: {what}; correct its options, or its package")):
        made = factory(contract, clock=clock, **options)
        missing = [part for part in _PARTS if not hasattr(made, part)]
    if missing:
        raise UsageError(f"{problem}: {type(made).__name__} without {', '.join(missing)} (expected a Backend)")
    return cast("Backend", guard_backend(name, made))


def find_contract_of(name: str, options: Mapping[str, Any]) -> Contract:
    """Return the contract of the backend `name` itself, or raise UsageError if it has none."""
    _, factory = _find(name, None)
    if not isinstance(factory, ContractSource):
        raise UsageError(
            f"missing contract for the backend {name!r} (expected a name, a path or a Contract; optional only with "
            'backend="replay", run=...)'
        )
    return factory.find_contract(options)


def unknown_backend(name: str) -> str:
    """Return the message for a backend that is not known."""
    known = known_backends()
    expected = f"expected one of: {', '.join(known)}; group embodied_env.backends"
    return f"unknown backend {name!r} ({expected}){did_you_mean(name, known)}"


def backend_accepts(name: str, option: str, *, pacing: str | None = None) -> bool:
    """Return whether a backend has the option, or raise UsageError for an unknown backend."""
    return option in inspect.signature(_find(name, pacing)[1]).parameters


def _find(name: str, pacing: str | None) -> tuple[Plugin, BackendFactory]:
    """Return plug-in and factory of ``NAME.PACING``, or of ``NAME`` for every pacing."""
    if not isinstance(name, str):
        raise UsageError(f"invalid backend: {name!r} (expected a name, one of: {', '.join(known_backends())})")
    names = [known for known in plugin_names("backends") if known.partition(".")[0] == name]
    offered = {known.partition(".")[2]: get_plugin("backends", known) for known in names}
    if not offered:
        raise UsageError(unknown_backend(name))
    if len(packages := sorted({plugin.package for plugin in offered.values()})) > 1:
        problem = (
            f"backend {name!r} is registered twice in the group embodied_env.backends: by {' and '.join(packages)}"
        )
        raise UsageError(f"{problem}; uninstall one of them")
    if pacing not in (None, *offered) and "" not in offered:
        expected = ", ".join(map(repr, (None, *offered)))
        raise UsageError(f"unsupported pacing for {name}: {pacing!r} (expected one of: {expected})")
    plugin = offered.get("" if pacing is None else pacing) or offered.get("") or next(iter(offered.values()))
    factory = cast("BackendFactory", load_plugin(plugin, f"the backend {name!r}"))
    if not callable(factory):
        raise UsageError(f"the backend {name!r} cannot be loaded from {plugin.target}: {factory!r:.80} is not callable")
    return plugin, factory


def check_options(
    name: str,
    options: Mapping[str, Any],
    *,
    pacing: str | None = None,
    caller: str = "",
    others: Iterable[str] = (),
    of_backends: Collection[str] = (),
    flags: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise an error for a missing option, or one that the backend does not accept.

    A missing option raises UsageError, and one that is not accepted UnknownOptionError. `others` are the options of
    `caller`, a public function, and `of_backends` those that some backends accept. `flags` has the options by their
    names on the command line.
    """
    parameters = inspect.signature(_find(name, pacing)[1]).parameters.values()
    known = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in _NO_OPTIONS}
    if missing := [option for option, p in known.items() if p.default is p.empty and option not in options]:
        raise UsageError(f"missing option of backend {name!r}: {', '.join(missing)}")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    for option in options:
        if option in known:
            continue
        if others and option not in of_backends:
            function, names, remedy = f"{caller}()", sorted({*known, *others}), ""
            if option == "record":  # gymnasium.make makes the environment alone
                remedy = "; record with embodied_env.make(..., record=FOLDER), or with RecordTransitions"
        else:
            function, names, remedy = f"backend {name!r}", list(known), "; other backends accept it"
        expected = f"expected one of: {', '.join(names)}" if names else "it has no options"
        problem = f"{function} got an unexpected keyword argument {option!r} ({expected})"
        raise UnknownOptionError(problem + (remedy or did_you_mean(option, names, flags.get(option, ""))))


_BEFORE_MOTION = ("open", "reset", "confirm", "verify")
_CALLS = frozenset(_BEFORE_MOTION) | {"send", "advance", "read", "newest", "estops", "has_arrived"}
_CALLS |= {"close", "processes", "render", "show", "observe"}


def guard_backend(name: str, world: Any) -> Any:  # noqa: ANN401 - a Backend with any abilities, or its observer
    """Return the backend with the abilities of `world`, whose errors are errors of ours.

    They are BackendNotReadyError before the robot moves, else BackendLostError; an error of `halt` is a warning. Its
    class lists the attributes of `world`, because from Python 3.12 on `isinstance` looks for abilities only there.
    """

    def read(_: object, attribute: str) -> Any:  # noqa: ANN401 - of the type that the attribute has
        value = getattr(world, attribute)
        if attribute == "observers":
            return tuple(guard_backend(name, observer) for observer in value)
        if attribute == "halt":
            return partial(_halt, name, value)
        return partial(_call, name, attribute, value) if attribute in _CALLS else value

    names = [each for each in dir(world) if not each.startswith("_")]
    members = {each: property(partial(read, attribute=each)) for each in names}
    return type("ForeignBackend", (), {**members, "__getattr__": read})()


def _call(name: str, call: str, method: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - any method
    def error_of(what: str) -> BackendError:
        problem = f"backend {name!r} failed in {call}(): {what}"
        is_lost = call not in _BEFORE_MOTION
        return BackendLostError(what.partition(":")[0], problem) if is_lost else BackendNotReadyError(problem)

    with foreign_code(error_of):
        return method(*arguments, **named)


def _halt(name: str, halt: Any, reason: str) -> None:  # noqa: ANN401 - as above
    """Halt the backend, and log its error, which must not end the braking."""
    try:
        _call(name, "halt", halt, reason)
    except BackendError as error:
        with contextlib.suppress(UserWarning):  # a warning turned into an error
            gymnasium.logger.warn(str(error))
