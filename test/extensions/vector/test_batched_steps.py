"""Steps of several slots as arrays equal those of single environments bit for bit, whatever is unusual in some slots."""

import dataclasses
import itertools
import operator
import os
import signal
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from batches import SHIPPED, Failing, arm_with, assert_same, unusual_arm
from delay_models import VARYING
from gymnasium.vector import AutoresetMode
from identified_arm import PARAMETERS, identified_arm
from randomised_arm import DRAWS, OPTIONS, randomised_arm
from shipped_contracts import changed_contract
from strategies import ABSENT

import embodied_env
from embodied_env import NoAction
from embodied_env.core.types import Snapshot, TaskResult, Verdict
from embodied_env.envs.observation_builder import GapPolicy
from embodied_env.errors import ResetNeededError, TaskError, UsageError
from embodied_env.extensions.vector import vector_env
from embodied_env.extensions.vector.batched_judging import judge_steps
from embodied_env.extensions.vector.batched_physics import BatchedPhysics
from embodied_env.extensions.vector.batched_steps import FEWEST_SLOTS
from embodied_env.processes.signals import Terminated
from embodied_env.sim.world import World
from embodied_env.tasks.reach import Reach

pytestmark = pytest.mark.usefixtures("batch_few_slots")

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode


@pytest.mark.parametrize(
    ("contract", "mode", "steps"),
    [
        # test_batched_record steps arm_reach and cart_goal
        ("door_open", DISABLED, 2),
        ("so101_reach", NEXT_STEP, 12),
        ("turtlebot4_goal", SAME_STEP, 12),
        ("ur5e_reach", DISABLED, 12),
        *(pytest.param(name, mode, 400, marks=pytest.mark.long) for name in SHIPPED for mode in AutoresetMode),
    ],
)
def test_each_shipped_contract_in_each_mode(pair, contract, mode, steps):
    both = pair(contract, mode, num_envs=2 if contract == "door_open" else 3)  # its cameras are slow
    for _ in range(steps):
        both.step()
    assert both.ours.batched_share > 0.9


def test_several_doors_without_cameras(pair):
    parts = itertools.product(("sensors", "backends.mujoco.sources"), ("camera", "depth"))
    both = pair(changed_contract("door_open", {".".join(each): ABSENT for each in parts}), SAME_STEP)
    for _ in range(6):
        both.step()
    assert both.ours.batched_share == 1.0


def test_the_time_of_rendering_is_that_of_all_slots(close_later):
    changes = {
        **{f"{part}.depth": ABSENT for part in ("sensors", "backends.mujoco.sources")},
        "sensors.camera.fields.image.resize": {"size": [8, 8], "resample": "area"},
        "backends.mujoco.sources.camera.render_size": "observation",
    }
    env = close_later(embodied_env.make_vec(changed_contract("door_open", changes), num_envs=3, host_timing=True))
    env.reset(seed=3)
    stages = [env.step(env.action_space.sample())[4]["latency"] for _ in range(4)]
    assert env.batched_share == 1.0
    assert all(len(set(each["render_s"])) == 1 for each in stages)
    assert all((each["render_s"] <= each["world_s"]).all() for each in stages)
    assert any(each["render_s"][0] > 0.0 for each in stages)


def test_drawn_episodes_with_noise_delays_gaps_and_histories(pair):
    both = pair(unusual_arm(), DISABLED)
    for _ in range(16):
        both.step()
    assert 0.2 < both.ours.batched_share < 1.0
    both.reset(seed=[5, None, 6], options={"reset_mask": np.array([True, False, True]), "bin": [0.3, 0.4]})
    both.step()


def drawn_arm():
    """Return an arm of which only the model is drawn."""
    kept = ("damping", "friction", "gain", "payload", "start")
    return randomised_arm({key: OPTIONS[key] for key in kept}, {key: DRAWS[key] for key in kept})


def test_identified_parameters_are_drawn_for_each_slot(pair, tmp_path):
    both = pair(identified_arm(tmp_path, PARAMETERS[:-1], draw="intervals"), NEXT_STEP, num_envs=3)
    assert both.ours._batched._worlds._physics is not None
    for _ in range(8):  # some episodes end
        both.step()
    late = pair(identified_arm(tmp_path, draw="intervals"), NEXT_STEP, num_envs=2)
    assert late.ours._batched._worlds._physics is None
    for _ in range(3):
        late.step()


