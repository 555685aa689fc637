"""Read-only mappings, so that a frozen dataclass is frozen all the way down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(Mapping[K, V]):
    """A read-only mapping that keeps its order, pickles, copies and hashes. Between two of them order counts."""

    __slots__ = ("_data",)

    def __init__(self, data: Mapping[K, V]) -> None:
        """Copy `data`."""
        self._data = dict(data)

    def __getitem__(self, key: K) -> V:
        """Return the value of `key`."""
        return self._data[key]

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys in their written order."""
        return iter(self._data)

    def __len__(self) -> int:
        """Count the keys."""
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        """Compare like OrderedDict: with another FrozenDict in order, with any other mapping without."""
        if isinstance(other, FrozenDict):
            return list(self.items()) == list(other.items())
        return super().__eq__(other)

    def __hash__(self) -> int:
        """Hash the items, whatever their order, so that equal mappings hash alike."""
        return hash(frozenset(self._data.items()))

    def __repr__(self) -> str:
        """Look like a dict."""
        return repr(self._data)


def frozen(value: Any) -> Any:  # noqa: ANN401 - any value of a contract
    """Return `value` with its mappings and lists made read-only, all the way down."""
    if isinstance(value, Mapping):
        return FrozenDict({key: frozen(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item) for item in value)
    return value


def freeze(instance: object, *names: str) -> None:
    """Make these attributes of a frozen dataclass read-only, all the way down."""
    for name in names:
        object.__setattr__(instance, name, frozen(getattr(instance, name)))
