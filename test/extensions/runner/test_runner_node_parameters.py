"""Parameters of the runner from the command line or a file."""

import gc

import pytest
import ros_domains

pytest.importorskip("rclpy", reason="needs rclpy")

import rclpy
from rclpy.context import Context

from embodied_env.errors import UsageError
from embodied_env.extensions.runner.policy_runner import RunnerOptions
from embodied_env.extensions.runner.runner_node import RunnerNode

pytestmark = pytest.mark.ros


@pytest.mark.parametrize("given", ["seed:=hello", "goal.seconds:=3", "goal.limit_velocities:=[1, 2]"])
def test_a_parameter_of_another_type_is_refused_by_name(given):
    context = Context()
    rclpy.init(args=["--ros-args", "-p", given], context=context, domain_id=ros_domains.FOR_MODULES)
    try:
        with pytest.raises(UsageError, match=f"invalid parameter: .*{given.partition(':')[0]}"):
            RunnerNode(RunnerOptions(contract="arm_reach", policy="hold", robot={}), namespace=None, context=context)
    finally:
        gc.collect()  # the state machine of the node, which the traceback held
        context.try_shutdown()
