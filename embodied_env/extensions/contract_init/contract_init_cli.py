"""The command ``contract init``, which drafts a contract from a robot or its description."""

from __future__ import annotations

import argparse
import json
import keyword
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.verb_arguments import add_force, check_new
from embodied_env.contract import Contract, parse_contract
from embodied_env.contract.argument_checks import checked_path, checked_seconds
from embodied_env.contract.bounded_files import MOST_XML_BYTES, read_file, write_file
from embodied_env.contract.contract_loader import load_robot_file
from embodied_env.contract.contract_validation import suspected_degrees
from embodied_env.contract.robot_files import RobotFile
from embodied_env.contract.spaces import field_layouts
from embodied_env.contract.urdf import slowed
from embodied_env.core.terminal import say
from embodied_env.errors import ContractError, UsageError
from embodied_env.extensions.contract_init.contract_draft import (
    BASE_PERIOD_S,
    TASK,
    Draft,
    add_urdf,
    check_joint,
    dump_draft,
    finish_draft,
)
from embodied_env.extensions.contract_init.driver_answers import Answers, parse_units
from embodied_env.extensions.contract_init.graph_topics import Graph, Topic, topics_of_robot
from embodied_env.extensions.contract_init.robot_graph import add_graph

_UNIT_HELP = (
    "unit of the commands of an actuator or actuator/joint: si, deg or percent, with :FACTOR to m or rad and :OFFSET, "
    "such as gripper=percent:0.04; repeatable (default: si, asked for grippers)"
)
_STATE_UNIT_HELP = "unit of the joint states of a joint, in the same form, such as '*=deg'; repeatable (default: si)"
_KNOWN_HELP = "path under `unknown` whose written value is right; repeatable (default: none)"
_TEMPLATE = '''"""The task of {contract}: the reward of a step, and whether the step succeeds.

`task.type` of the contract names this function; its keyword-only parameters are further keys of `task:`.
"""

from embodied_env.contract import FloatArray
from embodied_env.tasks import Snapshot, is_fresh


def {name}(
    previous: Snapshot,  # the readings before the step
    current: Snapshot,  # the readings after it
    applied: FloatArray,  # the action that the safety gate let through, one value per joint
    *,
    sensor: str = "{sensor}",
    target: float = 0.5,
    tolerance: float = 0.05,
) -> tuple[float, bool]:
    """Return minus the distance from the target, and whether a new reading is within the tolerance."""
    distance = abs(float(current.samples[sensor].values["{field}"].flat[0]) - target)
    return -distance, distance <= tolerance and is_fresh(current, sensor)
'''


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    option = parser.add_argument
    option("name", nargs="?", metavar="NAME", help="name of the contract (default: that of the file or robot)")
    option("--from-graph", action="store_true", help="read the topics of the running robot; publishes nothing")
    option("--listen", type=float, default=5.0, metavar="S", help="seconds to listen to the topics")
    option("--namespace", help="absolute ROS 2 namespace of the robot (default: / with one robot)")
    option("--urdf", metavar="FILE", help="URDF with joints and limits (default: none)")
    option("--mjcf", metavar="FILE", help="MuJoCo model with joints and limits (default: none)")
    option("--from-sdf", metavar="WORLD", help="SDF world of Gazebo; writes the YAML of its bridge too (default: none)")
    option("--model", metavar="NAME", help="model of the world to command (default: the only one with commands)")
    option("--sideways", action="store_true", help="the base moves sideways too (default: by controller or legs)")
    option("--unit", action="append", default=[], metavar="NAME=UNIT", help=_UNIT_HELP)
    option("--state-unit", action="append", default=[], metavar="JOINT=UNIT", help=_STATE_UNIT_HELP)
    option("--known", action="append", default=[], metavar="PATH", help=_KNOWN_HELP)
    option("--robot", metavar="NAME", help="name or path of a robot file to build on (default: none)")
    option("-o", "--output", metavar="FILE", help="contract file to write (default: standard output)")
    option("--task", metavar="FILE", help="Python file for a task to edit; an existing one is kept (default: no goal)")
    add_force(parser, "the contract file")


