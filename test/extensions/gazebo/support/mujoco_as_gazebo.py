"""A stand-in for a Gazebo server and its bridge, with the physics of MuJoCo behind the services of ros_gz.

    python mujoco_as_gazebo.py [ANYTHING ...]

Its contract is `arm_reach`. It publishes what the world of config/gazebo publishes, at its rates, and resets softly. As a
program it runs until SIGTERM, so that a script named ``gz`` can start it.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from simulator_stand_ins import STAND_INS, STEP_NS, Faults, RosGzStandIn, host_until_signal, pose_of

from embodied_env.contract import load_contract
from embodied_env.messages.message_types import message_class
from embodied_env.ros.embedded_sim.message_encoder import to_message
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile

NAME = "arm_reach"


def place_body(world, name, position, orientation):
    """Place a mocap body, or one with a free joint at rest, at a position (3,), m, and quaternion x, y, z, w (4,)."""
    world.read()
    world.physics.edit()
    mj, data = world._model.mj, world._data
    pose = np.array([*position, *np.roll(orientation, 1)])  # MuJoCo has w first
    body = mj.body(name)
    if (mocap := int(mj.body_mocapid[body.id])) >= 0:
        data.mocap_pos[mocap], data.mocap_quat[mocap] = pose[:3], pose[3:]
        return
    joint = int(body.jntadr[0])
    qpos, dof = int(mj.jnt_qposadr[joint]), int(mj.jnt_dofadr[joint])
    data.qpos[qpos : qpos + 7], data.qvel[dof : dof + 6] = pose, 0.0


class MujocoAsGazebo(RosGzStandIn):
    """Iterate in physics steps of 1 ms, with the motion of MuJoCo at the end of each control period."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(faults, name=NAME)
        contract = load_contract(NAME)
        self._arm = World(contract, load_profile(contract, "mujoco"))
        self._sensors = {
            name: sensor
            for name, sensor in contract.sensors.items()
            if name not in contract.backends["gazebo"]["sources"]
        }
        self._outputs = {"joints": self._joints} | {
            name: self.node.create_publisher(message_class(sensor.type), sensor.topic, 10)
            for name, sensor in self._sensors.items()
            if name != "joints"
        }
        self._iterations_per_period = contract.control_period_ns // STEP_NS
        self._restart()

    def _restart(self) -> None:
        self._arm.reset(0, {})
        self.world.command = tuple(self._arm.target)

    def _publish_joints(self) -> None:
        """Move and publish at the end of a control period."""
        if self.world.iterations % self._iterations_per_period:
            return
        self._arm.command(np.array(self.world.command))
        self._arm.step()
        self._publish(self._sensors)

    def _publish_clock(self, times: int = 1) -> None:
        """Publish the clock, and continue a paused JointStatePublisher."""
        super()._publish_clock(times)
        if self.world.paused and not self.world.pending:
            self._publish(("joints",))

    def _publish(self, names: Any) -> None:
        readings = self._arm.read()
        for name in names:
            message = to_message(
                self._sensors[name], readings[name].values, self.world.now_ns, self._arm.channels[name].extras
            )
            self._outputs[name].publish(message)

    def request_reset(self, *, time_too: bool = True) -> None:
        super().request_reset(time_too=time_too)
        self._restart()

    def _set_pose(self, request: Any, response: Any) -> bool:
        pose = np.array(pose_of(request.pose))
        place_body(self._arm, request.entity.name, pose[:3], pose[3:])
        return super()._set_pose(request, response)

    def close(self) -> None:
        super().close()
        self._arm.close()


STAND_INS["mujoco"] = MujocoAsGazebo


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    host_until_signal("mujoco")
