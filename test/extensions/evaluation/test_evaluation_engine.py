"""``embodied-env evaluate --engine local``: workers give the results of one process."""

from __future__ import annotations

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
from embodied_env.errors import BackendError, BackendNotReadyError, PolicyError, RecordError, UsageError
from embodied_env.extensions.evaluation.episode_runner import EpisodeRunner, EvaluationJob, PolicySource, policy_seed
from embodied_env.extensions.evaluation.evaluation_engine import (
    MOST_ATTEMPTS,
    Engine,
    EpisodeScheduler,
    domain_ids,
    longest_episode_s,
    merged_summary,
)
from embodied_env.extensions.evaluation.local_workers import SHORT_GRACE_S, LocalWorker
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
    values = {
        "contract": ARM,
        "backend": "fake",
        "policies": (PolicySource(address="random"),),
        "seed": 3,
        "options": {"clock": "virtual"},
    }
    return EvaluationJob(**(values | changes))


def test_workers_give_same_summary_as_one_process(folder, capsys):
    one = run_evaluate(capsys, arguments(folder, "random"))
    two = run_evaluate(capsys, arguments(folder, "random", "--engine", "local", "--workers", "2"))
    assert (one[0], two[0]) == (0, 0)
    assert two[1]["summary"] == one[1]["summary"]
    assert two[1]["parts"]
    assert all(read_run(path).clean and list(read_run(path).transitions()) for path in two[1]["parts"])
    account = json.loads((Path(two[1]["path"]) / "evaluation.json").read_text())
    assert account["summary"] == one[1]["summary"]
    assert len(account["run_of_episode"]) == 5


def test_episode_of_killed_worker_is_repeated_and_reported(folder, capsys):
    one = run_evaluate(capsys, arguments(folder, "engine_policies:acting"))
    status, run, stderr = run_evaluate(
        capsys, arguments(folder, "engine_policies:killed_once", "--engine", "local", "--workers", "2")
    )
    assert status == 0
    assert run["summary"] == one[1]["summary"]
    (loss,) = run["losses"]
    assert "ended in episode" in loss
    assert "killed by signal 9" in loss
    assert loss in stderr
    domains = {int(path.name.removeprefix("domain_")) for path in folder.glob("domain_*")}
    assert domains == {7, 8, 9}  # 7: this process


class FakePool:
    """A pool that only records calls; each worker ends with the same output."""

    def __init__(self):
        self.started, self.reaped = [], []

    def start(self, number, domain_id):
        self.started.append((number, domain_id))

    def reap(self, worker, *, grace_s=0.0):
        self.reaped.append(worker)
        return "killed by signal 9"

    def idle(self):
        return []


class FakeChild:
    def note_shared_memory(self):
        pass


@pytest.fixture
def scheduler(monkeypatch):
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    return EpisodeScheduler(trials=1, workers=1, ended=lambda _: None, limit_s=60.0)


def test_episode_that_kills_every_worker_raises(scheduler):
    pool = FakePool()
    for _ in range(MOST_ATTEMPTS - 1):
        worker = LocalWorker(number=0, child=FakeChild())
        scheduler._handle(pool, worker, {"worker": 0})
        scheduler._handle(pool, worker, None)
    worker = LocalWorker(number=0, child=FakeChild())
    scheduler._handle(pool, worker, {"worker": 0})
    with pytest.raises(BackendError, match=r"episode 0 failed: .* in 3 attempts: killed by signal 9"):
        scheduler._handle(pool, worker, None)
    assert pool.started == [(0, 8), (0, 8)]


def test_workers_that_never_start_raise(scheduler):
    pool = FakePool()
    for _ in range(MOST_ATTEMPTS - 1):
        scheduler._handle(pool, LocalWorker(number=0, child=FakeChild()), None)
    with pytest.raises(BackendNotReadyError, match="in 3 attempts"):
        scheduler._handle(pool, LocalWorker(number=0, child=FakeChild()), None)


def test_worker_error_is_raised_with_its_output_as_note(scheduler):
    worker = LocalWorker(number=0, child=FakeChild())
    with pytest.raises(PolicyError, match="out of ideas") as raised:
        scheduler._handle(FakePool(), worker, {"failed": "PolicyError", "message": "out of ideas"})
    assert "killed by signal 9" in raised.value.__notes__[0]


class HungPool(FakePool):
    """A pool whose workers get their episodes immediately; those in `hangs` never end. Each `receive` takes 10 s."""

    def __init__(self, hangs):
        super().__init__()
        self.hangs, self.now_s, self.workers, self.is_shut_down = hangs, 0.0, [], False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def start(self, number, domain_id):
        super().start(number, domain_id)
        self.workers.append(LocalWorker(number=number, child=FakeChild()))
        self.workers[-1].messages = [{"worker": number}, {"ready": f"run_{len(self.started)}"}]

    def busy(self):
        return [worker for worker in self.workers if worker.trial is not None]

    def reap(self, worker, *, grace_s):
        self.workers.remove(worker)
        self.graces = [*getattr(self, "graces", []), grace_s]
        return super().reap(worker)

    def receive(self):
        self.now_s += 10.0
        for worker in list(self.workers):
            if worker.messages:
                yield worker, worker.messages.pop(0)
            elif worker.trial is not None and worker.trial not in self.hangs:
                yield worker, {"ended": worker.trial}

    def shutdown(self):
        self.is_shut_down = True


