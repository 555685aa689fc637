"""A contract, a policy file and a model that have everything a policy file can connect."""

import numpy as np
import yaml

from embodied_env.contract import parse_contract
from embodied_env.core.policy import PolicyIdentity
from embodied_env.policies.policy_file import SCHEMA, read_policy_file
from embodied_env.policies.policy_file_interface import PolicyFileInterface

JOINTS = ("shoulder", "elbow", "wrist")

CONTRACT = """
contract: embodied_env/1
name: bench
version: 1
control_period_s: 0.05
episode: {horizon_steps: 5}
sensors:
  joints:
    topic: joint_states
    type: sensor_msgs/msg/JointState
    fields:
      position: {joints: [shoulder, elbow, wrist, finger], unit: [rad, rad, rad, m], low: -4.0, high: 4.0}
      velocity: {joints: [shoulder, elbow, wrist, finger], unit: [rad/s, rad/s, rad/s, m/s], low: -9.0, high: 9.0}
    max_age_s: 0.15
  tcp:
    topic: tcp_pose
    type: geometry_msgs/msg/PoseStamped
    fields: {position: {unit: m, low: -2.0, high: 2.0}, orientation: {unit: "1", low: -1.0, high: 1.0}}
    max_age_s: 0.15
  front:
    topic: image
    type: sensor_msgs/msg/Image
    encoding: bgr8
    fields: {image: {unit: "1", low: 0, high: 255, shape: [48, 64, 3]}}
    max_age_s: 0.15
actuators:
  arm:
    topic: arm/commands
    type: std_msgs/msg/Float64MultiArray
    command: position
    scale: physical
    joints:
      shoulder: {position: [-2.0, 2.0], velocity: 3.0, acceleration: 9.0}
      elbow: {position: [0.0, 2.0], velocity: 3.0, acceleration: 9.0}
      wrist: {position: [-1.0, 3.0], velocity: 3.0, acceleration: 9.0}
  gripper:
    topic: gripper/commands
    type: std_msgs/msg/Float64MultiArray
    command: position
    joints: {finger: {position: [0.0, 0.1], velocity: 0.5, acceleration: 2.0, unit: m}}
safety: {margins: {position: 0.0}}
task: {type: no_goal, instruction: pick up the cube}
backends: {fake: {}}
"""

FILE = """
policy: embodied_env/policy/1
name: pick
control_period_s: 0.05
limits: {finger: [0.0, 0.1]}
inputs:
  state:
    parts:
      - {field: joints_position, joints: [wrist, shoulder, elbow], unit: deg, sign: [1, -1, 1]}
      - {field: joints_position, joints: [finger], unit: 0..100}
      - {field: tcp_orientation, quaternion: wxyz}
outputs:
  action:
    parts:
      - {actuator: arm, joints: [elbow, wrist, shoulder], unit: deg, sign: [1, 1, -1]}
      - {actuator: gripper, joints: [finger], unit: m}
"""


def bench(changes=()):
    """Return the contract with texts replaced by others."""
    text = CONTRACT
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return parse_contract(text, source="bench.yaml")


BENCH = bench()


class TrialModel:
    """A model that records its inputs and returns given outputs."""

    identity = PolicyIdentity(name="test:trial", format="test")

    def __init__(self, answer, *, inputs=None, outputs=None):
        self.answer, self.inputs, self.outputs, self.seen = answer, inputs, outputs, []

    def reset(self, *, seed, episode_index):
        """Record it."""
        self.seen.append((seed, episode_index))

    def infer(self, inputs):
        """Return the answer, or what it computes."""
        self.seen.append(inputs)
        return self.answer(inputs) if callable(self.answer) else self.answer

    def close(self):
        """Do nothing."""


def write(folder, text=FILE, *, name="pick.policy.yaml", **files):
    """Write a policy file, as text or as a document, and its data files, and return its path."""
    for file, content in files.items():
        (folder / file.replace("_json", ".json").replace("_safetensors", ".safetensors")).write_bytes(content)
    path = folder / name
    path.write_text(text if isinstance(text, str) else yaml.safe_dump({"policy": SCHEMA, **text}))
    return path


def interface(folder, text=FILE, *, contract=BENCH, **files):
    return PolicyFileInterface(read_policy_file(write(folder, text, **files)), contract)


def observation(contract=BENCH, seed=0):
    """Return an observation in the bounds, with a unit quaternion."""
    contract.observation_space.seed(seed)
    found = contract.observation_space.sample()
    found["tcp_orientation"] = np.array([0.5, -0.5, 0.1, 0.7]) / np.sqrt(1.0)
    return found
