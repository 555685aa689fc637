"""RecordTransitions records what happened, when it happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics, RescaleAction, TimeLimit, TransformReward
from run_files import unlinked

import embodied_env
from embodied_env.contract import load_contract, parse_contract
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import ClosedError, RecordError, ResetNeededError, UsageError
from embodied_env.record import RecordTransitions, mcap_writer, read_run, run_writer
from embodied_env.record.arrays import refer_to
from embodied_env.record.json_values import to_json_types
from embodied_env.record.row_types import RESET, TRANSITION
from embodied_env.record.run_writer import RunWriter

STILL = np.zeros(6)


def fake(**options):
    return EmbodiedEnv("arm_reach", backend="fake", **options)


def strict(text):
    """Parse JSON without NaN and infinity."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def without_recorder(info):
    """Return the environment's info without the losses that the recorder adds."""
    return {key: value for key, value in info.items() if key != "record"}


def record(env, *actions):
    """Record one episode, and return an iterator over the rows of its steps."""
    env.reset(seed=1)
    for action in actions:
        env.step(action)
    env.close()
    return read_run(env.path).transitions()


def manifest_of(env):
    return strict((env.path / "manifest.json").read_text())


def summary_of(env):
    return strict((env.path / "summary.json").read_text())


@pytest.fixture
def env(tmp_path):
    recorded = RecordTransitions(fake(host_timing=True), tmp_path / "runs")
    yield recorded
    recorded.close()


# ---------------------------------------------------------------------------------------------------- the agent's view


def test_recording_does_not_change_what_the_agent_receives(tmp_path):
    plain_env, recorded = fake(clock="virtual"), RecordTransitions(fake(clock="virtual"), tmp_path)
    whole = {"complete": True, "lost": 0}
    observation, info = recorded.reset(seed=5)
    assert info.pop("record") == whole
    assert to_json_types((observation, info)) == to_json_types(plain_env.reset(seed=5))
    for value in (0.0, 0.5, np.nan):
        action = np.full(6, value)
        *returned, info = recorded.step(action)
        assert info.pop("record") == whole
        assert to_json_types((*returned, info)) == to_json_types(plain_env.step(action))
    recorded.close()
    plain_env.close()


def test_recording_time_counts_as_handoff(env):
    env.reset(seed=1)
    env.step(STILL)
    before = env.unwrapped.last_transition.stamps_ns["observed"]
    env.step(STILL)
    stamps = env.unwrapped.last_transition.stamps_ns
    assert before == stamps["previous_observed"]
    assert stamps["previous_returned"] - stamps["previous_observed"] > stamps["entered"] - stamps["previous_returned"]


def test_spec_has_the_wrapper_arguments(tmp_path):
    env = embodied_env.make("arm_reach", backend="fake", record=tmp_path)
    (spec,) = env.spec.additional_wrappers
    assert spec.name == "RecordTransitions"
    assert spec.kwargs == {"folder": str(tmp_path), "policy": None, "messages": False, "compression": "zstd"}
    env.close()


# --------------------------------------------------------------------------------------------------------------- rows


def test_reset_row_has_arguments_and_results(env):
    observation, info = env.reset(seed=7, options={"target": np.array([-0.4, 0.1, 0.2])})
    env.close()
    (row,) = read_run(env.path).resets()
    assert unlinked(row) == {
        "schema": RESET,
        "row": 0,
        "seed": 7,
        "options": {"target": [-0.4, 0.1, 0.2]},
        "observation": to_json_types(observation),
        "info": to_json_types(without_recorder(info)),
        "inner": row["inner"],
    }
    (distance,) = row["inner"]["evaluator"]["true_distance"]["range"]
    assert distance == float(env.unwrapped.last_reset.samples["true_distance"].values["range"][0])


class Replaced(gymnasium.Wrapper):
    """Returns the answer of the call before in every second reset and every second step."""

    def __init__(self, env):
        super().__init__(env)
        self.answers = {}

    def _replaced(self, kind, call):
        if kind in self.answers:
            return self.answers.pop(kind)
        return self.answers.setdefault(kind, call())

    def reset(self, **options):
        return self._replaced("reset", lambda: self.env.reset(**options))

    def step(self, action):
        return self._replaced("step", lambda: self.env.step(action))


def test_resets_and_steps_made_by_a_wrapper_have_no_inner_record(tmp_path):
    env = RecordTransitions(Replaced(fake()), tmp_path)
    for call in (lambda: env.reset(seed=1), lambda: env.step(STILL)):
        for _ in range(2):
            call()
    env.close()
    assert [row["inner"] is None for row in read_run(env.path).rows()] == [False, True, False, True]


