"""``embodied-env demo``: an arm reaches targets over real ROS 2, beside the baseline that holds still."""

from __future__ import annotations

import argparse
import os

from embodied_env.cli.evaluation_run import add_common_arguments, run_policies

HELP = "run a few episodes and show what each step accounts for"

POLICIES = ("scripted", "hold")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_common_arguments(parser, backend="mujoco_ros", episodes=5)


def run(args: argparse.Namespace) -> int:
    """Run the demo; nothing outside this host is talked to unless the environment says so."""
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    return run_policies("arm_reach", POLICIES, args)
