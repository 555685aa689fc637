"""Reset a robot, or its emulator, by the service that its profile declares."""

from __future__ import annotations

from embodied_env.core.types import ResetReport, ResetRequest
from embodied_env.errors import BackendNotReadyError
from embodied_env.ros.robot.robot_profile import EMULATOR_RESET, ResetSpec
from embodied_env.ros.transport.receive_thread import ReceiveThread, ServiceCaller
from embodied_env.ros.wire.simulator_protocol import ResetReply, reset_parameters
from embodied_env.timing.clock import NS_PER_S, Clock


class ResetService:
    """Calls the reset service of a robot, or of an embedded simulator."""

    def __init__(self, spec: ResetSpec, listener: ReceiveThread, clock: Clock, fingerprint: str) -> None:
        """Create the clients of `spec`, where a simulator must run the contract of this `fingerprint`."""
        self._level, self._fingerprint = spec.level, fingerprint
        self._origin = "emulator=True" if spec is EMULATOR_RESET else "backends.real.reset.service"
        self._trigger: ServiceCaller | None = None
        self._parameters: ServiceCaller | None = None
        if spec.service is not None:
            self._trigger = ServiceCaller(listener, spec.service, clock)
            if spec.parameters:
                name = f"{spec.service.rpartition('/')[0]}/set_parameters"
                self._parameters = ServiceCaller(listener, name, clock, "rcl_interfaces/srv/SetParameters")

    def call(self, request: ResetRequest, deadline_ns: int) -> ResetReport:
        """Call the service, if any, only once, since a second call may act again.

        Only a service with parameters can use the seed and options of `request`. Raises BackendNotReadyError if the
        service fails or does not respond by `deadline_ns` (steady clock), or if a simulator runs another contract.
        """
        reply: ResetReply | None = None
        try:
            if self._parameters is not None:
                self._set_parameters(self._parameters, request, deadline_ns)
            if self._trigger is not None:
                reply = self._reset(self._trigger, deadline_ns)
        except BackendNotReadyError as error:
            raise BackendNotReadyError(f"{error} ({self._origin})") from None
        has_parameters = self._parameters is not None
        return ResetReport(
            level=self._level,
            seed_applied=request.seed if has_parameters else None,
            sampled={} if reply is None else reply.sampled,
            details={} if reply is None else reply.details,
            ignored=() if has_parameters else tuple(request.options),
            routine="" if self._trigger is None else "service",
        )

    def _set_parameters(self, service: ServiceCaller, request: ResetRequest, deadline_ns: int) -> None:
        parameters = reset_parameters(request)
        results = service.call(deadline_ns, repeat_ns=NS_PER_S, parameters=parameters).results
        if refused := [result.reason for result in results if not result.successful]:
            raise BackendNotReadyError(f"{service.name} refused seed and options: {'; '.join(refused)}")

    def _reset(self, trigger: ServiceCaller, deadline_ns: int) -> ResetReply | None:
        """Call the service and return the reply of an embedded simulator, or None for a robot's free text."""
        response = trigger.call(deadline_ns)
        if not response.success:
            raise BackendNotReadyError(f"reset service {trigger.name} failed: {response.message}")
        try:
            reply = ResetReply.from_text(response.message)
        except ValueError as error:
            if self._parameters is not None:
                raise BackendNotReadyError(f"reset service {trigger.name} is not an emulator's: {error}") from None
            return None
        if reply.fingerprint != self._fingerprint:
            theirs, ours = reply.fingerprint[:12], self._fingerprint[:12]
            raise BackendNotReadyError(f"the simulator's contract has fingerprint {theirs} (expected {ours})")
        return reply
