"""Contracts: a robot and a task declared in one YAML file. No ROS."""

from embodied_env.contract.contract import Contract
from embodied_env.contract.kinematics import KinematicModel
from embodied_env.contract.loader import load_contract, parse_contract
from embodied_env.contract.safety_schema import Margins, Safety
from embodied_env.contract.schema import (
    ActuatorSpec,
    EffectiveLimits,
    Episode,
    FieldSpec,
    FloatArray,
    JointLimits,
    ResetOption,
    SensorSpec,
    TaskSpec,
)

__all__ = [
    "ActuatorSpec",
    "Contract",
    "EffectiveLimits",
    "Episode",
    "FieldSpec",
    "FloatArray",
    "JointLimits",
    "KinematicModel",
    "Margins",
    "ResetOption",
    "Safety",
    "SensorSpec",
    "TaskSpec",
    "load_contract",
    "parse_contract",
]