def test_transition_row_has_action_and_results(env):
    env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(STILL)
    env.close()
    (row,) = read_run(env.path).transitions()
    assert row["action"] == [0.0] * 6
    assert row["observation"] == to_json_types(observation)
    assert (row["reward"], row["terminated"], row["truncated"]) == (reward, terminated, truncated)
    assert row["info"] == to_json_types(without_recorder(info))


@pytest.mark.parametrize(
    ("action", "recorded"),
    [
        ([0.0, 1, True, None, 0.5, 0.25], [0.0, 1, True, None, 0.5, 0.25]),
        ("left", "left"),
        (None, None),
        (np.array([np.nan, np.inf, 1.0]), [None, None, 1.0]),
        (np.float32(0.1), float(np.float32(0.1))),
        ({"arm": np.zeros(2)}, {"arm": [0.0, 0.0]}),
        ({1: 2}, {"repr": "{1: 2}"}),
        (1 + 2j, {"repr": "(1+2j)"}),
        (b"bytes", {"repr": "b'bytes'"}),
        (range(3), {"repr": "range(0, 3)"}),
        ([object, 1.0], [{"repr": "<class 'object'>"}, 1.0]),
    ],
    ids=repr,
)
def test_any_action_is_recorded(env, action, recorded):
    (row,) = record(env, action)
    assert row["action"] == row["inner"]["action"] == recorded


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no words")


def test_action_whose_repr_raises_is_recorded(env):
    (row,) = record(env, Unprintable())
    assert row["action"] == {"repr": "<Unprintable whose repr raises RuntimeError>"}


def test_an_interrupt_after_the_step_leaves_its_row(env, monkeypatch):
    encode_step = RunWriter.encode_step

    def encode(*args, **options):
        signal.raise_signal(signal.SIGINT)
        return encode_step(*args, **options)

    monkeypatch.setattr(RunWriter, "encode_step", encode)
    env.reset(seed=1)
    with pytest.raises(KeyboardInterrupt):
        env.step(STILL)
    env.close()
    assert [row["schema"] for row in read_run(env.path).rows()] == [RESET, TRANSITION]
    assert manifest_of(env)["clean"]


class OverwriteAction(gymnasium.ActionWrapper):
    """A wrapper that writes into its caller's array."""

    def action(self, action):
        action *= 0.5
        return action


def test_action_is_copied_before_wrappers_modify_it(tmp_path):
    (row,) = record(RecordTransitions(OverwriteAction(fake()), tmp_path), np.full(6, 0.1))
    assert row["action"] == [0.1] * 6
    assert row["inner"]["action"] == [0.05] * 6


@pytest.mark.parametrize("changes_results", [False, True])
def test_an_account_encoded_by_the_thread_gives_the_same_row(tmp_path, changes_results):
    texts = []
    for encodes_at_once in (True, False):
        env = RecordTransitions(fake(clock="virtual"), tmp_path)
        env._run._encodes_at_once = encodes_at_once
        observation, _ = env.reset(seed=1)
        if changes_results:
            observation["tcp_position"][:] = 99.0
        for action in (np.full(6, 0.1), [np.float64(0.2)] * 6, np.full(6, np.nan)):
            observation, _, _, _, info = env.step(action)
            if changes_results:
                observation["joints_position"][:] = action[:] = [99.0] * 6
                info["action"]["applied"] = info["latency"]["gate_s"] = 99.0
        env.close()
        texts.append([json.dumps(unlinked(row)) for row in read_run(env.path).rows()])
    assert texts[0] == texts[1]
    assert "99.0" not in "".join(texts[0])


