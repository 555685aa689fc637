import json
import re

import numpy as np
import pytest

import embodied_env
from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.core.code_table import CODE_TABLE
from embodied_env.core.code_types import AFTER_ESTOP, END_REASONS
from embodied_env.errors import UsageError
from embodied_env.extensions.explain import explanation


@pytest.fixture
def env(close_later):
    env = close_later(embodied_env.make("arm_reach", backend="fake", clock="virtual", host_timing=True))
    env.reset(seed=1)
    return env


def explanation_of(env, action):
    return embodied_env.explain(env.step(action)[4]).splitlines()


def test_every_code_and_end_reason_has_a_description():
    assert all(code.meaning for code in CODE_TABLE.values())
    assert explanation._ENDS.keys() == set(END_REASONS)


def test_unchanged_step(env):
    assert explanation_of(env, np.zeros(6)) == [
        "Step 1 of episode 0: arm_reach v1 on fake (simulator).",
        "The gates passed the action unchanged.",
        "Each reading was within its age limit, and the step was in time.",
        "Observation to command: 0 ms.",
        "The environment did not end the episode.",
    ]


def test_a_changed_prompt_is_named_with_the_one_before(env):
    env.unwrapped.instruct("wave")
    assert re.search(
        r"^The prompt was changed from '.+' to 'wave'\.$", "\n".join(explanation_of(env, np.zeros(6))), re.MULTILINE
    )


@pytest.mark.parametrize(("weight", "part"), [(1.0, "The action"), (0.25, "A share of 0.25 of the action")])
def test_an_action_from_before_a_new_prompt_is_named_with_its_prompt(env, weight, part):
    env.unwrapped.instruct("wave")
    account = {"mode": "crossfade", "id": 0, "born": 0, "age": 0, "weight": 1.0, "length": 8, "underruns": 0}
    env.unwrapped.annotate("chunk", account | {"earlier_prompt": {"instruction": "rest", "weight": weight}})
    assert f"{part} was computed with the prompt 'rest', not with 'wave'." in explanation_of(env, np.zeros(6))


def test_a_suspect_odometry_is_named_with_its_reason(env):
    info = env.step(np.zeros(6))[4]
    info["sensors"]["joints"]["suspect_motion"] = "linear.x does not follow"
    assert embodied_env.explain(info).splitlines()[2:4] == [
        "Each reading was within its age limit, and the step was in time.",
        "The odometry joints is suspect: linear.x does not follow.",
    ]


def test_malformed_actions_until_the_stop(env):
    lines = [explanation_of(env, "left") for _ in range(3)]
    assert "The action was not used." in lines[0]
    assert lines[-1][-1] == (
        "The episode ended: safety stop: too many malformed actions in a row (safety_stop:form.repeated)."
    )


@pytest.mark.parametrize(
    ("reason", "next_step"),
    [
        ("safety_stop:estop.active", f"release the emergency stop, {AFTER_ESTOP}."),
        ("safety_stop:robot.inactive", "activate the robot and its controller, then call reset()."),
    ],
)
def test_the_end_by_a_safety_input_includes_the_next_action(reason, next_step):
    assert list(explanation._explain_end(reason))[-1] == f"Next: {next_step}"


def test_reset_and_info_from_json(close_later):
    env = close_later(embodied_env.make("arm_reach", backend="fake", host_timing=True))
    info = env.reset(seed=1)[1]
    assert re.match(
        r"Reset to episode 0 of arm_reach v1 on fake \(simulator\), in [\d.]+ s", embodied_env.explain(info)
    )
    info = env.step([np.nan] * 6)[4]
    as_json = json.loads(json.dumps(info, default=lambda array: array.tolist()).replace("NaN", "null"))
    assert embodied_env.explain(as_json) == embodied_env.explain(info)


def test_lost_world_leaves_the_execution_of_the_command_open():
    env = embodied_env.make("arm_reach", backend="fake", faults=[ScriptedFault(kind="refuse", step=1)], clock="virtual")
    env.reset(seed=1)
    lines = explanation_of(env, np.zeros(6))
    assert "The reading of joints was lost with the world; the observation has the previous one." in lines
    assert lines[-2:] == [
        "The episode ended: the world was lost: refused (backend_lost:refused).",
        "Whether the command was executed is not known.",
    ]
    env.close()


@pytest.mark.parametrize("info", [None, 5, {}, {"step_index": 1}], ids=repr)
def test_other_arguments_are_rejected(info):
    with pytest.raises(UsageError, match="info not explained"):
        embodied_env.explain(info)