@pytest.mark.parametrize("make_arm", [lambda: "arm_reach", drawn_arm, unusual_arm])
def test_many_slots_step_like_single_environments(pair, make_arm):
    both = pair(make_arm(), NEXT_STEP, num_envs=10, threads=0)
    assert (both.ours._batched._worlds._physics is None) == (make_arm is unusual_arm)
    for step in range(8):
        rows = list(both.ours.action_space.sample())
        rows[step] = NoAction("late")
        both.step(rows)
        last = [env.unwrapped.last_transition.observation for env in (both.ours.envs[9], both.theirs.envs[9])]
        assert_same(*map(dict, last))
    assert len({id(env.unwrapped.stepper.backend.world) for env in both.ours.envs}) == 1


def test_slots_are_batched_where_that_is_faster(pair, monkeypatch):
    monkeypatch.setattr(vector_env, "FEWEST_SLOTS", FEWEST_SLOTS)
    for num_envs, share in ((FEWEST_SLOTS - 1, 0.0), (FEWEST_SLOTS, 1.0)):
        both = pair("arm_reach", NEXT_STEP, num_envs=num_envs)
        both.step()
        assert both.ours.batched_share == share


def test_injected_delays(pair):
    both = pair("arm_reach", NEXT_STEP, delay_profile=VARYING)
    for _ in range(8):
        both.step()
    assert both.ours.batched_share == 0.0


def test_delays_of_one_slot_leave_the_others_as_they_are(close_later):
    options: dict = {"num_envs": 4, "clock": "virtual"}
    one_late = embodied_env.make_vec("arm_reach", per_slot=lambda i: {"delays": VARYING} if i == 2 else {}, **options)
    both = [close_later(env) for env in (one_late, embodied_env.make_vec("arm_reach", **options))]
    for env in both:
        env.reset(seed=0)
    for _ in range(5):
        actions = both[0].action_space.sample()
        ours, theirs = ({key: rows[[0, 1, 3]] for key, rows in env.step(actions)[0].items()} for env in both)
        assert_same(ours, theirs)
    assert one_late.batched_share == 0.75


class OneByOne(Reach):
    """A task with state, which counts its steps."""

    terms = ("steps",)

    def reset(self, snapshot: Snapshot, options: object) -> Verdict:
        self.steps = 0
        return Verdict.running()

    def judge(self, previous: Snapshot, current: Snapshot, applied: np.ndarray) -> TaskResult:
        self.steps += 1
        assert (self.steps == 1) == (previous.reset is not None)
        result = super().judge(previous, current, applied)
        verdict = dataclasses.replace(result.verdict, failure="tired" if self.steps > 8 else "")
        return TaskResult(reward=result.reward, verdict=verdict, terms={"steps": float(self.steps)})


def test_a_task_that_judges_slots_one_by_one(pair, caplog):
    both = pair(arm_with(OneByOne), SAME_STEP)
    for step in range(24):
        both.step()
        if step == 4:
            assert texts(both.ours, "last_transition") == texts(both.theirs, "last_transition")
    assert both.ours.batched_share > 0.9
    assert [f"{__name__}:OneByOne" in record.getMessage() for record in caplog.records] == [True]


class SharesTerms(OneByOne):
    """A task that returns the same dict of terms in each slot."""

    terms = ("distance",)
    shared: ClassVar = {}

    def judge(self, previous: Snapshot, current: Snapshot, applied: np.ndarray) -> TaskResult:
        result = Reach.judge(self, previous, current, applied)
        self.shared["distance"] = result.terms["distance"]
        return dataclasses.replace(result, terms=self.shared)


def test_slots_whose_tasks_share_a_dict_of_terms_keep_their_own(pair):
    both = pair(arm_with(SharesTerms), NEXT_STEP)
    infos = both.step()
    assert len(set(infos["task"]["distance"].tolist())) == 3


def test_a_task_that_fails_in_one_slot_ends_only_that_one(pair):
    both = pair(arm_with(Failing), DISABLED)
    actions = np.zeros((3, 6))
    both.step(actions)
    actions[1, 0] = 0.5
    with pytest.raises(TaskError, match="the task has an error"):
        both.ours.step(actions)
    assert [env.unwrapped.step_index for env in both.ours.envs] == [2, 2, 2]
    assert both.ours.envs[1].unwrapped.last_transition.info["end_reason"] == "task_error:RuntimeError"
    both.ours.reset(options={"reset_mask": np.array([False, True, False])})
    infos = both.ours.step(np.zeros((3, 6)))[-1]
    assert infos["step_index"].tolist() == [3, 1, 3]


