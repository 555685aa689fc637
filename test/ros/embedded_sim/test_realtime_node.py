"""The free-running world in real time, in this process and in its own."""

import contextlib
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from sideways_base import sideways_base

pytest.importorskip("rclpy", reason="needs rclpy")

from hosted_simulator import hosted_world
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

import embodied_env
from embodied_env.errors import BackendLostError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.ros.wire.command_messages import to_command
from embodied_env.ros.wire.sensor_buffer import SensorReader, stamp_ns
from embodied_env.ros.wire.simulator_protocol import ANY_EPOCH, RESET_SERVICE, ResetReply
from embodied_env.sim.world import World
from embodied_env.sim.world_profile import load_profile
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

ARM = embodied_env.load_contract("arm_reach")
CART = embodied_env.load_contract("cart_goal")
NAMESPACE = "/free"
PATIENCE_S = 20.0


class UnstableWorld(World):
    """A world that diverges 0.1 s after its first reset."""

    resets = 0

    def reset(self, seed, options):
        self.resets += 1
        return super().reset(seed, options)

    def step(self, commands=()):
        if self.resets == 1 and self.now_ns > 100_000_000:
            raise BackendLostError("sim_unstable", "diverged on purpose")
        super().step(commands)


class WatchedWorld(World):
    """Keep the command and the reading of each tick of a world in which a command acts from the start of its tick."""

    def reset(self, seed, options):
        self.commands, self.readings = [], []
        return super().reset(seed, options)

    def step(self, commands=()):
        super().step([(0, values) for _, values in commands])
        self.commands.append(self.target)
        self.readings.append(content(self.read()["odom"].values))


class Driver:
    """A node at the other end of a world's topics, without an environment."""

    def __init__(self, contract, world):
        self.contract, self.world = contract, world
        self.ros = RosNode("driver", namespace=NAMESPACE, clock=SteadyClock())
        self.readers = {name: SensorReader(name, sensor) for name, sensor in contract.sensors.items()}
        for name, sensor in contract.sensors.items():
            self.ros.receiver.subscribe(name, message_class(sensor.type), sensor.topic)
        ((_, self.actuator),) = contract.actuators.items()
        self.publisher = self.ros.node.create_publisher(
            message_class(self.actuator.type), self.actuator.topic, RELIABLE
        )
        assert self.ros.wait_until(self.publisher.get_subscription_count, PATIENCE_S)

    def collect(self, seconds):
        """Return the arrivals of each sensor within this time."""
        received = {name: [] for name in self.contract.sensors}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for arrival in self.ros.receiver.receive(0.05):
                received[arrival.key].append(arrival)
        return received

    def newest(self, name):
        """Return the fields of a reading taken after this call."""
        asked_ns = time.time_ns()
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for arrival in self.ros.receiver.receive(0.05):
                if arrival.key == name and stamp_ns(arrival.message) > asked_ns:
                    return self.readers[name].read(arrival.message)
        raise AssertionError(f"{name} is silent")

    def command(self, *values):
        self.publisher.publish(to_command(self.actuator, np.array(values), stamp_ns=time.time_ns(), period_s=0.05))

    def reset(self, **parameters):
        """Set parameters (reset.<name>) and call the reset, and return its reply."""
        if parameters:
            request = SetParameters.Request(
                parameters=[Parameter(f"reset.{k}", value=v).to_parameter_msg() for k, v in parameters.items()]
            )
            self.ros.receiver.call(SetParameters, "simulator/set_parameters", request, PATIENCE_S, lambda: None)
        response = self.ros.receiver.call(Trigger, RESET_SERVICE, Trigger.Request(), PATIENCE_S, lambda: None)
        assert response.success, response.message
        return ResetReply.from_text(response.message)

    def wait_for(self, condition, name, field):
        end = time.monotonic() + PATIENCE_S
        while True:
            values = self.newest(name)[field]
            if condition(values):
                return values
            assert time.monotonic() < end, values


def content(values):
    return {field: np.asarray(value, dtype=np.float64).tobytes() for field, value in values.items()}


@contextlib.contextmanager
def driven(contract, world_class=World, command_timeout_s=None):
    """Host the world of a contract in a thread, and yield its driver."""
    profile = replace(load_profile(contract, "mujoco_ros"), command_timeout_s=command_timeout_s)
    world = world_class(contract, profile, free_running=True)
    with hosted_world(contract, world, NAMESPACE):
        driver = Driver(contract, world)
        yield driver
        driver.ros.close()


@pytest.fixture
def hosted(domain_id):
    """Return a function that hosts a world until the test ends and returns its driver."""
    with contextlib.ExitStack() as worlds:
        yield lambda *arguments, **options: worlds.enter_context(driven(*arguments, **options))


@pytest.fixture(scope="module")
def lasting_arm(lasting_domain):
    with contextlib.ExitStack() as alive:
        with lasting_domain():
            driver = alive.enter_context(driven(ARM))
        yield driver


