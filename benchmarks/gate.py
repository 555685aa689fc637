"""What does the account of a step cost, and what do the checks of others that are there in its place?

    python benchmarks/gate.py [--steps N] [--rounds N] [--json FILE]

`arm_reach`: six joints, and three small sensors of the agent beside one of the evaluator. Its world is prepared: the
readings of a step are made before it begins, so that a step is gates, ledger, task, info and the hand-over to an
observer, and the copies that the agent gets. Beside it, written out as what they do to the same numbers:

- lerobot's clamp (``ensure_safe_goal_position``): each goal at most so far from the measured position, by name;
- the approvers of inspect-robots: a chain of a clamp to the box and a limit of the change from the last action, which
  refuses what is not finite and says whether it clamped.

Neither knows velocities, accelerations, or whether it is still possible to stop before the end of the range, and
neither looks at how old a reading is, at the latency, or at safety inputs; there is no account of stages. Their
positions are checked here against what they promise: that is all that they and we compute alike.
Every round runs every case in an order of its own; a figure is the median of its steps.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from embodied_env.backends.fake import FakeBackend
from embodied_env.clock import Stamp, make_clock
from embodied_env.contract import Contract, load_contract
from embodied_env.info import copied_step
from embodied_env.stepper import Stepper
from embodied_env.tasks import load_task
from embodied_env.transition import Approved, ResetRequest, Sent, Snapshot, Transition

CONTRACT = "arm_reach"
WARM_UP = 10
ACCOUNT = "embodied_env, the account"
LIMITED = "embodied_env, every action limited"
GATE = "embodied_env, its gates alone"
CLAMP, APPROVERS = "lerobot's clamp", "inspect-robots' approvers"
STEP_LIMIT = 0.05  # of a joint in one step, in rad: of the clamp and of the approvers

Vector = NDArray[np.float64]


class PreparedWorld(FakeBackend):
    """The fake world whose readings are made before the step that reads them. The joints stay where they are."""

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Begin an episode."""
        self._next = super().reset(request, deadline)
        return self._next

    def prepare(self) -> None:
        """Make the readings of the next step."""
        self._next = _later(self._next, self._contract.control_period_ns)

    def send(self, command: Approved) -> Sent:
        """Take the command."""
        return Sent(seq=command.seq, values=command.values)

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Time does not pass."""

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - it is there
        """Return what was prepared."""
        return self._next


def _later(first: Snapshot, by_ns: int) -> Snapshot:
    samples = {name: replace(sample, stamp_ns=sample.stamp_ns + by_ns) for name, sample in first.samples.items()}
    return replace(first, now_ns=first.now_ns + by_ns, samples=samples, reset=None)


class HandOver:
    """An observer that puts what it is told into a bounded queue, and no more."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.told: deque[Transition] = deque(maxlen=16)

    def observe(self, transition: Transition) -> None:
        """Keep it."""
        self.told.append(transition)


def account(contract: Contract, inputs: Vector) -> Iterator[int]:
    """Yield what each whole step took, ns."""
    clock, observer = make_clock("steady"), HandOver()
    world = PreparedWorld(contract, clock=clock)
    stepper = Stepper(contract, world, load_task(contract), clock=clock, observers=(observer,))
    stepper.reset(world_seed=0, options=None, seeded=True)
    for action in inputs:
        world.prepare()
        start_ns = time.perf_counter_ns()
        stepper.begin(action)
        done = stepper.finish()
        copied_step(done)
        yield time.perf_counter_ns() - start_ns
        if done.terminated or done.truncated:
            stepper.reset(world_seed=0, options=None, seeded=True)
    stepper.close()


def gate(contract: Contract, inputs: Vector) -> Iterator[int]:
    """Yield what the gates took of the same steps, ns: the stage of the ledger."""
    clock, observer = make_clock("steady"), HandOver()
    world = PreparedWorld(contract, clock=clock)
    stepper = Stepper(contract, world, load_task(contract), clock=clock, observers=(observer,))
    stepper.reset(world_seed=0, options=None, seeded=True)
    for action in inputs:
        world.prepare()
        stepper.begin(action)
        done = stepper.finish()
        yield done.stamps_ns["gated"] - done.stamps_ns["entered"]
        if done.terminated or done.truncated:
            stepper.reset(world_seed=0, options=None, seeded=True)
    stepper.close()


