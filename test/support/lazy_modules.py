"""Modules that are imported on first use, since every worker collects each file but only one runs it."""

import importlib


class LazyModule:
    """Import a module at the first use of one of its attributes."""

    def __init__(self, name):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("_"):  # pytest asks each object of a test file for them
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)
