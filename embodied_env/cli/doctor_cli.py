"""``embodied-env doctor`` checks a contract and a backend, or the installation."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from embodied_env import __version__
from embodied_env.backends.backend_registry import unknown_backend
from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.verb_arguments import ROBOT_OPTIONS, add_json, add_options, given_options
from embodied_env.contract import Contract, load_contract
from embodied_env.contract.contract_validation import refuse_degrees
from embodied_env.contract.model_files import EMBEDDED
from embodied_env.contract.required_sensors import describe_stops, sort_by_stop
from embodied_env.core.contract_blocks import load_block
from embodied_env.core.plugin_loading import PARTS, load_extension
from embodied_env.core.terminal import say, stdout_tables
from embodied_env.errors import ContractError, EmbodiedEnvError, MissingDependencyError, UsageError, install_command
from embodied_env.messages.message_types import message_class
from embodied_env.plugins.plugin_lookup import known_backends
from embodied_env.ros.robot import robot_profile as profiles
from embodied_env.ros.robot.contract_checks import chosen_check, contract_checks
from embodied_env.ros.robot.estops import SafetyInputSpec
from embodied_env.ros.transport.checklist import Check
from embodied_env.ros.transport.fastdds import SEGMENT_REMEDY, segment_problems
from embodied_env.ros.transport.ros_installation import ros_checks
from embodied_env.ros.transport.setup_checks import apt_package

Sections = dict[str, list[Check]]

_SIMULATORS = ("gazebo", "simulation_interfaces")
_OVER_ROS = ("mujoco_ros", "real", *_SIMULATORS)
_CLOCK_TYPES = ("rosgraph_msgs/msg/Clock",)
_EMBEDDED_TYPES = (*_CLOCK_TYPES, "std_msgs/msg/String", "std_srvs/srv/Trigger", "rcl_interfaces/msg/Parameter")
_OPTIONAL = {"mcap": ("mcap", "recording runs"), "PIL": ("pillow", "saving pictures")}  # module -> package, purpose
_MIN_SHARED_MEMORY = 32 * 2**20  # bytes: some tens of segments of Fast DDS
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where POSIX shared memory is
_MARKS = {True: ("pass", "green"), False: ("FAIL", "bold red"), None: ("  - ", "dim")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    option = parser.add_argument
    option("contract", metavar="CONTRACT", nargs="?", help="name or path of a contract (required without --install)")
    option("--backend", help="name of the backend to check; a simulator at rest is stepped (required with a contract)")
    option("--install", action="store_true", help="check the installation: Python, packages, ROS 2, extras, rendering")
    add_options(parser, "namespace", *ROBOT_OPTIONS, namespace="/")
    option(
        "--timeout", type=float, default=5.0, metavar="S", help="discovery time of the robot or simulator in seconds"
    )
    option("--trust-task", action="store_true", help="load the task that the contract names")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the checklist and return exit status 1 if a check failed."""
    from embodied_env.ros.transport.setup_checks import check_namespace

    if args.install:
        if args.contract is not None or args.backend is not None:
            raise UsageError("--install checks no contract (expected no CONTRACT and no --backend)")
        return _report(_examine_installation(), {"installation": sys.prefix}, as_json=args.json)
    if missing := [name for name in ("CONTRACT", "--backend") if getattr(args, name.strip("-").lower()) is None]:
        raise UsageError(f"the following arguments are required: {', '.join(missing)} (or --install alone)")
    if args.backend not in known_backends():
        raise UsageError(unknown_backend(args.backend))
    if not 0.0 < args.timeout < float("inf"):
        raise UsageError(f"invalid --timeout: {args.timeout} (expected seconds > 0)")
    check_namespace(args.namespace)
    contract = load_contract(args.contract)
    with _emulator(contract, args) as namespace:
        sections = examine(
            contract,
            args.backend,
            namespace=namespace,
            timeout_s=args.timeout,
            trust_task=args.trust_task,
            **given_options(args, *ROBOT_OPTIONS),
        )
    return _report(sections, {"contract": contract.name, "backend": args.backend}, as_json=args.json)


@contextmanager
def _emulator(contract: Contract, args: argparse.Namespace) -> Iterator[str]:
    """Yield the namespace to examine, that of an emulator which is started if none is running."""
    if not args.emulator or args.backend != "real" or not all(check.passed for check in ros_checks(is_required=True)):
        yield args.namespace
        return
    from embodied_env.ros.embedded_sim.own_emulator import emulator_namespace

    note = functools.partial(say, file=sys.stderr)
    with emulator_namespace(contract, args.namespace, search_s=args.timeout, note=note) as namespace:
        yield namespace


