"""Robots with uncommon interfaces as ROS 2 nodes, which follow commands at once."""

import math
import threading
import time
from collections.abc import Callable

import rclpy
from geometry_msgs.msg import Twist
from nav_msgs.msg import Odometry
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState, LaserScan
from std_msgs.msg import Bool, Float64MultiArray, String
from trajectory_msgs.msg import JointTrajectory

from embodied_env.messages.message_types import message_class

BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def joint(name, kind, parent, child, inside=""):
    return f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>{inside}</joint>'


ARM_URDF = "".join(
    [
        '<robot name="left"><link name="base"/>',
        *(f'<link name="l{i}"/>' for i in range(1, 8)),
        joint("waist", "revolute", "base", "l1", '<limit lower="-3" upper="3" velocity="2.0" effort="10"/>'),
        joint("shoulder", "revolute", "l1", "l2", '<limit lower="-2" upper="2" velocity="1.5" effort="10"/>'),
        joint("elbow", "continuous", "l2", "l3", '<limit velocity="1.0" effort="10"/>'),
        joint("slide", "prismatic", "l3", "l4", '<limit lower="0" upper="0.3" velocity="0.2" effort="10"/>'),
        joint("left_finger", "prismatic", "l4", "l5", '<limit lower="0" upper="0.04" velocity="0.1" effort="1"/>'),
        joint("right_finger", "prismatic", "l4", "l6", '<limit lower="0" upper="0.04" velocity="0.1" effort="1"/><mimic joint="left_finger"/>'),
        joint("cover", "floating", "l4", "l7"),
        "</robot>",
    ]
)  # fmt: skip


class OddRobot:
    """A node in a separate context and thread."""

    namespace, period_s = "/", 0.02
    build: Callable
    publish: Callable

    def __init__(self, domain_id):
        self._context = Context()
        rclpy.init(context=self._context, domain_id=domain_id)
        self.node = rclpy.create_node("driver", namespace=self.namespace, context=self._context)
        self.build()
        self.node.create_timer(self.period_s, self.publish)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self.start()
        self._thread = threading.Thread(target=self._spin)
        self._ended = threading.Event()
        self._thread.start()

    def start(self):
        """Add further nodes."""

    def _spin(self):
        while not self._ended.is_set():
            self._executor.spin_once(timeout_sec=0.05)

    def stamp(self):
        return self.node.get_clock().now().to_msg()

    def states(self, positions):
        """Return stamped joint states."""
        message = JointState(name=list(positions), position=list(positions.values()))
        message.header.stamp = self.stamp()
        return message

    def close(self):
        self._ended.set()
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)


class JointRobot(OddRobot):
    """A robot that reports joint positions, and moves to those of trajectories."""

    positions: dict

    def publish_states(self, qos=10, *, description=ARM_URDF):
        self._states = self.node.create_publisher(JointState, "joint_states", qos)
        if description:
            self._description = self.node.create_publisher(String, "robot_description", LATCHED)
            self._description.publish(String(data=description))

    def move(self, message):
        self.positions |= dict(zip(message.joint_names, message.points[-1].positions, strict=True))

    def publish(self):
        self._states.publish(self.states(self.positions))


class NamespacedArm(JointRobot):
    """An arm whose joint states also have a gripper, its mimic joint and a wheel, in another order."""

    namespace = "/left"

    def build(self):
        names = ("wheel", "right_finger", "slide", "waist", "left_finger", "elbow", "shoulder")
        self.positions = dict.fromkeys(names, 0.0) | {"slide": 0.1, "shoulder": 0.4}
        self.publish_states(BEST_EFFORT)
        self._stop = self.node.create_publisher(Bool, "emergency_stop", LATCHED)
        self._stop.publish(Bool(data=False))
        self.node.declare_parameter("joints", ["waist", "shoulder", "elbow", "slide"])
        self.node.create_subscription(JointTrajectory, "arm_controller/joint_trajectory", self.move, 10)


class ControlledArm(JointRobot):
    """Has a controller manager with an inactive forward controller and an active trajectory controller."""

    def build(self):
        from controller_manager_msgs.msg import ControllerState
        from controller_manager_msgs.srv import ListControllers

        self.positions = {"waist": 0.0, "elbow": 0.0}
        self.publish_states(description="")
        interfaces = ["elbow/position", "waist/position"]
        reply = ListControllers.Response(
            controller=[
                ControllerState(name=name, state=state, required_command_interfaces=interfaces)
                for name, state in (("forward_controller", "inactive"), ("scaled_controller", "active"))
            ]
        )
        self.node.create_service(ListControllers, "controller_manager/list_controllers", lambda _, __: reply)
        self.node.create_subscription(Float64MultiArray, "forward_controller/commands", lambda _: None, 10)
        self.node.create_subscription(JointTrajectory, "scaled_controller/joint_trajectory", self.move, 10)


