"""Faults of a policy server on the robot emulator, with the published command topic as evidence.

The page docs/reference/policy_server_faults.md lists them; test/envs has them without ROS, and test_faults.py three of
them in the default run.
"""

from __future__ import annotations

import threading

import pytest
from policy_server_faults import AT_LOAD, FAULTS, StandIn

pytest.importorskip("rclpy", reason="needs rclpy")
pytest.importorskip("websockets", reason="needs websockets")

from remote_policy import RemoteEpisode, check_continuation, check_fault, check_loss
from robot_rig import ARM, ENVIRONMENT, Rig

import embodied_env
from embodied_env.errors import UsageError

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


@pytest.fixture
def stand_in(tmp_path):
    with StandIn(tmp_path) as stand_in:
        yield stand_in


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_of_a_server(rig, stand_in, fault, record_property):
    check_fault(rig, stand_in, fault, record_property)


def test_frozen_server(rig, stand_in, record_property):
    with RemoteEpisode(rig, stand_in) as remote:
        remote.episode.inject(stand_in.freeze)
        check_loss(remote, "no connection in time", record_property)


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


@pytest.mark.parametrize("name", AT_LOAD)
def test_fault_at_load_moves_nothing(rig, stand_in, name):
    episode = rig.begin()
    stand_in.set(name)
    with pytest.raises(UsageError, match=AT_LOAD[name]):
        embodied_env.load_policy(f"openpi://127.0.0.1:{stand_in.port}?connect_timeout_s=0.2", ARM)
    assert all(values == episode.published[0] for values in episode.published)
