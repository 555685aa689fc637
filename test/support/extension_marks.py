"""Marks that skip the tests of an extension where it was removed."""

import functools
import importlib.util
import re

import pytest

from embodied_env.cli.main import VERBS

TABLES = {  # the modules of the core that may name a module of an extension, as a string
    "__init__.py": "the lazy exports",
    "cli/main.py": "the verbs",
    "plugins/plugin_table.py": "the plug-ins",
    "core/plugin_loading.py": "the parts that the core uses where they are installed",
}


@functools.cache
def is_installed(extension):
    return importlib.util.find_spec(f"embodied_env.extensions.{extension}") is not None


def was_removed(place):
    """Return whether a module, or a file below the package or the tests, is of an extension that was removed."""
    found = re.search(r"\bextensions[./](\w+)", place)
    return found is not None and not is_installed(found[1])


def needing(*words):
    """Return the marks of a test that runs this command line, whose verb or backend may belong to an extension."""
    if words[:2] == ("contract", "init"):
        return [pytest.mark.needs("contract_init")]
    places = VERBS[words[0]].module.split(".") if words and words[0] in VERBS else []
    names = [*(places[1:2] if "extensions" in places else []), *(["replay"] if "replay" in words[1:] else [])]
    return [pytest.mark.needs(name) for name in names]
