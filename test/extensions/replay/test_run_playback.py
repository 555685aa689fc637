"""Playback in lockstep has the same commands, and reaches its start or refuses a run."""

import json
import shutil
from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from evidence import assert_sound
from run_files import rewrite_log
from unit_contracts import driver_units_contract

import embodied_env
from embodied_env.contract import load_contract
from embodied_env.core.policy import AccountedPolicy, NoAction, find_start
from embodied_env.core.reset_draws import ResetRoutine
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.errors import BackendNotReadyError, PolicyError, RecordError, UsageError
from embodied_env.extensions.replay.playback_deviations import DEVIATIONS, write_deviations
from embodied_env.extensions.replay.run_playback import load_run
from embodied_env.policies.per_slot_policies import TeamPolicies
from embodied_env.policies.policy_model import plausible_observation
from embodied_env.record import RecordTransitions, read_run

pytestmark = pytest.mark.needs("evaluation")

ARM = load_contract("arm_reach")
STEPS = 15
PATIENCE_S = 60.0
SHORT = replace(ARM, episode=replace(ARM.episode, horizon_steps=STEPS))
POLICY_FILE = """
policy: embodied_env/policy/1
name: playback
control_period_s: 0.05
inputs: {joints: {parts: [{field: joints_position, joints: [j1], unit: rad}]}}
outputs: {action: {parts: [{actuator: arm, joints: [j1, j2, j3, j4, j5, j6], unit: action}]}}
"""


def record(folder, backend):
    """Record two episodes in which the gate clips many actions."""
    return embodied_env.evaluate(SHORT, "random", backend=backend, episodes=2, seed=5, record=folder).results[0].path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(tmp_path_factory.mktemp("recorded"), "mujoco")


def play(folder, address, backend, contract=SHORT, **options):
    options |= {"reset_timeout_s": PATIENCE_S} if backend == "fake" else {}  # in which the joints drive to the start
    return embodied_env.evaluate(contract, address, backend=backend, seed=9, record=folder, **options).results[0].path


def commands_of(path):
    return [row["inner"]["report"]["applied_si"] for row in read_run(path).transitions()]


def accounts_of(path):
    return [row["info"]["annotations"]["playback"] for row in read_run(path).transitions()]


@pytest.mark.parametrize("backend", ["fake", "mujoco"])
def test_requested_actions_lead_to_the_same_commands_and_readings(tmp_path, recorded, backend):
    recorded = recorded if backend == "mujoco" else record(tmp_path / "other", backend)
    path = play(tmp_path, f"run:{recorded}", backend, episodes=2)
    rows, others = list(read_run(recorded).transitions()), list(read_run(path).transitions())
    assert commands_of(path) == commands_of(recorded)
    assert [row["inner"]["observation"] for row in others] == [row["inner"]["observation"] for row in rows]
    assert accounts_of(path) == [{"row": row["row"], "index": row["info"]["step_index"] - 1} for row in rows]
    assert "all 15 commands equal bit for bit" in write_deviations(path, recorded)[0]
    assert_sound(path)


def test_applied_actions_lead_to_the_same_commands_up_to_the_rounding_of_displacements(tmp_path, recorded):
    path = play(tmp_path, f"run:{recorded}#1?actions=applied", "fake", episodes=1)
    played, original = np.array(commands_of(path)), np.array(commands_of(recorded)[:STEPS])
    np.testing.assert_allclose(played, original, rtol=0.0, atol=1e-15)
    write_deviations(path, recorded)
    (episode,) = json.loads((path / DEVIATIONS).read_text())["episodes"]
    assert [each["codes"] for each in episode["changed"]] == [["rounding"]] * len(episode["changed"])
    assert len(episode["changed"]) <= 4


def test_applied_actions_close_a_gripper_as_it_was_closed_and_hold_it_where_it_was_held(tmp_path):
    contract = driver_units_contract()
    env = RecordTransitions(EmbodiedEnv(contract, backend="fake"), tmp_path)
    env.reset(seed=0)
    for value in (-1.0, -1.0, -1.0, -1.0, 1.0):
        env.step({"arm": np.zeros(2), "hand": np.full(1, value)} if value < 0.0 else NoAction("held"))
    env.close()
    hands = np.array(commands_of(env.path))[:, 2]
    path = play(tmp_path / "played", f"run:{env.path}#1?actions=applied", "fake", contract, episodes=1)
    np.testing.assert_allclose(np.array(commands_of(path))[:5, 2], hands, atol=1e-4)
    assert 0.0 < hands[1] < hands[0]


