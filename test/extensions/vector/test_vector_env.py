"""Vector environments equal SyncVectorEnv, and slots are independent."""

import contextlib
import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from batches import Pair, arm_with_two_actuators
from evidence import assert_sound
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import embodied_env
from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.errors import BackendNotReadyError, ClosedError, ResetNeededError, SlotEndedError, UsageError
from embodied_env.timing.clock import ManualClock, VirtualClock

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
ID = "embodied_env:embodied_env/ArmReach-v0"


def limits(slot):
    """Return time limits of different lengths, so that episodes end one at a time and together."""
    return {"max_episode_steps": 5 + 4 * slot}


def sync(contract, num_envs, mode, *, per_slot=limits, **options):
    def maker(slot):
        return lambda: embodied_env.make(contract, **options, **per_slot(slot))

    return SyncVectorEnv([maker(slot) for slot in range(num_envs)], autoreset_mode=mode)


@pytest.fixture
def make_vec(close_later):
    def make(contract="arm_reach", *, num_envs=2, backend="fake", **options):
        return close_later(embodied_env.make_vec(contract, num_envs=num_envs, backend=backend, **options))

    return make


def backend_of(env, slot):
    return env.envs[slot].unwrapped.stepper.backend


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(
    ("contract", "steps", "num_envs"), [("arm_reach", 30, 2), pytest.param("door_open", 300, 3, marks=pytest.mark.long)]
)
def test_steps_one_by_one_equal_those_of_a_sync_vector_env(contract, steps, num_envs, mode):
    pair, finals = Pair.of(contract, mode, num_envs, backend="fake"), 0
    with contextlib.closing(pair):
        pair.reset(seed=7)
        for step in range(steps):
            finals += "final_info" in pair.step()
            if step % 29 == 28:
                pair.reset(seed=step)
    assert (finals > 0) == (mode is SAME_STEP)


def test_worlds_in_threads_equal_those_without(make_vec):
    envs = [make_vec(backend="mujoco", clock="virtual", num_envs=3, threads=threads) for threads in (0, 2)]
    pair = Pair(*envs)
    pair.reset(seed=3)
    for _ in range(12):
        pair.step()


def test_spaces_and_metadata_equal_those_of_a_sync_vector_env(make_vec):
    ours, theirs = make_vec(num_envs=3), sync("arm_reach", 3, NEXT_STEP, backend="fake")
    for name in ("single_observation_space", "observation_space", "single_action_space", "action_space", "metadata"):
        assert getattr(ours, name) == getattr(theirs, name)
    theirs.close()


@pytest.mark.parametrize("mode", [*AutoresetMode, *(mode.value for mode in AutoresetMode)])
def test_metadata_contains_the_autoreset_mode_of_the_instance(make_vec, mode):
    other = make_vec(autoreset_mode="Disabled")
    assert make_vec(autoreset_mode=mode).metadata["autoreset_mode"] is AutoresetMode(mode)
    assert other.metadata["autoreset_mode"] is DISABLED


