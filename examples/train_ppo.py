"""Train a policy for a contract with PPO of Stable-Baselines3, then evaluate and record it on other backends.

python examples/train_ppo.py arm_reach --seed 0 --evaluate mujoco mujoco_ros real
"""

from __future__ import annotations

from typing import Any

from sb3_training import learn
from stable_baselines3 import PPO
from torch import nn
from training import Training, parser, started

STEPS = 2048
"""Number of steps between two updates, summed over all environments."""


def make(training: Training, worlds: Any) -> PPO:  # noqa: ANN401 - a VecEnv
    """Return the model to train in `worlds`."""
    steps = max(2, min(STEPS, training.args.steps) // training.args.num_envs)
    return PPO(
        "MlpPolicy",
        worlds,
        seed=training.args.seed,
        learning_rate=3e-4,
        n_steps=steps,
        batch_size=min(256, steps * training.args.num_envs),
        n_epochs=10,
        gamma=training.args.gamma,
        gae_lambda=0.95,
        policy_kwargs={"net_arch": [128, 128], "activation_fn": nn.Tanh, "log_std_init": -0.5},
        device="cpu",
    )


def run(training: Training) -> None:
    """Train and evaluate."""
    learn(training, lambda worlds: make(training, worlds))


def main() -> None:
    """Parse the arguments, train and evaluate."""
    args = parser(__doc__, steps=1_000_000, num_envs=8, gamma=0.97).parse_args()
    with started("ppo", args) as training:
        run(training)


if __name__ == "__main__":
    main()