@pytest.fixture
def arm(lasting_arm, domain_id):
    """The driver of the shared arm, after a reset with default parameters."""
    lasting_arm.reset(epoch=ANY_EPOCH, seed=-1, options="{}")
    lasting_arm.collect(0.05)  # drop the messages of earlier tests
    return lasting_arm


def test_stamps_are_increasing_system_times_and_never_in_the_future(arm):
    for arrivals in arm.collect(0.3).values():
        stamps = [stamp_ns(arrival.message) for arrival in arrivals]
        ages_s = [(a.arrival_system_ns - stamp) / 1e9 for a, stamp in zip(arrivals, stamps, strict=True)]
        assert all(0.0 <= age_s < PATIENCE_S for age_s in ages_s)
        assert all(a < b for a, b in pairwise(stamps))


def test_a_reset_takes_options(arm):
    reply = arm.reset(options='{"target": [-0.4, 0.1, 0.2]}')
    np.testing.assert_array_equal(reply.sampled["target"], [-0.4, 0.1, 0.2])
    np.testing.assert_allclose(arm.newest("target")["position"], [-0.4, 0.1, 0.2])


def test_a_repeated_epoch_returns_the_same_reply(arm):
    assert arm.reset(epoch=3).to_text() == arm.reset().to_text()


def test_invalid_reset_options_are_rejected_and_the_next_reset_works(arm):
    no_array = ("null", '{"x": 1}', "[[1], 2, 3]", "1e999")
    for options in ("[" * 100_000, "[]", *(f'{{"target": {value}}}' for value in no_array)):
        with pytest.raises(AssertionError, match="ValueError"):
            arm.reset(options=options)
    arm.reset(options="{}")
    arm.newest("joints")


def test_after_a_reset_the_robot_is_home_and_an_old_command_is_dropped(arm):
    home = arm.newest("joints")["position"]
    arm.command(*(home + 0.3))
    arm.wait_for(lambda q: np.allclose(q, home + 0.3, atol=0.05), "joints", "position")
    arm.reset()
    np.testing.assert_allclose(arm.newest("joints")["position"], home, atol=0.02)
    arm.collect(0.2)
    np.testing.assert_allclose(arm.newest("joints")["position"], home, atol=0.02)


@pytest.mark.parametrize("values", [(0.0,), (math.nan,) * 6], ids=["of another length", "not finite"])
def test_a_malformed_command_is_ignored(arm, values):
    home = arm.newest("joints")["position"]
    arm.command(*values)
    arm.collect(0.2)
    np.testing.assert_allclose(arm.newest("joints")["position"], home, atol=0.02)


@pytest.mark.long
def test_a_velocity_ends_at_the_timeout_of_the_profile(hosted):
    cart = hosted(CART, command_timeout_s=0.5)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:  # it continues as long as it is commanded
        cart.command(0.0, 0.5)
        cart.collect(0.1)
    assert cart.newest("imu")["angular_velocity"][2] > 0.4
    cart.wait_for(lambda w: abs(w[2]) < 0.05, "imu", "angular_velocity")


def test_an_emulated_base_that_moves_sideways_equals_mujoco_bit_by_bit(hosted):
    """In all but the time within a tick at which a command acts, which is wall time and here the start of the tick."""
    contract = sideways_base()
    base = hosted(contract, WatchedWorld)
    received = []
    for twist in np.random.default_rng(0).uniform(-0.5, 0.5, (12, 3)):
        base.command(*twist)
        received += base.collect(0.07)["odom"]
    readings, commands = list(base.world.readings), list(base.world.commands)
    assert len({command.tobytes() for command in commands}) > 6
    in_ticks = replace(contract, control_period_s=base.world.tick_ns / 1e9)
    world = World(in_ticks, load_profile(in_ticks, "mujoco"), as_messages=False)
    world.reset(0, {})
    expected = []
    for command, _ in zip(commands, readings, strict=False):
        world.command(command)
        world.step()
        expected.append(content(world.read()["odom"].values))
    assert readings == expected
    messages = [content(base.readers["odom"].read(each.message)) for each in received]
    assert len(messages) > 20
    remaining = iter(expected)
    assert all(each in remaining for each in messages)  # in this order


def test_a_diverged_world_publishes_nothing_until_a_reset(hosted):
    arm = hosted(ARM, UnstableWorld)
    end = time.monotonic() + PATIENCE_S
    while any(arm.collect(0.2).values()):
        assert time.monotonic() < end
    arm.reset()
    arm.newest("joints")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_the_process_ends_on_a_signal(domain_id, number):
    command = [sys.executable, "-m", "embodied_env.cli", "sim", "arm_reach", "--free-running", "--namespace", "/x"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert "on wall time in namespace /x" in process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
