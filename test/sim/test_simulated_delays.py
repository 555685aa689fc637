"""Delays of the robot emulator, with a manual clock and without ROS."""

import threading
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ideal_readings import sense
from waiting import wait_for

import embodied_env
from embodied_env.cli.main import main
from embodied_env.errors import ClosedError, ContractError, UsageError
from embodied_env.sim.sensor_reader import AsyncCameras, SensorOutput
from embodied_env.sim.simulated_delays import EmulatedController, TimedQueue
from embodied_env.sim.world import World
from embodied_env.sim.world_model import WorldModel
from embodied_env.sim.world_profile import Driver, EmulatorSpec, load_profile
from embodied_env.timing.clock import NS_PER_S, ManualClock

ARM = embodied_env.load_contract("arm_reach")
DOOR = embodied_env.load_contract("door_open")
TICK_NS, PERIOD_NS = 10_000_000, 50_000_000
MS = 1_000_000

gaps = st.lists(st.integers(0, 200 * MS), min_size=1, max_size=30)  # ns from one arrival to the next
delays_s = st.floats(0.0, 0.5)
seeds = st.integers(0, 2**53)


# -------------------------------------------------------------------------------------------------------- queue


@given(st.lists(st.integers(0, 20)), st.integers(0, 20))
def test_due_items_are_returned_in_order_and_never_early(times, now):
    queue = TimedQueue()
    for number, due_ns in enumerate(times):
        queue.put(due_ns, number)
    taken = []
    while (due := queue.take_one(now)) is not None:
        taken.append(due)
    assert taken == sorted((due_ns, number) for number, due_ns in enumerate(times) if due_ns <= now)
    assert queue.next_ns == min((due_ns for due_ns in times if due_ns > now), default=None)


# ----------------------------------------------------------------------------------------------- command delays


def arrivals_of(gaps):
    """Return the arrival times of the commands, on a manual clock."""
    clock = ManualClock()
    for gap in gaps:
        clock.advance_ns(gap)
        yield clock.now_ns()


def in_force(gaps, *, delay_s, jitter_s=0.0, seed=0):
    """Return the start time and number of each command, in the order in which they take effect."""
    emulator = EmulatorSpec(command_delay_s=delay_s, command_jitter_s=jitter_s)
    controller = EmulatedController([slice(0, 1)], np.array([False]), emulator=emulator, timeout_s=None)
    controller.begin(seed, 0, np.zeros(1))
    for number, arrival_ns in enumerate(arrivals_of(gaps)):
        controller.receive(arrival_ns, 0, np.array([float(number)]))
    found = []
    while (next_ns := controller.next_ns) is not None:
        assert controller.enforce(next_ns)
        found.append((controller.since_ns, int(controller.target[0])))
    return found


@given(gaps, delays_s)
def test_a_command_takes_effect_exactly_its_delay_after_its_arrival(gaps, delay_s):
    expected = [(ns + round(delay_s * NS_PER_S), number) for number, ns in enumerate(arrivals_of(gaps))]
    assert in_force(gaps, delay_s=delay_s) == expected


@given(gaps, delays_s, st.floats(0.0, 0.5), seeds)
def test_commands_with_jitter_stay_in_order_and_within_the_jitter(gaps, delay_s, jitter_s, seed):
    found = in_force(gaps, delay_s=delay_s, jitter_s=jitter_s, seed=seed)
    arrivals = list(arrivals_of(gaps))
    assert [number for _, number in found] == list(range(len(arrivals)))
    assert all(a <= b for (a, _), (b, _) in pairwise(found))
    for (since_ns, _), arrival_ns in zip(found, arrivals, strict=True):
        late_ns = since_ns - arrival_ns - round(delay_s * NS_PER_S)
        assert 0 <= late_ns <= round(jitter_s * NS_PER_S)


