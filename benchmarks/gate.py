"""Cost of the gates and the record of a step, compared with the checks of other packages.

    python benchmarks/gate.py [--steps N] [--rounds N] [--json FILE]

`arm_reach`: six joints, and three small sensors of the agent and one of the evaluator. Its world is prepared: the
readings of a step are made before it begins, so that a step is gates, ledger, task, info and the hand-over to an
observer, and the copies that the agent gets. For comparison, with the same actions: lerobot's clamp and the
approvers of inspect-robots, by their own code where they are installed, else by the copy in `clamps.py`, which
describes them. The output says which; where they are installed both must return the same numbers.

These limit neither velocities nor accelerations, do not check whether the joint can still stop before the end of its
range, and ignore the age of readings, the latency and safety inputs. They record no stages. Only their positions are
compared here. Every round runs every case in a random order; a figure is the median of its steps.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from clamps import Vector, checks, timed
from rich.console import Console
from rich.progress import track
from rich.table import Table

from embodied_env.backends.fake import FakeBackend
from embodied_env.contract import Contract, load_contract
from embodied_env.core.clock import Stamp, make_clock
from embodied_env.core.types import ApprovedCommand, ResetRequest, SentCommand, Snapshot, Transition
from embodied_env.envs.stepper import Stepper
from embodied_env.envs.transition_builder import copy_step_result
from embodied_env.tasks import load_task

CONTRACT = "arm_reach"
WARM_UP = 10
ACCOUNT = "embodied_env, the account"
LIMITED = "embodied_env, every action limited"
GATE = "embodied_env, its gates alone"
OURS = "embodied_env"
Case = Callable[[], Iterator[int]]


class PreparedWorld(FakeBackend):
    """The fake world with readings made before the step that reads them. The joints stay where they are."""

    def reset(self, request: ResetRequest, deadline: Stamp) -> Snapshot:
        """Start an episode."""
        self._next = super().reset(request, deadline)
        return self._next

    def prepare(self) -> None:
        """Create the readings of the next step."""
        self._next = _later(self._next, self._contract.control_period_ns)

    def send(self, command: ApprovedCommand) -> SentCommand:
        """Store the command."""
        return SentCommand(seq=command.seq, values=command.values)

    def advance(self, target: Stamp, deadline: Stamp) -> None:
        """Do not advance time."""

    def read(self, after: Stamp, deadline: Stamp) -> Snapshot:  # noqa: ARG002 - it is there
        """Return the prepared readings."""
        return self._next


def _later(first: Snapshot, by_ns: int) -> Snapshot:
    samples = {name: replace(sample, stamp_ns=sample.stamp_ns + by_ns) for name, sample in first.samples.items()}
    return replace(first, now_ns=first.now_ns + by_ns, samples=samples, reset=None)


class HandOver:
    """An observer that only stores transitions in a bounded queue."""

    def __init__(self) -> None:
        """Start with an empty queue."""
        self.kept: deque[Transition] = deque(maxlen=16)

    def observe(self, transition: Transition) -> None:
        """Store the transition."""
        self.kept.append(transition)


def begun(contract: Contract) -> tuple[PreparedWorld, Stepper]:
    """Return a world and its stepper, at the start of an episode."""
    clock = make_clock("steady")
    world = PreparedWorld(contract, clock=clock)
    stepper = Stepper(contract, world, load_task(contract), clock=clock, observers=(HandOver(),))
    stepper.reset(world_seed=0, options=None, seeded=True)
    return world, stepper


def account(contract: Contract, inputs: Vector) -> Iterator[int]:
    """Yield the duration of each whole step, ns."""
    world, stepper = begun(contract)
    for action in inputs:
        world.prepare()
        start_ns = time.perf_counter_ns()
        stepper.begin(action)
        done = stepper.finish()
        copy_step_result(done)
        yield time.perf_counter_ns() - start_ns
        if done.terminated or done.truncated:
            stepper.reset(world_seed=0, options=None, seeded=True)
    stepper.close()


def gate(contract: Contract, inputs: Vector) -> Iterator[int]:
    """Yield the duration of the gates in the same steps, ns: the stage of the ledger."""
    world, stepper = begun(contract)
    for action in inputs:
        world.prepare()
        stepper.begin(action)
        done = stepper.finish()
        yield done.stamps_ns["gated"] - done.stamps_ns["entered"]
        if done.terminated or done.truncated:
            stepper.reset(world_seed=0, options=None, seeded=True)
    stepper.close()


def cases(contract: Contract, steps: int) -> dict[str, tuple[str, Case]]:
    """Return the timed cases by name, with the origin of their code. Only calm actions keep the limits."""
    calm = np.random.default_rng(0).uniform(-0.02, 0.02, (WARM_UP + steps, 6))
    wild = np.where(np.arange(WARM_UP + steps)[:, np.newaxis] % 2, -0.9, 0.9) * np.ones(6)
    found: dict[str, tuple[str, Case]] = {
        ACCOUNT: (OURS, lambda: account(contract, calm)),
        LIMITED: (OURS, lambda: account(contract, wild)),
        GATE: (OURS, lambda: gate(contract, calm)),
    }
    for check in checks([joint for actuator in contract.actuators.values() for joint in actuator.joints]):
        found[check.name] = check.whose, partial(timed, check, calm)
        found[f"{check.name}, every action limited"] = check.whose, partial(timed, check, wild)
    return found


def rows(rounds: list[dict[str, float]], whose: dict[str, str]) -> list[dict[str, Any]]:
    """Return a row for each case: origin, median, us, and ratio to the whole step with its spread."""
    table = []
    for name in rounds[0]:
        ratios = [found[name] / found[ACCOUNT] for found in rounds]
        row = {"who": name, "code": whose[name], "p50_us": statistics.median(found[name] for found in rounds)}
        table.append({**row, "ratio": statistics.median(ratios), "ratio_spread": [min(ratios), max(ratios)]})
    return table


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="of each case in each round (default: 400)")
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the table")
    args = parser.parse_args()
    chosen = cases(load_contract(CONTRACT), args.steps)
    rounds = []
    for _ in track(range(args.rounds), description="rounds", console=Console(stderr=True)):
        order = random.sample(list(chosen), len(chosen))
        found = {name: statistics.median(list(chosen[name][1]())[WARM_UP:]) / 1e3 for name in order}
        rounds.append({name: found[name] for name in chosen})
    table = rows(rounds, {name: whose for name, (whose, _) in chosen.items()})
    shown = Table(
        "who", "whose code", "p50, us", f"/ {ACCOUNT}", title="one action of six joints", title_justify="left"
    )
    for row in table:
        low, high = row["ratio_spread"]
        ratio = f"{row['ratio']:.3f} ({low:.3f} to {high:.3f})"
        shown.add_row(row["who"], row["code"], f"{row['p50_us']:.1f}", ratio)
    Console().print(shown)
    if args.json is not None:
        args.json.write_text(json.dumps({"steps": args.steps, "rounds": args.rounds, "rows": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
