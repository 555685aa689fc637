"""A perceptron in PyTorch as a policy, for ``embodied-env evaluate --policy torch_policy:act``.

LEARNED_POLICY=runs/<id>/checkpoints/final PYTHONPATH=examples embodied-env evaluate arm_reach --policy torch_policy:act

The folder has ``scaling.json`` and ``policy.pt``, the state of the network.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from scaling import Scaling, learned_policy_folder, load_scaling
from torch import nn

FILE = "policy.pt"
WIDTH = 128


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network of two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, outputs)
    )


def act(observation: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the action without exploration noise."""
    scaling, network = load(learned_policy_folder())
    with torch.no_grad():
        output = network(torch.from_numpy(scaling.features(observation)))
    return scaling.action(output.clamp(-1.0, 1.0).numpy())


@functools.lru_cache(maxsize=4)
def load(folder: Path) -> tuple[Scaling, nn.Sequential]:
    """Load scaling and network from `folder`."""
    scaling = load_scaling(folder)
    network = perceptron(len(scaling.mean), len(scaling.low))
    network.load_state_dict(torch.load(folder / FILE, weights_only=True))
    return scaling, network
