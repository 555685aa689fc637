"""Provide the arguments, the training directory and the evaluation that the training examples share.

A training directory contains::

    training.json         arguments, contract and fingerprint, versions
    progress.csv          log of the learner
    curve.csv             success rate of the policy without exploration noise after each --curve steps
    checkpoints/<steps>/  the policy after this number of steps: policy.onnx, its policy file, and what resumes
    checkpoints/final/
    evaluations/          recorded runs, for embodied-env report, compare and audit
    summary.json          success rate and run directory of each backend
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from onnx_export import save_onnx
from policy_mapping import (
    MappedEnv,
    MappedVectorEnv,
    action_box,
    measure_policy_file,
    resumed_policy_file,
    without_images,
)
from torch import nn

import embodied_env
from embodied_env.backends.backend_registry import unknown_backend
from embodied_env.cli.main import print_error
from embodied_env.contract import Contract, FloatArray
from embodied_env.contract.contract_loader import dump_contract
from embodied_env.errors import EmbodiedEnvError, UsageError
from embodied_env.extensions.evaluation.evaluation_display import print_table
from embodied_env.extensions.evaluation.evaluation_results import PolicyResult
from embodied_env.extensions.evaluation.live_table import LiveTable
from embodied_env.plugins.plugin_lookup import known_backends
from embodied_env.policies.policy_file import SUFFIX, PolicyFile, write_policy_file
from embodied_env.processes.child_process import Child, simulator
from embodied_env.record.manifest import version_of, write_json

EVALUATION_SEED = 1_000_003
"""Seed of the evaluations, so that their episodes differ from those of the training."""

MODEL = "policy.onnx"
POLICY_FILE = f"policy{SUFFIX}"


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings and directory of one training."""

    algorithm: str
    contract: Contract
    policy_file: PolicyFile
    args: argparse.Namespace
    path: Path
    curve: Curve

    def make_env(self) -> MappedEnv:
        """Make one environment with the inputs and outputs of the policy."""
        return MappedEnv(embodied_env.make(self.contract, backend=self.args.backend), self.contract, self.policy_file)

    def make_worlds(self, num_envs: int) -> MappedVectorEnv:
        """Make this number of environments that step together."""
        return make_worlds(self.contract, self.policy_file, num_envs, backend=self.args.backend)

    def save_policy(self, actor: nn.Sequential, name: str) -> Path:
        """Write the layers of a policy with its policy file into a new folder, and return the folder."""
        folder = self.path / "checkpoints" / name
        folder.mkdir(parents=True)
        save_onnx(actor, folder / MODEL)
        write_policy_file(folder / POLICY_FILE, self.policy_file)
        return folder


