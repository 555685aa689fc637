"""The shipped arm with identified parameters in a file."""

from pathlib import Path
from typing import Any

import strategies

import embodied_env
from embodied_env.contract import Contract
from embodied_env.sim.identified_parameters import (
    IdentifiedModel,
    IdentifiedParameter,
    IdentifiedRun,
    Kind,
    write_identified,
)

FITTED: dict[Kind, tuple] = {
    "gain": (("j1", "j2"), 1500.0, 1400.0, 1600.0, 8000.0),
    "damping": (("j3",), 90.0, 80.0, 95.0, 2.0),
    "friction_loss": (("j1",), 2.0, 1.0, 3.0, 0.0),
    "armature": (("j2", "j3"), 0.5, 0.4, 0.6, 0.3),
    "mass": (("link6",), 1.5, 1.2, 1.8, 0.365),
    "command_delay": ((), 0.03, 0.02, 0.04, 0.0),
}
PARAMETERS = tuple(
    IdentifiedParameter(kind=kind, of=of, value=value, low=low, high=high, model=model)
    for kind, (of, value, low, high, model) in FITTED.items()
)


def identified_model(parameters: tuple[IdentifiedParameter, ...] = PARAMETERS, **changes: Any) -> IdentifiedModel:
    """Return the content of a file."""
    unit = tuple(tuple(float(i == k) for k in range(len(parameters))) for i in range(len(parameters)))
    values: dict[str, Any] = {
        "contract": "arm_reach",
        "fingerprint": "0" * 64,
        "created_utc": "2026-01-01T00:00:00+00:00",
        "versions": {"mujoco": "4.0.0"},
        "runs": (IdentifiedRun(name="one", sha256="1" * 64, backend="real (robot)"),),
        "segments": 9,
        "held_out": 3,
        "parameters": parameters,
        "correlation": unit,
    }
    return IdentifiedModel(**values | changes)


def identified_arm(folder: Path, parameters: tuple[IdentifiedParameter, ...] = PARAMETERS, **named: Any) -> Contract:
    """Return `arm_reach` with these parameters in a file of `folder`, and these other keys of the profile."""
    folder.mkdir(exist_ok=True)
    write_identified(identified_model(parameters), folder / "arm.identified.yaml")
    return naming(str(folder / "arm.identified.yaml"), **named)


def naming(file: str, *, options: Any = (), draws: Any = (), **named: Any) -> Contract:
    """Return `arm_reach` that names this file, with `options` and `draws` added to its own."""
    document = strategies.document_of(embodied_env.load_contract("arm_reach"))
    del document["robot"]
    document["reset_options"] |= dict(options)
    for backend in ("mujoco", "mujoco_ros"):
        profile = document["backends"][backend]
        own = {"identified": {"file": file, **named}, "draws": {**profile["draws"], **dict(draws)}}
        document["backends"][backend] = {**profile, **own}
    return strategies.parse(document)