MASKS = {
    "a list": [True, False],
    "of another length": np.array([True]),
    "of two dimensions": np.array([[True, False]]),
    "of ints": np.array([1, 0]),
    "of none": np.array([False, False]),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_an_invalid_mask_raises_the_error_of_a_sync_vector_env(make_vec, mask):
    ours, theirs = make_vec(), sync("arm_reach", 2, NEXT_STEP, backend="fake")
    raised = []
    for env in (ours, theirs):
        env.reset(seed=0)
        with pytest.raises((TypeError, ValueError), match="reset_mask") as error:
            env.reset(options={"reset_mask": mask})
        raised.append(error.type)
    theirs.close()
    assert raised[0] is raised[1]


@pytest.mark.parametrize(
    ("seed", "error", "problem"),
    [
        *((seed, gymnasium.error.Error, "Seed must be a python integer") for seed in (True, [0, False])),
        *((seed, ValueError, "wrong number of seeds") for seed in ([1], [1, 2, 3])),
        *((seed, TypeError, "invalid seed") for seed in ("xy", 1.5)),
    ],
)
def test_an_invalid_seed_is_rejected(make_vec, seed, error, problem):
    with pytest.raises(error, match=problem):
        make_vec(num_envs=2).reset(seed=seed)


def test_a_robot_is_rejected_by_its_pacing_before_its_address():
    with pytest.raises(UsageError, match=r"unsupported pacing .* 'realtime' with real"):
        embodied_env.make_vec("arm_reach", num_envs=2, backend="real")


def test_the_callers_options_are_not_modified(make_vec):
    env, options = make_vec(), {"reset_mask": np.array([True, False])}
    env.reset(seed=0)
    env.reset(options=options)
    assert list(options) == ["reset_mask"]


def test_a_step_of_a_finished_slot_is_rejected_with_autoreset_disabled(make_vec):
    ours, theirs = (make_vec(autoreset_mode=DISABLED, per_slot=limits), sync("arm_reach", 2, DISABLED, backend="fake"))
    for env in (ours, theirs):
        env.reset(seed=0)
        for _ in range(5):
            env.step(env.action_space.sample())
        with pytest.raises(AssertionError, match=r"in slots \[0\]|_autoreset_envs"):
            env.step(env.action_space.sample())
    theirs.close()
    assert [len(backend_of(ours, slot).sent) for slot in range(2)] == [5, 5]
    with pytest.raises(SlotEndedError):
        ours.step(ours.action_space.sample())


def test_a_step_before_the_first_reset_publishes_nothing(make_vec):
    env = make_vec()
    with pytest.raises(ResetNeededError):
        env.step(env.action_space.sample())
    assert backend_of(env, 0).sent == []


def test_the_first_reset_must_include_every_slot(make_vec):
    with pytest.raises(ResetNeededError, match=r"\[1\]"):
        make_vec().reset(options={"reset_mask": np.array([True, False])})


@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_number_of_actions_publishes_nothing(make_vec, count):
    env = make_vec()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=f"actions: {count} .*expected 2"):
        env.step(np.zeros((count, 6)))
    assert [len(backend_of(env, slot).sent) for slot in range(2)] == [0, 0]


@pytest.mark.parametrize("actions", [np.zeros((2, 6)), {"arm": np.zeros((2, 3))}, 0.5])
def test_actions_of_a_wrong_structure_are_refused(make_vec, actions):
    env = make_vec(arm_with_two_actuators())
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"wrong structure of the actions: \w+ \(expected a batch of .*list of 2 "):
        env.step(actions)


def test_observations_are_copies_unless_copy_is_false(make_vec):
    for copy, same in ((True, False), (False, True)):
        env = make_vec(copy=copy)
        before, _ = env.reset(seed=0)
        after, *_ = env.step(env.action_space.sample())
        assert (before["joints_position"] is after["joints_position"]) is same


def test_attributes_and_methods_of_the_slots_are_reached_by_name(make_vec):
    env = make_vec(per_slot=limits)
    env.reset(seed=[4, 9])
    env.set_attr("nickname", ["left", "right"])
    env.set_attr("level", 3)
    assert env.get_attr("nickname") == ("left", "right")
    assert env.get_attr("level") == (3, 3)
    assert env.call("processes") == ([], [])
    assert env.np_random_seed == (4, 9)
    with pytest.raises(ValueError, match="2 environments"):
        env.set_attr("level", [1])


def test_a_slot_with_a_lost_world_is_truncated_and_reset_while_others_continue(make_vec):
    faults = {0: (), 1: (ScriptedFault(kind="refuse", step=3),), 2: ()}
    env = make_vec(num_envs=3, per_slot=lambda slot: {"faults": faults[slot]})
    env.reset(seed=0)
    ends = []
    for _ in range(4):
        _, _, terminations, truncations, infos = env.step(np.zeros((3, 6)))
        assert not terminations.any()
        ends.append((truncations.tolist(), infos["end_reason"].tolist(), infos["step_index"].tolist()))
    assert ends[2] == ([False, True, False], ["", "backend_lost:refused", ""], [3, 3, 3])
    assert ends[3] == ([False, False, False], ["", "", ""], [4, 0, 4])


