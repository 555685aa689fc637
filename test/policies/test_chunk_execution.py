import gc
import json
import os
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from evidence import assert_replays, assert_sound
from hypothesis import given
from hypothesis import strategies as st
from shipped_contracts import changed_contract
from waiting import wait_for

import embodied_env
from embodied_env.cli.main import main
from embodied_env.core.policy import NoAction, PolicyIdentity, as_policy
from embodied_env.errors import PolicyError, UsageError
from embodied_env.policies.chunk_execution import DECAY, OVERLAP, UNDERRUN, ChunkRunner, blend, longest_wait_s
from embodied_env.policies.lerobot_model import LerobotModel
from embodied_env.policies.per_slot_policies import TeamPolicies, VectorPolicies
from embodied_env.record.row_types import RESET

MODES = ("replace", "crossfade", "ensemble", "rtc")
ARM = changed_contract("arm_reach", {"episode.horizon_steps": 24})


class Scripted:
    """Return chunks of `length` in which action i for the observation of step k is k + i + `bias` x inference.

    The value is the same in each joint. The test decides when an inference ends (`gate`), or it takes `latency_s`.
    """

    identity = PolicyIdentity(name="scripted chunks", format="python")
    continues_chunks = True

    def __init__(self, length=16, *, bias=0.0, size=6, latency_s=0.0, scale=1.0):
        self.length, self.bias, self.size, self.latency_s, self.scale = length, bias, size, latency_s, scale
        self.gate, self.seen, self.observed, self.prefixes, self.resets = None, [], [], [], []
        self.threads, self.closed, self.answer = set(), 0, None

    def reset(self, *, seed, episode_index):
        self.resets.append((seed, episode_index))
        self.seen, self.observed = [], []
        self.threads.add(threading.current_thread())

    def __call__(self, observation):
        step = int(observation["step"][0])
        self.threads.add(threading.current_thread())
        self.seen.append(step)
        if self.gate is not None:
            assert self.gate.acquire(timeout=30.0)
        time.sleep(self.latency_s)
        if isinstance(self.answer, BaseException):
            raise self.answer
        if self.answer is not None:
            return self.answer
        values = (step + np.arange(self.length) + self.bias * (len(self.seen) - 1)) * self.scale
        return np.repeat(values[:, None], self.size, axis=1)

    def observe(self, observation):
        self.observed.append(int(observation["step"][0]))

    def continue_chunk(self, *, executed, delay):
        self.prefixes.append((executed, delay))

    def close(self):
        self.closed += 1


class Steps:
    """Drive a runner without an environment, where the observation of step k has the value k."""

    def __init__(self, runner):
        self.runner, self.step = runner, 0
        runner.reset(seed=1, episode_index=0)

    def take(self):
        action = self.runner({"step": np.array([self.step])})
        self.step += 1
        self.account = self.runner.take_accounts().get("chunk", {})
        self.actions = self.account.pop("actions", None)
        return action

    def values(self, count):
        return [action if isinstance(action, NoAction) else float(action[0]) for action in map(self.each, range(count))]

    def each(self, _):
        return self.take()


class Timed:
    """A runner in real time whose inferences end exactly `latency` steps after they began, on no clock."""

    def __init__(self, policy, mode, latency, **options):
        self.policy, self.latency, self.due = policy, latency, None
        policy.gate = threading.Semaphore(0)
        self.runner = ChunkRunner(policy, mode, pacing="realtime", **options)
        self.reset()

    def reset(self):
        """Begin an episode, after the inference in progress."""
        if self.runner._request is not None:
            self.policy.gate.release()
        self.steps, self.due = Steps(self.runner), None

    def take(self):
        """Take a step, after the end of an inference that is due."""
        if not self.runner._answers:
            self.policy.gate.release()  # the first one is awaited
        elif self.due == self.steps.step:
            request = self.runner._request[1]
            self.policy.gate.release()
            request.exception(timeout=30.0)
        action = self.steps.take()
        if self.runner._request is not None and self.runner._request[0] == self.steps.step - 1:
            self.due = self.steps.step - 1 + self.latency
        while self.runner._request is None and self.policy.gate.acquire(blocking=False):
            pass  # no inference took the permit, which would end a later one early
        return action

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.policy.gate.release(1000)
        self.runner.close()


def joined():
    return not [thread for thread in threading.enumerate() if thread.name == "policy"]


# --------------------------------------------------------------------------------------------------------------- lockstep


