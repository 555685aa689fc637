"""The version of the package; ``setup.py`` and ``package.xml`` carry the same."""

__version__ = "0.1.0"