def test_sigterm_in_a_task_ends_the_program():
    def terminate(*_: object) -> None:
        raise Terminated(143)

    task: Any = SimpleNamespace(evaluate=terminate)
    with pytest.raises(Terminated):
        judge_steps(task, *[None] * 4)


class FailsOnce(OneByOne):
    """A task that fails in its third step, and would not fail if it were called again."""

    def judge(self, previous: Snapshot, current: Snapshot, applied: np.ndarray) -> TaskResult:
        result = super().judge(previous, current, applied)
        if self.steps == 3:
            raise RuntimeError("once")
        return result


class Writes(Reach):
    """A task that writes into its arguments, which are those of the record."""

    def evaluate(self, previous: Any, current: Any, applied: np.ndarray) -> TaskResult:
        if previous is current:
            return super().evaluate(previous, current, applied)  # of a reset
        if applied.ndim == 1:
            applied[:] = 0.0  # a copy
            with pytest.raises(ValueError, match="read-only"):
                previous.samples["tcp"].values["position"][:] = 0.0
        current.samples["tcp"].values["position"][..., 0] += 1.0
        return super().evaluate(previous, current, applied)


@pytest.mark.parametrize(("task", "steps"), [(FailsOnce, 3), (Writes, 1)])
def test_an_error_of_the_task_is_raised_in_its_step(pair, task, steps):
    both = pair(arm_with(task), NEXT_STEP)
    for step in range(1, steps + 1):
        actions = both.ours.action_space.sample()
        if step < steps:
            both.step(actions)
            continue
        for env in (both.ours, both.theirs):
            with pytest.raises(TaskError):
                env.step(actions)
    ours, theirs = texts(both.ours, "last_transition"), texts(both.theirs, "last_transition")
    assert ours[0] == theirs[0]  # Gymnasium's stops at the first slot


@pytest.mark.parametrize("arguments", [{"seed": [5, 6, -1]}, {"options": {"nowhere": 1.0}}])
def test_a_rejected_reset_changes_nothing(pair, arguments):
    both = pair("arm_reach", NEXT_STEP)
    both.step(both.ours.action_space.sample())
    arguments["options"] = {**arguments.get("options", {}), "reset_mask": np.array([False, False, True])}
    with pytest.raises((UsageError, gymnasium.error.Error)):
        both.ours.reset(**arguments)
    for _ in range(3):
        both.step(both.ours.action_space.sample())


