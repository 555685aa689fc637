"""Evaluation: recorded episodes of policies, in this process, in worker processes or on a Ray cluster."""

from embodied_env.evaluation.episodes import EpisodeObserver, EpisodeRunner, EvaluationJob, PolicySource
from embodied_env.evaluation.results import Evaluation, PolicyComparison, PolicyResult
from embodied_env.evaluation.runner import evaluate

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
