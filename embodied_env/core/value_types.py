"""Value types, dataclasses that only the type checker protects from assignments.

At run time a frozen dataclass assigns each of its fields by `object.__setattr__`, which is a sixth of the cost of a
step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as value_type
else:
    from collections.abc import Callable
    from dataclasses import dataclass

    def value_type(*, frozen: bool, slots: bool, kw_only: bool = False) -> Callable[[type], type]:
        """Return the decorator of a hashable dataclass that is `frozen` only for mypy."""
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=frozen)


__all__ = ["value_type"]
