"""Encode and decode messages by byte layout instead of field by field.

Set the environment variable `EMBODIED_ENV_PLAIN_SERIALIZATION` to 1 to use rclpy instead: the same messages, slower.
"""

from __future__ import annotations

import os

PLAIN_VARIABLE = "EMBODIED_ENV_PLAIN_SERIALIZATION"


def uses_byte_layouts() -> bool:
    """Return whether layouts and templates are enabled; read when a decoder or template is created."""
    return os.environ.get(PLAIN_VARIABLE, "") in ("", "0")
