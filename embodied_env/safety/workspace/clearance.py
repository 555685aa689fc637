"""All distances of a workspace, measured at once, of which each less the margin is a *row*."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from embodied_env.contract import FloatArray, KinematicModel
from embodied_env.contract.forward_kinematics import Capsules
from embodied_env.contract.safety_schema import BoxSpec, KeepOutSpec, WorkspaceSpec
from embodied_env.contract.value_checks import one_of
from embodied_env.errors import ContractError
from embodied_env.safety.workspace.capsules import box_distance, capsule_distance, inside_distance

IndexArray = NDArray[np.intp]

_STILL = 1e-9  # m per joint unit: less than this is rotation about the capsule's own axis


@dataclass(frozen=True, kw_only=True, eq=False)
class _BoxRows:
    """Distances of capsules `links` (n,) to boxes with corners `low`, `high`, shape (n, 3)."""

    links: IndexArray
    low: FloatArray
    high: FloatArray
    names: tuple[str, ...]


class Clearances:
    """Rows of one robot, first keep-in boxes, then keep-out boxes, then pairs of capsules.

    A keep-out sphere or capsule is a fixed capsule.

    Attributes:
        names: names of the rows, such as "upper to keep_out.wall".
        levers: largest change of each row per unit of each joint, m, shape (n_rows, n_joints).
    """

    levers: FloatArray

    def __init__(
        self, spec: WorkspaceSpec, model: KinematicModel, joints: tuple[str, ...], somewhere: FloatArray, *, path: str
    ) -> None:
        """Build the rows as `Workspace` does, from any configuration `somewhere`, (n_joints,)."""
        self._model, self._margin_m = model, spec.margin_m
        self._order = np.array([joints.index(joint) for joint in model.joints], dtype=np.intp)
        shape = model.capsules(somewhere[self._order])
        alone, apart = _levers_in_order(model, self._order, len(joints), shape, path)
        checked = _checked_capsules(spec, shape.links, path)
        carried = (alone > _STILL).any(axis=1)
        movers = np.flatnonzero(carried & checked)
        if not movers.size:
            raise ContractError(path, "no joint moves a link that is checked; remove links from ignore_links")
        self._inside = _box_rows(spec.keep_in, movers, shape.links, "inside of keep_in")
        boxes = {name: region.box for name, region in spec.keep_out.items() if region.box is not None}
        self._outside = _box_rows(boxes, movers, shape.links, "to keep_out")
        names, self._fixed_ends, fixed_radii = _fixed_capsules(spec.keep_out)
        self._radii = np.concatenate([shape.radii_m, fixed_radii])
        pairs = [(i, len(shape.links) + j) for j in range(len(names)) for i in movers.tolist()]
        pairs += _own_pairs(spec, model, shape.links, apart, checked)
        self._pairs = np.array(pairs, dtype=np.intp).reshape(-1, 2)
        named = (*shape.links, *(f"keep_out.{name}" for name in names))
        self.names = [*self._inside.names, *self._outside.names, *(f"{named[i]} to {named[j]}" for i, j in pairs)]
        of_pairs = [apart[i, j] if j < len(shape.links) else alone[i] for i, j in pairs]
        self.levers = np.concatenate(
            [alone[self._inside.links], alone[self._outside.links], np.reshape(of_pairs, (-1, len(joints)))]
        )
        _check_base(spec, shape, np.flatnonzero(~carried & checked), path)

    def measure(self, positions: FloatArray, rows: IndexArray | None = None) -> FloatArray:
        """Return the distances of the rows, m, shape (k, n_rows), at positions (k, n_joints).

        `rows` selects rows by ascending index; None: all.
        """
        ends = self._model.capsules(positions[:, self._order]).ends_m
        n_in, n_boxes = len(self._inside.links), len(self._inside.links) + len(self._outside.links)
        inside: slice | IndexArray = slice(None)
        outside, pairs = inside, inside
        if rows is not None:
            first, last = np.searchsorted(rows, (n_in, n_boxes))
            inside, outside, pairs = rows[:first], rows[first:last] - n_in, rows[last:] - n_boxes
        parts = []
        if (links := self._inside.links[inside]).size:
            low, high = self._inside.low[inside], self._inside.high[inside]
            parts.append(inside_distance(ends[:, links], self._radii[links], low, high))
        if (links := self._outside.links[outside]).size:
            low, high = self._outside.low[outside], self._outside.high[outside]
            parts.append(box_distance(ends[:, links], self._radii[links], low, high))
        if (pair := self._pairs[pairs]).size:
            fixed = np.broadcast_to(self._fixed_ends, (len(ends), *self._fixed_ends.shape))
            ends = np.concatenate([ends, fixed], axis=1)
            one, other = pair[:, 0], pair[:, 1]
            parts.append(capsule_distance(ends[:, one], self._radii[one], ends[:, other], self._radii[other]))
        return np.concatenate(parts, axis=1) - self._margin_m if parts else np.zeros((len(positions), 0))


def _levers_in_order(
    model: KinematicModel, order: IndexArray, n_joints: int, shape: Capsules, path: str
) -> tuple[FloatArray, FloatArray]:
    """Return levers of capsules and pairs in joint order, or raise ContractError if unbounded."""
    levers = model.levers()
    alone = np.zeros((len(shape.links), n_joints))
    apart = np.zeros((len(shape.links), len(shape.links), n_joints))
    alone[:, order], apart[..., order] = levers.alone, levers.apart
    if not (np.isfinite(alone).all() and np.isfinite(apart).all()):
        far = sorted({link for link, lever in zip(shape.links, alone, strict=True) if not np.isfinite(lever).all()})
        problem = f"the reach of these links is unbounded: {', '.join(far)}"
        raise ContractError(path, f"{problem}; give the prismatic joints before them a range in the kinematic model")
    return alone, apart


def _checked_capsules(spec: WorkspaceSpec, links: tuple[str, ...], path: str) -> NDArray[np.bool_]:
    wanted = [(f"{path}.ignore_links[{i}]", link) for i, link in enumerate(spec.ignore_links)]
    wanted += [(f"{path}.ignore_pairs[{i}]", link) for i, pair in enumerate(spec.ignore_pairs) for link in pair]
    for where, link in wanted:
        if link not in links:
            raise ContractError(where, f"unknown link: {one_of(link, set(links))}")
    return np.array([link not in spec.ignore_links for link in links], dtype=np.bool_)


def _box_rows(boxes: Mapping[str, BoxSpec], movers: IndexArray, links: tuple[str, ...], of: str) -> _BoxRows:
    low, high = (
        np.repeat(np.reshape([getattr(box, end) for box in boxes.values()], (-1, 3)).astype(float), movers.size, axis=0)
        for end in ("low_m", "high_m")
    )
    names = tuple(f"{links[i]} {of}.{name}" for name in boxes for i in movers)
    return _BoxRows(links=np.tile(movers, len(boxes)), low=low, high=high, names=names)


def _fixed_capsules(keep_out: Mapping[str, KeepOutSpec]) -> tuple[list[str], FloatArray, FloatArray]:
    """Return names, ends (n, 2, 3) and radii (n,) of spheres and capsules to keep out of."""
    names, ends, radii = [], [], []
    for name, region in keep_out.items():
        if region.sphere is not None:
            names.append(name)
            ends.append((region.sphere.center_m, region.sphere.center_m))
            radii.append(region.sphere.radius_m)
        elif region.capsule is not None:
            names.append(name)
            ends.append(region.capsule.ends_m)
            radii.append(region.capsule.radius_m)
    return names, np.reshape(np.array(ends, dtype=np.float64), (-1, 2, 3)), np.array(radii, dtype=np.float64)


def _own_pairs(
    spec: WorkspaceSpec, model: KinematicModel, links: tuple[str, ...], apart: FloatArray, checked: NDArray[np.bool_]
) -> list[tuple[int, int]]:
    """Return the pairs of checked capsules that a joint moves relative to each other."""
    if not spec.self_collision:
        return []
    ignored = model.adjacent | {frozenset(pair) for pair in spec.ignore_pairs}
    return [
        (i, j)
        for i, j in combinations(np.flatnonzero(checked).tolist(), 2)
        if links[i] != links[j] and frozenset((links[i], links[j])) not in ignored and (apart[i, j] > _STILL).any()
    ]


def _check_base(spec: WorkspaceSpec, shape: Capsules, fixed: IndexArray, path: str) -> None:
    """Raise ContractError if a keep-out region overlaps links that no joint moves."""
    links, own_ends, own_radii = [shape.links[i] for i in fixed], shape.ends_m[fixed], shape.radii_m[fixed]
    found = []
    for name, region in spec.keep_out.items():
        if region.box is not None:
            low, high = np.array(region.box.low_m, dtype=float), np.array(region.box.high_m, dtype=float)
            distances = box_distance(own_ends, own_radii, low, high)
        else:
            _, ends, radii = _fixed_capsules({name: region})
            distances = capsule_distance(own_ends, own_radii, ends, radii)
        for link in dict.fromkeys(links):
            depth_m = -min(d for d, of in zip(distances.tolist(), links, strict=True) if of == link)
            if depth_m > 0.0:
                found.append(f"{link!r} is {depth_m:.3f} m inside {name!r}")
    if found:
        problem = f"immovable links are inside keep-out regions: {', '.join(found)}"
        raise ContractError(f"{path}.keep_out", f"{problem}; move the regions or add the links to ignore_links")
