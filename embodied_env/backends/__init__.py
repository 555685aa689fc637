"""Backends by name: a table of lazily imported factories, open to others by entry point."""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import entry_points
from typing import Any, cast

from embodied_env.backends.base import Backend, BackendFactory, Capabilities
from embodied_env.clock import Clock
from embodied_env.contract import Contract
from embodied_env.errors import UsageError

BACKENDS = {
    "fake": "embodied_env.backends.fake:FakeBackend",
    "mujoco": "embodied_env.backends.mujoco:MujocoBackend",
    "mujoco_ros": "embodied_env.backends.ros.mujoco_ros:MujocoRosBackend",
    "real": "embodied_env.backends.ros.real:RealBackend",
}
"""Name -> module:factory. Third parties add one by the entry-point group ``embodied_env.backends``."""

__all__ = ["BACKENDS", "Backend", "BackendFactory", "Capabilities", "make_backend", "offers_option"]


def make_backend(name: str, contract: Contract, *, clock: Clock, **options: Any) -> Backend:  # noqa: ANN401
    """Build the backend called `name`; nothing is started.

    Raises:
        UsageError: for an unknown name or option.
        ContractError: when the contract has no profile for it, or a wrong one.
    """
    factory = _factory(name)
    _check_options(name, factory, options)
    return factory(contract, clock=clock, **options)


def offers_option(name: str, option: str) -> bool:
    """Say whether the backend called `name` declares the option; raises UsageError for an unknown name."""
    return option in inspect.signature(_factory(name)).parameters


def _factory(name: str) -> BackendFactory:
    if name in BACKENDS:
        module, _, attribute = BACKENDS[name].partition(":")
        return cast("BackendFactory", getattr(importlib.import_module(module), attribute))
    others = {point.name: point for point in entry_points(group="embodied_env.backends")}
    if name not in others:
        raise UsageError(f"backend {name!r} is not known; allowed: {', '.join([*BACKENDS, *others])}")
    return cast("BackendFactory", others[name].load())


def _check_options(name: str, factory: BackendFactory, options: dict[str, Any]) -> None:
    """Refuse an option that the factory does not declare, unless it declares that it takes any."""
    parameters = inspect.signature(factory).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "clock"]
    for option in options:
        if option not in known:
            raise UsageError(f"backend {name!r} has no option {option!r}; allowed: {', '.join(known) or 'none'}")