@given(gaps, seeds)
def test_jitter_is_reproduced_by_its_seed(gaps, seed):
    runs = [in_force(gaps, delay_s=0.01, jitter_s=0.05, seed=seed) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_drawn_delay_replaces_the_declared_one_in_its_episode():
    made = controller(EmulatorSpec(command_delay_s=0.01))
    for delay_ns, expected_ns in ((70 * MS, 70 * MS), (0, 0), (None, 10 * MS)):
        made.begin(0, 0, np.zeros(2), delay_ns=delay_ns)
        made.receive(5 * MS, 0, np.array([1.0]))
        assert made.next_ns == 5 * MS + expected_ns


# ---------------------------------------------------------------------------------------------------- controller


def controller(emulator, *, velocities=(False, False), timeout_s=None, target=(0.0, 0.0)):
    """A controller of two actuators with one joint each, in an episode that started at 0."""
    made = EmulatedController([slice(0, 1), slice(1, 2)], np.array(velocities), emulator=emulator, timeout_s=timeout_s)
    made.begin(0, 0, np.array(target))
    return made


def enforced(made, now_ns):
    while made.enforce(now_ns):
        pass
    return made.target.tolist()


@given(gaps, delays_s)
def test_commands_of_an_old_episode_have_no_effect(gaps, delay_s):
    made = controller(EmulatorSpec(command_delay_s=delay_s))
    for arrival_ns in arrivals_of(gaps):
        made.receive(arrival_ns, 0, np.array([9.0]))
    made.enforce(10**12)  # one of them active, but not yet in the world
    made.begin(1, 10**12, np.array([1.0, 2.0]))
    assert (made.next_ns, enforced(made, 10**15)) == (None, [1.0, 2.0])
    assert made.take_activations(0, 10**15) == []
    assert made.since_ns == 10**12


@given(gaps, delays_s)
def test_the_world_receives_each_command_once_in_the_tick_of_its_time(gaps, delay_s):
    made = controller(EmulatorSpec(command_delay_s=delay_s))
    arrivals = list(arrivals_of(gaps))
    for number, arrival_ns in enumerate(arrivals):
        made.receive(arrival_ns, 0, np.array([float(number)]))
    applied = []
    for begin_ns in range(0, arrivals[-1] + NS_PER_S, TICK_NS):
        enforced(made, begin_ns + TICK_NS + 3 * MS)  # a tick runs slightly late
        applied += [
            (begin_ns + after_ns, values[0]) for after_ns, values in made.take_activations(begin_ns, begin_ns + TICK_NS)
        ]
    assert applied == [(ns + round(delay_s * NS_PER_S), number) for number, ns in enumerate(arrivals)]


def test_a_command_missed_by_a_late_tick_acts_from_its_start():
    made = controller(EmulatorSpec())
    made.receive(5, 0, np.array([1.0]))
    enforced(made, 5)
    ((after_ns, values),) = made.take_activations(100, 200)
    assert (after_ns, values.tolist()) == (0, [1.0, 0.0])


def test_a_velocity_ends_after_the_command_timeout():
    made = controller(EmulatorSpec(command_delay_s=0.1), velocities=(True, False), timeout_s=0.5)
    made.receive(0, 0, np.array([1.0]))
    made.receive(0, 1, np.array([2.0]))
    enforced(made, 100 * MS)
    assert not made.end_old_velocity(600 * MS)
    assert made.end_old_velocity(600 * MS + 1)
    assert made.target.tolist() == [0.0, 2.0]
    assert not made.end_old_velocity(600 * MS + 1)


def activations(made, until_ns):
    """Return time and value of each activation of the first joint."""
    found = []
    while made.next_ns is not None and made.next_ns <= until_ns:
        assert made.enforce(made.next_ns)
        found.append((made.since_ns, made.target[0]))
    return found


def points(first_ns, *values):
    return [(first_ns + k * 50 * MS, np.array([value])) for k, value in enumerate(values)]


@pytest.mark.parametrize("delay_ms", [0, 7, 70])
def test_each_point_of_a_trajectory_is_commanded_one_period_before_its_time(delay_ms):
    made = controller(EmulatorSpec(command_delay_s=delay_ms / 1000))
    made.follow(100 * MS, 0, points(125 * MS, 0.0, 1.0, 2.0, 2.0), reach_ns=50 * MS)
    expected = [(125 * MS, 1.0), (175 * MS, 2.0), (225 * MS, 2.0)]
    assert activations(made, NS_PER_S) == [(ns + delay_ms * MS, value) for ns, value in expected]


@pytest.mark.parametrize("delay_ms", [0, 7, 70])
def test_a_trajectory_replaces_the_rest_of_the_one_before(delay_ms):
    made = controller(EmulatorSpec(command_delay_s=delay_ms / 1000))
    made.follow(100 * MS, 0, points(125 * MS, 0.0, 1.0, 2.0, 3.0), reach_ns=50 * MS)
    made.follow(150 * MS, 0, points(175 * MS, 1.0, 1.5, 1.5), reach_ns=50 * MS)
    expected = [(125 * MS, 1.0), (175 * MS, 1.5), (225 * MS, 1.5)]
    assert activations(made, NS_PER_S) == [(ns + delay_ms * MS, value) for ns, value in expected]


def test_a_late_trajectory_starts_with_the_point_of_its_time():
    made = controller(EmulatorSpec())
    made.follow(240 * MS, 0, points(125 * MS, 0.0, 1.0, 2.0, 3.0, 4.0), reach_ns=50 * MS)
    assert activations(made, NS_PER_S) == [(240 * MS, 3.0), (275 * MS, 4.0)]


def test_a_command_replaces_a_trajectory_of_its_actuator_only():
    made = controller(EmulatorSpec())
    made.follow(0, 0, points(50 * MS, 1.0, 2.0, 3.0), reach_ns=50 * MS)
    made.follow(0, 1, points(50 * MS, 1.0, 2.0, 3.0), reach_ns=50 * MS)
    made.receive(60 * MS, 0, np.array([9.0]))
    enforced(made, NS_PER_S)
    assert made.target.tolist() == [9.0, 3.0]


# ----------------------------------------------------------------------------------------------------------- profile


def profile_of(emulator, contract=ARM):
    return load_profile(contract, "mujoco_ros", emulator=emulator)


def test_given_values_override_the_profile():
    declared = {"servo_lag_s": 0.04, "sensors": {"joints": {"rate_hz": 50, "driver_delay_s": 0.01}, "tcp": {}}}
    backends = {**ARM.backends, "mujoco_ros": {**ARM.backends["mujoco_ros"], "emulator": declared}}
    over = {"command_delay_s": 1, "sensors": {"joints": {"driver_delay_s": 0.02}}}
    assert profile_of(over, replace(ARM, backends=backends)).emulator == EmulatorSpec(
        command_delay_s=1.0,
        servo_lag_s=0.04,
        sensors={"joints": Driver(rate_hz=50.0, driver_delay_s=0.02), "tcp": Driver()},
    )


@pytest.mark.parametrize(
    ("keys", "path", "problem"),
    [
        ({"delay_s": 0.1}, "delay_s", "unknown key"),
        ({"sensors": {"nothing": {}}}, "sensors.nothing", "'nothing' .expected one of: joints, target"),
        ({"sensors": {"tcp": {"rate": 3.0}}}, "sensors.tcp.rate", "unknown key"),
    ],
)
def test_an_invalid_emulator_is_rejected_by_path_and_value(keys, path, problem):
    with pytest.raises(ContractError, match=problem) as caught:
        profile_of(keys)
    assert caught.value.path == f"backends.mujoco_ros.emulator.{path}"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--emulator-settings", "{}"], "--emulator-settings requires --free-running"),
        (["--free-running", "--emulator-settings", "{"], "invalid --emulator-settings: '{'"),
        (["--free-running", "--emulator-settings", "[1]"], "invalid --emulator-settings: '[1]'"),
        (["--free-running", "--emulator-settings", '{"delay_s": 1}'], "emulator.delay_s"),
    ],
)
def test_an_invalid_emulator_on_the_command_line_is_a_usage_error(capsys, arguments, problem):
    assert main(["sim", "arm_reach", *arguments]) == 2
    assert problem in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- world


