"""Parts of ROS graphs as plain values, and the contract that is drafted from them."""

import math

from embodied_env.contract import parse_contract
from embodied_env.extensions.contract_init.contract_draft import Draft, dump_draft, finish_draft
from embodied_env.extensions.contract_init.driver_answers import Answers
from embodied_env.extensions.contract_init.graph_topics import Endpoint, Graph, Topic, topics_of_robot
from embodied_env.extensions.contract_init.robot_graph import add_graph

JOINTS = ("j1", "j2")
ARRAY, TRAJECTORY = "std_msgs/msg/Float64MultiArray", "trajectory_msgs/msg/JointTrajectory"
LIMIT = '<limit lower="-1" upper="1" velocity="{velocity}" effort="1"/>'


def states(name="/joint_states", joints=JOINTS, *, positions=(), **sample):
    position = {j: p for j, p in zip(joints, positions or (0.0,) * len(joints), strict=True) if math.isfinite(p)}
    known = {"names": list(dict.fromkeys(joints)), "position": position, "velocity": dict(position)}
    known |= {"repeated": [], "not_finite": [j for j in joints if j not in position], **sample}
    return published(name, "sensor_msgs/msg/JointState", known)


def published(name, kind, sample=None, *, count=100, nodes=("/driver",)):
    sample = {"left_out": []} if sample is None else sample
    ends = tuple(Endpoint(node=node) for node in nodes)
    return Topic(name=name, type=kind, publishers=ends, count=count, rate_hz=50.0, stamp="sound", sample=sample)


def subscribed(name, kind=ARRAY, node="/driver"):
    return Topic(name=name, type=kind, subscribers=(Endpoint(node=node),))


def urdf(joints=JOINTS, *, velocity=2.0, kind="revolute", extra=""):
    body = "".join(
        f'<joint name="{j}" type="{kind}"><parent link="a"/><child link="{j}"/>{LIMIT.format(velocity=velocity)}</joint>'
        for j in joints
    )
    return {"/robot_description": f'<robot name="r">{body}{extra}</robot>'}


def described(*topics, namespace=None, answers=None, **values):
    """Return the contract of these topics, and the gaps."""
    draft = Draft(name="robot", answers=answers or Answers())
    graph = Graph(topics=list(topics), listened_s=5.0, **values)
    add_graph(draft, graph, topics_of_robot(draft, graph, namespace), namespace or "/")
    finish_draft(draft)
    return parse_contract(dump_draft(draft)), [f"{what} -> {where}" for what, where in draft.gaps]


def arm(root=""):
    return states(f"{root}/joint_states"), subscribed(f"{root}/arm_controller/commands", node=f"{root}/arm_controller")


def base(root=""):
    odometry = published(f"{root}/odom", "nav_msgs/msg/Odometry")
    return odometry, subscribed(f"{root}/cmd_vel", "geometry_msgs/msg/TwistStamped")
