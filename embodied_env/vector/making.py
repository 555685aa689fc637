"""`make_vec`: many environments of one contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from embodied_env.contract import Contract
from embodied_env.vector.environment import EmbodiedVectorEnv
from embodied_env.vector.options import PerSlot


def make_vec(  # noqa: PLR0913 - the public options
    contract: str | Path | Contract | None = None,
    *,
    num_envs: int,
    backend: str = "mujoco",
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    record: str | Path | None = None,
    per_slot: PerSlot | None = None,
    threads: int = 0,
    copy: bool = True,
    **options: Any,  # noqa: ANN401 - `make` checks them
) -> EmbodiedVectorEnv:
    """Make many environments of one contract, which step together.

    Args:
        contract: as `make` takes it.
        num_envs: how many.
        backend: which world; it has to wait for the agent (lockstep).
        autoreset_mode: who resets a slot whose episode has ended: NEXT_STEP, SAME_STEP or DISABLED.
        record: a folder; the run of slot i is recorded into a new run directory in ``slot_<i>`` of it.
        per_slot: options of each slot beside the common ones: a mapping for each, or what gives it for a number, as
            ``lambda slot: {"domain_id": slot}``. Slots that attach to worlds need a `namespace` or `domain_id` each.
        threads: so many threads compute the worlds of `mujoco` while the caller's thread judges (`docs/vector.md`
            says when that is faster). Worlds with cameras are computed in the caller's.
        copy: hand out copies of the observations; False: the arrays that the next step writes into.
        **options: what `make` takes, the same for every slot: `max_episode_steps`, `render_mode`, `clock="virtual"`
            (a clock for each), `evaluator_info`, `record_messages`, the options of the backend, ...

    Raises:
        ContractError: when the contract is wrong.
        UsageError: for an unknown backend or option, a world that moves by itself, or slots that would share a world.
        MissingDependencyError: when an optional package is not installed.
    """
    given: dict[str, Any] = {
        "num_envs": num_envs,
        "backend": backend,
        "per_slot": per_slot,
        "threads": threads,
        "copy": copy,
    }
    given |= {"autoreset_mode": autoreset_mode, "record": record, **options}
    made = EmbodiedVectorEnv(contract, **given)
    one = made.envs[0].spec
    if one is not None:
        kept = {**given, "contract": one.kwargs["contract"], "autoreset_mode": made.autoreset_mode.value}
        made.spec = EnvSpec(
            id=one.id,
            entry_point="embodied_env.env:EmbodiedEnv",
            vector_entry_point="embodied_env.vector:EmbodiedVectorEnv",
            kwargs={**kept, "vectorization_mode": "vector_entry_point"},
            order_enforce=False,
            disable_env_checker=True,
        )
    return made
