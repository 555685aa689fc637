"""The contract block ``runner``, and the switch of controllers that it declares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

from embodied_env.contract.key_types import Topic
from embodied_env.core.contract_blocks import ContractBlock
from embodied_env.errors import BackendNotReadyError
from embodied_env.timing.clock import NS_PER_S, Clock, SteadyClock

if TYPE_CHECKING:
    from embodied_env.ros.transport.receive_thread import ReceiveThread

SWITCH_CONTROLLER = "controller_manager_msgs/srv/SwitchController"
DURATION = "builtin_interfaces/msg/Duration"

_REPEAT_NS = NS_PER_S  # of the request for the list, which changes nothing
_REPLY_NS = NS_PER_S  # in which the manager reports a switch that it gave up
_ATTEMPTS_BACK = 3  # a manager may refuse while it is busy, or its response may be lost
_PAUSE_NS = NS_PER_S // 2  # between them


@dataclass(frozen=True, kw_only=True)
class RunnerControllers:
    """The controllers of ros2_control that are switched while the runner is active."""

    activate: tuple[Topic, ...] = ()  # active while the runner is, such as the one that takes our commands
    deactivate: tuple[Topic, ...] = ()  # inactive meanwhile, such as the one that the robot boots with
    manager: Topic = "/controller_manager"  # controller manager of them
    timeout_s: Annotated[float, Interval(ge=1e-3, le=3600.0)] = 5.0  # time limit of a switch, of the manager


@dataclass(frozen=True, kw_only=True)
class RunnerBlock:
    """The keys of the block ``runner``."""

    controllers: RunnerControllers | None = None  # null: nothing is switched


BLOCK = ContractBlock(schema=RunnerBlock, in_fingerprint=False)


class NotRequestedError(BackendNotReadyError):
    """No switch was requested, so that there is nothing to switch back."""


def switch_controllers(controllers: RunnerControllers, *, back: bool = False, **node: Any) -> None:  # noqa: ANN401 - of RosNode
    """Switch all controllers or none, except those that are in their state already.

    `back` switches to the state outside of the runner, in up to three attempts. With all of them it takes at most twice
    `timeout_s` and 1 s. `node` has the options of the node that calls the services. Raises BackendNotReadyError when
    the manager refuses or does not respond, NotRequestedError when it does not list a controller, and
    MissingDependencyError without its message package.
    """
    from embodied_env.ros.transport.node import RosNode
    from embodied_env.ros.transport.receive_thread import ReceiveThread

    clock = SteadyClock()
    on, off = controllers.activate, controllers.deactivate
    if back:
        on, off = off, on
    with ExitStack() as stack:
        ros = RosNode(clock=clock, **node)
        stack.callback(ros.close)
        listener = ReceiveThread(ros.node, clock)
        stack.callback(listener.stop)
        manager = _Manager(controllers, listener, clock)
        listener.start()
        if not back:
            manager.switch(on, off)
            return
        options = [f"--{key} {' '.join(names)}" for key, names in (("deactivate", off), ("activate", on)) if names]
        command = " ".join(("ros2 control switch_controllers -c", manager.name, *options))
        repeat_switch(lambda: manager.switch(on, off), clock, manager.deadline_ns, remedy=f"run {command}")


def repeat_switch(switch: Callable[[], None], clock: Clock, deadline_ns: int, *, remedy: str) -> None:
    """Call `switch` up to three times until `deadline_ns`, while it is not ready.

    Raises BackendNotReadyError with the last problem and the remedy. NotRequestedError ends it, because the states
    were requested repeatedly.
    """
    for attempt in itertools.count(1):
        try:
            switch()
        except BackendNotReadyError as error:
            again_ns = clock.now_ns() + _PAUSE_NS
            if attempt == _ATTEMPTS_BACK or again_ns >= deadline_ns or isinstance(error, NotRequestedError):
                problem = f"controllers not switched back by attempt {attempt}: {error}; {remedy}"
                raise BackendNotReadyError(problem) from None
            clock.sleep_until_ns(again_ns)
        else:
            return


class _Manager:
    """A client of the controller manager with the absolute `name`, until `deadline_ns`."""

    def __init__(self, controllers: RunnerControllers, listener: ReceiveThread, clock: Clock) -> None:
        from embodied_env.ros.robot.robot_profile import LIST_CONTROLLERS
        from embodied_env.ros.transport.receive_thread import ServiceCaller

        self._clock, self._limit_ns = clock, round(controllers.timeout_s * NS_PER_S)
        self.deadline_ns = clock.now_ns() + 2 * self._limit_ns + _REPLY_NS  # of the states and of the switch
        self._listing = ServiceCaller(listener, f"{controllers.manager}/list_controllers", clock, LIST_CONTROLLERS)
        self._switching = ServiceCaller(listener, f"{controllers.manager}/switch_controller", clock, SWITCH_CONTROLLER)
        self.name = self._listing.name.rpartition("/")[0]

    def switch(self, on: Sequence[str], off: Sequence[str]) -> None:
        """Switch controllers, or raise BackendNotReadyError, without states NotRequestedError."""
        from embodied_env.messages.message_types import message_class

        try:
            listed = self._listing.call(self._until(self._limit_ns), _REPEAT_NS).controller
        except BackendNotReadyError as error:
            raise NotRequestedError(str(error)) from None
        states = {each.name: each.state for each in listed}
        if absent := [name for name in (*on, *off) if name not in states]:
            expected = f"expected one of: {', '.join(sorted(states)) or 'none is loaded'}"
            raise NotRequestedError(f"{self.name} has no controller {', '.join(absent)} ({expected})")
        start = [name for name in on if states[name] != "active"]
        end = [name for name in off if states[name] == "active"]
        if not (start or end):
            return
        sec, nanosec = divmod(self._limit_ns, NS_PER_S)  # 0 would be no limit
        response = self._switching.call(
            self._until(self._limit_ns + _REPLY_NS),
            activate_controllers=start,
            deactivate_controllers=end,
            strictness=2,  # STRICT
            activate_asap=True,
            timeout=message_class(DURATION)(sec=sec, nanosec=nanosec),
        )
        if not response.ok:
            wanted = f"activate {', '.join(start) or 'none'}, deactivate {', '.join(end) or 'none'}"
            why = getattr(response, "message", "") or "no reason given"  # not in every ROS 2 distribution
            raise BackendNotReadyError(f"{self.name} refused to switch controllers: {wanted} ({why})")

    def _until(self, limit_ns: int) -> int:
        return min(self._clock.now_ns() + limit_ns, self.deadline_ns)
