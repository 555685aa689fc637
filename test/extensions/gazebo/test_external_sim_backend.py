"""`SimulatorBackend` over stand-ins for Gazebo's bridge and the standard interfaces, with one environment each."""

import contextlib
import dataclasses
import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from grippers import gripper_contract, gripper_text
from rclpy.duration import Duration
from shipped_contracts import arm_in_degrees
from simulator_stand_ins import Faults, hosted

import embodied_env
from embodied_env.backends.backend_registry import make_backend
from embodied_env.errors import BackendNotReadyError
from embodied_env.messages.message_types import message_class
from embodied_env.ros.transport.node import RosNode
from embodied_env.ros.transport.qos import RELIABLE
from embodied_env.testing import BackendContract
from embodied_env.timing.clock import SteadyClock

pytestmark = [pytest.mark.ros, pytest.mark.realtime]

ARM = embodied_env.load_contract("arm_reach")
PERIOD_NS = ARM.control_period_ns
PATIENCE_S = 30.0  # a stall of the machine is no fault
BACKENDS = {"gazebo": ("ros_gz", "ros_gz_interfaces"), "simulation_interfaces": ("simulation_interfaces",) * 2}
HOME = {"j1": 0.1, "j2": -0.2, "j3": 0.3, "j4": 0.0, "j5": 0.0, "j6": 0.0}
PROFILE = {
    "world": "toy",
    "step_s": 0.001,
    "reset": "world",
    "entities": {"tool": {"position": [0.1, 0.2, 0.3]}},
    "draws": {"target": {"entity": "target"}},
    "sources": {
        "tcp": {"entity": "tool"},
        "target": {"entity": "target"},
        "true_distance": {"distance": ["tcp", "target"]},
    },
    "echo": {"arm": "arm_controller/echo"},
    "sensor_grace_s": PATIENCE_S / 2,
    "step_timeout_s": PATIENCE_S,
    "reset_timeout_s": PATIENCE_S,
}


def arm_with(backend="gazebo", **profile):
    return dataclasses.replace(ARM, backends={backend: {**PROFILE, **profile}})


@pytest.fixture(scope="module", params=["gazebo", pytest.param("simulation_interfaces", marks=pytest.mark.long)])
def stack(request, lasting_domain, message_package):
    """A stand-in, its environments by the level of their resets, each reset once, and its backend and domain."""
    stand_in_name, package = BACKENDS[request.param]
    message_package(package)
    with contextlib.ExitStack() as alive:
        with lasting_domain() as domain_id:
            stand_in = alive.enter_context(hosted(stand_in_name))
            made = {}
            for reset, home in (("world", {}), ("soft", HOME)):
                contract = arm_with(request.param, reset=reset, home=home)
                made[reset] = embodied_env.make(contract, backend=request.param, domain_id=domain_id)
                alive.callback(made[reset].close)
                made[reset].reset(seed=0)
        yield stand_in, made, request.param, domain_id


@pytest.fixture
def begun(stack):
    """Return a function that resets the environment and then sets a misbehaviour."""
    stand_in, made, *_ = stack

    def begin(level="world", **faults):
        stand_in.run_between_iterations(stand_in.restore)
        result = made[level].reset(seed=3)
        stand_in.faults = Faults(**faults)
        return stand_in, made[level], result

    yield begin
    stand_in.run_between_iterations(stand_in.restore)


@contextlib.contextmanager
def impatient(env):
    """Await what never comes for a short time."""
    stepper = env.unwrapped.stepper
    backend, session = stepper.backend, stepper.backend._control.session
    before = backend._profile, session.reply_timeout_s, stepper._timeout_ns
    backend._profile = dataclasses.replace(backend._profile, sensor_grace_s=0.3)
    session.reply_timeout_s, stepper._timeout_ns = 0.5, 600_000_000
    try:
        yield
    finally:
        backend._profile, session.reply_timeout_s, stepper._timeout_ns = before


