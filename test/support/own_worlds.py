"""SDF worlds in the shapes of public examples, as mappings from relative path to text that contain `world.sdf`."""

from pathlib import Path

SYSTEMS = """
    <plugin filename="gz-sim-physics-system" name="gz::sim::systems::Physics"/>
    <plugin filename="gz-sim-user-commands-system" name="gz::sim::systems::UserCommands"/>
    <plugin filename="gz-sim-scene-broadcaster-system" name="gz::sim::systems::SceneBroadcaster"/>
    <plugin filename="gz-sim-sensors-system" name="gz::sim::systems::Sensors"/>
    <plugin filename="gz-sim-imu-system" name="gz::sim::systems::Imu"/>"""

GROUND = '<model name="ground_plane"><static>true</static><link name="link"/></model>'


def world(name, *models, systems=SYSTEMS, physics="<real_time_factor>0</real_time_factor>"):
    """Return the text of a world with a physics step of 1 ms."""
    step = f'<physics name="1ms" type="ignored"><max_step_size>0.001</max_step_size>{physics}</physics>'
    body = "\n".join((step, systems, GROUND, *models))
    return f'<?xml version="1.0"?>\n<sdf version="1.9"><world name="{name}">{body}</world></sdf>\n'


def joint(name, *, kind="revolute", low=-2.0, high=2.0, speed=1.5):
    limits = f"<limit><lower>{low}</lower><upper>{high}</upper><velocity>{speed}</velocity></limit>"
    return f'<joint name="{name}" type="{kind}"><axis><xyz>0 0 1</xyz>{limits}</axis></joint>'


def system(name, filename, content=""):
    """Return a plug-in of gz-sim."""
    return f'<plugin filename="gz-sim-{filename}-system" name="gz::sim::systems::{name}">{content}</plugin>'


STATES = system("JointStatePublisher", "joint-state-publisher", "<update_rate>20</update_rate>")

LIDAR = """<sensor name="front lidar" type="gpu_lidar"><topic>lidar</topic><update_rate>10</update_rate><lidar><scan>
<horizontal><samples>36</samples><min_angle>-1.5</min_angle><max_angle>1.5</max_angle></horizontal></scan>
<range><min>0.1</min><max>8</max></range></lidar></sensor>"""

CAMERA = """<sensor name="camera" type="camera"><update_rate>20</update_rate><camera><image><width>32</width>
<height>24</height></image></camera></sensor>"""

DRIVE = """<left_joint>left</left_joint><right_joint>right</right_joint><wheel_separation>0.4</wheel_separation>
<max_linear_velocity>0.5</max_linear_velocity><min_linear_velocity>-0.2</min_linear_velocity>
<max_linear_acceleration>1</max_linear_acceleration>"""

VEHICLE = f"""<model name="{{name}}"><link name="chassis">{{sensors}}</link>
<joint name="left" type="revolute"><axis><xyz>0 1 0</xyz></axis></joint>
<joint name="right" type="revolute"><axis><xyz>0 1 0</xyz></axis></joint>
{system("DiffDrive", "diff-drive", DRIVE)}{{more}}</model>"""

CONTROLLERS = """
controller_manager:
  ros__parameters:
    update_rate: 100
    joint_state_broadcaster: {type: joint_state_broadcaster/JointStateBroadcaster}
    arm_controller: {type: joint_trajectory_controller/JointTrajectoryController}
arm_controller:
  ros__parameters:
    joints: [shoulder, elbow]
    command_interfaces: [position]
"""

POSE = "<topic>pose</topic><publish_link_pose>false</publish_link_pose><publish_model_pose>true</publish_model_pose>"

OWN_WORLDS = {
    "wheels": {
        "world.sdf": world(
            "wheels",
            VEHICLE.format(
                name="rover",
                sensors=LIDAR + '<sensor name="imu" type="imu"><update_rate>100</update_rate></sensor>',
                more=system("PosePublisher", "pose-publisher", f"{POSE}<update_frequency>10</update_frequency>"),
            ),
            physics="",
        )
    },
    "controlled_arm": {
        "world.sdf": world(
            "controlled_arm",
            f"""<model name="arm"><link name="base"/>{joint("shoulder")}{joint("elbow", low=0.5, high=2.5)}
<plugin filename="gz_ros2_control-system" name="gz_ros2_control::GazeboSimROS2ControlPlugin">
<parameters>controllers.yaml</parameters></plugin></model>""",
        ),
        "controllers.yaml": CONTROLLERS,
    },
    "camera_arm": {
        "world.sdf": world(
            "camera_arm",
            f"""<model name="robot"><link name="base"/><link name="hand">{CAMERA}</link>{joint("turn")}
{joint("slide", kind="prismatic", low=0.0, high=0.4)}{STATES}
{system("JointPositionController", "joint-position-controller", "<joint_name>turn</joint_name>")}
{system("JointPositionController", "joint-position-controller", "<joint_name>slide</joint_name><topic>s</topic>")}
</model>""",
        )
    },
    "two_vehicles": {
        "world.sdf": world(
            "two_vehicles",
            VEHICLE.format(name="blue", sensors="", more=""),
            VEHICLE.format(name="green", sensors=CAMERA, more=""),
        )
    },
    "included": {
        "world.sdf": world(
            "included",
            "<include><uri>model://arm</uri><name>left arm</name></include>",
            "<include><uri>https://fuel.gazebosim.org/1.0/openrobotics/models/sun</uri></include>",
        ),
        "arm/model.sdf": f"""<sdf version="1.9"><model name="arm"><link name="base"/>{joint("j1")}
<include merge="true"><uri>../wrist.sdf</uri></include>{STATES}
{system("JointTrajectoryController", "joint-trajectory-controller", "<topic>arm/joint_trajectory</topic>")}
</model></sdf>""",
        "wrist.sdf": f"""<sdf version="1.9"><model name="wrist"><link name="wrist"/>{joint("j2")}</model></sdf>""",
    },
    "broken": {
        "world.sdf": world(
            "broken",
            f"""<model name="thing"><link name="base"><sensor name="bump" type="contact"/>
<sensor name="gauge" type="altimeter"/>{LIDAR}</link>{joint("hinge")}<plugin filename="mystery" name="acme::Mystery"/>
{system("JointPositionController", "joint-position-controller", "<joint_name>hinge</joint_name>")}
</model>""",
            systems=system("Physics", "physics"),
        )
    },
}
"""Shape -> its files."""


def write_world(kind, folder):
    """Write the files of a world, and return the path of `world.sdf`."""
    for name, text in OWN_WORLDS[kind].items():
        file = Path(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Path(folder, "world.sdf")
