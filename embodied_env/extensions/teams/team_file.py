"""Load teams of several robots in one world.

Each robot has its own contract, and the world's contract combines all of them. A team is a YAML file in
``config/teams`` (``docs/howto/several_robots.md``). A robot's names get its own name as a prefix: its sensor `odom` is
`cart_1_odom` in the world, on the topic ``cart_1/odom`` in the frame ``cart_1/odom``, and reads the site `cart_1_base`
of the model. Only a backend is built from the world's contract; gates, tasks and policies use the contracts of the
robots.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen

from embodied_env.contract import Contract, load_contract, parse_contract
from embodied_env.contract.actuator_schema import ActuatorSpec
from embodied_env.contract.contract_loader import dump_contract, find_contract, read_contract_file, read_document
from embodied_env.contract.contract_schema import EACH_ITS_OWN, EpisodeSpec, ResetOption, TaskSpec
from embodied_env.contract.frozen_dict import FrozenFields
from embodied_env.contract.key_types import Name
from embodied_env.contract.model_files import EMBEDDED, with_model_hashes
from embodied_env.contract.sensor_schema import SensorSpec
from embodied_env.contract.typed_values import parse_as
from embodied_env.contract.value_checks import allow, naming_file
from embodied_env.errors import ContractError

WORLD = "world"
"""The key of the world in ``reset(options=...)``, so no robot may have this name."""

_ROBOTS_OWN = (
    "sources",
    "draws",
    "drives",
    "site_drives",
)  # the keys of its profile that a robot brings into the world
_NAMES = {"site", "distance", "sensors", "camera", "body", "ignore", "relative_to", "mocap", "pose", "left", "right"}
_NAMES |= {"joints", "mass", "friction", "gain", "damping", "delay"}
"""The keys of a profile whose values are names of the model, or sensors."""


@dataclass(frozen=True, kw_only=True)
class TeamMember:
    """A robot of the file, with `changes` merged over its contract.

    In `changes`, null removes a key.
    """

    contract: str  # a name or a file, relative to the team's folder
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TeamWorld:
    """The part of the world that belongs to no robot.

    `shared` has names of the model without a prefix.
    """

    mujoco: Mapping[str, Any]  # a profile: the model, movers, the draws of the options below, rendering
    shared: tuple[str, ...] = ()
    reset_options: Mapping[str, ResetOption] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _File:
    name: str
    agents: Annotated[Mapping[Name, TeamMember], MinLen(1)]
    world: TeamWorld


@dataclass(frozen=True, kw_only=True)
class Team(FrozenFields):
    """Robots by name, in the order of their commands, and the contract of their world.

    `options` are the reset options of the world that belong to no robot.
    """

    name: str
    agents: Mapping[str, Contract]
    world: Contract
    options: tuple[str, ...] = ()
    source: str = ""


def load_team(name_or_path: str | Path | Team) -> Team:
    """Load and validate a team.

    It is given by the name of a shipped one (``two_carts``), by a path to a YAML file, or as a Team. Raises
    ContractError for the first error.
    """
    if isinstance(name_or_path, Team):
        return name_or_path
    file = find_contract(name_or_path, kind="team", folder="teams")
    return parse_team(read_contract_file(file), source=str(file))


def parse_team(text: str, *, source: str) -> Team:
    """Build a Team from YAML text, or raise ContractError like `load_team`."""
    parsed = parse_as(_File, read_document(text, "team", source), source=source)
    agents = {name: _contract_of(name, member, source) for name, member in parsed.agents.items()}
    with naming_file(source):
        _check_agents(agents)
        world = _world_of(parsed, agents, source)
    return Team(name=parsed.name, agents=agents, world=world, options=tuple(parsed.world.reset_options), source=source)


def name_in_world(agent: str, name: str) -> str:
    """Return the name in the world of a robot's sensor, actuator, joint or reset option."""
    return f"{agent}_{name}"


def _contract_of(name: str, member: TeamMember, source: str) -> Contract:
    local = Path(source).parent / member.contract
    try:
        base = load_contract(local if local.is_file() else member.contract)
        if not member.changes:
            return base
        merged = _merged(json.loads(dump_contract(base)), member.changes)
        return parse_contract(json.dumps(merged), source=base.source)
    except ContractError as error:
        path = f"agents.{name}" + (f": {error.path}" if error.path else "")
        raise ContractError(path, error.problem, source=source) from None


def _merged(document: Any, changes: Any) -> Any:  # noqa: ANN401 - JSON types
    """Return `document` with `changes` merged over it, in which null removes a key."""
    if not isinstance(changes, Mapping):
        return changes
    known = document if isinstance(document, Mapping) else {}
    merged = {**known, **{key: _merged(known.get(key), value) for key, value in changes.items()}}
    return {key: value for key, value in merged.items() if key not in changes or changes[key] is not None}


def _check_agents(agents: Mapping[str, Contract]) -> None:
    first, period_s = next((name, contract.control_period_s) for name, contract in agents.items())
    for name, contract in agents.items():
        allow(name != WORLD, f"agents.{name}", f"reserved name {WORLD!r}", "another name")
        own_s, path = contract.control_period_s, f"agents.{name}: control_period_s"
        allow(own_s == period_s, path, f"{own_s} s", f"{period_s} s, as {first!r} in the same world")
        has_profile = "mujoco" in contract.backends
        allow(has_profile, f"agents.{name}: backends.mujoco", "missing", "a profile with the sources of the sensors")
        path, expected = f"agents.{name}: backends.mujoco.identified", "none: the model is that of the world"
        allow(contract.backends["mujoco"].get("identified") is None, path, "given", expected)


