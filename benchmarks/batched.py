"""Steps of many environments: `make_vec`, `mujoco.rollout`, Gymnasium's vector environments and EAGERx.

`arm_reach`; every figure is the time of one step of one environment, µs: that of a step of all, divided by N. The
rollout gets controls on straight lines between the commands, as the servos here do, and computes one physics step more
than it keeps, which is the ``mj_forward`` for its sensors. EAGERx 0.1.40 runs where ``EAGERX_PYTHON`` is an interpreter
that has eagerx, gymnasium and mujoco.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from mujoco.rollout import Rollout
from numpy.typing import NDArray

import embodied_env
from embodied_env.contract import Contract

from .arm import SUBSTEPS, arm_model, endless_arm, kept_actions
from .harness import Case, Samples, mean_us, run_rounds

NUM_ENVS, FEW, THREADS = 64, 8, 2
SIZES = (1, 4, 16, 64, 256, 1024)
ENV_STEPS, FEW_ENV_STEPS = 2000, 640  # of a case in a round, over all environments; in the smoke edition


def measure(*, smoke: bool) -> Samples:
    """Compare N = 64, and N = 8 where each environment is a process."""
    contract, steps = endless_arm(), FEW_ENV_STEPS if smoke else ENV_STEPS
    made = {} if smoke else {"mujoco.rollout": rollout_case(steps)}
    made["make_vec"] = vector_case(vector(contract, NUM_ENVS), steps)
    made["SyncVectorEnv"] = vector_case(SyncVectorEnv([partial(single, contract)] * NUM_ENVS), steps)
    if not smoke:
        shipped, others = vector("arm_reach", NUM_ENVS), [partial(single, contract)] * FEW
        made["make_vec, random actions and autoreset"] = vector_case(shipped, steps, are_kept=False)
        made["make_vec, N = 8"] = vector_case(vector(contract, FEW), steps)
        made["AsyncVectorEnv, N = 8"] = vector_case(AsyncVectorEnv(others, context="spawn"), steps)
        made["one environment"] = single_case(contract, steps)
        if python := os.environ.get("EAGERX_PYTHON"):
            made["EAGERx"] = eagerx_case(python, steps)
    with ExitStack() as stack:
        return run_rounds({name: stack.enter_context(each) for name, each in made.items()}, 5 if smoke else 15)


def measure_sizes(*, smoke: bool) -> Samples:
    """Return the cost of a step of one environment for growing N."""
    sizes = SIZES[:3] if smoke else SIZES
    with ExitStack() as stack:
        made = {f"N = {size}": vector_case(vector(endless_arm(), size), ENV_STEPS) for size in sizes}
        return run_rounds({name: stack.enter_context(each) for name, each in made.items()}, 5 if smoke else 11)


def vector(contract: str | Contract, num_envs: int) -> embodied_env.EmbodiedVectorEnv:
    return embodied_env.make_vec(contract, num_envs=num_envs, backend="mujoco")


def single(contract: Contract) -> embodied_env.EmbodiedEnv:
    """Make one environment; importable, so that a spawned process can."""
    return embodied_env.make(contract, backend="mujoco")


@contextmanager
def vector_case(env: Any, steps: int, *, are_kept: bool = True) -> Iterator[Case]:  # noqa: ANN401 - any vector environment
    """Yield a case of steps of all environments."""
    count = max(2, steps // env.num_envs)
    with closing(env):
        env.reset(seed=0)
        env.action_space.seed(0)
        kept = kept_actions(count, env.num_envs).astype(np.float32)
        actions = kept if are_kept else [env.action_space.sample() for _ in range(count)]
        yield lambda: mean_us(env.step, actions, per_call=env.num_envs)


@contextmanager
def single_case(contract: Contract, steps: int) -> Iterator[Case]:
    """Yield a case of steps of one environment."""
    with closing(single(contract)) as env:
        env.reset(seed=0)
        yield lambda: mean_us(env.step, kept_actions(steps // 4))


@contextmanager
def rollout_case(steps: int) -> Iterator[Case]:
    """Yield a case of steps of as many states in the thread pool of `mujoco.rollout`."""
    model = arm_model()
    models = [model] * NUM_ENVS
    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    data = [mujoco.MjData(model) for _ in range(THREADS)]
    mujoco.mj_resetDataKeyframe(model, data[0], 0)
    first = np.zeros(size)
    mujoco.mj_getState(model, data[0], first, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    states = np.zeros((NUM_ENVS, SUBSTEPS + 1, size))
    states[:, SUBSTEPS - 1] = first
    sensordata = np.zeros((NUM_ENVS, SUBSTEPS + 1, model.nsensordata))
    last = np.tile(data[0].qpos[: model.nu], (NUM_ENVS, 1))
    parts = np.minimum(np.arange(1, SUBSTEPS + 2) / SUBSTEPS, 1.0)[:, np.newaxis]
    with Rollout(nthread=THREADS) as pool:

        def step(command: NDArray[np.float64]) -> None:
            controls = last[:, np.newaxis] + parts * (command - last)[:, np.newaxis]
            initial = states[:, SUBSTEPS - 1].copy()
            pool.rollout(
                models, data, initial, controls, skip_checks=True, nstep=SUBSTEPS + 1, state=states,
                sensordata=sensordata,
            )  # fmt: skip
            last[:] = command

        commands = last + kept_actions(steps // NUM_ENVS, NUM_ENVS)
        yield lambda: mean_us(step, commands, per_call=NUM_ENVS)


@contextmanager
def eagerx_case(python: str, steps: int) -> Iterator[Case]:
    """Yield a case of EAGERx in lockstep, in a process of its own, which starts with the interpreter `python`."""
    script = Path(__file__).with_name("eagerx_lockstep.py")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.mjb"
        mujoco.mj_saveModel(arm_model(), str(file))
        command = [python, str(script), str(file), str(SUBSTEPS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603

            def case() -> float:
                print(steps // 20, file=process.stdin, flush=True)
                return float(process.stdout.readline())

            case()  # warms up
            yield case
            process.stdin.close()


# --------------------------------------------------------------------------------------------------------------- memory

DRAWN = """
contract: embodied_env/1
name: drawn_models
version: 1
robot: arm6
control_period_s: 0.05
episode: {horizon_steps: 1000}
reset_options:
  payload: {type: scalar, low: 0.5, high: 4.0}
  damping: {type: scalar, low: 0.5, high: 2.0}
