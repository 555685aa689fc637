"""Train a policy for a contract with SAC of Stable-Baselines3, then evaluate and record it on other backends.

python examples/train_sac.py arm_reach --seed 0 --evaluate mujoco mujoco_ros real
"""

from __future__ import annotations

from typing import Any

from sb3_training import learn
from stable_baselines3 import SAC
from training import Training, parser, started


def make(training: Training, worlds: Any) -> SAC:  # noqa: ANN401 - a VecEnv
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
        batch_size=256 if training.args.num_envs == 1 else 512,
        buffer_size=min(training.args.steps, 200_000),
        learning_starts=1000,
        ent_coef="auto_0.1",
        policy_kwargs={"net_arch": [128, 128], "optimizer_kwargs": {"fused": True}},
        device="cpu",
    )


def run(training: Training) -> None:
    """Train and evaluate."""
    learn(training, lambda worlds: make(training, worlds))


def main() -> None:
    """Parse the arguments, train and evaluate."""
    args = parser(__doc__, steps=100_000, num_envs=1, gamma=0.95).parse_args()
    with started("sac", args) as training:
        run(training)


if __name__ == "__main__":
    main()