def world_of(emulator, contract=ARM):
    world = World(contract, profile_of(emulator, contract), path="backends.mujoco_ros", free_running=True)
    world.reset(0, {})
    return world


def controls_of(world, ticks):
    """Step, and return the control of the first joint after each tick."""
    found = []
    for _ in range(ticks):
        world.step()
        found.append(float(world._data.ctrl[0]))
    return found


@pytest.mark.parametrize("tick_s", [0.004, 0.001])
def test_a_tick_that_is_not_whole_physics_steps_is_rejected(tick_s):
    with pytest.raises(ContractError, match=r"timesteps of the model, 0\.0025 s") as caught:
        world_of({"tick_s": tick_s})
    assert caught.value.path == "backends.mujoco_ros.emulator.tick_s"


def test_a_rate_above_the_tick_rate_is_rejected():
    with pytest.raises(ContractError, match=r"at most one reading per tick of 0\.01 s") as caught:
        world_of({"sensors": {"joints": {"rate_hz": 100.1}}})
    assert caught.value.path == "backends.mujoco_ros.emulator.sensors.joints.rate_hz"


def test_a_lockstep_world_ignores_the_emulator():
    keys = {"tick_s": 0.0025, "servo_lag_s": 0.1, "sensors": {"joints": {"rate_hz": 1.0}}}
    plain, declared = World(ARM, load_profile(ARM, "mujoco_ros")), World(ARM, profile_of(keys))
    for world in (plain, declared):
        world.reset(0, {})
        world.command(world.target + 0.1)
        for _ in range(3):
            world.step()
    np.testing.assert_array_equal(sense(plain, "joints")["position"], sense(declared, "joints")["position"])
    assert plain.read()["joints"].stamp_ns == declared.read()["joints"].stamp_ns