@pytest.mark.parametrize("mode", MODES)
def test_actions_in_lockstep_are_those_without_a_thread(mode):
    runner, policy = ChunkRunner(Scripted(bias=0.5), mode, pacing="lockstep"), Scripted(bias=0.5)
    steps, chunks, expected = Steps(runner), [], []
    for step in range(50):
        due = {"replace": 16, "ensemble": 1}.get(mode, 16 - OVERLAP)
        if step % due == 0:
            chunks.append((step, policy({"step": np.array([step])})))
        rows = [(chunk[step - born, 0], step - born) for born, chunk in chunks if step - born < 16]
        values = [value for value, _ in rows]
        if mode == "ensemble":
            weights = np.exp(-DECAY * np.arange(len(values)))
            expected.append(float(np.average(values, weights=weights)))
        elif mode == "crossfade" and len(values) == 2:
            weight = (rows[-1][1] + 1) / (OVERLAP + 1)
            expected.append((1 - weight) * values[0] + weight * values[1])
        else:
            expected.append(values[-1])
    assert steps.values(50) == pytest.approx(expected, abs=1e-12)
    assert steps.account["underruns"] == 0
    assert joined()


def test_a_policy_without_chunks_in_lockstep():
    policy = Scripted()
    policy.answer = np.zeros(6)
    assert Steps(ChunkRunner(policy, "replace", pacing="lockstep")).take() is policy.answer


# -------------------------------------------------------------------------------------------------------------- alignment


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("latency", [1, 4, 7])
def test_actions_are_aligned_by_the_latency(mode, latency):
    policy = Scripted()
    with Timed(policy, mode, latency) as timed:
        for step in range(60):
            action = timed.take()
            assert action == pytest.approx(np.full(6, float(step)))
            account = timed.steps.account
            assert account["underruns"] == 0
            assert account["age"] == step - account["born"]
        assert len(policy.seen) >= 60 // 16
        policy.gate.release(2)
        timed.runner._calls.submit(int).result()
        assert sorted(policy.observed + policy.seen) == [*range(60)]  # a policy with a history observes every step
    assert joined()


def test_a_chunk_is_copied_before_the_policy_observes_the_next_step():
    policy = Scripted()
    policy.answer = np.zeros((16, 6))
    policy.observe = lambda _: policy.answer.fill(1.0)  # such as a buffer of its own
    with Timed(policy, "ensemble", 2) as timed:
        timed.take()
        for _ in range(3):
            policy.answer.fill(0.0)
            assert not timed.take().any()


def test_a_chunk_that_is_older_than_its_length_is_counted_and_never_executed():
    policy = Scripted(4, bias=1000.0)
    with Timed(policy, "replace", 6) as timed:
        found = [timed.take() for _ in range(12)]
        assert [float(action[0]) for action in found[:4]] == [0.0, 1.0, 2.0, 3.0]
        assert found[4:] == [NoAction(UNDERRUN)] * 8
        account = timed.steps.account
        assert (account["underruns"], account["expired"], account["id"]) == (8, 1, None)


def test_without_an_answer_of_the_server_the_last_chunk_is_executed_to_its_end():
    policy = Scripted(8)
    with Timed(policy, "replace", 1) as timed:
        timed.take()
        policy.answer = NoAction("server is silent")
        assert [float(timed.take()[0]) for _ in range(7)] == [*map(float, range(1, 8))]
        assert timed.take() == NoAction("server is silent")
        assert timed.steps.account["failed"] == 7
        policy.answer = None
        while isinstance(action := timed.take(), NoAction):
            pass
        assert action[0] == timed.steps.step - 1


def test_rtc_hands_over_what_is_executed_and_the_delay():
    policy = Scripted()
    with Timed(policy, "rtc", 3) as timed:
        for _ in range(30):
            timed.take()
    assert policy.prefixes[0] == (1, 0)
    assert {delay for _, delay in policy.prefixes[1:]} == {3}
    assert all(executed >= 3 for executed, _ in policy.prefixes[1:])


class Flow:
    """A policy of LeRobot with real-time chunking, as LerobotModel uses it."""

    def __init__(self):
        feature = SimpleNamespace(shape=(6,))
        chunks = {"chunk_size": 8, "n_obs_steps": 1, "rtc_config": SimpleNamespace(enabled=True)}
        features = {"input_features": {}, "output_features": {"action": feature}}
        self.config = SimpleNamespace(type="smolvla", **features, **chunks)
        self.options = []

    def reset(self):
        pass

    def predict_action_chunk(self, batch, **options):
        import torch

        assert not torch.is_inference_mode_enabled()
        self.options.append(options)
        return torch.arange(48.0).reshape(1, 8, 6)


