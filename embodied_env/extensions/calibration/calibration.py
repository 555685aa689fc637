"""Measure the latencies of a free-running backend by gentle moves through the gate."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from embodied_env.backends.backend_registry import backend_accepts
from embodied_env.contract import Contract
from embodied_env.errors import UsageError
from embodied_env.extensions.calibration.excitation import (
    CalibrationError,
    EnvWithoutTask,
    Excitation,
    SampleLog,
    find_moved_joints,
)
from embodied_env.extensions.calibration.planned_moves import gentle_moves
from embodied_env.timing.latency_profile import LatencyProfile

__all__ = ["AMPLITUDE", "CalibrationError", "calibrate"]

AMPLITUDE = 0.01
"""Share of the range of a joint.

Without limits, and for velocity commands, it is that of ten seconds at its greatest velocity.
"""


def calibrate(  # noqa: PLR0913 - what a user may choose
    contract: Contract,
    *,
    backend: str,
    seed: int = 0,
    amplitude: float = AMPLITUDE,
    joints: Sequence[str] = (),
    repeats: int = 3,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    resetting: Callable[[], None] = lambda: None,
    **options: Any,  # noqa: ANN401 - of make
) -> LatencyProfile:
    """Move each joint gently there and back, and estimate the latencies of `backend`.

    Args:
        contract: of the robot.
        backend: a free-running one.
        seed: of the moves and of the reset.
        amplitude: of the moves, see `AMPLITUDE`; above 0, at most 0.2.
        joints: to move; by default all but those of grippers.
        repeats: moves of each joint, at least 2.
        progress: called with the number of finished moves and of all moves.
        resetting: called before each reset, in which an operator may be asked.
        **options: of `EmbodiedEnv`.

    Raises:
        UsageError: for a backend that waits for the agent, an unknown joint, one without a reading of its motion, or
            one that moves in one direction only.
        CalibrationError: when the gate held or stopped a step, or an episode ended too early; the robot was braked.
        BackendNotReadyError: for a robot without a channel to an operator, or when its reset fails.
        MissingDependencyError: when scipy is not installed; nothing has moved.
    """
    import embodied_env.core.significance_tests  # noqa: F401 - raises without scipy
    from embodied_env.extensions.calibration.estimates import estimate_profile

    if not 0.0 < amplitude <= 0.2:
        raise UsageError(f"invalid amplitude: {amplitude} (expected above 0, at most 0.2)")
    if repeats < 2:
        raise UsageError(f"invalid repeats: {repeats} (expected 2 or more)")
    readings = find_moved_joints(contract, joints)
    moves = gentle_moves(contract, list(readings), amplitude=amplitude, repeats=repeats, seed=seed)
    log = SampleLog()
    reports_samples = backend_accepts(backend, "on_sample", pacing=options.get("pacing"))
    if reports_samples:
        options["on_sample"] = log.add
    env = EnvWithoutTask(contract, backend=backend, **options)
    try:
        if env.pacing != "realtime":
            raise UsageError(
                f"cannot calibrate {backend}: it waits for the agent, so its latencies are 0 "
                "(expected a free-running backend, such as real)"
            )
        run = Excitation(env, log, every_step=not reports_samples, resetting=resetting)
        gc.collect()
        gc.freeze()  # a full collection, 0.1 s with all modules loaded, would delay a step
        run.make_moves(moves, seed=seed, progress=progress)
    finally:
        gc.unfreeze()
        env.close()
    return estimate_profile(contract, run, log, readings, backend=f"{backend} ({env.capabilities.world})", seed=seed)
