"""The embedded simulator in real time runs in its own process, and can be seeded, configured and restarted."""

import os
import signal
import time

import numpy as np
import pytest
import ros_domains
from shipped_contracts import unhurried

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.errors import UsageError
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile
from embodied_env.timing.clock import ManualClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

ARM = unhurried(embodied_env.load_contract("arm_reach"))
DOMAIN_ID = ros_domains.FOR_KILLS
ZERO = np.zeros(6)
FORWARD = np.array([0.2, 0, 0, 0, 0, 0])


def make():
    return embodied_env.make(ARM, backend="mujoco_ros", pacing="realtime", domain_id=DOMAIN_ID, step_timeout_s=20.0)


@pytest.fixture(scope="module")
def shared_env():
    """One simulator for all tests that leave it running."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        patch.setattr("sys.argv", ["evaluate", "--ros-args", "-r", "__ns:=/pushed"])  # by a launch file
        env = make()
        env.reset(seed=0)
        yield env
        env.close()


@pytest.fixture
def env(shared_env, domain_id):
    return shared_env


def test_a_seeded_reset_equals_that_of_lockstep(env):
    _, info = env.reset(seed=7)
    world = World(ARM, load_profile(ARM, "mujoco_ros"))
    sampled = world.reset(info["reset"]["seed_applied"], {})
    np.testing.assert_array_equal(info["reset"]["sampled"]["target"], sampled["target"])
    assert info["reset"]["level"] == "world"


def test_the_world_moves_while_the_policy_computes(env):
    env.reset(seed=1)
    for _ in range(40):  # a busy machine holds some
        before, *_, earlier = env.step(FORWARD)
        if before["joints_velocity"][0] > 0.4:
            break
    overruns = env.unwrapped.stepper.backend.pacer.overruns
    time.sleep(1.6 * ARM.control_period_s)
    after, *_, later = env.step(ZERO)
    assert after["joints_position"][0] - before["joints_position"][0] > 0.01
    assert env.unwrapped.stepper.backend.pacer.overruns == overruns + 1
    passed_ns = later["sensors"]["joints"]["stamp_ns"] - earlier["sensors"]["joints"]["stamp_ns"]
    assert passed_ns > ARM.control_period_ns / 2  # not a reading from the queue


@pytest.mark.kills
@pytest.mark.long
def test_a_killed_simulator_ends_the_episode_and_a_reset_starts_another():
    env = make()
    env.reset(seed=1)
    env.step(ZERO)
    (process,) = env.unwrapped.processes()
    os.kill(process["pid"], signal.SIGKILL)
    while True:
        *_, truncated, info = env.step(ZERO)
        if truncated:
            break
    assert info["end_reason"] == "backend_lost:simulator_died"
    env.reset(seed=1)
    (another,) = env.unwrapped.processes()
    assert another["pid"] != process["pid"]
    *_, info = env.step(ZERO)
    assert info["end_reason"] == ""
    env.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"clock": ManualClock()}, "ManualClock"),
        ({"faults": []}, "'faults'"),
    ],
)
def test_an_invalid_option_is_rejected(options, problem):
    with pytest.raises(UsageError, match=problem):
        embodied_env.make(ARM, backend="mujoco_ros", pacing="realtime", **options)


@pytest.mark.long
def test_a_rendered_image_shows_the_moving_world(env):
    env.reset(seed=1)
    assert env.unwrapped.stepper.renderer().render().shape == (480, 640, 3)
