"""The table of uses: what each is for, what may be said of it, and which processes it needs.

``launch/*.launch.py`` and ``embodied-env launch`` both start from here, with the same arguments: ``name:=value``.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from embodied_env.contract.loader import config_folders, find_contract, load_contract
from embodied_env.core.process.child import CLI, STOP_GRACE_S, ProcessSpec, relay, simulator
from embodied_env.errors import MissingDependencyError, UsageError
from embodied_env.ros.fastdds import profile_environment
from embodied_env.ros.setup_checks import apt_package, check_namespace
from embodied_env.safety.relay.relay import stopping_time_s

Values = Mapping[str, str]

_NOTHING = "none"  # ros2 launch takes no empty value
_YES_OR_NO = ("true", "false")
_SPAWNED = re.compile(r"^(\w+):", re.MULTILINE)  # the nodes of a file of parameters
_MANAGER = "controller_manager"
_PLUGIN_PATH = "GZ_SIM_SYSTEM_PLUGIN_PATH"
_SIM_TIME = ("--ros-args", "-p", "use_sim_time:=true")
# A controller becomes active while time passes, and the server is paused until somebody steps it. The spawner waits for
# that as long as its call does, which by itself is 10 s, three times.
_SWITCH_TIMEOUT_S = 60
_STEPPED_BY_HAND_S = 3600
_ANSWER_S = 5


@dataclass(frozen=True, kw_only=True)
class Argument:
    """What may be said of a use: its default, what it means, and, where not everything is allowed, what is."""

    name: str
    default: str
    description: str
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LaunchTarget:
    """One use: a line of help, its arguments, and which processes it needs for their values."""

    name: str
    help: str
    arguments: tuple[Argument, ...]
    plan: Callable[[Values], Iterator[ProcessSpec]]

    def processes(self, said: Values) -> tuple[ProcessSpec, ...]:
        """Return its processes for what was said; what was not has its default, and none is nothing.

        Raises:
            UsageError: for an argument that it does not have, or a value that is not allowed.
            ContractError: for a contract that there is not, or a wrong one.
            MissingDependencyError: for a program of others that is not installed.
        """
        known = {argument.name: argument for argument in self.arguments}
        for name, value in said.items():
            if name not in known:
                raise UsageError(f"{self.name} has no argument {name!r}; allowed: {', '.join(known)}")
            allowed = known[name].allowed
            if allowed and value not in allowed:
                raise UsageError(f"{name}:={value} is not allowed; allowed: {', '.join(allowed)}")
        values = {**{name: argument.default for name, argument in known.items()}, **said}
        return tuple(self.plan({name: "" if value == _NOTHING else value for name, value in values.items()}))


# --------------------------------------------------------------------------------------------- the processes


def _evaluation(values: Values, backend: str, *more: str) -> ProcessSpec:
    """Return the evaluation of the policy; a robot is braked at its end."""
    arguments = ["evaluate", values["contract"], "--backend", backend]
    arguments += [f"--{name}={values[name]}" for name in ("policy", "episodes", "seed", "out")]
    arguments += ["--report"] if values["report"] == "true" else []
    grace_s = STOP_GRACE_S + stopping_time_s(load_contract(values["contract"]))
    return ProcessSpec(role="evaluation", module=CLI, arguments=(*arguments, *more), grace_s=grace_s, is_work=True)


def _training(values: Values, backend: str) -> ProcessSpec:
    """Return a training script, which is told contract, backend, seed and folder, and what else it is to be told."""
    told = [values["contract"], "--backend", backend, "--seed", values["seed"], "--out", values["out"]]
    arguments = (values["python"], str(_script(values["script"])), *told, *shlex.split(values["script_args"]))
    return _with_large_segments(ProcessSpec(role="training", module="", arguments=arguments, is_work=True), values)


def _with_large_segments(program: ProcessSpec, values: Values) -> ProcessSpec:
    """Return a program of others, with the Fast DDS profile where the contract has large messages; ours take it."""
    settings = [f"{name}={value}" for name, value in profile_environment(load_contract(values["contract"])).items()]
    return replace(program, arguments=("env", *settings, *program.arguments)) if settings else program


def _script(name: str) -> Path:
    """Return the file of a training script: a path, or one of the examples that are installed beside the contracts."""
    folders = [folder.parent / "examples" for folder in config_folders()]
    places = [Path(name), *(folder / name for folder in folders)]
    for place in places:
        if place.is_file():
            return place.resolve()
    found = sorted({file.name for folder in folders for file in folder.glob("*.py")})
    raise UsageError(
        f"script:={name} is not there; allowed: a file, or an example: {', '.join(found) or 'none is here'}"
    )


def _sim(values: Values) -> Iterator[ProcessSpec]:
    check_namespace(values["namespace"])
    is_free = values["free_running"] == "true"
    yield simulator(values["contract"], namespace=values["namespace"], profile=values["profile"], free_running=is_free)
    if values["policy"]:
        pacing = ("--pacing", "realtime") if is_free else ()
        yield _evaluation(values, "mujoco_ros", "--attach", "--namespace", values["namespace"], *pacing)


def _relay(values: Values) -> Iterator[ProcessSpec]:
    yield _braking_relay(values, values["backend"] or None)


def _braking_relay(values: Values, backend: str | None) -> ProcessSpec:
    """Return the relay, with the time that it needs to brake."""
    check_namespace(values["namespace"])
    grace_s = STOP_GRACE_S + stopping_time_s(load_contract(values["contract"]))
    return relay(values["contract"], namespace=values["namespace"], backend=backend, grace_s=grace_s)


def _real(values: Values) -> Iterator[ProcessSpec]:
    more = ["--namespace", values["namespace"]]
    if values["relay"] == "true":
        yield _braking_relay(values, None)
        more += ["--relay"]
    if values["armed"] != "true":
        more += ["--dry-run"]
    if values["record_messages"] == "true":
        more += ["--record-messages"]
    check_namespace(values["namespace"])
    yield _evaluation(values, "real", *more)


def _evaluate(values: Values) -> Iterator[ProcessSpec]:
    more = ["--attach"] if values["attach"] == "true" else []
    for name in ("namespace", "pacing"):
        more += [f"--{name}", values[name]] if values[name] else []
    yield _evaluation(values, values["backend"], *more)


def _train(values: Values) -> Iterator[ProcessSpec]:
    yield _training(values, values["backend"])


def _gazebo(values: Values) -> Iterator[ProcessSpec]:
    contract = find_contract(values["contract"])
    beside = contract.parent / "gazebo"
    world = _file(values, "world", beside / f"{contract.stem}.sdf")
    server = ["env", _plugin_path(), "gz", "sim"]
    server += ["-s", "--headless-rendering"] if values["headless"] == "true" else []
    yield ProcessSpec(
        role="gazebo",
        module="",
        arguments=(*server, *shlex.split(values["gz_args"]), str(world)),  # without -r: it starts paused
        folder=str(world.parent),  # what the world names is beside it
    )
    topics = _file(values, "bridge", world.parent / f"{world.stem}.bridge.yaml")
    bridge = _of_package("bridge", "ros_gz_bridge", "parameter_bridge", "--ros-args", "-p", f"config_file:={topics}")
    yield _with_large_segments(bridge, values)
    is_stepped = bool(values["script"] or values["policy"])
    yield from _controllers(world, _SWITCH_TIMEOUT_S if is_stepped else _STEPPED_BY_HAND_S)
    if values["script"]:
        yield _training(values, "gazebo")
    elif values["policy"]:
        yield _evaluation(values, "gazebo")


def _plugin_path() -> str:
    """Return the setting by which Gazebo finds the systems of ROS packages, as ros_gz_sim's own launch file has it."""
    folders = [os.environ.get(name, "") for name in (_PLUGIN_PATH, "LD_LIBRARY_PATH")]
    return f"{_PLUGIN_PATH}={os.pathsep.join(filter(None, folders))}"


