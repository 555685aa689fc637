"""The engine ``ray`` is tested without Ray, with hosts in this process and a spy in place of `ray`."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import embodied_env
from embodied_env.errors import BackendNotReadyError, MissingDependencyError, RecordError, UsageError
from embodied_env.extensions.evaluation.episode_runner import EvaluationJob, PolicySource
from embodied_env.extensions.evaluation.evaluation import evaluate
from embodied_env.extensions.evaluation.evaluation_engine import Engine
from embodied_env.extensions.ray import ray_workers
from embodied_env.extensions.ray.ray_workers import HostLostError, RayCluster, RayWorkers, WorkerHost, describe_worker
from embodied_env.record import read_run

ARM = embodied_env.load_contract("arm_reach")
SHORT = replace(ARM, episode=replace(ARM.episode, horizon_steps=4))
VALUES: dict = {"contract": SHORT, "backend": "fake", "policies": (PolicySource(address="random"),), "seed": 3}


class FakeCluster:
    """Hosts in this process that run each task when its result is awaited.

    One host can be lost when it receives a task.
    """

    def __init__(self, *, loses=0):
        self.loses, self.turn = loses, -1
        self.hosts, self.lost, self.killed = [], [], []
        self.is_joined = False

    def __enter__(self):
        self.is_joined = True
        return self

    def __exit__(self, kind, error, trace):
        self.is_joined = False

    def start_actor(self, actor, description):
        self.hosts.append(actor(description))
        return self.hosts[-1]

    def call(self, handle, method, *arguments, **named):
        return {"host": handle, "do": lambda: getattr(handle, method)(*arguments, **named), "work": any(arguments)}

    def ready(self, promises, timeout_s):
        self.turn += 1
        promise = promises[self.turn % len(promises)]
        host = promise["host"]
        if host not in self.lost:
            promise["answer"] = promise["do"]()
            if self.loses and promise["work"]:
                self.loses -= 1
                self.lost.append(host)
                host.end(at_once=True, grace_s=5.0)  # a worker ends with its host
        return [promise]

    def answer(self, promise):
        if promise["host"] in self.lost:
            raise HostLostError("its node is gone")
        return promise["answer"]

    def kill(self, handle):
        self.killed.append(handle)

    def room(self):
        return "0 of its 2 CPUs are free"


def job(**changes):
    return EvaluationJob(**(VALUES | {"options": {"clock": "virtual"}} | changes))


def on(cluster, tmp_path, **more):
    (result,) = Engine(2, cluster).evaluate(
        more.pop("job", job()), **({"episodes": 4, "out": tmp_path / "runs", "ended": lambda _: None} | more)
    )
    return result


def test_cluster_workers_give_same_summary_as_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    cluster = FakeCluster()
    done = on(cluster, tmp_path)
    assert done.summary == evaluate(**VALUES, episodes=4, record=tmp_path, clock="virtual").results[0].summary
    assert (done.problem, done.losses) == ("", ())
    assert [host._description["domain_id"] for host in cluster.hosts] == [8, 9]
    assert not cluster.is_joined
    assert [path.name for path in done.path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.long
def test_episode_of_lost_host_is_repeated_and_reported(tmp_path):
    cluster = FakeCluster(loses=1)
    done = on(cluster, tmp_path)
    assert done.summary == evaluate(**VALUES, episodes=4, record=tmp_path, clock="virtual").results[0].summary
    (loss,) = done.losses
    assert "was repeated" in loss
    assert "its node is gone" in loss
    assert len(cluster.hosts) == 3
    assert cluster.lost[0] in cluster.killed  # its slot is free again


def test_interrupt_closes_runs_and_leaves_cluster(tmp_path):
    def interrupted(_):
        raise KeyboardInterrupt

    cluster = FakeCluster()
    with pytest.raises(KeyboardInterrupt):
        on(cluster, tmp_path, ended=interrupted)
    assert not cluster.is_joined
    assert set(cluster.killed) == set(cluster.hosts)
    runs = [read_run(path.parent) for path in tmp_path.rglob("manifest.json")]
    assert [run.problem for run in runs] == [""] * len(runs) != []


def test_cluster_without_free_cpus_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_workers, "PLACING_S", 0.0)
    cluster = FakeCluster()
    cluster.ready = lambda *_: []
    with pytest.raises(BackendNotReadyError, match="within 0 s: 0 of its 2 CPUs are free"):
        on(cluster, tmp_path)
    assert not cluster.is_joined


def test_unwritable_folder_is_found_before_joining(tmp_path):
    cluster: Any = FakeCluster()
    team = RayWorkers(job(), tmp_path / "absent", cluster)
    with pytest.raises(RecordError, match="cannot write to"), team:
        pass
    assert not cluster.is_joined


@pytest.mark.parametrize(
    ("changes", "problem"), [({"version": "0.0.1"}, "expected 0.0.1"), ({"token": "absent"}, "no run folder")]
)
def test_incompatible_node_is_reported(tmp_path, changes, problem):
    (tmp_path / "token").touch()
    host = WorkerHost(describe_worker(job(), tmp_path, "token", 0, 8) | changes)
    (output,) = host.exchange([])
    assert output["failed"] == UsageError.__name__
    assert problem in output["message"]


class RaySpy:
    """Records the calls of `RayCluster` to ray."""

    class exceptions:  # noqa: N801 - ray's name
        class RayError(Exception):
            pass

    def __init__(self, *, initialized=False, fails=None):
        self.initialized, self.fails = initialized, fails
        self.asked, self.shutdowns = [], 0

    def is_initialized(self):
        return self.initialized

    def init(self, **options):
        self.asked.append(options)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # like ray
        if self.fails is not None:
            raise self.fails

    def shutdown(self):
        self.shutdowns += 1


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    spy = RaySpy()
    monkeypatch.setitem(sys.modules, "ray", spy)
    handler = signal.getsignal(signal.SIGTERM)
    yield spy
    signal.signal(signal.SIGTERM, handler)


def test_new_cluster_is_started_without_address_and_cleaned_up(ray):
    with RayCluster(3):
        (asked,) = ray.asked
        folder = Path(asked["_temp_dir"])
        assert (asked["address"], asked["num_cpus"], asked["include_dashboard"]) == ("local", 3, False)
        assert folder.is_dir()
    assert ray.shutdowns == 1
    assert not folder.exists()


@pytest.mark.parametrize("by_variable", [False, True])
def test_running_cluster_is_joined_without_options(ray, monkeypatch, by_variable):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address if by_variable else "of another")
        with RayCluster(3, None if by_variable else address):
            pass
    (asked,) = ray.asked
    assert asked["address"] == address
    assert not {"num_cpus", "_temp_dir", "object_store_memory"} & set(asked)


def test_already_joined_cluster_is_left_running(ray):
    ray.initialized = True
    with RayCluster(3):
        pass
    assert (ray.asked, ray.shutdowns) == ([], 0)


def test_cluster_that_cannot_be_joined_is_named(ray):
    ray.fails = ConnectionError("no token")
    with pytest.raises(BackendNotReadyError, match="Ray cluster auto: no token"):
        RayCluster(1, "auto").__enter__()
    assert ray.shutdowns == 1


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_rejected_address_is_named_immediately(ray, scheme):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(BackendNotReadyError, match=f"Ray cluster {address}: .*refused"):
        RayCluster(1, address).__enter__()
    assert ray.asked == []


def test_sigterm_handler_is_kept(ray):
    def ours(number, frame):
        pass

    signal.signal(signal.SIGTERM, ours)
    with RayCluster(1):
        assert signal.getsignal(signal.SIGTERM) is ours


def test_ray_output_goes_to_stderr(ray, capsys):
    with RayCluster(1):
        print("of a lost actor")
    print("ours")
    output = capsys.readouterr()
    assert output.out == "ours\n"
    assert "of a lost actor" in output.err


def test_lost_actor_raises_host_lost_without_guesses(ray):
    class ActorDied(RaySpy.exceptions.RayError):
        pass

    def get(promise):
        raise ActorDied("The actor died.\n\nSome common causes include: many")

    ray.get = get
    ray.exceptions = SimpleNamespace(RayError=RaySpy.exceptions.RayError, RayTaskError=type("T", (Exception,), {}))
    with pytest.raises(HostLostError, match=r"^The actor died\.$"):
        RayCluster(1).answer("promise")


def test_missing_ray_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"engine 'ray' needs ray.*\[scale\]"):
        RayCluster(2)


# ----------------------------------------------------------------------------------------------------------------- home


pytest.importorskip("ray", reason="needs ray: install the extra scale")

SCRIPT = """
import json, os, pathlib, sys
from embodied_env.extensions.ray.ray_workers import RayCluster

before = set(os.environ)
seen = []
for _ in range(2):  # Ray keeps the token that it reads first
    with RayCluster(1):
        seen.append(pathlib.Path(os.environ["RAY_AUTH_TOKEN_PATH"]).stat().st_mode & 0o777)
ours = {"RAY_AUTH_TOKEN_PATH", "RAY_USAGE_STATS_ENABLED"}
print(json.dumps({"modes": seen, "left": sorted(ours & set(os.environ) - before)}))
"""


@pytest.mark.long
def test_new_cluster_keeps_its_token_in_a_separate_folder(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="ee_") as temporary:  # tmp_path is too long for socket names
        surroundings = {**kept, "HOME": str(tmp_path), "TMPDIR": temporary}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=surroundings, capture_output=True, text=True, timeout=120, check=False
        )
        left = list(Path(temporary).iterdir())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"modes": [0o600, 0o600], "left": []}
    assert list(tmp_path.iterdir()) == []
    assert left == []
