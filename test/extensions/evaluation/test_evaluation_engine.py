"""Workers of ``embodied-env evaluate --engine local`` give the results of one process."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import embodied_env
from embodied_env.cli.main import main
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.core.policy import policy_seed
from embodied_env.errors import RecordError, UsageError
from embodied_env.extensions.evaluation.episode_runner import EpisodeRunner, EvaluationJob, PolicySource
from embodied_env.extensions.evaluation.evaluation_engine import Engine, longest_episode_s, merged_summary
from embodied_env.extensions.evaluation.local_workers import SHORT_GRACE_S
from embodied_env.record import read_run

ARM = embodied_env.load_contract("arm_reach")
POLICIES = """
import os, pathlib, signal, time
import numpy as np

HERE = pathlib.Path(__file__).parent

def acting(observation):
    (HERE / f"domain_{os.environ['ROS_DOMAIN_ID']}").touch()
    return 0.1 * observation["target_position"].repeat(2)

asked = 0

def killed_once(observation):
    global asked
    asked += 1
    if asked == 6:
        try:
            (HERE / "killed").touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return acting(observation)

def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (HERE / f"hung_{os.getpid()}").touch()
    while True:
        time.sleep(60)

def hung_once(observation):
    try:
        (HERE / "hung").touch(exist_ok=False)
    except FileExistsError:
        return acting(observation)
    hang()

def hung(observation):
    hang()

