"""What a contract's ``backends.real.reset`` says: how an episode begins on a robot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from embodied_env.contract import Contract
from embodied_env.contract.checks import check_topic, require
from embodied_env.routine import Routine, home_problems

RESET_LEVELS = ("none", "robot", "world")
"""How deep a reset goes: only the readings are new, the robot was sent home, a service was called."""


@dataclass(frozen=True, kw_only=True)
class ResetSpec:
    """How an episode begins: a service that is called once, then the way home, then a person's word; each if named."""

    service: str | None = None  # a std_srvs/Trigger
    parameters: bool = False  # the node of the service takes seed and options as parameters: an embedded simulator
    home: Mapping[str, float] | None = None  # joint -> position, rad or m
    speed: float = 0.2
    tolerance: float = 0.02
    timeout_s: float | None = None
    confirm: Literal["none", "prompt", "topic", "service"] = "none"
    confirm_topic: str | None = None
    confirm_service: str | None = None

    def routine(self) -> Routine:
        """Return what follows the service."""
        return Routine(
            home=dict(self.home or {}),
            speed=self.speed,
            tolerance=self.tolerance,
            timeout_s=self.timeout_s,
            confirm="" if self.confirm == "none" else self.confirm,
        )

    @property
    def level(self) -> str:
        """How deep the reset goes."""
        if self.service is not None:
            return "world"
        return "robot" if self.home is not None else "none"


def check_reset(spec: ResetSpec, contract: Contract, reset_timeout_s: float, path: str) -> None:
    """Raise ContractError for the first key, under `path`, whose value is not allowed."""
    for key, name in (
        ("service", spec.service),
        ("confirm_topic", spec.confirm_topic),
        ("confirm_service", spec.confirm_service),
    ):
        if name is not None:
            check_topic(f"{path}.{key}", name)
    for key, value, allowed, holds in _conditions(spec, reset_timeout_s):
        require(holds, f"{path}.{key}", f"{value} is not allowed; allowed: {allowed}")
    if spec.home is not None:
        for joint, problem in home_problems(contract, spec.home).items():
            require(False, f"{path}.home.{joint}", problem)
        require(bool(spec.home), f"{path}.home", "no joint is commanded by position: leave it out")


def _conditions(spec: ResetSpec, reset_timeout_s: float) -> Iterator[tuple[str, object, str, bool]]:
    """Yield for each value its key, itself, what is allowed, and whether it is so."""
    if spec.parameters:
        yield "parameters", "true", "with the service of a node, as <node>/<service>", "/" in (spec.service or "")
    yield "speed", spec.speed, "0 < speed <= 1, a share of the velocity limits", 0.0 < spec.speed <= 1.0
    yield "tolerance", spec.tolerance, "> 0, in the unit of each joint", spec.tolerance > 0.0
    if spec.timeout_s is not None:
        allowed = f"0 to reset_timeout_s {reset_timeout_s}, or null"
        yield "timeout_s", spec.timeout_s, allowed, 0.0 < spec.timeout_s <= reset_timeout_s
    for kind in ("topic", "service"):
        name = getattr(spec, f"confirm_{kind}")
        yield f"confirm_{kind}", repr(name), f"with confirm: {kind} only", name is None or spec.confirm == kind
