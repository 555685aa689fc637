"""Read-only mappings, so that a frozen dataclass is immutable at every level."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(Mapping[K, V]):
    """A read-only mapping that pickles and hashes, and equals another in the same order."""

    __slots__ = ("_data",)

    def __init__(self, data: Mapping[K, V]) -> None:
        """Copy `data`."""
        self._data = dict(data)

    def __getitem__(self, key: K) -> V:
        return self._data[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:  # as OrderedDict does
        if isinstance(other, FrozenDict):
            return list(self.items()) == list(other.items())
        return super().__eq__(other)

    def __hash__(self) -> int:  # independent of the order, since equal mappings must hash alike
        return hash(frozenset(self._data.items()))

    def __repr__(self) -> str:
        return repr(self._data)


class FrozenFields:
    """Base of frozen dataclasses that makes the mappings and lists in their fields read-only."""

    def __post_init__(self) -> None:
        """Freeze every field."""
        freeze(self, *(field.name for field in dataclasses.fields(self)))  # type: ignore[arg-type] # subclasses are


def frozen(value: Any) -> Any:  # noqa: ANN401 - any value of a contract
    """Return `value` with its mappings and lists made read-only, at every level."""
    if isinstance(value, FrozenDict):
        return value
    if isinstance(value, Mapping):
        return FrozenDict({key: frozen(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item) for item in value)
    return value


def freeze(instance: object, *names: str) -> None:
    """Make these attributes of a frozen dataclass read-only, at every level."""
    for name in names:
        object.__setattr__(instance, name, frozen(getattr(instance, name)))
