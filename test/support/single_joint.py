"""The limits of one joint (`embodied_env.safety.joint_limits` judges all joints of a robot at once)."""

from typing import NamedTuple

from embodied_env.safety.joint_limits import JointBounds, limit_joints, velocity_intervals


class JointStep(NamedTuple):
    """The limited step of one joint, with the code of its limit, or "" for a target kept bit for bit."""

    position: float
    velocity: float
    code: str
    bound: float  # in the unit of the command


def limit_joint(position: float, velocity: float, target: float, bounds: JointBounds, dt_s: float) -> JointStep:
    """Return the step towards the position `target`."""
    (reached,), (chosen,), limited = limit_joints([position], [velocity], [bounds], [target], [False], dt_s)
    return JointStep(reached, chosen, *limited.get(0, ("", reached)))


def limit_velocity(position: float, velocity: float, desired: float, bounds: JointBounds, dt_s: float) -> JointStep:
    """Return the step at the velocity `desired`."""
    (reached,), (chosen,), limited = limit_joints([position], [velocity], [bounds], [desired], [True], dt_s)
    return JointStep(reached, chosen, *limited.get(0, ("", chosen)))


def velocity_interval(position: float, velocity: float, bounds: JointBounds, dt_s: float) -> tuple[float, float]:
    """Return [lower, upper], the admissible velocities of the next step."""
    ((lower, upper, _, _),) = velocity_intervals([position], [velocity], [bounds], dt_s)
    return lower, upper
