"""Several policies in one evaluation take turns with paired seeds, and have a run each and a comparison."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from evidence import assert_replays, assert_sound

import embodied_env
from embodied_env.backends.fake_backend import ScriptedFault
from embodied_env.cli.main import main
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.core.policy import FunctionPolicy, NoAction, PolicyIdentity
from embodied_env.errors import UsageError
from embodied_env.extensions.evaluation.episode_runner import EvaluationJob, PolicySource
from embodied_env.extensions.evaluation.evaluation import evaluate
from embodied_env.extensions.evaluation.evaluation_engine import Engine
from embodied_env.policies import policy_loader as loader
from embodied_env.processes.child_process import Child, simulator

ARM = embodied_env.load_contract("arm_reach")
SHORT = replace(ARM, episode=replace(ARM.episode, horizon_steps=6))
QUICK: dict = {"backend": "fake", "episodes": 3, "seed": 3, "clock": "virtual"}


def rows(path):
    return list(embodied_env.read_run(path).rows())


def test_policies_take_turns_in_the_same_worlds(tmp_path):
    turns = []

    def acting(name, value):
        def act(observation):
            turns.append((name, observation["target_position"].tolist()))
            return np.full(6, value)

        return act

    evaluation = evaluate(SHORT, [acting("a", 0.1), acting("b", 0.2)], record=tmp_path, **QUICK)
    names = [name for name, _ in turns[::6]]
    assert names == ["a", "b", "b", "a", "a", "b"]
    worlds = {name: [target for other, target in turns[::6] if other == name] for name in "ab"}
    assert worlds["a"] == worlds["b"]
    assert len({tuple(target) for target in worlds["a"]}) == 3
    assert not evaluation.problem
    for result, value in zip(evaluation.results, (0.1, 0.2), strict=True):
        recorded = rows(result.path)
        assert [row["info"]["episode_index"] for row in recorded if row["schema"].startswith("embodied_env/reset")] == [
            0,
            1,
            2,
        ]
        assert {row["action"][0] for row in recorded if "action" in row} == {value}
        assert_sound(result.path)
        assert_replays(result.path)


def test_the_sensors_of_a_policy_are_required_while_it_runs(tmp_path):
    blind, seeing = (
        FunctionPolicy(lambda _: np.zeros(6), PolicyIdentity(name=name, format="python"))
        for name in ("blind", "seeing")
    )
    seeing.required_sensors = ("target",)
    faults = [ScriptedFault(kind="drop", step=step, sensor="target") for step in range(1, 99)]
    contract = replace(ARM, episode=replace(ARM.episode, horizon_steps=20))
    evaluation = evaluate(contract, [blind, seeing], record=tmp_path, faults=faults, **{**QUICK, "episodes": 1})
    reasons = [list(result.summary["end_reasons"]) for result in evaluation.results]
    assert reasons == [["time_limit"], ["safety_stop:obs.stale"]]
    for result in evaluation.results:
        assert_sound(result.path)
        assert_replays(result.path)


def test_workers_give_the_results_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    quick: dict = {**QUICK, "episodes": 1, "instructions": ["wave", "rest", "point"]}
    one = evaluate(SHORT, ["random", "hold"], record=tmp_path, **quick)
    two = evaluate(SHORT, ["random", "hold"], record=tmp_path, engine=Engine(2), **quick)
    assert all(list(result.summary["instructions"]) == quick["instructions"] for result in two.results)
    assert [result.summary for result in two.results] == [result.summary for result in one.results]
    assert [comparison.as_json() for comparison in two.compare()] == [found.as_json() for found in one.compare()]
    assert [result.path.name for result in two.results] == ["policy_1", "policy_2"]
    for result, name in zip(two.results, ("random", "hold"), strict=True):
        account = json.loads((result.path / "evaluation.json").read_text())
        assert (account["policy"], account["episodes"], account["problem"]) == (name, 3, "")
        assert all(account["run_of_episode"])
        manifests = [json.loads((part / "manifest.json").read_text()) for part in result.parts]
        assert {manifest["policy"]["name"] for manifest in manifests} == {name}


def test_command_prints_the_comparison(tmp_path, capsys):
    contract = tmp_path / "brief.yaml"
    contract.write_text(dump_contract(replace(ARM, episode=replace(ARM.episode, horizon_steps=25))))
    words = ["evaluate", str(contract), "--policy", "scripted", "--policy", "hold", "--episodes", "3"]
    words += ["--clock", "virtual"]
    assert main([*words, "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["policy"] for run in found["runs"]] == ["scripted", "hold"]
    (comparison,) = found["comparisons"]
    assert (comparison["a"], comparison["b"]) == ("scripted", "hold")
    rate = comparison["outcomes"][0]
    assert (rate["a"]["share"], rate["b"]["share"], rate["paired"]["only_a"]) == (1.0, 0.0, 3)
    low, high = rate["paired_difference"]
    assert -1.0 == low < high < 0.0
    means = [run["summary"]["return"]["mean"] for run in found["runs"]]
    assert comparison["returns"]["mean"] == pytest.approx(means[1] - means[0])
    assert comparison["pairing"]["pairs"] == 3
    assert main([*words, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "hold compared with scripted" in printed
    assert "difference over 3 pairs, in points: -100 (-100 to " in printed


def test_policy_file_belongs_to_the_policy_before_it(monkeypatch, tmp_path, capsys):
    loaded = []

    def load(address, contract, *, policy_file=None, **_):
        loaded.append((address, policy_file))
        return original(address, contract)

    original = loader.load_policy
    monkeypatch.setattr(loader, "load_policy", load)
    out = ["--backend", "fake", "--episodes", "1", "--clock", "virtual", "--out", str(tmp_path), "--json"]
    (tmp_path / "short.yaml").write_text(dump_contract(SHORT))
    words = [
        "evaluate",
        str(tmp_path / "short.yaml"),
        "--policy",
        "hold",
        "--policy-file",
        "a.yaml",
        "--policy",
        "random",
    ]
    assert main([*words, *out]) == 0
    assert loaded == [("hold", "a.yaml"), ("random", None)]
    for misplaced in (
        ["--policy-file", "b.yaml"],
        ["--policy", "hold", "--policy-file", "a.yaml", "--policy-file", "b.yaml"],
    ):
        assert main(["evaluate", "arm_reach", *misplaced, *out]) == 2
        assert "misplaced --policy-file: 'b.yaml' (expected at most one after each --policy)" in capsys.readouterr().err


def test_missing_actions_are_not_clipped_ones(tmp_path):
    calls = iter(range(100))

    def late(_):
        return NoAction("silent") if next(calls) % 2 else np.zeros(6)

    (result,) = evaluate(SHORT, late, record=tmp_path, **QUICK).results
    assert (result.summary["steps"], result.summary["missed_actions"], result.summary["clipped_share"]) == (18, 9, 0.0)
    assert_sound(result.path)
    assert_replays(result.path)


@pytest.mark.parametrize(
    ("policies", "options", "problem"),
    [
        ([], {}, "no policy to evaluate"),
        ([lambda _: np.zeros(6), "hold"], {"engine": Engine(2)}, "expected an address"),
        (["hold"], {"episodes": 0}, "invalid episodes=0"),
        (["hold"], {"seed": -1}, "invalid seed=-1"),
        (["hold"], {"engine": 3}, "invalid engine: 3"),
        ([3], {}, "policy is not callable: 3"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_recorded(tmp_path, policies, options, problem):
    with pytest.raises(UsageError, match=problem):
        evaluate(SHORT, policies, record=tmp_path / "runs", **{**QUICK, **options})
    assert not (tmp_path / "runs").exists()


def test_trials_of_three_policies_are_balanced():
    policies = tuple(PolicySource(address=name) for name in "abc")
    job = EvaluationJob(contract=SHORT, backend="fake", policies=policies, seed=0, options={})
    assert [job.trial(k)[0] for k in range(9)] == [0, 1, 2, 1, 2, 0, 2, 0, 1]
    assert [job.trial(k)[1] for k in range(9)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert job.describe_trial(3) == "episode 1 of b"
    assert replace(job, policies=(*policies, policies[0])).names == ("a (1)", "b", "c", "a (4)")


@pytest.mark.ros
@pytest.mark.realtime
def test_policies_take_turns_on_one_robot(tmp_path, domain_id):
    contract = replace(SHORT, backends={**ARM.backends, "real": {**ARM.backends["real"], "discovery_s": 0.0}})
    namespace = f"/turns_{os.getpid()}"
    arm = Child(simulator("-", namespace=namespace, free_running=True), first_line=dump_contract(contract))
    try:
        options: dict = {
            "backend": "real",
            "namespace": namespace,
            "emulator": True,
            "episodes": 2,
            "connect_timeout_s": 60.0,
        }
        evaluation = evaluate(contract, ["scripted", "hold"], record=tmp_path, **options)
    finally:
        arm.stop()
    assert not evaluation.problem
    for result in evaluation.results:
        assert result.summary["episodes"] == 2
        assert_sound(result.path)
        assert_replays(result.path)
