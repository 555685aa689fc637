"""Extensions, each of which can be removed with its tests without harm to the rest.

The core finds them by name only: as verbs (`embodied_env.cli.main`), public names (`embodied_env`), plug-ins
(`embodied_env.plugins.plugin_table`) and parts (`embodied_env.core.plugin_loading`).
"""

from __future__ import annotations

from collections.abc import Mapping

REQUIRES: Mapping[str, tuple[str, ...]] = {
    "comparison": ("report",),
    "identification": ("calibration", "report"),
    "ray": ("evaluation",),
    "report": ("audit",),
}
"""Extension -> those that it imports, which cannot be removed without it."""


def removed_with(name: str) -> list[str]:
    """Return the extension and those that cannot be used without it."""
    found = {name}
    while more := {each for each, needs in REQUIRES.items() if found & set(needs)} - found:
        found |= more
    return sorted(found)