class Curve:
    """Measure the success rate of a policy during its training, while the clock of the training is stopped."""

    def __init__(self, file: Path, worlds: Callable[[], MappedVectorEnv], every: int, start_s: FloatArray) -> None:
        """Measure after each `every` steps, if any, one episode in each of `worlds`."""
        self._file, self._make, self._every, self._due = file, worlds, every, every
        self._start_s = start_s
        self._worlds: MappedVectorEnv | None = None

    @property
    def training_s(self) -> FloatArray:
        """Duration and CPU time of the training without the measurements."""
        return _clocks_s() - self._start_s

    def measure(self, steps: int, act: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        """Write a row of ``curve.csv`` if one is due after these steps.

        `act` is the policy without exploration noise.
        """
        if not self._every or steps < self._due:
            return
        took_s, self._due = self.training_s, self._due + self._every
        if self._worlds is None:
            self._worlds = self._make()
            self._file.write_text("steps,training_s,cpu_s,success_rate\n", encoding="utf-8")
        rate = success_rate(self._worlds, act)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{steps},{took_s[0]:.1f},{took_s[1]:.1f},{rate:.3f}\n")
        self._start_s = _clocks_s() - took_s

    def close(self) -> None:
        """Close the worlds."""
        if self._worlds is not None:
            self._worlds.close()


def _clocks_s() -> FloatArray:
    return np.array([time.monotonic(), time.process_time()])


def success_rate(worlds: MappedVectorEnv, act: Callable[[NDArray[Any]], NDArray[Any]]) -> float:
    """Return the share of `worlds` whose next episode, of seeds that no training uses, is a success."""
    features, _ = worlds.reset(seed=EVALUATION_SEED)
    running, successes = np.ones(worlds.num_envs, dtype=np.bool_), 0
    while running.any():
        features, _, terminated, truncated, infos = worlds.step(act(features))
        ended = (terminated | truncated) & running
        if ended.any():
            successes += int(infos["final_info"]["is_success"][ended].sum())
            running &= ~ended
    return successes / worlds.num_envs


def make_worlds(contract: Contract, file: PolicyFile, num_envs: int, **options: Any) -> MappedVectorEnv:  # noqa: ANN401
    """Make environments that step together, without images, with the inputs and outputs of a policy file."""
    seen = without_images(contract)
    slots = embodied_env.make_vec(seen, num_envs=num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **options)
    return MappedVectorEnv(slots, seen, file)


def parser(description: str | None, *, steps: int, num_envs: int, gamma: float) -> argparse.ArgumentParser:
    """Return a parser of the common arguments, with these defaults."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    add = arguments.add_argument
    add("contract", nargs="?", default="arm_reach", help="name or file of the contract (default: arm_reach)")
    add("--backend", default="mujoco", help="backend to train on: mujoco, mujoco_ros, gazebo, ... (default: mujoco)")
    add("--steps", type=int, default=steps, help=f"number of steps, summed over all environments (default: {steps})")
    add("--seed", type=int, default=0, help="seed of the training (default: 0)")
    add("--num-envs", type=int, default=num_envs, help=f"number of parallel environments (default: {num_envs})")
    add("--out", default="runs", help="parent folder of the training directory (default: runs)")
    add("--gamma", type=float, default=gamma, help=f"discount per step (default: {gamma})")
    add("--curve", type=int, default=0, metavar="STEPS", help="measure the success rate every STEPS (default: never)")
    add("--checkpoint-every", type=int, default=20_000, metavar="STEPS", help="steps per checkpoint (default: 20000)")
    add("--feature-steps", type=int, default=4000, help="steps of a random policy for mean and std (default: 4000)")
    add("--direction", metavar="KEY", help="observation key of a vector that enters as its direction, such as a goal")
    add("--resume", metavar="CHECKPOINT", help="checkpoint to continue from, trained under the same contract")
    add("--evaluate", nargs="*", default=["mujoco"], metavar="BACKEND", help="backends to evaluate (default: mujoco)")
    add("--episodes", type=int, default=50, help="number of episodes per evaluation (default: 50)")
    add("--robot", metavar="NAMESPACE", help="namespace of the robot for --evaluate real (default: a robot emulator)")
    add("--quiet", action="store_true", help="hide the progress bar")
    return arguments


@contextlib.contextmanager
def started(algorithm: str, args: argparse.Namespace) -> Iterator[Training]:
    """Create the training directory, and turn an error of the package into a one-line message and exit status 2."""
    try:
        yield _start(algorithm, args)
    except EmbodiedEnvError as error:
        print_error(error)
        raise SystemExit(2) from None


def _start(algorithm: str, args: argparse.Namespace) -> Training:
    start_s = _clocks_s()
    for name in ("steps", "num_envs", "episodes", "checkpoint_every", "feature_steps", "seed"):
        least, given = 0 if name == "seed" else 1, getattr(args, name)
        if given < least:
            raise UsageError(f"invalid --{name.replace('_', '-')}: {given} (expected {least} or more)")
    if unknown := set(args.evaluate) - set(known_backends()):
        raise UsageError(unknown_backend(min(unknown)))
    contract = embodied_env.load_contract(args.contract)
    action_box(contract)  # raises before the directory is created
    if args.resume is None:
        name = f"{contract.name}_{algorithm}"
        policy_file = measure_policy_file(
            contract, args.backend, name=name, seed=args.seed, steps=args.feature_steps, direction=args.direction
        )
    else:
        policy_file = resumed_policy_file(Path(args.resume) / POLICY_FILE, contract)
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    path = Path(args.out) / f"{contract.name}-{algorithm}-seed{args.seed}-{now}-{secrets.token_hex(3)}"
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot write to --out: {error}") from None
    packages = ("embodied_env", "gymnasium", "numpy", "mujoco", "torch", "stable_baselines3")
    settings = {
        "algorithm": algorithm,
        "contract": {"name": contract.name, "version": contract.version, "fingerprint": contract.fingerprint},
        "arguments": vars(args),
        "versions": {"python": platform.python_version(), **{name: version_of(name) for name in packages}},
        "started_utc": now,
    }
    write_json(path / "training.json", settings)
    print(f"training {contract.name} v{contract.version} by {algorithm} in {path}", file=sys.stderr, flush=True)
    worlds = partial(make_worlds, contract, policy_file, args.episodes, backend=args.backend)
    curve = Curve(path / "curve.csv", worlds, args.curve, start_s)
    return Training(algorithm=algorithm, contract=contract, policy_file=policy_file, args=args, path=path, curve=curve)


def evaluate(training: Training, folder: Path) -> None:
    """Evaluate the policy in `folder` on the backends of --evaluate, and write summary.json."""
    took_s, cpu_s = training.curve.training_s.tolist()
    training.curve.close()
    args, evaluations, policy = training.args, {}, f"onnx:{folder / MODEL}"
    for backend in args.evaluate:
        result = evaluate_policy(training.contract, policy, backend, args.episodes, training.path, args.robot)
        evaluations[backend] = _summary(result)
    summary = {
        "algorithm": training.algorithm,
        "seed": args.seed,
        "steps": args.steps,
        "training_s": round(took_s, 1),
        "cpu_s": round(cpu_s, 1),
        "contract": {"name": training.contract.name, "fingerprint": training.contract.fingerprint},
        "policy": policy,
        "evaluations": evaluations,
    }
    write_json(training.path / "summary.json", summary)
    print(training.path)


def evaluate_policy(
    contract: Contract, policy: str, backend: str, episodes: int, path: Path, robot: str | None = None
) -> PolicyResult:
    """Evaluate a policy and record the runs in `path`.

    On ``real`` it runs on the robot in the namespace `robot`, or on the robot emulator.
    """
    with _robot(contract, backend, robot) as options, LiveTable(contract, policy, episodes, episodes) as view:
        evaluation = embodied_env.evaluate(
            contract,
            [policy],
            backend=backend,
            episodes=episodes,
            seed=EVALUATION_SEED,
            record=path / "evaluations",
            observer=view,
            **options,
        )
    print_table(evaluation)
    return evaluation.results[0]


@contextlib.contextmanager
def _robot(contract: Contract, backend: str, robot: str | None) -> Iterator[dict[str, Any]]:
    """Yield the options of `make` for the robot of --robot, or for a robot emulator that runs meanwhile.

    The emulator has its own namespace, so that no robot on the network receives its commands.
    """
    if backend != "real" or robot is not None:
        yield {} if backend != "real" else {"namespace": robot}
        return
    namespace = f"/emulator_{os.getpid()}"
    process = simulator("-", namespace=namespace, source=contract.source, free_running=True)
    emulator = Child(process, first_line=dump_contract(contract))
    try:
        yield {"namespace": namespace, "emulator": True}
    finally:
        emulator.stop()


def _summary(result: PolicyResult) -> dict[str, Any]:
    counts = ("episodes", "solved_at_reset", "solved_at_first_step", "rated", "rated_terminated")
    kept = (*counts, "success_rate", "success_rate_not_truncated", "end_reasons", "return", "steps", "clipped_share")
    summary = {key: result.summary[key] for key in kept}
    return {"path": str(result.path), "problem": result.problem, **summary}
