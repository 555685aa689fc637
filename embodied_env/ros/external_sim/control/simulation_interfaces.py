"""Any simulator with the standard services of simulation_interfaces, versions 1.0 to 2.1.

What it can do is asked of it (GetSimulatorFeatures). The standard has no seed and no length of a step. Its
StepSimulation answers when the steps are over; that of Gazebo answers when they are queued.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_env.core.clock import NS_PER_S
from embodied_env.core.types import FloatArray
from embodied_env.errors import BackendNotReadyError, MissingDependencyError, UsageError
from embodied_env.ros.external_sim.control.base import (
    ControlCapabilities,
    EntityState,
    Request,
    SimulatorRefusedError,
    write_pose,
)

PACKAGE = "simulation_interfaces"
FEATURES_SERVICE = "get_simulator_features"
FEATURES_TYPE = f"{PACKAGE}/srv/GetSimulatorFeatures"
SERVICES = {
    "set_simulation_state": f"{PACKAGE}/srv/SetSimulationState",
    "step_simulation": f"{PACKAGE}/srv/StepSimulation",
    "reset_simulation": f"{PACKAGE}/srv/ResetSimulation",
    "get_entity_state": f"{PACKAGE}/srv/GetEntityState",
    "set_entity_state": f"{PACKAGE}/srv/SetEntityState",
    "simulate_steps/_action/send_goal": f"{PACKAGE}/action/SimulateSteps_SendGoal",
}
"""Those that are used: name below the prefix -> type. The goal of an action is a service under a hidden name."""

ENTITY_STATE_GETTING, ENTITY_STATE_SETTING = 10, 11
RESET, RESET_TIME, RESET_STATE = 20, 21, 22
STATE_SETTING, STATE_PAUSE = 25, 26
STEP_SINGLE, STEP_MULTIPLE, STEP_ACTION = 31, 32, 33
PAUSED = 2
SCOPES = {"world": 255, "time": 1, "state": 2}
OK, ALREADY_IN_TARGET_STATE = 1, 101

_RESULTS = {
    0: "FEATURE_UNSUPPORTED", 2: "NOT_FOUND", 3: "INCORRECT_STATE", 4: "OPERATION_FAILED",
    102: "STATE_TRANSITION_ERROR", 103: "INCORRECT_TRANSITION",
}  # fmt: skip
_RESET_FEATURES = {"world": RESET, "time": RESET_TIME, "state": RESET_STATE}
_GAZEBO = "gzserver"  # ros_gz_sim has its services under /gzserver/<name>


class SimulationInterfaces:
    """Builds the standard requests."""

    name = "simulation_interfaces"

    def __init__(self, *, world: str, prefix: str | None) -> None:  # noqa: ARG002 - it has one world
        """See `DialectFactory`; a `prefix` of None is looked for. Raises MissingDependencyError without the package."""
        try:
            from simulation_interfaces import srv  # noqa: PLC0415 - only who speaks it needs it
        except ImportError as error:
            raise MissingDependencyError(
                f"{PACKAGE} ({error})",
                needed_for=f"the control {self.name}",
                remedy="apt install ros-$ROS_DISTRO-simulation-interfaces, and source ROS 2",
            ) from None
        self._srv = srv
        self._prefix = None if prefix is None else prefix.rstrip("/")
        self._offered: frozenset[str] = frozenset()
        self._features: frozenset[int] = frozenset()

    # ------------------------------------------------------------------------------------------ what there is

    def probe(self, offered: Mapping[str, tuple[str, ...]]) -> tuple[Request, ...]:
        """Find the simulator, and ask for its features."""
        self._prefix = _prefix_of(self._prefix, offered)
        self._offered = frozenset(
            name for name, type_name in SERVICES.items() if type_name in offered.get(f"{self._prefix}/{name}", ())
        )
        features = self._srv.GetSimulatorFeatures
        return (self._request(FEATURES_SERVICE, features, features.Request(), read=lambda reply: reply.features),)

    def learn(self, reply: Any) -> None:  # noqa: ANN401 - a SimulatorFeatures
        """Take the features; raises BackendNotReadyError for a simulator that cannot step."""
        self._features = frozenset(int(each) for each in reply.features)
        if self._step_service() is None:
            raise BackendNotReadyError(
                f"the simulator at {self._prefix or '/'} cannot step: it has the features {sorted(self._features)} and "
                f"offers {sorted(self._offered)} (expected feature {STEP_SINGLE} with step_simulation, or "
                f"{STEP_ACTION} with the action simulate_steps)"
            )

    @property
    def capabilities(self) -> ControlCapabilities:
        """What it says that it can, as far as the services for it are there."""
        levels = tuple(level for level, feature in _RESET_FEATURES.items() if self._has("reset_simulation", feature))
        return ControlCapabilities(
            pause=self._has("set_simulation_state", STATE_SETTING, STATE_PAUSE),
            reset_levels=levels,
            rewinds_time="world" in levels or "time" in levels,
            state_query=self._has("get_entity_state", ENTITY_STATE_GETTING),
            set_state=self._has("set_entity_state", ENTITY_STATE_SETTING),
        )

    def _has(self, service: str, *features: int) -> bool:
        return service in self._offered and self._features.issuperset(features)

    def _step_service(self) -> str | None:
        """The service that steps; the action only where nothing else is."""
        if self._has("step_simulation", STEP_SINGLE) or self._has("step_simulation", STEP_MULTIPLE):
            return "step_simulation"
        action = "simulate_steps/_action/send_goal"
        return action if self._has(action, STEP_ACTION) else None

    # ---------------------------------------------------------------------------------------------- requests

    def pause(self) -> Request:
        """Stand still; that it does already is no refusal."""
        message = self._srv.SetSimulationState.Request()
        message.state.state = PAUSED
        return self._request(
            "set_simulation_state", self._srv.SetSimulationState, message, read=_check_state_result, is_done=True
        )

    def step(self, steps: int) -> Request:
        """Run so many steps: by the service, or by the goal of the action, which answers when it is accepted."""
        service = self._step_service()
        if service is None:
            raise UsageError(f"{steps} steps cannot be asked for: {self._missing('step_simulation', STEP_MULTIPLE)}")
        if service == "step_simulation":
            if steps > 1 and STEP_MULTIPLE not in self._features:
                raise UsageError(
                    f"{steps} steps in one request are not allowed: the simulator lacks the feature {STEP_MULTIPLE}; "
                    "allowed: 1 (a control period of one step of physics)"
                )
            message = self._srv.StepSimulation.Request(steps=steps)
            waits = _GAZEBO not in (self._prefix or "").split("/")
            return self._request(service, self._srv.StepSimulation, message, read=_check_result, is_done=waits)
        from simulation_interfaces.action import SimulateSteps  # noqa: PLC0415 - where nothing else steps

        send_goal = SimulateSteps.Impl.SendGoalService
        message = send_goal.Request()
        message.goal_id.uuid = np.frombuffer(uuid.uuid4().bytes, dtype=np.uint8)
        message.goal.steps = steps
        return self._request(service, send_goal, message, read=_check_accepted)

    def reset(self, level: str, seed: int | None) -> Request:  # noqa: ARG002 - the standard has none
        """Reset a scope."""
        levels = self.capabilities.reset_levels
        if level not in levels:
            raise UsageError(
                f"reset {level!r} is not available with this simulator; allowed: {', '.join(levels) or 'none'}"
            )
        message = self._srv.ResetSimulation.Request(scope=SCOPES[level])
        return self._request("reset_simulation", self._srv.ResetSimulation, message, read=_check_result, is_done=True)

    def state(self, entity: str) -> Request:
        """Say where an entity is."""
        if not self.capabilities.state_query:
            missing = self._missing("get_entity_state", ENTITY_STATE_GETTING)
            raise UsageError(f"where {entity!r} is cannot be asked: {missing}")
        message = self._srv.GetEntityState.Request(entity=entity)
        return self._request("get_entity_state", self._srv.GetEntityState, message, read=_read_state)

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray) -> Request:
        """Put an entity somewhere, at rest."""
        if not self.capabilities.set_state:
            missing = self._missing("set_entity_state", ENTITY_STATE_SETTING)
            raise UsageError(f"{entity!r} cannot be put anywhere: {missing}")
        message = self._srv.SetEntityState.Request(entity=entity)
        write_pose(message.state.pose, position, orientation)
        choose_what_is_set(message)
        return self._request("set_entity_state", self._srv.SetEntityState, message, read=_check_result)

    def _missing(self, service: str, feature: int) -> str:
        return (
            f"it needs the feature {feature} and {self._prefix}/{service} ({SERVICES[service]}); there are the "
            f"features {sorted(self._features)} and {sorted(self._offered)}"
        )

    def _request(self, service: str, kind: Any, message: Any, *, read: Any, is_done: bool = False) -> Request:  # noqa: ANN401 - generated types
        name = f"{self._prefix}/{service}"
        return Request(service=name, type=kind, message=message, read=read, is_done_at_reply=is_done)


def choose_what_is_set(message: Any) -> None:  # noqa: ANN401 - a SetEntityState.Request
    """Set the pose and a twist of zero, not the acceleration. Versions without these flags always set all of it."""
    for flag, value in (("set_pose", True), ("set_twist", True), ("set_acceleration", False)):
        if hasattr(message, flag):
            setattr(message, flag, value)


def _prefix_of(prefix: str | None, offered: Mapping[str, tuple[str, ...]]) -> str:
    """Return where the simulator's services are; raises BackendNotReadyError for none, or for several."""
    ending = f"/{FEATURES_SERVICE}"
    found = sorted(
        name.removesuffix(ending) for name, types in offered.items() if FEATURES_TYPE in types and name.endswith(ending)
    )
    if prefix is not None and prefix in found:
        return prefix
    if prefix is None and len(found) == 1:
        return found[0]
    there = ", ".join(each or "/" for each in found) or "none"
    asked = "any simulator's" if prefix is None else prefix
    raise BackendNotReadyError(
        f"{asked}{ending} ({FEATURES_TYPE}) cannot be chosen; there are simulators at: {there}; allowed: one, "
        "or prefix: one of them"
    )


