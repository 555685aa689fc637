"""The files of the Gazebo worlds, with the contracts and MuJoCo models that belong to them."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import mujoco
import pytest
from sdf_world import SdfWorld

from embodied_env.contract import Contract, load_contract

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "config" / "gazebo"
MODELS = ROOT / "embodied_env" / "sim" / "models"
NAMES = ("arm_reach", "cart_goal", "door_open")

each_world = pytest.mark.parametrize("name", NAMES)


@cache
def world_of(name: str) -> SdfWorld:
    return SdfWorld.read(FOLDER / f"{name}.sdf")


@cache
def contract_of(name: str) -> Contract:
    return load_contract(str(ROOT / "config" / f"{name}.yaml"))


@cache
def model_of(name: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(MODELS / contract_of(name).backends["mujoco"]["model"]))


def profile_of(name: str) -> Mapping[str, Any]:
    return contract_of(name).backends["gazebo"]


def plugin_with(name: str, key: str) -> ET.Element:
    (plugin,) = [plugin for plugin in world_of(name).element.iter("plugin") if plugin.find(key) is not None]
    return plugin


def zeros_of(name: str) -> Mapping[str, float]:
    """Return the positions of the contract where the joints of the world are at 0."""
    return profile_of(name).get("joint_zeros", {})
