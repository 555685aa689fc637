"""Pairs of episodes of two runs."""

from typing import Any

from embodied_env.record.episode_pairing import Episodes, pair_episodes
from embodied_env.record.summary import EpisodeOutcome


def episodes_of(story):
    """Return the episodes of a run, each with its seed and whether it ended."""
    episodes = Episodes()
    for number, (seed, has_ended) in enumerate(story, start=1):
        reset: Any = {"options": None, "inner": {"seed_applied": seed, "sampled": {}}}
        episodes.begin(reset)
        if has_ended:
            episodes.end(EpisodeOutcome(number=number, seed=seed, solved=False, ended="terminated", reward=number))
    return episodes


def test_episodes_of_one_seed_are_paired_in_their_order():
    found = pair_episodes(*(episodes_of([(5, True), (5, True)]) for _ in range(2)))
    assert [(a.reward, b.reward) for a, b in found.pairs] == [(1, 1), (2, 2)]


def test_episode_that_was_started_again_is_paired_with_one_that_was_not():
    again = episodes_of([(5, False), (5, True), (6, True), (5, False), (5, False), (5, True)])
    found = pair_episodes(again, episodes_of([(5, True), (6, True), (5, True)]))
    assert [(a.reward, b.reward) for a, b in found.pairs] == [(2, 1), (3, 2), (6, 3)]
    assert (found.indices, found.only_a, found.only_b) == (((1, 0), (2, 1), (5, 2)), 0, 0)
