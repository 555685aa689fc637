"""Real Ray runs in separate processes, and takes several seconds to start."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import embodied_env
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.record import read_run

pytest.importorskip("ray", reason='needs Ray: pip install "embodied_env[scale]"')
pytestmark = pytest.mark.long

ARM = embodied_env.load_contract("arm_reach")
POLICIES = """
import os, pathlib, time

HERE = pathlib.Path(__file__).parent

def slow(observation):
    (HERE / f"slow_{os.getpid()}").touch()
    time.sleep(0.02)
    return 0.1 * observation["target_position"].repeat(2)
"""
EXISTING = """
import sys, ray
context = ray.init(num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[1], log_to_driver=False)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
print(ray.cluster_resources()["CPU"], flush=True)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "ray_policies.py").write_text(POLICIES)
    (tmp_path / "short.yaml").write_text(dump_contract(replace(ARM, episode=replace(ARM.episode, horizon_steps=40))))
    package = Path(embodied_env.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(package), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


def begun(folder, policy, *more, episodes=5, backend="mujoco"):
    kind = ("--backend", backend, "--clock", "virtual", "--seed", "3", "--json", "--out", str(folder / "runs"))
    words = ["evaluate", str(folder / "short.yaml"), "--policy", policy, "--episodes", str(episodes), *kind, *more]
    return subprocess.Popen(
        [sys.executable, "-m", "embodied_env.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def result(process):
    out, output = process.communicate(timeout=180)
    return process.returncode, json.loads(out)["runs"][0] if out else None, output


def evaluated(folder, policy, *more, **options):
    return result(begun(folder, policy, *more, **options))


def at_work(folder, process):
    """Wait until both workers are running, and return every process below `process`."""
    end = time.monotonic() + 90.0
    while len(list(folder.glob("slow_*"))) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    return psutil.Process(process.pid).children(recursive=True)


def workers(folder):
    return [int(path.name.removeprefix("slow_")) for path in folder.glob("slow_*")]


def all_gone(processes, patience_s=20.0):
    gone, left = psutil.wait_procs(processes, timeout=patience_s)
    return bool(gone) and not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


def rows_by_step(run):
    """Return the content of each row by episode and step, without times and workers."""
    rows = [row for path in run.get("parts", [run["path"]]) for row in read_run(path).rows()]
    return {
        (row["info"]["episode_index"], row["info"]["step_index"]): (
            row["observation"],
            row.get("action"),
            row.get("reward"),
            row["info"]["end_reason"],
        )
        for row in rows
    }


def test_ray_gives_summary_and_rows_of_local_engine(folder):
    local = evaluated(folder, "random", "--engine", "local", "--workers", "2")
    ray = evaluated(folder, "random", "--engine", "ray", "--workers", "2")
    assert (local[0], ray[0]) == (0, 0), ray[2]
    assert outcome(ray[1]["summary"]) == outcome(local[1]["summary"])
    assert rows_by_step(ray[1]) == rows_by_step(local[1])
    assert len(ray[1]["parts"]) == 2


@pytest.mark.kills
@pytest.mark.parametrize("victim", ["actor", "worker"])
def test_killed_actor_or_worker_is_replaced(folder, victim):
    one = evaluated(folder, "ray_policies:slow")
    for path in folder.glob("slow_*"):
        path.unlink()
    process = begun(folder, "ray_policies:slow", "--engine", "ray", "--workers", "2")
    below = at_work(folder, process)
    if victim == "worker":
        os.kill(workers(folder)[0], signal.SIGKILL)
    else:
        next(child for child in below if "ray::Host" in " ".join(child.cmdline())).kill()
    status, run, output = result(process)
    assert status == 0, output
    assert outcome(run["summary"]) == outcome(one[1]["summary"])
    (loss,) = run["losses"]
    assert "was repeated" in loss
    assert loss in output
    assert all_gone(below)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_closes_runs_and_leaves_no_process_or_file(folder, number):
    before = set(Path(tempfile.gettempdir()).glob("ee_ray_*"))
    process = begun(folder, "ray_policies:slow", "--engine", "ray", "--workers", "2", episodes=500)
    below = at_work(folder, process)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    _, output = process.communicate(timeout=90)
    assert process.returncode == 128 + number, output
    assert all_gone(below)
    assert set(Path(tempfile.gettempdir()).glob("ee_ray_*")) <= before
    runs = [read_run(path.parent) for path in (folder / "runs").rglob("manifest.json")]
    assert [run.problem for run in runs] == ["", ""]


def test_running_cluster_is_used_and_left_running(folder, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # a cluster's own folder is where its owner has put it
    with tempfile.TemporaryDirectory(prefix="ee_test_", ignore_cleanup_errors=True) as temporary:
        cluster = subprocess.Popen(
            [sys.executable, "-c", EXISTING, temporary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            address = cluster.stdout.readline().strip()
            below = psutil.Process(cluster.pid).children(recursive=True)
            servers = [child for child in below if child.name() in ("gcs_server", "raylet")]
            assert len(servers) == 2
            one = evaluated(folder, "random", "--engine", "local", "--workers", "2")
            ray = evaluated(folder, "random", "--engine", "ray", "--workers", "2", "--address", address)
            assert ray[0] == 0, ray[2]
            assert outcome(ray[1]["summary"]) == outcome(one[1]["summary"])
            assert all(child.is_running() for child in servers)
            assert not workers_below(cluster)
        finally:
            output, _ = cluster.communicate("", timeout=60)
    assert output.strip() == "2.0"


@pytest.mark.ros
def test_ray_workers_over_ros_give_outcome_of_one_process(folder):
    one = evaluated(folder, "scripted", backend="mujoco_ros")
    ray = evaluated(folder, "scripted", "--engine", "ray", "--workers", "2", backend="mujoco_ros")
    assert ray[0] == 0, ray[2]
    assert outcome(ray[1]["summary"]) == outcome(one[1]["summary"])
    manifests = [json.loads((Path(path) / "manifest.json").read_text()) for path in ray[1]["parts"]]
    assert len({process["pid"] for manifest in manifests for process in manifest["processes"]}) == 4


def workers_below(process):
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # Ray ends its own processes at its own time
            found += ["embodied_env.extensions.evaluation.evaluation_worker" in " ".join(child.cmdline())]
    return any(found)


def outcome(summary):
    """Return everything but latencies, which depend on the machine."""
    return {key: value for key, value in summary.items() if key != "latency"}