def _check_result(reply: Any, *also: int) -> None:  # noqa: ANN401 - a generated type
    """Raise when the result is not OK; zero, what an empty reply has, means unsupported."""
    code = int(reply.result.result)
    if code not in (OK, *also):
        raise SimulatorRefusedError(f"{_RESULTS.get(code, 'an unknown result')} ({code}): {reply.result.error_message}")


def _check_state_result(reply: Any) -> None:  # noqa: ANN401 - a generated type
    _check_result(reply, ALREADY_IN_TARGET_STATE)


def _check_accepted(reply: Any) -> None:  # noqa: ANN401 - a generated type
    if not reply.accepted:
        raise SimulatorRefusedError("the goal of simulate_steps was not accepted")


def _read_state(reply: Any) -> EntityState:  # noqa: ANN401 - a generated type
    _check_result(reply)
    state = reply.state
    stamp_ns = state.header.stamp.sec * NS_PER_S + state.header.stamp.nanosec
    return EntityState(
        position=_vector(state.pose.position, "xyz"),
        orientation=_vector(state.pose.orientation, "xyzw"),
        linear=_vector(state.twist.linear, "xyz"),
        angular=_vector(state.twist.angular, "xyz"),
        stamp_ns=stamp_ns or None,  # a stamp of zero is none
    )


def _vector(message: Any, axes: str) -> FloatArray:  # noqa: ANN401 - a generated type
    return np.array([getattr(message, axis) for axis in axes])
