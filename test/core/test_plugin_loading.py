import sys

import pytest

from embodied_env.cli import UNSOUND
from embodied_env.cli.main import VERBS, Verb, main
from embodied_env.core.plugin_loading import find_extension, load_extension
from embodied_env.errors import MissingDependencyError


@pytest.fixture
def packages(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "extension_with_need.py").write_text("import package_that_is_not_there\n")


def test_object_of_an_extension_is_found():
    assert find_extension("embodied_env.core.plugin_loading:find_extension") is find_extension


@pytest.mark.parametrize("module", ["embodied_env.no_such", "embodied_env.no_such.module", "embodied_env.core.no_such"])
def test_removed_extension_is_named(module):
    assert find_extension(f"{module}:thing") is None
    with pytest.raises(MissingDependencyError, match=f"^a view needs {module}, which is not installed; install"):
        load_extension(f"{module}:thing", needed_for="a view")


def test_missing_package_of_an_extension_is_no_removed_extension(packages):
    with pytest.raises(ModuleNotFoundError, match="package_that_is_not_there"):
        find_extension("extension_with_need:thing")


def test_verb_of_a_removed_extension_is_named_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(VERBS, "gone", Verb("extensions.gone.gone_cli", "do nothing"))
    assert main(["gone", "--help"]) == UNSOUND
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "embodied-env: error: the verb 'gone' needs embodied_env.extensions.gone.gone_cli, which is not installed; "
    )
