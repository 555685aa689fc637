"""Train a policy with PPO in plain PyTorch.

The whole algorithm is in this file, with explicit treatment of terminated and truncated.

python examples/train_ppo.py arm_reach --seed 0 --evaluate mujoco mujoco_ros

An episode ends in two ways. *Terminated*: the task is over, and the value of the last state is 0. *Truncated*: a time
limit, a safety stop or a lost sensor ended the episode but not the task, and the value of the last observation
estimates the missing rewards (`advantages`). Confusing the two teaches a policy to avoid time limits, or, if rewards
are costs, to provoke safety stops.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from policy_mapping import MappedVectorEnv
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from training import Training, evaluate, parser, started

GAMMA = 0.97
LAMBDA = 0.95  # generalised advantage estimation
STEPS = 64  # of each environment, between two updates
EPOCHS = 5
MINIBATCHES = 16  # of an epoch
CLIP = 0.2
LEARNING_RATE = 1e-3  # at first; it decreases to 0
VALUE_WEIGHT, ENTROPY_WEIGHT = 0.5, 0.0
LARGEST_GRADIENT = 0.5

WIDTH = 128  # of both hidden layers
STATE = "learner.pt"
"""File of the networks and the optimiser, to resume from."""


class Agent(nn.Module):
    """A Gaussian policy and a value function."""

    def __init__(self, features: int, actions: int) -> None:
        """Create networks for this number of features and action elements."""
        super().__init__()
        self.mean = _orthogonal(perceptron(features, actions), gain=0.01)
        self.value = _orthogonal(perceptron(features, 1), gain=1.0)
        self.log_std = nn.Parameter(torch.full((actions,), -0.5))

    def policy(self, features: Tensor) -> torch.distributions.Normal:
        """Return the distribution of actions, from -1 to 1 within the action space."""
        return torch.distributions.Normal(self.mean(features), self.log_std.exp())


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network of two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, outputs)
    )


def _orthogonal(network: nn.Sequential, *, gain: float) -> nn.Sequential:
    """Initialise `network` with orthogonal weights, with `gain` for its last layer."""
    for layer, its_gain in zip(network[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, its_gain)
        nn.init.zeros_(layer.bias)
    return network


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The steps between two updates, as tensors (steps, environments, ...).

    Attributes:
        values: value of the observation before each step.
        next_values: value of the observation after each step; at the end of an episode, of its last observation.
        terminated: the task ended with the step.
        ended: the episode ended with the step.
    """

    features: Tensor
    actions: Tensor
    log_probabilities: Tensor
    rewards: Tensor
    values: Tensor
    next_values: Tensor
    terminated: Tensor
    ended: Tensor


def advantages(rollout: Rollout, gamma: float = GAMMA) -> Tensor:
    """Return the generalised advantage estimate of each step, which bootstraps on truncated but not on terminated.

    After ``terminated`` no rewards are expected (`next_values`). No advantage is propagated back over the end of an
    episode, truncated or not, since the next step belongs to another episode.
    """
    expected = rollout.next_values * (1 - rollout.terminated)
    errors = rollout.rewards + gamma * expected - rollout.values
    estimates, advantage = torch.zeros_like(errors), torch.zeros_like(errors[0])
    for step in reversed(range(len(errors))):
        advantage = errors[step] + gamma * LAMBDA * (1 - rollout.ended[step]) * advantage
        estimates[step] = advantage
    return estimates


class Collector:
    """Steps the environments, and keeps their last observations."""

    def __init__(self, worlds: gymnasium.vector.VectorEnv[Any, Any, Any], seed: int) -> None:
        """Reset `worlds`, whose autoreset mode is SAME_STEP."""
        self._worlds = worlds
        self._features, _ = worlds.reset(seed=seed)
        self._returns = np.zeros(worlds.num_envs)
        self.ended: list[float] = []  # returns of finished episodes

    @torch.no_grad()
    def collect(self, agent: Agent, steps: int) -> Rollout:
        """Take `steps` steps in each environment."""
        rows: list[tuple[Tensor, ...]] = []
        for _ in range(steps):
            features = torch.from_numpy(self._features.copy())
            policy = agent.policy(features)
            action = policy.sample()
            log_probability = policy.log_prob(action).sum(-1)
            sent = action.clamp(-1.0, 1.0).numpy()
            self._features, rewards, terminated, truncated, infos = self._worlds.step(sent)
            ended = terminated | truncated
            after = _last_features(self._features, ended, infos)
            self._count(rewards, ended)
            numbers = (np.asarray(x, dtype=np.float32) for x in (rewards, terminated, ended))
            reward, is_terminated, is_ended = map(torch.from_numpy, numbers)
            before, next_value = agent.value(features).squeeze(-1), agent.value(after).squeeze(-1)
            rows.append((features, action, log_probability, reward, before, next_value, is_terminated, is_ended))
        return Rollout(
            **dict(zip(Rollout.__dataclass_fields__, map(torch.stack, zip(*rows, strict=True)), strict=True))
        )

    def _count(self, rewards: Any, ended: Any) -> None:  # noqa: ANN401 - arrays
        self._returns += rewards
        self.ended += self._returns[ended].tolist()
        self._returns[ended] = 0.0


