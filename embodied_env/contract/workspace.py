"""The part of a contract that says where the robot may be: the keys of ``safety.workspace``. Lengths are in m.

Everything is in the frame of the robot's kinematic model: the world frame of its MJCF, or the root link of its URDF.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from embodied_env.contract.frozen import freeze

Point = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class BoxSpec:
    """An axis-aligned box between two corners."""

    low_m: Point
    high_m: Point


@dataclass(frozen=True, kw_only=True)
class SphereSpec:
    """A sphere."""

    center_m: Point
    radius_m: float


@dataclass(frozen=True, kw_only=True)
class CapsuleSpec:
    """All points within `radius_m` of the segment between two ends."""

    ends_m: tuple[Point, Point]
    radius_m: float


@dataclass(frozen=True, kw_only=True)
class KeepOutSpec:
    """A region that no link may enter: exactly one shape."""

    box: BoxSpec | None = None
    sphere: SphereSpec | None = None
    capsule: CapsuleSpec | None = None


@dataclass(frozen=True, kw_only=True)
class WorkspaceSpec:
    """Where the links of the robot may be.

    Every link that moves stays inside of each box of `keep_in` and outside of each region of `keep_out`, and with
    `self_collision` apart from the other links, but for those that a joint joins and the `ignore_pairs`; all of it by
    `margin_m`. `ignore_links` are not looked at. At each step a distance may shrink by no more than the share `gamma`.
    """

    keep_in: Mapping[str, BoxSpec] = field(default_factory=dict)
    keep_out: Mapping[str, KeepOutSpec] = field(default_factory=dict)
    self_collision: bool = False
    ignore_pairs: tuple[tuple[str, str], ...] = ()
    ignore_links: tuple[str, ...] = ()
    margin_m: float = 0.02
    gamma: float = 0.2

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        freeze(self, "keep_in", "keep_out", "ignore_pairs", "ignore_links")
