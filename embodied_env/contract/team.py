"""Several robots in one world: each has a contract of its own, and the world has one made of all of them.

A team is a YAML file in ``config/teams`` (``docs/multi_agent.md``). What a robot names is put behind its name: its
sensor `odom` is `cart_1_odom` in the world, on the topic ``cart_1/odom`` in the frame ``cart_1/odom``, and reads the
site `cart_1_base` of the model. No gate, task or policy reads the world's contract: only a backend is built from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from embodied_env.contract import Contract, load_contract, parse_contract
from embodied_env.contract.files import read_text_file
from embodied_env.contract.frozen_dict import freeze
from embodied_env.contract.loader import config_folders, dump_contract, parse_as
from embodied_env.contract.schema import (
    EACH_ITS_OWN,
    SCHEMA,
    ActuatorSpec,
    Episode,
    FieldSpec,
    ResetOption,
    SensorSpec,
    TaskSpec,
)
from embodied_env.contract.value_checks import check_name, one_of, require
from embodied_env.contract.yaml_text import read_yaml
from embodied_env.errors import ContractError

WORLD = "world"
"""What is nobody's: a key beside the agents in ``reset(options=...)``, so no robot is called so."""

_BACKENDS = ("mujoco", "mujoco_ros")  # which run one model
_ROBOTS_OWN = ("sources", "draws", "drives")  # the keys of its profile that a robot brings into the world
_NAMES = ("site", "distance", "sensors", "camera", "body", "ignore", "relative_to", "mocap", "pose", "left", "right")
"""The keys of a profile under which names of the model stand."""


class EachItsOwn:
    """The task in the contract of a team's world. It judges nothing: each robot has a task of its own."""

    version = 1


@dataclass(frozen=True, kw_only=True)
class TeamMember:
    """A robot of the file: `changes` are put over its contract, key by key; null takes a key away."""

    contract: str  # a name, or a file; a relative one starts from the team's folder
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TeamWorld:
    """What is nobody's. `shared` are names of the model that every robot means as they are."""

    mujoco: Mapping[str, Any]  # a profile: the model, movers, what draws the options below, what is rendered
    shared: tuple[str, ...] = ()
    reset_options: Mapping[str, ResetOption] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _File:
    """A team's file, but for its schema."""

    name: str
    agents: Mapping[str, TeamMember]
    world: TeamWorld


@dataclass(frozen=True, kw_only=True)
class Team:
    """Robots by name, in the order of their commands, and the contract of the world that they share.

    `options` are the reset options of the world that are no robot's.
    """

    name: str
    agents: Mapping[str, Contract]
    world: Contract
    options: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        """Freeze the mapping."""
        freeze(self, "agents")


