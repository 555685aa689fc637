"""Annotations of the types of ``info``, from which its schema and its documentation are generated.

In an annotation a string is the description, `Keywords` are those of JSON Schema, and `Shared` names a definition that
several keys refer to; a string after `Shared` describes that key only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from embodied_env.core.codes import Quality


@dataclass(frozen=True)
class Shared:
    """Makes the type a definition of the schema with this name."""

    name: str


class Keywords:
    """Keywords of JSON Schema, and additional ones.

    They are `dtype`, `shape`, `codes`, `gates`, `kinds`, `host` and, only over a middleware, `transport`.
    """

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - JSON types
        """Store the keywords."""
        self.values = values


@dataclass(frozen=True)
class Items:
    """The type of the items of an array."""

    type: Any


def coded(codes: Mapping[str, int]) -> Keywords:
    """Return the keywords of a number that stands for a word."""
    return Keywords(enum=list(codes.values()), codes=dict(codes))


COUNT = Keywords(minimum=0)
NUMBER_OR_NULL = {"type": ["number", "null"]}  # null: NaN in memory
OR_NULL = Keywords(**NUMBER_OR_NULL)
HOST = Keywords(host=True)  # not simulated time: in lockstep only with host_timing

Name = Annotated[str, Keywords(pattern="^[a-z][a-z0-9_]*$")]
QualityCode = Annotated[int, "How reliable a value is.", coded({q.name: q.value for q in Quality}), Shared("quality")]