def run(args: argparse.Namespace) -> int:
    """Write the draft, print what is unknown, and return 1 if the draft does not validate."""
    out, bridge = _outputs(args)
    draft = _draft(args, out)
    task = None if args.task is None else checked_path("--task", args.task)
    if task is not None:
        if out in (None, task) or task.suffix != ".py":
            raise UsageError(f"no task file {args.task!r} (expected FILE.py, and --output FILE for its contract)")
        draft.task = f"./{os.path.relpath(task, out.parent)}:{function_name(task)}"
    text = dump_draft(draft)
    if out is not None:
        _write(out, text, replace=args.force)
    if bridge is not None:
        _write(bridge, draft.bridge, replace=args.force)
    try:
        contract = parse_contract(text, source=str(out or "draft.yaml"))
        if task is not None and not task.exists():
            _write(task, task_template(contract, function_name(task)), replace=False)
        problem = next((": ".join(each) for each in suspected_degrees(contract)), None)
    except ContractError as error:
        problem = str(error)
    if args.json:
        gaps = [{"unknown": what, "remedy": where} for what, where in draft.gaps]
        found = {"path": None if out is None else str(out), "text": text, "gaps": gaps, "chosen": draft.chosen}
        found |= {} if bridge is None else {"bridge": str(bridge)}
        say(json.dumps({**found, "unknown": draft.unknown, "problem": problem}, indent=2))
    else:
        _report(draft, text, out, problem, args)
    return SOUND if problem is None else UNSOUND


def _outputs(args: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """Return the files of contract and bridge, or raise UsageError for wrong options."""
    if not (args.from_graph or args.urdf or args.mjcf or args.robot or args.from_sdf):
        sources = "--from-graph, --from-sdf, --urdf, --mjcf, --robot"
        raise UsageError(f"no source (expected one or more of {sources}); e.g. embodied-env contract init --from-graph")
    out = None if args.output is None else checked_path("--output", args.output)
    bridge = None
    if args.from_sdf:
        if out is None or args.from_graph or args.robot:
            expected = "expected --output FILE, and at most --urdf or --mjcf"
            raise UsageError(f"--from-sdf without --output, or with --from-graph or --robot ({expected})")
        bridge = out.with_suffix(".bridge.yaml")
    check_new(out, bridge, force=args.force)
    return out, bridge


def _write(path: Path, text: str, *, replace: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text, replace=replace)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error} (expected a path to write to)") from None


def _report(draft: Draft, text: str, out: Path | None, problem: str | None, args: argparse.Namespace) -> None:
    """Print the text or its path, and print unknown values to stderr if the text is on stdout."""
    namespace, world = args.namespace or "/", args.from_sdf
    stream = sys.stderr if out is None else sys.stdout
    if out is None:
        say(text.rstrip("\n"))
    else:
        parts = [f"sensors: {', '.join(draft.sensors)}; actuators: {', '.join(draft.actuators)}"]
        parts = parts if draft.robot is None else [f"robot {draft.robot}"]
        say(f"{out}: written, {'; '.join(parts + [f'task {draft.task}'] * (draft.task != TASK))}")
    if draft.gaps:
        say("unknown:", file=stream)
        for what, where in draft.gaps:
            say(f"  - {what}\n    -> {where}", file=stream)
    if problem is not None:
        say(f"the draft is not valid yet: {problem}", file=stream)
    elif out is not None:
        where = "" if namespace == "/" else f" --namespace {namespace}"
        if draft.gazebo is not None:
            files = f"contract:={out} world:={world} bridge:={out.with_suffix('.bridge.yaml')}"
            say(f"next: embodied-env launch gazebo {files} policy:=none", file=stream)
            say(f"then: embodied-env doctor {out} --backend gazebo", file=stream)
            return
        backend = "real" if draft.world is None or draft.real else "mujoco"
        confirm = " --confirm-chosen" if backend == "real" and (draft.chosen or draft.robot) else ""
        say(f"next: embodied-env doctor {out} --backend {backend}{where}{confirm}", file=stream)


def _draft(args: argparse.Namespace, out: Path | None) -> Draft:
    stem = (out and out.stem) or args.robot or args.mjcf or args.urdf or args.from_sdf or "my_robot"
    name = args.name or re.sub(r"[^a-z0-9_]", "_", Path(stem).stem.lower()).lstrip("_0123456789") or "my_robot"
    units = parse_units("--unit", args.unit), parse_units("--state-unit", args.state_unit)
    answers = Answers(commands=units[0], readings=units[1], known=tuple(args.known))
    draft = Draft(name=name, moves_sideways=args.sideways, answers=answers)
    if args.urdf is not None:
        try:
            add_urdf(draft, read_file(checked_path("--urdf", args.urdf), most_bytes=MOST_XML_BYTES), args.urdf)
        except OSError as error:
            raise UsageError(f"--urdf: cannot read the file: {error}") from None
    if args.mjcf is not None:
        from embodied_env.extensions.contract_init.mjcf_reader import add_mjcf

        add_mjcf(draft, checked_path("--mjcf", args.mjcf), folder=Path() if out is None else out.parent)
    if args.from_sdf is not None:
        from embodied_env.extensions.contract_init.sdf_draft import add_world

        add_world(draft, checked_path("--from-sdf", args.from_sdf), args.model)
    topics: list[Topic] = []
    if args.from_graph:
        graph = _read_graph(args)
        topics = topics_of_robot(draft, graph, args.namespace)
        if args.robot is None:
            add_graph(draft, graph, topics, args.namespace or "/")
    if args.robot is not None:
        _from_robot(draft, args, out, topics)
    else:
        finish_draft(draft)
    answers.check_used(draft.unknown)
    return draft


