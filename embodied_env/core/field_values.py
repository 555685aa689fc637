"""Fields of a dataclass as a dict."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def field_values(value: DataclassInstance) -> dict[str, Any]:
    """Return field name -> value in the order of declaration; unlike `dataclasses.asdict` it copies no value."""
    return {field.name: getattr(value, field.name) for field in fields(value)}
