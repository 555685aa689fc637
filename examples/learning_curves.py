"""Train the shipped tasks with PPO and SAC, several seeds each, and draw their learning curves.

python examples/learning_curves.py --tasks arm_reach --algorithms ppo --seeds 3 --evaluate mujoco mujoco_ros real

Runs `train_ppo.py` or `train_sac.py` for one seed after the other, then evaluates each ONNX policy on the backends;
`real` is the robot emulator. Trainings and evaluations that are in the folder already are not repeated. Draws the
success rate of the policy without exploration noise over the steps, in 50 other episodes, and prints for each seed when
it first reached 90 %, and the success rates on the backends after the training. The exit status is 1 if one of these is
below 90 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from training import MODEL, evaluate_policy

from embodied_env import load_contract

FOLDER = Path(__file__).resolve().parent
NUM_ENVS = {"ppo": 64, "sac": 32}
LEAST = 0.9  # success rate

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {  # arguments of the trainers
    "arm_reach": {"ppo": {"steps": 160_000}, "sac": {"steps": 80_000}},
    "ur5e_reach": {"ppo": {"steps": 240_000}, "sac": {"steps": 100_000}},
    "cart_goal": {
        "ppo": {"steps": 500_000, "gamma": 0.98, "minibatches": 4, "direction": "goal_position"},
        "sac": {"steps": 200_000, "gamma": 0.97, "entropy": 0.02, "direction": "goal_position"},
    },
    "door_open": {
        "ppo": {"steps": 300_000, "gamma": 0.97, "minibatches": 4, "num-envs": 32},
        "sac": {"steps": 200_000, "gamma": 0.95, "entropy": 0.01},
    },
}
POINTS = 10  # of a curve

WIDE, HIGH, LEFT, TOP, ACROSS, DOWN = 250, 130, 44, 56, 300, 186
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #333; } .head { font-weight: 600; }
.grid { stroke: #8884; } path { fill: none; stroke-width: 1.5; } .ppo { stroke: #0b6fb8; } .sac { stroke: #c8500a; }
@media (prefers-color-scheme: dark) { text { fill: #ddd; } .ppo { stroke: #5db4f5; } .sac { stroke: #ff8a3d; } }
"""


class Trained(NamedTuple):
    """Curve of one training as points (steps, seconds, CPU seconds, success rate), and its success by backend."""

    task: str
    algorithm: str
    seed: int
    points: Sequence[tuple[float, float, float, float]]
    success: dict[str, float]

    def reached(self) -> tuple[str, str, str]:
        """Return steps, duration and CPU time at the first success rate of `LEAST`."""
        for steps, duration_s, cpu_s, rate in self.points:
            if rate >= LEAST:
                return f"{steps / 1000:.0f} k", f"{duration_s / 60:.1f} min", f"{cpu_s / 60:.1f} min"
        return "not reached", "", ""


