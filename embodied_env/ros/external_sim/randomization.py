"""What a reset puts where in a simulator that others wrote: drawn by our seed, for theirs is not known to be one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from embodied_env.contract import Contract
from embodied_env.core.types import FloatArray, ResetRequest
from embodied_env.ros.external_sim.profile import Place, SimulatorProfile


@dataclass(frozen=True, kw_only=True)
class RandomizedPoses:
    """Where entities are put, by name, and what was drawn or set, by reset option."""

    places: Mapping[str, Place]
    sampled: Mapping[str, FloatArray]


def placing(contract: Contract, profile: SimulatorProfile, request: ResetRequest) -> RandomizedPoses:
    """Draw every option of `contract` by the seed, so that setting one does not shift another, and place entities.

    An option that the profile does not draw is left out.
    """
    rng = np.random.default_rng(request.seed)
    places, sampled = dict(profile.entities), {}
    for name, option in sorted(contract.reset_options.items()):
        drawn = np.asarray(rng.uniform(option.low_array, option.high_array))
        if name not in profile.draws:
            continue
        value = sampled[name] = np.array(request.options.get(name, drawn), dtype=np.float64)
        draw = profile.draws[name]
        before = places.get(draw.name, Place(position=(0.0, 0.0, 0.0)))
        places[draw.name] = _upright(before, value) if draw.pose is not None else _at(before, value)
    return RandomizedPoses(places=places, sampled=sampled)


def _at(before: Place, value: FloatArray) -> Place:
    """Put the first numbers of the position."""
    given: list[float] = value.tolist()
    x, y, z = (*given, *before.position[len(given) :])
    return Place(position=(x, y, z), orientation=before.orientation)


def _upright(before: Place, value: FloatArray) -> Place:
    """Put x, y and the heading; its height stays."""
    x, y, heading_rad = value.tolist()
    turned = (0.0, 0.0, math.sin(heading_rad / 2.0), math.cos(heading_rad / 2.0))
    return Place(position=(x, y, before.position[2]), orientation=turned)
