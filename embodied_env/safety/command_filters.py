"""Command filters, which scale down a command within the joint limits.

Workspace, self-collision and plug-ins are filters. A filter returns the share of the motion from full braking to the
proposed command that may be executed. Each joint's admissible velocities are an interval, so a mix of two of them is
admissible and no share breaks a joint limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from embodied_env.contract import Contract, FloatArray
from embodied_env.core.code_types import Severity
from embodied_env.core.plugin_loading import load_plugin, make_plugin
from embodied_env.errors import ContractError
from embodied_env.plugins.plugin_lookup import get_plugin
from embodied_env.processes.signals import Terminated

_MAX_DETAIL = 500  # characters of a plug-in's own text


@dataclass(frozen=True, kw_only=True)
class ProposedCommand:
    """Command about to be published.

    The arrays are read-only, of shape (n_joints,), in contract order, in units and units/s. `positions` and `previous`
    are those of the last published command. `velocities` are the proposed velocities within the joint limits, `braking`
    those of full braking.
    """

    joints: tuple[str, ...]
    positions: FloatArray
    previous: FloatArray
    velocities: FloatArray
    braking: FloatArray
    dt_s: float


@dataclass(frozen=True, kw_only=True)
class FilterDecision:
    """Answer of a filter, LIMIT with the share in (0, 1) to execute, or HOLD, STOP or ESTOP."""

    severity: Severity
    share: float = 0.0
    detail: str = ""


@runtime_checkable
class CommandFilter(Protocol):
    """Scales a command down."""

    def reset(self) -> None:
        """Begin an episode."""
        ...

    def filter(self, proposal: ProposedCommand) -> FilterDecision | None:
        """Return None to let the proposal pass unchanged."""
        ...


def make_command_filters(contract: Contract, *, latency_s: float = 0.0) -> dict[str, CommandFilter]:
    """Return the command filters by name, those of ``safety.gates`` before the workspace.

    `latency_s` is the delay until a command acts.

    Raises:
        ContractError: for a filter that no installed package provides, or whose entry point or factory fails.
    """
    made = {name: make_plugin(contract, "gates", name, given) for name, given in contract.safety.gates.items()}
    for name, each in made.items():
        if not isinstance(each, CommandFilter):
            problem = f"{name} made a {type(each).__name__} (expected an object with the methods reset and filter)"
            raise ContractError(f"safety.gates.{name}", problem, source=contract.source)
    if contract.safety.workspace is not None:
        made["workspace"] = load_plugin(get_plugin("gates", "workspace"), "safety.workspace")(
            contract, latency_s=latency_s
        )
    return made


def ask_filter(command_filter: CommandFilter, proposal: ProposedCommand) -> FilterDecision:
    """Return the decision of a filter, or STOP if it raises or returns an invalid decision."""
    try:
        decision = command_filter.filter(proposal)
        if decision is None:
            return FilterDecision(severity=Severity.PASS)
        if (
            isinstance(decision, FilterDecision)
            and isinstance(decision.severity, Severity)
            and isinstance(decision.detail, str)
        ):
            detail = str.__str__(decision.detail)[:_MAX_DETAIL].encode(errors="replace").decode()
            return FilterDecision(severity=decision.severity, share=float(scale_of(decision)), detail=detail)
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of third-party code; the robot must brake, not crash
        return FilterDecision(severity=Severity.STOP, detail=f"gate raised {type(error).__name__}")
    detail = f"gate returned an invalid {type(decision).__name__} (expected None or a valid FilterDecision)"
    return FilterDecision(severity=Severity.STOP, detail=detail)


def scale_of(decision: FilterDecision) -> float:
    """Return the share to execute, 0 unless the decision is LIMIT with a share in (0, 1)."""
    is_share = isinstance(decision.share, float) and 0.0 < decision.share < 1.0
    return decision.share if decision.severity is Severity.LIMIT and is_share else 0.0
