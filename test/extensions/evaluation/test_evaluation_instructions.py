"""Episodes of a policy that follows prompts have results and comparisons by prompt."""

import json
from dataclasses import replace

import numpy as np
import pytest

import embodied_env
from embodied_env.cli.main import main
from embodied_env.core.policy import PolicyIdentity
from embodied_env.errors import UsageError
from embodied_env.extensions.evaluation.evaluation import evaluate
from embodied_env.extensions.evaluation.evaluation_arguments import read_instructions

ARM = embodied_env.load_contract("arm_reach")
SHORT = replace(ARM, episode=replace(ARM.episode, horizon_steps=4))
QUICK: dict = {"backend": "fake", "seed": 3, "clock": "virtual"}
PROMPTS = ("wave", "point at the door", "rest")


class Follower:
    """A policy that does what its prompt names."""

    identity = PolicyIdentity(name="follower", format="python")

    def __init__(self, refuses=()):
        self.prompts, self.seen, self._refuses = [], [], refuses

    def reset(self, *, seed, episode_index):
        self.prompts = self.prompts[:]

    def instruct(self, instruction, /):
        if instruction in self._refuses:
            raise UsageError(f"no {instruction}")
        self.prompts.append(instruction)
        return True

    def __call__(self, observation, /):
        self.seen.append(self.prompts[-1])
        return np.full(6, 0.1 * PROMPTS.index(self.prompts[-1]))

    def close(self):
        pass


def test_episodes_have_the_prompts_in_turn_and_results_for_each(tmp_path):
    policy = Follower()
    (result,) = evaluate(SHORT, policy, episodes=2, instructions=PROMPTS, record=tmp_path, **QUICK).results
    assert policy.prompts == [*PROMPTS, *PROMPTS]
    assert policy.seen == [prompt for prompt in policy.prompts for _ in range(4)]
    found = result.summary["instructions"]
    assert {prompt: counts["episodes"] for prompt, counts in found.items()} == dict.fromkeys(PROMPTS, 2)
    resets = [row["options"] for row in embodied_env.read_run(result.path).resets()]
    assert resets == [{"instruction": prompt} for prompt in policy.prompts]


def test_policies_are_compared_over_pairs_with_one_prompt(tmp_path):
    evaluation = evaluate(SHORT, [Follower(), Follower()], episodes=2, instructions=PROMPTS, record=tmp_path, **QUICK)
    (comparison,) = evaluation.compare()
    by_prompt = [each for each in comparison.outcomes if each.key == "instructions"]
    assert [each.how for each in by_prompt] == [f"with the prompt {prompt!r}" for prompt in PROMPTS]
    assert [each.paired.pairs for each in by_prompt] == [2, 2, 2]


def test_an_invalid_prompt_is_refused_before_anything_moves(tmp_path):
    with pytest.raises(UsageError, match="invalid instruction: ''"):
        evaluate(SHORT, Follower(), instructions=["wave", ""], record=tmp_path, **QUICK)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_reads_one_prompt_per_line(tmp_path, capsys):
    file = tmp_path / "prompts.txt"
    file.write_text("wave\n\n  rest \n", encoding="utf-8")
    command = ["evaluate", "arm_reach", "--policy", "hold", "--backend", "fake", "--clock", "virtual", "--json"]
    run = [*command, "--episodes", "1", "--out", str(tmp_path / "runs"), "--instructions", str(file)]
    assert main(run) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert list(found["summary"]["instructions"]) == ["wave", "rest"]
    file.write_text("\n", encoding="utf-8")
    assert main(run) == 2
    assert "no instruction in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xef\xbb\xbfwave\r\nrest\r\n", ("wave", "rest")),  # of an editor on Windows
        (b"wave\x0bthe hand\n", "invalid instruction: 'wave"),
        ("wave\u2028rest\n".encode(), "invalid instruction: 'wave"),
        (b"wave \xff\n", "cannot read instructions"),
        (b"x" * 1001, "invalid instruction: 'xxx"),
    ],
)
def test_a_line_with_a_control_character_is_refused_and_not_divided(tmp_path, content, expected):
    file = tmp_path / "prompts.txt"
    file.write_bytes(content)
    if isinstance(expected, tuple):
        assert read_instructions(str(file)) == expected
        return
    with pytest.raises(UsageError, match=expected):
        read_instructions(str(file))
