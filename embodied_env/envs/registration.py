"""Make environments by contract, and register contracts with Gymnasium."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

import gymnasium
import gymnasium.wrappers
from gymnasium.envs.registration import EnvSpec

from embodied_env.contract import Contract, load_contract
from embodied_env.contract.argument_checks import checked_count, checked_flag, checked_path
from embodied_env.contract.contract_loader import save_contract
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.env_options import DEFAULTS, EnvOptions, MakeOptions, RecordedOptions, with_documented_options
from embodied_env.envs.observation_builder import Observation
from embodied_env.envs.option_checks import changed_options, split_options
from embodied_env.errors import UsageError

if TYPE_CHECKING:
    from embodied_env.record import RecordTransitions

_ENTRY_POINT = "embodied_env:EmbodiedEnv"
VECTOR_ENTRY_POINT = "embodied_env:EmbodiedVectorEnv"


@overload
def make(
    contract: str | Path | Contract | None = ...,
    *,
    record: None = ...,
    max_episode_steps: None = ...,
    **options: Unpack[RecordedOptions],
) -> EmbodiedEnv: ...
@overload
def make(
    contract: str | Path | Contract | None = ...,
    *,
    record: str | Path,
    max_episode_steps: int | None = ...,
    **options: Unpack[RecordedOptions],
) -> RecordTransitions: ...
@overload
def make(
    contract: str | Path | Contract | None = ...,
    *,
    record: str | Path | None = ...,
    max_episode_steps: int | None,
    **options: Unpack[RecordedOptions],
) -> gymnasium.Env[Observation, Any]: ...
@with_documented_options(*DEFAULTS, "record_messages", "compression")
def make(
    contract: str | Path | Contract | None = None,
    *,
    record: str | Path | None = None,
    max_episode_steps: int | None = None,
    **options: Unpack[RecordedOptions],
) -> gymnasium.Env[Any, Any]:
    """Make an environment from a contract.

    ``env.spec`` recreates the environment, and converts to JSON (``to_json``) if the other options do. It contains a
    Contract in full, but a name or a path is resolved again.

    Args:
        contract: name of a shipped contract, path to a YAML file, or a Contract; None, with the backend "replay": the
            contract that the run was recorded under.
        record: a folder; the run is recorded into a new run directory in it (`RecordTransitions`).
        max_episode_steps: an outer `TimeLimit`, at most the contract's own horizon.
        **options: of the backend, such as `armed` of "real"; docs/reference/api.md lists them.

    Returns:
        The `EmbodiedEnv`, in a TimeLimit with `max_episode_steps`, and outermost in `RecordTransitions` with `record`.

    Raises:
        ContractError: for an invalid contract.
        UsageError: for an unknown backend or option, or a value that an option does not take.
        MissingDependencyError: when an optional package is not installed.
    """
    split_options(options, MakeOptions.__optional_keys__, caller="make")
    if max_episode_steps is not None:
        max_episode_steps = checked_count("max_episode_steps", max_episode_steps, at_least=1)
    if record is not None:
        record = checked_path("record", record)
    messages = checked_flag("record_messages", options.pop("record_messages", False))
    compression = options.pop("compression", "zstd")
    if record is None and (messages or compression != "zstd"):
        given = "record_messages=True" if messages else f"compression={compression!r}"
        raise UsageError(f"{given} without record (expected a folder to record into)")
    embodied = EmbodiedEnv(contract, **cast("EnvOptions", options))
    kept = {"backend": DEFAULTS["backend"], **changed_options(options)}
    if max_episode_steps is not None and max_episode_steps > (horizon := embodied.contract.episode.horizon_steps):
        embodied.close()
        raise UsageError(
            f"max_episode_steps above the horizon: {max_episode_steps} (expected at most {horizon}, the contract's own)"
        )
    source = embodied.contract if contract is None else contract
    embodied.spec = EnvSpec(
        id=embodied.contract.environment_id,
        entry_point=_ENTRY_POINT,
        kwargs={"contract": save_contract(source) if isinstance(source, Contract) else str(source), **kept},
        max_episode_steps=max_episode_steps,
        order_enforce=False,  # the stepper checks the order of calls itself
        disable_env_checker=True,
    )
    env: gymnasium.Env[Any, Any] = embodied
    if max_episode_steps is not None:
        env = gymnasium.wrappers.TimeLimit(env, max_episode_steps)
    if record is not None:
        from embodied_env.record import RecordTransitions  # noqa: PLC0415 - recording is optional

        env = RecordTransitions(env, record, messages=messages, compression=compression)
    return env


def register(contract: str | Path | Contract, id: str | None = None) -> str:  # noqa: A002 - as in Gymnasium
    """Register a contract for ``gymnasium.make(id, backend=...)`` and return its ID.

    Args:
        contract: name of a shipped contract, path to a YAML file, or a Contract.
        id: the ID in Gymnasium; None: made from the contract's name, ``embodied_env/MyArm-v0`` for ``my_arm``.

    Raises:
        ContractError: for an invalid contract.
        gymnasium.error.Error: for an ID that Gymnasium does not accept.
    """
    loaded = load_contract(contract)
    if isinstance(contract, Contract):
        kwargs: dict[str, Any] = {"contract": save_contract(contract)}
    else:  # a path remains valid in another working directory
        kwargs = {"contract": str(Path(contract).absolute()) if os.path.isfile(contract) else str(contract)}  # noqa: PTH113
    name = loaded.environment_id if id is None else id
    known = gymnasium.registry.get(name)
    if known is None or known.kwargs != kwargs:  # Gymnasium warns of a replaced one
        gymnasium.register(name, _ENTRY_POINT, vector_entry_point=VECTOR_ENTRY_POINT, kwargs=kwargs)
    return name
