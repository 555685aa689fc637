"""Homing goes slowly through the gate to the home position, and may end early for several reasons."""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import scripted_tasks
from hypothesis import example, given
from hypothesis import strategies as st
from safety_strategies import FunctionFilter, examples
from scripted_tasks import PERIOD_NS, PERIOD_S, Scene

from embodied_env.backends.fake_backend import FakeBackend, ScriptedFault
from embodied_env.core.code_types import Severity
from embodied_env.core.reset_draws import ResetRoutine, validate_home
from embodied_env.core.types import EpisodeStart
from embodied_env.errors import BackendLostError, BackendNotReadyError, ResetNeededError
from embodied_env.safety.command_filters import FilterDecision
from embodied_env.timing.clock import NS_PER_S, ManualClock

HOME = {"shoulder": 0.6, "elbow": -0.4}
ROUTINE = ResetRoutine(home=HOME, speed=0.5)
LOCKSTEP = {"free_running": False, "step_timeout_s": 5.0}


class DisplacedBackend(FakeBackend):
    """A backend whose reset puts the joints at `start` and which reads the positions `verified` next."""

    start = (0.0, 0.0)
    verified: tuple[float, float] | None = None

    def reset(self, request, deadline_ns):
        report = super().reset(request, deadline_ns).reset
        self._positions[:] = self.start
        return replace(self._snapshot(), reset=report)

    def verify(self, deadline_ns):
        if self.verified is not None:
            self._positions = np.array(self.verified)
        return super().verify(deadline_ns)


def scene_of(routine=ROUTINE, *, backend=DisplacedBackend, options=None, start=(0.0, 0.0), filters=None, **changes):
    contract, own = scripted_tasks.contract(**changes), {"free_running": True, **(options or {})}
    made = Scene(contract, backend=backend, filters=filters or {}, **own)
    made.backend.routine, made.backend.start = routine, start
    made.backend.reset_timeout_s = 200.0
    return made


@contextlib.contextmanager
def closing(scene):
    try:
        yield scene
    finally:
        scene.close()


def positions_of(scene):
    return dict(zip(scene.backend._joints, scene.backend._positions.tolist(), strict=True))


def velocities(scene, start):
    """Return the velocity of each published command from the positions alone, shape (n_commands, n_joints)."""
    values = [np.array(start), *(command.values for command in scene.sent)]
    return np.diff(values, axis=0) / PERIOD_S


# ------------------------------------------------------------------------------------------------------- success


def test_reset_homes_the_robot_and_reports_it():
    with closing(scene_of()) as scene:
        observation, info = scene.reset()
        assert positions_of(scene) == pytest.approx(HOME, abs=ROUTINE.tolerance)
        assert observation["joints_position"] == pytest.approx(list(HOME.values()), abs=ROUTINE.tolerance)
        assert info["reset"]["routine"] == "home"
        assert "commands" in scene.stepper.last_reset.reset.details["home"]
        scene.clock.advance_ns(PERIOD_NS)  # otherwise no time would have passed since the reset
        assert scene.step((0.1, 0.1)).report.disposition is Severity.PASS


def test_homing_ends_at_home_itself_and_reports_how_far_the_joints_are_from_it():
    """The command that an episode starts from does not depend on where the last episode ended."""
    lasts = []
    for start in ((0.0, 0.0), (0.9, -0.7)):
        with closing(scene_of(start=start)) as scene:
            _, info = scene.reset()
            lasts.append(scene.sent[-1].values)
            assert 0.0 <= info["reset"]["home_offset"] <= ROUTINE.tolerance
    np.testing.assert_allclose(lasts, [list(HOME.values())] * 2, rtol=0.0, atol=1e-6)


ONE_WAY = {"velocity": [0.0, 1.0], "position": [-2.0, 2.0], "acceleration": 4.0, "deceleration": 8.0}


@pytest.mark.parametrize("jerk", [None, 40.0])
@pytest.mark.parametrize("start", [-0.5, 0.0, 0.6, 0.61])
def test_a_one_way_joint_moves_home_in_its_direction_or_stays_within_the_tolerance(start, jerk):
    limits = {**ONE_WAY, "jerk": jerk}
    with closing(scene_of(start=(start, -0.7), actuators__arm__joints__shoulder=limits)) as scene:
        scene.reset()
        assert scene.sent[-1].values == pytest.approx([max(start, 0.6), -0.4], abs=2e-3)
        assert (velocities(scene, (start, -0.7))[:, 0] >= 0.0).all()


