"""Faults of policies and their servers on the robot emulator, with the published command topic as evidence.

The page docs/reference/policy_server_faults.md lists those of servers; `test_remote_model_faults` has them without ROS, and
`test_robot_backend_faults` some of them in the default run.
"""

import threading
import time

import numpy as np
import pytest
from evidence import assert_sound
from policy_server_faults import FAULTS, StandIn

pytest.importorskip("rclpy", reason="needs rclpy")
pytest.importorskip("websockets", reason="needs websockets")

from remote_policy import PolicyEpisode, RemoteEpisode, check_continuation, check_fault, check_loss
from robot_rig import ENVIRONMENT, Rig

from embodied_env.core.policy import FunctionPolicy, PolicyIdentity
from embodied_env.errors import PolicyError
from embodied_env.policies.chunk_execution import UNDERRUN, ChunkRunner

pytestmark = [pytest.mark.ros, pytest.mark.kills, pytest.mark.realtime, pytest.mark.long]


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy_server_faults")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "ROS_LOG_DIR": str(folder / "log")}.items():
            patch.setenv(name, value)
        rig = Rig(folder)
        yield rig
        rig.close()
    assert_sound(rig.env.path)


@pytest.fixture
def stand_in(tmp_path):
    with StandIn(tmp_path) as stand_in:
        yield stand_in


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_of_a_server_during_asynchronous_chunks(rig, tmp_path, fault, record_property):
    with StandIn(tmp_path, rows=8) as stand_in:
        check_fault(rig, stand_in, fault, record_property, "crossfade")


def test_killed_server_during_asynchronous_chunks(rig, tmp_path, record_property):
    with StandIn(tmp_path, rows=8) as stand_in, RemoteEpisode(rig, stand_in, chunks="crossfade") as remote:
        remote.episode.inject(stand_in.kill)
        check_loss(remote, "connection refused", record_property)
        stand_in.start()
        remote.begin()
        check_continuation(remote)
        remote.episode.inject(stand_in.freeze)
        check_loss(remote, "no ", record_property)  # connection, or answer, in time


class Stumbling:
    """Returns chunks of 8 until it hangs, or becomes slow, at inference `at` of all."""

    def __init__(self):
        self.count, self.at, self.hangs, self.latency_s = 0, 10**9, threading.Event(), 0.0

    def __call__(self, observation):
        self.count += 1
        if self.count >= self.at:
            self.hangs.wait(20.0) if not self.latency_s else time.sleep(self.latency_s)
        return np.repeat([[0.3, 0.0, 0.0, 0.0, 0.0, 0.0]], 8, axis=0)


@pytest.fixture
def stumbling(rig):
    """Return a policy that can hang, and an episode in which the robot moves by its chunks."""
    policy = Stumbling()
    runner = ChunkRunner(
        FunctionPolicy(policy, PolicyIdentity(name="own", format="python")),
        "crossfade",
        pacing="realtime",
        timeout_s=0.5,
    )
    with PolicyEpisode(rig, runner) as episode:
        yield policy, episode
        policy.hangs.set()


@pytest.mark.parametrize("latency_s", [0.0, 0.6])
def test_policy_that_hangs_or_is_slower_than_its_chunk(rig, stumbling, latency_s, record_property):
    policy, remote = stumbling
    policy.latency_s, policy.at = latency_s, policy.count + 2
    remote.episode.inject()
    check_loss(remote, UNDERRUN, record_property)
    expired = remote.episode.rows[-1].info["annotations"]["chunk"]["expired"]
    assert (expired > 0) == (latency_s > 0.0)
    if not latency_s:
        for _ in range(2):
            with pytest.raises(PolicyError, match=r"policy hangs: no answer for 0.5 s"):
                remote.begin()
            check_rest(remote.episode)
    policy.hangs.set()
    policy.at = 10**9
    remote.begin()
    check_continuation(remote)


def test_policy_that_hangs_in_the_first_inference_moves_nothing(rig, stumbling):
    policy, remote = stumbling
    remote.runner.reset(seed=1, episode_index=1)
    policy.at, remote.episode = 0, rig.begin()
    with pytest.raises(PolicyError, match="policy hangs"):
        remote.run(1)
    check_rest(remote.episode)


def check_rest(episode):
    assert all(values == episode.published[0] for values in episode.published)


def test_restarted_server(rig, stand_in):
    with RemoteEpisode(rig, stand_in) as remote:
        restarting = threading.Thread(target=stand_in.restart)
        restarting.start()
        while restarting.is_alive():
            remote.run(1)
        check_continuation(remote)


def test_restarted_server_with_another_model(rig, stand_in, record_property):
    with RemoteEpisode(rig, stand_in) as remote:
        stand_in.set("another_model")
        remote.episode.inject(lambda: stand_in.set("reset"))
        check_loss(remote, "server restarted with other metadata", record_property)
