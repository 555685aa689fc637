"""The prompt comes from the contract, a reset or between two steps, and is in info, rows, replays and batches."""

import json
from dataclasses import replace

import numpy as np
import pytest
from evidence import assert_replays, assert_sound
from shipped_contracts import changed_contract

import embodied_env
from embodied_env.errors import ContractError, ResetNeededError, UsageError
from embodied_env.record.row_types import RESET, TRANSITION
from embodied_env.record.summary import Summary

ARM = embodied_env.load_contract("arm_reach")
DEFAULT = ARM.task.instruction
HOLD = np.zeros(6)


def prompts(path):
    return [row["info"]["instruction"] for row in embodied_env.read_run(path).rows()]


@pytest.fixture
def env(close_later):
    return close_later(embodied_env.make(ARM, backend="fake", clock="virtual"))


def test_the_prompt_of_an_episode_is_that_of_the_contract_unless_its_reset_has_another(env):
    assert env.reset(seed=1)[1]["instruction"] == DEFAULT
    assert env.reset(options={"instruction": "wave"})[1]["instruction"] == "wave"
    assert env.step(HOLD)[4]["instruction"] == "wave"
    assert env.reset()[1]["instruction"] == DEFAULT


def test_a_prompt_between_two_steps_takes_effect_in_the_next_one_which_has_the_one_before(env):
    with pytest.raises(ResetNeededError, match=r"instruct\(\) outside an episode"):
        env.unwrapped.instruct("wave")
    env.reset(seed=1)
    for change in ({"instruction": {"before": DEFAULT}}, None):
        env.unwrapped.instruct("wave")
        info = env.step(HOLD)[4]
        assert (info["instruction"], info.get("annotations")) == ("wave", change)


@pytest.mark.parametrize("text", [3, "", "x" * 1001, "two\nlines", "wave\0", "\ud800", b"wave"])
def test_an_invalid_prompt_is_refused_before_the_reset(env, text):
    with pytest.raises(UsageError, match=r"invalid instruction: .*expected 1 to 1000 printable characters"):
        env.reset(options={"instruction": text})
    assert env.unwrapped.epoch == -1


def test_a_contract_may_not_name_a_reset_option_like_the_prompt():
    with pytest.raises(ContractError, match=r"reset_options\.instruction: the key of the prompt"):
        changed_contract("arm_reach", {"reset_options.instruction": {"type": "scalar", "low": 0.0, "high": 1.0}})


@pytest.mark.parametrize("backend", ["fake", "mujoco"])
def test_every_row_has_its_prompt_and_a_replay_copies_it(tmp_path, backend):
    with embodied_env.make(ARM, backend=backend, clock="virtual", record=tmp_path) as env:
        env.reset(seed=1, options={"instruction": "wave"})
        env.step(HOLD)
        env.unwrapped.instruct("rest")
        env.step(HOLD)
    assert prompts(env.path) == ["wave", "wave", "rest"]
    assert_sound(env.path)
    assert_replays(env.path)


def test_an_episode_with_a_changed_prompt_is_a_condition_of_its_own(tmp_path):
    short = replace(ARM, episode=replace(ARM.episode, horizon_steps=3))
    with embodied_env.make(short, backend="fake", clock="virtual", record=tmp_path) as env:
        for prompts_of_steps in (("a → b",) * 3, ("wave", "rest", "wave"), ("wave",) * 3):
            env.reset(seed=1)
            for prompt in prompts_of_steps:
                env.unwrapped.instruct(prompt)
                env.step(HOLD)
    summary = json.loads((env.path / "summary.json").read_text())
    assert {name: found["rated"] for name, found in summary["instructions"].items()} == {
        "a → b": 1,
        "wave → rest → wave": 1,
        "wave": 1,
    }


def test_a_condition_of_many_prompts_names_the_first_ones_and_the_last_one():
    summary = Summary()
    summary.add({"schema": RESET})
    for prompt in map(str, range(20)):
        info = {"instruction": prompt}
        summary.add({"schema": TRANSITION, "reward": 0.0, "terminated": False, "truncated": False, "info": info})
    assert summary.episode.instruction == "0 → 1 → 2 → 3 → 4 → 5 → … → 19"


@pytest.mark.needs("vector")
def test_slots_of_a_recorded_batch_have_prompts_of_their_own(tmp_path):
    envs = embodied_env.make_vec(ARM, num_envs=2, backend="mujoco", record=tmp_path)
    try:
        envs.reset(seed=1)
        only_first = {"reset_mask": np.array([True, False]), "instruction": "wave"}
        assert envs.reset(options=only_first)[1]["instruction"][0] == "wave"
        for _ in range(3):
            infos = envs.step(np.zeros((2, 6), dtype=np.float32))[4]
            assert infos["instruction"].tolist() == ["wave", DEFAULT]
    finally:
        envs.close()
    first, second = sorted(tuple(prompts(file.parent)) for file in tmp_path.rglob("manifest.json"))
    assert {first, second} == {(DEFAULT, "wave", "wave", "wave", "wave"), (DEFAULT,) * 4}
