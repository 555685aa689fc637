"""Fixtures of the tests on a Gazebo server (pytest -m gazebo, with gz and ros_gz_bridge), and of its stand-ins."""

import importlib
import os
import shutil
import sys
from pathlib import Path

import pytest
import ros_domains
from gazebo_server import GazeboServer

import embodied_env

_STAND_IN = Path(__file__).parent / "support" / "mujoco_as_gazebo.py"
_DRAFTED = Path(__file__).parent / "support" / "drafted_stand_in.py"
_SERVERS = {
    "arm_reach": f"exec {sys.executable} {_STAND_IN}",
    # the last argument is the world, next to which are the drafted contract and its bridge
    "drafted": f'w="${{@: -1}}"; exec {sys.executable} {_DRAFTED} "${{w%.sdf}}".yaml "${{w%.sdf}}".bridge.yaml',
}
_PROGRAMS = {
    "lib/ros_gz_bridge/parameter_bridge": "exec sleep 1000",
    "lib/robot_state_publisher/robot_state_publisher": "exec sleep 1000",
    "lib/controller_manager/spawner": "exit 0",
}
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
    """A running server for all tests of a contract, whose end leaves no process."""
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


@pytest.fixture
def gazebo_programs(request, tmp_path, monkeypatch, message_package):
    """Install stand-ins for the programs of Gazebo, for the child processes of the test."""
    message_package("ros_gz_interfaces")
    server = _SERVERS[getattr(request, "param", "arm_reach")]
    gz = f'[ "$2" = --versions ] && {{ echo 8.14.0; exit; }}\n{server}'
    for name, lines in {"bin/gz": gz, **_PROGRAMS}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/bash\n{lines}\n")
        file.chmod(0o755)
    generated = Path(importlib.import_module("ros_gz_interfaces").__file__).parents[1]
    for name, path in {"PATH": tmp_path / "bin", "PYTHONPATH": generated, "AMENT_PREFIX_PATH": tmp_path}.items():
        monkeypatch.setenv(name, os.pathsep.join(filter(None, [str(path), os.environ.get(name)])))