def test_homing_refuses_a_one_way_joint_that_is_past_home():
    text = r"homing refused: shoulder is at 0\.9, past home 0\.6, and moves in one direction only"
    with closing(scene_of(start=(0.9, 0.0), actuators__arm__joints__shoulder=ONE_WAY)) as scene:
        with pytest.raises(BackendNotReadyError, match=text):
            scene.reset()
        assert {tuple(command.values) for command in scene.sent} == {(0.9, 0.0)}  # braking at rest


class Servo(DisplacedBackend):
    """Each control period leaves `share` of the distance to a command, and `friction` stops a joint short of it."""

    share, friction = 0.2, 0.0

    def advance(self, target_ns, deadline_ns):
        before = self._positions
        super().advance(target_ns, deadline_ns)
        away = before - self._positions
        left = np.maximum(self.share * np.abs(away), np.minimum(self.friction, np.abs(away)))
        self._positions = self._positions + np.copysign(left, away)


@pytest.mark.parametrize(("share", "friction", "offset"), [(0.2, 0.0, 0.0), (0.9, 0.0, 0.02), (0.2, 0.003, 0.003)])
def test_homing_waits_while_the_joints_settle_and_accepts_where_they_stop(share, friction, offset):
    """A servo that is slow or stops short of home is no fault within the tolerance, and its distance is reported."""
    with closing(scene_of(backend=Servo)) as scene:
        scene.backend.share, scene.backend.friction = share, friction
        _, info = scene.reset()
    assert 0.0 <= info["reset"]["home_offset"] <= ROUTINE.tolerance
    assert info["reset"]["home_offset"] <= offset + 1e-6


class SlowServo(Servo):
    """A control period of the world takes `period_s` of real time."""

    share, period_s = 0.45, 0.3
    _clock: ManualClock

    def advance(self, target_ns, deadline_ns):
        self._clock.advance_ns(round(self.period_s * NS_PER_S))
        super().advance(target_ns, deadline_ns)


def test_a_robot_within_the_tolerance_when_its_time_is_over_is_home():
    """It still settles towards home, by half in each control period, when the time for it has passed."""
    with closing(scene_of(backend=SlowServo)) as scene:
        _, info = scene.reset()
        assert 1e-6 < info["reset"]["home_offset"] <= ROUTINE.tolerance


def test_a_robot_within_the_tolerance_at_the_timeout_is_home():
    near = {"shoulder": 0.01, "elbow": -0.01}
    with closing(scene_of(replace(ROUTINE, home=near, timeout_s=1e-3))) as scene:
        _, info = scene.reset()
        assert info["reset"]["home_offset"] <= ROUTINE.tolerance


@pytest.mark.parametrize("timeout_s", [None, 10.0])
def test_limits_count_simulated_time_where_steps_are_exact(timeout_s):
    with closing(scene_of(replace(ROUTINE, timeout_s=timeout_s), backend=SlowServo, options=LOCKSTEP)) as scene:
        scene.backend.period_s = 3.0
        _, info = scene.reset()
        assert info["reset"]["home_offset"] <= 1e-6
        assert scene.clock.now_ns() > 30 * NS_PER_S


def test_homing_in_lockstep_times_out_in_simulated_time():
    with closing(scene_of(replace(ROUTINE, timeout_s=0.6), options=LOCKSTEP)) as scene:
        with pytest.raises(BackendNotReadyError, match="timed out: shoulder is at"):
            scene.reset()
        assert len(scene.sent) <= 0.6 / PERIOD_S + 1


def test_first_reading_of_the_episode_is_newer_than_homing():
    with closing(scene_of()) as scene:
        scene.reset()
        snapshot = scene.stepper.last_reset
        assert all(sample.stamp_ns == snapshot.now_ns for sample in snapshot.samples.values())
        assert snapshot.now_ns >= len(scene.sent) * PERIOD_NS


