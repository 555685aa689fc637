"""The profile of a simulated world: what a contract's ``backends.<name>`` says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from embodied_env.contract import Contract
from embodied_env.contract.loader import parse_as
from embodied_env.errors import ContractError


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a sensor's reading comes from: exactly one of the keys. A JointState sensor needs none."""

    site: str | None = None  # the pose of a site in the world frame: PoseStamped, PointStamped
    distance: tuple[str, str] | None = None  # the distance between two sites: Range


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What a drawn reset option sets."""

    mocap: str  # the position of a mocap body, m


@dataclass(frozen=True, kw_only=True)
class WorldProfile:
    """A world: its model, the state it starts from, and what its names mean to the contract."""

    model: str  # a file in sim/models, or a path; a relative one starts from the contract's folder
    keyframe: str | None = None  # the state after a reset; None: the model's own
    sources: Mapping[str, Source] = field(default_factory=dict)  # by sensor
    draws: Mapping[str, Draw] = field(default_factory=dict)  # by reset option
    step_timeout_s: float = 5.0
    reset_timeout_s: float = 30.0


def load_profile(contract: Contract, backend: str) -> WorldProfile:
    """Read the profile ``backends.<backend>`` of `contract`.

    Raises:
        ContractError: when there is none, or when it has an unknown key, misses one, or has a wrong value.
    """
    path = f"backends.{backend}"
    if backend not in contract.backends:
        known = ", ".join(contract.backends) or "none"
        raise ContractError(path, f"the contract has no profile {backend!r}; it has: {known}", source=contract.source)
    profile = parse_as(WorldProfile, contract.backends[backend], path=path, source=contract.source)
    for key in ("step_timeout_s", "reset_timeout_s"):
        value = getattr(profile, key)
        if value <= 0:
            raise ContractError(
                f"{path}.{key}", f"{value} is not allowed; allowed: seconds > 0", source=contract.source
            )
    return profile
