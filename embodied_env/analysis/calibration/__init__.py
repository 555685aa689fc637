"""Calibration: gentle moves through the gate, and what they say of the latencies of a world that moves by itself."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from embodied_env.analysis.calibration.excitation import CalibrationError, Excitation, SampleLog, find_joint_readings
from embodied_env.backends.registry import accepts_option
from embodied_env.contract import Contract
from embodied_env.contract.spaces import ActionLayout
from embodied_env.core.clock import NS_PER_S, SteadyClock
from embodied_env.core.latency.profile import LatencyProfile
from embodied_env.envs.embodied_env import make
from embodied_env.errors import UsageError

__all__ = ["AMPLITUDE", "CalibrationError", "calibrate"]

AMPLITUDE = 0.01
"""Of the range of a joint; of a joint without limits, and of what is commanded by velocity: of the way of a second
times ten at its greatest velocity."""


def calibrate(
    contract: Contract,
    *,
    backend: str,
    seed: int = 0,
    amplitude: float = AMPLITUDE,
    joints: Sequence[str] = (),
    repeats: int = 3,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    **options: Any,  # noqa: ANN401 - of make
) -> LatencyProfile:
    """Move each of `joints` (default: all) gently there and back, and estimate the latencies of `backend`.

    Args:
        contract: of the robot.
        backend: a world that moves by itself.
        seed: draws the moves, and seeds the reset.
        amplitude: how far, see `AMPLITUDE`; above 0, at most 0.2.
        joints: which; those of all actuators by default.
        repeats: moves of each joint, at least 2.
        progress: told how many moves are done, and of how many.
        **options: of `make`.

    Raises:
        UsageError: for a world that waits for the agent, an unknown joint, or one whose motion nobody reports.
        CalibrationError: when the gate held or stopped a step, or an episode ended too early; the robot was braked.
        MissingDependencyError: when scipy is not installed; nothing has moved.
    """
    import embodied_env.analysis.statistics  # noqa: F401, PLC0415 - raises without scipy
    from embodied_env.analysis.calibration.estimates import estimated  # noqa: PLC0415 - needs scipy, which --help must not

    if not 0.0 < amplitude <= 0.2:
        raise UsageError(f"amplitude {amplitude} is not allowed; allowed: above 0, at most 0.2")
    if repeats < 2:
        raise UsageError(f"repeats {repeats} is not allowed; allowed: 2 or more")
    chosen = tuple(joints) or ActionLayout(contract).joints
    known = find_joint_readings(contract, chosen)
    heard = SampleLog()
    told = accepts_option(backend, "on_sample", pacing=options.get("pacing"))
    if told:
        options["on_sample"] = heard.take
    env = make(contract, backend=backend, **options)
    try:
        if env.unwrapped.pacing != "realtime":  # type: ignore[attr-defined] # make's
            raise UsageError(
                f"{backend} waits for the agent: commands act at once there by definition, and latencies are 0; "
                "allowed: a world that moves by itself, as real"
            )
        run = Excitation(env, heard, every_step=not told, joints=chosen, amplitude=amplitude)
        run.moves(repeats=repeats, seed=seed, progress=progress)
    finally:
        env.close()
    found = estimated(contract, run, heard, known)
    return LatencyProfile(
        contract=contract.name,
        fingerprint=contract.fingerprint,
        backend=backend,
        created_utc=datetime.fromtimestamp(SteadyClock().system_ns() // NS_PER_S, UTC).isoformat(),
        host=platform.node(),
        seed=seed,
        **vars(found),
    )
