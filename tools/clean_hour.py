"""Drive for one hour of robot time in `mujoco`, and check that the gate never holds or stops without a reason.

python tools/clean_hour.py [SECONDS] [CONTRACT ...]

The scripted policy drives. Every finding of HOLD or above is a false positive, and printed.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import embodied_env
from embodied_env.core.code_types import Severity
from embodied_env.policies.policy_loader import load_policy

CONTRACTS = ("arm_reach", "cart_goal", "door_open")


def findings_of(name: str, seconds: float) -> tuple[int, Counter[str]]:
    """Return the number of steps, and the findings by severity and code."""
    env = embodied_env.make(name, backend="mujoco")
    contract = env.unwrapped.contract
    policy = load_policy("scripted", contract)
    found: Counter[str] = Counter()
    steps, seed, ended = 0, 0, True
    while steps * contract.control_period_s < seconds:
        if ended:
            observation, _ = env.reset(seed=seed)
            seed += 1
        observation, _, terminated, truncated, _ = env.step(policy(observation))
        ended = terminated or truncated
        steps += 1
        taken: Any = env.unwrapped.last_transition
        found.update(f"{finding.severity.name} {finding.code}" for finding in taken.report.findings)
    env.close()
    return steps, found


def main() -> None:
    """Raise SystemExit for a false HOLD."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0
    for name in sys.argv[2:] or CONTRACTS:
        steps, found = findings_of(name, seconds)
        print(f"{name}: {steps} steps, {dict(found)}", flush=True)
        false = {what: count for what, count in found.items() if Severity[what.split()[0]] >= Severity.HOLD}
        if false:
            raise SystemExit(f"{name}: held or stopped without a reason: {false}")


if __name__ == "__main__":
    main()