def slow(observation):
    (HERE / f"slow_{os.getpid()}").touch()
    time.sleep(0.05)
    return acting(observation)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with policies and a contract of short episodes, importable by workers."""
    (tmp_path / "engine_policies.py").write_text(POLICIES)
    short = replace(ARM, episode=replace(ARM.episode, horizon_steps=4))
    (tmp_path / "short.yaml").write_text(dump_contract(short))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "engine_policies", raising=False)
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    return tmp_path


def arguments(folder, policy, *more, episodes=5):
    kind = ("--backend", "fake", "--clock", "virtual", "--seed", "3", "--json", "--out", str(folder / "runs"))
    return ["evaluate", str(folder / "short.yaml"), "--policy", policy, "--episodes", str(episodes), *kind, *more]


def run_evaluate(capsys, *words):
    status = main(*words)
    output = capsys.readouterr()
    return status, json.loads(output.out)["runs"][0] if output.out else None, output.err


def job(**changes):
    values: dict = {
        "contract": ARM,
        "backend": "fake",
        "policies": (PolicySource(address="random"),),
        "seed": 3,
        "options": {"clock": "virtual"},
    }
    return EvaluationJob(**(values | changes))


def test_episode_of_killed_worker_is_repeated_and_reported(folder, capsys):
    one = run_evaluate(capsys, arguments(folder, "engine_policies:acting"))
    status, run, stderr = run_evaluate(
        capsys, arguments(folder, "engine_policies:killed_once", "--engine", "local", "--workers", "2")
    )
    assert status == 0
    assert run["summary"] == one[1]["summary"]
    account = json.loads((Path(run["path"]) / "evaluation.json").read_text())
    assert (account["summary"], len(account["run_of_episode"])) == (run["summary"], 5)
    assert all(list(read_run(path).transitions()) for path in run["parts"])
    (loss,) = run["losses"]
    assert "ended in episode" in loss
    assert "killed by signal 9" in loss
    assert loss in stderr
    domains = {int(path.name.removeprefix("domain_")) for path in folder.glob("domain_*")}
    assert domains == {7, 8, 9}  # 7: this process


@pytest.mark.parametrize("backend", ["mujoco", "fake", "unknown"])
def test_default_time_limit_far_exceeds_episode_duration(backend):
    steps_s = ARM.episode.horizon_steps * ARM.control_period_s
    assert 10 * steps_s < longest_episode_s(job(backend=backend)) < math.inf


def test_episode_that_hangs_once_is_repeated_with_same_summary(folder, capsys):
    one = run_evaluate(capsys, arguments(folder, "engine_policies:acting", episodes=2))
    words = ("--engine", "local", "--workers", "1", "--episode-timeout", "2")
    status, run, stderr = run_evaluate(capsys, arguments(folder, "engine_policies:hung_once", *words, episodes=2))
    assert status == 0, stderr
    assert run["summary"] == one[1]["summary"]
    assert "exceeded 2 s" in run["losses"][0]
    assert not [path for path in folder.glob("hung_*") if Path(f"/proc/{path.name[5:]}").exists()]


def test_ctrl_c_ends_a_hung_worker_that_ignores_sigterm(folder):
    began = time.monotonic()
    words = arguments(folder, "engine_policies:hung", "--engine", "local", "--workers", "1", episodes=1)
    parent = subprocess.Popen(
        [sys.executable, "-m", "embodied_env.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while len(pids := [int(path.name.removeprefix("hung_")) for path in folder.glob("hung_*")]) < 1:
        assert time.monotonic() < began + 60.0, parent.communicate()
        time.sleep(0.05)
    asked = time.monotonic()
    parent.send_signal(signal.SIGINT)
    _, stderr = parent.communicate(timeout=60)
    assert (parent.returncode, stderr.splitlines()[-1]) == (130, "embodied-env: interrupted")
    assert time.monotonic() - asked < SHORT_GRACE_S + (asked - began)  # the start time shows how fast the machine is
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("backend", ["fake", "mujoco"])
def test_episode_does_not_depend_on_previous_episodes(tmp_path, backend):
    short = replace(ARM, episode=replace(ARM.episode, horizon_steps=3))
    rows = {}
    for order in ([0, 1, 2, 3], [3, 1], [2, 0]):
        with EpisodeRunner(job(contract=short, backend=backend), [tmp_path]) as run:
            for episode in order:
                run.run(episode)
        for row in read_run(run.recorders[0].path).rows():
            number = row["info"]["episode_index"]
            values = (
                row["observation"],
                row.get("action"),
                row.get("reward"),
                row["info"].get("reset", {}).get("seed_applied"),
            )
            rows.setdefault((number, row["info"]["step_index"]), []).append(values)
    assert {len(values) for values in rows.values()} == {2}
    assert all(first == second for first, second in rows.values())


def test_merged_summary_requires_complete_episodes(tmp_path):
    short = replace(ARM, episode=replace(ARM.episode, horizon_steps=3))
    with EpisodeRunner(job(contract=short), [tmp_path]) as run:
        run.run(0)
    assert merged_summary({0: run.recorders[0].path}, "f")["episodes"] == 1
    with pytest.raises(RecordError, match="episode 1 is incomplete"):
        merged_summary({0: run.recorders[0].path, 1: run.recorders[0].path}, "f")


def test_policy_seeds_differ_by_seed_and_episode():
    assert len({policy_seed(seed, episode) for seed in range(20) for episode in range(20)}) == 400


def test_job_survives_json_round_trip():
    again = EvaluationJob.from_json(json.loads(json.dumps(job().to_json())))
    assert again.contract.fingerprint == ARM.fingerprint
    assert replace(again, contract=ARM) == job()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"backend": "real"}, "backend 'real'"),
        ({"options": {"spawn": False}}, "running simulator"),
        ({"options": {"namespace": "/one"}}, "namespace"),
    ],
)
def test_options_workers_cannot_share_are_rejected(changes, problem):
    with pytest.raises(UsageError, match=problem):
        Engine(2).check(job(**changes))


@pytest.mark.parametrize("workers", [0, 102])
def test_invalid_number_of_workers_is_rejected(workers):
    with pytest.raises(UsageError, match="expected 1 to 101"):
        Engine(workers)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--engine", "cloud"), "unknown --engine 'cloud'"),
        (("--workers", "2"), "--workers 2 requires --engine"),
        (("--episode-timeout", "5"), "--episode-timeout 5.0 requires --engine"),
        (("--engine", "local", "--episode-timeout", "nan"), "episode timeout: nan"),
        (("--engine", "local", "--episode-timeout", "0"), "episode timeout: 0.0"),
        (("--address", "auto"), "--address 'auto' requires --engine ray"),
        (("--address", "auto", "--engine", "local"), "address of the engine 'local': 'auto'"),
    ],
)
def test_usage_error_of_an_engine_is_named(folder, capsys, more, problem):
    status, _, stderr = run_evaluate(capsys, arguments(folder, "hold", *more))
    assert status == 2
    assert problem in stderr