def end_of(env, action=None):
    *_, terminated, truncated, info = env.step(np.zeros(6) if action is None else action)
    assert (terminated, truncated) == (False, bool(info["end_reason"]))
    return info["end_reason"]


class TestSimulatorBackend(BackendContract):
    """The public conformance suite, with one backend for all tests but those that end it."""

    backend: str
    domain_id: int
    kept: Any

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def one_backend(cls, stack):
        stand_in, _, cls.backend, cls.domain_id = stack
        cls.clock, cls.contract = SteadyClock(), arm_with(cls.backend, reset="soft", home=HOME)
        stand_in.run_between_iterations(stand_in.restore)
        with BackendContract.opened(cls()) as cls.kept:
            cls().reset(cls.kept)
            yield

    def make_backend(self, clock):
        return make_backend(self.backend, self.contract, clock=clock, domain_id=self.domain_id)

    @contextlib.contextmanager
    def opened(self):
        yield self.kept


def test_steps_end_at_the_exact_nanosecond_with_every_sensor(begun):
    stand_in, env, _ = begun()
    stamps = [env.unwrapped.last_reset.now_ns]
    for _ in range(30):
        *_, info = env.step(np.full(6, 0.1))
        assert {sensor["age_s"] for sensor in info["sensors"].values()} == {0.0}
        stamps.append(env.unwrapped.last_transition.snapshot.now_ns)
    assert {after - before for before, after in itertools.pairwise(stamps)} == {PERIOD_NS}
    assert stamps[-1] == stand_in.world.now_ns


def test_values_drawn_by_our_seed_are_set_in_the_simulator(begun):
    stand_in, env, (observation, info) = begun()
    drawn = info["reset"]["sampled"]["target"]
    assert info["reset"]["level"] == "world"
    np.testing.assert_array_equal(observation["target_position"], drawn)
    np.testing.assert_array_equal(stand_in.world.poses["target"], [*drawn, 0.0, 0.0, 0.0, 1.0])
    samples = env.unwrapped.last_reset.samples
    np.testing.assert_allclose(samples["true_distance"].values["range"], np.linalg.norm(drawn - [0.1, 0.2, 0.3]))


def test_a_soft_reset_homes_the_robot_and_time_continues(begun):
    stand_in, env, _ = begun()
    before_ns = stand_in.world.now_ns
    _, env, (observation, info) = begun("soft")
    assert env.unwrapped.last_reset.now_ns > before_ns
    assert (info["reset"]["level"], info["reset"]["routine"]) == ("soft", "home")
    np.testing.assert_allclose(observation["joints_position"], list(HOME.values()), atol=0.02)
    assert end_of(env) == ""


@pytest.mark.parametrize("faults", [{"sensors": "late"}, {"replies": "early"}, {"clock_repeats": 3}], ids=str)
def test_normal_variations_continue(begun, faults):
    _, env, _ = begun(**faults)
    assert end_of(env) == ""


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        pytest.param({"replies": "never"}, "reply_lost", marks=pytest.mark.long),
        ({"stops_after": 4}, "clock_stopped"),
        ({"rewinds_in": 3}, "clock_rewound"),
        ({"extra_steps": 7}, "extra_steps"),
        ({"sensors": "old"}, "sensor_late"),
        ({"drops_echo": True}, "command_unheard"),
        pytest.param({"refuses": True}, "refused", marks=pytest.mark.long),
    ],
    ids=str,
)
def test_each_fault_truncates_the_episode_with_its_reason(begun, faults, reason):
    stand_in, env, _ = begun()
    assert end_of(env) == ""
    stand_in.faults = Faults(**faults)
    with impatient(env):
        assert end_of(env) == f"backend_lost:{reason}"


