"""`LockstepControl` works over each API and its stand-in, over real DDS, and gives a reason for each fault."""

import contextlib
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs rclpy")

from simulator_stand_ins import STEP_NS, Faults, hosted

from embodied_env.errors import BackendLostError, UsageError
from embodied_env.extensions.gazebo.control import APIS
from embodied_env.extensions.gazebo.control.lockstep_control import LockstepControl, StepTimes
from embodied_env.extensions.gazebo.control.service_session import ServiceSession
from embodied_env.ros.transport.node import RosNode
from embodied_env.timing.clock import SteadyClock

pytestmark = pytest.mark.ros

PERIOD_NS = 10 * STEP_NS
PACKAGES = {"ros_gz": "ros_gz_interfaces", "simulation_interfaces": "simulation_interfaces"}
PATIENCE_S = 0.25  # for a reply that never arrives


def deadline(seconds=30.0):
    return time.monotonic() + seconds


@contextlib.contextmanager
def attached(name, domain_id, *, prefix=None):
    """Yield an unconnected control with its own node."""
    node = RosNode("environment", namespace="/", clock=SteadyClock(), domain_id=domain_id)
    try:
        api = APIS[name](world="toy", prefix=prefix)
        yield LockstepControl(api, ServiceSession(node.receiver), step_ns=STEP_NS, still_s=0.05)
    finally:
        node.close()


@pytest.fixture(scope="module")
def pair(request, lasting_domain, message_package):
    """The stand-in of an API and a control connected to it, shared by the tests of this API."""
    name = request.param
    if name in PACKAGES:
        message_package(PACKAGES[name])
    with contextlib.ExitStack() as alive:
        with lasting_domain() as domain_id:
            stand_in = alive.enter_context(hosted(name))
            control = alive.enter_context(attached(name, domain_id))
            control.connect(deadline())
        yield name, stand_in, control


@pytest.fixture
def begun(pair):
    """Return a function that resets the pair and then sets a misbehaviour of the stand-in."""
    _, stand_in, control = pair

    def begin(reply_timeout_s=30.0, **faults):
        control.session.reply_timeout_s = 30.0  # a machine that stalls loses no reply
        stand_in.run_between_iterations(stand_in.restore)
        while control.clock.now_ns != stand_in.world.now_ns:
            control.session.receive(0.05)
        control.reset(deadline())
        stand_in.faults = Faults(**faults)
        stand_in.requests.clear()
        control.session.reply_timeout_s = reply_timeout_s
        return stand_in, control

    return begin


of_both = pytest.mark.parametrize("pair", PACKAGES, indirect=True)


one_by_default = pytest.mark.parametrize(
    "name", ["ros_gz", pytest.param("simulation_interfaces", marks=pytest.mark.long)]
)


def of(name):
    return pytest.mark.parametrize("pair", [name], indirect=True)


def error_of(call, *arguments):
    """Return the reason and message of a failed call."""
    with pytest.raises(BackendLostError) as caught:
        call(*arguments)
    return caught.value.why, str(caught.value)


def begin_step(control, has_arrived):
    """Begin a step, receive until `has_arrived`, and have little patience for the rest."""
    control.begin_step(PERIOD_NS, deadline())
    pending, *_ = control._begun
    while not has_arrived(pending):
        control.session.poll(pending, deadline())
    control.session.reply_timeout_s = PATIENCE_S


def has_reply(pending):
    return pending.answered_s is not None


def stepping(stand_in, control, steps):
    """Take `steps` steps, and return the clock errors against the requested times, ns."""
    begin_ns, errors = control.now_ns(), set()
    for count in range(1, steps + 1):
        end_ns = control.step(PERIOD_NS, deadline())
        errors.add(end_ns - begin_ns - count * PERIOD_NS)
        errors.add(stand_in.world.now_ns - end_ns)
    return errors