def test_another_backend_drives_to_the_recorded_start(tmp_path, recorded):
    path = play(tmp_path, f"run:{recorded}#1", "fake", episodes=1)
    reset = next(read_run(path).resets())
    assert reset["inner"]["routine"] == "home"
    measured = reset["inner"]["observation"]["joints_position"]
    start = next(read_run(recorded).resets())["inner"]["observation"]["joints_position"]
    np.testing.assert_allclose(measured, start, atol=ResetRoutine().tolerance)
    assert commands_of(path)[0] == pytest.approx(commands_of(recorded)[0], abs=1e-6)
    assert_sound(path)


def test_the_prompt_and_the_reset_options_are_those_of_the_run(recorded):
    start = find_start(embodied_env.load_policy(f"run:{recorded}#2", SHORT))
    (_, reset) = read_run(recorded).resets()
    assert start.options["instruction"] == reset["info"]["instruction"] == "move the tool to the target"
    assert start.options["target"].tolist() == reset["inner"]["sampled"]["target"]
    assert start.seed == reset["inner"]["seed_applied"]


def test_an_embedded_world_drives_to_another_start(recorded):
    start = find_start(embodied_env.load_policy(f"run:{recorded}#1", SHORT))
    positions = {**start.positions, "j2": start.positions["j2"] + 0.1}
    with EmbodiedEnv(SHORT, backend="mujoco") as env:
        env.start_from(replace(start, positions=positions))
        observation, info = env.reset(seed=0)
        env.step(np.zeros(6))
    assert info["reset"]["routine"] == "home"
    np.testing.assert_allclose(observation["joints_position"], list(positions.values()), atol=ResetRoutine().tolerance)


def test_after_the_recorded_episode_there_is_no_action(recorded):
    policy = embodied_env.load_policy(f"run:{recorded}#1", SHORT)
    policy.reset(seed=0, episode_index=0)
    observation = plausible_observation(SHORT)
    actions = [policy(observation) for _ in range(STEPS + 1)]
    assert isinstance(policy, AccountedPolicy)
    assert actions[-1] == NoAction("the recorded episode 1 has ended")
    assert not any(isinstance(action, NoAction) for action in actions[:-1])
    assert policy.take_account() == {"row": STEPS, "index": STEPS - 1}


def test_a_gate_that_changes_a_command_is_named(tmp_path, recorded):
    policy = embodied_env.load_policy(f"run:{recorded}#1", SHORT)
    assert isinstance(policy, AccountedPolicy)
    env = RecordTransitions(EmbodiedEnv(SHORT, backend="mujoco"), tmp_path)
    with env:
        policy.reset(seed=0, episode_index=0)
        env.unwrapped.start_from(find_start(policy))
        observation, _ = env.reset(seed=0)
        env.unwrapped.change_limits({"j2": replace(SHORT.actuators["arm"].joints["j2"], velocity=0.1)})
        ended = False
        while not ended:
            action = policy(observation)
            env.unwrapped.annotate("playback", policy.take_account())
            observation, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
    lines = write_deviations(env.path, recorded)
    assert "of 15 commands differ, first in step " in lines[0]
    assert "vel.limit" in lines[0]
    (episode,) = json.loads((env.path / DEVIATIONS).read_text())["episodes"]
    first = episode["changed"][0]
    assert "vel.limit" in first["codes"]
    column = episode["columns"]["command j2"]
    assert column["diverged_s"] == pytest.approx(first["index"] * SHORT.control_period_s)
    assert column["worst"] == max(map(abs, column["difference"])) > column["rms"] > 0.0
    assert episode["columns"]["joints_position j2"]["diverged_s"] >= column["diverged_s"]


def test_a_run_of_another_contract_is_refused_with_the_difference(recorded):
    other = replace(SHORT, safety=replace(SHORT.safety, mode="monitor"))
    with pytest.raises(UsageError, match=r"of another contract: safety\.mode: 'enforce' in the run, 'monitor' here"):
        embodied_env.load_policy(f"run:{recorded}", other)


def test_a_policy_file_maps_a_run_of_another_contract(tmp_path, recorded):
    file = tmp_path / "playback.policy.yaml"
    file.write_text(POLICY_FILE)
    other = replace(SHORT, version=SHORT.version + 1)
    policy = embodied_env.load_policy(f"run:{recorded}#1", other, policy_file=file)
    start = find_start(policy)
    assert start.seed is None
    assert set(start.positions) == {"j1", "j2", "j3", "j4", "j5", "j6"}
    path = play(tmp_path, policy, "fake", other, episodes=1)
    assert len(write_deviations(path, recorded)) > 1
    requested = [row["inner"]["report"]["requested"] for row in read_run(path).transitions()]
    original = [row["inner"]["report"]["requested"] for row in read_run(recorded).transitions()]
    np.testing.assert_allclose(requested, original[:STEPS], rtol=1e-12)


