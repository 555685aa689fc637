"""Run the episodes of policies in this process or with an engine, and return their results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from embodied_env.contract import Contract, load_contract
from embodied_env.contract.argument_checks import checked_count, checked_path
from embodied_env.contract.contract_validation import refuse_degrees
from embodied_env.contract.runtime_values import check_instruction
from embodied_env.core.policy import Policy, PolicyFunction, as_policy
from embodied_env.envs.env_options import DEFAULTS, RecordedOptions
from embodied_env.envs.option_checks import split_options
from embodied_env.errors import UsageError
from embodied_env.extensions.evaluation.episode_runner import (
    EpisodeObserver,
    EpisodeRunner,
    EvaluationJob,
    PolicySource,
    find_failure,
)
from embodied_env.extensions.evaluation.evaluation_results import Evaluation, PolicyResult

if TYPE_CHECKING:
    from embodied_env.extensions.evaluation.evaluation_engine import Engine

AnyPolicy = str | PolicySource | Policy | PolicyFunction
"""A policy to evaluate, as an address, one with a policy file, an object, or a callable."""


def evaluate(  # noqa: PLR0913 - the public options
    contract: str | Path | Contract,
    policies: AnyPolicy | Sequence[AnyPolicy],
    *,
    episodes: int = 10,
    seed: int = 0,
    record: str | Path = "runs",
    trust_policy: bool = False,
    chunks: str = "wait",
    instructions: Sequence[str] = (),
    engine: Engine | str | None = None,
    observer: EpisodeObserver | None = None,
    confirm: Callable[[str], bool] | None = None,
    **options: Unpack[RecordedOptions],
) -> Evaluation:
    """Run episodes of policies on one backend, each policy with its own run directory.

    All policies run episode 0, then episode 1, and so on, each time beginning with the next policy, in one environment.
    Episode k of each has the same world seed, so the episodes are compared in pairs (`Evaluation.compare`). After an
    interrupt, every run is closed before the interrupt is raised.

    Args:
        contract: name of a shipped contract, path to a YAML file, or a Contract.
        policies: one policy or several: addresses of `load_policy`, a `PolicySource` with a policy file, policies or
            callables. Policies and callables are not closed.
        backend: as for `make`.
        episodes: number of episodes of each policy, and with `instructions` of each of these.
        seed: seed of the first episode.
        record: parent folder of the run directories.
        trust_policy: load a format that executes code when it is read, such as pickle.
        chunks: when the policy's next action chunk is computed, and what happens to the last one: ``wait``,
            ``replace``, ``crossfade``, ``ensemble`` or ``rtc`` (`embodied_env.policies.chunk_execution.ChunkRunner`).
        instructions: prompts that the episodes of each policy have in turn, instead of the contract's; results are
            also given for each prompt.
        engine: runs the episodes in worker processes: ``local`` (one for each CPU), ``ray`` or an `Engine`; the
            policies must be addresses.
        observer: receives the progress, with an engine only the ends of episodes.
        confirm: asks the operator of a robot whether to continue with a policy whose first inputs or actions are
            implausible, far outside its statistics or the action space; None: it is refused. A simulation warns.
        **options: other options of `make`.

    Raises:
        ContractError: for limits that look like degrees, unless the contract confirms them.
        UsageError: for a policy, a backend or an option that is not available, and for an implausible policy.
        PolicyError: when a policy raises.
        RecordError: when a run cannot be created; one that loses rows later is a problem of its result.
        BackendError: when an engine loses an episode too often.
    """
    several = policies if isinstance(policies, Sequence) and not isinstance(policies, str) else [policies]
    if not several:
        raise UsageError("no policy to evaluate: [] (expected one or more)")
    own = {*inspect.signature(evaluate).parameters} - {"contract", "policies", "options"}
    split_options(options, own | RecordedOptions.__optional_keys__, caller="evaluate")
    contract, episodes = load_contract(contract), checked_count("episodes", episodes, at_least=1)
    refuse_degrees(contract)
    backend = options.pop("backend", DEFAULTS["backend"])
    job = EvaluationJob(
        contract=contract,
        backend=backend,
        policies=tuple(_source(policy) for policy in several),
        seed=checked_count("seed", seed, at_least=0),
        record_messages=options.pop("record_messages", False),
        compression=options.pop("compression", "zstd"),
        options=options,
        trust_policy=trust_policy,
        chunks=chunks,
        instructions=tuple(check_instruction(each) for each in instructions),
    )
    episodes *= max(1, len(job.instructions))
    folder = checked_path("record", record)
    if engine is not None:
        if options.get("view"):
            raise UsageError("unsupported option with an engine: view (a view shows a single robot); omit the engine")
        from embodied_env.extensions.evaluation.evaluation_arguments import ENGINES
        from embodied_env.extensions.evaluation.evaluation_engine import Engine, make_engine

        if isinstance(engine, str):
            engine = make_engine(engine)
        if not isinstance(engine, Engine):
            raise UsageError(f"invalid engine: {engine!r} (expected one of: {', '.join(ENGINES)}, or an Engine)")
        ended = (lambda _: None) if observer is None else observer.ended
        results = engine.evaluate(job, episodes=episodes, out=folder, ended=ended)
    else:
        with EpisodeRunner(job, [folder] * len(several), observer=observer, confirm=confirm) as runner:
            for trial in range(episodes * len(several)):
                runner.run(trial)
        results = tuple(_result(name, index, runner, episodes) for index, name in enumerate(job.names))
    return Evaluation(contract=contract, backend=backend, results=results)


def _source(policy: AnyPolicy) -> PolicySource | Policy:
    if isinstance(policy, str):
        return PolicySource(address=policy)
    return policy if isinstance(policy, PolicySource) else as_policy(policy)


def _result(name: str, index: int, runner: EpisodeRunner, episodes: int) -> PolicyResult:
    """Return the result of one policy, complete even if its record is not."""
    from embodied_env.record import read_run

    recorder = runner.recorders[index]
    path, summary = recorder.path, recorder.summary
    lost = f"the record is incomplete: {recorder.losses.problem}" if recorder.losses.problem else ""
    problem = lost or read_run(path).problem or find_failure(summary)
    return PolicyResult(
        policy=name, path=path, summary=summary, problem=problem, where=dict.fromkeys(range(episodes), path)
    )
