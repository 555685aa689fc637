"""Evaluation: recorded episodes of a policy, in this process, in worker processes or on a Ray cluster."""

from embodied_env.evaluation.episodes import EpisodeObserver, EpisodeRunner, Evaluation, EvaluationJob
from embodied_env.evaluation.runner import evaluate

__all__ = ["EpisodeObserver", "EpisodeRunner", "Evaluation", "EvaluationJob", "evaluate"]
