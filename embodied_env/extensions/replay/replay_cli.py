"""The command ``embodied-env replay``, for recorded actions or those of another policy."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from embodied_env.cli import SOUND, UNSOUND
from embodied_env.cli.verb_arguments import add_chunks, add_json, add_policy, add_run_directory, add_seed
from embodied_env.core.terminal import ProgressBar, make_console, say
from embodied_env.errors import UsageError

if TYPE_CHECKING:
    from embodied_env.extensions.replay.run_replay import PolicyReplay, Replay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_run_directory(parser)
    option = parser.add_argument
    option("--contract", help="name or path of the contract to replay with (default: that of the run)")
    option("--task", metavar="FILE[:CLASS]", help="Python file to load the task from (default: none)")
    option("--trust-task", action="store_true", help="load the task that the contract names")
    option("--simulate", action="store_true", help="simulate the run again from its seeds and actions, in lockstep")
    add_policy(parser, default=None, what="address of the policy to compare with the recorded actions")
    add_chunks(parser)
    option("--tolerance", type=float, default=0.0, help="largest difference of an action that counts as equal")
    add_seed(parser, "seed of the policy, as in its evaluation")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Return 1 for a difference, an unclean run, or a task that is not verified."""
    from embodied_env.contract import load_contract

    contract = None if args.contract is None else load_contract(args.contract)
    if args.policy is not None:
        return _replay_policy(args, contract)
    if args.policy_file is not None:
        raise UsageError(f"--policy-file {args.policy_file} requires --policy")
    if args.simulate and args.task is not None:
        raise UsageError(
            f"--task {args.task} does not apply to --simulate; name the contract with the task by --contract"
        )
    from embodied_env.extensions.replay.run_replay import replay_run, simulate_run

    path = args.run_directory
    with ProgressBar() as progress:
        if args.simulate:
            replay = simulate_run(path, contract=contract, progress=progress)
        else:
            replay = replay_run(path, contract=contract, task=args.task, trust_task=args.trust_task, progress=progress)
    if args.json:
        data = {**dataclasses.asdict(replay), "path": str(replay.path), "equal": replay.equal, "sound": replay.sound}
        say(json.dumps(data, indent=2))
    else:
        say("\n".join(_lines(replay)))
    return SOUND if replay.sound else UNSOUND


def _replay_policy(args: argparse.Namespace, contract: Any) -> int:  # noqa: ANN401 - a Contract or None
    """Compare a policy, and return 1 for an unclean run, but not for different actions."""
    from embodied_env.core.policy import policy_errors
    from embodied_env.extensions.replay.run_replay import replay_policy
    from embodied_env.policies.policy_loader import load_policy, policy_accepts
    from embodied_env.record import read_run
    from embodied_env.record.json_values import to_json_types
    from embodied_env.record.manifest import contract_of_manifest

    opened = read_run(args.run_directory)
    contract = contract or contract_of_manifest(opened.manifest)
    options = {"backend": str(opened.manifest.get("backend"))} if policy_accepts(args.policy, "backend") else {}
    policy = load_policy(args.policy, contract, policy_file=args.policy_file, trust=args.trust_policy, **options)
    try:
        with ProgressBar() as progress:
            replay = replay_policy(
                args.run_directory,
                policy,
                seed=args.seed,
                tolerance=args.tolerance,
                chunks=args.chunks,
                progress=progress,
            )
    finally:
        with policy_errors(f"--policy {args.policy!r}", "close"):
            policy.close()
    if args.json:
        first = None if replay.first is None else dict(zip(("episode", "step"), replay.first, strict=True))
        data = {**dataclasses.asdict(replay), "path": str(replay.path), "policy": args.policy, "first": first}
        say(json.dumps(to_json_types(data), indent=2))  # NaN becomes null
    else:
        _print_policy(args.policy, replay)
    return UNSOUND if replay.problem else SOUND


def _lines(replay: Replay) -> Iterator[str]:
    yield from _remarks(replay)
    found = replay.difference
    if found is None:
        result = "all equal" if replay.transitions else "nothing to replay"
        yield f"{replay.path}: {replay.transitions} transitions, {result}"
        return
    yield f"{replay.path}: {replay.transitions} transitions equal, then row {found.row} differs"
    yield f"  episode {found.episode}, {f'step {found.step}' if found.step else 'reset'}: {found.field}"
    yield f"  recorded  {_short(found.recorded)}"
    yield f"  replayed  {_short(found.replayed)}"
    if found.others:
        yield f"  and       {', '.join(found.others)}"


def _remarks(replay: Replay) -> list[str]:
    """Return the limits of the comparison, a line each."""
    problem = " ".join(replay.problem.splitlines())
    remarks = (
        (replay.wrapped, "the run had wrappers: the actions received by the inner environment were replayed"),
        (replay.contract_changed, "the contract differs from that of the recorded run"),
        (
            not replay.task_verified,
            "task not verified: reward and verdict are copied from the run; use --trust-task or --task FILE",
        ),
        (replay.task_changed, "the task differs from that of the recorded run"),
        (replay.reconstructed, f"{replay.reconstructed} unrecordable actions were reconstructed from the gate report"),
        (replay.left_out, f"{replay.left_out} rows added by an outer wrapper were skipped"),
        (replay.unverified, f"{replay.unverified} rows were not compared: earlier rows of their episodes are missing"),
        (problem, f"the run is not clean: {problem}"),
    )
    return [text for applies, text in remarks if applies]


def _short(value: Any, most: int = 200) -> str:  # noqa: ANN401 - JSON types
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}..."


def _print_policy(policy: str, replay: PolicyReplay) -> None:
    """Print the differences per episode and joint, and the first step with another action."""
    from rich.table import Column, Table

    console = make_console()
    headings = ("episode", "steps", "first at", "differing", "no action", "joint", "mean", "largest")
    columns = [Column(heading, justify="right") for heading in headings]
    table = Table(*columns, title=f"{policy}: differences of its actions", title_justify="left")
    for found in replay.episodes:
        at = "never" if found.first is None else str(found.first)
        account = [str(count) for count in (found.episode, found.steps, at, found.diverged, found.unreadable)]
        for joint, mean, most in zip(replay.joints, found.mean, found.largest, strict=True):
            table.add_row(*account, joint, f"{mean:.3g}", f"{most:.3g}")
            account = [""] * len(account)
        table.add_section()
    console.print(table)
    if replay.wrapped:
        console.print("the run had wrappers: observations and actions are those of the inner environment")
    if replay.problem:
        console.print(f"the run is not clean: {replay.problem}", markup=False)
    where = "never" if replay.first is None else f"first in episode {replay.first[0]}, step {replay.first[1]}"
    console.print(f"actions differ by more than {replay.tolerance:g}: {where}")