def _world_of(file: _File, agents: Mapping[str, Contract], source: str) -> Contract:
    """Return the contract of the world from every robot's parts, prefixed with its name."""
    options = dict(file.world.reset_options)
    for name, option in options.items():
        path = f"world.reset_options.{name}.observed"
        allow(not option.observed, path, "true", "false: no robot observes an option of the world")
    profile: dict[str, Any] = {key: dict(file.world.mujoco.get(key, {})) for key in _ROBOTS_OWN}
    sensors: dict[str, SensorSpec] = {}
    actuators: dict[str, ActuatorSpec] = {}
    for agent, contract in agents.items():
        path = f"agents.{agent}"
        _add(sensors, {n: _sensor(agent, s) for n, s in contract.sensors.items()}, agent, f"{path}: sensors")
        _add(actuators, {n: _actuator(agent, a) for n, a in contract.actuators.items()}, agent, f"{path}: actuators")
        _add(options, contract.reset_options, agent, f"{path}: reset_options")
        for key, part in _own_profile(agent, contract, file.world.shared).items():
            for name, entry in part.items():
                is_own = key != "draws" or not isinstance(entry, Mapping) or "command_delay" not in entry
                where, expected = f"{path}: backends.mujoco.draws.{name}.command_delay", "a draw of the world, for all"
                allow(is_own, where, "given", expected)
            _add(profile[key], part, agent, f"{path}: backends.mujoco.{key}")
    whole = {**file.world.mujoco, **profile}
    fake: dict[str, Any] = {"fake": {}} if all("fake" in contract.backends for contract in agents.values()) else {}
    fingerprints = {agent: contract.fingerprint for agent, contract in agents.items()}
    world = Contract(
        name=file.name,
        version=1,
        control_period_s=next(iter(agents.values())).control_period_s,
        episode=EpisodeSpec(horizon_steps=max(contract.episode.horizon_steps for contract in agents.values())),
        sensors=sensors,
        actuators=actuators,
        task=TaskSpec(type=EACH_ITS_OWN, parameters={"agents": fingerprints}),
        reset_options=options,
        backends={**fake, **dict.fromkeys(EMBEDDED, whole)},
        source=source,
    )
    return with_model_hashes(world)


def _add(whole: dict[str, Any], part: Mapping[str, Any], agent: str, path: str) -> None:
    for name, value in part.items():
        known = name_in_world(agent, name)
        allow(known not in whole, f"{path}.{name}", f"duplicate name {known!r} in the world", "unique names")
        whole[known] = value


def _sensor(agent: str, sensor: SensorSpec) -> SensorSpec:
    fields = {
        name: spec if spec.joints is None else replace(spec, joints=tuple(name_in_world(agent, j) for j in spec.joints))
        for name, spec in sensor.fields.items()
    }
    topic, frame, child_frame = _topic(agent, sensor.topic), _frame(agent, sensor.frame), sensor.child_frame
    return replace(sensor, topic=topic, fields=fields, frame=frame, child_frame=_frame(agent, child_frame))


def _actuator(agent: str, actuator: ActuatorSpec) -> ActuatorSpec:
    is_twist = actuator.command == "twist"  # its axes keep their names
    joints = {joint if is_twist else name_in_world(agent, joint): limits for joint, limits in actuator.joints.items()}
    gripper, topic, frame = actuator.gripper, _topic(agent, actuator.topic), _frame(agent, actuator.frame)
    if gripper is not None:
        fingers = {name_in_world(agent, finger): factor for finger, factor in gripper.mimic.items()}
        gripper = replace(gripper, mimic=fingers)
    return replace(actuator, topic=topic, frame=frame, joints=joints, gripper=gripper)


def _topic(agent: str, topic: str) -> str:
    return f"/{agent}{topic}" if topic.startswith("/") else f"{agent}/{topic.removeprefix('~/')}"


def _frame(agent: str, frame: str | None) -> str | None:
    return None if frame is None else f"{agent}/{frame}"


def _own_profile(agent: str, contract: Contract, shared: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return a robot's entries for the profile of the world, with prefixed model names."""
    profile = contract.backends["mujoco"]

    def in_model(name: str) -> str:
        return name if name in shared else name_in_world(agent, name)

    own: dict[str, dict[str, Any]] = {}
    for key in _ROBOTS_OWN:
        entries = (profile.get(key) or {}).items()
        if key == "draws":  # a change may have removed the option of a draw
            entries = ((name, draw) for name, draw in entries if name in contract.reset_options)
        own[key] = {name: _renamed(entry, in_model) for name, entry in entries}
    return own


def _renamed(value: Any, rename: Callable[[str], str], *, is_name: bool = False) -> Any:  # noqa: ANN401 - JSON types
    """Rename the model names in a profile entry, which are the values of keys in `_NAMES`."""
    if isinstance(value, Mapping):
        return {key: _renamed(item, rename, is_name=is_name or key in _NAMES) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(item, rename, is_name=is_name) for item in value]
    return rename(value) if is_name and isinstance(value, str) else value
