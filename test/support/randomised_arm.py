"""The shipped arm with every kind of draw, and a drawn goal that its policy observes."""

from typing import Any

import strategies

import embodied_env
from embodied_env.contract import Contract

JOINTS = ("j1", "j2", "j3", "j4", "j5", "j6")
OPTIONS: dict[str, dict[str, Any]] = {
    "bin": {"type": "vector", "distribution": "choice", "values": [[0.1, 0.2], [0.3, 0.4]], "observed": True},
    "camera_delay": {"type": "scalar", "low": 0.0, "high": 0.1},
    "damping": {"type": "scalar", "distribution": "choice", "values": [0.5, 1.0, 2.0]},
    "friction": {"type": "vector", "distribution": "log_uniform", "low": [0.5, 0.5], "high": [2.0, 2.0]},
    "gain": {"type": "scalar", "distribution": "normal", "low": 0.8, "high": 1.2, "mean": 1.0, "std": 0.1},
    "lag": {"type": "scalar", "low": 0.0, "high": 0.12},
    "payload": {"type": "scalar", "distribution": "log_uniform", "low": 0.5, "high": 4.0},
    "start": {"type": "vector", "low": [-0.1] * 6, "high": [0.1] * 6},
}
DRAWS: dict[str, dict[str, Any]] = {
    "camera_delay": {"delay": ["tcp", "target"]},
    "damping": {"damping": ["j1", "j2"]},
    "friction": {"friction": ["floor", "link6"]},
    "gain": {"gain": list(JOINTS)},
    "lag": {"command_delay": True},
    "payload": {"mass": ["link6"]},
    "start": {"joints": list(JOINTS)},
}


def randomised_arm(options: dict[str, Any] = OPTIONS, draws: dict[str, Any] = DRAWS) -> Contract:
    """Return `arm_reach` with these reset options and their effects."""
    document = strategies.document_of(embodied_env.load_contract("arm_reach"))
    del document["robot"]
    document["reset_options"] |= options
    for backend in ("mujoco", "mujoco_ros"):
        profile = document["backends"][backend]
        document["backends"][backend] = {**profile, "draws": {**profile["draws"], **draws}}
    return strategies.parse(document)
