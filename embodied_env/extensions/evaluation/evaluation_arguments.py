"""Arguments of ``evaluate`` and ``demo``, whose help imports no environment."""

from __future__ import annotations

import argparse

from embodied_env.cli.verb_arguments import add_json, add_options, add_seed, integer_from
from embodied_env.errors import UsageError

ENGINES = ("local", "ray")  # engines of worker processes


_MOST_BYTES = 2**20  # of a file of prompts


def read_instructions(path: str) -> tuple[str, ...]:
    """Return the prompts of a text file, one per non-empty line, or raise UsageError."""
    from embodied_env.contract.bounded_files import read_file
    from embodied_env.contract.runtime_values import check_instruction

    try:
        text = read_file(path, most_bytes=_MOST_BYTES).decode("utf-8-sig")  # some editors begin a file with a mark
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read instructions {path!r}: {error} (expected a text file in UTF-8)") from None
    lines = tuple(check_instruction(line.strip()) for line in text.split("\n") if line.strip())
    if not lines:
        raise UsageError(f"no instruction in {path!r} (expected one per line)")
    return lines


def add_common_arguments(parser: argparse.ArgumentParser, *, backend: str, episodes: int) -> None:
    """Declare the arguments that ``demo`` and ``evaluate`` share, with their defaults."""
    option = parser.add_argument
    add_options(parser, "backend", backend=backend)
    option("--episodes", type=integer_from(1), metavar="N", default=episodes, help="number of episodes per policy")
    add_seed(parser, "seed of the first episode")
    option("--out", metavar="DIR", default="runs", help="parent directory of the run directories")
    add_json(parser)
