"""What the examples with Stable-Baselines3 share: a policy is taken out of a model, saved on the way, and continued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor
from torch import nn
from training import Training, evaluate, stopwatch

from embodied_env.policies.checkpoint import Actor

MODEL = "model.zip"
"""Of Stable-Baselines3, beside the actor: to go on learning. (It is a pickle: load only what you trust.)"""

Export = Callable[[Training, Any], Actor]

torch.set_num_threads(1)  # networks as small as these are not faster on several


def environments(training: Training) -> VecMonitor:
    """Make the environments of `training`, side by side, as Stable-Baselines3 takes them.

    It tells truncated from terminated itself (``TimeLimit.truncated``), and its learners bootstrap on truncated.
    """
    return VecMonitor(DummyVecEnv(training.makers()))


def learn(training: Training, make: Callable[[VecMonitor], BaseAlgorithm], export: Export) -> None:
    """Make the model, or load the one that is resumed; let it learn; save and evaluate it."""
    args, passed = training.args, stopwatch()
    worlds, logger = environments(training), configure(str(training.path), ["csv"])
    try:
        model = make(worlds)
        if args.resume is not None:
            model = type(model).load(Path(args.resume) / MODEL, env=worlds)
        model.set_logger(logger)
        model.learn(
            args.steps,
            callback=Checkpoints(training, export),
            progress_bar=not args.quiet,
            reset_num_timesteps=args.resume is None,
        )
        final = _save(training, model, export, name="final")
    finally:
        worlds.close()
        logger.close()
    evaluate(training, final, passed())


class Checkpoints(BaseCallback):
    """Saves the policy every so many steps."""

    def __init__(self, training: Training, export: Export) -> None:
        """Save by `export` into the run of `training`."""
        super().__init__()
        self._training, self._export = training, export
        self._next = 0

    def _on_training_start(self) -> None:
        self._next = self.num_timesteps + self._training.args.checkpoint_every

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next:
            self._next += self._training.args.checkpoint_every
            _save(self._training, self.model, self._export, name=None)
        return True


def _save(training: Training, model: BaseAlgorithm, export: Export, *, name: str | None) -> Path:
    folder = training.save(export(training, model), steps=model.num_timesteps, name=name)
    model.save(folder / MODEL)
    return folder


def layers_of(*modules: nn.Module) -> list[tuple[Any, Any]]:
    """Return weights and biases of the linear layers of `modules`, in their order."""
    linear = [module for part in modules for module in part.modules() if isinstance(module, nn.Linear)]
    return [(layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()) for layer in linear]