@pytest.mark.parametrize("after_ns", [0, 1, 2_500_000, 2_500_001, 6_000_000, 7_500_001, TICK_NS])
def test_a_command_within_a_tick_acts_from_its_exact_nanosecond(after_ns):
    world = world_of({})
    home = float(world.target[0])
    world.step([(after_ns, world.target + np.array([0.2, 0, 0, 0, 0, 0]))])
    ways = [0.2 * max(0, at_ns - after_ns) / PERIOD_NS for at_ns in (7_500_000, 17_500_000)]  # where steps start
    found = [float(world._data.ctrl[0]) - home, *(np.array(controls_of(world, 1)) - home)]
    assert found == pytest.approx(ways, abs=1e-12)


def test_consecutive_commands_within_a_tick_act_in_order():
    world = world_of({})
    home = world.target
    first, second = home + 0.2, home - 0.2
    world.step([(1_000_000, first), (6_000_000, second)])
    there = 0.2 * 5 / 50
    assert float(world._data.ctrl[0] - home[0]) == pytest.approx(there - (0.2 + there) * 1.5 / 50)
    np.testing.assert_array_equal(world.target, second)


@pytest.mark.parametrize(
    ("interpolation_s", "rate_hz", "shares"),
    [(0.0, None, [1.0, 1.0, 1.0]), (0.02, None, [0.25, 0.75, 1.0]), (None, 100, [0.5, 1.0, 1.0])],
)
def test_a_position_is_reached_in_the_time_of_the_controller(interpolation_s, rate_hz, shares):
    """The shares are those 5, 15 and 25 ms after the command.

    The interpolation None is the time until the next command.
    """
    arm = {"arm": replace(ARM.actuators["arm"], setpoint_rate_hz=rate_hz)}
    world = world_of({"interpolation_s": interpolation_s}, replace(ARM, actuators=arm))
    home = float(world.target[0])
    world.step([(2_500_000, world.target + np.array([0.1, 0, 0, 0, 0, 0]))])
    found = np.array([world._data.ctrl[0], *controls_of(world, 2)])
    np.testing.assert_allclose((found - home) / 0.1, shares, atol=1e-12)


