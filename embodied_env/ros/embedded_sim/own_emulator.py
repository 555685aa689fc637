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
from embodied_env.ros.wire.simulator_protocol import RESET_SERVICE
from embodied_env.timing.clock import SteadyClock

SEARCH_S = 5.0  # default time to look for a running emulator before one is started

_START_S = 60.0
_NAMED = ("sensors", "actuators", "safety")  # keys of a contract in which there are names of ROS


@contextmanager
def emulator_namespace(
    contract: Contract,
    namespace: str | None,
    *,
    search_s: float = SEARCH_S,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[str]:
    """Yield the namespace of the running emulator, or of one started here for the context.

    An emulator that is started has a namespace that no other process uses, so that its messages reach no driver of a
    robot. It also ends if this process is killed. On a slow machine a running one may be discovered only after the
    search, but before the one that is started, which then ends unused.

    Args:
        contract: the contract that it emulates.
        namespace: where to look for a running one, or None for the root.
        search_s: how long to look for it.
        note: called with a message for the user before one is started, and if that one is not used.

    Raises:
        UsageError: for an invalid namespace, and if none is running and the contract has absolute names, which no
            namespace separates.
        BackendNotReadyError: if the emulator does not start.
    """
    given = "/" if namespace is None else namespace
    check_namespace(given)
    node = RosNode("emulator_search", namespace=given, clock=SteadyClock())

    def is_running(namespace: str) -> bool:
        return f"{namespace.rstrip('/')}/{RESET_SERVICE}" in node.receiver.services()

    try:
        if node.wait_until(lambda: is_running(given), search_s):
            yield given
            return
        if absolute := absolute_names(contract):
            command = f"embodied-env sim {contract.source or contract.name} --free-running"
            raise UsageError(f"no emulator in {given} (start it with {command}: {absolute[0]} is an absolute name)")
        own = unique_namespace()
        note(f"no emulator in {given}: starting one in {own}")
        spec = simulator("-", namespace=own, source=contract.source, free_running=True)
        child = Child(spec, first_line=dump_contract(contract))
        try:
            node.wait_until(lambda: is_running(given) or is_running(own) or child.exit_code is not None, _START_S)
            is_late = is_running(given)
            if not is_late:
                if child.exit_code is not None or not is_running(own):
                    raise BackendNotReadyError(f"the emulator did not start: {child.stderr_tail() or 'no output'}")
                yield own
        finally:
            child.stop()
        if is_late:
            note(f"emulator found in {given} after {search_s:g} s: using it, and the one in {own} has ended")
            yield given
    finally:
        node.close()


def absolute_names(contract: Contract) -> list[str]:
    """Return the strings of a contract that may be absolute ROS names, sorted."""
    plain = json.loads(dump_contract(contract))
    named = [*(plain.get(key) for key in _NAMED), plain["backends"].get(BACKEND)]
    if BACKEND in contract.backends:
        named += [each.service for each in parse_real_profile(contract).active.values()]
    return sorted({text for text in _strings(named) if text.startswith("/")})


def _strings(value: Any) -> Iterator[str]:  # noqa: ANN401 - JSON types
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