class Same:
    """A processor that doubles the action, and changes nothing else."""

    def __call__(self, values):
        return values if isinstance(values, dict) else 2.0 * values

    def reset(self):
        pass


@pytest.mark.long  # imports torch
def test_lerobot_continues_the_actions_before_its_post_processor():
    pytest.importorskip("torch")
    flow = Flow()
    model = LerobotModel(flow, (Same(), Same()), PolicyIdentity(name="lerobot:flow", format="lerobot"))
    model.continue_chunk(executed=3, delay=2)
    assert model.infer({"task": ""})["action"][0].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    model.continue_chunk(executed=3, delay=2)
    model.infer({"task": ""})
    model.infer({"task": ""})
    first, second, third = flow.options
    assert (first, third, second["inference_delay"]) == ({}, {}, 2)
    assert second["prev_chunk_left_over"].tolist() == np.arange(18.0, 48.0).reshape(5, 6).tolist()


# --------------------------------------------------------------------------------------------------------------- blending


class Planned(Scripted):
    """Answer inference n with (length, offset) of `plan`, or with no action for None.

    Action i for the observation of step k is k + i + offset. Inferences are never forgotten.
    """

    def __init__(self, plan, n_action_steps):
        super().__init__()
        self.plan, self.n_action_steps, self.made = plan, n_action_steps, []

    def __call__(self, observation):
        step, answer = int(observation["step"][0]), self.plan[len(self.made) % len(self.plan)]
        self.made.append((step, answer))
        assert self.gate.acquire(timeout=30.0)
        if answer is None:
            return NoAction("no")
        length, offset = answer
        return np.repeat((step + np.arange(length) + offset)[:, None], 6, axis=1)


def violations(rule, step, action, account):
    taken = {"no_action": action.reason} if isinstance(action, NoAction) else action.tolist()
    info = {"step_index": step, "annotations": {"chunk": account}}
    return list(rule.add({"schema": "step", "info": info, "inner": {"action": taken, "external_inputs": {}}}))


@pytest.mark.needs("audit")
@given(
    mode=st.sampled_from(MODES),
    overlap=st.integers(0, 9),
    plan=st.lists(st.none() | st.tuples(st.integers(1, 20), st.floats(-5.0, 5.0)), min_size=1, max_size=20).filter(any),
    latencies=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    n_action_steps=st.none() | st.integers(1, 20),
    resets=st.sets(st.integers(1, 59), max_size=4),
)
def test_actions_are_convex_blends_of_chunks_of_the_episode_at_their_index(
    mode, overlap, plan, latencies, n_action_steps, resets
):
    from embodied_env.extensions.audit.annotation_rules import AccountRules

    policy, rule = Planned(plan, n_action_steps), AccountRules(None)
    reset_row: Any = {"schema": RESET}
    begun, before, steps = 0, None, 0
    with Timed(policy, mode, 1, overlap=overlap) as timed:
        for number in range(60):
            if number in resets:
                timed.reset()
                begun, before, steps = len(policy.made), None, 0
            if not steps:
                list(rule.add(reset_row))
            timed.latency = latencies[len(policy.made) % len(latencies)]
            action, account = timed.take(), timed.steps.account
            steps += 1
            assert violations(rule, steps, action, account) == []
            if isinstance(action, NoAction):
                assert (account["id"], account["older"]) == (None, [])
                before = None
                continue
            chunks = [(step, *answer) for step, answer in policy.made[begun:] if answer is not None]
            used = [*account["older"], [account["id"], account["born"], account["weight"]]]
            assert all(chunks[place][0] == born for place, born, _ in used)
            assert all(0 <= steps - 1 - born < chunks[place][1] for place, born, _ in used)
            assert sum(weight for *_, weight in used) == pytest.approx(1.0, abs=1e-12)
            assert min(weight for *_, weight in used) > 0.0
            assert mode in ("crossfade", "ensemble") or len(used) == 1
            offsets = [chunks[place][2] for place, *_ in used]
            value = sum(weight * offset for (*_, weight), offset in zip(used, offsets, strict=True)) + steps - 1
            assert action == pytest.approx(np.full(6, value), abs=1e-9)
            if mode == "crossfade":
                if before is not None:
                    # The change within a chunk, and for each that fades in its share of the difference.
                    known = [*offsets, *before[1]]
                    fading = [each for each in timed.runner._chunks if steps <= each.first + each.overlap]
                    jump = sum((max(known) - min(known)) / (each.overlap + 1) for each in fading)
                    assert abs(value - before[0]) <= 1.0 + jump + 1e-9
                before = value, offsets


