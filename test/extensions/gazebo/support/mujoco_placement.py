"""Place bodies of a MuJoCo world on request, as external simulators do."""

import numpy as np

from embodied_env.errors import UsageError


def placeable(world):
    """Return the bodies that can be placed, which are mocap bodies and those with a free joint."""
    mj, free = world._model.mj, int(world._model.mujoco.mjtJoint.mjJNT_FREE)
    bodies = [i for i in range(mj.nbody) if mj.body_mocapid[i] >= 0]
    bodies += [int(mj.jnt_bodyid[i]) for i in range(mj.njnt) if mj.jnt_type[i] == free]
    return tuple(mj.body(i).name for i in sorted(bodies))


def place_body(world, name, position, orientation):
    """Place a body at rest at a position (3,), m, and unit quaternion x, y, z, w (4,).

    Sensors show it after a step.
    """
    if name not in placeable(world):
        raise UsageError(f"no body {name!r} that can be placed")
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
