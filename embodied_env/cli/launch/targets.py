"""The launch targets: their arguments, and the processes that each one starts.

``launch/*.launch.py`` and ``embodied-env launch`` both read this table and take the same arguments, ``name:=value``.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from embodied_env.backends.backend_registry import BackendName
from embodied_env.contract.contract_loader import config_folders, find_contract, load_contract
from embodied_env.core.policy import ADDRESSES
from embodied_env.errors import MissingDependencyError, UsageError, did_you_mean
from embodied_env.processes.child_process import CLI, STOP_GRACE_S, ProcessSpec, relay, simulator
from embodied_env.ros.transport.fastdds import profile_environment
from embodied_env.ros.transport.setup_checks import apt_package, check_namespace
from embodied_env.safety.relay.relay import stopping_time_s

Values = Mapping[str, str]

_ROBOT = "real"
_UNSET = "none"  # ros2 launch accepts no empty value
_BOOL = ("true", "false")
_NODE_NAME = re.compile(r"^(\w+):", re.MULTILINE)  # in a parameter file
_MANAGER = "controller_manager"
_PLUGIN_PATH = "GZ_SIM_SYSTEM_PLUGIN_PATH"
_SIM_TIME = ("--ros-args", "-p", "use_sim_time:=true")
# Controllers become active as simulated time passes, but the server is paused until it is stepped. By default, the
# spawner gives up after three service calls of 10 s.
_SWITCH_TIMEOUT_S = 60
_SWITCH_TIMEOUT_BY_HAND_S = 3600  # if no process of this launch steps the server
_REPLY_S = 5
_STARTUP_S = "30"


@dataclass(frozen=True)
class Argument:
    """An argument of a launch target; an empty `allowed` means any value."""

    name: str
    default: str
    description: str
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LaunchTarget:
    """A set of processes with its help and arguments; `plan` yields the processes for the argument values."""

    name: str
    help: str
    arguments: tuple[Argument, ...]
    plan: Callable[[Values], Iterator[ProcessSpec]]

    def processes(self, given: Values) -> tuple[ProcessSpec, ...]:
        """Return the processes for the given values; other arguments have their defaults.

        Raises:
            UsageError: for an unknown argument or an invalid value.
            ContractError: for a missing or invalid contract.
            MissingDependencyError: for a program that is not installed.
        """
        known = {argument.name: argument for argument in self.arguments}
        for name, value in given.items():
            if name not in known:
                problem = f"unknown argument of {self.name}: {name!r} (expected one of: {', '.join(known)})"
                raise UsageError(problem + did_you_mean(name, known))
            allowed = known[name].allowed
            if allowed and value not in allowed:
                raise UsageError(f"invalid argument: {name}:={value} (expected one of: {', '.join(allowed)})")
        values = {**{name: argument.default for name, argument in known.items()}, **given}
        return tuple(self.plan({name: "" if value == _UNSET else value for name, value in values.items()}))


def _sim(values: Values) -> Iterator[ProcessSpec]:
    check_namespace(values["namespace"])
    is_free = values["free_running"] == "true"
    yield simulator(values["contract"], namespace=values["namespace"], profile=values["profile"], free_running=is_free)
    if values["policy"]:
        pacing = ("--pacing", "realtime") if is_free else ()
        yield _evaluation(values, "mujoco_ros", "--attach", "--namespace", values["namespace"], *pacing)


def _gazebo(values: Values) -> Iterator[ProcessSpec]:
    contract = find_contract(values["contract"])
    world = _file(values, "world", contract.parent / "gazebo" / f"{contract.stem}.sdf")
    # path of Gazebo systems in ROS packages, as in the launch file of ros_gz_sim
    folders = [os.environ.get(name, "") for name in (_PLUGIN_PATH, "LD_LIBRARY_PATH")]
    server = ["env", f"{_PLUGIN_PATH}={os.pathsep.join(filter(None, folders))}", "gz", "sim"]
    server += ["-s", "--headless-rendering"] if values["headless"] == "true" else []
    yield ProcessSpec(
        role="gazebo",
        arguments=(*server, *shlex.split(values["gz_args"]), str(world)),  # without -r: it starts paused
        folder=str(world.parent),  # the world refers to files next to it
    )
    topics = _file(values, "bridge", world.parent / f"{world.stem}.bridge.yaml")
    bridge = _ros_program("bridge", "ros_gz_bridge", "parameter_bridge", "--ros-args", "-p", f"config_file:={topics}")
    yield _with_large_segments(bridge, values)
    is_stepped = bool(values["script"] or values["policy"])
    yield from _ros2_control(world, _SWITCH_TIMEOUT_S if is_stepped else _SWITCH_TIMEOUT_BY_HAND_S)
    if values["script"]:
        yield _training(values, "gazebo")
    elif values["policy"]:
        yield _evaluation(values, "gazebo")


def _real(values: Values) -> Iterator[ProcessSpec]:
    options = ["--namespace", values["namespace"], "--connect-timeout", _STARTUP_S]  # the others start now, too
    if values["relay"] == "true":
        is_confirmed = "true" in (values["confirm_chosen"], values["emulator"])
        yield from _relay({**values, "backend": "", "confirm_chosen": "true" if is_confirmed else "false"})
        options += ["--relay"]
    options += [] if _is_armed(values) else ["--dry-run"]
    options += ["--record-messages"] if values["record_messages"] == "true" else []
    check_namespace(values["namespace"])
    yield _evaluation(values, _ROBOT, *options, *_robot_options(values))


def _relay(values: Values) -> Iterator[ProcessSpec]:
    check_namespace(values["namespace"])
    grace_s = STOP_GRACE_S + stopping_time_s(load_contract(values["contract"]))
    backend = values["backend"] or None
    is_confirmed = values["confirm_chosen"] == "true"
    yield relay(
        values["contract"],
        namespace=values["namespace"],
        backend=backend,
        confirm_chosen=is_confirmed,
        ignore_inputs=_names(values["ignore_input"]),
        grace_s=grace_s,
    )


def _evaluate(values: Values) -> Iterator[ProcessSpec]:
    options = ["--attach"] if values["attach"] == "true" else []
    if values["backend"] == _ROBOT:
        options += [] if _is_armed(values) else ["--dry-run"]
    else:
        _check_armed(values)
    for name in ("namespace", "pacing"):
        options += [f"--{name}", values[name]] if values[name] else []
    yield _evaluation(values, values["backend"], *options, *_robot_options(values))


def _train(values: Values) -> Iterator[ProcessSpec]:
    _check_armed(values)
    yield _training(values, values["backend"])


def _is_armed(values: Values) -> bool:
    """Return whether a robot may move: the name of the contract arms it, since launch files inherit arguments."""
    name, armed = load_contract(values["contract"]).name, values["armed"]
    if armed not in ("false", name):
        raise UsageError(f"invalid argument: armed:={armed} (expected one of: false, {name}, the name of the contract)")
    return armed != "false"


def _check_armed(values: Values) -> None:
    """Raise UsageError if a robot could move that is not armed: on any backend but our simulators."""
    backend, simulators = values["backend"], [name for name in get_args(BackendName) if name != _ROBOT]
    if not _is_armed(values) and backend not in simulators:
        name = load_contract(values["contract"]).name
        expected = f"expected armed:={name}, or one of: {', '.join(simulators)}"
        raise UsageError(f"backend that may move a robot is not armed: {backend!r} ({expected})")


def _robot_options(values: Values) -> list[str]:
    """Return the options of `evaluate` for a robot or its emulator."""
    options = [f"--{name.replace('_', '-')}" for name in ("emulator", "confirm_chosen") if values[name] == "true"]
    return [*options, *(f"--ignore-input={name}" for name in _names(values["ignore_input"]))]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _evaluation(values: Values, backend: str, *options: str) -> ProcessSpec:
    """Return the evaluation of the policy, with time to brake a robot at its end."""
    arguments = ["evaluate", values["contract"], "--backend", backend]
    arguments += [f"--{name}={values[name]}" for name in ("policy", "episodes", "seed", "out")]
    arguments += [f"--policy-file={values['policy_file']}"] if values["policy_file"] else []
    arguments += [f"--{name.replace('_', '-')}" for name in ("trust_policy", "report") if values[name] == "true"]
    grace_s = STOP_GRACE_S + stopping_time_s(load_contract(values["contract"]))
    return ProcessSpec(role="evaluation", module=CLI, arguments=(*arguments, *options), grace_s=grace_s, is_work=True)


def _training(values: Values, backend: str) -> ProcessSpec:
    """Return a training script with its arguments; examples are found next to the installed contracts."""
    name = values["script"]
    folders = [folder.parent / "examples" for folder in config_folders()]
    script = next((path for path in (Path(name), *(folder / name for folder in folders)) if path.is_file()), None)
    if script is None:
        found = ", ".join(sorted({file.name for folder in folders for file in folder.glob("*.py")})) or "none installed"
        raise UsageError(f"no such script: {name} (expected a file or an example: {found})")
    options = [values["contract"], "--backend", backend, "--seed", values["seed"], "--out", values["out"]]
    arguments = (values["python"], str(script.resolve()), *options, *shlex.split(values["script_args"]))
    return _with_large_segments(ProcessSpec(role="training", arguments=arguments, is_work=True), values)


def _with_large_segments(program: ProcessSpec, values: Values) -> ProcessSpec:
    """Return another program with the Fast DDS profile for large messages, if the contract has any."""
    settings = [f"{name}={value}" for name, value in profile_environment(load_contract(values["contract"])).items()]
    return replace(program, arguments=("env", *settings, *program.arguments)) if settings else program


def _ros2_control(world: Path, switch_timeout_s: int) -> Iterator[ProcessSpec]:
    """Yield the robot description and the controller spawner of gz_ros2_control, for a world with files for them."""
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


def _file(values: Values, argument: str, default: Path) -> Path:
    """Return the file of an argument, or the default one; raises UsageError if it does not exist."""
    file = Path(values[argument]) if values[argument] else default
    if not file.is_file():
        raise UsageError(f"no such file: {argument}:={file}")
    return file.resolve()


def _ros_program(role: str, package: str, executable: str, *arguments: str) -> ProcessSpec:
    """Return the executable of a ROS package itself, since ``ros2 run`` does not forward signals."""
    for prefix in filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)):
        program = Path(prefix, "lib", package, executable)
        if program.is_file():
            return ProcessSpec(role=role, arguments=(str(program), *arguments))
    raise MissingDependencyError(
        f"{package}/{executable}",
        needed_for="launch gazebo",
        remedy=f"apt install {apt_package(package)}, and source its setup.bash",
    )


_CONTRACT = Argument("contract", "arm_reach", "name or path of a contract")
_NAMESPACE = Argument("namespace", "/", "absolute ROS 2 namespace of the robot")
_PYTHON = Argument("python", sys.executable, "Python interpreter with this package and its dependencies")
_POLICY = Argument("policy", "scripted", f"policy to run: {', '.join(ADDRESSES)}")
_SEED = Argument("seed", "0", "seed of the first episode, or of the training")
_OUT = Argument("out", "runs", "parent directory of the run directories")
_CONFIRM_CHOSEN = Argument("confirm_chosen", "false", "accept unconfirmed chosen values of the robot file", _BOOL)
_ARMED = Argument("armed", "false", "name of the contract: send commands to the robot; false: run the checks only")
_EMULATOR = Argument("emulator", "false", "drive the robot emulator, which resets itself by the seed", _BOOL)
_IGNORE_INPUT = Argument(
    "ignore_input", _UNSET, "safety inputs to move without, because their message packages are not installed: NAME,..."
)
_SCRIPT_ARGS = Argument("script_args", _UNSET, "additional arguments of the training script, in shell syntax")


def _run_arguments(episodes: str = "10") -> tuple[Argument, ...]:
    return (
        Argument("policy_file", _UNSET, "policy file that maps a model to the contract"),
        Argument("trust_policy", "false", "load a policy format that executes code when it is read", _BOOL),
        Argument("episodes", episodes, "number of episodes"),
        _SEED,
        _OUT,
        Argument("report", "false", "write report.html into the run directory", _BOOL),
    )


_TARGETS = (
    LaunchTarget(
        name="sim",
        help="the embedded simulator, optionally with a policy",
        arguments=(
            _CONTRACT,
            _NAMESPACE,
            Argument("profile", "mujoco_ros", "backend profile of the contract"),
            Argument("free_running", "false", "emulate a robot: run on wall time", _BOOL),
            replace(_POLICY, default=_UNSET, description=f"{_POLICY.description}; none: the simulator only"),
            *_run_arguments(),
            _PYTHON,
        ),
        plan=_sim,
    ),
    LaunchTarget(
        name="gazebo",
        help="Gazebo, its bridge, and a policy or a training script",
        arguments=(
            _CONTRACT,
            Argument("headless", "true", "run the server without a window", _BOOL),
            Argument("world", _UNSET, "SDF file; none: gazebo/<contract>.sdf"),
            Argument("bridge", _UNSET, "YAML file of the bridge; none: <world>.bridge.yaml"),
            Argument("gz_args", _UNSET, "additional arguments of gz sim, in shell syntax"),
            replace(_POLICY, description=f"{_POLICY.description}; none: no evaluation"),
            Argument("script", _UNSET, "training script to run instead of the policy"),
            _SCRIPT_ARGS,
            *_run_arguments(),
            _PYTHON,
        ),
        plan=_gazebo,
    ),
    LaunchTarget(
        name="real",
        help="a relay and a policy on a robot; a dry run unless armed:=CONTRACT",
        arguments=(
            _CONTRACT,
            _NAMESPACE,
            _ARMED,
            Argument("relay", "true", "start a relay; false: use the relay setting of the profile", _BOOL),
            _POLICY,
            *_run_arguments(episodes="1"),
            Argument("record_messages", "false", "record the raw ROS 2 messages", _BOOL),
            _EMULATOR,
            _CONFIRM_CHOSEN,
            _IGNORE_INPUT,
            _PYTHON,
        ),
        plan=_real,
    ),
    LaunchTarget(
        name="relay",
        help="the relay that owns the actuator topics",
        arguments=(
            _CONTRACT,
            _NAMESPACE,
            Argument("backend", _UNSET, "backend whose profile lists the e-stop inputs; none: real"),
            _CONFIRM_CHOSEN,
            _IGNORE_INPUT,
            _PYTHON,
        ),
        plan=_relay,
    ),
    LaunchTarget(
        name="evaluate",
        help="a policy on any backend",
        arguments=(
            _CONTRACT,
            Argument("backend", "mujoco", "name of the backend to run on"),
            _ARMED,
            _POLICY,
            *_run_arguments(),
            Argument("namespace", _UNSET, "ROS 2 namespace of the robot or simulator; none: set by the backend"),
            Argument("pacing", _UNSET, "pacing of the backend: lockstep or realtime; none: set by the backend"),
            Argument("attach", "false", "attach to a running simulator instead of starting one", _BOOL),
            _EMULATOR,
            _CONFIRM_CHOSEN,
            _IGNORE_INPUT,
            _PYTHON,
        ),
        plan=_evaluate,
    ),
    LaunchTarget(
        name="train",
        help="a training script",
        arguments=(
            _CONTRACT,
            Argument("backend", "mujoco", "name of the backend to train on"),
            _ARMED,
            Argument("script", "train_sac.py", "training script: a file, or the name of an installed example"),
            _SCRIPT_ARGS,
            _SEED,
            _OUT,
            _PYTHON,
        ),
        plan=_train,
    ),
)

TARGETS: Mapping[str, LaunchTarget] = {target.name: target for target in _TARGETS}