class Painted(gymnasium.ObservationWrapper):
    """A camera that shows another image than the environment's own."""

    def observation(self, observation):
        return {**observation, "camera_image": observation["camera_image"] // 2}


@pytest.mark.parametrize("wrap", [lambda env: env, Painted])
def test_images_that_the_agent_changes_later_are_recorded_as_they_were(tmp_path, wrap):
    env = RecordTransitions(wrap(EmbodiedEnv("door_open", backend="fake")), tmp_path)
    expected = []
    for _ in range(2):
        observation, _ = env.reset(seed=1)
        expected.append(observation["camera_image"].copy())
        observation["camera_image"][:] = 0
        observation, *_ = env.step(np.zeros(env.action_space.shape))
        expected.append(observation["camera_image"].copy())
        observation["camera_image"][:] = 0
    env.close()
    run = read_run(env.path)
    assert strict((env.path / "first_transition.json").read_text()) == next(run.transitions())
    references = [row["observation"]["camera_image"] for row in run.rows()]
    assert (references[0]["dtype"], references[0]["shape"]) == ("uint8", [96, 96, 3])
    assert all(np.array_equal(run.array(a), b) for a, b in zip(references, expected, strict=True))
    inner = [run.array(row["inner"]["observation"]["camera_image"]) for row in run.rows()]
    assert all(np.array_equal(a if wrap is not Painted else a // 2, b) for a, b in zip(inner, expected, strict=True))


def test_an_image_is_hashed_once_and_not_copied(tmp_path, monkeypatch):
    hashed = []
    monkeypatch.setattr(run_writer, "refer_to", lambda array: hashed.append(array) or refer_to(array))
    env = RecordTransitions(EmbodiedEnv("door_open", backend="fake"), tmp_path)
    env.reset(seed=1)
    env.flush()
    hashed.clear()
    env.step(np.zeros(env.action_space.shape))
    env.flush()
    own = env.unwrapped.last_transition.observation
    assert [id(array) for array in hashed] == [id(own["camera_image"]), id(own["depth_image"])]
    env.close()


def test_an_image_that_no_reader_accepts_is_a_counted_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(mcap_writer, "LARGEST_MESSAGE", 20_000)
    env = RecordTransitions(EmbodiedEnv("door_open", backend="fake"), tmp_path)
    with pytest.warns(UserWarning, match=r"a message of array has 27\d+ bytes \(expected at most 20000\)"):
        env.reset(seed=1)
    env.step(np.zeros(env.action_space.shape))
    env.close()
    assert env.losses.as_json() == {"complete": False, "lost_rows": 2, "lost_messages": 0}
    assert "a message of array has" in read_run(env.path).problem


def test_failed_step_and_reset_raise_and_leave_no_row(env):
    with pytest.raises(ResetNeededError):
        env.step(STILL)
    env.reset(seed=1)
    with pytest.raises(UsageError, match="goal"):
        env.reset(options={"goal": 1})
    env.close()
    assert len(list(read_run(env.path).rows())) == 1


def test_run_with_only_failed_resets_leaves_no_folder(env):
    with pytest.raises(UsageError, match="goal"):
        env.reset(options={"goal": 1})
    env.close()
    assert not env.path.parent.exists()


def test_run_folder_with_a_foreign_file_is_kept(env):
    with pytest.raises(UsageError, match="goal"):
        env.reset(options={"goal": 1})
    (env.path / "notes.txt").touch()
    env.close()
    assert [path.name for path in env.path.iterdir()] == ["notes.txt"]


def test_failed_log_creation_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("embodied_env.record.recorder.RunWriter", lambda *_, **__: {}["no room"])
    env = fake()
    with pytest.raises(KeyError):
        RecordTransitions(env, tmp_path)
    assert list(tmp_path.iterdir()) == []
    env.close()


# -------------------------------------------------------------------------------------------------------- run directory


def test_manifest_is_written_before_the_first_reset(env):
    manifest = manifest_of(env)
    assert (manifest["clean"], manifest["ended_utc"]) == (False, None)
    assert manifest["started_utc"].endswith("+00:00")


def test_manifest_has_contract_backend_and_wrappers(env):
    contract = load_contract("arm_reach")
    env.policy = "still"
    env.reset(seed=11)
    env.reset()
    env.reset(seed=12)
    env.close()
    manifest = manifest_of(env)
    assert manifest["run_id"] == env.path.name
    assert (manifest["clean"], manifest["problem"]) == (True, "")
    assert manifest["contract"]["fingerprint"] == contract.fingerprint
    assert (manifest["contract"]["name"], manifest["contract"]["version"]) == ("arm_reach", 1)
    assert manifest["contract"]["source"] == contract.source
    assert manifest["backend"] == "fake"
    assert manifest["backend_fingerprint"] == contract.backend_fingerprint("fake")
    assert manifest["clock"] == "steady"
    assert manifest["policy"] == "still"
    assert manifest["seeds"] == [11, 12]
    assert manifest["host"]["cpu_count"] == os.cpu_count()
    assert manifest["processes"] == [{"role": "environment", "pid": os.getpid()}]
    assert manifest["ended_utc"] >= manifest["started_utc"]


def test_manifest_has_the_reset_distributions(env):
    option: Any = load_contract("arm_reach").reset_options["target"]
    assert manifest_of(env)["distributions"] == {
        "target": {
            "distribution": "uniform", "type": "vector", "low": list(option.low), "high": list(option.high),
            "observed": False, "visibility": "agent",
        }
    }  # fmt: skip


def test_contract_changed_in_memory_is_recorded_as_used(tmp_path):
    contract = load_contract("arm_reach")
    changed = replace(contract, episode=replace(contract.episode, horizon_steps=3))
    env = RecordTransitions(EmbodiedEnv(changed, backend="fake"), tmp_path)
    recorded = manifest_of(env)["contract"]
    assert parse_contract(recorded["text"]) == changed
    assert recorded["fingerprint"] == changed.fingerprint != contract.fingerprint
    env.close()


def test_wrapper_stack_is_recorded_outermost_first_with_arguments(tmp_path):
    inner = embodied_env.make("arm_reach", backend="fake", max_episode_steps=5)
    env = RecordTransitions(
        OverwriteAction(RescaleAction(inner, np.full(6, -2, np.float32), np.full(6, 2, np.float32))), tmp_path
    )
    stack = manifest_of(env)["wrappers"]
    env.close()
    assert [layer["class"].rpartition(":")[2] for layer in stack] == [
        "RecordTransitions", "OverwriteAction", "RescaleAction", "TimeLimit", "EmbodiedEnv",
    ]  # fmt: skip
    assert stack[1]["kwargs"] is None
    assert stack[2]["kwargs"] == {"min_action": [-2.0] * 6, "max_action": [2.0] * 6}
    assert stack[3]["kwargs"] == {"max_episode_steps": 5}
    assert stack[4]["kwargs"] == {"contract": "arm_reach", "backend": "fake"}


class Spawning(EmbodiedEnv):
    """An environment that reports a new process at each reset."""

    count = 0

    def reset(self, **options):
        self.count += 1
        return super().reset(**options)

    def processes(self):
        return [{"role": "simulator", "pid": 1000 + self.count}] if self.count else []


def test_processes_started_by_a_reset_are_recorded(tmp_path):
    env = RecordTransitions(Spawning("arm_reach", backend="fake"), tmp_path)
    for pids in ([1001], [1001, 1002]):
        env.reset(seed=1)
        assert manifest_of(env)["processes"][1:] == [{"role": "simulator", "pid": pid} for pid in pids]
    env.close()


def test_first_transition_file_is_written_with_the_first_step(env):
    env.reset(seed=1)
    assert not (env.path / "first_transition.json").exists()
    env.step(STILL)
    text = (env.path / "first_transition.json").read_text()
    env.step(STILL)
    env.close()
    assert text == (env.path / "first_transition.json").read_text()
    assert strict(text) == next(read_run(env.path).transitions())
    assert text.startswith('{\n  "schema"')


def test_run_directory_has_only_the_four_files_whose_json_is_strict(env):
    record(env, [float("nan")] * 6)
    files = {file.name: file for file in env.path.iterdir()}
    assert sorted(files) == ["first_transition.json", "manifest.json", "summary.json", "transitions.mcap"]
    for name in files.keys() - {"transitions.mcap"}:
        strict(files[name].read_text())


def test_close_is_idempotent_and_step_and_reset_after_it_raise_and_write_nothing(env):
    env.reset(seed=1)
    env.close()
    before = {file: file.read_bytes() for file in env.path.iterdir()}
    env.close()
    with pytest.raises(ClosedError):
        env.step(STILL)
    with pytest.raises(ClosedError):
        env.reset()
    assert {file: file.read_bytes() for file in env.path.iterdir()} == before
    assert read_run(env.path).clean


def test_a_run_without_rows_leaves_no_folder(tmp_path):
    embodied_env.make("arm_reach", backend="fake", record=tmp_path / "new" / "folder").close()
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_rows_keeps_the_folders_of_others(tmp_path):
    first, second = (RecordTransitions(fake(), tmp_path / "runs") for _ in range(2))
    first.close()
    second.reset(seed=1)
    second.close()
    assert list((tmp_path / "runs").iterdir()) == [second.path]
    RecordTransitions(fake(), tmp_path / "runs").close()
    assert read_run(second.path).clean


# --------------------------------------------------------------------------------------------------------------- errors


def test_folder_that_is_a_file_is_rejected(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(
        RecordError, match=r"cannot create the run directory .*runs/\d{8}T\d{6}Z_arm_reach_fake_\w+: .*Not a directory"
    ):
        RecordTransitions(fake(), tmp_path / "runs")


def test_environment_without_transitions_is_rejected():
    with pytest.raises(UsageError, match=r"cannot record CartPoleEnv \(expected an environment made by embodied_env\)"):
        RecordTransitions(gymnasium.make("CartPole-v1"), "/nowhere")


def test_missing_mcap_leaves_no_folder(tmp_path):
    script = """
import sys
sys.modules["mcap"] = None  # as if it were not installed
import embodied_env
try:
    embodied_env.make("arm_reach", backend="fake", record=sys.argv[1])
except embodied_env.errors.MissingDependencyError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == 'recording needs mcap, which is not installed; pip install "embodied_env[record]"\n'
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------------------- summary


class Scripted(gymnasium.Wrapper):
    """Return a scripted episode with reward, terminated, truncated and end reason of each step."""

    def __init__(self, env, story):
        super().__init__(env)
        self.story = iter(story)

    def step(self, action):
        observation, _, _, _, info = self.env.step(action)
        reward, terminated, truncated, reason = next(self.story)
        return (
            observation,
            reward,
            terminated,
            truncated,
            {**info, "end_reason": reason, "is_success": reason == "success"},
        )


STORY = [
    [(1.0, False, False, ""), (2.0, True, False, "success")],
    [(-1.0, False, True, "time_limit")],
    [(0.5, True, False, "failure:fell")],
    [(3.0, False, True, "time_limit")],
    [(7.0, False, False, "")],
]


def test_summary_of_a_story(tmp_path):
    """Its last episode is interrupted by close, and follows an empty one."""
    env = RecordTransitions(Scripted(fake(), [step for episode in STORY for step in episode]), tmp_path)
    for number, episode in enumerate(STORY):
        env.reset(seed=1)
        for step in range(len(episode)):
            env.step(np.full(6, 2.0) if (number, step) == (0, 0) else STILL)
        if number == 3:
            env.reset()
    env.close()
    summary, returns = summary_of(env), [3.0, -1.0, 0.5, 3.0]
    assert (summary["episodes"], summary["successes"], summary["truncated"], summary["terminated"]) == (4, 1, 2, 2)
    assert (summary["success_rate"], summary["success_rate_not_truncated"]) == (0.25, 0.5)
    assert summary["return"] == {"mean": np.mean(returns), "min": -1.0, "max": 3.0, "std": np.std(returns)}
    assert (summary["steps"], summary["unfinished"]) == (6, 1)  # of an unfinished episode too
    assert 0 < summary["clipped_share"] < 1
    assert summary["end_reasons"] == {"success": 1, "time_limit": 2, "failure:fell": 1}
    assert set(summary["latency"]["gate_s"]) == {"count", "p50_s", "p95_s", "p99_s", "max_s"}
    assert summary["latency"]["gate_s"]["count"] == 6
    assert "hold_s[tcp]" in summary["latency"]


@pytest.mark.parametrize("reason", ["success", "failure:fell"])
def test_episode_that_ends_by_itself_in_the_last_step_of_a_time_limit_counts_as_terminated(tmp_path, reason):
    env = RecordTransitions(TimeLimit(Scripted(fake(), [(1.0, True, False, reason)]), 1), tmp_path)
    env.reset(seed=1)
    assert env.step(STILL)[2:4] == (True, True)
    env.close()
    summary, share = summary_of(env), float(reason == "success")
    assert (summary["terminated"], summary["truncated"], summary["end_reasons"]) == (1, 0, {reason: 1})
    assert (summary["success_rate"], summary["success_rate_not_truncated"]) == (share, share)


def test_end_by_a_wrapper_has_its_own_end_reason(tmp_path):
    env = RecordTransitions(TimeLimit(fake(), 2), tmp_path)
    record(env, STILL, STILL)
    summary = summary_of(env)
    assert (summary["episodes"], summary["success_rate"]) == (1, 0.0)
    assert summary["end_reasons"] == {"outer_wrapper": 1}


def test_steps_after_an_end_belong_to_no_episode(tmp_path):
    env = RecordTransitions(TimeLimit(fake(), 1), tmp_path)
    _, (_, reward, *_), _ = env.reset(seed=1), env.step(STILL), env.step(STILL)
    env.close()
    summary = summary_of(env)
    assert (summary["episodes"], summary["unfinished"], summary["steps"]) == (1, 0, 2)
    assert summary["return"]["mean"] == reward


def test_return_with_a_missing_reward_is_null(tmp_path):
    env = RecordTransitions(TransformReward(TimeLimit(fake(), 2), lambda _: float("nan")), tmp_path)
    record(env, STILL, STILL)
    assert summary_of(env)["return"]["mean"] is None


@pytest.mark.needs("audit")
def test_info_keys_added_by_a_wrapper_pass_the_audit(tmp_path):
    from embodied_env.extensions.audit import audit_transition

    (row,) = record(RecordTransitions(RecordEpisodeStatistics(TimeLimit(fake(), 1)), tmp_path), STILL)
    assert row["info"]["episode"]["l"] == 1
    assert audit_transition(row) == [
        "truncated is True (expected False, as the environment returned); changed by an outer wrapper"
    ]
