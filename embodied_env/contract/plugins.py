"""Find built-in plug-ins and those of other packages by kind and name.

A built-in plug-in is a row of `BUILT_IN`. Another package declares the same name and target as an entry point of the
group ``embodied_env.<kind>``. A look-up imports no target (`embodied_env.core.plugin_loading.load_plugin` does).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from embodied_env.errors import EmbodiedEnvError, UsageError, did_you_mean

POLICY_FORMATS: Mapping[str, tuple[str, str]] = {
    "hold": ("embodied_env.policies.built_in:make_hold", "keeps the joint positions"),
    "random": ("embodied_env.policies.built_in:make_random", "draws from the action space"),
    "scripted": ("embodied_env.policies.built_in:make_scripted", "the baseline of the task"),
    "onnx:FILE": ("embodied_env.policies.onnx_model:load_onnx", "computed by onnxruntime (extra `onnx`)"),
    "sb3:FILE.zip": (
        "embodied_env.policies.sb3_model:load_sb3",
        "any algorithm of Stable-Baselines3 (extra `train`); a pickle, which needs `--trust-policy` (`trust=True`)",
    ),
    "lerobot:DIR": (
        "embodied_env.policies.lerobot_model:load_lerobot",
        "a pretrained directory of LeRobot, [through its own library](../howto/lerobot.md)",
    ),
    "run:RUN#EPISODE": (
        "embodied_env.extensions.replay.run_playback:load_run",
        "[plays a recorded run](../howto/playback.md), open loop; without `#EPISODE`, each of its episodes in turn",
    ),
    "openpi://host:port": (
        "embodied_env.extensions.remote.openpi_model:load_openpi",
        "on a [policy server](#policy-servers) with openpi's protocol, such as `embodied-env serve` (extra `remote`)",
    ),
    "gr00t://host:port": (
        "embodied_env.extensions.remote.gr00t_model:load_gr00t",
        "on a policy server of Isaac GR00T (extra `remote`)",
    ),
}
"""Address of a policy -> ``module:attribute`` of its loader, and its meaning in the reference."""

ADDRESSES = (
    *(form for form in POLICY_FORMATS if ":" not in form),
    *("module:callable", "module:factory(literals)"),
    *(form for form in POLICY_FORMATS if ":" in form),
)
"""The forms of an address of `load_policy`, for help and messages; other packages may add formats."""

BUILT_IN: Mapping[str, dict[str, str]] = {
    "backends": {  # of a name with several pacings, the first is the default
        "fake.lockstep": "embodied_env.backends.fake_backend:FakeBackend",
        "fake.realtime": "embodied_env.backends.fake_backend:realtime_fake",
        "mujoco.lockstep": "embodied_env.backends.mujoco_backend:MujocoBackend",
        "mujoco.realtime": "embodied_env.backends.mujoco_realtime_backend:RealtimeMujocoBackend",
        "mujoco_ros.lockstep": "embodied_env.ros.embedded_sim.lockstep_backend:MujocoRosBackend",
        "mujoco_ros.realtime": "embodied_env.ros.embedded_sim.realtime_backend:RealtimeMujocoRosBackend",
        "gazebo.lockstep": "embodied_env.extensions.gazebo.gazebo_backend:GazeboBackend",
        "simulation_interfaces.lockstep": (
            "embodied_env.extensions.gazebo.external_sim_backend:SimulationInterfacesBackend"
        ),
        "real.realtime": "embodied_env.ros.robot.robot_backend:make_real_backend",
        "replay.lockstep": "embodied_env.extensions.replay.replay_backend:ReplayBackend",
        "replay.realtime": "embodied_env.extensions.replay.replay_backend:ReplayBackend",
    },
    "policies": {form.partition(":")[0]: target for form, (target, _) in POLICY_FORMATS.items()},
    "tasks": {
        "navigate": "embodied_env.tasks.navigate:Navigate",
        "no_goal": "embodied_env.tasks.no_goal:NoGoal",
        "open_door": "embodied_env.tasks.open_door:OpenDoor",
        "reach": "embodied_env.tasks.reach:Reach",
    },
    "gates": {"workspace": "embodied_env.envs.filters_from_contract:make_workspace_filter"},
    "interlocks": {  # in the order of their gates
        "observation": "embodied_env.safety.interlocks.observation:ObservationGate",
        "tracking": "embodied_env.safety.interlocks.tracking:TrackingGate",
        "force": "embodied_env.safety.interlocks.force:ForceGate",
        "loads": "embodied_env.safety.interlocks.loads:LoadGate",
        "latency": "embodied_env.safety.interlocks.latency:LatencyGate",
    },
    "action_stages": {},
    "observers": {"view": "embodied_env.extensions.viewers.view_target:open_view"},
    "exporters": {
        "jsonl": "embodied_env.extensions.export.json_lines:JsonLines",
        "parquet": "embodied_env.extensions.export.parquet_files:ParquetFiles",
        "minari": "embodied_env.extensions.export.minari_dataset:MinariDataset",
        "lerobot": "embodied_env.extensions.export.lerobot_dataset:LerobotDataset",
    },
    "robots": {},  # those of this package are the files of `config/robots`
    "contract_blocks": {"runner": "embodied_env.extensions.runner.controller_switch:BLOCK"},
}
"""Kind -> name -> ``module:attribute``; of a robot file ``package:FILE.yaml``."""


@functools.cache
def built_in_classes(kind: str) -> tuple[Any, ...]:
    """Import the classes of the built-in plug-ins of a kind, for their declarations.

    It is the only reference from a package to a higher one: schema and codes read what the interlocks declare.
    """
    return tuple(resolve_name(target) for target in BUILT_IN[kind].values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One plug-in, not imported yet."""

    group: str  # group of its entry point
    name: str
    target: str
    package: str  # the one that registers it

    @property
    def is_built_in(self) -> bool:
        """Whether it is a row of `BUILT_IN`."""
        return self.package == _PACKAGE


_PACKAGE = "embodied_env"


def plugin_names(kind: str) -> list[str]:
    """Return the names of a kind, built-in ones first."""
    return list(dict.fromkeys([*BUILT_IN[kind], *(plugin.name for plugin in installed_plugins(kind))]))


def known_backends() -> list[str]:
    """Return the names of our backends and of third parties', without their pacings."""
    return list(dict.fromkeys(name.partition(".")[0] for name in plugin_names("backends")))


def find_plugin(kind: str, name: str) -> Plugin | None:
    """Return the plug-in of a name or None, or raise UsageError if two packages register it."""
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
        is_foreign = kind in ("gates", "interlocks")  # a contract lists those of other packages only
        known = [plugin.name for plugin in installed_plugins(kind)] if is_foreign else plugin_names(kind)
        expected = f"expected one of: {', '.join(known)}" if known else "none is installed"
        raise error(f"unknown name {name!r} ({expected}; group {_PACKAGE}.{kind}){did_you_mean(name, known)}")
    return found


def installed_plugins(kind: str) -> tuple[Plugin, ...]:
    """Return the plug-ins of other packages."""
    return _read_entry_points(tuple(map(str, sys.path)))[kind]


@functools.lru_cache(maxsize=1)
def _read_entry_points(_path: tuple[str, ...]) -> Mapping[str, tuple[Plugin, ...]]:
    """Return the plug-ins of other packages by kind, which takes milliseconds to search all installed packages."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - not needed for the built-in ones

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
