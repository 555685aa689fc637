"""A task that is learned in seconds, in which one joint follows a target in the fake world, and its contract."""

from dataclasses import dataclass
from typing import Any

from embodied_env.contract import Contract, parse_contract
from embodied_env.core.types import Snapshot, TaskResult, Verdict

TEXT = """
contract: embodied_env/1
name: follow
version: 1
control_period_s: 0.05
episode: {horizon_steps: 30, kind: time_limit}
sensors:
  joints:
    topic: joint_states
    type: sensor_msgs/msg/JointState
    fields: {position: {joints: [wrist], unit: rad, low: -3.0, high: 3.0}}
    max_age_s: 0.15
  target:
    topic: target_pose
    type: geometry_msgs/msg/PoseStamped
    fields: {position: {unit: m, low: -1.0, high: 1.0}}
    max_age_s: 0.15
actuators:
  wrist:
    topic: wrist_controller/commands
    type: std_msgs/msg/Float64MultiArray
    command: position_delta
    scale: normalized
    joints:
      wrist: {position: [-2.0, 2.0], velocity: 2.0, acceleration: 40.0, deceleration: 40.0}
safety: {mode: enforce}
reset_options:
  target: {type: vector, low: [-1.0, -1.0, -1.0], high: [1.0, 1.0, 1.0]}
task: {type: "learnable_tasks:Follow", radius_rad: 0.1}
backends:
  fake: {}
"""


@dataclass(frozen=True, kw_only=True)
class FollowParameters:
    radius_rad: float


class Follow:
    """Success when the joint angle, in rad, equals the target's x, in m."""

    version = 1
    terms = ("distance",)
    Parameters = FollowParameters

    def __init__(self, contract: Contract, parameters: FollowParameters) -> None:
        self._p = parameters

    def judge(self, previous: Snapshot, current: Snapshot, applied: Any) -> TaskResult:
        asked = current.samples["target"].values["position"][0]
        distance = abs(float(asked - current.samples["joints"].values["position"][0]))
        verdict = Verdict(success=distance <= self._p.radius_rad)
        return TaskResult(reward=-distance, verdict=verdict, terms={"distance": -distance})


def follow(**changes: str) -> Contract:
    """Return the contract, with parts of its text replaced."""
    text = TEXT
    for old, new in changes.items():
        text = text.replace(old, new)
    return parse_contract(text)
