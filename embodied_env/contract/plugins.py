"""Find built-in plug-ins and those of other packages by kind and name.

A built-in plug-in is a row of `BUILT_IN`. Another package declares the same name and target as an entry point of the
group ``embodied_env.<kind>``. A look-up imports no target (`embodied_env.core.extensions.load_plugin` does).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from embodied_env.errors import EmbodiedEnvError, UsageError, did_you_mean

BUILT_IN: Mapping[str, dict[str, str]] = {
    "backends": {  # of a name with several pacings, the first is the default
        "fake.lockstep": "embodied_env.backends.fake_backend:FakeBackend",
        "fake.realtime": "embodied_env.backends.fake_backend:realtime_fake",
        "mujoco.lockstep": "embodied_env.backends.mujoco_backend:MujocoBackend",
        "mujoco.realtime": "embodied_env.backends.mujoco_realtime_backend:RealtimeMujocoBackend",
        "mujoco_ros.lockstep": "embodied_env.ros.embedded_sim.lockstep_backend:MujocoRosBackend",
        "mujoco_ros.realtime": "embodied_env.ros.embedded_sim.realtime_backend:RealtimeMujocoRosBackend",
        "gazebo.lockstep": "embodied_env.extensions.gazebo.external_sim_backend:GazeboBackend",
        "simulation_interfaces.lockstep": (
            "embodied_env.extensions.gazebo.external_sim_backend:SimulationInterfacesBackend"
        ),
        "real.realtime": "embodied_env.ros.robot.robot_backend:RealBackend",
        "replay.lockstep": "embodied_env.extensions.replay.replay_backend:ReplayBackend",
        "replay.realtime": "embodied_env.extensions.replay.replay_backend:ReplayBackend",
    },
    "policies": {
        "hold": "embodied_env.policies.built_in:make_hold",
        "random": "embodied_env.policies.built_in:make_random",
        "scripted": "embodied_env.policies.built_in:make_scripted",
        "onnx": "embodied_env.policies.onnx_model:load_onnx",
        "sb3": "embodied_env.policies.sb3_model:load_sb3",
        "openpi": "embodied_env.extensions.remote.openpi_model:load_openpi",
        "gr00t": "embodied_env.extensions.remote.gr00t_model:load_gr00t",
        "lerobot": "embodied_env.policies.lerobot_model:load_lerobot",
    },
    "tasks": {
        "navigate": "embodied_env.tasks.navigate:Navigate",
        "no_goal": "embodied_env.tasks.no_goal:NoGoal",
        "open_door": "embodied_env.tasks.open_door:OpenDoor",
        "reach": "embodied_env.tasks.reach:Reach",
    },
    "gates": {"workspace": "embodied_env.envs.filters_from_contract:make_workspace_filter"},
    "interlocks": {
        "observation": "embodied_env.safety.interlocks:ObservationGate",
        "tracking": "embodied_env.safety.interlocks:TrackingGate",
        "force": "embodied_env.safety.interlocks:ForceGate",
        "latency": "embodied_env.safety.interlocks:LatencyGate",
    },
    "action_stages": {},
    "observers": {"rerun": "embodied_env.extensions.viewers.rerun_viewer:open_view"},
    "exporters": {
        "jsonl": "embodied_env.extensions.export.json_lines:JsonLines",
        "parquet": "embodied_env.extensions.export.parquet_files:ParquetFiles",
        "minari": "embodied_env.extensions.export.minari_dataset:MinariDataset",
        "lerobot": "embodied_env.extensions.export.lerobot_dataset:LerobotDataset",
    },
    "robots": {},  # those of this package are the files of `config/robots`
    "contract_blocks": {},
}
"""Kind -> name -> ``module:attribute``; of a robot file ``package:FILE.yaml``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One plug-in, not imported yet."""

    group: str  # of its entry point
    name: str
    target: str
    package: str  # that registers it

    @property
    def is_built_in(self) -> bool:
        """Whether it is a row of `BUILT_IN`."""
        return self.package == _PACKAGE


_PACKAGE = "embodied_env"


def plugin_names(kind: str) -> list[str]:
    """Return the names of a kind, built-in ones first."""
    return list(dict.fromkeys([*BUILT_IN[kind], *(plugin.name for plugin in installed_plugins(kind))]))


def find_plugin(kind: str, name: str) -> Plugin | None:
    """Return the plug-in of a name, or None.

    Raises UsageError if two packages register it.
    """
    group = f"{_PACKAGE}.{kind}"
    own = BUILT_IN[kind].get(name)
    found = [] if own is None else [Plugin(group=group, name=name, target=own, package=_PACKAGE)]
    found += [plugin for plugin in installed_plugins(kind) if plugin.name == name]
    if len(found) > 1:
        packages = " and ".join(plugin.package for plugin in found)
        raise UsageError(f"{name!r} is registered twice in the group {group}: by {packages}; uninstall one of them")
    return found[0] if found else None


def get_plugin(kind: str, name: str, *, error: Callable[[str], EmbodiedEnvError] = UsageError) -> Plugin:
    """Return the plug-in of a name.

    Raises `error` with the known names for an unknown or ambiguous one.
    """
    try:
        found = find_plugin(kind, name)
    except UsageError as ambiguous:
        raise error(str(ambiguous)) from None
    if found is None:
        known = plugin_names(kind)
        expected = f"expected one of: {', '.join(known) or 'none is installed'}; group {_PACKAGE}.{kind}"
        raise error(f"unknown name {name!r} ({expected}){did_you_mean(name, known)}")
    return found


def installed_plugins(kind: str) -> tuple[Plugin, ...]:
    """Return the plug-ins of other packages."""
    return _read_entry_points(tuple(map(str, sys.path)))[kind]


@functools.lru_cache(maxsize=1)
def _read_entry_points(_path: tuple[str, ...]) -> Mapping[str, tuple[Plugin, ...]]:
    """Return the plug-ins of other packages by kind. The search of all installed packages takes milliseconds."""
    every, found = entry_points(), {}
    for kind in BUILT_IN:
        group = f"{_PACKAGE}.{kind}"
        found[kind] = tuple(
            Plugin(
                group=group,
                name=point.name,
                target=point.value,
                package="an unknown package" if point.dist is None else point.dist.name,
            )
            for point in every.select(group=group)
        )
    return found
