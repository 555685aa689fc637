"""Make environments by contract, and register contracts with Gymnasium."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import gymnasium
import gymnasium.wrappers
from gymnasium.envs.registration import EnvSpec

from embodied_env.backends.backend_registry import BackendName, check_options
from embodied_env.contract import Contract, load_contract
from embodied_env.contract.argument_checks import checked_count, checked_flag, checked_path
from embodied_env.contract.contract_loader import save_contract
from embodied_env.core.action_stage import ActionStage
from embodied_env.core.types import Observer
from embodied_env.envs.embodied_env import EmbodiedEnv
from embodied_env.envs.observation_builder import Observation
from embodied_env.errors import UsageError
from embodied_env.timing.clock import Clock
from embodied_env.timing.delay_model import DelayModel
from embodied_env.timing.latency_profile import LatencyProfile

if TYPE_CHECKING:
    from embodied_env.record import RecordTransitions

_ENTRY_POINT = "embodied_env:EmbodiedEnv"
VECTOR_ENTRY_POINT = "embodied_env:EmbodiedVectorEnv"
_DEFAULTS = {
    name: option.default
    for name, option in inspect.signature(EmbodiedEnv).parameters.items()
    if option.kind is option.KEYWORD_ONLY
}


# fmt: off
@overload
def make(
    contract: str | Path | Contract | None = ..., *,
    backend: BackendName | str = ..., pacing: str | None = ..., record: None = ..., record_messages: bool = ...,
    render_mode: str | None = ..., view: bool | str | None = ...,
    delay_profile: str | Path | LatencyProfile | DelayModel | None = ...,
    clock: str | Clock | None = ..., host_timing: bool | None = ..., evaluator_info: bool = ...,
    max_episode_steps: None = ..., spawn: bool = ...,
    namespace: str | None = ..., observers: Sequence[str | Observer] = ...,
    action_stages: Sequence[str | ActionStage] = ..., fifo_priority: int | None = ...,
    switch_interval_s: float | None = ..., **backend_options: Any,  # noqa: ANN401 - the backend checks its options
) -> EmbodiedEnv: ...
@overload
def make(
    contract: str | Path | Contract | None = ..., *, record: str | Path, max_episode_steps: int | None = ...,
    backend: BackendName | str = ..., pacing: str | None = ..., record_messages: bool = ...,
    render_mode: str | None = ..., view: bool | str | None = ...,
    delay_profile: str | Path | LatencyProfile | DelayModel | None = ...,
    clock: str | Clock | None = ..., host_timing: bool | None = ..., evaluator_info: bool = ..., spawn: bool = ...,
    namespace: str | None = ..., observers: Sequence[str | Observer] = ...,
    action_stages: Sequence[str | ActionStage] = ..., fifo_priority: int | None = ...,
    switch_interval_s: float | None = ..., **backend_options: Any,  # noqa: ANN401 - the backend checks its options
) -> RecordTransitions: ...
@overload
def make(
    contract: str | Path | Contract | None = ..., *, record: str | Path | None = ..., max_episode_steps: int | None,
    backend: BackendName | str = ..., pacing: str | None = ..., record_messages: bool = ...,
    render_mode: str | None = ..., view: bool | str | None = ...,
    delay_profile: str | Path | LatencyProfile | DelayModel | None = ...,
    clock: str | Clock | None = ..., host_timing: bool | None = ..., evaluator_info: bool = ..., spawn: bool = ...,
    namespace: str | None = ..., observers: Sequence[str | Observer] = ...,
    action_stages: Sequence[str | ActionStage] = ..., fifo_priority: int | None = ...,
    switch_interval_s: float | None = ..., **backend_options: Any,  # noqa: ANN401 - the backend checks its options
) -> gymnasium.Env[Observation, Any]: ...
# fmt: on


def make(  # noqa: PLR0913 - the public options
    contract: str | Path | Contract | None = None,
    *,
    backend: BackendName | str = "mujoco",
    pacing: str | None = None,
    record: str | Path | None = None,
    record_messages: bool = False,
    render_mode: str | None = None,
    view: bool | str | None = None,
    delay_profile: str | Path | LatencyProfile | DelayModel | None = None,
    clock: str | Clock | None = None,
    host_timing: bool | None = None,
    evaluator_info: bool = False,
    max_episode_steps: int | None = None,
    spawn: bool = True,
    namespace: str | None = None,
    observers: Sequence[str | Observer] = (),
    action_stages: Sequence[str | ActionStage] = (),
    fifo_priority: int | None = None,
    switch_interval_s: float | None = None,
    **backend_options: Any,
) -> gymnasium.Env[Any, Any]:
    """Make an environment from a contract.

    ``env.spec`` recreates the environment, and converts to JSON (``to_json``) if the other options do. It contains a
    Contract in full; a name or a path is resolved again.

    Args:
        contract: name of a shipped contract, path to a YAML file, or a Contract; None, with the backend "replay": the
            contract that the run was recorded under.
        backend: "mujoco", "mujoco_ros", "gazebo", "simulation_interfaces", "real", "replay", "fake", or a third
            party's.
        pacing: "lockstep": the world waits for the agent; "realtime": it does not; None: the default of the backend.
        record: a folder; the run is recorded into a new run directory in it (`RecordTransitions`).
        record_messages: record the raw ROS 2 messages too (``messages.mcap``); for a backend over ROS 2.
        render_mode: "rgb_array" or "human", where the backend offers it.
        view: show the steps in Rerun: True starts its viewer, or serves its web viewer without a display; ``"web"`` or
            ``"web:PORT"`` serves it; ``"FILE.rrd"`` writes a file; ``"rerun+http://HOST:PORT/proxy"`` connects to one.
            It never delays a step: steps that the viewer is too slow for are dropped and counted.
        delay_profile: a latency_profile.json, a LatencyProfile or a DelayModel, whose delays ``mujoco`` or
            ``mujoco_ros`` in lockstep injects (``info["latency"]["injected"]``). Other backends refuse it.
        clock: clock of the latencies: "steady" (default), "virtual" for reproducible ones in lockstep, or a Clock.
        host_timing: return durations of the host in ``info``; None: only in real time, so that in lockstep equal seeds
            give equal infos. A record and observers always receive them.
        evaluator_info: show sensors with ``visibility: evaluator`` in ``info``.
        max_episode_steps: an outer `TimeLimit`, at most the contract's own horizon.
        spawn: start the simulator; False: attach to a running one.
        namespace: ROS namespace of the world.
        observers: objects whose method `observe` receives every transition, or names of the entry-point group
            ``embodied_env.observers``, as ``NAME`` or ``NAME:TARGET``; ``rerun:web`` is the view ``"web"``.
        action_stages: what may replace or translate an action before the safety gate, in order: names of the
            entry-point group ``embodied_env.action_stages``, or objects with the methods of `ActionStage`.
        fifo_priority: 1 to 99: the stepping thread runs under ``SCHED_FIFO`` from the reset to `close`.
        switch_interval_s: thread switch interval of the interpreter, for policies in Python threads.
        **backend_options: options of the backend, e.g. `domain_id`, `step_timeout_s`, `reset_timeout_s` over ROS 2.

    Returns:
        The `EmbodiedEnv`, in a TimeLimit with `max_episode_steps`, and outermost in `RecordTransitions` with `record`.

    Raises:
        ContractError: for an invalid contract.
        UsageError: for an unknown backend or option, or a value that an option does not take.
        MissingDependencyError: when an optional package is not installed.
    """
    given = {name: value for name, value in locals().items() if name in _DEFAULTS and value is not _DEFAULTS[name]}
    check_options(backend, backend_options, pacing=pacing, others=OPTIONS)
    options = {**given, "backend": backend, **backend_options}
    if max_episode_steps is not None:
        max_episode_steps = checked_count("max_episode_steps", max_episode_steps, at_least=1)
    if record is not None:
        record = checked_path("record", record)
    if checked_flag("record_messages", record_messages) and record is None:
        raise UsageError("record_messages=True without record (expected a folder to record into)")
    embodied = EmbodiedEnv(contract, **options)
    if max_episode_steps is not None and max_episode_steps > (horizon := embodied.contract.episode.horizon_steps):
        embodied.close()
        raise UsageError(
            f"max_episode_steps above the horizon: {max_episode_steps} (expected at most {horizon}, the contract's own)"
        )
    source = embodied.contract if contract is None else contract
    embodied.spec = EnvSpec(
        id=embodied.contract.environment_id,
        entry_point=_ENTRY_POINT,
        kwargs={"contract": save_contract(source) if isinstance(source, Contract) else str(source), **options},
        max_episode_steps=max_episode_steps,
        order_enforce=False,  # the stepper checks the order of calls itself
        disable_env_checker=True,
    )
    env: gymnasium.Env[Any, Any] = embodied
    if max_episode_steps is not None:
        env = gymnasium.wrappers.TimeLimit(env, max_episode_steps)
    if record is not None:
        from embodied_env.record import RecordTransitions  # noqa: PLC0415 - recording is optional

        env = RecordTransitions(env, record, messages=record_messages)
    return env


OPTIONS = tuple(inspect.signature(make).parameters)
"""The names of `make`'s parameters."""


def register(contract: str | Path | Contract, id: str | None = None) -> str:  # noqa: A002 - as in Gymnasium
    """Register a contract with Gymnasium and return its ID: then ``gymnasium.make(id, backend=...)`` makes it.

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
