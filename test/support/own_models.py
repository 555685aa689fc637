"""Small user models of an arm with a mesh and motors, a base with wheels, and an arm with a wrist camera."""

from pathlib import Path

from embodied_env.contract import Contract, parse_contract

TETRAHEDRON = "v 0 0 0\nv .1 0 0\nv 0 .1 0\nv 0 0 .1\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 3 1 4\n"

ARM = """
<mujoco model="arm">
  <compiler meshdir="meshes" angle="radian"/>
  <option timestep="0.005" integrator="implicitfast"/>
  <asset><mesh name="link" file="link.obj"/></asset>
  <worldbody>
    <body><joint name="m1" axis="0 0 1" range="-2 2" limited="true" armature="0.05"/><geom type="mesh" mesh="link"/>
      <body pos="0 0 0.2"><joint name="m2" axis="0 1 0" range="-2 2" limited="true" armature="0.05"/>
        <geom type="mesh" mesh="link"/><site name="tip" pos="0 0 0.1"/>TOOL
      </body>
    </body>
  </worldbody>
</mujoco>
"""
SERVOS = (
    '<position name="base_servo" joint="m1" kp="50" kv="5"/><position name="elbow_servo" joint="m2" kp="50" kv="5"/>'
)
MOTORS = (
    '<motor name="t1" joint="m1" gear="10" ctrlrange="-1 1"/><motor name="t2" joint="m2" gear="10" ctrlrange="-1 1"/>'
)
FINGERS = """
<camera name="wrist" pos="0 0 0.1" xyaxes="1 0 0 0 1 0"/>
<body pos="0 0 0.15"><joint name="f1" type="slide" range="0 0.04" limited="true"/><geom size="0.01" pos="0.02 0 0"/></body>
<body pos="0 0 0.15"><joint name="f2" type="slide" range="0 0.04" limited="true"/><geom size="0.01" pos="-0.02 0 0"/></body>
"""
GRIPPER = """
<tendon><fixed name="split"><joint joint="f1" coef="0.5"/><joint joint="f2" coef="0.5"/></fixed></tendon>
<actuator><general name="grip" tendon="split" ctrlrange="0 255" gainprm="0.016" biastype="affine" biasprm="0 -100 -10"/></actuator>
<keyframe><key name="ready" qpos="0.3 0.4 0.01 0.01" ctrl="0.3 0.4 255"/></keyframe>
"""

BASE = """
<mujoco model="base">
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <geom type="plane" size="9 9 1"/><light pos="0 0 3"/>
    <body name="chassis" pos="0 0 0.1"><freejoint/><geom type="box" size="0.15 0.1 0.03" mass="5"/><site name="center"/>
      <geom size="0.05" pos="0.12 0 -0.05" mass="0.1" friction="0" condim="1"/>
      <geom size="0.05" pos="-0.12 0 -0.05" mass="0.1" friction="0" condim="1"/>
      <body pos="0 0.15 0"><joint name="wheel_left_joint" axis="0 1 0"/><geom type="cylinder" size="0.1 0.02" euler="90 0 0"/></body>
      <body pos="0 -0.15 0"><joint name="wheel_right_joint" axis="0 1 0"/><geom type="cylinder" size="0.1 0.02" euler="90 0 0"/></body>
    </body>
  </worldbody>
  <actuator>
    <velocity name="left_vel" joint="wheel_left_joint" kv="5"/><velocity name="right_vel" joint="wheel_right_joint" kv="5"/>
  </actuator>
</mujoco>
"""

CONTRACT = """
contract: embodied_env/1
name: own
version: 1
control_period_s: 0.05
episode: {horizon_steps: 20}
task: {type: no_goal}
"""
OF_ARM = """
sensors:
  joints: {topic: joint_states, type: sensor_msgs/msg/JointState, fields: {position: {joints: [j1, j2], unit: rad, low: -3.0, high: 3.0}}, max_age_s: 0.5}
actuators:
  arm:
    topic: commands
    type: std_msgs/msg/Float64MultiArray
    command: position_delta
    joints: {j1: {position: [-1.5, 1.5], velocity: 1.0, acceleration: 4.0}, j2: {position: [-1.5, 1.5], velocity: 1.0, acceleration: 4.0}}
"""
OF_WRIST = OF_ARM.replace(
    "sensors:",
    "sensors:\n  wrist: {topic: image, type: sensor_msgs/msg/Image, encoding: rgb8, "
    'fields: {image: {shape: [16, 16, 3], unit: "1", low: 0, high: 255}}, max_age_s: 0.5}',
)
OF_BASE = """
sensors:
  odom: {topic: odom, type: nav_msgs/msg/Odometry, fields: {position: {unit: m, low: -9.0, high: 9.0}}, max_age_s: 0.5}
actuators:
  base:
    topic: cmd_vel
    type: geometry_msgs/msg/Twist
    command: twist
    joints: {linear.x: {position: null, velocity: 0.5, acceleration: 1.0, unit: m}, angular.z: {position: null, velocity: 1.0, acceleration: 2.0}}
"""
NAMES = "joints: {j1: m1, j2: m2}"
PROFILES = {
    "arm": f"{NAMES}, home: {{j1: 0.2, j2: -0.3}}",
    "motors": f"{NAMES}, servo_gains: {{j1: &g {{stiffness: 50, damping: 5}}, j2: *g}}",
    "hand_eye": f"{NAMES}, keyframe: ready, sources: {{wrist: {{camera: wrist}}}}, render: {{camera: free}}",
    "base": "drives: {base: {left: wheel_left_joint, right: wheel_right_joint, radius_m: 0.1, separation_m: 0.3}}, "
    "sources: {odom: {odometry: {site: center}}}",
}


def write_model(kind: str, folder: Path) -> Path:
    """Write the files of a model, and return the main file, which is a scene that includes the others."""
    (folder / "meshes").mkdir(parents=True, exist_ok=True)
    (folder / "meshes" / "link.obj").write_text(TETRAHEDRON)
    if kind == "base":
        (folder / "robot.xml").write_text(BASE)
        return folder / "robot.xml"
    (folder / "robot.xml").write_text(ARM.replace("TOOL", FINGERS if kind == "hand_eye" else ""))
    actuators = f"<actuator>{MOTORS if kind == 'motors' else SERVOS}</actuator>"
    floor = '<worldbody><light pos="0 0 3"/><geom type="plane" size="1 1 1" pos="0 0 -1"/></worldbody>'
    extra = GRIPPER if kind == "hand_eye" else ""
    (folder / "scene.xml").write_text(f'<mujoco><include file="robot.xml"/>{floor}{actuators}{extra}</mujoco>')
    return folder / "scene.xml"


def own_contract(kind: str, folder: Path, profile: str | None = None) -> Contract:
    """Write a model into the contract's folder, and return the contract, with another profile if given."""
    model = write_model(kind, folder / "model")
    (folder / "contracts").mkdir(exist_ok=True)
    parts = {"base": OF_BASE, "hand_eye": OF_WRIST}.get(kind, OF_ARM)
    keys = f"{{model: ../model/{model.name}, {PROFILES[kind] if profile is None else profile}}}"
    text = f"{CONTRACT}{parts}backends: {{mujoco: &world {keys}, mujoco_ros: *world}}\n"
    return parse_contract(text, source=str(folder / "contracts" / "own.yaml"))