def _controllers(world: Path, switch_s: int) -> Iterator[ProcessSpec]:
    """Yield what gz_ros2_control needs, where a world has files for it: the robot, and who starts controllers.

    `switch_s`: how long the controllers may take to become active.
    """
    description, parameters = (world.with_suffix(suffix) for suffix in (".urdf", ".controllers.yaml"))
    if description.is_file():
        yield _of_package("description", "robot_state_publisher", "robot_state_publisher", str(description), *_SIM_TIME)
    if parameters.is_file():
        names = [name for name in _SPAWNED.findall(parameters.read_text(encoding="utf-8")) if name != _MANAGER]
        waits = ["--switch-timeout", str(switch_s), "--service-call-timeout", str(switch_s + _ANSWER_S)]
        spawner = _of_package("controllers", _MANAGER, "spawner", *names, "--param-file", str(parameters), *waits)
        yield replace(spawner, may_end=True)


def _file(values: Values, argument: str, usual: Path) -> Path:
    """Return the file that was named, or the usual one; raises UsageError where it is not there."""
    file = Path(values[argument]) if values[argument] else usual
    if not file.is_file():
        raise UsageError(
            f"{argument}:={values[argument] or _NOTHING}: there is no file {file}; allowed: one that is there"
        )
    return file.resolve()


