"""Find built-in plug-ins and those of other packages by kind and name.

A built-in plug-in is a row of `BUILT_IN`. Another package declares the same name and target as an entry point of the
group ``embodied_env.<kind>``. A look-up imports no target (`embodied_env.core.plugin_loading.load_plugin` does).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from embodied_env.errors import EmbodiedEnvError, UsageError, did_you_mean
from embodied_env.plugins.plugin_table import BUILT_IN

_PACKAGE = "embodied_env"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One plug-in, not imported yet."""

    group: str  # group of its entry point
    name: str
    target: str
    package: str  # the one that registers it

    @property
    def is_built_in(self) -> bool:
        """Whether it is a row of `BUILT_IN`."""
        return self.package == _PACKAGE


def plugin_names(kind: str) -> list[str]:
    """Return the names of a kind, built-in ones first."""
    return list(dict.fromkeys([*BUILT_IN[kind], *(plugin.name for plugin in installed_plugins(kind))]))


def known_backends() -> list[str]:
    """Return the names of our backends and of third parties', without their pacings."""
    return list(dict.fromkeys(name.partition(".")[0] for name in plugin_names("backends")))


def find_plugin(kind: str, name: str) -> Plugin | None:
    """Return the plug-in of a name or None, or raise UsageError if two packages register it."""
    group = f"{_PACKAGE}.{kind}"
    own = BUILT_IN[kind].get(name)
    found = [] if own is None else [Plugin(group=group, name=name, target=own, package=_PACKAGE)]
    found += [plugin for plugin in installed_plugins(kind) if plugin.name == name]
    if len(found) > 1:
        packages = " and ".join(plugin.package for plugin in found)
        raise UsageError(f"{name!r} is registered twice in the group {group}: by {packages}; uninstall one of them")
    return found[0] if found else None


def get_plugin(kind: str, name: str, *, error: Callable[[str], EmbodiedEnvError] = UsageError) -> Plugin:
    """Return the plug-in of a name, or raise `error` for an unknown or ambiguous one."""
    try:
        found = find_plugin(kind, name)
    except UsageError as ambiguous:
        raise error(str(ambiguous)) from None
    if found is None:
        is_foreign = kind in ("gates", "interlocks")  # a contract lists those of other packages only
        known = [plugin.name for plugin in installed_plugins(kind)] if is_foreign else plugin_names(kind)
        expected = f"expected one of: {', '.join(known)}" if known else "none is installed"
        raise error(f"unknown name {name!r} ({expected}; group {_PACKAGE}.{kind}){did_you_mean(name, known)}")
    return found


def installed_plugins(kind: str) -> tuple[Plugin, ...]:
    """Return the plug-ins of other packages."""
    return _read_entry_points(tuple(map(str, sys.path)))[kind]


@functools.lru_cache(maxsize=1)
def _read_entry_points(_path: tuple[str, ...]) -> Mapping[str, tuple[Plugin, ...]]:
    """Return the plug-ins of all other installed packages by kind, which takes milliseconds."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - not needed for the built-in ones

    every, found = entry_points(), {}
    for kind in BUILT_IN:
        group = f"{_PACKAGE}.{kind}"
        found[kind] = tuple(
            Plugin(
                group=group,
                name=point.name,
                target=point.value,
                package="an unknown package" if point.dist is None else point.dist.name,
            )
            for point in every.select(group=group)
        )
    return found
