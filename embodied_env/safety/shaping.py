"""Gates that weaken a command which the joint limits allow: workspace, self-collision, and those of third parties.

Each says which share of the way from braking to the proposal may be gone. A mix of two admissible velocities is
admissible, joint by joint, so no share breaks a joint limit. Nothing but the post-condition comes after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.checks import one_of
from embodied_env.errors import ContractError
from embodied_env.transition import Severity

GROUP = "embodied_env.gates"
"""The entry-point group of third parties' gates: name -> factory(contract, **parameters) -> Shaper."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What is about to be published, all of shape (n_joints,) in contract order, in units and units/s.

    `positions` and `previous` are those of the last published command. `velocities` is what the joint limits allow of
    the action, `braking` full braking. Arrays are read only.
    """

    joints: tuple[str, ...]
    positions: FloatArray
    previous: FloatArray
    velocities: FloatArray
    braking: FloatArray
    dt_s: float


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """A gate's answer: LIMIT with the share in (0, 1) that may be gone, or HOLD, STOP, ESTOP."""

    severity: Severity
    share: float = 0.0
    detail: str = ""


class Shaper(Protocol):
    """A gate that weakens."""

    def reset(self) -> None:
        """Begin an episode."""
        ...

    def rule(self, proposal: Proposal) -> Ruling | None:
        """Return None to let the proposal pass."""
        ...


def make_plugins(contract: Contract) -> dict[str, Shaper]:
    """Return the gates of third parties that `contract` names, in its order.

    Raises:
        ContractError: for a name that no installed package offers, or parameters that it does not take.
    """
    wanted: Mapping[str, Mapping[str, Any]] = contract.safety.gates
    if not wanted:
        return {}
    offered = {point.name: point for point in entry_points(group=GROUP)}
    shapers: dict[str, Shaper] = {}
    for name, parameters in wanted.items():
        path = f"safety.gates.{name}"
        if name not in offered:
            raise ContractError(
                path, f"no installed package offers this gate: {one_of(name, offered)}", source=contract.source
            )
        try:
            shapers[name] = offered[name].load()(contract, **parameters)
        except (TypeError, ValueError) as error:
            raise ContractError(path, f"the gate cannot be made: {error}", source=contract.source) from None
    return shapers


def ruling_of(shaper: Shaper, proposal: Proposal) -> Ruling:
    """Ask a gate. One that raises, or that answers with anything but a ruling, makes a STOP."""
    try:
        ruling = shaper.rule(proposal)
    except Exception as error:  # noqa: BLE001 - foreign code may raise anything; the robot must brake, not crash
        return Ruling(severity=Severity.STOP, detail=f"the gate raised {type(error).__name__}")
    if ruling is None:
        return Ruling(severity=Severity.PASS)
    if not isinstance(ruling, Ruling) or not isinstance(ruling.severity, Severity):
        return Ruling(severity=Severity.STOP, detail=f"the gate answered with {type(ruling).__name__}, not a Ruling")
    return ruling


def share_of(ruling: Ruling) -> float:
    """Return the share that a ruling leaves: 0 unless it is a LIMIT with a share between 0 and 1."""
    is_share = isinstance(ruling.share, float) and 0.0 < ruling.share < 1.0
    return ruling.share if ruling.severity is Severity.LIMIT and is_share else 0.0
