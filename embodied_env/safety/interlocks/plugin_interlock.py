"""Make the interlocks of a contract, those of other packages included."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Protocol, runtime_checkable

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.code_types import Severity
from embodied_env.core.plugin_loading import make_plugin
from embodied_env.core.types import Finding, SafetyContext
from embodied_env.errors import ContractError, escaped
from embodied_env.plugins.plugin_table import built_in_classes
from embodied_env.processes.signals import Terminated
from embodied_env.safety.interlocks.interlock import Interlock

_SEVERITIES = {Severity.PASS, Severity.HOLD, Severity.STOP, Severity.ESTOP}  # severities of a code of another package
_MOST_DETAIL = 500  # characters of the text of another package


def make_interlocks(contract: Contract, layout: ActionLayout) -> tuple[Interlock, ...]:
    """Return the interlocks of `contract` by the order of their gates, after the safety inputs.

    Those of other packages come last. Raises ContractError for one that cannot be made.
    """
    own = (each.declared_by(contract, layout) for each in built_in_classes("interlocks"))
    foreign = {
        name: make_plugin(contract, "interlocks", name, given) for name, given in contract.safety.interlocks.items()
    }
    for name, each in foreign.items():
        codes = getattr(each, "codes", None)
        severities = codes.values() if isinstance(codes, Mapping) else [None]
        if not isinstance(each, ForeignInterlock) or not _SEVERITIES.issuperset(severities):
            problem = f"{name} made a {type(each).__name__} (expected codes with severities, and reset and judge)"
            raise ContractError(f"safety.interlocks.{name}", problem, source=contract.source)
    return (*(each for each in own if each is not None), *(PluginInterlock(*pair) for pair in foreign.items()))


@runtime_checkable
class ForeignInterlock(Protocol):
    """An interlock of another package, made by its factory ``(contract, **parameters)``.

    Attributes:
        codes: severity of each of its codes: PASS reports, HOLD brakes, STOP and ESTOP are latched.
    """

    codes: Mapping[str, Severity]

    def reset(self) -> None:
        """Begin an episode."""
        ...

    def judge(self, context: SafetyContext, commanded: FloatArray) -> Mapping[str, str]:
        """Return code and detail of each condition that holds.

        `commanded` is the last published command. Both arguments are copies.
        """
        ...


class PluginInterlock(Interlock):
    """An interlock of another package, which receives copies.

    An error or an unknown code is a STOP.
    """

    def __init__(self, name: str, made: ForeignInterlock) -> None:
        self._name, self._made, self._failed = name, made, ""

    def reset(self) -> None:
        """Begin an episode."""
        self._failed = ""
        try:
            self._made.reset()
        except Terminated:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of another package; the robot must brake
            self._failed = f"interlock raised {type(error).__name__} from reset"

    def judge(self, context: SafetyContext, commanded: FloatArray) -> list[Finding]:
        """Return a finding for each code that `judge` returns."""
        try:
            found = {} if self._failed else dict(self._made.judge(deepcopy(context), commanded.copy()))
            texts = [(self._made.codes[code], f"{code}: {detail}") for code, detail in found.items()]
        except Terminated:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            texts = [(Severity.STOP, f"interlock raised {type(error).__name__}")]
        if self._failed:
            texts = [(Severity.STOP, self._failed)]
        details = [(severity, escaped(f"{self._name}: {text}"[:_MOST_DETAIL])) for severity, text in texts]
        return [Finding(gate="plugins", severity=each, code="gate.plugin", detail=detail) for each, detail in details]
