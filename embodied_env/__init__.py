"""A Gymnasium environment for ROS 2 robots in which every step comes with a full account.

Importing this package imports Gymnasium, and nothing else: no rclpy, no simulator, no pydantic and no plotting library.
What it offers is imported when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import gymnasium

from embodied_env._version import __version__

if TYPE_CHECKING:
    from embodied_env.contract import Contract, load_contract
    from embodied_env.envs.action_chunks import ActionChunks
    from embodied_env.envs.embodied_env import EmbodiedEnv, make
    from embodied_env.envs.parallel_env import parallel_env
    from embodied_env.envs.vector_env import EmbodiedVectorEnv, make_vec
    from embodied_env.record import RecordTransitions, audit_run, audit_transition, read_run

__all__ = [
    "ActionChunks",
    "Contract",
    "EmbodiedEnv",
    "EmbodiedVectorEnv",
    "RecordTransitions",
    "__version__",
    "audit_run",
    "audit_transition",
    "load_contract",
    "make",
    "make_vec",
    "parallel_env",
    "read_run",
]

_LAZY_EXPORTS = {  # where each public name lives
    "ActionChunks": "envs.action_chunks",
    "Contract": "contract",
    "EmbodiedEnv": "envs.embodied_env",
    "EmbodiedVectorEnv": "envs.vector_env",
    "RecordTransitions": "record",
    "audit_run": "record",
    "audit_transition": "record",
    "load_contract": "contract",
    "make": "envs.embodied_env",
    "make_vec": "envs.vector_env",
    "parallel_env": "envs.parallel_env",
    "read_run": "record",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute
    if name in _LAZY_EXPORTS:
        value = globals()[name] = getattr(importlib.import_module(f"embodied_env.{_LAZY_EXPORTS[name]}"), name)
        return value
    raise AttributeError(f"module 'embodied_env' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


for _id, _contract in (("ArmReach", "arm_reach"), ("CartGoal", "cart_goal"), ("DoorOpen", "door_open")):
    gymnasium.register(
        id=f"embodied_env/{_id}-v0",
        entry_point="embodied_env.envs.embodied_env:EmbodiedEnv",
        vector_entry_point="embodied_env.envs.vector_env:EmbodiedVectorEnv",
        kwargs={"contract": _contract},
    )