task: {type: "embodied_env.tasks.no_goal:NoGoal"}
backends: {mujoco: {draws: {payload: {mass: [link6]}, damping: {damping: [j1, j2, j3]}}}}
"""


def measure_memory(*, smoke: bool) -> Samples:
    """Return the resident memory of one environment more, kB; where models are drawn, beyond its own model."""
    few, many = (4, 16) if smoke else (64, 1024)

    def case(contract: str, own_kb: float = 0.0) -> Callable[[], float]:
        return lambda: (resident_kb(contract, many) - resident_kb(contract, few)) / (many - few) - own_kb

    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "drawn_models.yaml"
        drawn.write_text(DRAWN)
        model_kb = mujoco.mj_sizeModel(arm_model()) / 1024
        cases = {"arm_reach": case("arm_reach"), "every model drawn": case(str(drawn), model_kb)}
        return run_rounds(cases, 1 if smoke else 3)


def resident_kb(contract: str, num_envs: int) -> float:
    """Return the resident memory of a new process after a reset and two steps of its environments."""
    command = [sys.executable, "-m", "benchmarks.batched", contract, str(num_envs)]
    folder = Path(__file__).parents[1]
    return float(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)  # noqa: S603


def main() -> None:
    """Print the resident memory of this process with the environments of the arguments, kB."""
    import psutil  # noqa: PLC0415 - of this process only

    with closing(vector(sys.argv[1], int(sys.argv[2]))) as env:
        env.reset(seed=0)
        for _ in range(2):
            env.step(env.action_space.sample())
        print(psutil.Process().memory_info().rss / 1024)


if __name__ == "__main__":
    main()