def _last_features(features: Any, ended: Any, infos: Any) -> Tensor:  # noqa: ANN401 - arrays
    """Return the features after the step, which at the end of an episode are not those of the next reset."""
    after = features.copy()
    for index in np.flatnonzero(ended):
        after[index] = infos["final_obs"][index]
    return torch.from_numpy(after)


def update(agent: Agent, optimiser: torch.optim.Optimizer, rollout: Rollout, *, gamma: float, minibatches: int) -> None:
    """Update `agent` by the clipped objective of `rollout`, in this number of minibatches per epoch."""
    gained = advantages(rollout, gamma)
    targets = (gained + rollout.values).flatten()
    gained = gained.flatten()
    features, actions = rollout.features.flatten(0, 1), rollout.actions.flatten(0, 1)
    before = rollout.log_probabilities.flatten()
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(gained)).split(-(-len(gained) // minibatches)):
            policy = agent.policy(features[chosen])
            ratio = (policy.log_prob(actions[chosen]).sum(-1) - before[chosen]).exp()
            advantage = (gained[chosen] - gained[chosen].mean()) / (gained[chosen].std(correction=0) + 1e-8)
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            of_policy = -torch.min(ratio * advantage, clipped * advantage).mean()
            of_value = nn.functional.mse_loss(agent.value(features[chosen]).squeeze(-1), targets[chosen])
            loss = of_policy + VALUE_WEIGHT * of_value - ENTROPY_WEIGHT * policy.entropy().sum(-1).mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), LARGEST_GRADIENT)
            optimiser.step()


def train(training: Training) -> Path:
    """Train with checkpoints, and return the last one."""
    args = training.args
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    worlds = training.make_worlds(args.num_envs)
    try:
        (seen,), (acting,) = (
            space.shape or () for space in (worlds.single_observation_space, worlds.single_action_space)
        )
        agent = Agent(seen, acting)
        optimiser = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5, fused=True)
        if args.resume is not None:
            state = torch.load(Path(args.resume) / STATE, weights_only=True)
            agent.load_state_dict(state["agent"])
            optimiser.load_state_dict(state["optimiser"])
        return _learn(training, worlds, agent, optimiser)
    finally:
        worlds.close()


def _learn(training: Training, worlds: MappedVectorEnv, agent: Agent, optimiser: torch.optim.Optimizer) -> Path:
    args, done, due = training.args, 0, training.args.checkpoint_every
    collector = Collector(worlds, args.seed)

    @torch.no_grad()
    def act(features: Any) -> Any:  # noqa: ANN401 - arrays
        return agent.mean(torch.from_numpy(features)).clamp(-1.0, 1.0).numpy()

    bar = Progress(console=Console(stderr=True), disable=args.quiet)
    with bar, (training.path / "progress.csv").open("w", newline="", encoding="utf-8") as file:
        log = csv.writer(file)
        log.writerow(["steps", "episodes", "return_mean", "std"])
        line = bar.add_task("steps", total=args.steps)
        while done < args.steps:
            steps = min(STEPS, -(-(args.steps - done) // args.num_envs))
            for group in optimiser.param_groups:
                group["lr"] = LEARNING_RATE * (1 - done / args.steps)
            rollout = collector.collect(agent, steps)
            update(agent, optimiser, rollout, gamma=args.gamma, minibatches=args.minibatches)
            done += steps * args.num_envs
            training.curve.measure(done, act)
            recent = collector.ended[-100:]
            log.writerow(
                [done, len(collector.ended), np.mean(recent) if recent else "", agent.log_std.exp().mean().item()]
            )
            file.flush()
            bar.update(line, completed=done)
            if done >= due:
                due += args.checkpoint_every
                save(training, agent, optimiser, f"{done:09d}")
    return save(training, agent, optimiser, "final")


def save(training: Training, agent: Agent, optimiser: torch.optim.Optimizer, name: str) -> Path:
    """Save the most likely action and the learner into a new folder, and return the folder."""
    folder = training.save_policy(nn.Sequential(*agent.mean, nn.Hardtanh()), name)
    torch.save({"agent": agent.state_dict(), "optimiser": optimiser.state_dict()}, folder / STATE)
    return folder


def main() -> None:
    """Train and evaluate."""
    arguments = parser(__doc__, steps=500_000, num_envs=64, gamma=GAMMA)
    arguments.add_argument("--minibatches", type=int, default=MINIBATCHES, help=f"of an epoch (default: {MINIBATCHES})")
    with started("ppo", arguments.parse_args()) as training:
        evaluate(training, train(training))


if __name__ == "__main__":
    main()
