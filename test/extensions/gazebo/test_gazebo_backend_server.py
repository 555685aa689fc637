"""Gazebo servers that a vector environment starts are stand-ins with the physics of MuJoCo, over real DDS."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import ros_domains

pytest.importorskip("rclpy", reason="needs rclpy")

import embodied_env
from embodied_env.errors import MissingDependencyError
from embodied_env.extensions.gazebo.gazebo_backend import _claim_domain

pytestmark = [pytest.mark.ros, pytest.mark.kills]

OF_PARENT = """
import sys, time, embodied_env
env = embodied_env.make("arm_reach", backend="gazebo", launch=True, domain_id=int(sys.argv[1]))
env.reset(seed=0)
print("ready", flush=True)
time.sleep(100)
"""


def servers(domain_id):
    """Return the processes of the servers that were started in a domain, by partition."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            settings = process.environ()
            partition = settings.get("GZ_PARTITION", "")
            if partition.startswith("embodied_env_") and settings["ROS_DOMAIN_ID"] == str(domain_id):
                found.setdefault(partition, []).append(process)
    return found


@pytest.fixture
def vector(gazebo_programs):
    domains = [next(ros_domains.FOR_TESTS) for _ in range(2)]
    slots = [{"domain_id": domain_id} for domain_id in domains]
    env = embodied_env.make_vec("arm_reach", num_envs=2, backend="gazebo", launch=True, per_slot=slots)
    yield env, domains
    env.close()
    assert [servers(domain_id) for domain_id in domains] == [{}, {}]


@pytest.mark.needs("vector")
def test_each_slot_has_a_server_in_its_own_domain_and_partition(vector):
    env, domains = vector
    env.reset(seed=0)
    for _ in range(5):
        *_, truncations, infos = env.step(np.zeros(env.action_space.shape))
        assert not truncations.any(), infos["end_reason"]
    partitions = [list(servers(domain_id)) for domain_id in domains]
    assert [len(each) for each in partitions] == [1, 1]
    assert partitions[0] != partitions[1]


@pytest.mark.needs("vector")
@pytest.mark.long
def test_a_killed_server_truncates_its_own_slot_and_is_restarted(vector):
    env, domains = vector
    env.reset(seed=0)
    still = np.zeros(env.action_space.shape)
    (before,) = servers(domains[0])
    for process in servers(domains[0])[before]:
        process.kill()
    *_, truncations, infos = env.step(still)
    assert truncations.tolist() == [True, False], infos["end_reason"]
    env.step(still)
    *_, truncations, infos = env.step(still)
    assert not truncations.any()
    (after,) = servers(domains[0])
    assert after != before
    assert [processes[0]["starts"] for processes in env.call("processes")] == [2, 1]
    assert infos["step_index"].tolist() == [1, 3]


@pytest.mark.long
def test_a_server_that_ends_during_a_reset_is_started_once_more(gazebo_programs, domain_id, close_later):
    env = close_later(embodied_env.make("arm_reach", backend="gazebo", launch=True, domain_id=domain_id))
    env.reset(seed=0)
    (processes,) = servers(domain_id).values()
    (gazebo,) = [process for process in processes if "mujoco_as_gazebo.py" in " ".join(process.cmdline())]
    gazebo.suspend()
    killer = threading.Timer(0.5, gazebo.kill)
    killer.start()
    env.reset(seed=1)
    killer.join()
    assert [process["starts"] for process in env.processes()] == [2]
    assert env.step(np.zeros(6))[-1]["end_reason"] == ""


@pytest.mark.long
def test_no_process_outlives_a_killed_parent(gazebo_programs, domain_id):
    parent = subprocess.Popen([sys.executable, "-c", OF_PARENT, str(domain_id)], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout.readline() == "ready\n"
        assert servers(domain_id)
        os.kill(parent.pid, signal.SIGKILL)
    end = time.monotonic() + 30.0
    while servers(domain_id) and time.monotonic() < end:
        time.sleep(0.1)
    assert servers(domain_id) == {}


@pytest.mark.needs("vector")
def test_without_gazebo_the_error_contains_the_apt_package(monkeypatch):
    monkeypatch.setenv("PATH", "")
    env = embodied_env.make_vec("arm_reach", num_envs=2, backend="gazebo", launch=True)
    with contextlib.closing(env), pytest.raises(MissingDependencyError, match=r"ros-[a-z]+-ros-gz"):
        env.reset()


def test_two_claims_are_two_domains():
    claims = [_claim_domain() for _ in range(2)]
    for _, claim in claims:
        claim.close()
    assert claims[0][0] != claims[1][0]
