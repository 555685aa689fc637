"""Save a model of Stable-Baselines3 that was trained on the observations of a contract, with a policy file.

The policy file holds the statistics of VecNormalize, so that ``sb3:policy.zip`` and ``onnx:policy.onnx`` act as the
model did in its training, and both refuse another contract.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from policy_mapping import action_output, input_part
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from embodied_env.contract import Contract
from embodied_env.errors import UsageError
from embodied_env.policies.input_mapping import observed_fields
from embodied_env.policies.policy_file import (
    SUFFIX,
    ImageSpec,
    NormalizeSpec,
    PolicyFile,
    PolicyInputSpec,
    trained_on,
    write_policy_file,
)

CHANNELS: dict[str, Any] = {"rgb8": "rgb", "bgr8": "bgr", "mono8": "mono", "32FC1": "depth", "16UC1": "depth"}


def save_policy(folder: Path, model: BaseAlgorithm, contract: Contract, statistics: VecNormalize | None = None) -> None:
    """Write ``policy.zip``, ``policy.onnx`` and their policy file into the new `folder`.

    Args:
        folder: must not exist.
        model: trained with ``MultiInputPolicy`` on the spaces of `contract`, which has one actuator.
        contract: that of the training.
        statistics: the environments of the training, if they were normalised.
    """
    file = policy_file_of(model, contract, statistics)
    folder.mkdir(parents=True)
    model.save(folder / "policy.zip")
    _save_onnx(folder / "policy.onnx", model, contract)
    write_policy_file(folder / f"policy{SUFFIX}", file)


def policy_file_of(model: BaseAlgorithm, contract: Contract, statistics: VecNormalize | None = None) -> PolicyFile:
    """Return the policy file of `model`, with one input for each key of the observation."""
    trained, files = trained_on(contract)
    return PolicyFile(
        name=f"{contract.name}_{type(model).__name__.lower()}",
        control_period_s=contract.control_period_s,
        contract=trained,
        files=files,
        inputs={key: _input(contract, key, statistics) for key in contract.observation_space},
        outputs={"action": action_output(contract)},
    )


def _input(contract: Contract, key: str, statistics: VecNormalize | None) -> PolicyInputSpec:
    """Return the input `key` of the model, which is an unchanged image or a vector."""
    measured = {} if statistics is None or not statistics.norm_obs else statistics.obs_rms
    rows, *others = contract.observation_space[key].shape or (1,)
    if others:
        if key in measured:
            raise UsageError(f"{key} is normalised by pixel (expected vectors only); leave it out of norm_obs_keys")
        channels = CHANNELS[observed_fields(contract)[key].sensor.encoding or ""]
        return PolicyInputSpec(image=ImageSpec(field=key, size=(rows, others[0]), channels=channels))
    if statistics is None or key not in measured:
        return PolicyInputSpec(parts=(input_part(contract, key),))
    mean, std = measured[key].mean, np.sqrt(measured[key].var + statistics.epsilon)
    found = NormalizeSpec(
        method="mean_std", mean=tuple(mean.tolist()), std=tuple(std.tolist()), clip=statistics.clip_obs
    )
    return PolicyInputSpec(parts=(input_part(contract, key),), normalize=found)


def _save_onnx(path: Path, model: BaseAlgorithm, contract: Contract) -> None:
    """Write the network that maps a batch of named observations to actions without exploration noise."""
    network = Actor(model, contract)
    boxes: list[Any] = [*network.boxes.values()]
    examples = tuple(torch.zeros((2, *box.shape)).to(DTYPES[box.dtype.kind]) for box in boxes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about its own parts
        torch.onnx.export(
            network.eval(),
            examples,
            path,
            input_names=list(network.boxes),
            output_names=["action"],
            dynamic_shapes=(tuple({0: torch.export.Dim.DYNAMIC} for _ in examples),),
            external_data=False,  # one file
            verbose=False,
        )


DTYPES = {"f": torch.float32, "i": torch.float32, "u": torch.uint8}
"""The input of the network for each kind of array in the observation."""


class Actor(torch.nn.Module):
    """The network of a model, from the observation of a contract (channels last) to the action."""

    def __init__(self, model: BaseAlgorithm, contract: Contract) -> None:
        """Wrap the network of `model`."""
        super().__init__()
        torch.distributions.Distribution.set_default_validate_args(False)  # the exporter cannot trace the checks
        self.policy, self.boxes = model.policy, contract.observation_space.spaces
        self.low, self.high = torch.as_tensor(model.action_space.low), torch.as_tensor(model.action_space.high)
        self.transposed = {k for k, box in model.observation_space.items() if box.shape != self.boxes[k].shape}

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        """Return the actions of a batch."""
        seen = {
            key: array.permute(0, 3, 1, 2) if key in self.transposed else array
            for key, array in zip(self.boxes, arrays, strict=True)
        }
        actions = self.policy._predict(seen, deterministic=True)  # noqa: SLF001 - predict() leaves torch
        if self.policy.squash_output:
            return self.low + (actions + 1.0) / 2.0 * (self.high - self.low)
        return torch.clamp(actions, self.low, self.high)
