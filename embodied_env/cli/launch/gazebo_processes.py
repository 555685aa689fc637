"""Start the server of Gazebo with its bridge, robot description and controllers."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from embodied_env.cli.launch.launch_arguments import Values, file_of
from embodied_env.contract.contract_loader import find_contract, load_contract
from embodied_env.errors import MissingDependencyError, UsageError
from embodied_env.processes.child_process import ProcessSpec
from embodied_env.ros.transport.fastdds import profile_environment
from embodied_env.ros.transport.setup_checks import apt_package

_NODE_NAME = re.compile(r"^(\w+):", re.MULTILINE)  # in a parameter file
_MANAGER = "controller_manager"
_PLUGIN_PATH = "GZ_SIM_SYSTEM_PLUGIN_PATH"
_SIM_TIME = ("--ros-args", "-p", "use_sim_time:=true")
# Controllers become active as simulated time passes, but the server is paused until it is stepped. By default, the
# spawner gives up after three service calls of 10 s.
_SWITCH_TIMEOUT_S = 60
_SWITCH_TIMEOUT_BY_HAND_S = 3600  # if no process of this launch steps the server
_REPLY_S = 5
_FASTEST = 1000.0  # largest real-time factor
_UNLIMITED_HZ = 1e9  # physics steps per second that no server reaches


def gazebo_processes(values: Values, *, is_stepped: bool) -> Iterator[ProcessSpec]:
    """Yield the server of Gazebo, its bridge, and the controllers of a world.

    Only a world with files for controllers has them. `is_stepped`: a process of this launch steps the server, which
    starts paused.
    """
    contract = find_contract(values["contract"])
    world = file_of(values, "world", contract.parent / "gazebo" / f"{contract.stem}.sdf")
    # path of Gazebo systems in ROS packages, as in the launch file of ros_gz_sim
    folders = [os.environ.get(name, "") for name in (_PLUGIN_PATH, "LD_LIBRARY_PATH")]
    server = ["env", f"{_PLUGIN_PATH}={os.pathsep.join(filter(None, folders))}", "gz", "sim"]
    server += ["-s", "--headless-rendering"] if values["headless"] == "true" else []
    server += _update_rate(values)
    yield ProcessSpec(
        role="gazebo",
        arguments=(*server, *shlex.split(values["gz_args"]), str(world)),  # without -r: it starts paused
        folder=str(world.parent),  # the world refers to files next to it
    )
    topics = file_of(values, "bridge", world.parent / f"{world.stem}.bridge.yaml")
    bridge = _ros_program("bridge", "ros_gz_bridge", "parameter_bridge", "--ros-args", "-p", f"config_file:={topics}")
    yield with_large_segments(bridge, values)
    yield from _ros2_control(world, _SWITCH_TIMEOUT_S if is_stepped else _SWITCH_TIMEOUT_BY_HAND_S)


def _update_rate(values: Values) -> list[str]:
    """Return the gz sim option in physics steps per second of wall time, 0 for no limit."""
    if not (text := values["real_time_factor"]):
        return []
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0.0 <= factor <= _FASTEST:
        raise UsageError(f"invalid argument: real_time_factor:={text} (expected a number from 0 to {_FASTEST:g})")
    step_s = load_contract(values["contract"]).backends.get("gazebo", {}).get("step_s", 0.0)
    if factor and not (isinstance(step_s, float) and step_s > 0.0):
        raise UsageError(
            f"no backends.gazebo.step_s in {values['contract']} (expected one for real_time_factor:={text})"
        )
    return ["-z", str(factor / step_s if factor else _UNLIMITED_HZ)]


def _ros2_control(world: Path, switch_timeout_s: int) -> Iterator[ProcessSpec]:
    """Yield the robot description and the controller spawner, if the world has their files."""
    description, parameters = (world.with_suffix(suffix) for suffix in (".urdf", ".controllers.yaml"))
    if description.is_file():
        state_publisher = ("robot_state_publisher", "robot_state_publisher")
        yield _ros_program("description", *state_publisher, str(description), *_SIM_TIME)
    if parameters.is_file():
        names = [name for name in _NODE_NAME.findall(parameters.read_text(encoding="utf-8")) if name != _MANAGER]
        waits = ["--switch-timeout", str(switch_timeout_s)]
        waits += ["--service-call-timeout", str(switch_timeout_s + _REPLY_S)]
        spawner = _ros_program("controllers", _MANAGER, "spawner", *names, "--param-file", str(parameters), *waits)
        yield replace(spawner, may_end=True)


def _ros_program(role: str, package: str, executable: str, *arguments: str) -> ProcessSpec:
    """Return a ROS executable run directly, since ``ros2 run`` does not forward signals."""
    for prefix in filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)):
        program = Path(prefix, "lib", package, executable)
        if program.is_file():
            return ProcessSpec(role=role, arguments=(str(program), *arguments))
    raise MissingDependencyError(
        f"{package}/{executable}",
        needed_for="launch gazebo",
        remedy=f"apt install {apt_package(package)}, and source its setup.bash",
    )


def with_large_segments(program: ProcessSpec, values: Values) -> ProcessSpec:
    """Return a program with the Fast DDS profile, if the contract has large messages."""
    settings = [f"{name}={value}" for name, value in profile_environment(load_contract(values["contract"])).items()]
    return replace(program, arguments=("env", *settings, *program.arguments)) if settings else program
