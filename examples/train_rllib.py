"""Train a policy with PPO of Ray's RLlib, then evaluate and record it.

The environments run in processes of a Ray cluster.

pip install torch==2.13.0 "ray[rllib]"
python examples/train_rllib.py arm_reach --num-envs 4 --seed 0 --evaluate mujoco mujoco_ros

RLlib's learner appends the last observation of each episode, and bootstraps its value if the episode was truncated but
not if it was terminated, which agrees with the flags of these environments.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import nn
from training import Training, evaluate, parser, started

from embodied_env.extensions.ray.ray_workers import RayCluster

try:
    from ray.rllib.algorithms.ppo import PPO, PPOConfig
    from ray.rllib.core import DEFAULT_MODULE_ID
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env
except ImportError:
    PPO = None  # --help works without Ray

STEPS = 2048
"""Number of steps between two updates, summed over all environments."""

WIDTH = 128
"""Number of units in each of the two hidden layers."""

STATE = "rllib"
"""Folder of RLlib's own state, to resume from. It contains pickles: load only what you trust."""


def configured(training: Training) -> PPOConfig:
    """Return the algorithm, with one environment in this process, or several in processes of one CPU each."""
    args = training.args
    runners = 0 if args.num_envs == 1 else args.num_envs
    batch = min(STEPS, args.steps)
    register_env("embodied_env", lambda _: training.make_env())
    return (
        PPOConfig()
        .environment("embodied_env")
        .env_runners(num_env_runners=runners, rollout_fragment_length=max(1, batch // args.num_envs))
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[WIDTH, WIDTH], fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .training(
            train_batch_size=batch,
            minibatch_size=min(256, batch),
            num_epochs=10,
            lr=3e-4,
            gamma=args.gamma,
            lambda_=0.95,
            clip_param=0.2,
            use_kl_loss=False,
            grad_clip=0.5,
            grad_clip_by="global_norm",
            vf_clip_param=float("inf"),  # returns are not normalised, so a clip would distort the value loss
        )
        .debugging(seed=args.seed, log_level="ERROR")
    )


def actor_of(algorithm: PPO) -> nn.Sequential:
    """Return the layers of the mean action, which is the first half of the last layer.

    The second half is the spread.
    """
    (learned,) = algorithm.learner_group.foreach_learner(lambda learner: learner.module[DEFAULT_MODULE_ID])
    module: Any = learned.get()
    parts = (module.encoder.actor_encoder, module.pi)
    first, second, last = (layer for part in parts for layer in part.modules() if isinstance(layer, nn.Linear))
    mean = nn.Linear(last.in_features, last.out_features // 2)
    mean.load_state_dict({name: value[: mean.out_features] for name, value in last.state_dict().items()})
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), mean, nn.Hardtanh())


def train(training: Training) -> Path:
    """Train with checkpoints, and return the last one."""
    args = training.args
    torch.set_num_threads(1)  # faster for networks as small as these
    with RayCluster(args.num_envs + 1):
        algorithm = configured(training).build_algo()
        try:
            if args.resume is not None:
                algorithm.restore_from_path(str((Path(args.resume) / STATE).resolve()))
            return _learn(training, algorithm)
        finally:
            algorithm.stop()


def _learn(training: Training, algorithm: PPO) -> Path:
    args = training.args
    done, due = 0, args.checkpoint_every
    bar = Progress(console=Console(stderr=True), disable=args.quiet)
    with bar, (training.path / "progress.csv").open("w", newline="", encoding="utf-8") as file:
        log = csv.writer(file)
        log.writerow(["steps", "return_mean"])
        line = bar.add_task("steps", total=args.steps)
        resumed_from = None
        while done < args.steps:
            result = algorithm.train()
            total = int(result["num_env_steps_sampled_lifetime"])  # includes those of the checkpoint to resume
            resumed_from = total - min(STEPS, args.steps) if resumed_from is None else resumed_from
            done = total - resumed_from
            mean = result["env_runners"].get("episode_return_mean", np.nan)
            log.writerow([done, "" if np.isnan(mean) else mean])
            file.flush()
            bar.update(line, completed=done)
            if done >= due:
                due += args.checkpoint_every
                _save(training, algorithm, done, None)
    return _save(training, algorithm, done, "final")


def _save(training: Training, algorithm: PPO, steps: int, name: str | None) -> Path:
    folder = training.save_policy(actor_of(algorithm), name or f"{steps:09d}")
    algorithm.save_to_path(str((folder / STATE).resolve()))
    return folder


def main() -> None:
    """Train and evaluate."""
    gymnasium.logger.min_level = gymnasium.logger.ERROR  # RLlib reads deprecated attributes of wrappers
    args = parser(__doc__, steps=1_000_000, num_envs=1, gamma=0.97).parse_args()
    if PPO is None:
        raise SystemExit('error: training with RLlib needs ray, which cannot be imported; pip install "ray[rllib]"')
    with started("rllib", args) as training:
        evaluate(training, train(training))


if __name__ == "__main__":
    main()
