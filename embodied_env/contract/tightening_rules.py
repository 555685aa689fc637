"""Decide whether a contract's value of a key is as tight as that of its robot file.

A key is tightened in one direction (`AtMost`, `Within`, ...), has to stay (`Fixed`), or loosens nothing (`Free`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from embodied_env.contract.driver_units import same_lines

T = TypeVar("T")

IsAsTight = Callable[[Any, Any], bool]  # whether a contract's value (second) is as tight as its robot file's (first)


@dataclass(frozen=True)
class Rule:
    """The rule of a key, or with `is_group` of the presence of a group of keys."""

    kind: Literal["tighten", "fixed", "free"]
    is_as_tight: IsAsTight
    is_group: bool = False


def velocity_range(velocity: float | tuple[float, float] | list[float]) -> tuple[float, float]:
    """Return the lowest and the highest velocity of a limit, one speed or [low, high]."""
    if isinstance(velocity, (tuple, list)):
        low, high = velocity
        return low, high
    return -velocity, velocity


def tighten(is_as_tight: IsAsTight) -> Rule:
    """Return the rule of a key with a safe direction."""
    return Rule("tighten", is_as_tight)


def towards(safest: object) -> Rule:
    """Return the rule of a key that may change to its safest value only."""
    return tighten(lambda robot, own: own in (robot, safest))


def at_most(robot: Any, own: Any) -> bool:  # noqa: ANN401 - numbers; None: no limit
    """Accept a smaller number."""
    return robot is None or (own is not None and own <= robot)


def within(robot: Any, own: Any) -> bool:  # noqa: ANN401 - intervals; None: no limit
    """Accept a narrower interval."""
    return robot is None or (own is not None and robot[0] <= own[0] and own[1] <= robot[1])


def speeds_within(robot: Any, own: Any) -> bool:  # noqa: ANN401 - velocity limits
    """Accept a narrower interval of velocities."""
    return within(velocity_range(robot), velocity_range(own))


def boxes_within(robot: Any, own: Any) -> bool:  # noqa: ANN401 - mappings of boxes
    """Accept smaller boxes of the same names."""

    def axes(box: Any) -> Iterator[Any]:  # noqa: ANN401 - a box
        return zip(box["low_m"], box["high_m"], strict=True)

    return all(name in own and all(map(within, axes(box), axes(own[name]))) for name, box in robot.items())


def margins_as_large(robot: Any, own: Any) -> bool:  # noqa: ANN401 - margins by joint
    """Accept margins that are no looser for the joints of both."""
    pairs = [(each, own[joint]) for joint, each in robot.items() if joint in own]
    return all(ours[0] >= theirs[0] and ours[1] <= theirs[1] and ours[2] <= theirs[2] for theirs, ours in pairs)


def fields_as_tight(robot: Any, own: Any) -> bool:  # noqa: ANN401 - fields by name
    """Accept fields that replace no more missing measurements, and whose values mean the same."""
    pairs = [(each, own[name]) for name, each in robot.items() if name in own]
    keys = ("no_return", "nan", "points")
    fills_no_more = all(getattr(ours, key) in (None, getattr(each, key)) for each, ours in pairs for key in keys)
    return fills_no_more and same_lines(robot, own)


def _is_kept(robot: object, own: object) -> bool:
    return robot is None or own is not None


AtMost: TypeAlias = Annotated[T, tighten(at_most)]
AtLeast: TypeAlias = Annotated[T, tighten(operator.le)]
Within: TypeAlias = Annotated[T, tighten(within)]
Keeps: TypeAlias = Annotated[T, tighten(lambda robot, own: all(k in own and own[k] == v for k, v in robot.items()))]
"""Fixed items, besides which further ones are accepted."""

NoneBut: TypeAlias = Annotated[T, tighten(lambda robot, own: all(item in robot for item in own))]
OnceSet: TypeAlias = Annotated[T, tighten(lambda robot, own: robot in (None, own))]  # fixed unless the robot has null
Kept: TypeAlias = Annotated[T, tighten(_is_kept)]
KeptGroup: TypeAlias = Annotated[T, Rule("tighten", _is_kept, is_group=True)]
FixedGroup: TypeAlias = Annotated[T, Rule("fixed", lambda robot, own: (robot is None) == (own is None), is_group=True)]
Fixed: TypeAlias = Annotated[T, Rule("fixed", operator.eq)]
Free: TypeAlias = Annotated[T, Rule("free", lambda _robot, _own: True)]
