"""The Policy protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray


class Policy(Protocol):
    """A callable from an observation to an action of the contract's action space; a plain function is one."""

    def __call__(self, observation: Mapping[str, NDArray[Any]], /) -> Any:  # noqa: ANN401 - of the action space
        """Return the action for `observation`."""
