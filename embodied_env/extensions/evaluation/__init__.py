"""Evaluate policies by recorded episodes, in this process, in worker processes or on a Ray cluster."""

from embodied_env.extensions.evaluation.episode_runner import (
    EpisodeObserver,
    EpisodeRunner,
    EvaluationJob,
    PolicySource,
)
from embodied_env.extensions.evaluation.evaluation import evaluate
from embodied_env.extensions.evaluation.evaluation_results import Evaluation, PolicyComparison, PolicyResult

__all__ = [
    "EpisodeObserver",
    "EpisodeRunner",
    "Evaluation",
    "EvaluationJob",
    "PolicyComparison",
    "PolicyResult",
    "PolicySource",
    "evaluate",
]
