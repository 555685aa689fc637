"""A policy of Stable-Baselines3, for ``embodied-env evaluate --policy sb3_policy:act``.

LEARNED_POLICY=runs/<id>/checkpoints/final PYTHONPATH=examples embodied-env evaluate arm_reach --policy sb3_policy:act

The folder has ``scaling.json`` and the zip file of the model. A zip file of Stable-Baselines3 contains pickles: load
only files that you trust.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from scaling import Scaling, learned_policy_folder, load_scaling
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm

ALGORITHMS: Mapping[str, type[BaseAlgorithm]] = {"ppo": PPO, "sac": SAC}


def act(observation: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the action without exploration noise."""
    scaling, model = load(learned_policy_folder())
    output, _ = model.predict(scaling.features(observation), deterministic=True)
    return scaling.action(output)


@functools.lru_cache(maxsize=4)
def load(folder: Path) -> tuple[Scaling, BaseAlgorithm]:
    """Load scaling and model from `folder`; the name of the zip file is that of the algorithm."""
    file = next(path for name in ALGORITHMS if (path := folder / f"{name}.zip").exists())
    return load_scaling(folder), ALGORITHMS[file.stem].load(file, device="cpu")
