"""Small arms with a gripper in the same message, on its own topic, or behind an action server."""

from pathlib import Path

from own_models import write_model

from embodied_env.contract import Contract, parse_contract

ACTION = "control_msgs/action/GripperCommand"
PARALLEL = "control_msgs/action/ParallelGripperCommand"
TOPIC = "std_msgs/msg/Float64"

ARM = "j1: {position: [-1.5, 1.5], velocity: 1.0, acceleration: 4.0}"
TEXT = """
contract: embodied_env/1
name: grasp
version: 1
control_period_s: 0.05
episode: {{horizon_steps: 400}}
task: {{type: no_goal}}
sensors:
  joints: {{topic: joint_states, type: sensor_msgs/msg/JointState, fields: {{position: {{joints: [j1, j2], unit: rad, low: -3.0, high: 3.0}}}}, max_age_s: 0.5}}
actuators:
  arm: {{topic: commands, type: std_msgs/msg/Float64MultiArray, command: position, scale: physical, joints: {{{joints}}}}}
{gripper}
backends:
  mujoco: &world {{model: {model}, joints: {{j1: m1, j2: m2}}, home: {{j1: 0.2, j2: 0.1}}}}
  mujoco_ros: *world
  fake: {{}}
  real: {{discovery_s: 0.0, reset_timeout_s: 8.0, reset: {{service: simulator/reset, parameters: true}}}}
"""
GRIPPER = """\
  gripper:
    topic: gripper/command
    type: {type}
    command: position
    scale: {scale}
    joints: {{j2: {{position: [0.0, 0.8], velocity: 2.0{acceleration}}}}}
    gripper: {{open: 0.8, closed: 0.0{more}}}
"""


def gripper_text(kind: str = ACTION, *, scale: str = "binary", more: str = "") -> str:
    """Return the YAML of the actuator of the gripper."""
    acceleration = "" if "/action/" in kind else ", acceleration: 20.0"
    return GRIPPER.format(type=kind, scale=scale, acceleration=acceleration, more=f", {more}" if more else "")


def gripper_contract(folder: Path, gripper: str, joints: str = ARM) -> Contract:
    """Return the contract of the small arm in `folder`, whose second joint is the gripper's."""
    model = write_model("arm", folder)
    text = TEXT.format(joints=joints, gripper=gripper, model=model.name)
    return parse_contract(text, source=str(folder / "grasp.yaml"))