def test_a_reset_clears_the_lag():
    world = world_of({"servo_lag_s": 1.0})
    world.command(world.target + 0.5)
    world.step()
    world.reset(0, {})
    np.testing.assert_allclose(controls_of(world, 3), world.target[0])


# ---------------------------------------------------------------------------------------------------------- cameras


@pytest.fixture(scope="module")
def doors():
    """A door world that does not wait for its cameras, and one that does."""
    profile = load_profile(DOOR, "mujoco")
    worlds = World(DOOR, profile, free_running=True), World(DOOR, profile)
    for world in worlds:
        world.reset(0, {})
    yield worlds
    for world in worlds:
        world.close()


@pytest.fixture
def door(doors):
    """Return both worlds at the start of the same episode."""
    for world in doors:
        world.reset(3, {})
    return doors


def next_image(world):
    """Return the next image without advancing the world meanwhile."""
    for _ in range(10):
        world.step()
    end = time.monotonic() + 30.0
    while not any(image.done() for *_, image in world._cameras._images):
        assert time.monotonic() < end
        time.sleep(0.01)
    world.step()
    return world.read()["camera"]


def test_each_camera_has_an_image_at_reset(door):
    free, waiting = door
    picture = free.read()["camera"]
    np.testing.assert_array_equal(picture.values["image"], waiting.read()["camera"].values["image"])
    assert picture.stamp_ns == free.now_ns


def test_an_image_arrives_late_and_shows_the_state_at_its_stamp(door):
    free, waiting = door
    first_ns, begun_ns = free.now_ns, waiting.now_ns
    for world in door:
        world.command(world.target + 0.1)
    waiting.step()
    waiting.step()
    picture = next_image(free)
    expected = waiting.read()["camera"]
    assert (picture.stamp_ns - first_ns, expected.stamp_ns - begun_ns) == (100 * MS, 100 * MS)
    np.testing.assert_array_equal(picture.values["image"], expected.values["image"])


class BlockedReader:
    def __init__(self):
        self.release, self.sensors = threading.Event(), []

    def read(self, sensor):
        self.sensors.append(sensor)
        self.release.wait(30.0)
        return SensorOutput(values={}, extras={})


def test_cameras_skip_images_due_while_busy_and_take_the_newest_pending_one():
    model = WorldModel(DOOR, load_profile(DOOR, "mujoco"), "backends.mujoco")
    cameras, data, reader = AsyncCameras(model), model.new_data(), BlockedReader()
    cameras._reader = reader
    cameras.request("camera", 1, data)
    wait_for(lambda: reader.sensors)
    for sensor, taken_ns in (("camera", 2), ("depth", 3), ("depth", 4), ("camera", 5)):
        cameras.request(sensor, taken_ns, data)
    reader.release.set()
    wait_for(lambda: all(image.done() for *_, image in cameras._images))
    assert [(sensor, taken_ns) for sensor, taken_ns, _ in cameras.finished()] == [("camera", 1), ("depth", 4)]
    cameras.close()


def test_no_image_of_an_old_episode_is_returned(door):
    free, _ = door
    for _ in range(10):
        free.step()
    free.reset(4, {})
    begun_ns = free.now_ns
    free._cameras._executor.submit(int).result()  # the image in progress is finished
    free.step()
    assert free.read()["camera"].stamp_ns == begun_ns


def test_an_error_in_the_camera_thread_is_raised_by_the_reset(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    world = World(DOOR, load_profile(DOOR, "mujoco"), free_running=True)
    with pytest.raises(UsageError, match="MUJOCO_GL='nonsense'"):
        world.reset(4, {})
    world.close()


def test_a_closed_world_takes_no_images_and_ends_its_thread():
    world = World(DOOR, load_profile(DOOR, "mujoco"), free_running=True)
    world.reset(0, {})
    (thread,) = world._cameras._executor._threads
    world.close()
    world.close()
    assert not thread.is_alive()
    with pytest.raises(ClosedError, match="the cameras are closed"):
        world.reset(0, {})