@of_both
def test_lockstep_has_no_error_on_the_clock(begun):
    stand_in, control = begun()
    before = stand_in.world.iterations
    assert stepping(stand_in, control, 50) == {0}
    assert stand_in.world.iterations - before == 50 * 10


@of_both
def test_repeated_clock_messages_are_normal(begun):
    stand_in, control = begun(clock_repeats=3)
    assert stepping(stand_in, control, 5) == {0}


@of_both
def test_an_early_reply_does_not_end_a_step(begun):
    stand_in, control = begun(replies="early")
    assert stepping(stand_in, control, 5) == {0}


@of_both
def test_steps_after_a_reset_count_from_zero(begun):
    stand_in, control = begun()
    stepping(stand_in, control, 3)
    control.reset(deadline())
    assert control.now_ns() == 0
    assert stepping(stand_in, control, 3) == {0}
    assert stand_in.world.now_ns == 3 * PERIOD_NS


@of_both
def test_pausing_a_paused_world_is_no_error(begun):
    stand_in, control = begun()
    control.pause(deadline())
    control.pause(deadline())
    assert stepping(stand_in, control, 1) == {0}


@of("ros_gz")
def test_a_fraction_of_a_physics_step_is_rejected(begun):
    stand_in, control = begun()
    with pytest.raises(UsageError, match=f"multiple of {STEP_NS} ns"):
        control.step(STEP_NS // 2, deadline())
    assert stand_in.requests == []


@of("ros_gz")
def test_a_step_is_begun_without_waiting_for_the_world(begun):
    stand_in, control = begun()
    stand_in.pace_s = 0.02
    control.begin_step(PERIOD_NS, deadline())
    assert stand_in.world.now_ns < PERIOD_NS
    control.finish_step(deadline())
    stand_in.pace_s = 0.0
    times = control.last_step
    assert times.sent_s <= times.answered_s <= times.at_rest_s
    assert (control.now_ns(), times.reached_s - times.sent_s > 0.1) == (PERIOD_NS, True)
    control.finish_step(deadline())
    assert stepping(stand_in, control, 2) == {0}


@pytest.mark.parametrize(
    ("took_s", "world", "remedy"),
    [
        (0.02, "toy", ""),
        (0.05, "toy", "launch gazebo real_time_factor:=0"),
        (0.2, "toy", "gz service -s /world/toy/set_physics"),
        (0.05, None, "let the simulator run as fast as it can"),
    ],
)
def test_a_step_as_long_as_its_simulated_time_is_throttled(took_s, world, remedy):
    times = StepTimes(sent_s=1.0, answered_s=1.0, reached_s=1.0 + took_s, at_rest_s=9.0, duration_ns=50_000_000)
    described = times.describe_throttle(world)
    assert (bool(described), remedy in described) == (bool(remedy), True)


@of_both
def test_a_reply_without_its_step_does_not_end_a_step(begun, pair):
    _, control = begun(acts=False)
    begin_step(control, has_reply)
    promised = pair[0] == "simulation_interfaces"  # its reply is specified to come after the step
    assert error_of(control.finish_step, deadline(0.6))[0] == ("step_unfinished" if promised else "clock_stopped")


@of_both
@pytest.mark.parametrize(("acts", "detail"), [(True, "was carried out"), (False, "was not carried out")])
def test_a_lost_reply_is_reported_and_no_request_is_repeated(begun, acts, detail):
    stand_in, control = begun(replies="never", acts=acts)
    end_ns = control.now_ns() + acts * PERIOD_NS
    begin_step(control, lambda _: control.now_ns() == end_ns)
    why, text = error_of(control.finish_step, deadline())
    assert (why, len(stand_in.requests)) == ("reply_lost", 1)
    assert text.endswith(detail)


@of_both
def test_a_clock_that_stops_during_a_step_is_reported(begun):
    _, control = begun(stops_after=4)
    end_ns = control.now_ns() + 4 * STEP_NS
    begin_step(control, lambda _: control.now_ns() == end_ns)
    assert error_of(control.finish_step, deadline(0.6))[0] == "clock_stopped"


@of("ros_gz")
def test_a_clock_that_falls_silent_during_a_step_is_reported(begun):
    _, control = begun(silent=True)
    begin_step(control, has_reply)
    assert error_of(control.finish_step, deadline(0.6))[0] == "clock_stopped"


@of_both
def test_a_clock_rewound_during_a_step_is_reported(begun):
    stand_in, control = begun()
    control.step(PERIOD_NS, deadline())
    stand_in.faults = Faults(rewinds_in=4)
    assert error_of(control.step, PERIOD_NS, deadline())[0] == "clock_rewound"


@of_both
def test_a_foreign_reset_between_two_steps_is_reported(begun):
    stand_in, control = begun()
    control.step(PERIOD_NS, deadline())
    before = control.clock.received
    stand_in.run_between_iterations(stand_in.request_reset)
    while control.clock.received == before or control.clock.now_ns:
        control.session.receive(0.05)
    assert error_of(control.step, PERIOD_NS, deadline())[0] == "clock_rewound"


@of_both
def test_foreign_steps_during_ours_are_reported(begun):
    _, control = begun(extra_steps=3)
    assert error_of(control.step, PERIOD_NS, deadline())[0] == "extra_steps"


@of_both
def test_foreign_steps_between_ours_are_reported_before_a_request(begun):
    stand_in, control = begun()
    control.step(PERIOD_NS, deadline())
    asked, before_ns = len(stand_in.requests), control.now_ns()
    stand_in.run_between_iterations(lambda: stand_in.request_steps(3))
    while control.now_ns() < before_ns + 3 * STEP_NS:
        control.session.receive(0.05)
    assert error_of(control.step, PERIOD_NS, deadline())[0] == "extra_steps"
    assert len(stand_in.requests) == asked


@of_both
def test_the_reason_of_a_refused_step_is_quoted(begun, pair):
    name = pair[0]
    _, control = begun(refuses=True)
    why, text = error_of(control.step, PERIOD_NS, deadline())
    assert why == "refused"
    assert ("success = false" if name == "ros_gz" else "OPERATION_FAILED (4): not in the mood") in text


@of_both
def test_an_accepted_reset_without_effect_is_reported(begun):
    stand_in, control = begun()
    control.step(PERIOD_NS, deadline())
    stand_in.faults = Faults(acts=False)
    assert error_of(control.reset, deadline(0.6))[0] == "reset_not_seen"


@of_both
def test_a_lost_reply_to_a_reset_is_reported(begun):
    stand_in, control = begun()
    control.step(PERIOD_NS, deadline())
    stand_in.faults, control.session.reply_timeout_s = Faults(replies="never"), PATIENCE_S
    why, text = error_of(control.reset, deadline())
    assert why == "reply_lost"
    assert text.endswith("the clock shows the reset")


@one_by_default
def test_pending_steps_of_a_dead_client_are_awaited(message_package, domain_id, name):
    message_package(PACKAGES[name])
    with hosted(name) as stand_in, attached(name, domain_id) as control:
        stand_in.pace_s = 0.005
        stand_in.run_between_iterations(lambda: stand_in.request_steps(10_000))
        while not control.clock.received:
            control.session.receive(0.1)
        stand_in.run_between_iterations(stand_in.restore)
        stand_in.run_between_iterations(lambda: stand_in.request_steps(100))
        control.connect(deadline())
        assert control.now_ns() == stand_in.world.now_ns >= 100 * STEP_NS
        stand_in.pace_s = 0.0
        assert stepping(stand_in, control, 2) == {0}


@one_by_default
def test_a_world_that_never_pauses_is_rejected(message_package, domain_id, name):
    message_package(PACKAGES[name])
    with hosted(name) as stand_in, attached(name, domain_id) as control:
        stand_in.pace_s = 0.005
        stand_in.world.paused = False
        why, _ = error_of(control.connect, deadline(0.6))
        moving = [request for request in stand_in.requests if not request.endswith("get_simulator_features")]
    assert (why, moving) == ("settling", [])


@of("ros_gz")
def test_a_step_lost_in_a_suspended_simulator_does_not_extend_a_later_one(begun):
    """No pause may interrupt the slow lost step between SIGSTOP, step, reset, SIGCONT and reset."""
    stand_in, control = begun(PATIENCE_S)
    control.step(PERIOD_NS, deadline())
    with stand_in.suspended():
        assert error_of(control.step, PERIOD_NS, deadline())[0] == "reply_lost"
        why, text = error_of(control.connect, deadline(1.0))
        stand_in.pace_s = 0.05
    control.session.reply_timeout_s = 30.0
    control.connect(deadline())
    control.reset(deadline())
    stand_in.pace_s = 0.0
    assert stepping(stand_in, control, 3) == {0}
    assert (why, "suspended or has ended" in text) == ("clock_stopped", True)


def test_a_bridge_without_a_server_gets_no_request(message_package, domain_id):
    message_package("ros_gz_interfaces")
    with hosted("ros_gz", faults=Faults(silent=True)) as stand_in, attached("ros_gz", domain_id) as control:
        assert error_of(control.connect, deadline(1.0))[0] == "clock_stopped"
        assert stand_in.requests == []


@of("ros_gz")
def test_the_interrupted_step_of_a_dead_client_is_run_down(begun):
    stand_in, control = begun()
    stand_in.run_between_iterations(lambda: setattr(stand_in, "interrupted", 500))
    control.connect(deadline())
    control.reset(deadline())
    assert stepping(stand_in, control, 3) == {0}


@of("ros_gz")
def test_a_pause_is_not_repeated_while_the_simulator_is_suspended(begun):
    stand_in, control = begun(PATIENCE_S)
    with stand_in.suspended():
        error_of(control.pause, deadline(1.0))
    stand_in.run_between_iterations(lambda: None)
    stand_in.run_between_iterations(lambda: None)
    assert len(stand_in.requests) == 1


@of("ros_gz")
def test_gazebo_sets_the_pose_of_a_model(begun):
    stand_in, control = begun()
    control.set_state("cart", np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 1.0, 0.0]), deadline())
    assert stand_in.world.poses["cart"] == (1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0)


