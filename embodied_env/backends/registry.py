"""Backends by name and pacing: a table of lazily imported factories, extensible by entry points."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Literal, cast

from embodied_env.backends.base import Backend, BackendFactory, ContractSource
from embodied_env.backends.foreign import guard_backend
from embodied_env.contract import Contract
from embodied_env.core.clock import Clock
from embodied_env.core.extensions import load_extension
from embodied_env.core.foreign_code import foreign_code
from embodied_env.errors import UnknownOptionError, UsageError, did_you_mean

BackendName = Literal["fake", "mujoco", "mujoco_ros", "gazebo", "simulation_interfaces", "real", "replay"]
"""The backends of this package."""

BACKENDS: Mapping[str, Mapping[str, str]] = {
    "fake": {
        "lockstep": "embodied_env.backends.fake:FakeBackend",
        "realtime": "embodied_env.backends.fake:realtime_fake",
    },
    "mujoco": {
        "lockstep": "embodied_env.backends.mujoco:MujocoBackend",
        "realtime": "embodied_env.backends.mujoco_realtime:RealtimeMujocoBackend",
    },
    "mujoco_ros": {
        "lockstep": "embodied_env.ros.embedded_sim.lockstep_backend:MujocoRosBackend",
        "realtime": "embodied_env.ros.embedded_sim.realtime_backend:RealtimeMujocoRosBackend",
    },
    "gazebo": {"lockstep": "embodied_env.ros.external_sim.backend:GazeboBackend"},
    "simulation_interfaces": {"lockstep": "embodied_env.ros.external_sim.backend:SimulationInterfacesBackend"},
    "real": {"realtime": "embodied_env.ros.robot.backend:RealBackend"},
    "replay": {  # with the pacing of the run
        "lockstep": "embodied_env.backends.replay:ReplayBackend",
        "realtime": "embodied_env.backends.replay:ReplayBackend",
    },
}
"""Name -> pacing -> module:factory; the first pacing is the default.

Third parties add a `BackendFactory` in the entry-point group ``embodied_env.backends``.
"""

DELAYED_BACKENDS = ("mujoco", "mujoco_ros")
"""Backends that in lockstep inject the delays of their option `delays`."""

_PARTS = ("capabilities", "open", "reset", "send", "advance", "read", "halt", "close")  # of a backend
_NO_OPTIONS = ("clock", "pacing")  # keywords of a factory that are not user options


def make_backend(
    name: str,
    contract: Contract,
    *,
    clock: Clock,
    pacing: str | None = None,
    **options: Any,  # noqa: ANN401 - the factory declares them
) -> Backend:
    """Build the backend called `name` without starting anything. `pacing` None: its default.

    Raises:
        UsageError: for an unknown name or option, or an unsupported pacing.
        ContractError: when the contract has no valid profile for the backend.
    """
    check_options(name, options, pacing=pacing)
    factory = _factory(name, pacing)
    if pacing is not None and name not in BACKENDS and "pacing" in inspect.signature(factory).parameters:
        options["pacing"] = pacing
    if name in BACKENDS:
        return factory(contract, clock=clock, **options)
    problem = f"backend {name!r} cannot be made"
    with foreign_code(lambda what: UsageError(f"{problem}: {what}; correct its package")):
        made = factory(contract, clock=clock, **options)
        missing = [part for part in _PARTS if not hasattr(made, part)]
    if missing:
        raise UsageError(f"{problem}: {type(made).__name__} without {', '.join(missing)} (expected a Backend)")
    return cast("Backend", guard_backend(name, made))


def find_contract_of(name: str, options: Mapping[str, Any]) -> Contract:
    """Return the contract that the backend called `name` has itself; raises UsageError if it has none."""
    factory = _factory(name, None)
    if not isinstance(factory, ContractSource):
        raise UsageError(
            f"missing contract for the backend {name!r} (expected a name, a path or a Contract; optional only with "
            'backend="replay", run=...)'
        )
    return factory.find_contract(options)


def known_backends() -> list[str]:
    """Return the names of our backends and of third parties'."""
    return [*BACKENDS, *(point.name for point in entry_points(group="embodied_env.backends"))]


def unknown_backend(name: str) -> str:
    """Return the message for a backend that is not known."""
    known = known_backends()
    return f"unknown backend {name!r} (expected one of: {', '.join(known)}){did_you_mean(name, known)}"


def accepts_option(name: str, option: str, *, pacing: str | None = None) -> bool:
    """Return whether the backend called `name` has the option; raises UsageError for an unknown name or pacing."""
    return option in inspect.signature(_factory(name, pacing)).parameters


def _factory(name: str, pacing: str | None) -> BackendFactory:
    """Return the factory of the backend called `name` with this pacing; None: its default."""
    if not isinstance(name, str):
        raise UsageError(f"invalid backend: {name!r} (expected a name, one of: {', '.join(BACKENDS)})")
    if name in BACKENDS:
        offered = BACKENDS[name]
        if pacing not in (None, *offered):
            expected = ", ".join(map(repr, (None, *offered)))
            raise UsageError(f"unsupported pacing for {name}: {pacing!r} (expected one of: {expected})")
        factory = load_extension(offered[pacing or next(iter(offered))], needed_for=f"the backend {name!r}")
        return cast("BackendFactory", factory)
    others = {point.name: point for point in entry_points(group="embodied_env.backends")}
    if name not in others:
        raise UsageError(unknown_backend(name))
    problem, remedy = f"backend {name!r} cannot be loaded from {others[name].value}", "correct or reinstall its package"
    with foreign_code(lambda what: UsageError(f"{problem}: {what} (expected a callable); {remedy}")):
        factory = others[name].load()
        inspect.signature(factory)
    return cast("BackendFactory", factory)


def check_options(
    name: str, options: Mapping[str, Any], *, pacing: str | None = None, others: Iterable[str] = ()
) -> None:
    """Raise UsageError for a missing option, UnknownOptionError unless the backend called `name` accepts it.

    `others` are the options of the caller, which may be meant.
    """
    parameters = inspect.signature(_factory(name, pacing)).parameters.values()
    known = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in _NO_OPTIONS}
    if missing := [option for option, p in known.items() if p.default is p.empty and option not in options]:
        raise UsageError(f"missing option of backend {name!r}: {', '.join(missing)}")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    meant = [*known, *others]
    for option in options:
        if option not in known:
            expected = f"expected one of: {', '.join(known)}" if known else "it has no options"
            problem = f"backend {name!r} got an unexpected keyword argument {option!r}"
            raise UnknownOptionError(f"{problem} ({expected}){did_you_mean(option, meant)}")
