"""``embodied-env contract`` validates, shows, compares and renders contracts, without ROS."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from embodied_env.cli import SOUND, UNSOUND, contract_validate
from embodied_env.cli.verb_arguments import add_actions, add_force, add_seed, check_new
from embodied_env.contract import Contract, FloatArray, SensorSpec, load_contract
from embodied_env.contract.argument_checks import checked_path
from embodied_env.contract.bounded_files import write_file
from embodied_env.contract.contract_loader import ROBOTS, known_robots, load_robot_file, shipped_files
from embodied_env.contract.contract_schema import ContractFields
from embodied_env.contract.fingerprint import differences, meaning, task_meaning, to_plain
from embodied_env.contract.key_tables import Key, declared_keys
from embodied_env.contract.spaces import action_scale, field_layouts
from embodied_env.contract.value_checks import one_of
from embodied_env.core.plugin_loading import PARTS, find_extension, load_extension
from embodied_env.core.terminal import print_tables, say, without_empty_columns
from embodied_env.errors import ContractError, UsageError

Row = dict[str, Any]

PROFILES: Mapping[str, str] = {
    "mujoco": "embodied_env.sim.world_profile:WorldProfile",
    "real": "embodied_env.ros.robot.robot_profile:RealProfile",
    "gazebo": PARTS["simulator_profile"],
}
"""The keys below ``backends`` by the name of a backend."""

_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")  # links of the pages that share the meanings of keys
_SAME_PROFILE = {"mujoco_ros": "mujoco", "simulation_interfaces": "gazebo"}

_SHORT = 16  # hex digits of a fingerprint for display


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    name: dict[str, Any] = {"metavar": "CONTRACT", "help": "name or path of a contract"}
    add = add_actions(parser)
    validate = add(contract_validate.run, "validate", "validate contracts and the parameters of their tasks")
    validate.add_argument("contracts", nargs="+", **name)
    validate.add_argument("--trust-task", action="store_true", help="load the task that each contract names")
    validate.add_argument("--task", metavar="FILE[:CLASS]", help="Python file to load the task from (default: none)")
    drafts = find_extension(PARTS["contract_init"])
    missing = partial(load_extension, PARTS["contract_init"], needed_for="embodied-env contract init")
    init = add(drafts.run if drafts else lambda _: missing(), "init", "write a draft contract of your robot")
    if drafts is not None:
        drafts.add_arguments(init)
    add(_list, "list", "list the shipped contracts, robots and teams")
    show = add(_show, "show", "show spaces, limits, sensors, safety, task and backends")
    show.add_argument("contract", **name)
    fingerprint = add(_fingerprint, "fingerprint", "print the fingerprint, which identifies comparable runs")
    fingerprint.add_argument("contract", **name)
    fingerprint.add_argument("--backend", help="backend whose profile fingerprint to print instead (default: none)")
    diff = add(_diff, "diff", "list the differences of two contracts; exit status 1 if their fingerprints differ")
    diff.add_argument("a", metavar="A", help="name or path of the first contract")
    diff.add_argument("b", metavar="B", help="name or path of the second contract")
    keys = add(_keys, "keys", "print the keys of a contract file, with their bounds, defaults and robot-file rules")
    keys.add_argument(
        "path", metavar="PATH", nargs="?", help="key, printed with those below it: safety.loads (default: all)"
    )
    picture = add(_picture, "picture", "render a picture of each contract in the embedded simulator")
    picture.add_argument("contracts", nargs="+", **name)
    picture.add_argument("--out", metavar="DIR", default=".", help="directory of the pictures, CONTRACT.png")
    add_force(picture, "the pictures")
    add_seed(picture, "seed of the reset")
    picture.add_argument("--trust-task", action="store_true", help="load the task that each contract names")


def run(args: argparse.Namespace) -> int:
    """Run the action and return its exit status."""
    return int(args.act(args))


def _picture(args: argparse.Namespace) -> int:
    """Render the contracts, or refuse an untrusted task before the first picture."""
    from embodied_env.tasks import load_task

    out, contracts = checked_path("--out", args.out), [load_contract(name) for name in args.contracts]
    for contract in contracts:
        load_task(contract, trust=args.trust_task)
    paths = [out / f"{contract.name}.png" for contract in contracts]
    check_new(*paths, force=args.force)
    pictures = [_render(contract, args.seed) for contract in contracts]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for picture, path in zip(pictures, paths, strict=True):
            write_file(path, picture, replace=args.force)
    except OSError as error:
        raise UsageError(f"--out: {error} (expected a directory to write to)") from None
    written = [str(path) for path in paths]
    if args.json:
        _print_json(written)
    else:
        say("\n".join(written))
    return SOUND


def _render(contract: Contract, seed: int) -> bytes:
    from embodied_env.core.reading_conversion import import_pillow
    from embodied_env.envs.embodied_env import EmbodiedEnv

    images = import_pillow("writing a picture").Image
    env = EmbodiedEnv(contract, backend="mujoco", render_mode="rgb_array")
    try:
        env.reset(seed=seed)
        picture = env.render()
    finally:
        env.close()
    content = BytesIO()
    images.fromarray(picture).save(content, "PNG")
    return content.getvalue()


def _list(args: argparse.Namespace) -> int:
    """Print one row for each shipped file, with its error for one that does not load."""
    rows: list[Row] = []
    for folder, kind in (("", "contract"), (ROBOTS, "robot"), ("teams", "team")):
        for name, file in (known_robots() if folder == ROBOTS else shipped_files(folder)).items():
            row: Row = {"name": name, "kind": kind, "robot": None, "task": None, "backends": []}
            try:
                row |= _summary(kind, file)
            except ContractError as error:
                row["task"] = f"invalid: {error.problem}"
            rows.append(row)
    if args.json:
        _print_json(rows)
    else:
        print_tables({"shipped": [{**row, "backends": ", ".join(row["backends"])} for row in rows]})
    return SOUND


def _summary(kind: str, file: Path) -> Row:
    if kind == "contract":
        contract = load_contract(file)
        task = contract.task.type.rpartition(":")[2]
        robot = contract.robot.name if contract.robot else None
        return {"robot": robot, "task": task, "backends": list(contract.backends)}
    if kind == "robot":
        _, robot_file = load_robot_file(str(file.resolve()))
        return {"robot": robot_file.name, "backends": list(robot_file.backends)}
    if (load_team := find_extension(PARTS["load_team"])) is None:
        return {}
    team = load_team(file)
    return {"robot": ", ".join(team.agents), "task": "one per robot", "backends": list(team.world.backends)}


def _fingerprint(args: argparse.Namespace) -> int:
    contract = load_contract(args.contract)
    result = {"contract": contract.name, "fingerprint": contract.fingerprint}
    if args.backend is not None:
        if args.backend not in contract.backends:
            raise UsageError(f"--backend: {one_of(args.backend, contract.backends)}")
        result |= {"backend": args.backend, "backend_fingerprint": contract.backend_fingerprint(args.backend)}
    if args.json:
        _print_json(result)
    else:
        say(result["fingerprint" if args.backend is None else "backend_fingerprint"])
    return SOUND


def _diff(args: argparse.Namespace) -> int:
    a, b = load_contract(args.a), load_contract(args.b)
    inside = differences(meaning(a, with_defaults=True), meaning(b, with_defaults=True))
    paths = {path for path, _, _ in inside}
    outside = [row for row in differences(_outside(a), _outside(b)) if row[0] not in paths]
    rows: list[Row] = [
        {"path": path.replace("task.parameters.", "task."), "a": x, "b": y, "in_fingerprint": is_inside}
        for is_inside, found in ((True, inside), (False, outside))
        for path, x, y in found
    ]
    equal = a.fingerprint == b.fingerprint
    if args.json:
        _print_json({"a": a.fingerprint, "b": b.fingerprint, "equal": equal, "differences": rows})
    else:
        if rows:
            print_tables({f"a: {args.a}, b: {args.b}": rows})
        verdict = "are equal" if equal else "differ"
        say(f"the fingerprints {verdict}: {a.fingerprint[:_SHORT]} {b.fingerprint[:_SHORT]}")
    return SOUND if equal else UNSOUND


def _keys(args: argparse.Namespace) -> int:
    found = [*declared_keys(ContractFields)]
    for alias, name in _SAME_PROFILE.items():
        args.path = re.sub(rf"^backends\.{alias}\b", f"backends.{name}", args.path or "")
    for name, target in PROFILES.items():
        if (profile := find_extension(target)) is not None:
            found += declared_keys(profile, f"backends.{name}.")
    return print_keys(found, args)


def print_keys(keys: Sequence[Key], args: argparse.Namespace) -> int:
    """Print the keys at and below the path of `args`, in which a name may stand for `<name>`."""
    wanted = _parts(args.path) if args.path else []
    names = [_parts(key.name) for key in keys]
    found = (vars(key) for key, parts in zip(keys, names, strict=True) if _is_below(parts, wanted))
    rows = [{**row, "meaning": _LINK.sub(r"\1", row["meaning"])} for row in found]
    if not rows:
        depth = next(n for n in reversed(range(len(wanted))) if any(_is_below(parts, wanted[:n]) for parts in names))
        known = {parts[depth] for parts in names if _is_below(parts, wanted[:depth]) and len(parts) > depth}
        raise UsageError(f"{'.'.join(wanted[: depth + 1])}: unknown key {one_of(wanted[depth], known)}")
    if args.json:
        _print_json(rows)
    else:
        columns = [column for column in rows[0] if any(row[column] for row in rows)]
        print_tables({"keys": [{column: row[column] or None for column in columns} for row in rows]})
    return SOUND


def _parts(path: str) -> list[str]:
    """Return the keys of a path such as ``inputs.obs.parts[0].unit``, without list indices."""
    return re.sub(r"\[\d*\]", "", path).split(".")


def _is_below(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    is_long = len(parts) >= len(wanted)
    return is_long and all(part in ("<name>", name) for part, name in zip(parts, wanted, strict=False))


def _outside(contract: Contract) -> Row:
    """Return the keys outside the fingerprint, in the structure of the file."""
    return {
        "name": contract.name,
        "sensors": {name: {"topic": sensor.topic} for name, sensor in contract.sensors.items()},
        "actuators": {name: {"topic": actuator.topic} for name, actuator in contract.actuators.items()},
        "task": {"instruction": contract.task.instruction},
        "backends": to_plain(contract.backends),
    }


def _show(args: argparse.Namespace) -> int:
    description = describe_contract(load_contract(args.contract))
    if args.json:
        _print_json(description)
    else:
        print_tables({key.replace("_", " "): without_empty_columns(rows) for key, rows in description.items()})
    return SOUND


def describe_contract(contract: Contract) -> dict[str, Any]:
    """Return the sections of ``show`` in JSON types, each a mapping or a list of rows."""
    plain = to_plain(contract)
    sensors, actuators = plain["sensors"], plain["actuators"]
    heading = {key: plain[key] for key in ("name", "version", "source", "control_period_s", "applied_actions")}
    space = contract.action_space
    boxes = space if isinstance(space, spaces.Dict) else {next(iter(actuators)): space}
    return {
        "contract": {**heading, "fingerprint": contract.fingerprint},
        "episode": plain["episode"],
        "observation_space": [_box_row("key", key, box) for key, box in contract.observation_space.items()],
        "action_space": [_box_row("actuator", name, box) for name, box in boxes.items()],
        "actuators": [{"actuator": name, **_without("joints", spec)} for name, spec in actuators.items()],
        "limits_after_margins": [row for name in actuators for row in _joint_rows(name, contract)],
        "sensors": [{"sensor": name, **_without("fields", spec)} for name, spec in sensors.items()],
        "fields": [row for name, sensor in contract.sensors.items() for row in _field_rows(name, sensor)],
        "safety": plain["safety"],
        "task": {**_without("parameters", task_meaning(contract) | plain["task"]), **plain["task"]["parameters"]},
        "reset_options": [{"option": name, **spec} for name, spec in plain["reset_options"].items()],
        "backends": {
            name: {"fingerprint": contract.backend_fingerprint(name), "profile": profile}
            for name, profile in plain["backends"].items()
        },
        **({"blocks": plain["blocks"]} if plain["blocks"] else {}),
    }


def _without(key: str, row: Row) -> Row:
    return {name: value for name, value in row.items() if name != key}


def _box_row(title: str, name: str, box: Any) -> Row:  # noqa: ANN401 - a Box, typed as any space
    bounds = {"low": _bound(box.low), "high": _bound(box.high)}
    return {title: name, "shape": list(box.shape), "dtype": str(box.dtype), **bounds}


def _bound(values: FloatArray) -> Any:  # noqa: ANN401 - JSON types
    """Return one number if all are equal, else nested lists, with None for infinite values."""
    found = values.astype(object)
    found[~np.isfinite(values)] = None
    return found.flat[0] if (values == values.flat[0]).all() else found.tolist()


def _field_rows(name: str, sensor: SensorSpec) -> list[Row]:
    """Return the shape, dtype and observation key, if any, of each field of a sensor."""
    is_seen = sensor.visibility == "agent"
    rows = []
    for layout in field_layouts(name, sensor):
        resolved = {"shape": list(layout.shape), "dtype": str(layout.dtype)}
        row = {"sensor": name, "field": layout.field, "observation_key": layout.key if is_seen else None}
        rows.append({**row, **to_plain(sensor.fields[layout.field]), **resolved})
    return rows


def _joint_rows(name: str, contract: Contract) -> list[Row]:
    """Return the limits of the gate and the action range of each joint, in SI units."""
    actuator = contract.actuators[name]
    limits = actuator.limits(contract.safety.margins, name)
    scale = action_scale(actuator, limits, contract.control_period_s)
    suffix = "/s" if actuator.is_velocity else " per step" if actuator.command == "position_delta" else ""
    return [
        {
            "actuator": name,
            "joint": joint,
            "unit": spec.unit if isinstance(spec.unit, str) else ", ".join(spec.unit),
            "position": spec.position and [limits.position_low[i].item(), limits.position_high[i].item()],
            "velocity_per_s": _finite(high) if low == -high else [low, high],
            "acceleration_per_s2": _finite(limits.acceleration[i].item()),
            "deceleration_per_s2": _finite(limits.deceleration[i].item()),
            "action": [scale.low[i].item(), scale.high[i].item()],
            "action_si": [scale.si_low[i].item(), scale.si_high[i].item()],
            "action_si_unit": f"{spec.unit}{suffix}",
        }
        for i, (joint, spec) in enumerate(actuator.joints.items())
        for low, high in [(limits.velocity_low[i].item(), limits.velocity_high[i].item())]
    ]


def _finite(limit: float) -> float | None:
    """Return a limit, or None for the goal of an action server, which has none."""
    return limit if math.isfinite(limit) else None


def _print_json(value: object) -> None:
    say(json.dumps(value, indent=2, allow_nan=False))
