"""Find a running robot emulator, or start one for the time of a command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from embodied_env.contract import Contract
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.errors import BackendNotReadyError, UsageError
from embodied_env.processes.child_process import Child, simulator
from embodied_env.ros.robot.robot_profile import BACKEND, parse_real_profile
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.setup_checks import check_namespace, unique_namespace
from embodied_env.ros.wire.reset_protocol import RESET_SERVICE
from embodied_env.timing.clock import SteadyClock

SEARCH_S = 5.0
"""Default time in which the graph must show a running emulator."""

_START_S = 60.0
_NAMED = ("sensors", "actuators", "safety")  # keys of a contract in which there are names of ROS


@contextmanager
def emulator_namespace(
    contract: Contract,
    namespace: str | None,
    *,
    search_s: float = SEARCH_S,
    before_start: Callable[[str], None] = lambda _: None,
) -> Iterator[str]:
    """Yield the namespace of the running emulator, or of one that is started here and ends with the context.

    An emulator that is started has a namespace that no other process uses, so that its messages reach no driver of a
    robot. It also ends if this process is killed.

    Args:
        contract: the contract that it emulates.
        namespace: where to look for a running one, or None for the root.
        search_s: how long to look for it.
        before_start: called with a message for the user before one is started.

    Raises:
        UsageError: for an invalid namespace, and if none is running and the contract has absolute names, which no
            namespace separates.
        BackendNotReadyError: if the emulator does not start.
    """
    given = "/" if namespace is None else namespace
    check_namespace(given)
    node = RosNode("emulator_search", namespace=given, clock=SteadyClock())
    try:
        if node.wait_until(lambda: _service_of(given) in node.receiver.services(), search_s):
            yield given
            return
        if absolute := absolute_names(contract):
            command = f"embodied-env sim {contract.source or contract.name} --free-running"
            raise UsageError(f"no emulator in {given} (start it with {command}: {absolute[0]} is an absolute name)")
        own = unique_namespace()
        before_start(f"no emulator in {given}: starting one in {own}")
        spec = simulator("-", namespace=own, source=contract.source, free_running=True)
        child = Child(spec, first_line=dump_contract(contract))
        try:
            service = _service_of(own)
            node.wait_until(lambda: service in node.receiver.services() or child.exit_code is not None, _START_S)
            if child.exit_code is not None or service not in node.receiver.services():
                raise BackendNotReadyError(f"the emulator did not start: {child.stderr_tail() or 'no output'}")
            yield own
        finally:
            child.stop()
    finally:
        node.close()


def absolute_names(contract: Contract) -> list[str]:
    """Return the strings of a contract that may be absolute names of ROS, sorted, with the services of a default."""
    plain = json.loads(dump_contract(contract))
    named = [*(plain.get(key) for key in _NAMED), plain["backends"].get(BACKEND)]
    if BACKEND in contract.backends:
        named += [each.service for each in parse_real_profile(contract).active.values()]
    return sorted({text for text in _strings(named) if text.startswith("/")})


def _service_of(namespace: str) -> str:
    return f"{namespace.rstrip('/')}/{RESET_SERVICE}"


def _strings(value: Any) -> Iterator[str]:  # noqa: ANN401 - JSON types
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
