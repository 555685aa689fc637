"""Installed packages with entry points of this package."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, points: Mapping[str, Mapping[str, str]], **modules: str
) -> None:
    """Install `modules` by name and source, and entry points by group, such as "gates", name and target."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    (info := folder / "a_party-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-party\nVersion: 1.0\n")
    lines = [
        line
        for group, targets in points.items()
        for line in (f"[embodied_env.{group}]", *(f"{name} = {target}" for name, target in targets.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder))