def test_robot_at_home_stays_there():
    with closing(scene_of(start=tuple(HOME.values()))) as scene:
        scene.reset()
        assert np.abs(velocities(scene, tuple(HOME.values()))).max() == 0.0


def test_every_homing_command_is_requested_within_the_limits():
    with closing(scene_of()) as scene:
        scene.reset()
        reports = [command.report for command in scene.sent[:-1]]  # the last one brakes
        assert [finding for report in reports for finding in report.findings] == []


def test_contract_limits_are_restored_after_homing():
    with closing(scene_of()) as scene:
        scene.reset()
        for _ in range(10):
            fast = scene.step((1.0, 0.0))
        assert fast.report.velocity_si[0] == pytest.approx(scripted_tasks.VELOCITY)


PLACES = st.floats(-1.0, 1.0) | st.sampled_from([-2.0, -1.9, 2.0])


WAYS = {
    "start": st.tuples(PLACES, PLACES),
    "home": st.tuples(PLACES, PLACES),
    "speed": st.floats(0.2, 1.0),
    "limits": st.fixed_dictionaries(
        {
            "position": st.just([-2.0, 2.0]),
            "velocity": st.floats(0.5, 3.0),
            "acceleration": st.floats(0.5, 20.0),
            "deceleration": st.floats(0.5, 20.0),
        },
        optional={"jerk": st.floats(5.0, 200.0)},
    ),
    "command": st.sampled_from(["position", "position_delta"]),
    "scale": st.sampled_from(["normalized", "physical"]),
}


# One step used to cover the last 0.1 of the tolerance; the jerk limit turned it into an oscillation.
STEP_AT_THE_END = {
    "start": (0.0, 0.34375),
    "home": (1.0, 0.0),
    "speed": 1.0,
    "limits": {"position": [-2.0, 2.0], "velocity": 1.0, "acceleration": 1.0, "deceleration": 1.0, "jerk": 5.0},
    "command": "position",
    "scale": "normalized",
}


@examples(16)
@given(way=st.fixed_dictionaries(WAYS))
@example(way=STEP_AT_THE_END)
def test_home_is_reached_from_anywhere_within_the_speed_share(way):
    start, home, speed, limits = (way[name] for name in ("start", "home", "speed", "limits"))
    contract = {
        "actuators__arm__joints": {name: dict(limits) for name in HOME},
        "actuators__arm__command": way["command"],
        "actuators__arm__scale": way["scale"],
    }
    routine = ResetRoutine(home=dict(zip(HOME, home, strict=True)), speed=speed)
    with closing(scene_of(routine, start=start, **contract)) as scene:
        scene.reset()
        moved = velocities(scene, start)
        slack = 1e-9 + 1e-14 / PERIOD_S
        assert np.abs(moved).max() <= speed * limits["velocity"] + slack
        positions = np.array([command.values for command in scene.sent])
        low, high = np.minimum(start, home), np.maximum(start, home)  # it never overshoots
        passed = 1e-12 if "jerk" not in limits else 0.01 * routine.tolerance
        assert (positions >= low - passed).all()
        assert (positions <= high + passed).all()
        assert positions_of(scene) == pytest.approx(routine.home, abs=routine.tolerance)
        assert not scene.sent[-1].report.velocity_si.any()


# ---------------------------------------------------------------------------------- failures, ending at rest


class Blocked(DisplacedBackend):
    """Its elbow moves no further than `end`."""

    end = -0.37

    def advance(self, target_ns, deadline_ns):
        super().advance(target_ns, deadline_ns)
        self._positions[1] = max(self._positions[1], self.end)


class BlockedEarly(Blocked):
    end = -0.1


class Interrupting(DisplacedBackend):
    """Ctrl-C at the tenth period."""

    def advance(self, target_ns, deadline_ns):
        super().advance(target_ns, deadline_ns)
        if self._step == 10:
            raise KeyboardInterrupt


def pressed_at(step):
    class Pressed(DisplacedBackend):
        def advance(self, target_ns, deadline_ns):
            super().advance(target_ns, deadline_ns)
            if self._step == step:
                self.estop_states = {"button": "active"}

    return Pressed