class Base(OddRobot):
    """A base that takes a Twist, with best effort odometry and scan, and odometry without stamps."""

    period_s = 0.05

    def build(self):
        self.velocity, self.fastest = Twist(), 0.0
        self._odometry = self.node.create_publisher(Odometry, "wheel_odom", BEST_EFFORT)
        self._scan = self.node.create_publisher(LaserScan, "front/scan", BEST_EFFORT)
        self.node.create_subscription(Twist, "cmd_vel", self._drive, BEST_EFFORT)

    def _drive(self, message):
        self.velocity = message
        self.fastest = max(self.fastest, message.linear.x)

    def publish(self):
        message = Odometry(child_frame_id="base_footprint")
        message.header.frame_id = "odom"
        message.pose.pose.orientation.w = 1.0
        message.twist.twist = self.velocity
        self._odometry.publish(message)
        scan = LaserScan(range_min=0.1, range_max=8.0, ranges=[1.0, float("inf"), float("nan"), 2.0])
        scan.header.frame_id, scan.header.stamp = "laser", self.stamp()
        self._scan.publish(scan)


class ArmWithActionServer(JointRobot):
    """Takes positions of two joints on a topic, and those of a finger by goals of an action server."""

    def build(self):
        from rclpy.action import ActionServer

        self._type = message_class("control_msgs/action/GripperCommand")
        self.positions = {"waist": 0.0, "elbow": 0.0, "left_finger": 0.01}
        self.node.declare_parameter("joints", ["waist", "elbow"])
        self.node.declare_parameter("joint", "left_finger")
        self.publish_states()
        self.node.create_subscription(Float64MultiArray, "arm_controller/commands", self.move, 10)
        self._server = ActionServer(self.node, self._type, "gripper_controller/gripper_cmd", self._grip)

    def move(self, message):
        self.positions |= dict(zip(("waist", "elbow"), message.data, strict=True))

    def _grip(self, handle):
        self.positions["left_finger"] = handle.request.command.position
        handle.succeed()
        return self._type.Result(reached_goal=True)

    def close(self):
        self._ended.set()
        self._thread.join()
        self._server.destroy()
        super().close()


class Quadruped(OddRobot):
    """A robot that walks at a fifth of the commanded twist, and reports poses and positions only."""

    share = 0.2

    def build(self):
        self.velocity, self.pose, self.moved_s = (0.0, 0.0, 0.0), [0.0, 0.0, 0.0], time.monotonic()
        self._states = self.node.create_publisher(JointState, "joint_states", 10)
        self._odometry = self.node.create_publisher(Odometry, "odom", 10)
        self.node.create_subscription(Twist, "cmd_vel_out", self._walk, 10)

    def _walk(self, message):
        self.velocity = tuple(self.share * v for v in (message.linear.x, message.linear.y, message.angular.z))

    def publish(self):
        (x, y, turn), (cos, sin) = self.velocity, (math.cos(self.pose[2]), math.sin(self.pose[2]))
        elapsed_s, self.moved_s = time.monotonic() - self.moved_s, time.monotonic()
        moved = cos * x - sin * y, sin * x + cos * y, turn
        self.pose = [place + elapsed_s * speed for place, speed in zip(self.pose, moved, strict=True)]
        message = Odometry(child_frame_id="base_link")
        message.header.frame_id, message.header.stamp = "odom", self.stamp()
        message.pose.pose.position.x, message.pose.pose.position.y = self.pose[:2]
        message.pose.pose.orientation.z = math.sin(self.pose[2] / 2)
        message.pose.pose.orientation.w = math.cos(self.pose[2] / 2)
        self._odometry.publish(message)
        legs = [f"{leg}_{part}_joint" for leg in ("FL", "FR", "RL", "RR") for part in ("hip", "thigh", "calf")]
        self._states.publish(self.states(dict.fromkeys(legs, 0.1)))


class SharedNode(JointRobot):
    """An arm, a lift and two fingers on one node in simulated time, with controllers as nodes for parameters."""

    def build(self):
        self.positions = dict.fromkeys(("lift", "a1", "a2", "a3", "left_finger", "right_finger"), 0.1)
        limit = '<limit lower="-1" upper="1" velocity="1" effort="1"/>'
        body = "".join(joint(name, "revolute", "b", f"{name}_link", limit) for name in self.positions)
        links = "".join(f'<link name="{name}"/>' for name in ("b", *(f"{each}_link" for each in self.positions)))
        self.publish_states(description=f'<robot name="r">{links}{body}</robot>')
        self.received, self.controllers = [], []
        self._clock = self.node.create_publisher(Clock, "/clock", 10)
        self._start_s = time.monotonic()
        for name, joints in (
            ("arm_controller", ["a3", "a1", "a2"]),
            ("torso_controller", ["lift"]),
            ("gripper_controller", ["left_finger", "right_finger"]),
        ):
            controller = rclpy.create_node(name, context=self._context)
            controller.declare_parameter("joints", joints)
            self.controllers.append(controller)
            self.node.create_subscription(JointTrajectory, f"{name}/joint_trajectory", self.move, 10)

    def start(self):
        for controller in self.controllers:
            self._executor.add_node(controller)

    def move(self, message):
        self.received.append(sorted(message.joint_names))
        super().move(message)

    def publish(self):
        message = self.states(self.positions)
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(
            int((time.monotonic() - self._start_s + 100.0) * 1e9), 10**9
        )
        self._clock.publish(Clock(clock=message.header.stamp))
        self._states.publish(message)

    def close(self):
        super().close()
        for controller in self.controllers:
            controller.destroy_node()
