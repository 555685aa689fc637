"""Search for the weights of `driver.py` on several servers at a time."""

import sys

import numpy as np
from driver import commands
from numpy.typing import NDArray

import embodied_env

SLOTS, STEPS = 2, 30
GENERATIONS = int(sys.argv[1])


def run_episodes(
    envs: embodied_env.EmbodiedVectorEnv, weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the return of one episode of each candidate, and the slots whose server was lost."""
    observation, _ = envs.reset()
    returns, running, lost = np.zeros(SLOTS), np.ones(SLOTS, bool), np.zeros(SLOTS, bool)
    for _ in range(STEPS):
        observation, rewards, terminated, truncated, infos = envs.step(commands(weights, observation))
        returns += np.where(running, rewards, 0.0)
        reasons = infos.get("end_reason", [""] * SLOTS)
        lost |= running & truncated & [str(reason).startswith("backend_lost") for reason in reasons]
        running &= ~(terminated | truncated)
    return returns, lost


launch = {"world": "rover.sdf", "bridge": "rover.bridge.yaml"}
envs = embodied_env.make_vec("rover.yaml", num_envs=SLOTS, backend="gazebo", launch=launch, record="runs")
envs.reset(seed=0)
generator = np.random.default_rng(0)
mean, spread = np.zeros((2, 3)), np.ones((2, 3))
history: list[float] = []
for generation in range(GENERATIONS):
    scored = []
    for _ in range(8 // SLOTS):
        candidates = mean + spread * generator.normal(size=(SLOTS, 2, 3))
        returns, lost = run_episodes(envs, candidates)
        scored += [(score, w) for score, w, is_lost in zip(returns, candidates, lost, strict=True) if not is_lost]
    scored.sort(key=lambda pair: -pair[0])
    best = np.array([weights for _, weights in scored[:3]])
    mean, spread = best.mean(axis=0), best.std(axis=0) + 0.05
    history.append(float(np.mean([score for score, _ in scored])))
    np.save("policy.npy", mean)  # the checkpoint
    starts = [slot[0]["starts"] for slot in envs.call("processes")]
    print(f"generation {generation}: mean return {history[-1]:.1f}, servers started {starts}", flush=True)
envs.close()
print("improved" if history[-1] > history[0] else "not improved")
