"""The options of the backend `real`, and what they change in the profile of a robot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from embodied_env.backends.backend import Capabilities
from embodied_env.contract import Contract
from embodied_env.contract.argument_checks import checked_flag
from embodied_env.core.types import Sample
from embodied_env.errors import UsageError
from embodied_env.ros.robot.robot_profile import EMULATOR_RESET, RESET_LEVELS, RealProfile, inputs_by_variant
from embodied_env.ros.transport.setup_checks import (
    check_namespace_and_domain,
    check_node_name,
    ros_arguments,
    timeout_s,
)
from embodied_env.ros.wire.transforms import Frames
from embodied_env.timing.clock import Clock


@dataclass(frozen=True, kw_only=True)
class RobotOptions:
    """Options of the backend `real`, whose meanings `BackendOptions` declares.

    A virtual clock or any other invalid option raises UsageError.

    With `armed` False, a dry run, everything is started and checked, readings are real, and the gate judges every
    action; but no command is published, no reset service called, no confirmation requested, and no relay armed.
    The `emulator` resets itself by seed and options, in place of ``backends.real.reset``; a robot refuses, before any
    motion. `on_sample` must be fast.
    """

    contract: Contract = field(kw_only=False)
    clock: Clock
    namespace: str | None = None
    domain_id: int | None = None
    step_timeout_s: float | None = None
    reset_timeout_s: float | None = None
    connect_timeout_s: float | None = None
    relay: bool | None = None
    armed: bool = True
    emulator: bool = False
    confirm_chosen: bool = False
    node_name: str = "environment"
    ros_args: Sequence[str] = ()
    ignore_inputs: Sequence[str] = ()
    frames: Frames | None = None
    on_sample: Callable[[Sample], None] | None = None

    def __post_init__(self) -> None:
        if self.clock.virtual:
            raise UsageError(f"invalid clock for a real robot: {type(self.clock).__name__} (expected clock='steady')")
        check_namespace_and_domain(self.namespace, self.domain_id)
        check_node_name(self.node_name)
        ros_arguments(self.ros_args)
        if self.relay is not None:
            checked_flag("relay", self.relay)
        for option in ("armed", "emulator", "confirm_chosen"):
            checked_flag(option, getattr(self, option))

    @property
    def is_confirmed(self) -> bool:
        """Whether chosen values of the robot file are accepted, also because no robot moves."""
        return self.confirm_chosen or self.emulator or not self.armed

    def applied_to(self, profile: RealProfile) -> RealProfile:
        """Return `profile` with the timeouts, the relay and the reset of these options.

        A dry run has no reset. Raises UsageError for an invalid timeout, or a conflict with the contract or `profile`.
        """
        reset = profile.reset
        if not self.armed:
            reset = None
        elif self.emulator:
            reset = EMULATOR_RESET
        applied = replace(
            profile,
            step_timeout_s=timeout_s("step_timeout_s", self.step_timeout_s, profile.step_timeout_s),
            reset_timeout_s=timeout_s("reset_timeout_s", self.reset_timeout_s, profile.reset_timeout_s),
            connect_timeout_s=timeout_s("connect_timeout_s", self.connect_timeout_s, profile.connect_timeout_s),
            relay=profile.relay if self.relay is None else bool(self.relay),
            reset=reset,
        )
        if applied.relay and applied.use_sim_time:
            raise UsageError("relay=True conflicts with backends.real.use_sim_time: the relay runs on wall time")
        if self.contract.trajectory_steps is not None and (applied.relay or applied.use_sim_time):
            raise UsageError(
                "trajectory_steps conflicts with a relay and with use_sim_time; remove the key or the other"
            )
        return applied

    def capabilities_with(self, profile: RealProfile) -> Capabilities:
        """Return the capabilities of a robot with the applied `profile`."""
        armed = bool(self.armed)
        has_evidence = profile.relay or profile.controller_state is not None or profile.actuation_s is not None
        return Capabilities(
            free_running=True,
            transport=True,
            estop_inputs=True,
            trajectories=True,
            simulated=False,
            reset_levels=RESET_LEVELS,
            acknowledges_commands=profile.relay and armed,
            actuation=has_evidence and armed,
            actuates=armed,
            ignored_inputs=tuple(self.ignore_inputs),
            variants=inputs_by_variant(profile),
            emulated=bool(self.emulator),
            chosen_confirmed=bool(self.confirm_chosen),
            seedable=profile.reset_spec.parameters,
        )