@pytest.mark.parametrize("mode", ["replace", "crossfade", "rtc"])
def test_actions_after_n_action_steps_are_the_reserve_for_a_late_chunk(mode):
    policy = Planned([(16, 0.0)], 8)
    with Timed(policy, mode, 2) as timed:
        ages = [(timed.take(), timed.steps.account["age"])[1] for _ in range(40)]
        assert max(ages[16:]) <= 7
        timed.latency = 9
        while timed.steps.account["age"] <= 8:
            timed.take()
        assert timed.steps.account["underruns"] == 0


def test_n_action_steps_in_lockstep():
    found = [Steps(ChunkRunner(Planned([(8, 0.0), (8, 0.5)], 3), chunks)) for chunks in ("replace", "wait", "ensemble")]
    for each in found:
        each.runner.policy.gate = threading.Semaphore(100)
    replaced, waited, blended = (each.values(12) for each in found)
    assert replaced == waited
    assert [len(each.runner.policy.made) for each in found] == [4, 4, 12]
    assert len(found[2].account["older"]) == 7
    assert all(step <= value <= step + 0.5 for step, value in enumerate(blended))


def test_n_action_steps_of_a_callable_without_a_reset():
    class Chunks:
        n_action_steps = 3
        steps = 0

        def __call__(self, observation):
            self.steps += 1
            return np.zeros((8, 6))

    chunks = Chunks()
    Steps(ChunkRunner(as_policy(chunks), "wait")).values(12)
    assert chunks.steps == 4


def test_actions_of_several_actuators_are_blended():
    a, b = ({"arm": np.full(2, value), "hand": [value]} for value in (1.0, 3.0))
    found = blend([a, b], [0.25, 0.75])
    assert (found["arm"].tolist(), found["hand"].tolist()) == ([2.5, 2.5], [2.5])
    for other in (np.zeros(3), a, np.array(["0.5", "0.5"]), np.zeros(2, dtype=complex)):
        with pytest.raises(PolicyError, match="cannot be blended"):
            blend([other, np.zeros(2)], [0.5, 0.5])


# ---------------------------------------------------------------------------------------- reset, errors and the thread


def test_reset_discards_the_inference_in_progress():
    policy = Scripted(8, bias=1000.0)
    with Timed(policy, "replace", 3) as timed:
        for _ in range(3):
            timed.take()
        assert timed.runner._request is not None
        policy.gate.release(2)  # it, and the first one of the next episode
        steps = Steps(timed.runner)
        assert policy.resets == [(1, 0)] * 2
        assert steps.take()[0] == 0.0
        where = {"mode": "replace", "id": 0, "born": 0, "age": 0, "weight": 1.0, "older": []}
        assert steps.account == {**where, "length": 8, "underruns": 0, "expired": 0, "failed": 0}
        assert len(policy.threads) == 1
        assert threading.current_thread() not in policy.threads


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_an_error_of_the_policy_is_raised_at_the_next_call(error):
    policy = Scripted(8)
    with Timed(policy, "replace", 1) as timed:
        timed.take()
        policy.answer = error
        timed.take()
        with pytest.raises(PolicyError, match=f"policy failed in its thread: {type(error).__name__}"):
            timed.take()
    assert joined()


def test_an_error_of_an_observer_is_raised_at_a_later_call():
    policy: Any = Scripted(8)
    policy.observe = lambda _: policy.missing
    with Timed(policy, "replace", 8) as timed:
        timed.take()
        timed.take()
        timed.take()
        policy.gate.release()
        timed.runner._calls.submit(int).result()
        with pytest.raises(PolicyError, match="AttributeError"):
            timed.take()


@pytest.fixture
def hanging():
    """Return a policy whose first inference hangs until the end of the test."""
    policy = Scripted(8)
    policy.gate = threading.Semaphore(0)
    yield policy
    policy.gate.release(100)
    wait_for(joined)