def _report(sections: Sections, subject: dict[str, str], *, as_json: bool) -> int:
    has_passed = all(check.passed is not False for section in sections.values() for check in section)
    if as_json:
        rows = [
            {"section": title, **dataclasses.asdict(check)} for title, section in sections.items() for check in section
        ]
        say(json.dumps({**subject, "passed": has_passed, "checks": rows}, indent=2))
    else:
        _print_checklist(sections)
    return SOUND if has_passed else UNSOUND


def _examine_installation() -> Sections:
    from embodied_env.cli.installation_checks import examine_installation

    sections = examine_installation()
    has_contracts = all(check.passed for check in sections["package"] if check.name == "contracts")
    if has_contracts and _is_installed("mujoco"):
        sections["simulator"] = list(_world_checks(load_contract("arm_reach"), "mujoco"))
    return sections


def examine(  # noqa: PLR0913 - the options of the verb
    contract: Contract,
    backend: str,
    *,
    namespace: str,
    timeout_s: float,
    trust_task: bool = False,
    emulator: bool = False,
    confirm_chosen: bool = False,
    ignore_inputs: Sequence[str] = (),
) -> Sections:
    """Return the checks for `backend` by section, of which those of a task need trust."""
    sections: Sections = {
        "this host": list(_host_checks()),
        "ROS 2": _ros_checks(contract, backend, ignore_inputs) if backend in _OVER_ROS else [],
        "contract": list(_contract_checks(contract, backend, is_trusted=trust_task, ignored=ignore_inputs)),
    }
    if backend == "real":
        is_confirmed = emulator or confirm_chosen
        sections["contract"].append(chosen_check(contract, is_confirmed=is_confirmed, moves_robot=not emulator))
        sections["contract"] += _input_checks(contract, ignore_inputs)
        if (profile := _real_profile(contract, ignore_inputs)) is not None:
            profile = dataclasses.replace(profile, reset=profiles.EMULATOR_RESET) if emulator else profile
            sections["contract"] += contract_checks(contract, profile)
        robot_checks = functools.partial(_robot_checks, contract, profile, namespace=namespace, timeout_s=timeout_s)
        already = {check.name for check in sections["contract"]}
        checks = _surveyed("robot", sections, robot_checks)
        sections["robot"] = [check for check in checks if check.name not in already]
    elif backend in _SIMULATORS:
        simulator_checks = functools.partial(_simulator_checks, contract, backend, namespace, timeout_s)
        sections["simulator"] = list(_surveyed("simulator", sections, simulator_checks))
    elif backend in EMBEDDED:
        sections["world"] = list(_world_checks(contract, backend))
    elif backend == "fake":
        sections["world"] = [Check(name="world", passed=True, detail="the fake backend has no requirements")]
    else:
        sections["world"] = [Check(name="world", passed=None, detail=f"no checks available for backend {backend!r}")]
    return {title: section for title, section in sections.items() if section}


def _host_checks() -> Iterator[Check]:
    yield Check(name="python", passed=True, detail=f"{platform.python_version()}, {platform.platform()}")
    yield Check(name="embodied_env", passed=True, detail=__version__)
    for package in ("gymnasium", "numpy", "pydantic"):
        yield Check(name=package, passed=True, detail=version(package))
    for module, (package, purpose) in _OPTIONAL.items():
        if _is_installed(module):
            yield Check(name=module, passed=True, detail="installed")
        else:
            detail = f"not installed; required for {purpose}"
            yield Check(name=module, passed=None, detail=detail, remedy=install_command(package))


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def _ros_checks(contract: Contract, backend: str, ignored: Sequence[str]) -> list[Check]:
    checks = list(ros_checks(is_required=True))
    if not all(check.passed for check in checks):
        return checks
    domain = os.environ.get("ROS_DOMAIN_ID") or "0 (unset)"
    reach = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE") or "SUBNET (unset): all hosts on this network"
    return [
        *checks,
        Check(name="ROS_DOMAIN_ID", passed=True, detail=domain),
        Check(name="ROS_AUTOMATIC_DISCOVERY_RANGE", passed=True, detail=reach),
        _shared_memory(),
        *_segment_checks(contract, backend),
        *_message_checks(_message_types(contract, backend, ignored)),
    ]


def _message_types(contract: Contract, backend: str, ignored: Sequence[str]) -> list[str]:
    used = [sensor.type for sensor in contract.sensors.values()]
    used += [actuator.type for actuator in contract.actuators.values()]
    if backend == "real" and (profile := _real_profile(contract, ignored)) is not None:
        used += [estop.type for estop in profile.estop.values()]
        used += [name for spec in profile.active.values() for name in spec.types]
    return list(dict.fromkeys([*used, *(_EMBEDDED_TYPES if backend == "mujoco_ros" else _CLOCK_TYPES)]))


