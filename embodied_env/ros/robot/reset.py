"""The reset service of a robot, called once; behind it may be an embedded simulator, which takes seed and options."""

from __future__ import annotations

import json
from typing import Any

from rclpy.node import Node

from embodied_env.core.clock import Clock
from embodied_env.core.types import DRY_RUN, ResetReport, ResetRequest
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.embedded_sim.protocol import (
    ANY_EPOCH,
    EPOCH_PARAMETER,
    OPTIONS_PARAMETER,
    SEED_PARAMETER,
    ResetReply,
)
from embodied_env.ros.receiver import LivenessCheck
from embodied_env.ros.robot.command_publishers import ServiceCaller, Trigger
from embodied_env.ros.robot.profile import ResetSpec


def dry_report(request: ResetRequest) -> ResetReport:
    """Return the account of the reset of a dry run: only the readings are new."""
    return ResetReport(
        level="none",
        seed_applied=None,
        sampled={},
        details={DRY_RUN: "nothing is published to the actuators; no reset service was called, nobody was asked"},
        ignored=tuple(request.options),
    )


class ResetService:
    """Calls what a profile names, and says what the reset did."""

    def __init__(self, spec: ResetSpec, node: Node, clock: Clock, fingerprint: str) -> None:
        """Create the clients of `spec`; a simulator must run the contract of this `fingerprint`."""
        self._spec, self._fingerprint = spec, fingerprint
        service = spec.service
        self._trigger = None if service is None else Trigger(node, service, clock)
        self._setting: ServiceCaller | None = None
        if spec.parameters and service is not None:
            name = f"{service.rpartition('/')[0]}/set_parameters"
            self._setting = ServiceCaller(node, "rcl_interfaces/srv/SetParameters", name, clock)

    def call(self, request: ResetRequest, deadline_ns: int, patrol: LivenessCheck) -> ResetReport:
        """Reset, once: who knows what a second call would do. Without a service nothing happens.

        Args:
            request: seed and options, which only a service with parameters can take.
            deadline_ns: of the wait, on the steady clock.
            patrol: called now and then; raises when waiting has no sense any more.

        Raises:
            BackendNotReadyError: when nobody offers it, it does not answer in time, or says that it failed; or when a
                simulator runs another contract.
        """
        try:
            if self._setting is not None:
                self._set(self._setting, request, deadline_ns, patrol)
            reply = None if self._trigger is None else self._reset(self._trigger, deadline_ns, patrol)
        except BackendNotReadyError as error:
            raise BackendNotReadyError(f"{error} (backends.real.reset.service)") from None
        is_honoured = self._setting is not None
        return ResetReport(
            level=self._spec.level,
            seed_applied=request.seed if is_honoured else None,
            sampled={} if reply is None else reply.sampled,
            details={} if reply is None else reply.details,
            ignored=() if is_honoured else tuple(request.options),
            routine="" if self._trigger is None else "service",
        )

    def _set(self, setting: ServiceCaller, request: ResetRequest, deadline_ns: int, patrol: LivenessCheck) -> None:
        """Say what the next reset is to be: one like no other, so that it is no repetition."""
        from rclpy.parameter import Parameter  # noqa: PLC0415 - it imports rcl_interfaces

        options = {name: value.tolist() for name, value in request.options.items()}
        values: dict[str, Any] = {
            EPOCH_PARAMETER: ANY_EPOCH,
            SEED_PARAMETER: request.seed,
            OPTIONS_PARAMETER: json.dumps(options),
        }
        call = setting.request(parameters=[Parameter(name, value=v).to_parameter_msg() for name, v in values.items()])
        results = setting.call(deadline_ns, patrol, call).results
        if refused := [result.reason for result in results if not result.successful]:
            raise BackendNotReadyError(f"{setting.name} refused seed and options: {'; '.join(refused)}")

    def _reset(self, trigger: Trigger, deadline_ns: int, patrol: LivenessCheck) -> ResetReply | None:
        """Call the service; return the reply of an embedded simulator, None for a robot's own words."""
        response = trigger.call(deadline_ns, patrol)
        if not response.success:
            raise BackendNotReadyError(f"the robot could not be reset: {response.message}")
        try:
            reply = ResetReply.from_text(response.message)
        except ValueError as error:
            if self._setting is not None:
                raise BackendNotReadyError(f"reset.parameters: true, but {error}") from None
            return None
        if reply.fingerprint != self._fingerprint:
            raise BackendNotReadyError(
                f"the simulator runs a contract of fingerprint {reply.fingerprint[:12]}, not {self._fingerprint[:12]}"
            )
        return reply
