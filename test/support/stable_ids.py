"""Test ids that are equal in every process, as distributed test runs need."""

import re


def stable_repr(value):
    """Return the repr of a parameter without object addresses."""
    return re.sub(r" object at 0x[0-9a-f]+", "", repr(value))
