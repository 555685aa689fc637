"""Pictures of the worlds of contracts, for people: ``embodied-env contract picture``."""

from __future__ import annotations

from pathlib import Path

from embodied_env.contract import Contract
from embodied_env.errors import MissingDependencyError, UsageError


def save_picture(contract: Contract, folder: Path, *, seed: int) -> Path:
    """Write ``<folder>/<name>.png``: the world of `contract` in `mujoco` after a reset, as its profile shows it.

    Raises:
        UsageError: for a seed below 0.
        ContractError: when the contract has no profile for `mujoco`.
        MissingDependencyError: without MuJoCo, a renderer, or Pillow.
    """
    from embodied_env.envs.embodied_env import EmbodiedEnv

    if seed < 0:
        raise UsageError(f"--seed {seed} is not allowed; allowed: 0 or more")
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependencyError(
            "Pillow", needed_for="writing a picture", remedy='pip install "embodied_env[images]"'
        ) from None
    env = EmbodiedEnv(contract, backend="mujoco", render_mode="rgb_array")
    try:
        env.reset(seed=seed)
        picture = env.render()
    finally:
        env.close()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{contract.name}.png"
    Image.fromarray(picture).save(path)
    return path
