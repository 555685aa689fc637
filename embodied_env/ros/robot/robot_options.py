"""The options of the backend `real`, and what they change in the profile of a robot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from embodied_env.backends.backend import Capabilities
from embodied_env.contract import Contract
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
    """Options of the backend `real`.

    A virtual clock or any other invalid option raises UsageError.

    Attributes:
        contract: the sensors and actuators of the robot.
        clock: paces the steps and stamps arrivals; a steady one.
        namespace: absolute ROS namespace of the robot; None: the root.
        domain_id: None: ``ROS_DOMAIN_ID``, or 0.
        step_timeout_s: without any reading for this long the robot counts as lost; None: from the profile.
        reset_timeout_s: how long a reset may take; None: from the profile.
        connect_timeout_s: how long topics or services may be missing at a reset; None: from the profile.
        relay: whether to send commands to a running relay; None: from the profile.
        armed: False selects a dry run: everything is started and checked, readings are real, and the gate judges every
            action; but no command is published, no reset service is called, no confirmation is requested, and no relay
            is armed.
        emulator: whether the robot emulator (``embodied-env sim --free-running``) is behind the topics. It resets
            itself by seed and options, in place of ``backends.real.reset``; a robot refuses, before any motion.
        confirm_chosen: whether to accept the chosen values of the robot file (`Contract.unconfirmed`) for now.
        node_name: unique in the namespace.
        ros_args: arguments after ``--ros-args`` for this node alone, e.g. ``["-r", "joint_states:=arm/states"]``. Those
            in the command line of this process apply too.
        ignore_inputs: names of safety inputs to move without, because their message package is not installed; recorded
            in the manifest.
        frames: source of the transforms that the profile needs; None: tf2.
        on_sample: called with each reading as it arrives, in the receiving thread; it must be fast.
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
        if self.relay not in (None, True, False):
            raise UsageError(f"invalid relay={self.relay!r} (expected True, False or None)")
        for option in ("armed", "emulator", "confirm_chosen"):
            if (value := getattr(self, option)) not in (True, False):
                raise UsageError(f"invalid {option}={value!r} (expected True or False)")

    @property
    def is_confirmed(self) -> bool:
        """Whether chosen values of the robot file are accepted by the user, or because no robot moves."""
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