def train(task: str, algorithm: str, seed: int, args: argparse.Namespace) -> None:
    """Train and evaluate in a separate process.

    Raises:
        CalledProcessError: the process failed.
    """
    settings = {"num-envs": NUM_ENVS[algorithm], **SETTINGS[task][algorithm], "seed": seed}
    settings |= {"curve": settings["steps"] // POINTS, "checkpoint-every": settings["steps"]}
    command = [sys.executable, FOLDER / f"train_{algorithm}.py", task, "--quiet", "--evaluate", "--out", args.out]
    command += [f"--{name}={value}" for name, value in settings.items()]
    subprocess.run([*map(str, command)], check=True, stdout=sys.stderr)  # noqa: S603


def read(task: str, algorithm: str, seed: int, args: argparse.Namespace) -> Trained | None:
    """Return the newest complete training with evaluations on --evaluate, None without one."""
    done = sorted(args.out.glob(f"{task}-{algorithm}-seed{seed}-*/checkpoints/final"))
    if not done:
        return None
    folder = done[-1].parent.parent
    rows = (folder / "curve.csv").read_text(encoding="utf-8").splitlines()[1:]
    file = folder / "success.json"
    success = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for backend in args.evaluate:
        if backend not in success:
            policy, episodes = f"onnx:{done[-1] / MODEL}", 20 if backend == "real" else 50
            result = evaluate_policy(load_contract(task), policy, backend, episodes, folder)
            success[backend] = result.summary["success_rate"]
            file.write_text(json.dumps(success), encoding="utf-8")
    values = ([float(value) for value in row.split(",")] for row in rows)
    points = [(steps, taken_s, cpu_s, rate) for steps, taken_s, cpu_s, rate in values]
    return Trained(task, algorithm, seed, points, success)


def table(found: Sequence[Trained]) -> Iterator[str]:
    """Yield the lines of a Markdown table, one row per training."""
    backends = list(dict.fromkeys(backend for each in found for backend in each.success))
    yield "| " + " | ".join(["task", "algorithm", "seed", "90 % after", "duration", "CPU time", *backends]) + " |"
    yield "|---" * (6 + len(backends)) + "|"
    for each in found:
        rates = [f"{each.success[backend]:.0%}" if backend in each.success else "" for backend in backends]
        yield "| " + " | ".join([each.task, each.algorithm.upper(), str(each.seed), *each.reached(), *rates]) + " |"


def picture(found: Sequence[Trained]) -> str:
    """Return the curves as SVG, one panel per task."""
    tasks = list(dict.fromkeys(each.task for each in found))
    width, height = LEFT + ACROSS * min(2, len(tasks)), TOP + DOWN * -(-len(tasks) // 2)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>', f"<style>{STYLE}</style>"]
    for place, algorithm in enumerate(NUM_ENVS):
        x = LEFT + 80 * place
        parts.append(f'<path class="{algorithm}" d="M{x} 13h18"/><text x="{x + 23}" y="17">{algorithm.upper()}</text>')
    for place, task in enumerate(tasks):
        x, y = LEFT + ACROSS * (place % 2), TOP + DOWN * (place // 2)
        parts += panel([each for each in found if each.task == task], x, y)
    return "\n".join([*parts, "</svg>\n"])


def panel(found: Sequence[Trained], x: int, y: int) -> Iterator[str]:
    """Yield the elements of one panel, with its upper left corner at x and y."""
    yield f'<text class="head" x="{x}" y="{y - 8}">{found[0].task}: success, %</text>'
    for tick in (0, 50, 90):
        at = y + HIGH * (1 - tick / 100)
        yield f'<line class="grid" x1="{x}" x2="{x + WIDE}" y1="{at:.0f}" y2="{at:.0f}"/>'
        yield f'<text x="{x - 8}" y="{at + 4:.0f}" text-anchor="end">{tick}</text>'
    longest = max(steps for each in found for steps, *_ in each.points)
    for share, text in ((0.0, "0"), (0.5, "thousand steps"), (1.0, f"{longest / 1000:.0f}")):
        yield f'<text x="{x + WIDE * share:.0f}" y="{y + HIGH + 16}" text-anchor="middle">{text}</text>'
    for each in found:
        points = (f"{x + WIDE * steps / longest:.1f} {y + HIGH * (1 - rate):.1f}" for steps, *_, rate in each.points)
        yield f'<path class="{each.algorithm}" d="M{x} {y + HIGH}L{"L".join(points)}"/>'


def main() -> None:
    """Train what is missing, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=SETTINGS, default=tuple(SETTINGS), help="default: all")
    parser.add_argument("--algorithms", nargs="+", choices=NUM_ENVS, default=tuple(NUM_ENVS), help="default: all")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("runs/curves"), help="folder of the trainings")
    parser.add_argument("--picture", type=Path, default=Path("docs/pictures/learning_curves.svg"), help="SVG file")
    parser.add_argument("--evaluate", nargs="*", default=["mujoco"], metavar="BACKEND", help="mujoco, mujoco_ros, real")
    parser.add_argument("--only-draw", action="store_true", help="draw the trainings that are in the folder")
    args = parser.parse_args()
    found = []
    for task, algorithm, seed in product(args.tasks, args.algorithms, range(args.seeds)):
        if (trained := read(task, algorithm, seed, args)) is None and not args.only_draw:
            train(task, algorithm, seed, args)
            trained = read(task, algorithm, seed, args)
        found += [] if trained is None else [trained]
    if not found:
        raise SystemExit(f"no training in {args.out}")
    args.picture.write_text(picture(found), encoding="utf-8")
    print("\n".join(table(found)))
    if any(rate < LEAST for each in found for rate in each.success.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
