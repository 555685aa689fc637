"""A Gymnasium environment for ROS 2 robots in which every step comes with a full account.

Importing this package imports no rclpy, no simulator, no pydantic and no plotting library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

from embodied_env._version import __version__
from embodied_env.contract import Contract, load_contract
from embodied_env.env import EmbodiedEnv, make
from embodied_env.wrappers import ActionChunks

if TYPE_CHECKING:
    from embodied_env.multi_agent import parallel_env
    from embodied_env.record import RecordTransitions, audit_run, audit_transition, read_run

__all__ = [
    "ActionChunks",
    "Contract",
    "EmbodiedEnv",
    "RecordTransitions",
    "__version__",
    "audit_run",
    "audit_transition",
    "load_contract",
    "make",
    "parallel_env",
    "read_run",
]

_RECORD = ("RecordTransitions", "audit_run", "audit_transition", "read_run")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute
    if name in _RECORD:
        from embodied_env import record  # noqa: PLC0415 - recording is imported when it is used

        return getattr(record, name)
    if name == "parallel_env":
        from embodied_env.multi_agent import parallel_env  # noqa: PLC0415 - it needs PettingZoo

        return parallel_env
    raise AttributeError(f"module 'embodied_env' has no attribute {name!r}")


for _id, _contract in (("ArmReach", "arm_reach"), ("CartGoal", "cart_goal"), ("DoorOpen", "door_open")):
    gymnasium.register(
        id=f"embodied_env/{_id}-v0",
        entry_point="embodied_env.env:EmbodiedEnv",
        kwargs={"contract": _contract},
    )
