"""The version of the package, which is also in ``setup.py`` and ``package.xml``."""

__version__ = "0.1.0"
