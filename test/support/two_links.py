"""The two-link arm of the examples, and robots with other parameters behind the same topics."""

import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np

from embodied_env.contract import Contract, load_contract

FILES = Path(__file__).parents[2] / "examples" / "two_links"
MODEL = {  # the ten parameters that an identification fits, and what the model of the contract has for them
    "gain.shoulder": 60.0,
    "gain.elbow": 40.0,
    "damping.shoulder": 3.0,
    "damping.elbow": 1.5,
    "friction_loss.shoulder": 0.3,
    "friction_loss.elbow": 0.2,
    "armature.shoulder": 0.05,
    "armature.elbow": 0.03,
    "mass.forearm": 0.6,
    "command_delay": 0.0,
}
TICK_S = 0.01  # of the emulator
NOISE = {"position": 0.0005, "velocity": 0.01}  # of the joint states

_PLACES = {
    "gain": ("position", "joint", "kp"),
    "damping": ("joint", "name", "damping"),
    "friction_loss": ("joint", "name", "frictionloss"),
    "armature": ("joint", "name", "armature"),
}


def contract_in(folder: Path, parameters: dict[str, float] = MODEL) -> Contract:
    """Return the contract of the arm, copied to `folder` with a model that has these parameters."""
    shutil.copytree(FILES, folder, dirs_exist_ok=True)
    model = ET.parse(folder / "arm.xml")  # noqa: S314 - our own file
    for name, value in parameters.items():
        kind, _, of = name.partition(".")
        if kind in _PLACES:
            tag, key, attribute = _PLACES[kind]
            (element,) = model.iterfind(f".//{tag}[@{key}='{of}']")
            element.set(attribute, repr(value))
    (inertial,) = model.iterfind(".//body[@name='forearm']/inertial")
    share = parameters["mass.forearm"] / MODEL["mass.forearm"]
    for key in ("mass", "diaginertia"):
        inertial.set(key, " ".join(repr(share * float(each)) for each in inertial.attrib[key].split()))
    model.write(folder / "arm.xml")
    return load_contract(folder / "arm.yaml")


def robot_in(folder: Path, parameters: dict[str, float]) -> Contract:
    """Return the contract of a robot with these parameters, its delay only on the emulator, on the topics of the arm."""
    robot = contract_in(folder, parameters)
    world = robot.backends["mujoco"]
    world = {**world, "sources": {**world["sources"], "joints": {"noise": NOISE}}}
    emulated = {**world, "emulator": {"tick_s": TICK_S, "command_delay_s": parameters["command_delay"]}}
    return replace(robot, backends={**robot.backends, "mujoco": world, "mujoco_ros": emulated})


def drawn_parameters(seed: int) -> dict[str, float]:
    """Return the parameters of another robot, each 0.6 to 1.6 times that of the model, and a delay of 5 to 40 ms."""
    rng = np.random.default_rng(seed)
    drawn = {name: value * float(np.exp(rng.uniform(np.log(0.6), np.log(1.6)))) for name, value in MODEL.items()}
    return {**drawn, "command_delay": float(rng.uniform(0.005, 0.04))}