def test_a_hanging_policy_ends_reset_and_close_and_its_answer_is_never_used(hanging):
    hanging.gate.release()
    runner = ChunkRunner(hanging, "replace", pacing="realtime")
    steps = Steps(runner)
    assert [steps.take()[0] for _ in range(3)] == [0.0, 1.0, 2.0]
    runner._calls._timeout_s = 0.05
    for _ in range(2):
        with pytest.raises(PolicyError, match=r"policy hangs: no answer for 0.05 s \(expected one\); correct it"):
            runner.reset(seed=2, episode_index=1)
    runner.close()  # no second error, nor a second wait
    assert hanging.closed == 0  # it is in use
    hanging.gate.release()
    wait_for(joined)
    hanging.bias = 100.0
    hanging.gate.release()
    runner._calls._timeout_s = 30.0
    steps = Steps(runner)  # it has returned
    assert steps.take()[0] == 0.0
    assert (steps.account["id"], steps.account["born"], len(hanging.seen)) == (0, 0, 1)
    runner.close()
    assert hanging.closed == 1


def test_a_policy_that_hangs_in_the_first_inference(hanging):
    runner = ChunkRunner(hanging, "replace", pacing="realtime", timeout_s=0.05)
    with pytest.raises(PolicyError, match="policy hangs"):
        Steps(runner).take()
    runner.stop()


def test_only_the_first_step_of_an_episode_waits_for_a_server_without_an_answer():
    policy = Scripted(8)
    policy.answer = NoAction("no answer in time")
    policy.gate = threading.Semaphore(1)
    runner = ChunkRunner(policy, "crossfade", pacing="realtime")
    try:
        steps = Steps(runner)
        assert steps.values(3) == [NoAction("no answer in time")] * 3
    finally:
        policy.gate.release(100)
        runner.close()


def test_a_step_waits_no_longer_than_the_watchdog_once_there_was_an_answer(hanging):
    hanging.gate.release()
    runner = ChunkRunner(hanging, "crossfade", pacing="realtime", wait_s=0.05)
    assert Steps(runner).values(1) == [0.0]
    steps = Steps(runner)
    assert steps.values(2) == [NoAction("chunk underrun")] * 2
    hanging.gate.release()
    runner._request[1].exception(timeout=30.0)
    assert steps.take()[0] == 2.0
    hanging.gate.release(100)
    runner.close()


class Bounded(Scripted):
    def __init__(self, bound_s):
        super().__init__()
        self.bound_s, self.limits, self.identity = bound_s, [], PolicyIdentity(name="openpi://gpu", format="openpi")

    def bound_wait(self, limit_s):
        self.limits.append(limit_s)
        return self.bound_s


@pytest.mark.parametrize(
    ("mode", "bound_s", "limits", "warns"),
    [("wait", 0.2, [0.4], False), ("wait", 0.7, [0.4], True), ("crossfade", 0.7, [], False)],
)
def test_a_time_limit_beyond_the_watchdogs_warns_where_a_step_waits(caplog, mode, bound_s, limits, warns):
    policy = Bounded(bound_s)
    ChunkRunner(policy, mode, pacing="realtime", wait_s=longest_wait_s(ARM)).stop()
    assert policy.limits == limits
    assert ("openpi://gpu: timeout_s of 0.7 s (expected at most 0.4 s" in caplog.text) is warns


def test_an_interrupt_ends_the_wait_for_a_hanging_policy(hanging):
    runner = ChunkRunner(hanging, "replace", pacing="realtime")
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        steps = Steps(runner)
        interrupt = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come before the step
            interrupt.start()
            steps.take()
    finally:
        signal.signal(signal.SIGINT, handler)
    runner.stop()


def test_an_error_after_the_last_step_is_raised_by_reset():
    policy = Scripted(8)
    with Timed(policy, "replace", 1) as timed:
        timed.take()
        policy.answer = ValueError("too late")
        timed.take()
        policy.gate.release(5)
        with pytest.raises(PolicyError, match="too late"):
            timed.runner.reset(seed=0, episode_index=1)


def test_one_action_in_real_time_is_refused():
    policy = Scripted()
    policy.answer = np.zeros(6)
    with Timed(policy, "replace", 1) as timed, pytest.raises(PolicyError, match=r"one action \(expected a chunk"):
        timed.take()


def test_the_thread_ends_with_its_runner():
    policy = Scripted()
    runner = ChunkRunner(policy, "replace", pacing="realtime")
    Steps(runner).take()
    assert not joined()
    runner.stop()
    assert joined()
    assert policy.closed == 0
    Steps(runner).take()  # starts again
    (thread,) = policy.threads - {each for each in policy.threads if not each.is_alive()}
    del runner
    gc.collect()
    thread.join(30.0)
    assert joined()


def test_invalid_modes_are_wrong_usage():
    with pytest.raises(UsageError, match=r"unknown mode of chunks: 'crosfade' .*did you mean 'crossfade'"):
        ChunkRunner(Scripted(), "crosfade")
    policy = Scripted()
    policy.continues_chunks = False
    with pytest.raises(UsageError, match="cannot continue a chunk"):
        ChunkRunner(policy, "rtc")