def fail_once(backend):
    reset = backend.reset

    def failing(request, deadline):
        backend.reset = reset
        raise BackendNotReadyError("it does not come up")

    backend.reset = failing


def test_slots_whose_worlds_do_not_answer_are_polled_together_and_then_awaited(make_vec, monkeypatch):
    env, polls = make_vec(num_envs=4), []
    env.reset(seed=1)
    monkeypatch.setattr("embodied_env.extensions.vector.vector_env._MAX_POLLS", 3)
    for base in env._bases:
        base.stepper._polled = SimpleNamespace(has_arrived=polls.append)
    env.step(env.action_space.sample())
    assert len(polls) == 3 * 4
    assert sum(timeout_s > 0.0 for timeout_s in polls) == 2


def test_a_failed_restart_does_not_delay_other_slots(make_vec):
    env = make_vec(per_slot=lambda slot: {"max_episode_steps": 2 if slot else 100})
    env.reset(seed=0)
    for _ in range(2):
        env.step(np.zeros((2, 6)))
    fail_once(backend_of(env, 1))
    with pytest.raises(BackendNotReadyError, match="come up") as raised:
        env.step(np.zeros((2, 6)))
    assert raised.value.__notes__ == ["in slot 1 of 2"]
    *_, infos = env.step(np.zeros((2, 6)))
    assert infos["step_index"].tolist() == [4, 0]


class Interrupting:
    """An observer that interrupts once."""

    def __init__(self):
        self.armed = True

    def observe(self, transition):
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


def test_after_an_interrupt_a_slot_has_stepped_or_needs_a_reset(make_vec):
    env = make_vec(num_envs=3, per_slot=lambda slot: {"observers": [Interrupting()] if slot == 1 else []})
    env.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros((3, 6)))
    with pytest.raises(ResetNeededError, match=r"slots \[1, 2\]"):
        env.step(np.zeros((3, 6)))
    env.reset(options={"reset_mask": np.array([False, True, True])})
    *_, infos = env.step(np.zeros((3, 6)))
    assert infos["step_index"].tolist() == [2, 1, 1]


def test_after_a_failed_same_step_restart_nothing_is_published_before_reset(make_vec):
    env = make_vec(autoreset_mode=SAME_STEP, per_slot=lambda slot: {"max_episode_steps": 2 if slot else 100})
    env.reset(seed=0)
    env.step(np.zeros((2, 6)))
    fail_once(backend_of(env, 1))
    for error in (BackendNotReadyError, ResetNeededError):
        with pytest.raises(error):
            env.step(np.zeros((2, 6)))
    env.reset(options={"reset_mask": np.array([False, True])})
    *_, infos = env.step(np.zeros((2, 6)))
    assert infos["step_index"].tolist() == [3, 1]


class OneClock(ManualClock):
    """A clock shared by all slots, advanced by a scripted delay, like the host's."""

    virtual = False


def test_waiting_for_another_slot_does_not_count_as_policy_time(make_vec):
    slow = (ScriptedFault(kind="delay", step=1, delay_s=0.5),)
    env = make_vec(clock=OneClock(), host_timing=True, per_slot=lambda slot: {"faults": slow if slot else ()})
    env.reset(seed=0)
    env.step(np.zeros((2, 6)))
    *_, infos = env.step(np.zeros((2, 6)))
    assert infos["latency"]["inference_s"].tolist() == [0.0, 0.0]


def test_gymnasium_makes_the_vector_by_the_registered_id():
    env = gymnasium.make_vec(ID, num_envs=2, backend="fake", autoreset_mode=SAME_STEP, max_episode_steps=3)
    env.reset(seed=0)
    for _ in range(3):
        *_, truncations, infos = env.step(env.action_space.sample())
    env.close()
    assert type(env) is embodied_env.EmbodiedVectorEnv
    assert truncations.tolist() == [True, True]
    assert infos["final_info"]["step_index"].tolist() == [3, 3]
    assert infos["final_info"]["end_reason"].tolist() == ["", ""]  # of a TimeLimit that the environment does not know


