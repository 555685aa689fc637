"""A contract whose driver has the units degrees, percent, whole numbers, and two fingers as one."""

from embodied_env.contract import parse_contract

_UNITS = {
    "DEG": "driver: {unit: deg, sign: -1, offset: 0.3}",
    "FINGER": "driver: {unit: percent, scale: 0.04, sign: -1, offset: 0.04}",
    "FIELDS": "driver: [{unit: deg}, {unit: deg, sign: -1, offset: 0.1}, {scale: 0.001}, {}]",
    "SPEEDS": "driver: {unit: deg, scale: 3.0}",
    "RANGE": "driver: {scale: 0.001}",
}
_TEXT = """
contract: embodied_env/1
name: driver_units
version: 1
control_period_s: 0.05
episode: {horizon_steps: 100}
task: {type: no_goal}
sensors:
  joints:
    topic: joint_states
    type: sensor_msgs/msg/JointState
    max_age_s: 0.5
    fields:
      position: {joints: [j1, j2, left, right], unit: [rad, rad, m, m], low: -4.0, high: 4.0, FIELDS}
  speeds:
    topic: speeds
    type: sensor_msgs/msg/JointState
    max_age_s: 0.5
    fields: {velocity: {joints: [j1, j2], unit: rad/s, low: -9.0, high: 9.0, SPEEDS}}
  distance:
    topic: distance
    type: geometry_msgs/msg/PointStamped
    max_age_s: 0.5
    fields: {position: {unit: m, low: -9.0, high: 9.0, RANGE}}
actuators:
  arm:
    topic: commands
    type: std_msgs/msg/Float64MultiArray
    command: position_delta
    joints:
      j1: {position: [-2.0, 2.0], velocity: 1.0, acceleration: 8.0, DEG}
      j2: {position: null, velocity: 1.0, acceleration: 8.0}
  hand:
    topic: hand
    type: sensor_msgs/msg/JointState
    command: position
    scale: binary
    joints: {left: {position: [0.0, 0.04], velocity: 0.2, acceleration: 4.0, unit: m, FINGER}}
    gripper: {open: 0.04, closed: 0.0, mimic: {right: -1.0}}
backends:
  fake: {}
  mujoco: &world {sources: {distance: {site: tip}}}
  mujoco_ros: *world
  real: {discovery_s: 0.0, reset_timeout_s: 8.0, reset: {service: simulator/reset, parameters: true}}
"""


def driver_units_contract(*, plain=False):
    """Return the contract, or with `plain` one without the units of a driver."""
    text = _TEXT
    for name, units in _UNITS.items():
        text = text.replace(f", {name}", "" if plain else f", {units}")
    return parse_contract(text)
