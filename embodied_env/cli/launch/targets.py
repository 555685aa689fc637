"""The launch targets with their arguments and the processes that each one starts.

``launch/*.launch.py`` and ``embodied-env launch`` both read this table and take the same arguments, ``name:=value``.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from embodied_env.backends.backend_registry import BackendName
from embodied_env.cli.launch.gazebo_processes import gazebo_processes, with_large_segments
from embodied_env.cli.launch.launch_arguments import (
    BOOL,
    UNSET,
    Argument,
    Values,
    as_bool,
    complete_values,
    file_of,
    policy_options,
)
from embodied_env.contract.contract_loader import config_folders, load_contract
from embodied_env.core.policy import CHUNK_MODES
from embodied_env.errors import UsageError
from embodied_env.plugins.plugin_table import ADDRESSES
from embodied_env.processes.child_process import CLI, STOP_GRACE_S, ProcessSpec, relay, simulator
from embodied_env.ros.transport.setup_checks import check_namespace
from embodied_env.safety.relay.relay_protocol import stopping_time_s

_ROBOT = "real"
_STARTUP_S = "30"
_LOG_LEVEL = "info"


@dataclass(frozen=True, kw_only=True)
class LaunchTarget:
    """A set of processes with arguments, for whose values `plan` yields them."""

    name: str
    help: str
    arguments: tuple[Argument, ...]
    plan: Callable[[Values], Iterator[ProcessSpec]]

    def processes(self, given: Values, *, is_top_level: bool = False) -> tuple[ProcessSpec, ...]:
        """Return the processes for the given values and the defaults of other arguments.

        With `is_top_level` a user gave the values themselves, and no launch file that includes this one.

        Raises:
            UsageError: for an unknown argument or an invalid value.
            ContractError: for a missing or invalid contract.
            MissingDependencyError: for a program that is not installed.
        """
        values = complete_values(self.name, self.arguments, given)
        if is_top_level and as_bool(values.get("armed", "")) == "true":
            values["armed"] = load_contract(values["contract"]).name
        return tuple(
            replace(spec, namespace=values.get("namespace", ""), ros_arguments=_ros_arguments(values))
            if spec.module
            else spec
            for spec in self.plan(values)
        )


def _ros_arguments(values: Values) -> tuple[str, ...]:
    check_namespace(f"/{values.get('namespace', '').strip('/')}")
    arguments = [] if values["log_level"] == _LOG_LEVEL else ["--log-level", values["log_level"]]
    if values["params_file"]:
        arguments += ["--params-file", str(file_of(values, "params_file", Path()))]
    return tuple(arguments)


def _sim(values: Values) -> Iterator[ProcessSpec]:
    is_free = values["free_running"] == "true"
    yield simulator(values["contract"], profile=values["profile"], free_running=is_free)
    if values["policy"]:
        pacing = ("--pacing", "realtime") if is_free else ()
        yield _evaluation(values, "mujoco_ros", "--attach", *pacing)


def _gazebo(values: Values) -> Iterator[ProcessSpec]:
    yield from gazebo_processes(values, is_stepped=bool(values["script"] or values["policy"]))
    if values["script"]:
        yield _training(values, "gazebo")
    elif values["policy"]:
        yield _evaluation(values, "gazebo")


def _real(values: Values) -> Iterator[ProcessSpec]:
    yield from _own_relay(values)
    options = [] if _is_armed(values) else ["--dry-run"]
    options += ["--record-messages"] if values["record_messages"] == "true" else []
    yield _evaluation(values, _ROBOT, *_with_relay(values), *options, *_robot_options(values))


def _runner(values: Values) -> Iterator[ProcessSpec]:
    yield from _own_relay(values)
    arguments = ["runner", values["contract"], *policy_options(values), *_with_relay(values)]
    if sum(word.startswith("--policy=") for word in arguments) > 1:
        raise UsageError(f"several policies: policy:={values['policy']} (expected one, which stays loaded)")
    arguments += [f"--{name}={values[name]}" for name in ("seed", "out", "chunks")]
    arguments += ["--trust-policy"] if values["trust_policy"] == "true" else []
    arguments += ["--autostart"] if _is_armed(values) else []
    grace_s = STOP_GRACE_S + stopping_time_s(load_contract(values["contract"]))
    arguments += [*_robot_options(values), *shlex.split(values["extra_args"])]
    yield ProcessSpec(role="runner", module=CLI, arguments=tuple(arguments), grace_s=grace_s, is_work=True)


def _own_relay(values: Values) -> Iterator[ProcessSpec]:
    if values["relay"] == "true":
        is_confirmed = "true" in (values["confirm_chosen"], values["emulator"])
        yield from _relay({**values, "backend": "", "confirm_chosen": "true" if is_confirmed else "false"})


def _with_relay(values: Values) -> list[str]:
    """Return the options of a process that starts together with a relay and a driver."""
    return ["--connect-timeout", _STARTUP_S, *(["--relay"] if values["relay"] == "true" else [])]


def _relay(values: Values) -> Iterator[ProcessSpec]:
    grace_s = STOP_GRACE_S + stopping_time_s(load_contract(values["contract"]))
    yield relay(
        values["contract"],
        backend=values["backend"] or None,
        confirm_chosen=values["confirm_chosen"] == "true",
        ignore_inputs=_names(values["ignore_input"]),
        grace_s=grace_s,
    )


def _evaluate(values: Values) -> Iterator[ProcessSpec]:
    options = ["--attach"] if values["attach"] == "true" else []
    if values["namespace"]:  # also of a simulator that it starts
        options += ["--namespace", f"/{values['namespace'].strip('/')}"]
    if values["backend"] == _ROBOT:
        options += [] if _is_armed(values) else ["--dry-run"]
    else:
        _check_armed(values)
    options += ["--pacing", values["pacing"]] if values["pacing"] else []
    yield _evaluation(values, values["backend"], *options, *_robot_options(values))


def _train(values: Values) -> Iterator[ProcessSpec]:
    _check_armed(values)
    yield _training(values, values["backend"])


def _is_armed(values: Values) -> bool:
    """Return whether `armed` names this contract, since launch files inherit arguments."""
    name, armed = load_contract(values["contract"]).name, as_bool(values["armed"])
    if armed not in ("false", name):
        expected = f"expected one of: false, {name}, the name of the contract"
        raise UsageError(f"invalid argument: armed:={values['armed']} ({expected})")
    return armed != "false"


def _check_armed(values: Values) -> None:
    """Raise UsageError if an unarmed robot could move, on any backend but our simulators."""
    backend, simulators = values["backend"], [name for name in get_args(BackendName) if name != _ROBOT]
    if not _is_armed(values) and backend not in simulators:
        name = load_contract(values["contract"]).name
        expected = f"expected armed:={name}, or one of: {', '.join(simulators)}"
        raise UsageError(f"backend that may move a robot is not armed: {backend!r} ({expected})")


def _robot_options(values: Values) -> list[str]:
    options = [f"--{name.replace('_', '-')}" for name in ("emulator", "confirm_chosen") if values[name] == "true"]
    return [*options, *(f"--ignore-input={name}" for name in _names(values["ignore_input"]))]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _evaluation(values: Values, backend: str, *options: str) -> ProcessSpec:
    """Return the evaluation of the policy, with time to brake a robot at its end."""
    arguments = ["evaluate", values["contract"], "--backend", backend, *policy_options(values)]
    arguments += [f"--{name}={values[name]}" for name in ("episodes", "seed", "out")]
    arguments += [f"--{name.replace('_', '-')}" for name in ("trust_policy", "report") if values[name] == "true"]
    grace_s = STOP_GRACE_S + stopping_time_s(load_contract(values["contract"]))
    arguments += [*options, *shlex.split(values["extra_args"])]
    return ProcessSpec(role="evaluation", module=CLI, arguments=tuple(arguments), grace_s=grace_s, is_work=True)


def _training(values: Values, backend: str) -> ProcessSpec:
    """Return a training script of the installed examples with its arguments."""
    name = values["script"]
    folders = [folder.parent / "examples" for folder in config_folders()]
    script = next((path for path in (Path(name), *(folder / name for folder in folders)) if path.is_file()), None)
    if script is None:
        found = ", ".join(sorted({file.name for folder in folders for file in folder.glob("*.py")})) or "none installed"
        raise UsageError(f"no such script: {name} (expected a file or an example: {found})")
    options = [values["contract"], "--backend", backend, "--seed", values["seed"], "--out", values["out"]]
    arguments = (values["python"], str(script.resolve()), *options, *shlex.split(values["script_args"]))
    return with_large_segments(ProcessSpec(role="training", arguments=arguments, is_work=True), values)


_CONTRACT = Argument("contract", "arm_reach", "name or path of a contract")
_NAMESPACE = Argument("namespace", "", "ROS 2 namespace of the robot; a relative one is joined to a pushed one")
_PYTHON = Argument("python", sys.executable, "Python interpreter with this package and its dependencies")
_OF_NODES = (
    Argument("log_level", _LOG_LEVEL, "log level of the nodes", ("debug", _LOG_LEVEL, "warn", "error", "fatal")),
    Argument("params_file", UNSET, "YAML file with parameters of the nodes"),
    _PYTHON,
)
_POLICY = Argument("policy", "scripted", f"policy to run, or a YAML list of several: {', '.join(ADDRESSES)}")
_SEED = Argument("seed", "0", "seed of the first episode, or of the training")
_OUT = Argument("out", "runs", "parent directory of the run directories")
_CONFIRM_CHOSEN = Argument("confirm_chosen", "false", "accept unconfirmed chosen values of the robot file", BOOL)
_ARMED = Argument("armed", "false", "name of the contract: send commands to the robot; false: run the checks only")
_EMULATOR = Argument("emulator", "false", "drive the robot emulator, which resets itself by the seed", BOOL)
_IGNORE_INPUT = Argument(
    "ignore_input", UNSET, "safety inputs to move without, because their message packages are not installed: NAME,..."
)
_RELAY = Argument("relay", "true", "start a relay; false: use the relay setting of the profile", BOOL)
_TRUST_POLICY = Argument("trust_policy", "false", "load a policy format that executes code when it is read", BOOL)
_SCRIPT_ARGS = Argument("script_args", UNSET, "additional arguments of the training script, in shell syntax")


def _run_arguments(episodes: str = "10") -> tuple[Argument, ...]:
    return (
        Argument("policy_file", UNSET, "policy file that maps a model to the contract, or a YAML list of them"),
        _TRUST_POLICY,
        Argument("episodes", episodes, "number of episodes"),
        _SEED,
        _OUT,
        Argument("report", "false", "write report.html into the run directory", BOOL),
        Argument("extra_args", UNSET, "additional options of evaluate, in shell syntax"),
    )


_TARGETS = (
    LaunchTarget(
        name="sim",
        help="the embedded simulator, optionally with a policy",
        arguments=(
            _CONTRACT,
            _NAMESPACE,
            Argument("profile", "mujoco_ros", "backend profile of the contract"),
            Argument("free_running", "false", "emulate a robot: run on wall time", BOOL),
            replace(_POLICY, default=UNSET, description=f"{_POLICY.description}; none: the simulator only"),
            *_run_arguments(),
            *_OF_NODES,
        ),
        plan=_sim,
    ),
    LaunchTarget(
        name="gazebo",
        help="Gazebo, its bridge, and a policy or a training script",
        arguments=(
            _CONTRACT,
            Argument("headless", "true", "run the server without a window", BOOL),
            Argument("world", UNSET, "SDF file; none: gazebo/<contract>.sdf"),
            Argument("bridge", UNSET, "YAML file of the bridge; none: <world>.bridge.yaml"),
            Argument("real_time_factor", UNSET, "simulated time per wall time, 0: no limit; none: that of the world"),
            Argument("gz_args", UNSET, "additional arguments of gz sim, in shell syntax"),
            replace(_POLICY, description=f"{_POLICY.description}; none: no evaluation"),
            Argument("script", UNSET, "training script to run instead of the policy"),
            _SCRIPT_ARGS,
            *_run_arguments(),
            *_OF_NODES,
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
            _RELAY,
            _POLICY,
            *_run_arguments(episodes="1"),
            Argument("record_messages", "false", "record the raw ROS 2 messages", BOOL),
            _EMULATOR,
            _CONFIRM_CHOSEN,
            _IGNORE_INPUT,
            *_OF_NODES,
        ),
        plan=_real,
    ),
    LaunchTarget(
        name="runner",
        help="a relay and a policy that runs on request, as a managed node",
        arguments=(
            _CONTRACT,
            _NAMESPACE,
            Argument(
                "armed", "false", "name of the contract: configure and activate at once; false: wait for a manager"
            ),
            _RELAY,
            replace(_POLICY, description=f"policy to keep loaded: {', '.join(ADDRESSES)}"),
            Argument("policy_file", UNSET, "policy file that maps a model to the contract"),
            _TRUST_POLICY,
            Argument("chunks", "wait", "hand-over from one action chunk to the next", CHUNK_MODES),
            _SEED,
            _OUT,
            Argument("extra_args", UNSET, "additional options of runner, in shell syntax"),
            _EMULATOR,
            _CONFIRM_CHOSEN,
            _IGNORE_INPUT,
            *_OF_NODES,
        ),
        plan=_runner,
    ),
    LaunchTarget(
        name="relay",
        help="the relay that owns the actuator topics",
        arguments=(
            _CONTRACT,
            _NAMESPACE,
            Argument("backend", UNSET, "backend whose profile lists the e-stop inputs; none: real"),
            _CONFIRM_CHOSEN,
            _IGNORE_INPUT,
            *_OF_NODES,
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
            _NAMESPACE,
            Argument("pacing", UNSET, "pacing of the backend: lockstep or realtime; none: set by the backend"),
            Argument("attach", "false", "attach to a running simulator instead of starting one", BOOL),
            _EMULATOR,
            _CONFIRM_CHOSEN,
            _IGNORE_INPUT,
            *_OF_NODES,
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
