"""Plug-ins are found by kind and name, without importing them."""

from __future__ import annotations

import subprocess
import sys
from pkgutil import resolve_name

import pytest
from distributions import install

from embodied_env.backends.backend_registry import backend_accepts
from embodied_env.contract.contract_loader import known_robots, load_robot_file
from embodied_env.core.contract_blocks import ContractBlock
from embodied_env.core.plugin_loading import load_plugin
from embodied_env.errors import ContractError, UsageError
from embodied_env.plugins.plugin_lookup import find_plugin, get_plugin, plugin_names
from embodied_env.plugins.plugin_table import BUILT_IN


def targets():
    """Yield every target, marked by the extension it is in."""
    for target in sorted(target for table in BUILT_IN.values() for target in table.values()):
        _, place, name, *_ = f"{target}..".split(".")
        if not target.startswith("delayed_fake:"):  # of other tests, where they were imported before
            yield pytest.param(target, marks=[pytest.mark.needs(name)] if place == "extensions" else [])


@pytest.mark.parametrize("target", list(targets()))
def test_every_built_in_target_exists(target):
    pytest.importorskip("rclpy") if ".ros." in target else None
    found = resolve_name(target)
    assert callable(found) or isinstance(found, ContractBlock)


def test_names_are_those_of_this_package_and_of_others(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, {kind: {"party": "no_such_module:make"} for kind in BUILT_IN})
    for kind, table in BUILT_IN.items():
        assert plugin_names(kind) == [*table, "party"]
        assert find_plugin(kind, "party").target == "no_such_module:make"  # not imported
    assert find_plugin("gates", "unregistered") is None


def test_unknown_name_is_an_error_with_group_and_known_names():
    with pytest.raises(UsageError, match=r"unknown name 'reech' .*navigate.*group embodied_env.tasks.*'reach'"):
        get_plugin("tasks", "reech")
    with pytest.raises(ContractError, match=r"group embodied_env.robots"):
        get_plugin("robots", "x", error=lambda what: ContractError("robot", what))


def test_name_that_is_registered_twice_is_refused(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, {"exporters": {"jsonl": "a_party:Own"}})
    with pytest.raises(UsageError, match=r"'jsonl' is registered twice .*exporters: by embodied_env and a-party"):
        get_plugin("exporters", "jsonl")
    assert get_plugin("exporters", "parquet").is_built_in


def test_plug_in_that_cannot_be_imported_is_an_error_of_ours(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, {"tasks": {"party": "a_party_exits:Task"}}, a_party_exits="raise SystemExit")
    with pytest.raises(UsageError, match="the task 'party' cannot be loaded from a_party_exits:Task: SystemExit"):
        load_plugin(get_plugin("tasks", "party"), "the task 'party'")


def test_a_look_up_imports_nothing():
    script = (
        "import sys; from embodied_env.plugins.plugin_lookup import *; before = set(sys.modules);"
        "[get_plugin(kind, name) for kind in BUILT_IN for name in plugin_names(kind)];"
        "print(sorted(name for name in set(sys.modules) - before if name.startswith('embodied_env')))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_backend_of_two_packages_is_refused(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, {"backends": {"gazebo.realtime": "a_party:make"}})  # its simulator may be a robot
    with pytest.raises(UsageError, match=r"'gazebo' is registered twice .*backends: by a-party and embodied_env"):
        backend_accepts("gazebo", "spawn")
    assert backend_accepts("fake", "rate_hz") is False


def test_robot_file_of_another_package_is_found_without_importing_it(monkeypatch, tmp_path):
    (tmp_path / "a_party_of_robots" / "files").mkdir(parents=True)
    (tmp_path / "a_party_of_robots" / "__init__.py").write_text("raise SystemExit")
    robots = {"its_arm": "a_party_of_robots.files:its_arm.yaml", "ur5e": "a_party_of_robots.files:ur5e.yaml"}
    install(monkeypatch, tmp_path, {"robots": robots})
    file = tmp_path / "a_party_of_robots" / "files" / "its_arm.yaml"
    assert known_robots()["its_arm"] == file
    with pytest.raises(ContractError, match="did you mean 'its_arm'"):
        load_robot_file("its_amr")
    with pytest.raises(ContractError, match=r"'ur5e' is registered twice .*robots: by embodied_env and a-party"):
        load_robot_file("ur5e")
