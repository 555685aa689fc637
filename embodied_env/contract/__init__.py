"""Contracts that declare a robot and a task in one YAML file, read without ROS.

The names are imported on first use, since the help of the command line needs only the table of plug-ins.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embodied_env.contract.actuator_schema import ActuatorSpec as ActuatorSpec
    from embodied_env.contract.actuator_schema import EffectiveLimits as EffectiveLimits
    from embodied_env.contract.actuator_schema import FloatArray as FloatArray
    from embodied_env.contract.actuator_schema import JointLimits as JointLimits
    from embodied_env.contract.contract import Contract as Contract
    from embodied_env.contract.contract_loader import load_contract as load_contract
    from embodied_env.contract.contract_loader import parse_contract as parse_contract
    from embodied_env.contract.contract_schema import EpisodeSpec as EpisodeSpec
    from embodied_env.contract.contract_schema import ResetOption as ResetOption
    from embodied_env.contract.contract_schema import TaskSpec as TaskSpec
    from embodied_env.contract.forward_kinematics import KinematicModel as KinematicModel
    from embodied_env.contract.safety_schema import Margins as Margins
    from embodied_env.contract.safety_schema import Safety as Safety
    from embodied_env.contract.sensor_schema import FieldSpec as FieldSpec
    from embodied_env.contract.sensor_schema import SensorSpec as SensorSpec

_MODULES = {  # name -> its module
    **dict.fromkeys(("ActuatorSpec", "EffectiveLimits", "FloatArray", "JointLimits"), "actuator_schema"),
    "Contract": "contract",
    **dict.fromkeys(("EpisodeSpec", "ResetOption", "TaskSpec"), "contract_schema"),
    **dict.fromkeys(("FieldSpec", "SensorSpec"), "sensor_schema"),
    "KinematicModel": "forward_kinematics",
    **dict.fromkeys(("Margins", "Safety"), "safety_schema"),
    **dict.fromkeys(("load_contract", "parse_contract"), "contract_loader"),
}

if not TYPE_CHECKING:  # a type checker reports unknown names

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - a public name
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        return value