def _read_graph(args: argparse.Namespace) -> Graph:
    from embodied_env.extensions.contract_init.graph_introspection import read_graph
    from embodied_env.ros.transport.setup_checks import check_namespace

    if args.namespace is not None:
        check_namespace(args.namespace)
    return read_graph(checked_seconds("--listen", args.listen))


def _from_robot(draft: Draft, args: argparse.Namespace, out: Path | None, topics: list[Topic]) -> None:
    """Let the draft build on a robot file, with only what differs from it."""
    file, robot = load_robot_file(args.robot, source=str(out or "draft.yaml"))
    is_shipped = args.robot == robot.name
    draft.robot = args.robot if is_shipped else os.path.relpath(file, Path() if out is None else out.parent)
    if not is_shipped and os.sep not in draft.robot:
        draft.robot = f"./{draft.robot}"
    if all(actuator.command == "twist" for actuator in robot.actuators.values()):
        draft.slowest_hz = 1.0 / (BASE_PERIOD_S - 0.004)
    reasons: dict[str, list[str]] = {}
    for path, reason in robot.chosen.items():
        reasons.setdefault(reason, []).append(path)
    for reason, paths in reasons.items():
        draft.gap(f"{', '.join(paths)}: {reason}", "measure, then list under confirmed")
    _tighten(draft, robot)
    if args.from_graph:
        _follow_topics(draft, robot, topics, (args.namespace or "/").rstrip("/") + "/")


def _tighten(draft: Draft, robot: RobotFile) -> None:
    """Override the limits that are tighter in a URDF or a model."""
    for name, actuator in robot.actuators.items():
        joints: dict[str, Any] = {}
        for joint, limits in actuator.joints.items():
            if (known := draft.joints.get(joint)) is None:
                if draft.joints and actuator.command != "twist":
                    draft.gap(f"joint {joint} of the robot file is not in the description", "check that the robot fits")
                continue
            check_joint(joint, known)
            own: dict[str, Any] = {}
            if known.velocity is not None and known.velocity < limits.fastest:
                slower = slowed(limits, known.velocity)
                own["velocity"] = list(slower) if isinstance(slower, tuple) else slower
            if known.position is not None and limits.position is not None:
                both = max(limits.position[0], known.position[0]), min(limits.position[1], known.position[1])
                if both != limits.position and both[0] < both[1]:
                    own["position"] = list(both)
            if own:
                joints[joint] = own
        if joints:
            draft.actuators[name] = {"joints": joints}


def _follow_topics(draft: Draft, robot: RobotFile, topics: list[Topic], root: str) -> None:
    """Override the topics that are renamed in the graph, and report missing ones."""
    published = [topic for topic in topics if topic.publishers]
    subscribed = [topic for topic in topics if topic.subscribers]
    groups: tuple[tuple[str, str, list[Topic], Mapping[str, Any], dict[str, Any]], ...] = (
        ("sensors", "publisher", published, robot.sensors, draft.sensors),
        ("actuators", "subscription", subscribed, robot.actuators, draft.actuators),
    )
    for group, end, found, declared, own in groups:
        for name, spec in declared.items():
            fitting = [topic.name for topic in found if topic.type == spec.type]
            wanted = root + spec.topic.lstrip("/")
            if wanted in fitting:
                continue
            close = [topic for topic in fitting if topic.endswith(wanted.removeprefix(root[:-1]))]
            close = close or [topic for topic in fitting if topic.rpartition("/")[2] == wanted.rpartition("/")[2]]
            if len(close) == 1:
                own[name] = {"topic": close[0].removeprefix(root), **own.get(name, {})}
                continue
            other = [f"; its type is {topic.type}" for topic in found if topic.name == wanted]
            seen = "".join(other) or (f"; of this type: {', '.join(fitting)}" if fitting else "")
            where = f"set {group}.{name}.{'type' if other else 'topic'}, or remove: [{group}.{name}]"
            draft.gap(f"no {end} of {wanted} ({spec.type}), {group}.{name}{seen}", where)


def function_name(file: Path) -> str:
    """Return the name of the function in a task file, the file's own as an identifier."""
    name = re.sub(r"\W", "_", file.stem).lstrip("_0123456789") or "task"
    return name + "_" * keyword.iskeyword(name)


def task_template(contract: Contract, name: str) -> str:
    """Return the source of a task `name` that reads the first position or value."""
    layouts = [layout for key, sensor in contract.sensors.items() for layout in field_layouts(key, sensor)]
    read = min(layouts, key=lambda layout: layout.field != "position")
    return _TEMPLATE.format(contract=contract.name, name=name, sensor=read.sensor, field=read.field)
