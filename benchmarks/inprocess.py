"""Cost of a step of the in-process MuJoCo backend, compared with the same model alone.

    python benchmarks/inprocess.py [--steps N] [--rounds N] [--eagerx PYTHON] [--json FILE]

The same commands of the same model (`arm_reach`, 20 physics steps per control period) through a bare loop of
``mj_step``, a plain Gymnasium environment, `embodied_env` with the backend `mujoco`, and, with the interpreter of an
environment in which EAGERx is installed, EAGERx in lockstep in one process (with commands of its own: its graph begins
elsewhere). The first three must come to the same joint positions, bit for bit. Every round runs each of them in an
order of its own; a figure is the median of a round's steps, and a ratio that of two such medians of one round.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

import embodied_env
from embodied_env.contract import load_contract
from embodied_env.sim.backend_profile import load_profile
from embodied_env.sim.model import Model

sys.path.insert(0, str(Path(__file__).parent))
from plain_world import PlainEnv, PlainWorld

CONTRACT, SUBSTEPS = "arm_reach", 20
BARE, PLAIN, OURS, EAGERX = "bare mj_step loop", "plain Gymnasium", "embodied_env", "EAGERx, single process"

Commands = NDArray[np.float64]
Timed = tuple[list[int], NDArray[np.float64]]  # ns of each step, and the final joint positions


def timed(step: Callable[[NDArray[np.float64]], Any], inputs: NDArray[np.float64]) -> Iterator[int]:
    """Yield the duration of each step, ns."""
    for one in inputs:
        start_ns = time.perf_counter_ns()
        step(one)
        yield time.perf_counter_ns() - start_ns


def actions(steps: int) -> NDArray[np.float64]:
    """Return a slow random walk of actions that ends no episode, shape (steps, 6)."""
    return np.random.default_rng(0).uniform(-0.05, 0.05, (steps, 6))


def ours(inputs: NDArray[np.float64]) -> tuple[Timed, Commands]:
    """Step `embodied_env`; return the durations, and the published commands."""
    with closing(embodied_env.make(CONTRACT, backend="mujoco")) as env:
        env.reset(seed=0)
        published: list[NDArray[np.float64]] = []
        durations = []
        for duration_ns in timed(env.step, inputs):
            durations.append(duration_ns)
            published.append(env.unwrapped.last_transition.report.applied_si)
        positions = env.unwrapped.last_transition.observation["joints_position"]
    return (durations, positions), np.array(published)


def bare(model: mujoco.MjModel, commands: Commands) -> Timed:
    """Step the model in a loop."""
    world = PlainWorld(model, SUBSTEPS)
    return list(timed(world.step, commands)), world.data.qpos.copy()


def plain(model: mujoco.MjModel, commands: Commands) -> Timed:
    """Step the model behind a plain Gymnasium environment."""
    env = PlainEnv(model, SUBSTEPS)
    env.reset()
    durations = list(timed(env.step, commands))
    return durations, env.positions


def eagerx(python: str, model: mujoco.MjModel, steps: int) -> list[int]:
    """Step the model behind EAGERx in a separate process; raises CalledProcessError if that fails."""
    script = Path(__file__).with_name("eagerx_lockstep.py")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.mjb"
        mujoco.mj_saveModel(model, str(file))
        command = [python, str(script), str(file), str(SUBSTEPS), str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


def one_round(model: mujoco.MjModel, steps: int, python: str | None) -> dict[str, float]:
    """Run each case once, in random order; return the median of each, us."""
    inputs = actions(steps)
    commands = ours(inputs)[1]  # also warms up
    runs: dict[str, Callable[[], Timed]] = {
        BARE: lambda: bare(model, commands),
        PLAIN: lambda: plain(model, commands),
        OURS: lambda: ours(inputs)[0],
    }
    ends, found = {}, {}
    for name in random.sample(list(runs), len(runs)):
        durations, ends[name] = runs[name]()
        found[name] = statistics.median(durations) / 1e3
    for name, end in ends.items():
        if end.tobytes() != ends[BARE].tobytes():
            raise SystemExit(f"{name} ended at {end}, the bare loop at {ends[BARE]}: not the same computation")
    if python is not None:
        found[EAGERX] = statistics.median(eagerx(python, model, steps)) / 1e3
    return found


def rows(rounds: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return a row for each case: its median, its ratios to the bare loop and to ours with their spread."""
    table = []
    for name in rounds[0]:
        row: dict[str, Any] = {"who": name, "p50_us": statistics.median(found[name] for found in rounds)}
        for label, other in (("ratio_to_bare", BARE), ("ratio_to_ours", OURS)):
            ratios = [found[name] / found[other] for found in rounds]
            row |= {label: statistics.median(ratios), f"{label}_spread": [min(ratios), max(ratios)]}
        table.append(row)
    return sorted(table, key=lambda row: row["p50_us"])


def print_table(table: list[dict[str, Any]]) -> None:
    """Print a readable table."""
    shown = Table("who", "p50, us", "/ bare", "/ ours", title="one step of 20 physics steps", title_justify="left")
    for row in table:
        ratios = (f"{row[key]:.2f} ({row[f'{key}_spread'][0]:.2f} to {row[f'{key}_spread'][1]:.2f})" for key in RATIOS)
        shown.add_row(row["who"], f"{row['p50_us']:.0f}", *ratios)
    Console().print(shown)


RATIOS = ("ratio_to_bare", "ratio_to_ours")


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150, help="of each in each round (default: 150)")
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    parser.add_argument("--eagerx", metavar="PYTHON", help="an interpreter that has EAGERx")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table")
    args = parser.parse_args()
    contract = load_contract(CONTRACT)
    model = Model(contract, load_profile(contract, "mujoco"), "backends.mujoco").mj
    rounds = [
        one_round(model, args.steps, args.eagerx)
        for _ in track(range(args.rounds), description="rounds", console=Console(stderr=True))
    ]
    table = rows(rounds)
    print_table(table)
    if args.json is not None:
        args.json.write_text(json.dumps({"steps": args.steps, "rounds": args.rounds, "rows": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