def test_a_policy_file_of_another_period_is_refused(tmp_path, recorded):
    file = tmp_path / "playback.policy.yaml"
    file.write_text(POLICY_FILE.replace("0.05", "0.1").replace("inputs:", "resample: hold\ninputs:"))
    problem = r"control_period_s: 0\.1 s \(expected 0\.05 s, that of the recorded run\)"
    with pytest.raises(UsageError, match=problem):
        embodied_env.load_policy(f"run:{recorded}#1", SHORT, policy_file=file)


def test_a_run_that_was_never_closed_is_named_in_the_dry_run_and_in_the_result(tmp_path, recorded):
    copy = shutil.copytree(recorded, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "clean": False}))
    policy = embodied_env.load_policy(f"run:{copy}#1", SHORT)
    assert find_start(policy).rehearse().startswith("the run is not sound: ")
    path = play(tmp_path, policy, "mujoco", episodes=1)
    assert write_deviations(path, copy)[0].startswith("the recorded run is not sound: ")
    assert "never closed" in json.loads((path / DEVIATIONS).read_text())["problem"]


def test_a_comparison_with_another_run_than_that_played_says_so(tmp_path, recorded):
    path = play(tmp_path / "one", f"run:{recorded}#1", "fake", episodes=1)
    other = record(tmp_path / "other", "fake")
    assert write_deviations(path, other)[0].endswith("its rows are not those that were played")


def test_what_was_played_before_an_evaluation_ended_early_has_its_deviations(tmp_path, recorded, capsys, monkeypatch):
    from embodied_env.extensions.evaluation.episode_runner import PolicySource
    from embodied_env.extensions.evaluation.evaluation_display import run_policies

    (tmp_path / "failing_policy.py").write_text("def act(observation):\n    raise ValueError\n")
    monkeypatch.syspath_prepend(tmp_path)
    contract: Any = SHORT
    args = Namespace(out=str(tmp_path / "runs"), backend="mujoco", episodes=1, seed=0, json=False)
    with pytest.raises(PolicyError, match="failing_policy:act"):
        run_policies(
            contract, [PolicySource(address=each) for each in (f"run:{recorded}#1", "failing_policy:act")], args
        )
    assert "episode 1: all 15 commands equal bit for bit" in capsys.readouterr().out
    assert len(list(tmp_path.glob(f"runs/*/{DEVIATIONS}"))) == 1


def test_a_team_plays_no_run(recorded):
    policy = embodied_env.load_policy(f"run:{recorded}#1", SHORT)
    with pytest.raises(UsageError, match="plays a recorded run, and one of several robots cannot begin at its start"):
        TeamPolicies(lambda _: policy, ["left"])


@pytest.mark.needs("remote")
def test_no_run_is_served(recorded):
    from embodied_env.extensions.remote import serve_cli

    args = Namespace(contract=None, policy_file=None, address=f"run:{recorded}#1", trust_policy=False)
    with pytest.raises(UsageError, match="plays a recorded run, and a client cannot begin at its start"):
        serve_cli.run(args)


@pytest.mark.parametrize(
    ("keys", "value", "problem"),
    [
        (("report", "requested"), [0.1] * 5, "row 1 has too many or too few values"),
        (("report", "applied_si"), [], "row 1 has too many or too few values"),
        (("seed_applied",), -5, "seed -5 of a reset"),
    ],
)
def test_values_that_no_environment_records_are_refused(tmp_path, recorded, keys, value, problem):
    copy = shutil.copytree(recorded, tmp_path / "copy")
    rows = list(read_run(copy).rows())
    changed = rows[0 if keys == ("seed_applied",) else 1]["inner"]
    for key in keys[:-1]:
        changed = changed[key]
    changed[keys[-1]] = value
    rewrite_log(copy, rows)
    with pytest.raises(RecordError, match=problem):
        embodied_env.load_policy(f"run:{copy}", SHORT)


@pytest.mark.parametrize("part", ["0", "3", "-1", "x", ""])
def test_an_unknown_episode_is_refused(recorded, part):
    with pytest.raises(UsageError, match=f"no such episode of the run .*: {part!r} "):
        load_run(str(recorded), part=part)


def test_a_start_outside_the_limits_is_refused_with_the_distance(recorded):
    policy = embodied_env.load_policy(f"run:{recorded}#1", SHORT)
    start = find_start(policy)
    with EmbodiedEnv(SHORT, backend="fake", reset_timeout_s=PATIENCE_S) as env:
        env.start_from(replace(start, positions={**start.positions, "j3": 3.5}))
        with pytest.raises(BackendNotReadyError, match=r"j3 is at 0, 3\.5 from the recorded start 3\.5; j3: outside"):
            env.reset(seed=0)
        env.reset(seed=0)  # the start was that of one reset
