"""Gates that weaken a command which the joint limits allow: workspace, self-collision, and those of third parties.

Each says which share of the way from braking to the proposal may be gone. A mix of two admissible velocities is
admissible, joint by joint, so no share breaks a joint limit. Nothing but the post-condition comes after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.value_checks import one_of
from embodied_env.core.codes import Severity
from embodied_env.errors import ContractError, described

GROUP = "embodied_env.gates"
"""The entry-point group of third parties' gates: name -> factory(contract, **parameters) -> Shaper."""


@dataclass(frozen=True, kw_only=True)
class ProposedCommand:
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


_MOST_DETAIL = 500  # characters of a plug-in's own text


@dataclass(frozen=True, kw_only=True)
class FilterDecision:
    """A gate's answer: LIMIT with the share in (0, 1) that may be gone, or HOLD, STOP, ESTOP."""

    severity: Severity
    share: float = 0.0
    detail: str = ""


@runtime_checkable
class CommandFilter(Protocol):
    """A gate that weakens."""

    def reset(self) -> None:
        """Begin an episode."""
        ...

    def filter(self, proposal: ProposedCommand) -> FilterDecision | None:
        """Return None to let the proposal pass."""
        ...


def load_plugin_filters(contract: Contract) -> dict[str, CommandFilter]:
    """Return the gates of third parties that `contract` names, in its order.

    Raises:
        ContractError: for a name that no installed package offers, or one whose entry point or factory fails.
    """
    wanted: Mapping[str, Mapping[str, Any]] = contract.safety.gates
    if not wanted:
        return {}
    offered = {point.name: point for point in entry_points(group=GROUP)}
    shapers: dict[str, CommandFilter] = {}
    for name, parameters in wanted.items():
        path = f"safety.gates.{name}"
        if name not in offered:
            raise ContractError(
                path, f"no installed package offers this gate: {one_of(name, offered)}", source=contract.source
            )
        try:
            shaper = offered[name].load()(contract, **parameters)
        except Exception as error:
            problem = f"the gate cannot be made from {offered[name].value}: {described(error)}"
            raise ContractError(path, problem, source=contract.source) from error
        if not isinstance(shaper, CommandFilter):
            problem = f"{offered[name].value} made a {type(shaper).__name__} (expected the methods reset and rule)"
            raise ContractError(path, problem, source=contract.source)
        shapers[name] = shaper
    return shapers


def reset_shaper(shaper: CommandFilter) -> str:
    """Reset a gate, and return why it failed, or ""."""
    try:
        shaper.reset()
    except Exception as error:  # noqa: BLE001 - as in `ask_filter`
        return f"the gate raised {type(error).__name__} from reset"
    return ""


def ask_filter(shaper: CommandFilter, proposal: ProposedCommand) -> FilterDecision:
    """Ask a gate. One that raises, or whose answer is no ruling or has no readable text, makes a STOP."""
    try:
        ruling = shaper.filter(proposal)
        if ruling is None:
            return FilterDecision(severity=Severity.PASS)
        if (
            isinstance(ruling, FilterDecision)
            and isinstance(ruling.severity, Severity)
            and isinstance(ruling.detail, str)
        ):
            detail = str.__str__(ruling.detail)[:_MOST_DETAIL].encode(errors="replace").decode()
            return FilterDecision(severity=ruling.severity, share=float(scale_of(ruling)), detail=detail)
    except Exception as error:  # noqa: BLE001 - foreign code may raise anything; the robot must brake, not crash
        return FilterDecision(severity=Severity.STOP, detail=f"the gate raised {type(error).__name__}")
    return FilterDecision(
        severity=Severity.STOP, detail=f"the gate answered with {type(ruling).__name__}, not a Ruling"
    )


def scale_of(ruling: FilterDecision) -> float:
    """Return the share that a ruling leaves: 0 unless it is a LIMIT with a share between 0 and 1."""
    is_share = isinstance(ruling.share, float) and 0.0 < ruling.share < 1.0
    return ruling.share if ruling.severity is Severity.LIMIT and is_share else 0.0