def load_team(name_or_path: str | Path | Team) -> Team:
    """Load and check a team: the name of a shipped one (``two_carts``), a path to a YAML file, or a Team.

    Raises:
        ContractError: for the first thing that is wrong, with its YAML path, its value and what is allowed.
    """
    if isinstance(name_or_path, Team):
        return name_or_path
    file = _find(str(name_or_path))
    try:
        text = read_text_file(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError("", f"the file cannot be read: {error}", source=str(file)) from None
    return parse_team(text, source=str(file))


def parse_team(text: str, *, source: str) -> Team:
    """Build a Team from YAML text; raises ContractError like `load_team`."""
    document = read_yaml(text, source)
    if not isinstance(document, dict):
        raise ContractError("", f"a team is a mapping, not {type(document).__name__}", source=source)
    schema = document.pop("team", None)
    if schema != SCHEMA:
        raise ContractError("team", f"the schema {schema!r} is not known; allowed: {SCHEMA}", source=source)
    parsed = parse_as(_File, document, source=source)
    agents = {name: _contract_of(name, member, source) for name, member in parsed.agents.items()}
    try:
        _check_agents(agents)
        world = _world_of(parsed, agents, source)
    except ContractError as error:
        raise ContractError(error.path, error.problem, source=source) from None
    return Team(name=parsed.name, agents=agents, world=world, options=tuple(parsed.world.reset_options), source=source)


def name_in_world(agent: str, name: str) -> str:
    """Return what `name`, of a robot's sensor, actuator, joint or reset option, is called in the world."""
    return f"{agent}_{name}"


def _find(text: str) -> Path:
    is_path = text.endswith((".yaml", ".yml"))
    if is_path and os.path.isfile(text):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        return Path(text)
    known: dict[str, Path] = {}
    for folder in config_folders():
        for file in sorted((folder / "teams").glob("*.yaml")):
            known.setdefault(file.stem, file)
    if not is_path and text in known:
        return known[text]
    raise ContractError("", f"no such {'file' if is_path else 'team'}: {one_of(text, known)}, or a path to a file")


def _contract_of(name: str, member: TeamMember, source: str) -> Contract:
    """Return the contract of a robot, with its changes."""
    beside = Path(source).parent / member.contract
    try:
        base = load_contract(beside if beside.is_file() else member.contract)
        changed = _changed(json.loads(dump_contract(base)), member.changes)
        return parse_contract(json.dumps(changed), source=base.source) if member.changes else base
    except ContractError as error:
        path = f"agents.{name}" + (f": {error.path}" if error.path else "")
        raise ContractError(path, error.problem, source=source) from None


def _changed(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `document` with `changes` put over it: mappings are merged, null takes a key away."""
    changed = dict(document)
    for key, value in changes.items():
        old = changed.get(key)
        if value is None:
            changed.pop(key, None)
        elif isinstance(value, Mapping):
            changed[key] = _changed(old if isinstance(old, Mapping) else {}, value)
        else:
            changed[key] = value
    return changed


def _check_agents(agents: Mapping[str, Contract]) -> None:
    require(len(agents) > 0, "agents", "there is none; at least one robot is needed")
    first, period_s = next((name, contract.control_period_s) for name, contract in agents.items())
    for name, contract in agents.items():
        check_name(f"agents.{name}", name)
        require(name != WORLD, f"agents.{name}", f"{WORLD!r} is what is nobody's; allowed: another name")
        require(
            contract.control_period_s == period_s,
            f"agents.{name}: control_period_s",
            f"{contract.control_period_s} s is not allowed in one world; allowed: {period_s} s, as {first} has",
        )
        require(
            "mujoco" in contract.backends,
            f"agents.{name}: backends.mujoco",
            "the profile is missing: it says what the sensors read",
        )


def _world_of(file: _File, agents: Mapping[str, Contract], source: str) -> Contract:
    """Return the contract of the world: everything of every robot, behind its name."""
    options = dict(file.world.reset_options)
    profile: dict[str, Any] = {key: dict(file.world.mujoco.get(key, {})) for key in _ROBOTS_OWN}
    sensors: dict[str, SensorSpec] = {}
    actuators: dict[str, ActuatorSpec] = {}
    for agent, contract in agents.items():
        path = f"agents.{agent}"
        _add(sensors, {n: _sensor(agent, s) for n, s in contract.sensors.items()}, agent, f"{path}: sensors")
        _add(actuators, {n: _actuator(agent, a) for n, a in contract.actuators.items()}, agent, f"{path}: actuators")
        _add(options, contract.reset_options, agent, f"{path}: reset_options")
        for key, part in _brought(agent, contract, file.world.shared).items():
            _add(profile[key], part, agent, f"{path}: backends.mujoco.{key}")
    whole = {**file.world.mujoco, **profile}
    fake: dict[str, Any] = {"fake": {}} if all("fake" in contract.backends for contract in agents.values()) else {}
    fingerprints = {agent: contract.fingerprint for agent, contract in agents.items()}
    return Contract(
        name=file.name,
        version=1,
        control_period_s=next(iter(agents.values())).control_period_s,
        episode=Episode(horizon_steps=max(contract.episode.horizon_steps for contract in agents.values())),
        sensors=sensors,
        actuators=actuators,
        task=TaskSpec(type=EACH_ITS_OWN, parameters={"agents": fingerprints}),
        reset_options=options,
        backends={**fake, **dict.fromkeys(_BACKENDS, whole)},
        source=source,
    )


def _add(whole: dict[str, Any], part: Mapping[str, Any], agent: str, path: str) -> None:
    """Add what is a robot's, behind its name; raises ContractError for a name that two have."""
    for name, value in part.items():
        known = name_in_world(agent, name)
        require(known not in whole, f"{path}.{name}", f"its name in the world, {known!r}, is taken; allowed: another")
        whole[known] = value


def _sensor(agent: str, sensor: SensorSpec) -> SensorSpec:
    """Return a robot's sensor as the world has it."""
    fields: dict[str, FieldSpec] = {
        name: spec
        if spec.joints is None
        else replace(spec, joints=tuple(name_in_world(agent, joint) for joint in spec.joints))
        for name, spec in sensor.fields.items()
    }
    return replace(
        sensor,
        topic=_topic(agent, sensor.topic),
        fields=fields,
        frame=_frame(agent, sensor.frame),
        child_frame=_frame(agent, sensor.child_frame),
    )


def _actuator(agent: str, actuator: ActuatorSpec) -> ActuatorSpec:
    """Return a robot's actuator as the world has it. The axes of a twist are no joints, and keep their names."""
    is_twist = actuator.command == "twist"
    joints = {joint if is_twist else name_in_world(agent, joint): limits for joint, limits in actuator.joints.items()}
    return replace(actuator, topic=_topic(agent, actuator.topic), frame=_frame(agent, actuator.frame), joints=joints)


def _topic(agent: str, topic: str) -> str:
    """Return a topic in the namespace of a robot."""
    return f"/{agent}{topic}" if topic.startswith("/") else f"{agent}/{topic.removeprefix('~/')}"


def _frame(agent: str, frame: str | None) -> str | None:
    return None if frame is None else f"{agent}/{frame}"


def _brought(agent: str, contract: Contract, shared: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return what a robot brings into the profile of the world, with its names of the model behind its own."""
    profile = contract.backends["mujoco"]

    def in_model(name: str) -> str:
        return name if name in shared else name_in_world(agent, name)

    brought: dict[str, dict[str, Any]] = {}
    for key in _ROBOTS_OWN:
        entries = (profile.get(key) or {}).items()
        if key == "draws":  # what draws an option that a change has taken away is taken away with it
            entries = ((name, draw) for name, draw in entries if name in contract.reset_options)
        brought[key] = {name: _renamed(entry, in_model) for name, entry in entries}
    return brought


def _renamed(value: Any, rename: Callable[[str], str], *, is_name: bool = False) -> Any:  # noqa: ANN401 - JSON types
    """Return an entry of a profile with its names of the model changed: those that stand under one of `_NAMES`."""
    if isinstance(value, Mapping):
        return {key: _renamed(item, rename, is_name=is_name or key in _NAMES) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(item, rename, is_name=is_name) for item in value]
    return rename(value) if is_name and isinstance(value, str) else value