def assert_at_rest(scene):
    """Assert that the robot has moved and braked, and accepts no further command."""
    speeds = [np.abs(command.report.velocity_si).max() for command in scene.sent]
    assert max(speeds) > 0.1
    assert speeds[-1] == 0.0
    assert scene.backend.halted
    with pytest.raises(ResetNeededError):
        scene.step()


def check_reset_fails(scene, match):
    with pytest.raises(BackendNotReadyError, match=match):
        scene.reset()
    assert_at_rest(scene)


def wall(proposal):
    """Block motion beyond 0.3 rad of the first joint."""
    return FilterDecision(severity=Severity.HOLD, detail="a wall") if proposal.positions[0] > 0.3 else None


def dropped(first, end, sensor="joints"):
    return {"faults": [ScriptedFault(kind="drop", sensor=sensor, step=step) for step in range(first, end)]}


FAILURES: dict = {
    "blocked near home": (
        {"backend": Blocked},
        r"not home 2.0 s after the last command: elbow is at -0\.37, 0\.03 from home -0\.4 \(tolerance 0\.02\)",
    ),
    "blocked far from home": (
        {"backend": BlockedEarly},
        r"was stopped by the safety gate \(tracking track.error of elbow\): elbow is at -0\.1, 0\.3 from home -0\.4",
    ),
    "an estop": (
        {"backend": pressed_at(10)},
        r"an ESTOP is latched, estop estop.active: button is active.*clear_estop",
    ),
    "a missing sensor": (
        {"options": dropped(8, 200)},
        r"was stopped .*\(observation obs.stale: reading of joints is .* old.*shoulder is at",
    ),
    "a gap that ends episodes": (
        {"options": dropped(8, 9, "beacon"), "sensors__beacon__on_gap": "stop"},
        "no valid reading of beacon",
    ),
    "a gate": (
        {"filters": {"workspace": FunctionFilter(wall)}},
        "20 commands in a row were held .the straight joint path is blocked by the workspace gate, ws.keepout.*a wall",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_homing_that_fails_brakes_and_names_the_joint_or_the_cause(name):
    options, match = FAILURES[name]
    with closing(scene_of(**options)) as scene:
        check_reset_fails(scene, match)


@pytest.mark.parametrize("start", [(0.0, 0.0), (0.6039, -0.4)], ids=["away", "near home"])
def test_reset_after_an_estop_names_the_estop(start):
    with closing(scene_of(start=tuple(HOME.values()))) as scene:
        scene.reset()
        scene.clock.advance_ns(PERIOD_NS)
        scene.backend.estop_states = {"button": "active"}
        assert scene.step((0.1, 0.1)).info["end_reason"] == "safety_stop:estop.active"
        scene.backend.estop_states, scene.backend.start = {"button": "ok"}, start
        with pytest.raises(
            BackendNotReadyError, match=r"ESTOP is latched.*button is active.*clear_estop\(\)"
        ) as caught:
            scene.reset()
        assert "tolerance" not in str(caught.value)
        scene.stepper.gate.clear_estop()
        scene.reset()


def test_short_sensor_gap_pauses_homing_and_is_reported():
    with closing(scene_of(options=dropped(8, 14))) as scene:
        scene.reset()
        assert positions_of(scene) == pytest.approx(HOME, abs=ROUTINE.tolerance)
        assert "x obs.stale" in scene.stepper.last_reset.reset.details["home"]


def test_lost_backend_ends_homing_and_the_next_reset_retries_it():
    with closing(scene_of(options={"faults": [ScriptedFault(kind="refuse", step=8)]})) as scene:
        with pytest.raises(BackendNotReadyError, match=r"backend lost: refused.*shoulder is at") as caught:
            scene.reset()
        assert isinstance(caught.value.__cause__, BackendLostError)
        scene.backend._faults = ()
        scene.reset()
        assert positions_of(scene) == pytest.approx(HOME, abs=ROUTINE.tolerance)


class Stalling(DisplacedBackend):
    """The program hangs at the tenth period and calls `meanwhile`."""

    meanwhile: Callable[[], None]

    def advance(self, target_ns, deadline_ns):
        super().advance(target_ns, deadline_ns)
        if self._step == 10:
            self._clock.sleep_until_ns(self._clock.now_ns() + 2 * NS_PER_S)
            self.meanwhile()


def test_watchdog_is_armed_during_homing():
    seen = []
    with closing(scene_of(backend=Stalling, options={"step_timeout_s": 5.0})) as scene:
        scene.backend.meanwhile = lambda: seen.append(scene.stepper._guard.watchdog.check())
        check_reset_fails(scene, "was stopped by the safety gate")
        assert seen[0].code == "wd.stop"
        assert scene.stepper._guard.watchdog.check() is None  # and not over what follows


@pytest.mark.parametrize(("timeout_s", "reset_timeout_s"), [(0.6, 200.0), (100.0, 0.6)])
def test_homing_times_out_at_its_own_and_at_the_reset_timeout(timeout_s, reset_timeout_s):
    with closing(scene_of(replace(ROUTINE, timeout_s=timeout_s))) as scene:
        scene.backend.reset_timeout_s = reset_timeout_s
        check_reset_fails(scene, "timed out: shoulder is at")
        assert scene.clock.now_ns() < 2 * NS_PER_S


def test_interrupt_during_homing_brakes_and_propagates():
    with closing(scene_of(backend=Interrupting)) as scene:
        with pytest.raises(KeyboardInterrupt):
            scene.reset()
        assert_at_rest(scene)


def test_robot_that_left_home_is_reported():
    with closing(scene_of()) as scene:
        scene.backend.verified = (0.6, 0.4)
        check_reset_fails(scene, "left home after homing: elbow is at 0.4, 0.8 from")


class ResetFromOutside(DisplacedBackend):
    """Another thread resets while the robot drives home."""

    reset_again: Callable[[], object] | None = None
    refused: BaseException | None = None

    def advance(self, target_ns, deadline_ns):
        super().advance(target_ns, deadline_ns)
        if len(self.sent) == 12 and self.reset_again is not None:
            again, self.reset_again = self.reset_again, None
            with ThreadPoolExecutor() as other:
                self.refused = other.submit(again).exception()


def test_a_second_reset_while_the_robot_drives_home_is_refused():
    """It would take the moving robot to be at rest."""
    with closing(scene_of(backend=ResetFromOutside)) as scene:
        scene.backend.reset_again = scene.reset
        scene.reset()
        assert isinstance(scene.backend.refused, ResetNeededError)
        assert {command.epoch for command in scene.sent} == {0}
        assert positions_of(scene) == pytest.approx(HOME, abs=ROUTINE.tolerance)


# ------------------------------------------------------------------------------------- operator confirmation


class ConfirmingBackend(DisplacedBackend):
    """Record each request to the operator, or decline it if `declines`."""

    declines = False

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.questions = []

    def confirm(self, question, deadline_ns):
        self.questions.append((question, len(self.sent)))
        if self.declines:
            raise BackendNotReadyError("the operator has declined")


class Unseedable(ConfirmingBackend):
    """Ignores options, like a robot."""

    def reset(self, request, deadline_ns):
        snapshot = super().reset(request, deadline_ns)
        return replace(
            snapshot, reset=replace(snapshot.reset, seed_applied=None, sampled={}, ignored=tuple(request.options))
        )


def test_operator_is_prompted_at_home_with_options_and_joints():
    with closing(scene_of(replace(ROUTINE, confirm="prompt"), backend=ConfirmingBackend)) as scene:
        info = scene.reset(goal=[0.2, 0.3, 0.4])[1]
        ((question, commands),) = scene.backend.questions
        assert commands == len(scene.sent)
        assert "goal=[0.2, 0.3, 0.4]" in question
        assert "elbow -0.4" in question
        assert info["reset"]["confirmed_by"] == "prompt"


def test_nothing_moves_before_confirmation():
    with closing(scene_of(ResetRoutine(confirm="topic"), backend=ConfirmingBackend)) as scene:
        scene.backend.declines = True
        with pytest.raises(BackendNotReadyError, match="declined"):
            scene.reset()
        scene.close()
        assert scene.sent == []


def test_a_robot_that_leaves_the_recorded_start_during_the_question_does_not_begin():
    start = EpisodeStart(label="episode 1", positions={"shoulder": 0.0, "elbow": 0.0}, rehearse=str)
    with closing(scene_of(ResetRoutine(confirm="topic"), backend=ConfirmingBackend)) as scene:
        scene.backend.verified = (0.5, 0.0)
        moved = r"the robot moved since the question: shoulder is at 0\.5, 0\.5 from the recorded start 0"
        with pytest.raises(BackendNotReadyError, match=moved):
            scene.stepper.reset(world_seed=0, options=None, seeded=True, start=start)
        scene.close()
        assert len(scene.backend.questions) == 1
        assert scene.sent == []


def test_a_robot_that_moves_during_the_question_does_not_drive_a_way_that_was_not_confirmed():
    start = EpisodeStart(label="episode 1", positions={"shoulder": 0.3, "elbow": 0.0}, rehearse=str)
    with closing(scene_of(ResetRoutine(confirm="topic"), backend=ConfirmingBackend)) as scene:
        scene.backend.verified = (-0.5, 0.0)
        moved = r"the robot moved since the question: shoulder is at -0\.5, 0\.8 from the recorded start 0"
        with pytest.raises(BackendNotReadyError, match=moved):
            scene.stepper.reset(world_seed=0, options=None, seeded=True, start=start)
        scene.close()
        assert scene.sent == []


def test_confirmed_options_count_as_applied():
    with closing(scene_of(ResetRoutine(confirm="service"), backend=Unseedable)) as scene:
        info = scene.reset(goal=[0.2, 0.3, 0.4])[1]["reset"]
        assert info["sampled"]["goal"].tolist() == [0.2, 0.3, 0.4]
        assert (info["options_ignored"], info["routine"], info["confirmed_by"]) == ("", "", "service")
        assert scene.stepper.last_reset.reset.details["options"] == "set up by the operator: goal"


def test_ignored_options_are_reported_with_a_warning():
    with closing(scene_of(ResetRoutine(), backend=Unseedable)) as scene:
        with pytest.warns(UserWarning, match="fake: goal, load"):
            info = scene.reset(goal=[0.2, 0.3, 0.4], load=1.0)[1]["reset"]
        assert (info["options_ignored"], info["seed_applied"], info["confirmed_by"]) == ("goal,load", -1, "")


class MovedWithoutSensor(DisplacedBackend):
    """The second reset moves the robot, and then a sensor is silent."""

    resets = 0

    def reset(self, request, deadline_ns):
        self.resets += 1
        snapshot = super().reset(request, deadline_ns)
        samples = {name: sample for name, sample in snapshot.samples.items() if self.resets == 1 or name != "beacon"}
        return replace(snapshot, samples=samples)


def test_failed_reset_never_commands_the_old_position():
    """`close` must not brake at the last command, since a reset service may have moved the robot since."""
    scene = scene_of(None, backend=MovedWithoutSensor)
    scene.reset()
    scene.clock.advance_ns(PERIOD_NS)
    scene.step((0.5, 0.5))
    with pytest.raises(BackendNotReadyError, match="beacon"):
        scene.reset()  # it brakes first, in the middle of an episode
    before = len(scene.sent)
    scene.close()
    assert len(scene.sent) == before


# ----------------------------------------------------------------------------------------- valid home positions


def test_home_must_name_every_position_joint():
    assert validate_home(scripted_tasks.contract(), HOME) == {}


@pytest.mark.parametrize(
    ("home", "joint", "problem"),
    [
        ({"shoulder": 0.0}, "elbow", "missing"),
        ({**HOME, "wrist": 0.0}, "wrist", "no such joint: 'wrist' (expected one of: elbow, shoulder)"),
        ({**HOME, "elbow": 2.5}, "elbow", r"2.5 (expected -2 to 2"),
        ({**HOME, "elbow": float("nan")}, "elbow", "nan (expected"),
    ],
)
def test_invalid_home_is_named_by_joint(home, joint, problem):
    problems = validate_home(scripted_tasks.contract(), home)
    assert list(problems) == [joint]
    assert problem in problems[joint]


def test_velocity_joint_cannot_be_homed():
    problems = validate_home(scripted_tasks.contract(actuators__arm__command="velocity"), HOME)
    assert "commanded by velocity" in problems["shoulder"]
