"""The end of a goal in the runner, as the next one arrives."""

import gc
from types import SimpleNamespace

import pytest
import ros_domains

pytest.importorskip("rclpy", reason="needs rclpy")

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from std_srvs.srv import Trigger

import embodied_env
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.extensions.runner.policy_goal import PolicyGoal
from embodied_env.extensions.runner.policy_runner import RunnerOptions
from embodied_env.extensions.runner.runner_node import RunnerNode
from embodied_env.policies.chunk_execution import ChunkRunner
from embodied_env.ros.robot.robot_profile import load_real_profile

pytestmark = pytest.mark.ros

ARM = embodied_env.load_contract("arm_reach")


@pytest.fixture
def node(tmp_path):
    """Return an active runner of a fake robot, which nothing spins."""
    context = Context()
    rclpy.init(context=context, domain_id=ros_domains.FOR_MODULES)
    options = RunnerOptions(contract="arm_reach", policy="hold", out=str(tmp_path), robot={})
    node, executor = RunnerNode(options, namespace=None, context=context), SingleThreadedExecutor(context=context)
    executor.add_node(node)
    runner, node._state = node._runner, "active"
    runner.contract, runner._profile, runner._env = ARM, load_real_profile(ARM), EmbodiedEnv(ARM, backend="fake")
    runner._policy = ChunkRunner(embodied_env.load_policy("hold", ARM))
    yield node
    runner._env.close()
    executor.shutdown()
    node.destroy_node()
    node.__dict__.clear()  # the state machine, while pytest holds the node
    gc.collect()
    context.try_shutdown()


def test_a_goal_that_ends_before_the_next_request_is_answered_keeps_its_result(node):
    sent = []
    node._server = SimpleNamespace(notify_execute=lambda handle, conclude: sent.append((handle, conclude.args[0])))
    node._handle = handle = object()
    node._start(PolicyGoal(episodes=1))
    assert node._runner.wait()
    result = node._runner.result
    assert node._on_run(None, Trigger.Response()).success
    assert node._runner.result is not result
    node.executor.spin_once(timeout_sec=0.0)  # the task of the first goal
    assert [each is other for each, other in zip(sent[0], (handle, result), strict=True)] == [True, True]
    assert node._runner.wait()
