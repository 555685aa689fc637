"""A Gymnasium environment for ROS 2 robots in which every step is fully accounted for.

Importing this package imports only Gymnasium: no rclpy, simulator, validator or plotting library. The public names are
imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import gymnasium

from embodied_env._version import __version__ as __version__

if TYPE_CHECKING:
    from embodied_env.contract import Contract as Contract
    from embodied_env.contract import load_contract as load_contract
    from embodied_env.core.info_types import ResetInfo as ResetInfo
    from embodied_env.core.info_types import StepInfo as StepInfo
    from embodied_env.core.policy import NoAction as NoAction
    from embodied_env.envs.action_chunks import ActionChunks as ActionChunks
    from embodied_env.envs.embodied_env import EmbodiedEnv as EmbodiedEnv
    from embodied_env.envs.numeric_info import NumericInfo as NumericInfo
    from embodied_env.envs.registration import make as make
    from embodied_env.envs.registration import register as register
    from embodied_env.extensions.audit import audit_run as audit_run
    from embodied_env.extensions.audit import audit_transition as audit_transition
    from embodied_env.extensions.evaluation.evaluation import evaluate as evaluate
    from embodied_env.extensions.explain.explanation import explain as explain
    from embodied_env.extensions.teams.parallel_env import parallel_env as parallel_env
    from embodied_env.extensions.vector.vector_env import EmbodiedVectorEnv as EmbodiedVectorEnv
    from embodied_env.extensions.vector.vector_env import make_vec as make_vec
    from embodied_env.policies.policy_loader import load_policy as load_policy
    from embodied_env.record import RecordTransitions as RecordTransitions
    from embodied_env.record import read_run as read_run

_LAZY_EXPORTS = {  # public name -> its module
    "ActionChunks": "envs.action_chunks",
    "Contract": "contract",
    "EmbodiedEnv": "envs.embodied_env",
    "EmbodiedVectorEnv": "extensions.vector.vector_env",
    "NoAction": "core.policy",
    "NumericInfo": "envs.numeric_info",
    "RecordTransitions": "record",
    "ResetInfo": "core.info_types",
    "StepInfo": "core.info_types",
    "audit_run": "extensions.audit",
    "audit_transition": "extensions.audit",
    "evaluate": "extensions.evaluation.evaluation",
    "explain": "extensions.explain.explanation",
    "load_contract": "contract",
    "load_policy": "policies.policy_loader",
    "make": "envs.registration",
    "make_vec": "extensions.vector.vector_env",
    "parallel_env": "extensions.teams.parallel_env",
    "read_run": "record",
    "register": "envs.registration",
}


if not TYPE_CHECKING:  # a type checker reports unknown names

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - a public name
        if name == "__all__":
            return ["__version__", *filter(_is_importable, _LAZY_EXPORTS)]
        if name not in _LAZY_EXPORTS:
            raise AttributeError(f"module 'embodied_env' has no attribute {name!r}")
        module = f"embodied_env.{_LAZY_EXPORTS[name]}"
        if module.startswith("embodied_env.extensions."):
            from embodied_env.core.plugin_loading import load_extension  # noqa: PLC0415 - imports the contract

            load_extension(f"{module}:", needed_for=f"embodied_env.{name}")
        value = globals()[name] = getattr(importlib.import_module(module), name)
        return value

    def _is_importable(name: str) -> bool:
        """Return whether the package or extension of a public name is installed."""
        from embodied_env.errors import MissingDependencyError  # noqa: PLC0415 - only for ``import *``

        try:
            __getattr__(name)
        except MissingDependencyError:
            return False
        return True


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_EXPORTS})


for _id, _contract in (("ArmReach", "arm_reach"), ("CartGoal", "cart_goal"), ("DoorOpen", "door_open")):
    gymnasium.register(
        id=f"embodied_env/{_id}-v0",
        entry_point="embodied_env:EmbodiedEnv",
        vector_entry_point="embodied_env:EmbodiedVectorEnv",
        kwargs={"contract": _contract},
    )
