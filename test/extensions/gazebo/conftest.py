"""Tests on a real Gazebo server: pytest -m gazebo -n 0 test/gazebo. They need gz, ros_gz_bridge and ros2_control."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import ros_domains
from gazebo_server import GazeboServer

import embodied_env

CONTRACTS = ("arm_reach", "cart_goal", "door_open")


def _missing():
    prefixes = [Path(each) for each in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if each]
    if not any((prefix / "lib" / "ros_gz_bridge" / "parameter_bridge").is_file() for prefix in prefixes):
        return "ros_gz_bridge"
    return "" if shutil.which("gz") else "gz"


def pytest_collection_modifyitems(items):
    if missing := _missing():
        for item in items:
            if item.get_closest_marker("gazebo"):
                item.add_marker(pytest.mark.skip(reason=f"needs {missing}: source ROS 2 with ros_gz"))


@pytest.fixture(scope="module", params=CONTRACTS)
def server(request, tmp_path_factory):
    """A running server for all tests of a contract; its end leaves no process."""
    log = tmp_path_factory.mktemp(request.param) / "launch.log"
    server = GazeboServer(contract=request.param, domain_id=ros_domains.FOR_MODULES, log=log)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def env(server):
    """An environment of the contract on the server, for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        made = embodied_env.make(server.contract, backend="gazebo", domain_id=server.domain_id, reset_timeout_s=90.0)
        made.reset(seed=0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(server):
    """The same contract in MuJoCo."""
    made = embodied_env.make(server.contract, backend="mujoco")
    yield made
    made.close()