def _real_profile(contract: Contract, ignored: Sequence[str]) -> profiles.RealProfile | None:
    """Return the profile ``backends.real`` in use, or None if it is missing or invalid."""
    try:
        return profiles.with_inputs_in_use(profiles.parse_real_profile(contract), ignored)
    except EmbodiedEnvError:
        return None


def _input_checks(contract: Contract, ignored: Sequence[str]) -> Iterator[Check]:
    """Yield a check of each safety input whose message package is missing."""
    if (profile := _real_profile(contract, ignored)) is None:
        return
    inputs: dict[str, SafetyInputSpec | profiles.ActiveSpec] = {**profile.estop, **profile.active}
    for name, type_name in profiles.unreadable_inputs(profiles.parse_real_profile(contract)).items():
        package = type_name.split("/")[0]
        detail = f"{type_name} is not installed: "
        if name in ignored:
            detail += "ignored as requested; the robot moves without it"
        elif name in profiles.inputs_by_variant(profile):
            detail += f"read as its variant {inputs[name].type}, which only the robot emulator publishes"
        else:
            continue  # the check of the profile reports it
        remedy = f"apt install {apt_package(package)} and source it, before you use the robot"
        yield Check(name=f"input {name}", passed=None, detail=detail, remedy=remedy, code="input")


def _message_checks(types: Iterable[str]) -> Iterator[Check]:
    packages: dict[str, list[str]] = {}
    for name in types:
        packages.setdefault(name.split("/")[0], []).append(name)
    for package, names in packages.items():
        try:
            for name in names:
                message_class(name)
        except (MissingDependencyError, ContractError) as error:
            remedy = f"correct the type, or install a newer {package}"
            if isinstance(error, MissingDependencyError):
                remedy = f"apt install {apt_package(package)}, or {install_command('rclpy')}"
            yield Check(name=package, passed=False, detail=str(error), remedy=remedy, code="missing")
        else:
            yield Check(name=package, passed=True, detail=", ".join(name.split("/")[-1] for name in names))


def _shared_memory() -> Check:
    """Check the free shared memory, without which Fast DDS fails silently."""
    if not os.path.isdir(_SHARED_MEMORY):  # noqa: PTH112 - a constant path
        return Check(name=_SHARED_MEMORY, passed=None, detail="not available on this system")
    free = shutil.disk_usage(_SHARED_MEMORY).free
    has_room = free >= _MIN_SHARED_MEMORY
    return Check(
        name=_SHARED_MEMORY,
        passed=has_room,
        detail=f"{free / 2**20:.0f} MiB free (required: {_MIN_SHARED_MEMORY / 2**20:.0f} MiB)",
        remedy="" if has_room else "fastdds shm clean; in a container: docker run --shm-size=512m or --ipc=host",
        code="" if has_room else "shm.full",
    )


def _segment_checks(contract: Contract, backend: str) -> Iterator[Check]:
    if backend == "mujoco_ros":
        return
    for topic, problem in segment_problems(contract).items():
        yield Check(name="large messages", passed=None, detail=f"{topic}: {problem}", remedy=SEGMENT_REMEDY)


def _contract_checks(contract: Contract, backend: str, *, is_trusted: bool, ignored: Sequence[str]) -> Iterator[Check]:
    from embodied_env.tasks import find_task, is_shipped, load_task

    detail = f"{contract.name} version {contract.version}, fingerprint {contract.fingerprint[:16]}, {contract.source}"
    yield Check(name="contract", passed=True, detail=detail)
    if (robot := contract.robot) is not None:
        loosened = f"; override_robot_limits: {', '.join(robot.overridden)}" if robot.overridden else ""
        detail = f"{robot.name}, SHA-256 {robot.sha256[:16]}{loosened}"
        yield Check(name="robot file", passed=None if loosened else True, detail=detail)
    if backend != "real":  # whose own checks include it
        yield _attempt("limits", lambda: refuse_degrees(contract), "")
    stops, others = sort_by_stop(contract)
    detail = describe_stops(stops, others)
    remedy = "" if stops else "list one under safety.observation.required, with its max_age_s"
    yield Check(name="lost sensors", passed=True if stops else None, detail=detail, remedy=remedy)
    for name in contract.blocks:
        load = functools.partial(load_block, contract, name)
        yield _attempt(f"block {name}", load, "correct it, or install its plug-in")
    if is_trusted or is_shipped(contract):
        yield _attempt("task", lambda: load_task(contract, trust=is_trusted) and contract.task.type, "correct the task")
    elif not (found := _attempt("task", lambda: find_task(contract), "correct the task")).passed:
        yield found
    else:
        yield Check(name="task", passed=None, detail=f"{contract.task.type}: not loaded; use --trust-task")
    if backend not in contract.backends:
        known = ", ".join(contract.backends) or "none"
        detail = f"no profile backends.{backend} in the contract (found: {known})"
        yield Check(name="profile", passed=False, detail=detail, remedy=f"add backends.{backend}", code="profile")
        return
    detail = f"backends.{backend}, fingerprint {contract.backend_fingerprint(backend)[:16]}"

    def load_profile() -> str:
        if backend == "real":
            profiles.load_real_profile(contract, ignored=ignored)
        elif backend in _SIMULATORS:
            load_extension(PARTS["load_simulator_profile"], needed_for=f"the backend {backend!r}")(contract, backend)
        return detail

    yield _attempt("profile", load_profile, f"correct backends.{backend}")


