"""Train with Stable-Baselines3, with checkpoints, and evaluate the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor
from training import Training, evaluate, stopwatch

POLICY = "sb3_policy:act"

torch.set_num_threads(1)  # networks as small as these are not faster on several


def learn(training: Training, make: Callable[[VecMonitor], BaseAlgorithm]) -> None:
    """Create the model, or load that of --resume; train, save and evaluate it.

    The vector environment of Stable-Baselines3 sets ``TimeLimit.truncated``, on which its learners bootstrap.
    """
    args, passed = training.args, stopwatch()
    worlds, logger = VecMonitor(DummyVecEnv(training.makers())), configure(str(training.path), ["csv"])
    try:
        model = make(worlds)
        if args.resume is not None:
            model = type(model).load(Path(args.resume) / model_file(training), env=worlds)
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
    evaluate(training, POLICY, final, passed())


class Checkpoints(BaseCallback):
    """Saves the model every ``--checkpoint-every`` steps."""

    def __init__(self, training: Training) -> None:
        """Save into the directory of `training`."""
        super().__init__()
        self._training = training
        self._next = 0

    def _on_training_start(self) -> None:
        self._next = self.num_timesteps + self._training.args.checkpoint_every

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next:
            self._next += self._training.args.checkpoint_every
            save(self._training, self.model)
        return True


def save(training: Training, model: BaseAlgorithm, *, name: str | None = None) -> Path:
    """Save `model` into a new folder, and return the folder."""
    folder = training.make_policy_folder(name or f"{model.num_timesteps:09d}")
    model.save(folder / model_file(training))
    return folder


def model_file(training: Training) -> str:
    """Return the name of the model's file, from which `sb3_policy` derives the algorithm."""
    return f"{training.algorithm}.zip"