@pytest.mark.parametrize("env_id", ["ArmReach", "CartGoal", "DoorOpen"])
def test_every_registered_id_has_the_vector_entry_point(env_id):
    env = gymnasium.make_vec(
        f"embodied_env:embodied_env/{env_id}-v0", num_envs=2, vectorization_mode="vector_entry_point", backend="fake"
    )
    observations, _ = env.reset(seed=0)
    env.close()
    assert observations in env.observation_space


def test_the_spec_recreates_the_environment(close_later, make_vec):
    made = make_vec(embodied_env.load_contract("arm_reach"), autoreset_mode=SAME_STEP, max_episode_steps=9)
    again = close_later(gymnasium.make_vec(made.spec))
    assert (again.num_envs, again.autoreset_mode, again.contract) == (2, SAME_STEP, made.contract)
    assert again.envs[0].spec.max_episode_steps == 9
    assert json.loads(made.spec.to_json())["kwargs"]["num_envs"] == 2


REFUSED = {
    "real time": ({"pacing": "realtime"}, "'realtime' with fake"),
    "no slots": ({"num_envs": 0}, "invalid num_envs=0"),
    "half a slot": ({"num_envs": 1.5}, "invalid num_envs=1.5"),
    "an unknown mode": ({"autoreset_mode": "later"}, "autoreset_mode: 'later'"),
    "options for other slots": ({"per_slot": [{}]}, "per_slot: 1 \\(expected 2\\)"),
    "one virtual clock": ({"clock": VirtualClock()}, "virtual clock"),
    "a priority": ({"fifo_priority": 5}, "fifo_priority"),
    "an unknown option": ({"wind": 3}, "'wind'"),
    "threads for nothing": ({"threads": 2}, "threads with fake"),
    "fewer threads than none": ({"threads": -1}, "invalid threads=-1"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_an_unsupported_vector_option_is_rejected(make_vec, options, message):
    with pytest.raises(UsageError, match=message):
        make_vec(**options)


def test_a_closed_vector_raises_and_can_be_closed_again(make_vec):
    env = make_vec()
    env.reset(seed=0)
    env.close()
    env.close()
    for call in (env.reset, lambda: env.step(np.zeros((2, 6)))):
        with pytest.raises(ClosedError):
            call()


def test_a_vector_that_was_never_reset_can_be_closed(make_vec):
    make_vec(backend="mujoco", threads=1).close()


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_every_slot_records_a_valid_run(make_vec, tmp_path, mode):
    arm = embodied_env.load_contract("arm_reach")
    short = replace(arm, episode=replace(arm.episode, horizon_steps=4))
    env = make_vec(short, record=tmp_path, autoreset_mode=mode, clock="virtual")
    env.reset(seed=0)
    for _ in range(9):
        env.step(env.action_space.sample())
    env.close()
    for slot in range(2):
        (run,) = (tmp_path / f"slot_{slot}").iterdir()
        rows = list(embodied_env.read_run(run).transitions())
        assert len(rows) == (8 if mode is NEXT_STEP else 9)
        assert_sound(run)


@pytest.mark.long
def test_render_returns_an_image_of_each_slot(make_vec):
    env = make_vec(backend="mujoco", render_mode="rgb_array")
    env.reset(seed=0)
    pictures = env.render()
    assert env.render_mode == "rgb_array"
    assert [picture.dtype for picture in pictures] == [np.uint8, np.uint8]
    assert not np.array_equal(*pictures)  # targets of two seeds


def test_slots_over_middleware_are_closed_together(make_vec):
    env = make_vec(backend="fake", num_envs=2)
    slots, barrier = env.envs, threading.Barrier(2)

    class Slot:
        unwrapped = SimpleNamespace(capabilities=SimpleNamespace(transport=True))

        def close(self):
            barrier.wait(20.0)

    env.envs = [Slot(), Slot()]
    env.close_extras()
    env.envs = slots
