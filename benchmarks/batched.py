"""Measure many environments with `make_vec`, `mujoco.rollout`, Gymnasium's vector environments and EAGERx.

The task is `arm_reach`. Every figure is the time of one step of one environment in µs, which is the time of a step of
all environments divided by their number. The rollout gets controls on straight lines between the commands, as the
servos here do, and computes one physics step more than it keeps, which is the ``mj_forward`` for its sensors. EAGERx
0.1.40 runs where ``EAGERX_PYTHON`` is an interpreter that has eagerx, gymnasium and mujoco.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from mujoco.batch import Batch
from mujoco.rollout import Rollout
from numpy.typing import NDArray

import embodied_env
from embodied_env.contract import Contract

from .arm import SUBSTEPS, arm_model, endless_arm, kept_actions
from .harness import Case, Samples, mean_us, run_rounds

NUM_ENVS, MANY, FEW, THREADS = 64, 256, 8, 2
SIZES = (1, 4, 16, 64, 256, 1024)
ENV_STEPS, FEW_ENV_STEPS = 2560, 640  # of a case in a round, over all environments; in the smoke edition
DRAWN = Path(__file__).with_name("drawn_models.yaml")  # a mass and the friction of two bodies are drawn

Cost = Callable[..., float]  # as `mean_us`


def measure(*, smoke: bool) -> Samples:
    """Compare N = 64 and 256, and N = 8 where each environment is a process."""
    contract, steps = endless_arm(), FEW_ENV_STEPS if smoke else ENV_STEPS
    made = {"make_vec": vector_case(vector(contract, NUM_ENVS), steps)}
    made["SyncVectorEnv"] = vector_case(SyncVectorEnv([partial(single, contract)] * NUM_ENVS), steps)
    if not smoke:
        shipped, others = vector("arm_reach", NUM_ENVS), [partial(single, contract)] * FEW
        made["mujoco.rollout"] = rollout_case([arm_model()] * NUM_ENVS, steps)
        made["mujoco.rollout, N = 256"] = rollout_case([arm_model()] * MANY, steps)
        made["mujoco.rollout, drawn"] = rollout_case(drawn_models(), steps)
        made["make_vec, N = 256"] = vector_case(vector(contract, MANY), steps)
        made["make_vec, drawn"] = vector_case(vector(DRAWN, NUM_ENVS), steps)
        made["make_vec, random actions and autoreset"] = vector_case(shipped, steps, are_kept=False)
        made["make_vec, N = 8"] = vector_case(vector(contract, FEW), steps)
        made["AsyncVectorEnv, N = 8"] = vector_case(AsyncVectorEnv(others, context="spawn"), steps)
        made["one environment"] = single_case(contract, steps)
        if python := os.environ.get("EAGERX_PYTHON"):
            made["EAGERx"] = eagerx_case(python, steps)
    with ExitStack() as stack:
        return run_rounds({name: stack.enter_context(each) for name, each in made.items()}, 5 if smoke else 9)


def measure_cpu(*, smoke: bool) -> Samples:
    """Return the CPU time of the process, all threads, for a step of one environment."""
    cpu = partial(mean_us, now_ns=time.process_time_ns)
    with ExitStack() as stack:
        made = {
            "mujoco.rollout": rollout_case([arm_model()] * NUM_ENVS, ENV_STEPS, cpu),
            "mujoco.rollout, N = 256": rollout_case([arm_model()] * MANY, ENV_STEPS, cpu),
            "mujoco.rollout, drawn": rollout_case(drawn_models(), ENV_STEPS, cpu),
            "make_vec": vector_case(vector(endless_arm(), NUM_ENVS), ENV_STEPS, cpu),
            "make_vec, N = 256": vector_case(vector(endless_arm(), MANY), ENV_STEPS, cpu),
            "make_vec, drawn": vector_case(vector(DRAWN, NUM_ENVS), ENV_STEPS, cpu),
        }
        return run_rounds({name: stack.enter_context(each) for name, each in made.items()}, 2 if smoke else 15)


def measure_sizes(*, smoke: bool) -> Samples:
    """Return the cost of a step of one environment for growing N."""
    sizes = SIZES[:3] if smoke else SIZES
    with ExitStack() as stack:
        made = {f"N = {size}": vector_case(vector(endless_arm(), size), ENV_STEPS) for size in sizes}
        return run_rounds({name: stack.enter_context(each) for name, each in made.items()}, 5 if smoke else 11)


def measure_recorded(*, smoke: bool) -> Samples:
    """Return wall and CPU time of a step of one environment, with and without records, all rows flushed."""
    steps = FEW_ENV_STEPS if smoke else ENV_STEPS
    made = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for kind, contract in (("kept", endless_arm()), ("random actions and autoreset", "arm_reach")):
            for name, record in (("make_vec", None), ("recorded", Path(folder) / kind)):
                env = embodied_env.make_vec(contract, num_envs=NUM_ENVS, record=record)
                case = recorded_case(env, steps, are_kept=kind == "kept")
                made[f"{name}, {kind}"] = stack.enter_context(case)
        return run_rounds(made, 5 if smoke else 9)


def vector(contract: str | Path | Contract, num_envs: int) -> embodied_env.EmbodiedVectorEnv:
    return embodied_env.make_vec(contract, num_envs=num_envs, backend="mujoco")


def drawn_models() -> list[mujoco.MjModel]:
    """Return models that differ in the mass and the friction of the last link."""
    models = [arm_model() for _ in range(NUM_ENVS)]
    for number, model in enumerate(models):
        link, scale = model.body("link6"), 0.5 + number / NUM_ENVS
        link.mass *= scale
        link.inertia *= scale
        model.geom_friction[model.geom_bodyid == link.id] *= scale
        mujoco.mj_setConst(model, mujoco.MjData(model))
    return models


def single(contract: Contract) -> embodied_env.EmbodiedEnv:
    """Make one environment in a function that a spawned process can import."""
    return embodied_env.make(contract, backend="mujoco")


@contextmanager
def vector_case(env: Any, steps: int, cost_us: Cost = mean_us, *, are_kept: bool = True) -> Iterator[Case]:  # noqa: ANN401
    """Yield a case of steps of all environments."""
    with closing(env):
        env.reset(seed=0)
        actions = drawn_actions(env, steps, are_kept=are_kept)
        yield lambda: cost_us(env.step, actions, per_call=env.num_envs)


def drawn_actions(env: Any, steps: int, *, are_kept: bool) -> Any:  # noqa: ANN401
    """Return actions of all environments for so many steps over all of them."""
    count = max(2, steps // env.num_envs)
    env.action_space.seed(0)
    kept = kept_actions(count, env.num_envs).astype(np.float32)
    return kept if are_kept else [env.action_space.sample() for _ in range(count)]


@contextmanager
def recorded_case(env: Any, steps: int, *, are_kept: bool) -> Iterator[Case]:  # noqa: ANN401
    """Yield a case of steps of all environments by both clocks, up to the flush of the last row if there are any."""
    with closing(env):
        env.reset(seed=0)
        actions = drawn_actions(env, steps, are_kept=are_kept)

        def case() -> dict[str, float]:
            start_s = np.array((time.perf_counter(), time.process_time()))
            for action in actions:
                env.step(action)
            for each in env.envs if isinstance(env.envs[0], embodied_env.RecordTransitions) else ():
                each.flush()
            taken_s = np.array((time.perf_counter(), time.process_time())) - start_s
            return dict(zip(("wall", "CPU"), (taken_s * 1e6 / len(actions) / env.num_envs).tolist(), strict=True))

        yield case


@contextmanager
def single_case(contract: Contract, steps: int) -> Iterator[Case]:
    """Yield a case of steps of one environment."""
    with closing(single(contract)) as env:
        env.reset(seed=0)
        yield lambda: mean_us(env.step, kept_actions(steps // 4))


@contextmanager
def rollout_case(models: Sequence[mujoco.MjModel], steps: int, cost_us: Cost = mean_us) -> Iterator[Case]:
    """Yield a case of steps of a state of each model in the thread pool of `mujoco.rollout`."""
    model, num_envs = models[0], len(models)
    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    data = [mujoco.MjData(model) for _ in range(THREADS)]
    mujoco.mj_resetDataKeyframe(model, data[0], 0)
    first = np.zeros(size)
    mujoco.mj_getState(model, data[0], first, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    states = np.zeros((num_envs, SUBSTEPS + 1, size))
    states[:, SUBSTEPS - 1] = first
    sensordata = np.zeros((num_envs, SUBSTEPS + 1, model.nsensordata))
    last = np.tile(data[0].qpos[: model.nu], (num_envs, 1))
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

        commands = last + kept_actions(steps // num_envs, num_envs)
        yield lambda: cost_us(step, commands, per_call=num_envs)


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


def measure_memory(*, smoke: bool) -> Samples:
    """Return the resident memory of one environment more, and that of a simulation more of a bare `Batch`, kB."""
    few, many = (4, 16) if smoke else (64, 1024)

    def case(kind: str, contract: str) -> float:
        return (resident_kb(kind, contract, many) - resident_kb(kind, contract, few)) / (many - few)

    kinds = {"arm_reach": ("make_vec", "arm_reach"), "mujoco.batch": ("Batch", "arm_reach")}
    kinds |= {"every model drawn": ("make_vec", str(DRAWN)), "mujoco.batch, every model drawn": ("Batch", str(DRAWN))}
    return run_rounds({name: partial(case, *kind) for name, kind in kinds.items()}, 1 if smoke else 3)


def resident_kb(kind: str, contract: str, count: int) -> float:
    """Return the resident memory of a new process after a reset and two steps of its environments or simulations."""
    command = [sys.executable, "-m", "benchmarks.batched", kind, contract, str(count)]
    folder = Path(__file__).parents[1]
    return float(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)  # noqa: S603


def step_environments(contract: str, num_envs: int) -> object:
    """Reset and step `make_vec` twice, and return what holds its memory."""
    env = vector(contract, num_envs)
    env.reset(seed=0)
    for _ in range(2):
        env.step(env.action_space.sample())
    return env


def step_simulations(contract: str, nsim: int) -> object:
    """Reset and step a bare batch twice, with model fields of each simulation if they are drawn, and return it."""
    batch = Batch(arm_model(), nsim, nthread=THREADS)
    if contract == str(DRAWN):
        for name in ("body_mass", "body_inertia", "geom_friction"):
            batch.expand(name)
        batch.set_const()
    batch.reset()
    for _ in range(2):
        batch.step(nstep=SUBSTEPS)
    return batch


def main() -> None:
    """Print the resident memory of this process with what the arguments name, kB."""
    import psutil  # noqa: PLC0415 - of this process only

    kind, contract, count = sys.argv[1:]
    held = {"make_vec": step_environments, "Batch": step_simulations}[kind](contract, int(count))
    print(psutil.Process().memory_info().rss / 1024)
    del held


if __name__ == "__main__":
    main()