# ------------------------------------------------------------------------------------------------- the chunk in the record


@pytest.mark.parametrize("mode", ["wait", *MODES])
def test_the_actions_of_a_chunk_are_in_the_account_of_its_first_step(mode):
    policy: Any = Scripted(bias=0.5)
    policy.n_action_steps, policy.identity = 10, PolicyIdentity(name="reserve", format="python")
    steps, found = Steps(ChunkRunner(policy, mode)), []
    for _ in range(40):
        before = len(policy.seen)
        steps.take()
        assert (steps.actions is not None) == (len(policy.seen) > before) == (steps.account["age"] == 0)
        assert steps.account["length"] == 16
        if steps.actions is not None:
            found.append((steps.account["id"], steps.account["born"], [float(action[0]) for action in steps.actions]))
    expected = [(number, born, [born + i + 0.5 * number for i in range(16)]) for number, born in enumerate(policy.seen)]
    assert found == expected


class Prompted(Scripted):
    """A scripted policy that takes prompts, or refuses to."""

    def __init__(self, *, takes=True, **options):
        super().__init__(**options)
        self.takes = takes

    def instruct(self, instruction, /):
        return self.takes


@pytest.mark.parametrize("mode", ["replace", "crossfade", "ensemble"])
def test_each_action_of_chunks_from_before_a_new_prompt_has_the_earlier_one(mode):
    with Timed(Prompted(), mode, 3) as timed:
        timed.runner.instruct("rest")
        changed, shares = None, []
        for step in range(40):
            if (
                changed is None and step > 10 and timed.runner._request is not None
            ):  # the inference has the prompt before
                timed.runner.instruct("wave")
                changed = step
            timed.take()
            account = timed.steps.account
            used = [*account["older"], [account["id"], account["born"], account["weight"]]]
            share = 0.0 if changed is None else sum(weight for _, born, weight in used if born < changed)
            earlier = {"instruction": "rest", "weight": pytest.approx(share)}
            assert account.get("earlier_prompt", {}) == (earlier if share else {})
            shares.append(share)
        assert shares[changed] == pytest.approx(1.0)
        assert shares[-1] == 0.0
        assert (mode == "replace") == (set(shares) <= {0.0, 1.0})


@pytest.mark.parametrize("takes", [True, False])
def test_no_action_has_an_earlier_prompt_in_lockstep_or_of_a_policy_without_prompts(takes):
    steps = Steps(ChunkRunner(Prompted(takes=takes, length=4), "replace" if takes else "ensemble"))
    for prompt in ("rest", "wave"):
        steps.runner.instruct(prompt)
        steps.values(4)
        assert "earlier_prompt" not in steps.account


def chunks_of(path):
    """Return of each recorded chunk its episode, step, number, birth and actions."""
    run, found = embodied_env.read_run(path), []
    for row in run.transitions():
        chunk = row["inner"]["external_inputs"].get("chunk")
        if chunk is not None:
            place = row["info"]["episode_index"], row["info"]["step_index"]
            found.append((*place, chunk["id"], chunk["born"], run.array(chunk["actions"])))
    return found