@pytest.mark.parametrize("reason", ["extra_steps", "clock_rewound"])
def test_a_clock_jump_between_two_steps_ends_the_episode_without_a_command(begun, reason):
    stand_in, env, _ = begun()
    end_of(env)
    control = env.unwrapped.stepper.backend._control
    before_ns, end = control.now_ns(), time.monotonic() + PATIENCE_S
    act = stand_in.request_reset if reason == "clock_rewound" else lambda: stand_in.request_steps(3)
    stand_in.run_between_iterations(act)
    while control.now_ns() == before_ns or control.now_ns() != stand_in.world.now_ns:
        assert time.monotonic() < end
        control.session.receive(0.01)
    command = stand_in.world.command
    assert end_of(env, np.full(6, 0.3)) == f"backend_lost:{reason}"
    time.sleep(0.03)
    assert stand_in.world.command == command


def test_a_reading_from_the_far_future_is_reported_and_the_next_reset_works(begun, stack):
    _, env, _ = begun()
    node = RosNode("forger", namespace="/", clock=SteadyClock(), domain_id=stack[-1])
    try:
        joints = node.node.create_publisher(message_class("sensor_msgs/msg/JointState"), "joint_states", RELIABLE)
        assert node.wait_until(lambda: joints.get_subscription_count() >= 2, PATIENCE_S)  # of both environments
        stamped = joints.msg_type()
        stamped.header.stamp.sec = 2**31 - 1  # in the year 2038
        joints.publish(stamped)
        assert joints.wait_for_all_acked(Duration(seconds=PATIENCE_S))
    finally:
        node.close()
    assert end_of(env) == "backend_lost:future_reading"
    _, env, _ = begun()
    assert end_of(env) == ""


@contextlib.contextmanager
def attached(contract, **options):
    """Make an environment, and close it at the end."""
    with contextlib.closing(embodied_env.make(contract, backend="gazebo", **options)) as env:
        yield env


def test_a_service_that_is_discovered_late_is_awaited(message_package, domain_id):
    message_package("ros_gz_interfaces")
    from ros_gz_interfaces.srv import SetEntityPose

    with hosted("ros_gz", sets_pose=False) as stand_in, attached(arm_with()) as env:

        def offer():
            stand_in.offer(SetEntityPose, "/world/toy/set_pose", stand_in._set_pose)

        late = threading.Timer(1.0, lambda: stand_in.run_between_iterations(offer))
        late.start()
        env.reset(seed=0)
        late.join()


def test_missing_simulator_services_are_named(message_package, domain_id):
    message_package("ros_gz_interfaces")
    with (
        attached(arm_with(), reset_timeout_s=0.3) as env,
        pytest.raises(BackendNotReadyError, match="/world/toy/contr"),
    ):
        env.reset(seed=1)


def test_a_simulator_takes_and_reports_si_whatever_the_driver_of_the_robot_has(message_package, domain_id):
    message_package("ros_gz_interfaces")
    with hosted("ros_gz") as stand_in, attached(arm_in_degrees(backends={"gazebo": PROFILE})) as env:
        env.reset(seed=1)
        observation, *_, info = env.step(np.full(6, 0.3))
        assert stand_in.world.command == tuple(info["action"]["applied_si"].values())
        assert observation["joints_position"] == pytest.approx(stand_in.world.position)


def test_reset_options_without_a_draw_are_reported(message_package, domain_id):
    message_package("ros_gz_interfaces")
    contract = arm_with(draws={}, entities={**PROFILE["entities"], "target": {"position": [0.1, 0.2, 0.3]}})
    with hosted("ros_gz"), attached(contract) as env, pytest.warns(UserWarning, match="gazebo: target"):
        _, info = env.reset(seed=1, options={"target": np.array([-0.5, 0.0, 0.2])})
    assert info["reset"]["options_ignored"] == "target"


def test_a_topic_carries_the_goals_of_a_gripper(message_package, tmp_path):
    message_package("ros_gz_interfaces")
    contract = gripper_contract(tmp_path, gripper_text(scale="physical"))
    profile = {"world": "grasp", "step_s": 0.001, "reset": "world"}
    contract = dataclasses.replace(contract, backends={"gazebo": profile})
    backend: Any = make_backend("gazebo", contract, clock=SteadyClock())
    assert backend._actuators["gripper"].type == "std_msgs/msg/Float64"
