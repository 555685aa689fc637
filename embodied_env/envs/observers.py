"""Open the observers of an environment, and protect a step from foreign ones."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Protocol, runtime_checkable

from embodied_env.contract import Contract
from embodied_env.core.plugin_loading import foreign_code, load_plugin
from embodied_env.core.types import Observer, Transition
from embodied_env.envs.transition_builder import copy_action
from embodied_env.errors import UsageError
from embodied_env.plugins.plugin_lookup import get_plugin


@runtime_checkable
class View(Observer, Protocol):
    """An observer that the environment ends and closes, such as a viewer."""

    def stop(self) -> None:
        """End after the steps so far, without blocking."""

    def close(self) -> None:
        """Wait for a short time until the steps are shown (idempotent)."""


def open_observers(
    given: Iterable[str | Observer], view: object, contract: Contract, pacing: str
) -> tuple[list[Observer], list[View]]:
    """Return all observers, and those of them that the environment must close.

    ``NAME`` and ``NAME:TARGET`` name a factory ``(target, contract, *, pacing)`` in the group
    ``embodied_env.observers``, with the default target True. Raises UsageError if it makes no observer.
    """
    named: list[tuple[str, object]] = []
    for each in given:
        if isinstance(each, str):
            name, _, target = each.partition(":")
            named.append((name, target or True))
    if view is not None and view is not False:
        named.append(("view", view))
    opened = [_open_observer(name, target, contract, pacing) for name, target in named]
    objects = [_separated(each, type(each).__name__) for each in given if not isinstance(each, str)]
    return [*objects, *opened], [each for each in opened if isinstance(each, View)]


class _ForeignObserver:
    """A user's or another package's observer, which receives copies and is named in errors."""

    def __init__(self, observer: Observer, name: str) -> None:
        self._observer, self._name = observer, name

    def observe(self, transition: Transition) -> None:
        """Pass a copy on, because the next step judges the readings of the original."""
        action = copy_action(transition.action)
        copied = replace(deepcopy(replace(transition, action=None)), action=action)
        with self._guarded("observe"):
            self._observer.observe(copied)

    def _guarded(self, method: str) -> AbstractContextManager[None]:
        return foreign_code(lambda what: UsageError(f"observer {self._name!r} failed in {method}(): {what}"))


class _ForeignView(_ForeignObserver):
    _observer: View

    def stop(self) -> None:
        with self._guarded("stop"):
            self._observer.stop()

    def close(self) -> None:
        with self._guarded("close"):
            self._observer.close()


def _open_observer(name: str, target: object, contract: Contract, pacing: str) -> Observer:
    label = f"the observer {name!r}"
    plugin = get_plugin("observers", name)
    factory = load_plugin(plugin, label)
    guard = foreign_code(lambda what: UsageError(f"{label} cannot be made: {what}"))
    with nullcontext() if plugin.is_built_in else guard:
        made = factory(target, contract, pacing=pacing)
    if not isinstance(made, Observer):
        raise UsageError(f"invalid observer {name!r}: {made!r:.80} (expected an object with a method observe)")
    return _separated(made, name)


def _separated(observer: Observer, name: str) -> Observer:
    if type(observer).__module__.startswith("embodied_env."):
        return observer
    return _ForeignView(observer, name) if isinstance(observer, View) else _ForeignObserver(observer, name)
