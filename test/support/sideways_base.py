"""The contract of a base that moves sideways, with a kinematic drive in a generated model."""

from embodied_env.contract import parse_contract

_TEXT = """
contract: embodied_env/1
name: sideways
version: 1
control_period_s: 0.1
episode: {{horizon_steps: 200}}
action: {{dtype: float32}}
sensors:
  odom:
    topic: odom
    type: nav_msgs/msg/Odometry
    max_age_s: 0.5
    timeline: {timeline}
    fields:
      position: {{unit: m, low: -1000.0, high: 1000.0}}
      orientation: {{unit: "1", low: -1.01, high: 1.01}}
      linear: {{unit: m/s, low: -10.0, high: 10.0}}
      angular: {{unit: rad/s, low: -20.0, high: 20.0}}
actuators:
  base:
    topic: cmd_vel
    type: geometry_msgs/msg/Twist
    command: twist
    joints:
      linear.x: {{velocity: 1.0, acceleration: 4.0, unit: m}}
      linear.y: {{velocity: 0.5, acceleration: 4.0, unit: m}}
      angular.z: {{velocity: 1.0, acceleration: 8.0}}
task: {{type: no_goal}}
backends:
  mujoco: {profile}
  mujoco_ros: {profile}
  real: {{downstream_timeout_s: 0.5}}
"""
PROFILE = "{sources: {odom: {odometry: {site: base_link}}}, site_drives: {base: {site: base_link}}}"


def sideways_base(*, timeline="header", profile=PROFILE, source=""):
    """Return the contract, with the file `source` as its source."""
    return parse_contract(_TEXT.format(timeline=timeline, profile=profile), source=source)