@of("simulation_interfaces")
def test_the_standard_interface_reports_the_state_that_was_set(begun):
    _, control = begun()
    control.step(PERIOD_NS, deadline())
    control.set_state("cart", np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 1.0, 0.0]), deadline())
    state = control.state("cart", deadline())
    np.testing.assert_array_equal(np.concatenate([state.position, state.orientation]), [1, 2, 3, 0, 0, 1, 0])


@of("simulation_interfaces")
def test_an_unknown_entity_is_rejected(begun):
    _, control = begun()
    why, text = error_of(control.state, "missing", deadline())
    assert (why, "NOT_FOUND (2)" in text) == ("refused", True)


def test_a_bridge_without_set_pose_lacks_this_capability(message_package, domain_id):
    message_package("ros_gz_interfaces")
    with hosted("ros_gz", sets_pose=False), attached("ros_gz", domain_id) as control:
        control.connect(deadline())
        assert not control.capabilities.set_state


@pytest.mark.long
def test_the_step_action_replaces_a_missing_step_service(message_package, domain_id):
    message_package("simulation_interfaces")
    features = (20, 25, 26, 33)
    with (
        hosted("simulation_interfaces", features=features) as stand_in,
        attached("simulation_interfaces", domain_id) as control,
    ):
        control.connect(deadline())
        control.wake_clock(deadline())
        assert stepping(stand_in, control, 20) == {0}
        asked = [name for name in stand_in.requests if name.endswith("simulate_steps/_action/send_goal")]
    assert len(asked) == 21
