"""Train with Stable-Baselines3, with checkpoints, and evaluate the policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sb3_vec_env import SlotsVecEnv
from stable_baselines3 import SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecMonitor
from torch import nn
from training import MODEL, Training, evaluate

ZIP = Path(MODEL).with_suffix(".zip")
"""The model, to resume from, and as the policy ``sb3:policy.zip``. It contains pickles: load only what you trust."""

torch.set_num_threads(1)  # networks as small as these are not faster on several


def learn(training: Training, make: Callable[[VecMonitor], BaseAlgorithm]) -> None:
    """Create the model, or load that of --resume; train, save and evaluate it.

    The vector environment of Stable-Baselines3 sets ``TimeLimit.truncated``, on which its learners bootstrap.
    """
    args = training.args
    worlds = VecMonitor(SlotsVecEnv(training.make_worlds(args.num_envs)))
    logger = configure(str(training.path), ["csv"])
    try:
        model = make(worlds)
        if args.resume is not None:
            model = type(model).load(Path(args.resume) / ZIP, env=worlds)
        model.set_logger(logger)
        model.learn(
            args.steps,
            callback=Checkpoints(training),
            progress_bar=not args.quiet,
            reset_num_timesteps=args.resume is None,
        )
        final = save(training, model, name="final")
    finally:
        worlds.close()
        logger.close()
    evaluate(training, final)


class Checkpoints(BaseCallback):
    """Saves the model every ``--checkpoint-every`` steps."""

    def __init__(self, training: Training) -> None:
        """Save into the directory of `training`."""
        super().__init__()
        self._training = training
        self._next = 0

    def _on_training_start(self) -> None:
        self._next = self.num_timesteps + self._training.args.checkpoint_every

    def _act(self, features: Any) -> Any:  # noqa: ANN401 - arrays
        return self.model.predict(features, deterministic=True)[0]

    def _on_step(self) -> bool:
        self._training.curve.measure(self.num_timesteps, self._act)
        if self.num_timesteps >= self._next:
            self._next += self._training.args.checkpoint_every
            save(self._training, self.model)
        return True


def save(training: Training, model: BaseAlgorithm, *, name: str | None = None) -> Path:
    """Save `model` and its most likely action into a new folder, and return the folder."""
    folder = training.save_policy(actor_of(model), name or f"{model.num_timesteps:09d}")
    model.save(folder / ZIP)
    return folder


def actor_of(model: BaseAlgorithm) -> nn.Sequential:
    """Return the layers from the observation to the action without exploration noise, from -1 to 1."""
    policy = model.policy
    if isinstance(model, SAC):
        return nn.Sequential(*policy.actor.latent_pi, policy.actor.mu, nn.Tanh())
    return nn.Sequential(*policy.mlp_extractor.policy_net, policy.action_net, nn.Hardtanh())
