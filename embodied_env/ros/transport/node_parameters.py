"""Read the parameters of other nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from embodied_env.ros.transport.receiver import Receiver

_CALL_S = 1.0  # timeout of each service call


def read_parameters(receiver: Receiver, node: str, is_wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return the parameters of a node whose names are wanted, or none without an answer."""
    from rcl_interfaces.srv import GetParameters, ListParameters  # noqa: PLC0415 - needed only here
    from rclpy.parameter import parameter_value_to_python  # noqa: PLC0415

    if not {f"{node}/list_parameters", f"{node}/get_parameters"} <= receiver.services().keys():
        return {}
    try:
        request = ListParameters.Request()
        listed = receiver.call(ListParameters, f"{node}/list_parameters", request, _CALL_S, lambda: None)
        names = [name for name in listed.result.names if is_wanted(name)]
        request = GetParameters.Request(names=names)
        found = (
            receiver.call(GetParameters, f"{node}/get_parameters", request, _CALL_S, lambda: None) if names else None
        )
    except TimeoutError:
        return {}
    values = [] if found is None else found.values
    return dict(zip(names, map(parameter_value_to_python, values), strict=False))
