"""Publish commands to a robot's actuators, and detect when a command takes effect."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from rclpy.duration import Duration
from rclpy.node import Node

from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.safety_input_state import InputState
from embodied_env.core.types import ActuationEvidence, ApprovedCommand, SentCommand, Trajectory, check_approved
from embodied_env.messages.any_message import follow
from embodied_env.messages.declaration import Message
from embodied_env.messages.message_types import message_class
from embodied_env.ros.robot.grippers import make_gripper_clients
from embodied_env.ros.robot.robot_profile import ControllerStateSpec
from embodied_env.ros.transport.qos import command_qos
from embodied_env.ros.transport.receiver import ReceivedMessage
from embodied_env.ros.wire.command_messages import to_command, to_trajectory
from embodied_env.timing.clock import NS_PER_S, Clock

_NO_WAIT = Duration()
_DELIVERY_NS = NS_PER_S // 2
_DELIVERY_POLL_NS = NS_PER_S // 500
_KEPT_COMMANDS = 64
_TOLERANCE = 1e-6  # absolute and relative; a conversion to float32 loses less


class ActuatorPublishers:
    """Publishes to the actuators' own topics, and sends grippers' goals to action servers."""

    def __init__(self, contract: Contract, node: Node, clock: Clock, *, unstamped: Collection[str] = ()) -> None:
        """Create a publisher or client per actuator, with stamp 0 for types in `unstamped`."""
        self._grippers = make_gripper_clients(contract, node, clock)
        self._clock = clock
        self._unstamped = unstamped
        self._layout = ActionLayout(contract)
        self._period_s = contract.control_period_s / contract.setpoints_per_step
        self._publishers = [
            (name, actuator, node.create_publisher(message_class(actuator.type), actuator.topic, command_qos(actuator)))
            for name, actuator in contract.actuators.items()
            if name not in self._grippers
        ]

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Publish one message per actuator, stamped with system time, and send changed goals."""
        check_approved(command)
        steady_ns, now_ns = self._clock.now_ns(), self._clock.system_ns()  # together: points are timed by the stamp
        parts = self._layout.split(command.values)
        for name, actuator, publisher in self._publishers:
            stamp_ns = 0 if actuator.type in self._unstamped else now_ns
            if command.trajectory is None:
                message = to_command(actuator, parts[name], stamp_ns=stamp_ns, period_s=self._period_s)
            else:
                points = self._points_ahead(command.trajectory, self._layout.slices[name], steady_ns)
                message = to_trajectory(actuator, points, stamp_ns=stamp_ns)
            publisher.publish(message)
        for gripper in self._grippers.values():
            gripper.send(command.values)
        annotations = {"grippers": self.gripper_accounts()} if self._grippers else {}
        return SentCommand(seq=command.seq, values=command.values, annotations=annotations)

    def _points_ahead(self, trajectory: Trajectory, part: slice, now_ns: int) -> list[tuple[int, FloatArray]]:
        """Return the points of these joints that are not due yet, each with the time left, ns."""
        first_ns, period_ns = trajectory.first_ns - now_ns, round(self._period_s * NS_PER_S)
        points = [(first_ns + k * period_ns, point.positions[part]) for k, point in enumerate(trajectory.points)]
        return [each for each in points if each[0] > 0] or points[-1:]

    def begin(self, positions: FloatArray) -> None:
        """Start an episode of the grippers at measured positions in contract order, NaN if unknown."""
        for gripper in self._grippers.values():
            gripper.begin(positions)

    def gripper_states(self) -> dict[str, InputState]:
        """Return the state of each gripper with an action server as a safety input."""
        return {f"actuators.{name}": gripper.safety_state() for name, gripper in self._grippers.items()}

    def gripper_accounts(self) -> dict[str, Mapping[str, Any]]:
        """Return the account of each gripper with an action server."""
        return {name: gripper.account() for name, gripper in self._grippers.items()}

    def flush(self) -> None:
        """Wait briefly for all acknowledgements, as destroying a publisher drops unsent commands."""
        end_ns = self._clock.now_ns() + _DELIVERY_NS
        with contextlib.suppress(RuntimeError):  # the context was shut down elsewhere
            while not self._is_delivered() and (now_ns := self._clock.now_ns()) < end_ns:
                self._clock.sleep_until_ns(now_ns + _DELIVERY_POLL_NS)  # a longer wait might hold the GIL

    def _is_delivered(self) -> bool:
        is_sending = any(gripper.is_sending for gripper in self._grippers.values())
        return not is_sending and all(publisher.wait_for_all_acked(_NO_WAIT) for _, _, publisher in self._publishers)


class ControllerState:
    """Compares the sent commands with the command that a controller reports as in force.

    A change of that report to a sent command is evidence that it acts, at the latest at the message's arrival. This
    bound depends on no other host's clock. The caller synchronises the threads.
    """

    def __init__(self, spec: ControllerStateSpec, layout: ActionLayout) -> None:
        self._spec = spec
        self._layout = layout
        self._sent: deque[tuple[int, FloatArray]] = deque(maxlen=_KEPT_COMMANDS)
        self._in_force: FloatArray | None = None
        self._evidence: ActuationEvidence | None = None

    def clear(self) -> None:
        """Drop the commands of the last episode."""
        self._sent.clear()
        self._evidence = None

    def on_sent(self, command: ApprovedCommand) -> None:
        """Store a sent command, which cannot be distinguished from the last one if it repeats it."""
        if not self._sent or not _is_close(self._sent[-1][1], command.values):
            self._sent.append((command.seq, command.values))

    def on_message(self, arrival: ReceivedMessage) -> None:
        """Compare the command in force with the sent ones, if it has changed."""
        reference = self._reference(arrival.message)
        if reference is None:
            return
        before, self._in_force = self._in_force, reference
        if before is None or _is_close(before, reference):
            return
        for number, (seq, values) in enumerate(self._sent):
            if _is_close(reference, values):
                self._evidence = ActuationEvidence(seq=seq, acted_ns=arrival.arrival_ns, method="controller")
                for _ in range(number + 1):
                    self._sent.popleft()
                return

    def take_evidence(self) -> ActuationEvidence | None:
        """Return the newest evidence since the last call."""
        evidence, self._evidence = self._evidence, None
        return evidence

    def _reference(self, message: Message) -> FloatArray | None:
        """Return the command in force, shape (n_joints,), or None unless reported for all joints."""
        spec, joints = self._spec, self._layout.joints
        try:
            if spec.path is None:
                position = _ordered(joints, message.name, message.position)
                velocity = _ordered(joints, message.name, message.velocity)
                values = np.where(self._layout.is_velocity, velocity, position)
            else:
                names = joints if spec.names is None else follow(message, spec.names)
                values = _ordered(joints, names, follow(message, spec.path))
            if self._layout.conversion is not None:
                values = self._layout.conversion.to_si(values)
        except (AttributeError, IndexError, TypeError, ValueError):
            return None
        return values if np.isfinite(values).all() else None


def _ordered(joints: Sequence[str], names: Sequence[str], values: Sequence[float]) -> FloatArray:
    """Return the values by joint, shape (n_joints,), with NaN where there is none."""
    found = dict(zip(names, values, strict=False)) if len(values) == len(names) else {}
    return np.array([found.get(joint, np.nan) for joint in joints], dtype=np.float64)


def _is_close(a: FloatArray, b: FloatArray) -> bool:
    return bool(np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE))
