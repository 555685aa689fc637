"""Evaluate a policy: run its episodes in this process or with an engine, and return their summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_env.contract import Contract
from embodied_env.errors import RecordError
from embodied_env.evaluation.episodes import EpisodeObserver, EpisodeRunner, Evaluation, EvaluationJob, lost_backends

if TYPE_CHECKING:
    from embodied_env.evaluation.engine import Engine


def evaluate(  # noqa: PLR0913 - the public options
    contract: Contract,
    *,
    backend: str,
    policy: str,
    episodes: int,
    seed: int,
    out: str | Path,
    engine: Engine | None = None,
    observer: EpisodeObserver | None = None,
    record_messages: bool = False,
    trust_policy: bool = False,
    **options: Any,  # noqa: ANN401 - of make
) -> Evaluation:
    """Run `episodes` episodes of `policy` on `backend`, recorded into a new run directory in `out`.

    The policy is given by its address (`embodied_env.load_policy`; `trust_policy` is its `trust`), `options` are those
    of `embodied_env.make`, and `seed` is that of the first reset. An `engine` runs the episodes in other processes;
    `observer` then receives only their ends. After an interrupt, every run is closed before the interrupt is raised.

    Raises:
        UsageError: for a policy, a backend or an option that is not available.
        PolicyError: when the policy raises.
        RecordError: when the run cannot be written.
        BackendError: when an engine loses an episode too often.
    """
    job = EvaluationJob(
        contract=contract,
        backend=backend,
        policy=policy,
        seed=seed,
        options=options,
        record_messages=record_messages,
        trust_policy=trust_policy,
    )
    if engine is not None:
        ended = (lambda _: None) if observer is None else observer.ended
        return engine.evaluate(job, episodes=episodes, out=Path(out), ended=ended)
    from embodied_env.record import read_run

    with EpisodeRunner(job, Path(out), observer=observer) as runner:
        for episode in range(episodes):
            runner.run(episode)
    try:
        summary = json.loads((runner.path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        problem = runner.losses or "the run was not closed"
        raise RecordError(f"no summary of run {runner.path}: {problem}") from None
    problem = read_run(runner.path).problem or lost_backends(summary)
    return Evaluation(policy=policy, path=runner.path, summary=summary, problem=problem)
