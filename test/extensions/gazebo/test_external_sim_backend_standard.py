"""`SimulatorBackend` over stand-ins for Gazebo's bridge and the standard interfaces, with one environment each."""

import contextlib
import dataclasses
import itertools
import threading

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from simulator_stand_ins import Faults, hosted

import embodied_env

pytestmark = pytest.mark.ros

ARM = embodied_env.load_contract("arm_reach")
PERIOD_NS = ARM.control_period_ns
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
    "sensor_grace_s": 0.5,
    "reset_timeout_s": 8.0,
}


@pytest.fixture(scope="module", params=["gazebo", pytest.param("simulation_interfaces", marks=pytest.mark.long)])
def stack(request, lasting_domain, message_package):
    """A stand-in and its environment, reset once."""
    stand_in_name, package = BACKENDS[request.param]
    message_package(package)
    with contextlib.ExitStack() as alive:
        with lasting_domain() as domain_id:
            stand_in = alive.enter_context(hosted(stand_in_name))
            made = {}
            for reset, home in (("world", {}), ("soft", HOME)):
                profile = {**PROFILE, "reset": reset, "home": home}
                contract = dataclasses.replace(ARM, backends={request.param: profile})
                made[reset] = embodied_env.make(contract, backend=request.param, domain_id=domain_id)
                alive.callback(made[reset].close)
                made[reset].reset(seed=0)
        yield stand_in, made


@pytest.fixture
def begun(stack):
    """Return a function that resets the environment and then sets a misbehaviour."""
    stand_in, made = stack

    def begin(level="world", **faults):
        restore(stand_in)
        result = made[level].reset(seed=3)
        stand_in.faults = Faults(**faults)
        return stand_in, made[level], result

    yield begin
    restore(stand_in)


def restore(stand_in):
    """Make the stand-in well-behaved and paused, without pending work."""
    stand_in.faults = Faults()
    stand_in.world.pending, stand_in.world.paused = 0, True


def end_of(env):
    *_, truncated, info = env.step(np.zeros(6))
    assert truncated is bool(info["end_reason"])
    return info["end_reason"]


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


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ({"sensors": "late"}, ""),
        ({"replies": "early"}, ""),
        ({"clock_repeats": 3}, ""),
        ({"sensors": "old"}, "backend_lost:sensor_late"),
        ({"extra_steps": 7}, "backend_lost:extra_steps"),
        ({"rewinds_in": 3}, "backend_lost:clock_rewound"),
    ],
    ids=str,
)
def test_normal_variations_continue_and_faults_end_the_episode(begun, faults, reason):
    _, env, _ = begun(**faults)
    assert end_of(env) == reason


def test_a_service_that_is_discovered_late_is_awaited(message_package, domain_id):
    message_package("ros_gz_interfaces")
    from ros_gz_interfaces.srv import SetEntityPose

    contract = dataclasses.replace(ARM, backends={"gazebo": PROFILE})
    with (
        hosted("ros_gz", sets_pose=False) as stand_in,
        contextlib.closing(embodied_env.make(contract, backend="gazebo")) as env,
    ):

        def offer():
            stand_in.offer(SetEntityPose, "/world/toy/set_pose", stand_in._set_pose)

        late = threading.Timer(1.0, lambda: stand_in.run_between_iterations(offer))
        late.start()
        env.reset(seed=0)
        late.join()