def _attempt(name: str, action: Callable[[], object], remedy: str) -> Check:
    """Return a check that passes unless `action` raises, with its result as the detail."""
    try:
        return Check(name=name, passed=True, detail=str(action()))
    except EmbodiedEnvError as error:
        has_remedy = isinstance(error, (MissingDependencyError, UsageError))  # in its message
        remedy = "" if has_remedy else remedy
        return Check(name=name, passed=False, detail=str(error), remedy=remedy, code=type(error).__name__)


def _world_checks(contract: Contract, backend: str) -> Iterator[Check]:
    from embodied_env.sim.rendering import INSTALL_EGL, display_available
    from embodied_env.sim.world import World
    from embodied_env.sim.world_profile import load_profile

    if not _is_installed("mujoco"):
        remedy = install_command("mujoco")
        yield Check(name="mujoco", passed=False, detail="not installed", remedy=remedy, code="missing")
        return
    yield Check(name="mujoco", passed=True, detail=version("mujoco"))
    if backend not in contract.backends:
        return
    world: World | None = None

    def build() -> str:
        nonlocal world
        world = World(contract, load_profile(contract, backend), path=f"backends.{backend}")
        world.reset(0, {})
        return f"{contract.backends[backend].get('model', 'the model')} loads and resets"

    try:
        yield _attempt("model", build, f"correct backends.{backend}")
        if world is not None:
            check = _attempt("renderer", functools.partial(_render_picture, world), f"{INSTALL_EGL}; check MUJOCO_GL")
            is_needed = any(sensor.encoding is not None for sensor in contract.sensors.values())
            yield check if check.passed or is_needed else dataclasses.replace(check, passed=None, code="")
    finally:
        if world is not None:
            world.close()
    if display_available():
        yield Check(name="display", passed=True, detail="available")
    else:
        yield Check(name="display", passed=None, detail="not available: render_mode='human' cannot open a window")


def _render_picture(world: Any) -> str:  # noqa: ANN401 - a World
    height, width, _ = world.render().shape
    library = world.renderer_library
    return f"rendered {width} x {height} pixels" + (f" with {library}" if library else "")


def _surveyed(name: str, sections: Sections, survey: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Survey the robot or simulator unless ROS, the profile or the security keys failed."""
    before = [*sections["ROS 2"], *(check for check in sections["contract"] if check.name in ("profile", "security"))]
    if wrong := [check.name for check in before if check.passed is False]:
        yield Check(name=name, passed=None, detail=f"not checked because of: {', '.join(wrong)}")
        return
    try:
        yield from survey()
    except EmbodiedEnvError as error:
        yield Check(name=name, passed=False, detail=str(error), code=type(error).__name__)


def _robot_checks(
    contract: Contract, profile: profiles.RealProfile | None, *, namespace: str, timeout_s: float
) -> Iterable[Check]:
    from embodied_env.ros.robot.preflight import survey

    return () if profile is None else survey(contract, profile, namespace=namespace, timeout_s=timeout_s)


def _simulator_checks(contract: Contract, backend: str, namespace: str, timeout_s: float) -> Iterator[Check]:
    needed_for = f"the backend {backend!r}"
    if backend == "gazebo":
        yield from load_extension(PARTS["gazebo_version_checks"], needed_for=needed_for)()
    survey = load_extension(PARTS["survey_simulator"], needed_for=needed_for)
    yield from survey(contract, backend, namespace=namespace, timeout_s=timeout_s)


def _print_checklist(sections: Sections) -> None:
    from rich.table import Table
    from rich.text import Text

    with stdout_tables() as console:
        for title, checks in sections.items():
            console.print(Text(title, style="bold"))
            table = Table.grid(padding=(0, 2))
            for check in checks:
                mark, style = _MARKS[check.passed]
                detail = Text(check.detail)
                if check.remedy:
                    detail.append(f"\n-> {check.remedy}", style="yellow")
                table.add_row(Text(mark, style=style), check.name, detail)
            console.print(table)
            console.print()
    results = [check.passed for checks in sections.values() for check in checks]
    failed, unknown = results.count(False), results.count(None)
    verdict = f"{failed} of {len(results)} checks failed" if failed else f"{results.count(True)} checks passed"
    say(f"{verdict}, {unknown} not checked")
