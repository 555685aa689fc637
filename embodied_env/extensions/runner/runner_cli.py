"""The command ``embodied-env runner``, a managed ROS 2 node that runs goals with a policy."""

from __future__ import annotations

import argparse
from dataclasses import fields

from embodied_env.cli import SOUND
from embodied_env.cli import verb_arguments as verbs
from embodied_env.core.terminal import say

_OPTIONS = ("relay", *verbs.ROBOT_OPTIONS, "connect_timeout_s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, of which those of a node parameter are its default."""
    option = parser.add_argument
    option("contract", metavar="CONTRACT", nargs="?", default="arm_reach", help="name or path of a contract")
    option("--namespace", help="absolute ROS 2 namespace (default: /)")
    verbs.add_policy(parser, default="scripted", what="address of the policy to keep loaded")
    verbs.add_chunks(parser)
    verbs.add_seed(parser, "seed of the goals")
    option("--out", metavar="DIR", default="runs", help="parent directory of the run directories, one for each goal")
    option("--autostart", action="store_true", help="configure and activate at once, without a lifecycle manager")
    verbs.add_options(parser, *_OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Host the node until SIGINT or SIGTERM, then brake the robot to rest and shut down."""
    from embodied_env.extensions.runner.policy_runner import RunnerOptions
    from embodied_env.extensions.runner.runner_node import run_runner
    from embodied_env.ros.transport.setup_checks import check_namespace

    if args.namespace is not None:
        check_namespace(args.namespace)
    named = {each.name: getattr(args, each.name) for each in fields(RunnerOptions) if each.name != "robot"}
    options = RunnerOptions(**named, robot=verbs.given_options(args, *_OPTIONS))

    def print_ready(namespace: str) -> None:
        say(f"the runner is in namespace {namespace}; press Ctrl-C to brake and stop", flush=True)

    stop = verbs.stop_on_signals()
    run_runner(options, namespace=args.namespace, stop=stop, autostart=args.autostart, on_ready=print_ready)
    return SOUND
