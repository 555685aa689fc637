"""Train a linear policy on the model of a contract and on the identified one, and compare both on the robot.

python examples/train_identified.py arm.yaml identified.yaml --seeds 3

Both contracts have one task and one robot. The first one has the model before the identification, the second names the
identified parameters with ``draw: intervals``. The policies are trained by the cross-entropy method, evaluated on the
robot emulator that runs (`embodied-env sim CONTRACT --free-running`), and compared by episodes with equal targets.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import embodied_env

Array = NDArray[np.float64]

CANDIDATES, ELITES = 48, 8
GENERATIONS, TARGETS = 15, 3  # of a training; in each generation
STEPS = 40  # of an episode
SPREAD, LEAST_SPREAD = 0.5, 0.02  # standard deviation of the weights, at first and at least
EVALUATION_SEED = 10_000
HOST_IS_LATE = ("policy_lost", "sensor_gap", "safety_stop:act.late", "safety_stop:obs.stale", "safety_stop:wd")


def features(observation: Mapping[str, Any]) -> Array:
    """Return the inputs of the policy, shape (..., n), which are the way to the target, positions, velocities and 1."""
    way = observation["target_position"] - observation["tcp_position"]
    joints = [observation[f"joints_{name}"] for name in ("position", "velocity")]
    return np.concatenate([10.0 * way, *joints, np.ones((*way.shape[:-1], 1))], axis=-1)


def act(weights: Array, observation: Mapping[str, Any]) -> Array:
    """Return the actions of the policies with these weights, shape (..., n_joints, n_features)."""
    return np.clip(np.einsum("...jf,...f->...j", weights, features(observation)), -1.0, 1.0)


def returns_of(worlds: Any, weights: Array, seed: int) -> Array:  # noqa: ANN401 - a vector environment
    """Return the return of each policy in an episode with this seed, the same target and model for all."""
    observation, _ = worlds.reset(seed=[seed] * len(weights))
    returns, running = np.zeros(len(weights)), np.ones(len(weights), dtype=np.bool_)
    for _ in range(STEPS):
        observation, rewards, terminated, truncated, _ = worlds.step(act(weights, observation))
        returns += np.where(running, rewards, 0.0)
        running &= ~(terminated | truncated)
    return returns


def train(contract: str, seed: int, generations: int) -> Array:
    """Return the weights that the cross-entropy method finds on the embedded simulator."""
    rng = np.random.default_rng(seed)
    with contextlib.closing(embodied_env.make_vec(contract, num_envs=CANDIDATES)) as worlds:
        observation, _ = worlds.reset(seed=seed)
        (size,) = worlds.single_action_space.shape or ()
        shape = (size, features(observation).shape[-1])
        mean, spread = np.zeros(shape), np.full(shape, SPREAD)
        for generation in range(generations):
            weights = mean + spread * rng.standard_normal((CANDIDATES, *shape))
            seeds = rng.integers(EVALUATION_SEED, size=TARGETS).tolist()
            returns = np.mean([returns_of(worlds, weights, each) for each in seeds], axis=0)
            elites = weights[np.argsort(returns)[-ELITES:]]
            mean, spread = elites.mean(axis=0), np.maximum(elites.std(axis=0), LEAST_SPREAD)
            print(f"{contract} seed {seed} generation {generation}: mean return {returns.mean():.2f}", flush=True)
    return mean


def evaluate(contract: str, policies: Sequence[Array], episodes: int, **options: Any) -> tuple[Array, Array]:  # noqa: ANN401
    """Return return and success of each policy in each episode on the robot, shape (n_policies, n_episodes)."""
    returns, successes = np.zeros((2, len(policies), episodes))
    with embodied_env.make(contract, max_episode_steps=STEPS, **options) as env:
        for episode in range(episodes):
            for index, weights in enumerate(policies):
                reason = HOST_IS_LATE[0]
                while reason.startswith(HOST_IS_LATE):  # a busy host, not the policy: once more
                    total, reason = _episode(env, weights, EVALUATION_SEED + episode)
                returns[index, episode], successes[index, episode] = total, reason == "success"
    return returns, successes


def _episode(env: Any, weights: Array, seed: int) -> tuple[float, str]:  # noqa: ANN401 - an environment in wrappers
    observation, info = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        observation, reward, terminated, truncated, info = env.step(act(weights, observation))
        total, ended = total + float(reward), terminated or truncated
    return total, str(info["end_reason"])


def interval(values: Array) -> str:
    """Return the mean of a few values with its 95 % interval, by Student's t."""
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)
    return f"{values.mean():.2f} ({values.mean() - half:.2f} .. {values.mean() + half:.2f})"


def main() -> None:
    """Train, evaluate and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contracts", nargs=2, metavar="CONTRACT", help="with the model before and after")
    parser.add_argument("--seeds", type=int, default=3, help="number of trainings on each model, at least 2")
    parser.add_argument("--generations", type=int, default=GENERATIONS)
    parser.add_argument("--episodes", type=int, default=10, help="of each policy on the robot")
    parser.add_argument("--namespace", help="ROS 2 namespace of the emulator")
    parser.add_argument("--lockstep", metavar="CONTRACT", help="evaluate in this contract's simulator, not on a robot")
    args = parser.parse_args()
    policies = [train(contract, seed, args.generations) for contract in args.contracts for seed in range(args.seeds)]
    options: dict[str, Any] = {"backend": "real", "emulator": True, "namespace": args.namespace}
    contract = args.lockstep or args.contracts[0]
    returns, successes = evaluate(contract, policies, args.episodes, **({} if args.lockstep else options))
    by_model = returns.mean(axis=1).reshape(2, args.seeds)
    print("\n| trained on | return of each seed | mean, 95 % interval | success |\n|---|---|---|---|")
    for path, means, rates in zip(args.contracts, by_model, successes.reshape(2, -1), strict=True):
        each = ", ".join(f"{value:.2f}" for value in means)
        print(f"| {Path(path).name} | {each} | {interval(means)} | {100 * rates.mean():.0f} % |")
    print(f"| difference | | {interval(by_model[1] - by_model[0])} | |")


if __name__ == "__main__":
    main()
