"""Stand-ins behave as Gazebo does with our worlds, with forces as collisions and joints at 0."""

import contextlib
import dataclasses

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from nav_msgs.msg import Odometry
from sensor_msgs.msg import Imu, LaserScan
from simulator_stand_ins import STAND_INS, STEP_NS, RosGzStandIn, fill_pose, hosted, stamp_of

import embodied_env
from embodied_env.errors import BackendNotReadyError

pytestmark = pytest.mark.ros

ARM, CART, DOOR = (embodied_env.load_contract(name) for name in ("arm_reach", "cart_goal", "door_open"))
ZEROS = DOOR.backends["gazebo"]["joint_zeros"]
FORCE = CART.backends["gazebo"]["sources"]["collision"]["force"]
SHELF_X = -3.3
AHEAD = {"start": np.array([-3.6, 0.0, 0.0])}


class CartWorld(RosGzStandIn):
    """The cart of the world cart_goal, which drives along x to a shelf.

    `is_alive` is whether its force is measured, `first_ns` when its first message after a reset arrives.

    ForceTorque publishes the weight of the shell without contact (ForceTorque.cc); a contact sensor would publish
    nothing, and a dead one of any kind nothing either.
    """

    def __init__(self, faults):
        super().__init__(faults)
        self.is_alive, self.first_ns = True, 0
        self.last_range_m = 1.0
        self._speed = 0.0
        self._twists = self.node.create_subscription(TwistStamped, "/cmd_vel", print, 10)
        topics = {
            "odom": Odometry,
            "imu": Imu,
            "scan": LaserScan,
            "ground_truth/pose": PoseStamped,
            "ground_truth/goal_pose": PoseStamped,
        }
        self._topics = [(name, self.node.create_publisher(kind, f"/{name}", 10), kind) for name, kind in topics.items()]
        self._force = self.node.create_publisher(WrenchStamped, f"/{FORCE}", 10)

    def _take_commands(self):
        taken = False
        while (found := self._twists.handle.take_message(TwistStamped, False)) is not None:
            self._speed, taken = found[0].twist.linear.x, True
        return taken

    def _publish_joints(self):
        world = self.world
        x, *rest = world.poses["cart"]
        is_touching = x >= SHELF_X
        world.poses["cart"] = (x if is_touching else x + self._speed * STEP_NS / 1e9, *rest)
        if self.is_alive and world.now_ns >= self.first_ns and world.now_ns % 20_000_000 == 0:
            message = WrenchStamped()
            message.header.stamp = stamp_of(world.now_ns)
            message.wrench.force.x, message.wrench.force.z = 9000.0 * is_touching, 0.0098
            self._force.publish(message)
        if world.now_ns % CART.control_period_ns == 0:
            for name, publisher, kind in self._topics:
                publisher.publish(self._reading(name, kind))

    def _reading(self, name, kind):
        message = kind()
        message.header.stamp = stamp_of(self.world.now_ns)
        if kind is Odometry:
            message.header.frame_id, message.child_frame_id = "odom", "base_link"
            message.pose.pose.orientation.w = 1.0
        elif kind is Imu:
            message.header.frame_id = "imu"
        elif kind is LaserScan:
            message.header.frame_id, message.ranges = "laser", [*[1.0] * 89, self.last_range_m]
            message.angle_min, message.angle_max, message.angle_increment = -2.36, 2.36, 4.72 / 89
            message.range_min, message.range_max = 0.05, 8.0
        else:
            pose = self.world.poses["cart"] if name.endswith("/pose") else (3.7, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
            fill_pose(message.pose, pose)
        return message


@contextlib.contextmanager
def environment(contract, stand_in, **profile):
    """Host a stand-in and an environment over it, with the profile of the contract in the world of the stand-in."""
    settings = {**contract.backends["gazebo"], "world": "toy", "step_s": 0.001, "reset_timeout_s": 20.0, **profile}
    shaped = dataclasses.replace(contract, backends={"gazebo": settings})
    with hosted(stand_in) as world, contextlib.closing(embodied_env.make(shaped, backend="gazebo")) as env:
        yield world, env


@pytest.fixture
def cart(domain_id, message_package, monkeypatch):
    message_package("ros_gz_interfaces")
    monkeypatch.setitem(STAND_INS, "cart", CartWorld)
    with environment(CART, "cart", sensor_grace_s=0.5) as made:
        yield made


@pytest.fixture
def arm(domain_id, message_package):
    message_package("ros_gz_interfaces")
    door = DOOR.backends["gazebo"]
    profile = {key: door[key] for key in ("reset", "settle_steps", "joint_zeros")}
    places = {"tool": {"position": [0.1, 0.2, 0.3]}}
    sources = {
        "tcp": {"entity": "tool"},
        "target": {"entity": "target"},
        "true_distance": {"distance": ["tcp", "target"]},
    }
    with environment(ARM, "ros_gz", entities=places, sources=sources, home={}, **profile) as made:
        yield made


def test_a_force_on_the_shell_ends_the_episode_as_a_collision_after_each_reset(cart):
    _, env = cart
    for seed in (1, 2):
        env.reset(seed=seed, options=AHEAD)
        for _ in range(15):
            *_, terminated, truncated, info = env.step(np.array([0.8, 0.0], dtype=np.float32))
            if terminated or truncated:
                break
        assert (terminated, info["end_reason"]) == (True, "failure:collision")


def test_a_reset_fails_when_the_force_sensor_is_silent_and_names_its_topic(cart):
    world, env = cart
    env.reset(seed=1, options=AHEAD)
    world.is_alive = False  # as a contact sensor after a reset of the world
    with pytest.raises(BackendNotReadyError, match=rf"no reading since the reset from {FORCE}"):
        env.reset(seed=2, options=AHEAD)


@pytest.mark.parametrize(("range_m", "reason"), [(8.04, ""), (20.0, "sensor_gap:scan")])
def test_a_lidar_reading_just_above_its_range_is_no_gap(cart, range_m, reason):
    """A hit at the end of the range has noise, while a value far beyond it is no measurement."""
    world, env = cart
    env.reset(seed=1, options=AHEAD)
    world.last_range_m = range_m
    *_, info = env.step(np.zeros(2, dtype=np.float32))
    assert info["end_reason"] == reason


def test_a_reset_steps_on_until_a_restarted_publisher_is_connected(cart):
    world, env = cart
    world.first_ns = 350_000_000
    env.reset(seed=1, options=AHEAD)
    assert world.world.now_ns >= world.first_ns
    *_, info = env.step(np.zeros(2, dtype=np.float32))
    assert info["end_reason"] == ""


def test_a_force_sensor_that_falls_silent_ends_the_episode(cart):
    world, env = cart
    env.reset(seed=1, options=AHEAD)
    world.is_alive = False
    *_, truncated, info = env.step(np.zeros(2, dtype=np.float32))
    assert (truncated, info["end_reason"]) == (True, "backend_lost:sensor_late")


def test_joints_at_0_in_the_simulator_are_where_the_contract_has_them(arm):
    world, env = arm
    observation, _ = env.reset(seed=1)
    zeros = np.array([ZEROS.get(joint, 0.0) for joint in ARM.actuators["arm"].joints])
    np.testing.assert_allclose(observation["joints_position"], zeros, atol=1e-6)
    observation, *_, info = env.step(np.array([0.01, 0.01, 0.0, 0.0, 0.0, 0.0], dtype=np.float32))
    assert info["end_reason"] == ""
    first, second, *others = world.world.command
    assert 0.0 < first <= 0.01
    assert second == pytest.approx(first)
    assert others == pytest.approx([0.0] * 4, abs=1e-6)
    np.testing.assert_allclose(observation["joints_position"], zeros + np.array(world.world.position), atol=1e-6)


def test_a_reset_of_the_door_takes_a_tenth_of_the_2000_steps_that_homing_took(arm):
    world, env = arm
    env.reset(seed=1)
    assert world.world.iterations == 200 + ARM.control_period_ns // STEP_NS
