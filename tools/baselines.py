"""Check in `mujoco` that the scripted policies solve their contracts and that holding still does not.

python tools/baselines.py [EPISODES] [CONTRACT ...]

The default is 50 seeds of each contract.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

CONTRACTS = ("arm_reach", "cart_goal", "door_open")
LEAST = 0.9


def success_rate(contract: str, policy: str, episodes: int) -> float:
    """Return the success rate, truncation counted as failure, of a run that passes the audit."""
    command = ["embodied_env.cli", "evaluate", contract, "--policy", policy, "--episodes", str(episodes), "--json"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", *command, "--out", folder], stdout=subprocess.PIPE, check=True, text=True
        )
        (run,) = json.loads(done.stdout)["runs"]
        audited = [sys.executable, "-m", "embodied_env.cli", "audit", run["path"]]
        audit = subprocess.run(audited, stdout=subprocess.PIPE, check=False, text=True)
    print(f"{contract} {policy}: {run['summary']['success_rate']:.0%} of {episodes}; audit: {audit.stdout.strip()}")
    if audit.returncode:
        raise SystemExit(f"{contract} {policy}: the run is not sound")
    return run["summary"]["success_rate"]


def main() -> None:
    """Raise SystemExit when a baseline misses its target."""
    episodes = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    for contract in sys.argv[2:] or CONTRACTS:
        solved = success_rate(contract, "scripted", episodes)
        if solved < LEAST:
            raise SystemExit(f"{contract}: scripted solves {solved:.0%}; at least {LEAST:.0%} is needed")
        held = success_rate(contract, "hold", episodes)
        if held > 0:
            raise SystemExit(f"{contract}: holding still solves {held:.0%}; 0 % is needed")


if __name__ == "__main__":
    main()
