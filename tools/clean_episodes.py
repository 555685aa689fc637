"""Record clean episodes of every contract on every backend, and check that the audit finds nothing in them.

Usage: python tools/clean_episodes.py [EPISODES] [BACKEND ...]    (of all contracts and worlds together; default 1000)

A backend is fake, mujoco or mujoco_ros, with ``:realtime`` behind it where the agent waits for the world. Horizons are
cut to 15 steps. What acts are random actions, a policy that holds still, and every fifth episode malformed actions.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
from collections import Counter

import numpy as np

from embodied_env.contract import load_contract
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.extensions.audit import audit_run
from embodied_env.record import RecordTransitions

CONTRACTS = ("arm_reach", "cart_goal", "door_open")
SHARES = {"fake": 0.42, "mujoco": 0.36, "mujoco_ros": 0.18, "mujoco:realtime": 0.04}
HORIZON = 15
MALFORMED = (math.nan, "left", None, [1e308])


def contract_of(name: str):
    contract = load_contract(name)
    return dataclasses.replace(contract, episode=dataclasses.replace(contract.episode, horizon_steps=HORIZON))


def action_of(env, episode: int, step: int):
    if episode % 5 == 4 and step % 4 == 2:
        return MALFORMED[episode // 5 % len(MALFORMED)]
    if episode % 5 == 3:
        return np.zeros(env.action_space.shape) if env.action_space.shape else env.action_space.sample()
    return env.action_space.sample()


def play(name: str, backend: str, episodes: int, folder: str) -> tuple[Counter, list[str]]:
    """Return the ends of episodes, and the findings of the audit."""
    world, _, pacing = backend.partition(":")
    env = RecordTransitions(EmbodiedEnv(contract_of(name), backend=world, pacing=pacing or None), folder)
    ends: Counter = Counter()
    try:
        for episode in range(episodes):
            env.reset(seed=7 if episode % 10 == 0 else None)
            ended, step = False, 0
            while not ended:
                *_, terminated, truncated, info = env.step(action_of(env, episode, step))
                ended, step = terminated or truncated, step + 1
            ends[info["end_reason"]] += 1
    finally:
        env.close()
    report = audit_run(env.path)
    return ends, [*report.problems, *(f"warning: {warning}" for warning in report.warnings)]


def main(episodes: int, backends: list[str]) -> int:
    """Record, audit and print, and return the exit status."""
    found = played = 0
    for backend in backends:
        each = math.ceil(episodes * SHARES[backend] / len(CONTRACTS))
        for name in CONTRACTS:
            with tempfile.TemporaryDirectory() as folder:
                ends, findings = play(name, backend, each, folder)
            played += each
            found += len(findings)
            print(f"{backend:16} {name:10} {each:4} episodes {dict(ends)}: {len(findings)} findings", flush=True)
            for finding in findings[:5]:
                print(f"    {finding}", flush=True)
    print(f"{played} episodes, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    named = [argument for argument in sys.argv[1:] if not argument.isdigit()]
    sys.exit(main(numbers[0] if numbers else 1000, named or list(SHARES)))
