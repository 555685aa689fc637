import json
import re
from pathlib import Path

import pytest
import yaml
from own_worlds import OWN_WORLDS, SYSTEMS, VEHICLE, joint, system, world, write_world

import embodied_env
from embodied_env.cli.main import main

ALSO = {"two_vehicles": ["--model", "green"]}
BRIDGE_TYPES = {  # the pairs of ros_gz_bridge that a draft may use
    ("geometry_msgs/msg/PoseStamped", "gz.msgs.Pose"),
    ("geometry_msgs/msg/Twist", "gz.msgs.Twist"),
    ("geometry_msgs/msg/TwistStamped", "gz.msgs.Twist"),
    ("geometry_msgs/msg/WrenchStamped", "gz.msgs.Wrench"),
    ("nav_msgs/msg/Odometry", "gz.msgs.Odometry"),
    ("rosgraph_msgs/msg/Clock", "gz.msgs.Clock"),
    ("sensor_msgs/msg/Image", "gz.msgs.Image"),
    ("sensor_msgs/msg/Imu", "gz.msgs.IMU"),
    ("sensor_msgs/msg/JointState", "gz.msgs.Model"),
    ("sensor_msgs/msg/LaserScan", "gz.msgs.LaserScan"),
    ("sensor_msgs/msg/NavSatFix", "gz.msgs.NavSat"),
    ("std_msgs/msg/Float64", "gz.msgs.Double"),
    ("trajectory_msgs/msg/JointTrajectory", "gz.msgs.JointTrajectory"),
}
SERVICES = {("ros_gz_interfaces/srv/ControlWorld", "control"), ("ros_gz_interfaces/srv/SetEntityPose", "set_pose")}