@pytest.mark.needs("evaluation", "replay")
@pytest.mark.parametrize("mode", ["wait", *MODES])
def test_an_evaluation_records_each_chunk_once_with_its_step_and_repeats_in_a_replay(tmp_path, mode):
    from embodied_env.extensions.evaluation.evaluation import evaluate
    from embodied_env.extensions.replay.run_replay import replay_policy

    class Answers(InEnvironment):
        def __call__(self, observation):
            answers.append(super().__call__(observation).astype(np.float32))
            return answers[-1]

    answers = []
    options = {"backend": "fake", "clock": "virtual", "episodes": 2, "record": tmp_path}
    (result,) = evaluate(ARM, Answers(bias=1.0), chunks=mode, **options).results
    found = chunks_of(result.path)
    assert len(found) == len(answers)
    for (_, step, _, born, actions), answer in zip(found, answers, strict=True):
        assert step == born + 1
        np.testing.assert_array_equal(actions, answer)
        assert actions.dtype == np.float64
    assert [number for episode, _, number, *_ in found if episode == 1] == [*range(len(answers) // 2)]
    assert_sound(result.path)
    assert_replays(result.path, transitions=48)
    run = embodied_env.read_run(result.path)
    modes = {row["info"]["annotations"]["chunk"]["mode"] for row in run.transitions()}
    assert modes == {mode} == {run.manifest["policy"].get("chunks", "wait")}
    assert replay_policy(result.path, Answers(bias=1.0), chunks=mode).first is None


def annotated_run(tmp_path, contract, actions, **account):
    with embodied_env.make(contract, backend="fake", clock="virtual", record=tmp_path) as env:
        env.reset(seed=1)
        chunk = {"mode": "theirs", "id": 3, "born": 0, "length": len(actions), "actions": actions, **account}
        env.unwrapped.annotate("chunk", chunk)
        info = env.step(env.action_space.sample())[-1]
        assert "actions" not in info["annotations"]["chunk"]
        return env.path


def test_actions_by_actuator_are_one_array_in_contract_order(tmp_path):
    arm = ARM.actuators["arm"]
    parts = {"base": ("j1", "j2", "j3", "j4"), "wrist": ("j5", "j6")}
    actuators = {
        name: replace(arm, topic=f"{name}/commands", joints={joint: arm.joints[joint] for joint in of})
        for name, of in parts.items()
    }
    actions = [{"wrist": np.array([i, 0], np.float32), "base": np.full(4, 0.1 * i)} for i in range(3)]
    path = annotated_run(tmp_path, replace(ARM, actuators=actuators), actions)
    ((*place, found),) = chunks_of(path)
    assert place == [0, 1, 3, 0]
    np.testing.assert_array_equal(found, [[0.1 * i] * 4 + [i, 0.0] for i in range(3)])
    assert_sound(path)


def test_a_malformed_chunk_is_not_recorded(tmp_path):
    for actions in (np.zeros((3, 5)), [["0"] * 6], [None], np.zeros((2, 6), bool), [{}]):
        assert chunks_of(annotated_run(tmp_path, ARM, actions)) == []


def test_actions_need_the_numbers_of_chunk_and_step(tmp_path):
    for account in ({"id": None}, {"id": -1}, {"born": 1.0}, {"born": True}):
        with pytest.raises(UsageError, match="invalid annotation 'chunk' with actions"):
            annotated_run(tmp_path, ARM, np.zeros((2, 6)), **account)


def test_a_chunk_is_recorded_only_for_the_step_that_follows(tmp_path):
    with embodied_env.make(ARM, backend="fake", clock="virtual", record=tmp_path) as env:
        env.reset(seed=1)
        account = {"id": 0, "born": 0, "actions": np.zeros((2, 6))}
        env.unwrapped.annotate("chunk", account)
        env.unwrapped.annotate("chunk", {"id": 0, "born": 0})  # replaces it
        env.step(np.zeros(6))
        env.unwrapped.annotate("chunk", account)
        env.reset()  # discards it
        env.step(np.zeros(6))
        path = env.path
    assert chunks_of(path) == []


# -------------------------------------------------------------------------------------------------------- environments


class InEnvironment(Scripted):
    """Count its own steps, since the observation of the arm has no step, and make small motions."""

    def __init__(self, **options):
        super().__init__(scale=0.01, **options)

    def __call__(self, observation):
        return super().__call__({"step": np.zeros(1)})

    def observe(self, observation):
        return


@pytest.mark.needs("explain")
def test_a_step_is_explained():
    with embodied_env.make(ARM, backend="fake", clock="virtual") as env:
        env.reset(seed=1)
        account = {"mode": "ensemble", "id": 4, "born": 2, "age": 3, "weight": 0.25, "length": 16, "underruns": 0}
        env.unwrapped.annotate("chunk", account)
        found = embodied_env.explain(env.step(np.zeros(6))[-1])
        assert "in chunk 4, computed from the observation 3 steps ago, blended with a weight of 0.25." in found
        env.unwrapped.annotate("chunk", {**account, "weight": 1.0})
        found = embodied_env.explain(env.step(np.zeros(6))[-1])
        assert "The action is number 4 of 16 in chunk 4, computed from the observation 3 steps ago.\n" in found
        env.unwrapped.annotate("chunk", {**account, "id": None, "underruns": 2})
        assert "steps of this episode without one: 2." in embodied_env.explain(env.step(np.zeros(6))[-1])


@pytest.mark.needs("evaluation", "replay")
def test_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "chunk_policies.py").write_text("import numpy as np\ndef still(_):\n    return np.zeros((8, 6))\n")
    monkeypatch.syspath_prepend(tmp_path)
    policy = ["--policy", "chunk_policies:still", "--chunks", "crossfade"]
    options = ["--backend", "fake", "--episodes", "1", "--out", str(tmp_path / "runs"), "--json"]
    assert main(["evaluate", "arm_reach", *policy, *options]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    capsys.readouterr()
    assert main(["replay", str(run), *policy, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["first"] is None
    assert main(["evaluate", "arm_reach", *policy[:3], "rtc", *options]) == 2
    assert "cannot continue a chunk: 'chunk_policies:still'" in capsys.readouterr().err


@pytest.mark.needs("vector")
@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_slots_of_a_vector_environment_act_as_single_environments(mode):
    made = [InEnvironment(bias=slot) for slot in range(2)]
    policies = VectorPolicies(made.__getitem__, 2, chunks="ensemble")
    with_chunks = [Steps(ChunkRunner(InEnvironment(bias=slot), "ensemble", pacing="lockstep")) for slot in range(2)]
    envs = embodied_env.make_vec(ARM, num_envs=2, backend="fake", autoreset_mode=mode, clock="virtual")
    results = envs.reset(seed=3)
    for _ in range(ARM.episode.horizon_steps):
        actions = policies.act_all(*results)
        expected = [each.take() for each in with_chunks]
        np.testing.assert_array_equal(actions, expected)
        for accounts, each in zip(policies.take_accounts().values(), with_chunks, strict=True):
            chunk = dict(accounts["chunk"])
            assert (chunk.pop("actions", None) is None) == (each.actions is None)
            assert (accounts.keys(), chunk) == ({"chunk"}, each.account)
        observations, *_, infos = envs.step(actions)
        results = observations, infos
    envs.close()
    policies.close()
    assert [policy.closed for policy in made] == [1, 1]


@pytest.mark.needs("teams")
def test_accounts_of_a_team_are_recorded_per_robot(tmp_path):
    team = embodied_env.parallel_env("two_carts", backend="mujoco", clock="virtual", record=tmp_path)
    policies = TeamPolicies(lambda _: InEnvironment(size=2), team.possible_agents, chunks="crossfade")
    observations, infos = team.reset(seed=1)
    for _ in range(20):
        actions = policies.act(observations, infos)
        for agent, accounts in policies.take_accounts().items():
            for name, account in accounts.items():
                team.annotate(agent, name, account)
        observations, *_, infos = team.step(actions)
    team.close()
    policies.close()
    for agent in team.possible_agents:
        assert_sound(team.run_directory(agent))
        (*_, last) = embodied_env.read_run(team.run_directory(agent)).transitions()
        assert last["info"]["annotations"]["chunk"]["id"] == 1


def run_in_real_time(tmp_path, *, steps, period_s, backend="mujoco"):
    from embodied_env.extensions.evaluation.evaluation import evaluate

    keys = {"episode.horizon_steps": steps, "task.success_radius_m": 0.0001, "safety.watchdog.stop_steps": 1000}
    contract = changed_contract("arm_reach", keys)  # which a stall of the machine does not stop
    policy = InEnvironment(length=16, latency_s=4 * period_s)
    policy.scale = 0.0
    options = {"backend": backend, "pacing": "realtime", "episodes": 1, "record": tmp_path}
    (result,) = evaluate(contract, policy, chunks="crossfade", **options).results
    assert joined()
    assert_sound(result.path)
    rows = list(embodied_env.read_run(result.path).transitions())
    accounts = [row["info"]["annotations"]["chunk"] for row in rows]
    for row, account in zip(rows, accounts, strict=True):
        born = rows[(account["born"] or 1) - 1]
        if (
            account["born"]
            and row["info"]["latency"]["missed_deadlines"] == born["info"]["latency"]["missed_deadlines"]
        ):
            age_ns = row["inner"]["stamps_ns"]["published"] - born["inner"]["stamps_ns"]["observed"]
            assert age_ns / 1e9 == pytest.approx(account["age"] * period_s, abs=period_s)
    return result, rows, accounts


@pytest.mark.needs("audit", "evaluation", "replay")
@pytest.mark.realtime
def test_no_underrun_in_real_time(tmp_path):
    from embodied_env.extensions.replay.run_replay import replay_policy

    result, rows, accounts = run_in_real_time(tmp_path, steps=24, period_s=0.05)
    assert (len(rows), accounts[-1]["underruns"], result.summary["missed_actions"]) == (24, 0, 0)
    assert max(account["age"] for account in accounts) >= 4
    assert_replays(result.path)
    still = InEnvironment()
    still.scale = 0.0
    assert replay_policy(result.path, still, chunks="crossfade").first is None