def finished(monkeypatch, pool, *, episodes=3):
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    run = EpisodeScheduler(episodes, 1, lambda _: None, limit_s=60.0, now_s=lambda: pool.now_s)
    run.run(pool)
    return run


def test_hung_worker_is_replaced_until_last_attempt(monkeypatch):
    pool = HungPool(hangs={1})
    run = finished(monkeypatch, pool)
    assert sorted(run.where) == [0, 2]
    assert run.abandoned == {1}
    assert len(pool.reaped) == MOST_ATTEMPTS
    assert set(pool.graces) == {SHORT_GRACE_S}
    assert pool.is_shut_down
    assert "episode 1" in run.not_evaluated(run.abandoned)
    assert len(run.losses) == MOST_ATTEMPTS


def test_episode_time_limit_starts_when_environment_is_ready(monkeypatch):
    pool = HungPool(hangs={0})
    finished(monkeypatch, pool, episodes=1)
    assert pool.now_s == MOST_ATTEMPTS * (20.0 + 60.0 + 10.0)  # two messages, the limit, and the poll that detects it


def test_timely_workers_are_not_replaced(monkeypatch):
    pool = HungPool(hangs=set())
    assert finished(monkeypatch, pool, episodes=40).abandoned == set()
    assert pool.reaped == []


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


@pytest.mark.long
def test_episode_that_always_hangs_is_not_evaluated_and_exits_1(folder, capsys):
    words = ("--engine", "local", "--workers", "1", "--episode-timeout", "2")
    status, run, stderr = run_evaluate(capsys, arguments(folder, "engine_policies:hung", *words, episodes=1))
    assert status == 1
    assert "not evaluated: episode 0" in stderr
    assert run["summary"]["episodes"] == 0
    account = json.loads((Path(run["path"]) / "evaluation.json").read_text())
    assert (account["not_evaluated"], account["run_of_episode"]) == ([0], [None])
    assert len(list(folder.glob("hung_*"))) == MOST_ATTEMPTS


def test_ctrl_c_ends_hung_workers_that_ignore_sigterm(folder):
    began = time.monotonic()
    words = arguments(folder, "engine_policies:hung", "--engine", "local", "--workers", "2", episodes=2)
    parent = subprocess.Popen(
        [sys.executable, "-m", "embodied_env.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while len(pids := [int(path.name.removeprefix("hung_")) for path in folder.glob("hung_*")]) < 2:
        assert time.monotonic() < began + 60.0, parent.communicate()
        time.sleep(0.05)
    asked = time.monotonic()
    parent.send_signal(signal.SIGINT)
    _, stderr = parent.communicate(timeout=60)
    assert (parent.returncode, stderr.splitlines()[-1]) == (130, "embodied-env: interrupted")
    assert time.monotonic() - asked < SHORT_GRACE_S + (asked - began)  # the start time shows how fast the machine is
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.long
def test_ctrl_c_ends_all_workers_and_closes_their_runs(folder):
    words = arguments(folder, "engine_policies:slow", "--engine", "local", "--workers", "2", episodes=500)
    parent = subprocess.Popen(
        [sys.executable, "-m", "embodied_env.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 60.0
    while len(pids := [int(path.name.removeprefix("slow_")) for path in folder.glob("slow_*")]) < 2:
        assert time.monotonic() < end, parent.communicate()
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)
    _, stderr = parent.communicate(timeout=60)
    assert (parent.returncode, stderr.splitlines()[-1]) == (130, "embodied-env: interrupted")
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    runs = [read_run(path.parent) for path in (folder / "runs").rglob("manifest.json")]
    assert [run.problem for run in runs] == ["", ""]
    assert all(list(run.resets()) for run in runs)


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
    with EpisodeRunner(job(), [tmp_path]) as run:
        run.run(0)
    assert merged_summary({0: run.recorders[0].path}, "f")["episodes"] == 1
    with pytest.raises(RecordError, match="episode 1 is incomplete"):
        merged_summary({0: run.recorders[0].path, 1: run.recorders[0].path}, "f")


@pytest.mark.parametrize(("count", "own"), [(1, 0), (4, 0), (4, 99), (101, 50), (3, 230)])
def test_worker_domains_are_distinct_and_exclude_own(count, own):
    found = domain_ids(count, own)
    assert len(set(found)) == len(found) == count
    assert own not in found
    assert all(0 <= number < 102 for number in found)


def test_policy_seeds_differ_by_seed_and_episode():
    assert len({policy_seed(seed, episode) for seed in range(20) for episode in range(20)}) == 400


def test_job_survives_json_round_trip():
    again = EvaluationJob.from_json(json.loads(json.dumps(job().to_json())))
    assert again.contract.fingerprint == ARM.fingerprint
    assert replace(again, contract=ARM) == job()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"backend": "real"}, "--backend real"),
        ({"options": {"spawn": False}}, "--attach"),
        ({"options": {"namespace": "/one"}}, "--namespace"),
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
        (("--engine", "local", "--episode-timeout", "nan"), "--episode-timeout: nan"),
        (("--engine", "local", "--episode-timeout", "0"), "--episode-timeout: 0.0"),
        (("--address", "auto"), "--address 'auto' requires --engine ray"),
        (("--address", "auto", "--engine", "local"), "--address 'auto' requires --engine ray"),
    ],
)
def test_usage_error_of_an_engine_is_named(folder, capsys, more, problem):
    status, _, stderr = run_evaluate(capsys, arguments(folder, "hold", *more))
    assert status == 2
    assert problem in stderr
