"""The command ``embodied-env demo``, a learned and a scripted policy over ROS 2."""

from __future__ import annotations

import argparse
import os

from embodied_env.extensions.evaluation.evaluation_arguments import add_common_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_common_arguments(parser, backend="mujoco_ros", episodes=5)


def run(args: argparse.Namespace) -> int:
    """Run the demo with discovery on this host, unless an environment variable changes it."""
    from embodied_env.extensions.evaluation.episode_runner import PolicySource
    from embodied_env.extensions.evaluation.evaluation_display import run_policies

    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    policies = [PolicySource(address=address) for address in ("onnx:arm_reach", "scripted")]
    return run_policies("arm_reach", policies, args, has_closing=True)
