"""Evidence that a command acts: what a controller says that it refers to. Messages are handed in by whoever receives.

It stands in a profile as ``controller_state: {topic, type, path}``. What was published is no evidence: only a message
that came back is, and its arrival, which is an upper bound that no other host's clock can falsify.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from embodied_env.contract import FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.types import ActuationEvidence, ApprovedCommand
from embodied_env.ros.message_fields import Message, follow
from embodied_env.ros.receiver import ReceivedMessage
from embodied_env.ros.robot.profile import ControllerStateSpec

_REMEMBERED = 64
_EQUAL = 1e-6  # of a value: float32 on its way loses less


class ControllerState:
    """Joins what was sent with what a controller says. Guarded by whoever owns it: two threads come here."""

    def __init__(self, spec: ControllerStateSpec, layout: ActionLayout) -> None:
        """Nothing was sent yet, and nothing is known to be in force."""
        self._spec = spec
        self._layout = layout
        self._sent: deque[tuple[int, FloatArray]] = deque(maxlen=_REMEMBERED)
        self._in_force: FloatArray | None = None
        self._found: ActuationEvidence | None = None

    def begin(self) -> None:
        """Forget the commands of the last episode."""
        self._sent.clear()
        self._found = None

    def sent(self, command: ApprovedCommand) -> None:
        """A command leaves. One that repeats the last cannot be told from it, and is not waited for."""
        if not self._sent or not _same(self._sent[-1][1], command.values):
            self._sent.append((command.seq, command.values))

    def put(self, arrival: ReceivedMessage) -> None:
        """Take a message: a change to a command is evidence of it."""
        reference = self._reference(arrival.message)
        if reference is None:
            return
        before, self._in_force = self._in_force, reference
        if before is None or _same(before, reference):
            return
        for number, (seq, values) in enumerate(self._sent):
            if _same(reference, values):
                self._found = ActuationEvidence(seq=seq, acted_ns=arrival.arrival_ns, method="controller")
                for _ in range(number + 1):
                    self._sent.popleft()
                return

    def take(self) -> ActuationEvidence | None:
        """Return the newest evidence since the last call."""
        found, self._found = self._found, None
        return found

    def _reference(self, message: Message) -> FloatArray | None:
        """Return the command that a message says is in force, shape (n_joints,); None: it does not say it of all."""
        spec, joints = self._spec, self._layout.joints
        try:
            if spec.path is None:
                position, velocity = (
                    _ordered(joints, message.name, part) for part in (message.position, message.velocity)
                )
                values = np.where(self._layout.is_velocity, velocity, position)
            else:
                names = joints if spec.names is None else follow(message, spec.names)
                values = _ordered(joints, names, follow(message, spec.path))
        except (AttributeError, IndexError, TypeError, ValueError):
            return None
        return values if np.isfinite(values).all() else None


def _ordered(joints: Sequence[str], names: Sequence[str], values: Sequence[float]) -> FloatArray:
    """Return the values by joint, shape (n_joints,); NaN where there is none."""
    found = dict(zip(names, values, strict=False)) if len(values) == len(names) else {}
    return np.array([found.get(joint, np.nan) for joint in joints], dtype=np.float64)


def _same(a: FloatArray, b: FloatArray) -> bool:
    return bool(np.allclose(a, b, rtol=_EQUAL, atol=_EQUAL))