def _of_package(role: str, package: str, executable: str, *arguments: str) -> ProcessSpec:
    """Return a program of a ROS package: itself, since ``ros2 run`` hands no signal on."""
    prefixes = filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep))
    for prefix in prefixes:
        program = Path(prefix, "lib", package, executable)
        if program.is_file():
            return ProcessSpec(role=role, module="", arguments=(str(program), *arguments))
    raise MissingDependencyError(
        f"{package}/{executable}",
        needed_for="the use gazebo",
        remedy=f"apt install {apt_package(package)}, and source it",
    )


# ------------------------------------------------------------------------------------------------- the table

_CONTRACT = Argument(name="contract", default="arm_reach", description="a contract's name or file")
_NAMESPACE = Argument(name="namespace", default="/", description="absolute ROS 2 namespace of the robot")
_PYTHON = Argument(
    name="python", default=sys.executable, description="the interpreter that has this package, and what it needs"
)
_POLICY = Argument(name="policy", default="scripted", description="hold, random, scripted, or module:callable")
_SEED = Argument(name="seed", default="0", description="of the first episode, or of the training")
_OUT = Argument(name="out", default="runs", description="where run directories are made")
_OF_A_RUN = (
    Argument(name="episodes", default="10", description="how many are evaluated"),
    _SEED,
    _OUT,
    Argument(name="report", default="false", description="write report.html, too", allowed=_YES_OR_NO),
)
_SCRIPT_ARGS = Argument(
    name="script_args",
    default=_NOTHING,
    description="more for the training script, as a shell would split it",
)


def _bool_argument(name: str, default: str, description: str) -> Argument:
    """Return an argument that is true or false."""
    return Argument(name=name, default=default, description=description, allowed=_YES_OR_NO)


TARGETS: Mapping[str, LaunchTarget] = {
    use.name: use
    for use in (
        LaunchTarget(
            name="sim",
            help="the embedded simulator, and a policy on it when one is named",
            arguments=(
                _CONTRACT,
                _NAMESPACE,
                Argument(name="profile", default="mujoco_ros", description="which of the contract's backends"),
                _bool_argument("free_running", "false", "it waits for nobody, like a robot"),
                replace(_POLICY, default=_NOTHING, description=f"{_POLICY.description}; none: the simulator alone"),
                *_OF_A_RUN,
                _PYTHON,
            ),
            plan=_sim,
        ),
        LaunchTarget(
            name="gazebo",
            help="Gazebo, its bridge, and a policy or a training script",
            arguments=(
                _CONTRACT,
                _bool_argument("headless", "true", "the server alone; false: with its window"),
                Argument(name="world", default=_NOTHING, description="an SDF file; none: gazebo/<contract>.sdf"),
                Argument(name="bridge", default=_NOTHING, description="its YAML file; none: <world>.bridge.yaml"),
                Argument(
                    name="gz_args",
                    default=_NOTHING,
                    description="more for gz sim, as a shell would split it",
                ),
                replace(_POLICY, description=f"{_POLICY.description}; none: nothing is evaluated"),
                Argument(name="script", default=_NOTHING, description="a training script, instead of the policy"),
                _SCRIPT_ARGS,
                *_OF_A_RUN,
                _PYTHON,
            ),
            plan=_gazebo,
        ),
        LaunchTarget(
            name="real",
            help="a relay and a policy on a robot: a dry run, unless armed:=true",
            arguments=(
                _CONTRACT,
                _NAMESPACE,
                _bool_argument(
                    "armed", "false", "true: the robot moves; false: all but that, nothing is published to it"
                ),
                _bool_argument(
                    "relay", "true", "start a relay; false: what the contract's profile says, and who runs it"
                ),
                _POLICY,
                *(replace(a, default="1") if a.name == "episodes" else a for a in _OF_A_RUN),
                _bool_argument("record_messages", "false", "record the raw ROS 2 messages, too"),
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
                Argument(name="backend", default=_NOTHING, description="whose profile names the e-stops; none: real"),
                _PYTHON,
            ),
            plan=_relay,
        ),
        LaunchTarget(
            name="evaluate",
            help="a policy on any backend",
            arguments=(
                _CONTRACT,
                Argument(name="backend", default="mujoco", description="which world"),
                _POLICY,
                *_OF_A_RUN,
                Argument(name="namespace", default=_NOTHING, description="of a backend over ROS 2; none: its own"),
                Argument(name="pacing", default=_NOTHING, description="lockstep or realtime; none: the backend's"),
                _bool_argument("attach", "false", "use a simulator that runs instead of starting one"),
                _PYTHON,
            ),
            plan=_evaluate,
        ),
        LaunchTarget(
            name="train",
            help="a training script",
            arguments=(
                _CONTRACT,
                Argument(name="backend", default="mujoco", description="where to learn"),
                Argument(name="script", default="train_sac.py", description="a file, or an example that is installed"),
                _SCRIPT_ARGS,
                _SEED,
                _OUT,
                _PYTHON,
            ),
            plan=_train,
        ),
    )
}
"""Name -> use."""
