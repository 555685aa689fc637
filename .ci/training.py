"""SAC on `arm_reach`: three seeds, trained in `mujoco`, evaluated there, in `mujoco_ros` and on the robot emulator.

python .ci/training.py [STEPS] [EPISODES]

Prints a line per seed and backend; the exit status is 1 when a seed is below 90 % in `mujoco`, or a run is not sound.
Seeds are trained side by side and evaluated one after the other: what runs in real time needs the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 2)
BACKENDS = ("mujoco", "mujoco_ros", "real")
CONTRACT = "arm_reach"
LEAST = 0.9
NAMESPACE = f"/trained_{os.getpid()}"
EVALUATION_SEED = 1_000_003  # other episodes than those of training


def trained(folder: Path, steps: int) -> dict[int, Path]:
    """Train every seed, and return its last checkpoint."""
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    example = [sys.executable, str(ROOT / "examples" / "train_sac.py"), CONTRACT, "--quiet", "--out", str(folder)]
    running = [
        subprocess.Popen([*example, "--evaluate", "--seed", str(seed), "--steps", str(steps)], env=surroundings)
        for seed in SEEDS
    ]
    ended = [process.wait() for process in running]
    if any(ended):
        raise SystemExit(f"trainings ended with {ended}")
    return {seed: next(folder.glob(f"{CONTRACT}-sac-seed{seed}-*")) / "checkpoints" / "final" for seed in SEEDS}


def success_rate(checkpoint: Path, backend: str, episodes: int, folder: Path) -> float:
    """Return the success rate, truncation counted as failure, of a run that passes the audit."""
    asked = ["evaluate", CONTRACT, "--backend", backend, "--policy", f"onnx:{checkpoint / 'policy.onnx'}", "--json"]
    asked += ["--episodes", str(episodes), "--seed", str(EVALUATION_SEED), "--out", str(folder)]
    with stand_in() if backend == "real" else contextlib.nullcontext([]) as more:
        command = [sys.executable, "-m", "embodied_env.cli", *asked, *more]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    (run,) = json.loads(done.stdout)["runs"]
    return run["summary"]["success_rate"]


@contextlib.contextmanager
def stand_in() -> Iterator[list[str]]:
    """Run the robot emulator for the duration of the context, and yield the options that connect to it."""
    command = [sys.executable, "-m", "embodied_env.cli", "sim", CONTRACT, "--free-running", "--namespace", NAMESPACE]
    robot = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield ["--namespace", NAMESPACE]
    finally:
        robot.terminate()
        robot.wait(30)


def main() -> None:
    """Raise SystemExit when a seed has not learned enough."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    episodes = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoints = trained(folder, steps)
        found = {}
        for seed, checkpoint in checkpoints.items():
            for backend in BACKENDS:
                found[seed, backend] = success_rate(checkpoint, backend, episodes, folder / "evaluations")
                rate = found[seed, backend]
                print(f"{CONTRACT}, SAC, {steps} steps, seed {seed}, {backend}: {rate:.0%} of {episodes}", flush=True)
    below = [seed for seed in SEEDS if found[seed, "mujoco"] < LEAST]
    if below:
        raise SystemExit(f"seeds {below} are below {LEAST:.0%} in mujoco")


if __name__ == "__main__":
    main()
