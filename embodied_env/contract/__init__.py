"""Contracts that declare a robot and a task in one YAML file, read without ROS."""

from embodied_env.contract.actuator_schema import ActuatorSpec, EffectiveLimits, FloatArray, JointLimits
from embodied_env.contract.contract import Contract
from embodied_env.contract.contract_loader import load_contract, parse_contract
from embodied_env.contract.contract_schema import EpisodeSpec, ResetOption, TaskSpec
from embodied_env.contract.forward_kinematics import KinematicModel
from embodied_env.contract.safety_schema import Margins, Safety
from embodied_env.contract.sensor_schema import FieldSpec, SensorSpec

__all__ = [
    "ActuatorSpec",
    "Contract",
    "EffectiveLimits",
    "EpisodeSpec",
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
