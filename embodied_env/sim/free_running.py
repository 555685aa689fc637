"""The world that does not wait: on wall time, in a node that looks like a robot's.

A tick of the world is run at each of its absolute deadlines. Stamps are of the system clock; there is neither simulated
time on a topic nor a step token. The newest command is in force when the next tick begins.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from embodied_env.clock import NS_PER_S, Clock, SteadyClock
from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.spaces import ActionLayout
from embodied_env.errors import BackendLostError
from embodied_env.pacing import Pacer
from embodied_env.sim.node import NO_EPOCH, TURN_S, WorldNode, turning
from embodied_env.sim.world import World

_ANY_SEED = -1  # each reset draws anew
_SEED_BITS = 53  # every JSON reader keeps them exactly
_MARGIN_NS = 300_000  # an executor wakes up so much before a tick; the rest is slept
_WINDOW_NS = 2 * NS_PER_S  # over which the real-time factor is measured
_SLOW = 0.9  # a real-time factor below it is reported
_THROTTLE_S = 5.0


class FreeRunningNode(WorldNode):
    """Hosts one world that moves by itself, from `begin` on."""

    obeys_qos = True

    def __init__(
        self,
        contract: Contract,
        world: World,
        *,
        namespace: str | None,
        context: Any,  # noqa: ANN401 - rclpy's
        clock: Clock,
        command_timeout_s: float | None,
    ) -> None:
        """Create the node; `command_timeout_s`: a velocity not commanded again for so long ends (None: it acts on)."""
        self._clock = clock
        self._timeout_ns = None if command_timeout_s is None else round(command_timeout_s * NS_PER_S)
        self._slices = list(ActionLayout(contract).slices.values())
        self._target = np.zeros(len(world.joints))
        self._heard_ns = [0] * len(self._slices)
        self._is_new = self._is_moving = False
        self._offset_ns = 0  # of the system clock from the world's time
        self._epoch, self._reply = NO_EPOCH, ""
        super().__init__(contract, world, namespace=namespace, context=context, default_seed=_ANY_SEED)
        self._published_ns = dict.fromkeys(self._sensors, -1)
        self._begin_window()

    def begin(self) -> None:
        """Start as after a reset; raises BackendLostError or MissingDependencyError when the world cannot."""
        self._reset(NO_EPOCH, _ANY_SEED, "{}")

    def tick(self) -> None:
        """Move the world by a tick, and publish what it has measured. A world that broke is silent until a reset."""
        if not self._is_moving:
            return
        self._end_old_velocities()
        if self._is_new:
            self._world.command(self._target)
            self._is_new = False
        try:
            self._world.step()
        except BackendLostError as error:
            self.node.get_logger().error(f"the world stands still until a reset: {error}")
            self._is_moving = False
            return
        self._publish()
        self._watch_speed()

    def _reset(self, epoch: int, seed: int, options: str) -> str:
        """Reset; only the same epoch is a repetition, and a seed that is not set is drawn."""
        if epoch == NO_EPOCH or epoch != self._epoch:
            self._is_moving = False
            applied = secrets.randbits(_SEED_BITS) if seed == _ANY_SEED else seed
            reply = self._reset_world(epoch, applied, options)
            self._target, self._is_new = self._world.target, False
            self._published_ns = dict.fromkeys(self._sensors, -1)
            self._is_moving = True
            self._publish()
            self._begin_window()
            self._epoch = epoch
            self._reply = replace(reply, stamp_ns=self._stamp_ns(self._world.now_ns)).to_text()
        return self._reply

    def _take_command(self, index: int, command: FloatArray | None) -> None:
        if command is None:
            self.node.get_logger().warning(
                "ignored a message that is not a whole command of its actuator", throttle_duration_sec=_THROTTLE_S
            )
            return
        self._target[self._slices[index]] = command
        self._heard_ns[index] = self._clock.now_ns()
        self._is_new = True

    def _end_old_velocities(self) -> None:
        """Do what the controller of a base does when its commands stop."""
        if self._timeout_ns is None:
            return
        now_ns = self._clock.now_ns()
        for part, heard_ns in zip(self._slices, self._heard_ns, strict=True):
            acting = np.where(self._world.is_velocity[part], self._target[part], 0.0)
            if acting.any() and now_ns - heard_ns > self._timeout_ns:
                self._target[part] -= acting
                self._is_new = True

    def _publish(self) -> None:
        """Publish the readings that are new; now is the time of the world as it is."""
        self._offset_ns = self._clock.system_ns() - self._world.now_ns
        for name, reading in self._world.read().items():
            if reading.stamp_ns <= self._published_ns[name]:
                continue
            self._published_ns[name] = reading.stamp_ns
            if reading.problem:
                self.node.get_logger().warning(f"{name}: {reading.problem}", throttle_duration_sec=_THROTTLE_S)
            else:
                self._publish_reading(name, reading)

    def _stamp_ns(self, world_ns: int) -> int:
        return self._offset_ns + world_ns

    def _begin_window(self) -> None:
        self._window_ns = self._clock.now_ns(), self._world.now_ns

    def _watch_speed(self) -> None:
        """Say so when the world does not keep up with the wall clock."""
        wall_ns = self._clock.now_ns() - self._window_ns[0]
        if wall_ns < _WINDOW_NS:
            return
        factor = (self._world.now_ns - self._window_ns[1]) / wall_ns
        if factor < _SLOW:
            self.node.get_logger().warning(
                f"the world runs at {factor:.2f} of real time: this machine is too slow for it",
                throttle_duration_sec=_THROTTLE_S,
            )
        self._begin_window()


def run_free_running(
    contract: Contract,
    world: World,
    *,
    namespace: str | None,
    stop: threading.Event,
    command_timeout_s: float | None = None,
    on_ready: Callable[[str], None] = lambda _namespace: None,
) -> None:
    """Host `world`, built with ``free_running=True``, until `stop` is set.

    Args:
        contract: what the world was built from.
        world: the world.
        namespace: absolute ROS namespace; None: the root, or what ``--ros-args`` says.
        stop: set it from a signal handler or another thread.
        command_timeout_s: a velocity that is not commanded again for so long ends; None: it acts on.
        on_ready: told the namespace once the world moves.

    Raises:
        BackendNotReadyError: when ROS 2 cannot be initialised.
        ContractError: for a sensor that its message type cannot be.
        BackendLostError: when the world cannot be reset.
    """
    clock = SteadyClock()

    def make(context: Any) -> FreeRunningNode:  # noqa: ANN401 - rclpy's
        return FreeRunningNode(
            contract, world, namespace=namespace, context=context, clock=clock, command_timeout_s=command_timeout_s
        )

    with turning(contract, make) as (simulator, executor):
        simulator.begin()
        on_ready(simulator.node.get_namespace())
        pacer = Pacer(clock, world.tick_ns)
        while not stop.is_set():
            left_ns = pacer.deadline_ns - _MARGIN_NS - clock.now_ns()
            executor.spin_once(timeout_sec=min(TURN_S, max(0, left_ns) / NS_PER_S))
            if pacer.deadline_ns - clock.now_ns() <= _MARGIN_NS:
                pacer.wait()
                simulator.tick()
