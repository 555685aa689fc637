"""Any simulator with the standard services of simulation_interfaces, versions 1.0 to 2.1.

The simulator reports its features (GetSimulatorFeatures). The standard has no seed and no step length. StepSimulation
replies when the steps are over; Gazebo replies when they are queued.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from embodied_env.core.types import FloatArray
from embodied_env.errors import BackendNotReadyError, UsageError
from embodied_env.extensions.gazebo.control.simulator_api import (
    ControlCapabilities,
    EntityState,
    Request,
    SimulatorApi,
    SimulatorRefusedError,
    write_pose,
)
from embodied_env.messages.message_types import message_class

PACKAGE = "simulation_interfaces"
FEATURES_SERVICE = "get_simulator_features"
STEP_GOAL_SERVICE = "simulate_steps/_action/send_goal"  # a hidden service sends the goal of an action
SERVICES = {
    FEATURES_SERVICE: f"{PACKAGE}/srv/GetSimulatorFeatures",
    "set_simulation_state": f"{PACKAGE}/srv/SetSimulationState",
    "step_simulation": f"{PACKAGE}/srv/StepSimulation",
    "reset_simulation": f"{PACKAGE}/srv/ResetSimulation",
    "get_entity_state": f"{PACKAGE}/srv/GetEntityState",
    "set_entity_state": f"{PACKAGE}/srv/SetEntityState",
    STEP_GOAL_SERVICE: f"{PACKAGE}/action/SimulateSteps_SendGoal",
}
"""Types of the services in use, by name below the prefix."""

ENTITY_STATE_GETTING, ENTITY_STATE_SETTING = 10, 11
RESET = 20
STATE_SETTING, STATE_PAUSE = 25, 26
STEP_SINGLE, STEP_MULTIPLE, STEP_ACTION = 31, 32, 33
PAUSED = 2
SCOPE_ALL = 255
OK, ALREADY_IN_TARGET_STATE = 1, 101

_RESULTS = {
    0: "FEATURE_UNSUPPORTED", 2: "NOT_FOUND", 3: "INCORRECT_STATE", 4: "OPERATION_FAILED",
    102: "STATE_TRANSITION_ERROR", 103: "INCORRECT_TRANSITION",
}  # fmt: skip
_GAZEBO = "gzserver"  # ros_gz_sim has its services under /gzserver/<name>


class SimulationInterfaces(SimulatorApi):
    """Builds the standard requests."""

    name = "simulation_interfaces"
    capabilities = ControlCapabilities()

    def __init__(self, *, world: str, prefix: str | None) -> None:  # noqa: ARG002 - it has one world
        """Prepare requests at `prefix`, by default the only one, or raise MissingDependencyError."""
        message_class(SERVICES[FEATURES_SERVICE])
        self._prefix = None if prefix is None else prefix.rstrip("/")
        self._offered: frozenset[str] = frozenset()
        self._features: frozenset[int] = frozenset()
        self._steps_by_action = False

    # ------------------------------------------------------------------------------------------ capabilities

    def probe(self, offered: Mapping[str, tuple[str, ...]]) -> tuple[Request, ...]:
        """Find the simulator, and return the request for its features.

        Raises:
            BackendNotReadyError: for no simulator or several; its `Request.read`: for one that cannot step.
        """
        self._prefix = _prefix_of(self._prefix, offered)
        self._offered = frozenset(
            name for name, type_name in SERVICES.items() if type_name in offered.get(f"{self._prefix}/{name}", ())
        )
        return (self._request(FEATURES_SERVICE, self._store_features),)

    def _store_features(self, reply: Any) -> None:  # noqa: ANN401 - a generated type
        self._features = frozenset(int(each) for each in reply.features.features)
        steps = self._has("step_simulation", STEP_SINGLE) or self._has("step_simulation", STEP_MULTIPLE)
        self._steps_by_action = not steps
        if not steps and not self._has(STEP_GOAL_SERVICE, STEP_ACTION):
            raise BackendNotReadyError(
                f"the simulator at {self._prefix or '/'} cannot step: features {sorted(self._features)}, "
                f"services {sorted(self._offered)} (expected feature {STEP_SINGLE} with step_simulation, or "
                f"{STEP_ACTION} with the action simulate_steps)"
            )
        has_reset = self._has("reset_simulation", RESET)
        self.capabilities = ControlCapabilities(
            pause=self._has("set_simulation_state", STATE_SETTING, STATE_PAUSE),
            reset=has_reset,
            rewinds_time=has_reset,
            state_query=self._has("get_entity_state", ENTITY_STATE_GETTING),
            set_state=self._has("set_entity_state", ENTITY_STATE_SETTING),
        )

    def _has(self, service: str, *features: int) -> bool:
        return service in self._offered and self._features.issuperset(features)

    # ---------------------------------------------------------------------------------------------- requests

    def pause(self) -> Request:
        """Return the pause request, whose reply may report that the simulator is paused already."""
        read = partial(_check_result, also=ALREADY_IN_TARGET_STATE)
        request = self._request("set_simulation_state", read, is_done=True)
        request.message.state.state = PAUSED
        return request

    def step(self, steps: int) -> Request:
        """Return the request for `steps`, or else a goal of the action, which is only accepted."""
        if self._steps_by_action:
            send_goal = message_class(f"{PACKAGE}/action/SimulateSteps").Impl.SendGoalService
            message = send_goal.Request()
            message.goal_id.uuid = np.frombuffer(uuid.uuid4().bytes, dtype=np.uint8)
            message.goal.steps = steps
            name = f"{self._prefix}/{STEP_GOAL_SERVICE}"
            return Request(service=name, type=send_goal, message=message, read=_check_accepted)
        if steps > 1 and STEP_MULTIPLE not in self._features:
            raise UsageError(
                f"too many steps in one request: {steps} (expected 1, since the simulator lacks the feature "
                f"{STEP_MULTIPLE}); set step_s to the control period"
            )
        waits = _GAZEBO not in (self._prefix or "").split("/")
        return self._request("step_simulation", _check_result, is_done=waits, steps=steps)

    def reset(self) -> Request:
        """Return the request for a reset of the world."""
        return self._request("reset_simulation", _check_result, is_done=True, scope=SCOPE_ALL)

    def state(self, entity: str) -> Request:
        """Return the request for the pose of an entity."""
        return self._request("get_entity_state", _read_state, entity=entity)

    def set_state(self, entity: str, position: FloatArray, orientation: FloatArray) -> Request:
        """Return the request that places an entity, at rest."""
        request = self._request("set_entity_state", _check_result, entity=entity)
        write_pose(request.message.state.pose, position, orientation)
        set_state_flags(request.message)
        return request

    def _request(self, service: str, read: Callable[[Any], Any], *, is_done: bool = False, **fields: Any) -> Request:  # noqa: ANN401 - generated types
        kind = message_class(SERVICES[service])
        message = kind.Request(**fields)
        name = f"{self._prefix}/{service}"
        return Request(service=name, type=kind, message=message, read=read, is_done_at_reply=is_done)


def set_state_flags(message: Any) -> None:  # noqa: ANN401 - a SetEntityState.Request
    """Set the pose and zero twist, but not the acceleration, in versions with flags."""
    for flag, value in (("set_pose", True), ("set_twist", True), ("set_acceleration", False)):
        if hasattr(message, flag):
            setattr(message, flag, value)


def _prefix_of(prefix: str | None, offered: Mapping[str, tuple[str, ...]]) -> str:
    """Return the services' prefix, or raise BackendNotReadyError for none or several."""
    kind, suffix = SERVICES[FEATURES_SERVICE], f"/{FEATURES_SERVICE}"
    found = sorted(
        name.removesuffix(suffix) for name, types in offered.items() if kind in types and name.endswith(suffix)
    )
    if prefix is not None and prefix in found:
        return prefix
    if prefix is None and len(found) == 1:
        return found[0]
    available = ", ".join(each or "/" for each in found) or "none"
    wanted = "exactly one" if prefix is None else prefix
    raise BackendNotReadyError(
        f"simulators with {FEATURES_SERVICE}: {available} (expected {wanted}); set prefix to the one to use"
    )


def _check_result(reply: Any, *, also: int = OK) -> None:  # noqa: ANN401 - a generated type
    """Raise unless the result is OK, where 0, as in an empty reply, means unsupported."""
    code = int(reply.result.result)
    if code not in (OK, also):
        raise SimulatorRefusedError(f"{_RESULTS.get(code, 'unknown result')} ({code}): {reply.result.error_message}")


def _check_accepted(reply: Any) -> None:  # noqa: ANN401 - a generated type
    if not reply.accepted:
        raise SimulatorRefusedError("the goal of simulate_steps was rejected")


def _read_state(reply: Any) -> EntityState:  # noqa: ANN401 - a generated type
    _check_result(reply)
    pose = reply.state.pose
    return EntityState(position=_vector(pose.position, "xyz"), orientation=_vector(pose.orientation, "xyzw"))


def _vector(message: Any, axes: str) -> FloatArray:  # noqa: ANN401 - a generated type
    return np.array([getattr(message, axis) for axis in axes])
