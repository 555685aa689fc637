"""Train a policy for a contract with SAC of Stable-Baselines3, then evaluate and record it on other backends.

python examples/train_sac.py arm_reach --seed 0 --evaluate mujoco mujoco_ros real
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sb3_vec_env import SlotsVecEnv
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from torch import nn
from training import MODEL, Training, evaluate, parser, started

ZIP = Path(MODEL).with_suffix(".zip")
"""The model, to resume from, and as the policy ``sb3:policy.zip``. It contains pickles: load only what you trust."""

ENTROPY = 0.1
"""Coefficient of the entropy at first. It adapts slowly: a large one delays the learning of small rewards."""

torch.set_num_threads(1)  # networks as small as these are not faster on several


def make(training: Training, worlds: VecEnv) -> SAC:
    """Return the model to train in `worlds`."""
    return SAC(
        "MlpPolicy",
        worlds,
        seed=training.args.seed,
        learning_rate=lambda left: 1e-4 + 9e-4 * left,  # `left` decreases from 1 to 0
        gamma=training.args.gamma,
        tau=0.01,
        train_freq=2,
        gradient_steps=max(1, training.args.num_envs // 4),  # one update per 8 steps, with one environment per 2
        batch_size=256,
        buffer_size=min(training.args.steps, 200_000),
        learning_starts=1000,
        ent_coef=f"auto_{training.args.entropy}",
        policy_kwargs={"net_arch": [128, 128], "optimizer_kwargs": {"fused": True}},
        device="cpu",
    )


def run(training: Training) -> None:
    """Create the model or load that of --resume, and train, save and evaluate it.

    `SlotsVecEnv` sets ``TimeLimit.truncated``, on which the learner bootstraps.
    """
    args = training.args
    worlds = VecMonitor(SlotsVecEnv(training.make_worlds(args.num_envs)))
    logger = configure(str(training.path), ["csv"])
    try:
        model = make(training, worlds) if args.resume is None else SAC.load(Path(args.resume) / ZIP, env=worlds)
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


def save(training: Training, model: SAC, *, name: str | None = None) -> Path:
    """Save `model` and its most likely action into a new folder, and return the folder."""
    folder = training.save_policy(actor_of(model), name or f"{model.num_timesteps:09d}")
    model.save(folder / ZIP)
    return folder


def actor_of(model: SAC) -> nn.Sequential:
    """Return the layers from the observation to the action without exploration noise, from -1 to 1."""
    return nn.Sequential(*model.policy.actor.latent_pi, model.policy.actor.mu, nn.Tanh())


def main() -> None:
    """Parse the arguments, train and evaluate."""
    arguments = parser(__doc__, steps=100_000, num_envs=1, gamma=0.95)
    arguments.add_argument("--entropy", type=float, default=ENTROPY, help=f"coefficient at first (default: {ENTROPY})")
    with started("sac", arguments.parse_args()) as training:
        run(training)


if __name__ == "__main__":
    main()
