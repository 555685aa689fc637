"""Saves policies with LeRobot, and compares their actions with those of the model of their directory."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

from embodied_env.policies.policy_loader import load_model

try:
    from lerobot.common.control_utils import predict_action
except ImportError:  # before LeRobot 0.5
    from lerobot.utils.control_utils import predict_action

SIZES = {"observation.state": 6, "observation.environment_state": 3, "action": 6}
STATISTICS = {
    name: {
        "mean": torch.full((size,), 0.1),
        "std": torch.full((size,), 2.0),
        "min": -torch.ones(size),
        "max": torch.full((size,), 3.0),
    }
    for name, size in SIZES.items()
} | {
    "observation.images.front": {
        "mean": torch.full((3, 1, 1), 0.4),
        "std": torch.full((3, 1, 1), 0.3),
        "min": torch.zeros(3, 1, 1),
        "max": torch.ones(3, 1, 1),
    }
}
INPUTS = {
    "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(6,)),
    "observation.environment_state": PolicyFeature(type=FeatureType.ENV, shape=(3,)),
    "observation.images.front": PolicyFeature(type=FeatureType.VISUAL, shape=(3, 96, 96)),
}
COMMON = {
    "input_features": INPUTS,
    "output_features": {"action": PolicyFeature(type=FeatureType.ACTION, shape=(6,))},
    "device": "cpu",
}
SMALL = {"dim_model": 32, "n_heads": 2, "dim_feedforward": 64, "n_encoder_layers": 1, "n_vae_encoder_layers": 1}
POLICIES: dict = {
    "chunks": ("act", {**SMALL, "chunk_size": 4, "n_action_steps": 4}),
    "averaged": ("act", {**SMALL, "chunk_size": 4, "n_action_steps": 1, "temporal_ensemble_coeff": 0.01}),
    "history": (
        "diffusion",
        {"down_dims": (16, 32), "num_inference_steps": 2, "crop_shape": None, "noise_scheduler_type": "DDIM"},
    ),
}

for name, (kind, options) in POLICIES.items():
    folder = Path(sys.argv[1]) / name
    settings = make_policy_config(kind, **COMMON, **options, pretrained_backbone_weights=None)
    policy = get_policy_class(kind)(settings).eval()
    before, after = make_pre_post_processors(settings, dataset_stats=STATISTICS)
    settings.pretrained_backbone_weights = "ResNet18_Weights.IMAGENET1K_V1"  # as trained; never downloaded to load it
    for each in (policy, before, after):
        each.save_pretrained(folder)
    model: Any = load_model(f"lerobot:{folder}")
    policy.reset()
    model.reset(seed=3, episode_index=0)
    for step in range(12):
        rng = np.random.default_rng(step)
        image = rng.integers(0, 255, (96, 96, 3), np.uint8)
        seen = {key: rng.normal(size=SIZES[key]).astype(np.float32) for key in list(INPUTS)[:2]}
        torch.manual_seed(step)
        own = predict_action(
            seen | {"observation.images.front": image}, policy, torch.device("cpu"), before, after, False, task=""
        )
        torch.manual_seed(step)
        chw = image.transpose(2, 0, 1).astype(np.float32) / 255
        if name != "chunks" or step % 4 == 0:
            found = model.infer(seen | {"observation.images.front": chw})["action"]
        np.testing.assert_allclose(found[step % 4] if name == "chunks" else found, own.numpy().reshape(6), atol=1e-6)
    print(name, found.shape, model.outputs["action"].shape)