def drafted(kind, folder, capsys, *options):
    """Return the contract of a world, the entries of its bridge, and what is missing as remedies by reason."""
    file = folder / "own.yaml"
    given = ["--from-sdf", str(write_world(kind, folder)), *ALSO.get(kind, []), "-o", str(file), *options]
    assert main(["contract", "init", *given, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    gaps = {gap["unknown"]: gap["remedy"] for gap in result["gaps"]}
    return embodied_env.load_contract(file), yaml.safe_load(Path(result["bridge"]).read_text()), gaps


@pytest.mark.parametrize("kind", OWN_WORLDS)
def test_a_bridge_has_the_topics_of_its_contract_by_types_that_it_converts(kind, tmp_path, capsys):
    contract, bridge, _ = drafted(kind, tmp_path, capsys)
    topics = {entry["ros_topic_name"]: entry for entry in bridge if "ros_topic_name" in entry}
    for entry in topics.values():
        assert (entry["ros_type_name"], entry["gz_type_name"]) in BRIDGE_TYPES
    assert {
        (e["ros_type_name"], e["service_name"].rpartition("/")[2]) for e in bridge if "service_name" in e
    } == SERVICES
    sensors = {sensor.topic: ("GZ_TO_ROS", sensor.type) for sensor in contract.sensors.values()}
    actuators = {each.topic: ("ROS_TO_GZ", each.type) for each in contract.actuators.values()}
    entries = {name: (each["direction"], each["ros_type_name"]) for name, each in topics.items() if name != "/clock"}
    assert entries == {name: each for name, each in (sensors | actuators).items() if name in entries}
    outside = {"controlled_arm": {"joint_states", "arm_controller/joint_trajectory"}, "broken": {"joint_states"}}
    assert (sensors | actuators).keys() - entries.keys() == outside.get(kind, set())
    assert contract.backends["gazebo"]["world"] == kind


def test_a_vehicle_has_the_topics_limits_and_rates_of_its_world(tmp_path, capsys):
    contract, bridge, gaps = drafted("wheels", tmp_path, capsys)
    base, scan = contract.actuators["base"], contract.sensors["front_lidar"]
    assert (base.topic, base.joints["linear.x"].velocity, base.joints["linear.x"].acceleration) == (
        "model/rover/cmd_vel",
        (-0.2, 0.5),
        1.0,
    )
    assert (scan.topic, scan.fields["ranges"].shape, scan.fields["ranges"].high) == ("lidar", (36,), 8.0)
    assert contract.sensors["imu"].topic == "world/wheels/model/rover/link/chassis/sensor/imu/imu"
    assert [entry["gz_topic_name"] for entry in bridge if "gz_topic_name" in entry][:3] == [
        "/world/wheels/clock",
        "/model/rover/cmd_vel",
        "/model/rover/odometry",
    ]
    throttled = "real_time_factor 1 (the default of SDF): a step takes at least 1 times its duration"
    assert (
        gaps[throttled] == "<real_time_factor>0</real_time_factor> in <physics>, or launch gazebo real_time_factor:=0"
    )
    text = (tmp_path / "own.yaml").read_text()
    assert "# Found: odometry of DiffDrive of rover, 50 Hz; topic and rate by default of the plug-in." in text
    assert "# Found: gpu_lidar front lidar, 10 Hz.\n" in text
    assert "# step_s: found; settle_steps: chosen" in text


def test_an_arm_of_gz_ros2_control_has_its_controllers_and_a_soft_reset(tmp_path, capsys):
    contract, bridge, gaps = drafted("controlled_arm", tmp_path, capsys)
    assert list(contract.actuators["arm"].joints) == ["shoulder", "elbow"]
    profile = contract.backends["gazebo"]
    assert (profile["reset"], dict(profile["home"])) == ("soft", {"shoulder": 0.0, "elbow": 0.54})
    assert len([entry for entry in bridge if "ros_topic_name" in entry]) == 1
    assert "robot_state_publisher and the spawner of the controllers" in gaps


def test_joints_of_one_topic_each_are_actuators_and_included_or_merged_joints_are_those_of_the_model(tmp_path, capsys):
    contract, _, _ = drafted("camera_arm", tmp_path, capsys)
    topics = {name: each.topic for name, each in contract.actuators.items()}
    assert topics == {"turn": "model/robot/joint/turn/_0/cmd_pos", "slide": "s"}
    assert contract.actuators["slide"].joints["slide"].unit == "m"
    assert contract.sensors["camera"].fields["image"].shape == (24, 32, 3)
    contract, _, gaps = drafted("included", tmp_path, capsys, "--force")
    assert list(contract.actuators["arm"].joints) == ["j1", "j2"]
    assert contract.sensors["joints"].topic == "world/included/model/left_arm/joint_state"
    assert any(what.startswith("the model https://fuel.gazebosim.org") for what in gaps)


@pytest.mark.parametrize(
    ("what", "remedy"),
    [
        ("the system UserCommands:", 'add to <world>: <plugin filename="gz-sim-user-commands-system"'),
        ("the system Sensors:", 'name="gz::sim::systems::Sensors"/>'),
        ("joint states of hinge", '<plugin filename="gz-sim-joint-state-publisher-system"'),
        ("contact bump is not observed", "after a world reset in gz-sim 8, 9, and 10 before 10.4"),
        ("the plug-in 'acme::Mystery' of thing: unknown", "add its topics by hand"),
        ("altimeter gauge: unknown", "add its topic by hand"),
    ],
)
def test_what_lockstep_lacks_is_listed_with_the_line_to_add(what, remedy, tmp_path, capsys):
    _, _, gaps = drafted("broken", tmp_path, capsys)
    (found,) = [where for gap, where in gaps.items() if gap.startswith(what)]
    assert remedy in found


@pytest.mark.parametrize("rate", [".inf", ".nan", "-1", "x"])
def test_an_update_rate_that_is_no_rate_is_that_of_the_physics_steps(rate, tmp_path, capsys):
    own_world = write_world("controlled_arm", tmp_path)
    (file,) = (each for each in tmp_path.glob("*.yaml") if "update_rate" in each.read_text())
    file.write_text(re.sub(r"update_rate: \S+", f"update_rate: {rate}", file.read_text()))
    given = ["--from-sdf", str(own_world), "-o", str(tmp_path / "own.yaml"), "--json"]
    assert main(["contract", "init", *given]) == 0
    assert "publishes at every physics step" in capsys.readouterr().out


@pytest.mark.parametrize("rate", ["1e-320", "1e-9", "1e9"])
def test_a_rate_that_no_topic_has_is_refused(rate, tmp_path, capsys):
    plugins = system(
        "OdometryPublisher", "odometry-publisher", f"<odom_publish_frequency>{rate}</odom_publish_frequency>"
    )
    (tmp_path / "w.sdf").write_text(world("w", VEHICLE.format(name="rover", sensors="", more=plugins), systems=SYSTEMS))
    assert main(["contract", "init", "--from-sdf", str(tmp_path / "w.sdf"), "-o", str(tmp_path / "own.yaml")]) == 2
    assert "odom_publish_frequency: " in capsys.readouterr().err


def test_topics_of_one_name_in_ros_are_not_bridged_to_one(tmp_path, capsys):
    cameras = "".join(f"<sensor name='c{end}' type='camera'><topic>c{end}</topic></sensor>" for end in ("-1", "_1"))
    cameras += "<sensor name='late' type='camera'><topic>clock</topic></sensor>"
    text = world("w", VEHICLE.format(name="rover", sensors=cameras, more=""), systems=SYSTEMS)
    (tmp_path / "w.sdf").write_text(text)
    assert main(["contract", "init", "--from-sdf", str(tmp_path / "w.sdf"), "-o", str(tmp_path / "own.yaml")]) == 0
    printed = capsys.readouterr().out
    assert "/c_1 of camera c_1 would be c_1 in ROS 2, as /c-1 of camera c-1: left out" in printed
    assert "/clock of camera late would be clock in ROS 2, as the clock: left out" in printed
    bridge = yaml.safe_load((tmp_path / "own.bridge.yaml").read_text())
    names = [entry["ros_topic_name"] for entry in bridge if "ros_topic_name" in entry]
    assert len(names) == len(set(names))


def test_joints_of_one_name_in_two_models_are_listed(tmp_path, capsys):
    (tmp_path / "w.sdf").write_text(
        world("w", f"<model name='m'>{joint('j')}<model name='n'>{joint('j')}</model></model>")
    )
    main(["contract", "init", "--from-sdf", str(tmp_path / "w.sdf"), "--model", "m", "-o", str(tmp_path / "own.yaml")])
    assert "joint j of n: its limits are those of m" in capsys.readouterr().out


def test_wrong_options_write_no_file(tmp_path, capsys):
    out, world_file = tmp_path / "own.yaml", str(write_world("two_vehicles", tmp_path))
    (tmp_path / "mine.bridge.yaml").write_text("mine")
    for options, problem in (
        (["-o", str(out)], "blue, green (expected one); choose one with --model"),
        ([], "expected --output FILE"),
        (["-o", str(out), "--robot", "ur5e"], "expected --output FILE"),
        (["-o", str(tmp_path / "mine.yaml")], "mine.bridge.yaml exists"),
    ):
        assert main(["contract", "init", "--from-sdf", world_file, *options]) == 2
        assert problem in capsys.readouterr().err
    assert not out.exists()


def test_a_slow_sensor_is_due_at_its_own_rate_and_a_second_one_of_a_topic_is_left_out(tmp_path, capsys):
    rates = "<odom_publish_frequency>3</odom_publish_frequency>"
    plugins = system("OdometryPublisher", "odometry-publisher", rates)
    text = world("slow", VEHICLE.format(name="rover", sensors="", more=plugins), systems=SYSTEMS)
    text = text.replace("<left_joint>", "<odom_publish_frequency>3</odom_publish_frequency><left_joint>")
    (tmp_path / "slow.sdf").write_text(text)
    file = tmp_path / "own.yaml"
    assert main(["contract", "init", "--from-sdf", str(tmp_path / "slow.sdf"), "-o", str(file)]) == 0
    contract = embodied_env.load_contract(file)
    assert {name: (each.rate_hz, each.max_age_s) for name, each in contract.sensors.items()} == {"odom": (3.0, 1.0)}
    assert (
        "of OdometryPublisher of rover would be model/rover/odometry in ROS 2, as /model/rover/odometry of odometry of DiffDrive"
        in capsys.readouterr().out
    )
