"""Count the Python calls and the instructions of a step in process, which do not depend on the load of the machine.

    python -m benchmarks.step_counts FOLDER   (under callgrind; `count_instructions` runs it)

Python calls are counted by `sys.setprofile`, instructions by valgrind's callgrind between client requests around the
steps. Physics is one `mujoco.rollout` of a control period with the same commands, and the ``mj_forward`` that sensors
need. The account is the rest of a step.
"""

from __future__ import annotations

import ctypes
import gc
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco.rollout import Rollout
from numpy.typing import NDArray

import embodied_env

from .arm import SUBSTEPS, arm_model, endless_arm, kept_actions, limited_actions
from .harness import Samples
from .single_step import published

WARM_UP, STEPS = 40, 20
TOOLS = ("valgrind", "cc")
REQUESTS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
DUMP = re.compile(
    r"^desc: Trigger: Client Request: (?P<name>[^\n]*)$.*^totals: (?P<total>\d+)$", re.MULTILINE | re.DOTALL
)
ACTIONS = {"kept": kept_actions(WARM_UP + STEPS), "limited": limited_actions(WARM_UP + STEPS)}


def measure(*, smoke: bool) -> Samples:  # noqa: ARG001 - one short run is exact
    """Return the counts of a step, without instructions where a tool is missing."""
    counts = {f"Python calls, {kind}": float(count_python_calls(actions)) for kind, actions in ACTIONS.items()}
    if all(map(shutil.which, TOOLS)):
        counts |= {name: instructions / 1e3 for name, instructions in count_instructions().items()}
    return {name: [value] for name, value in counts.items()}


def count_python_calls(actions: NDArray[np.float64]) -> int:
    """Return the number of calls of Python functions in the step with the last of these actions."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    with closing(embodied_env.make(endless_arm(), backend="mujoco")) as env:
        env.reset(seed=0)
        for action in actions[:-1]:
            env.step(action)
        sys.setprofile(count)
        env.step(actions[-1])
        sys.setprofile(None)
    return calls


def count_instructions() -> dict[str, float]:
    """Return the instructions of a step and of its physics, by kind of action, in a process under callgrind."""
    with tempfile.TemporaryDirectory() as folder:
        source, counted = Path(folder) / "requests.c", Path(folder) / "counted"
        source.write_text(REQUESTS)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", source.with_suffix(".so"), source], check=True)  # noqa: S603, S607
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counted}"]
        command = [*valgrind, sys.executable, "-m", "benchmarks.step_counts", folder]
        subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, check=True)  # noqa: S603
        dumps = [DUMP.search(file.read_text()) for file in Path(folder).glob("counted.*")]
        return {found["name"]: int(found["total"]) / STEPS for found in dumps if found}


def physics() -> Callable[[NDArray[np.float64]], None]:
    """Return the physics of a step, from the first keyframe."""
    model = arm_model()
    data, full = mujoco.MjData(model), mujoco.mjtState.mjSTATE_FULLPHYSICS
    mujoco.mj_resetDataKeyframe(model, data, 0)
    last, parts = data.qpos[: model.nu].copy(), np.arange(1, SUBSTEPS + 1)[:, np.newaxis] / SUBSTEPS
    state = np.zeros((1, mujoco.mj_stateSize(model, full)))
    states, controls = np.zeros((1, SUBSTEPS, state.size)), np.zeros((1, SUBSTEPS, model.nu))
    mujoco.mj_getState(model, data, state[0], full)
    pool, warmstart = Rollout(nthread=0), np.zeros((1, model.nv))

    def step(command: NDArray[np.float64]) -> None:
        np.add(last, parts * (command - last), out=controls[0])
        pool.rollout(
            [model],
            [data],
            state,
            controls,
            skip_checks=True,
            nstep=SUBSTEPS,
            initial_warmstart=warmstart,
            state=states,
        )
        state[0], warmstart[0], last[:] = states[0, -1], data.qacc_warmstart, command
        mujoco.mj_forward(model, data)

    return step


def main() -> None:
    """Take the steps, with a dump of callgrind after those of each case."""
    requests = ctypes.CDLL(str(Path(sys.argv[1]) / "requests.so"))

    def count(name: str, step: Callable[[NDArray[np.float64]], Any], inputs: NDArray[np.float64]) -> None:
        for each in inputs[:WARM_UP]:
            step(each)
        gc.collect()
        gc.disable()
        requests.start()
        for each in inputs[WARM_UP:]:
            step(each)
        requests.stop(name.encode())
        gc.enable()

    with closing(embodied_env.make(endless_arm(), backend="mujoco")) as env:
        for name, actions in ACTIONS.items():
            commands, _ = published(env, actions, are_limited=name == "limited")
            env.reset(seed=0)
            count(name, env.step, actions)
            count(f"physics, {name}", physics(), commands)


if __name__ == "__main__":
    main()