def clamped(goals: Mapping[str, tuple[float, float]], at_most: float) -> dict[str, float]:
    """Return each goal, at most so far from where the joint is: joint -> (goal, present) in, joint -> goal out."""
    safe = {}
    for name, (goal, present) in goals.items():
        difference = min(max(goal - present, -at_most), at_most)
        safe[name] = present + difference
    return safe


def clamp(contract: Contract, inputs: Vector) -> Iterator[int]:
    """Yield what the clamp took, ns."""
    names = [joint for actuator in contract.actuators.values() for joint in actuator.joints]
    present = dict.fromkeys(names, 0.0)
    for action in inputs:
        start_ns = time.perf_counter_ns()
        goals = dict(zip(names, action.tolist(), strict=True))
        safe = clamped({name: (goal, present[name]) for name, goal in goals.items()}, STEP_LIMIT)
        yield time.perf_counter_ns() - start_ns
        if not all(abs(safe[name] - present[name]) <= STEP_LIMIT * (1 + 1e-12) for name in names):
            raise SystemExit(f"the clamp let {safe} through")


def approve(action: Vector, last: Vector, low: Vector, high: Vector) -> tuple[Vector, dict[str, Any]]:
    """Return the action that a chain of a clamp and a limit of the change leaves, and what it says of it."""
    if not np.isfinite(action).all():
        raise ValueError("the action is not finite")
    boxed = np.clip(action, low, high)
    limited = np.clip(boxed, last - STEP_LIMIT, last + STEP_LIMIT)
    return limited, {"clamped": bool((limited != action).any())}


def approvers(contract: Contract, inputs: Vector) -> Iterator[int]:
    """Yield what the approvers took, ns."""
    size = sum(len(actuator.joints) for actuator in contract.actuators.values())
    low, high, last = np.full(size, -math.pi), np.full(size, math.pi), np.zeros(size)
    for action in inputs:
        start_ns = time.perf_counter_ns()
        approved, _ = approve(action, last, low, high)
        yield time.perf_counter_ns() - start_ns
        if not (np.abs(approved - last) <= STEP_LIMIT * (1 + 1e-12)).all():
            raise SystemExit(f"the approvers let {approved} through after {last}")
        last = approved


def cases(contract: Contract, steps: int) -> dict[str, Callable[[], Iterator[int]]]:
    """Return what is timed, by name. Calm actions keep every limit; of the wild ones each is limited."""
    calm = np.random.default_rng(0).uniform(-0.02, 0.02, (WARM_UP + steps, 6))
    wild = np.where(np.arange(WARM_UP + steps)[:, np.newaxis] % 2, -0.9, 0.9) * np.ones(6)
    return {
        ACCOUNT: lambda: account(contract, calm),
        LIMITED: lambda: account(contract, wild),
        GATE: lambda: gate(contract, calm),
        CLAMP: lambda: clamp(contract, calm),
        APPROVERS: lambda: approvers(contract, calm),
    }


def rows(rounds: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return a row for each case: its median, us, and its ratio to the whole account with the spread over rounds."""
    table = []
    for name in rounds[0]:
        ratios = [found[name] / found[ACCOUNT] for found in rounds]
        row = {"who": name, "p50_us": statistics.median(found[name] for found in rounds)}
        table.append({**row, "ratio": statistics.median(ratios), "ratio_spread": [min(ratios), max(ratios)]})
    return table


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="of each case in each round (default: 400)")
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table")
    args = parser.parse_args()
    timed = cases(load_contract(CONTRACT), args.steps)
    rounds = []
    for _ in track(range(args.rounds), description="rounds", console=Console(stderr=True)):
        order = random.sample(list(timed), len(timed))
        found = {name: statistics.median(list(timed[name]())[WARM_UP:]) / 1e3 for name in order}
        rounds.append({name: found[name] for name in timed})
    table = rows(rounds)
    shown = Table("who", "p50, us", f"/ {ACCOUNT}", title="one action of six joints", title_justify="left")
    for row in table:
        low, high = row["ratio_spread"]
        shown.add_row(row["who"], f"{row['p50_us']:.1f}", f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})")
    Console().print(shown)
    if args.json is not None:
        args.json.write_text(json.dumps({"steps": args.steps, "rounds": args.rounds, "rows": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
