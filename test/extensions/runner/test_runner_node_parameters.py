"""Parameters of the runner from the command line or a file."""

import gc
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import ros_domains
from shipped_contracts import changed_contract

pytest.importorskip("rclpy", reason="needs rclpy")

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from std_srvs.srv import Trigger

from embodied_env.core.policy import as_policy
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import UsageError
from embodied_env.extensions.runner.policy_runner import RunnerOptions
from embodied_env.extensions.runner.runner_node import RunnerNode
from embodied_env.policies.chunk_execution import ChunkRunner
from embodied_env.record import read_run

pytestmark = pytest.mark.ros


@contextmanager
def started(*parameters):
    """Yield a context of ROS 2 with these parameters on the command line."""
    context = Context()
    given = [word for each in parameters for word in ("-p", each)]
    rclpy.init(args=["--ros-args", *given], context=context, domain_id=ros_domains.FOR_MODULES)
    try:
        yield context
    finally:
        gc.collect()  # the state machine of a node
        context.try_shutdown()


@pytest.mark.parametrize("given", ["seed:=hello", "goal.seconds:=3", "goal.limit_velocities:=[1, 2]"])
def test_a_parameter_of_another_type_is_refused_by_name(given):
    with (
        started(given) as context,
        pytest.raises(UsageError, match=f"invalid parameter: .*{given.partition(':')[0]}"),
    ):
        RunnerNode(RunnerOptions(contract="arm_reach", policy="hold", robot={}), namespace=None, context=context)


def execute(context, contract, out):
    """Return the run of the goal in the parameters of a runner, on the fake backend."""
    options = RunnerOptions(contract="arm_reach", policy="hold", out=str(out), robot={})
    node, executor = RunnerNode(options, namespace=None, context=context), SingleThreadedExecutor(context=context)
    executor.add_node(node)
    runner, node._state = node._runner, "active"
    runner.contract, runner._profile = contract, SimpleNamespace(relay=False, estop={})
    runner._policy = ChunkRunner(as_policy(lambda _: np.ones(6)))
    with EmbodiedEnv(contract, backend="fake") as runner._env:
        assert node._on_run(None, Trigger.Response()).success
        result = node._future.result()
    executor.shutdown()
    node.destroy_node()
    return read_run(result.run)


def test_limits_in_the_parameters_of_a_goal_hold_for_its_commands(tmp_path):
    contract = changed_contract("arm_reach", {"episode.horizon_steps": 20})
    with started("goal.limit_joints:=[j1]", "goal.limit_velocities:=[0.5]") as context:
        run = execute(context, contract, tmp_path)
    commands = np.array([row["inner"]["report"]["applied_si"] for row in run.transitions()])
    j1, j2, *_ = np.abs(np.diff(commands, axis=0)).max(axis=0) / contract.control_period_s
    assert 0.3 < j1 <= 0.5 < j2