@pytest.mark.parametrize("place", ["_gate.judge", "_worlds.send", "_worlds.step", "_worlds.read", "_results"])
def test_slots_of_an_interrupted_step_must_be_reset(pair, monkeypatch, place):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    both = pair("arm_reach", NEXT_STEP)
    actions = both.ours.action_space.sample()
    both.step(actions)
    with monkeypatch.context() as patched:
        owner, _, name = f"_batched.{place}".rpartition(".")
        patched.setattr(operator.attrgetter(owner)(both.ours), name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            both.ours.step(actions)
    for step, action in ((both.ours.step, actions), (both.ours.envs[1].step, actions[1])):
        with pytest.raises(ResetNeededError):
            step(action)
    both.reset(seed=8)
    both.step(actions)


def test_an_interrupted_first_step_leaves_no_slot_apart(pair, monkeypatch):
    both = pair("arm_reach", NEXT_STEP)
    with monkeypatch.context() as patched:
        patched.setattr(BatchedPhysics, "load", lambda *_: signal.default_int_handler(signal.SIGINT, None))
        with pytest.raises(KeyboardInterrupt):
            both.ours.step(both.ours.action_space.sample())
    both.reset(seed=8)
    with monkeypatch.context() as patched:
        patched.delattr(World, "command")  # of worlds that are stepped one by one
        both.ours.step(both.ours.action_space.sample())


def test_an_interrupt_while_the_state_of_a_slot_is_read_loses_no_step(pair, monkeypatch):
    both = pair("arm_reach", NEXT_STEP)
    for _ in range(3):
        both.step()
    restore = GapPolicy.restore

    def interrupted(policy: GapPolicy, snapshot: Snapshot) -> None:
        patched.undo()  # once
        signal.raise_signal(signal.SIGINT)
        restore(policy, snapshot)

    with monkeypatch.context() as patched:
        patched.setattr(GapPolicy, "restore", interrupted)
        with pytest.raises(KeyboardInterrupt):
            both.ours.envs[1].unwrapped.step_index  # noqa: B018 - the access is interrupted
    assert both.step()["step_index"].tolist() == [4, 4, 4]


def test_a_fork_steps_without_threads(pair):
    both = pair("arm_reach", NEXT_STEP, threads=2)
    both.step(both.ours.action_space.sample())
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends a child that waits for a thread of its parent
        both.step([None, *list(both.ours.action_space.sample())[1:]])
        both.step(both.ours.action_space.sample())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    both.step(both.ours.action_space.sample())


def test_a_slot_is_closed_and_opened_again(pair):
    both = pair("arm_reach", NEXT_STEP, render_mode="rgb_array")
    for env in (both.ours, both.theirs):
        env.step(both.ours.action_space.sample())
        env.envs[1].close()
    both.ours.action_space.seed(7)
    both.reset(seed=2)
    both.step()
    np.testing.assert_array_equal(*(env.envs[0].render() for env in (both.ours, both.theirs)))


def test_an_unstable_world_ends_only_its_slot(pair):
    both = pair("arm_reach", NEXT_STEP)
    for step in range(5):
        if step == 2:
            for env in (both.ours, both.theirs):
                world = env.envs[1].unwrapped.stepper.backend.world
                world.physics.edit()
                world._data.qvel[:] = np.inf
        infos = both.step()
        if step == 2:
            assert infos["end_reason"].tolist() == ["", "backend_lost:sim_unstable", ""]


def test_a_world_with_a_warning_takes_its_step_alone(pair, monkeypatch):
    step = BatchedPhysics.step

    def warned(physics, slots, *args):
        state, target = physics.states[1].copy(), physics.targets[1]
        are_stepped = step(physics, slots, *args)
        physics.states[1], physics.targets[1], are_stepped[slots.index(1)] = state, target, False
        return are_stepped

    both = pair("arm_reach", NEXT_STEP)
    monkeypatch.setattr(BatchedPhysics, "step", warned)
    for _ in range(5):
        both.step()
        assert texts(both.ours, "last_transition") == texts(both.theirs, "last_transition")
    assert both.ours.batched_share == 1.0


def texts(env, name):
    with np.printoptions(floatmode="unique"):
        return [repr(value) for value in env.get_attr(name)]


def use_slots(env, step):
    """Use the environments of slots directly to reset one, step one, mark, and annotate."""
    slots = [each.unwrapped for each in env.envs]
    if step == 2:
        env.envs[1].reset(seed=9)
    if step == 5:
        env.envs[2].step(np.full(env.single_action_space.shape, 0.1))
        slots[0].mark("policy")
    if step in (7, 10):
        slots[1].annotate("note", {"step": step})
    if step == 8:
        for slot in slots:
            slot.mark("policy")


@pytest.mark.parametrize("contract", ["arm_reach", "cart_goal"])
def test_the_environments_of_slots_have_their_true_state_at_any_time(pair, contract):
    both = pair(contract, NEXT_STEP)
    for step in range(14):
        for name in ("step_index", "epoch", "last_transition", "last_reset") if step in (3, 4, 9) else ():
            assert texts(both.ours, name) == texts(both.theirs, name)
        use_slots(both.ours, step)
        use_slots(both.theirs, step)
        actions = both.ours.action_space.sample()
        infos, theirs = both.ours.step(actions)[-1], both.theirs.step(actions)[-1]
        assert_same(infos, {key: value for key, value in theirs.items() if "annotations" not in key})
    assert both.ours.batched_share > 0.8


def test_steps_with_a_steady_clock_add_up(close_later):
    env = close_later(embodied_env.make_vec("arm_reach", num_envs=3, host_timing=True))
    env.reset(seed=1)
    for step in range(4):
        if step == 2:
            env.mark("policy")
        infos = env.step(env.action_space.sample())[-1]
        stages = infos["latency"]
        parts = [stages[name] for name in ("handoff_s", "inference_s", "gate_s", "publish_s")]
        np.testing.assert_allclose(sum(parts), stages["obs_to_command_s"], atol=1e-12)
        assert (np.array(parts) >= 0.0).all()
        assert (stages["quality"]["policy_s"] == (0 if step == 2 else 9)).all()
        assert env.envs[0].unwrapped.step_index == step + 1  # its stamps stay those of the step
    assert env.batched_share == 1.0
