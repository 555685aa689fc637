"""Command filters scale down a command within the joint limits: workspace, self-collision, plug-ins.

A filter returns the share of the motion from full braking to the proposed command that may be executed. Each joint's
admissible velocities are an interval, so a mix of two of them is admissible and no share breaks a joint limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.value_checks import one_of
from embodied_env.core.codes import Severity
from embodied_env.core.foreign_code import foreign_code
from embodied_env.core.process.signals import Terminated
from embodied_env.errors import ContractError

GROUP = "embodied_env.gates"
"""The entry-point group of third-party filters: name -> factory(contract, **parameters) -> CommandFilter."""

_MAX_DETAIL = 500  # characters of a plug-in's own text


@dataclass(frozen=True, kw_only=True)
class ProposedCommand:
    """The command about to be published; read-only arrays of shape (n_joints,), contract order, units and units/s.

    `positions` and `previous` are those of the last published command. `velocities` are the proposed velocities within
    the joint limits, `braking` those of full braking.
    """

    joints: tuple[str, ...]
    positions: FloatArray
    previous: FloatArray
    velocities: FloatArray
    braking: FloatArray
    dt_s: float


@dataclass(frozen=True, kw_only=True)
class FilterDecision:
    """The answer of a filter: LIMIT with the share in (0, 1) to execute, or HOLD, STOP, ESTOP."""

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


def load_plugin_filters(contract: Contract) -> dict[str, CommandFilter]:
    """Return the third-party filters of `contract`, in its order.

    Raises:
        ContractError: for a filter that no installed package provides, or whose entry point or factory fails.
    """
    wanted: Mapping[str, Mapping[str, Any]] = contract.safety.gates
    if not wanted:
        return {}
    offered = {point.name: point for point in entry_points(group=GROUP)}
    filters: dict[str, CommandFilter] = {}
    for name, parameters in wanted.items():
        path = f"safety.gates.{name}"
        if name not in offered:
            problem = f"no installed package provides this gate: {one_of(name, offered)}"
            raise ContractError(path, problem, source=contract.source)
        problem = f"gate could not be created from {offered[name].value}"
        with foreign_code(partial(_error_of, path, problem, contract.source)):
            command_filter = offered[name].load()(contract, **parameters)
        if not isinstance(command_filter, CommandFilter):
            kind = type(command_filter).__name__
            problem = f"{offered[name].value} returned a {kind} (expected an object with the methods reset and filter)"
            raise ContractError(path, problem, source=contract.source)
        filters[name] = command_filter
    return filters


def _error_of(path: str, problem: str, source: str, what: str) -> ContractError:
    return ContractError(path, f"{problem}: {what}", source=source)


def ask_filter(command_filter: CommandFilter, proposal: ProposedCommand) -> FilterDecision:
    """Return the decision of a filter; STOP if it raises or returns an invalid decision."""
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
    """Return the share to execute: 0 unless the decision is LIMIT with a share between 0 and 1."""
    is_share = isinstance(decision.share, float) and 0.0 < decision.share < 1.0
    return decision.share if decision.severity is Severity.LIMIT and is_share else 0.0
