"""What the training examples share: arguments, the run directory, and the evaluation afterwards.

A run directory::

    training.json         what was asked: arguments, contract and fingerprint, versions
    progress.csv          what the learner said on the way
    checkpoints/<steps>/  the policy after so many steps: scaling.json, and the file of the learner
    checkpoints/final/
    evaluations/          recorded runs, for embodied-env report, compare and audit
    summary.json          success on each backend, and where its run lies
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from scaling import LEARNED_POLICY, ScaledEnv, Scaling, action_box, load_scaling, measure_scaling

import embodied_env
from embodied_env.cli.evaluation_run import evaluate_with_progress, print_table
from embodied_env.cli.main import print_error
from embodied_env.contract import Contract
from embodied_env.contract.loader import dump_contract
from embodied_env.core.process.child import Child, simulator
from embodied_env.errors import EmbodiedEnvError, UsageError
from embodied_env.evaluation.episodes import Evaluation
from embodied_env.record.manifest import write_json

EVALUATION_SEED = 1_000_003
"""Of the evaluations: other episodes than those of training."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training: what was asked, and where it is kept."""

    algorithm: str
    contract: Contract
    scaling: Scaling
    args: argparse.Namespace
    path: Path

    def make_env(self) -> ScaledEnv:
        """Make one environment, as the learner sees it."""
        return ScaledEnv(embodied_env.make(self.contract, backend=self.args.backend), self.scaling)

    def makers(self) -> list[Callable[[], ScaledEnv]]:
        """Return what makes each of the environments."""
        return [self.make_env] * self.args.num_envs

    def make_policy_folder(self, name: str) -> Path:
        """Make the folder of a policy, with its scaling, and return it."""
        folder = self.path / "checkpoints" / name
        folder.mkdir(parents=True)
        self.scaling.save(folder)
        return folder


def parser(description: str | None, *, steps: int, num_envs: int) -> argparse.ArgumentParser:
    """Return a parser of what every training takes, with these defaults."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    add = arguments.add_argument
    add("contract", nargs="?", default="arm_reach", help="a contract's name or file (default: arm_reach)")
    add("--backend", default="mujoco", help="where to learn: mujoco, mujoco_ros, gazebo, ... (default: mujoco)")
    add("--steps", type=int, default=steps, help=f"of all environments together (default: {steps})")
    add("--seed", type=int, default=0, help="of everything that is drawn (default: 0)")
    add("--num-envs", type=int, default=num_envs, help=f"environments side by side (default: {num_envs})")
    add("--out", default="runs", help="where the run directory is made (default: runs)")
    add("--checkpoint-every", type=int, default=20_000, metavar="STEPS", help="(default: 20000)")
    add("--feature-steps", type=int, default=4000, help="of a random policy, to scale observations by (default: 4000)")
    add("--resume", metavar="CHECKPOINT", help="go on from this one, if it was learned under this contract")
    add("--evaluate", nargs="*", default=["mujoco"], metavar="BACKEND", help="afterwards (default: mujoco)")
    add("--episodes", type=int, default=50, help="of each evaluation (default: 50)")
    add("--robot", metavar="NAMESPACE", help="--evaluate real: the robot there (default: a stand-in, started for it)")
    add("--quiet", action="store_true", help="no progress bar")
    return arguments


@contextlib.contextmanager
def started(algorithm: str, args: argparse.Namespace) -> Iterator[Training]:
    """Make the run directory of a training that begins; an error of the package becomes one line, and status 2."""
    try:
        yield _start(algorithm, args)
    except EmbodiedEnvError as error:
        print_error(error)
        raise SystemExit(2) from None


def _start(algorithm: str, args: argparse.Namespace) -> Training:
    for name in ("steps", "num_envs", "episodes", "checkpoint_every", "feature_steps", "seed"):
        least, given = 0 if name == "seed" else 1, getattr(args, name)
        if given < least:
            raise UsageError(f"--{name.replace('_', '-')} {given} is not allowed; allowed: {least} or more")
    contract = embodied_env.load_contract(args.contract)
    action_box(contract)  # refused before the run directory is made
    if args.resume is None:
        scaling = measure_scaling(contract, args.backend, seed=args.seed, steps=args.feature_steps)
    else:
        scaling = load_scaling(args.resume, contract)
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    path = Path(args.out) / f"{contract.name}-{algorithm}-seed{args.seed}-{now}-{secrets.token_hex(3)}"
    path.mkdir(parents=True)
    packages = ("embodied_env", "gymnasium", "numpy", "mujoco", "torch", "stable_baselines3")
    asked = {
        "algorithm": algorithm,
        "contract": {"name": contract.name, "version": contract.version, "fingerprint": contract.fingerprint},
        "arguments": vars(args),
        "features": list(scaling.keys),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "started_utc": now,
    }
    write_json(path / "training.json", asked)
    print(f"training {contract.name} v{contract.version} by {algorithm} in {path}", file=sys.stderr, flush=True)
    return Training(algorithm=algorithm, contract=contract, scaling=scaling, args=args, path=path)


def evaluate(training: Training, policy: str, folder: Path, took_s: float) -> None:
    """Evaluate `policy`, which loads `folder`, on the asked backends, recorded, and write summary.json."""
    args, found = training.args, {}
    os.environ[LEARNED_POLICY] = str(folder.resolve())
    for backend in args.evaluate:
        with _robot(training) if backend == "real" else contextlib.nullcontext({}) as options:
            (evaluation,) = evaluate_with_progress(
                training.contract,
                [policy],
                backend=backend,
                episodes=args.episodes,
                seed=EVALUATION_SEED,
                out=training.path / "evaluations",
                **options,
            )
        print_table(training.contract, backend, [evaluation])
        found[backend] = _said(evaluation)
    summary = {
        "algorithm": training.algorithm,
        "seed": args.seed,
        "steps": args.steps,
        "training_s": round(took_s, 1),
        "contract": {"name": training.contract.name, "fingerprint": training.contract.fingerprint},
        "policy": {"address": policy, "folder": str(folder)},
        "evaluations": found,
    }
    write_json(training.path / "summary.json", summary)
    print(training.path)


@contextlib.contextmanager
def _robot(training: Training) -> Iterator[dict[str, Any]]:
    """Give the options of `make` for the robot: the one that was named, or a stand-in for as long as this lasts.

    The stand-in has a namespace of its own, so that no robot on the network hears what is meant for it.
    """
    if training.args.robot is not None:
        yield {"namespace": training.args.robot}
        return
    namespace = f"/stand_in_{os.getpid()}"
    stand_in = Child(
        simulator("-", namespace=namespace, source=training.contract.source, free_running=True),
        first_line=dump_contract(training.contract),
    )
    try:
        yield {"namespace": namespace}
    finally:
        stand_in.stop()


def _said(evaluation: Evaluation) -> dict[str, Any]:
    counts = ("episodes", "solved_at_reset", "solved_at_first_step", "rated", "rated_terminated")
    kept = (*counts, "success_rate", "success_rate_not_truncated", "end_reasons", "return", "steps", "clipped_share")
    summary = {key: evaluation.summary[key] for key in kept}
    return {"path": str(evaluation.path), "problem": evaluation.problem, **summary}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def stopwatch() -> Callable[[], float]:
    """Return what says how many seconds have passed since now."""
    begun = time.monotonic()
    return lambda: time.monotonic() - begun
