"""Declare the built-in plug-ins as strings, so that nothing is imported before its use."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

POLICY_FORMATS: Mapping[str, tuple[str, str]] = {  # address -> ``module:attribute`` of its loader, its meaning
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
ADDRESSES = (  # the forms of an address of `load_policy`, for help and messages; other packages may add formats
    *(form for form in POLICY_FORMATS if ":" not in form),
    *("module:callable", "module:factory(literals)"),
    *(form for form in POLICY_FORMATS if ":" in form),
)
BUILT_IN: Mapping[str, dict[str, str]] = {  # kind -> name -> ``module:attribute``, of a robot ``package:FILE``
    "backends": {  # of a name with several pacings, the first is the default
        "fake.lockstep": "embodied_env.backends.fake_backend:FakeBackend",
        "fake.realtime": "embodied_env.backends.fake_backend:realtime_fake",
        "mujoco.lockstep": "embodied_env.backends.mujoco_backend:MujocoBackend",
        "mujoco.realtime": "embodied_env.backends.mujoco_backend:RealtimeMujocoBackend",
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
    "observers": {"view": "embodied_env.extensions.viewers.live_view:open_view"},
    "exporters": {
        "jsonl": "embodied_env.extensions.export.json_lines:JsonLines",
        "parquet": "embodied_env.extensions.export.parquet_files:ParquetFiles",
        "minari": "embodied_env.extensions.export.minari_dataset:MinariDataset",
        "lerobot": "embodied_env.extensions.export.lerobot_dataset:LerobotDataset",
    },
    "robots": {},  # those of this package are the files of `config/robots`
    "contract_blocks": {"runner": "embodied_env.extensions.runner.controller_switch:BLOCK"},
}


@functools.cache
def built_in_classes(kind: str) -> tuple[Any, ...]:
    """Import the classes of the built-in plug-ins of a kind, for their declarations.

    It is the only reference from a package to a higher one: schema and codes read what the interlocks declare.
    """
    return tuple(resolve_name(target) for target in BUILT_IN[kind].values())
